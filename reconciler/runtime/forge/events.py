"""What happened on the forge, from the payload it left: which pull request, which commits, and is it from a fork?

The payload of the trusted side is written by the forge; names in it are still chosen by anyone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reconciler.errors import UsageError

_SHA = re.compile(r"[0-9a-f]{40}")
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}")
_QUEUED = re.compile(r"refs/heads/gh-readonly-queue/.+/pr-([1-9][0-9]{0,9})-[0-9a-f]{40}")
_MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """A pull request that was opened or moved. `fork`: its head is in another repository."""

    repository: str
    number: int
    base: str
    head: str
    fork: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A workflow that ended: the head it ran for. `numbers` is empty for forks; then owner and branch find it."""

    repository: str
    head: str
    owner: str
    branch: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeGroup:
    """A pull request whose turn in the merge queue has come; `head` is the commit that would become main."""

    repository: str
    number: int
    base: str
    head: str


Event = PullRequest | FinishedRun | MergeGroup


def read_event(file: Path) -> Event:
    """The event of a payload file. Raises UsageError (UnknownEvent) for another kind, or what is no payload."""
    try:
        raw = file.read_bytes()[: _MOST_BYTES + 1]
        payload = json.loads(raw)
        repository = _matched(payload["repository"]["full_name"], _REPOSITORY)
        if "pull_request" in payload:
            return _pull_request(repository, payload["pull_request"])
        if "workflow_run" in payload:
            return _finished_run(repository, payload["workflow_run"])
        if "merge_group" in payload:
            return _merge_group(repository, payload["merge_group"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as err:
        why = err.strerror if isinstance(err, OSError) else f"it is no payload of an event ({str(err)[:120]})"
        raise UsageError(
            f"{file} cannot be read: {why}",
            code="UnknownEvent",
            remedy="in a workflow the event is at $GITHUB_EVENT_PATH",
        ) from err
    raise UsageError(
        f"{file} is an event of another kind", code="UnknownEvent",
        remedy="known are pull_request, workflow_run and merge_group",
    )  # fmt: skip


def _pull_request(repository: str, pull: Mapping[str, Any]) -> PullRequest:
    source = (pull["head"].get("repo") or {}).get("full_name", "")  # a fork may be gone by now
    return PullRequest(
        repository=repository,
        number=_number(pull["number"]),
        base=_matched(pull["base"]["sha"], _SHA),
        head=_matched(pull["head"]["sha"], _SHA),
        fork=source != repository,
    )


def _finished_run(repository: str, run: Mapping[str, Any]) -> FinishedRun:
    if run["event"] != "pull_request":
        raise ValueError(f"the workflow ran for {run['event']}, not for a pull request")
    return FinishedRun(
        repository=repository,
        head=_matched(run["head_sha"], _SHA),
        owner=_matched(
            (run.get("head_repository") or {}).get("owner", {}).get("login", "gone"), re.compile(r"[\w.-]{1,100}")
        ),
        branch=str(run.get("head_branch") or ""),
        numbers=tuple(_number(pull["number"]) for pull in run.get("pull_requests") or ()),
    )


def _merge_group(repository: str, group: Mapping[str, Any]) -> MergeGroup:
    found = _QUEUED.fullmatch(group["head_ref"])
    if found is None:
        raise ValueError("the head of the merge group names no pull request")
    return MergeGroup(
        repository=repository,
        number=int(found[1]),
        base=_matched(group["base_sha"], _SHA),
        head=_matched(group["head_sha"], _SHA),
    )


def _matched(text: object, shape: re.Pattern[str]) -> str:
    if not isinstance(text, str) or not shape.fullmatch(text):
        raise ValueError(f"unexpected {str(text)[:60]!r}")
    return text


def _number(value: object) -> int:
    if type(value) is not int or not 0 < value < 10**10:
        raise ValueError(f"unexpected number {str(value)[:20]!r}")
    return value
