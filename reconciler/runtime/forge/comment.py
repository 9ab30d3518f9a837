"""The one comment of a pull request: made, or brought up to date, from an artefact nobody vouches for.

Which pull request it is comes from the event, never from the artefact. The artefact is read as data of one schema and
rendered anew here, every text in it escaped; no markdown of it is posted. What was shown is kept in the comment, so
that the check before the merge can tell what nobody has seen.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reconciler.model.units import Instant
from reconciler.render.plan import Plan, plan_markdown
from reconciler.render.plan.markdown import marker
from reconciler.runtime.forge.api import Api, ForgeRefused
from reconciler.runtime.forge.events import FinishedRun, PullRequest

OWN = "github-actions[bot]"
"""Who a workflow's own token is, on github.com and on a server of one's own."""
_SHOWN = "<!-- gangops:shown:"
_VICTIMS = 300
_ROWS, _LONGEST = 20, 120
_BRIEF = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What became of a comment: `created`, `updated`, `unchanged` or `skipped`, and why."""

    what: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a comment has shown: who pays, at what price in GPU-seconds, and what was found wrong.

    `rows` are the jobs of the change itself: step, place and forecast start.
    """

    victims: frozenset[str] = frozenset()
    lost_gpu_seconds: int = 0
    errors: frozenset[str] = frozenset()
    found: bool = False
    rows: Mapping[str, tuple[str, str, Instant | None]] = field(default_factory=dict)


def comment(api: Api, event: FinishedRun | PullRequest, plan: Plan, *, own: str = OWN) -> Posted:
    """Create or update the comment. Raises Unreachable, and ForgeRefused but for a missing permission."""
    try:
        number = _number(api, event)
        if number is None:
            return Posted(what="skipped", why="no open pull request has this head any more")
        return _post(api, event.repository, number, plan, own)
    except ForgeRefused as err:
        if err.code in {"Forbidden", "NotThere"}:
            return Posted(what="skipped", why=f"{err.message}; the job's summary has the plan")
        raise


def _number(api: Api, event: FinishedRun | PullRequest) -> int | None:
    """The open pull request whose head is the commit the plan was made for, as the forge knows it."""
    if isinstance(event, PullRequest):
        return event.number
    for number in event.numbers:
        if _is_at(api.get(f"/repos/{event.repository}/pulls/{number}"), event):
            return number
    query = {"state": "open", "head": f"{event.owner}:{event.branch}"}
    for pull in api.pages(f"/repos/{event.repository}/pulls", **query):
        if _is_at(pull, event):
            return int(pull["number"])
    return None


def _is_at(pull: Any, event: FinishedRun) -> bool:
    return isinstance(pull, dict) and pull.get("state") == "open" and pull.get("head", {}).get("sha") == event.head


def _post(api: Api, repository: str, number: int, plan: Plan, own: str) -> Posted:
    body = comment_body(plan)
    before = own_comment(api, repository, number, marker(plan.basis.cluster), own)
    if before is not None and before.get("body") == body:
        return Posted(what="unchanged")
    try:
        _write(api, repository, number, before, body)
    except ForgeRefused as err:
        if err.code != "Unprocessable":
            raise
        _write(api, repository, number, before, comment_body(plan, limit=_BRIEF))
    return Posted(what="created" if before is None else "updated")


def _write(api: Api, repository: str, number: int, before: Mapping[str, Any] | None, body: str) -> None:
    if before is None:
        api.post(f"/repos/{repository}/issues/{number}/comments", {"body": body})
    else:
        api.patch(f"/repos/{repository}/issues/comments/{int(before['id'])}", {"body": body})


def own_comment(api: Api, repository: str, number: int, first_line: str, own: str) -> Mapping[str, Any] | None:
    """Our comment: by its first line and by its author; anybody can write the first line."""
    for row in api.pages(f"/repos/{repository}/issues/{number}/comments"):
        author = (row.get("user") or {}).get("login", "")
        if author == own and str(row.get("body") or "").startswith(first_line):
            found: Mapping[str, Any] = row
            return found
    return None


# --- what was shown ---


def comment_body(plan: Plan, *, limit: int = 60_000) -> str:
    """The comment, with a record of what it shows."""
    own = [row for row in plan.rows if row.own and len(row.where) <= _LONGEST]
    record = {
        "victims": sorted(row.job for row in plan.victims[:_VICTIMS]),
        "lostGpuSeconds": plan.lost_gpu_seconds,
        "errors": sorted({f"{found.code} {found.file}" for found in plan.errors[:_VICTIMS]}),
        "rows": {row.job: [str(row.step), row.where, row.starts] for row in own[:_ROWS]},
    }
    packed = base64.urlsafe_b64encode(json.dumps(record).encode()).decode()
    return plan_markdown(plan, limit=limit, more=f"{_SHOWN}{packed} -->")


def shown_in(api: Api, repository: str, number: int, cluster: str, *, own: str = OWN) -> Shown:
    """What our comment on a pull request has shown; nothing when there is none. Raises ForgeRefused, Unreachable."""
    row = own_comment(api, repository, number, marker(cluster), own)
    return shown_by(str(row["body"])) if row is not None else Shown()


def shown_by(body: str) -> Shown:
    """The record in a comment; a damaged one has shown nothing."""
    packed = body.rpartition(_SHOWN)[2].partition(" -->")[0] if _SHOWN in body else ""
    try:
        record = json.loads(base64.urlsafe_b64decode(packed))
        return Shown(
            victims=frozenset(map(str, record["victims"])),
            lost_gpu_seconds=int(record["lostGpuSeconds"]),
            errors=frozenset(map(str, record["errors"])),
            found=True,
            rows={str(job): _row(row) for job, row in dict(record.get("rows", {})).items()},
        )
    except (ValueError, KeyError, TypeError):
        return Shown()


def _row(row: Any) -> tuple[str, str, Instant | None]:
    step, where, starts = row
    return str(step), str(where), Instant(int(starts)) if starts is not None else None
