"""`check`: what a forge requires before a merge; `codeowners`: whom it asks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from reconciler.errors import ExitStatus, UsageError
from reconciler.model.units import Instant
from reconciler.policy.approval import Reason
from reconciler.policy.authority import Rules
from reconciler.policy.codeowners import codeowners as codeowners_of
from reconciler.render.names import one_line
from reconciler.runtime.approval import Checked, check_approval, request_of
from reconciler.runtime.clock import SystemClock
from reconciler.runtime.clone import open_clone
from reconciler.runtime.policing import cluster_of_files, files_below

_MOST_BYTES = 16 << 20


@click.group()
def check() -> None:
    """Required checks of a pull request."""


@check.command("approval")
@click.option("--event", required=True, type=click.Path(path_type=Path), help="The forge's event, as JSON.")
@click.option(
    "--reviews", type=click.Path(path_type=Path), help="Its list of reviews, as JSON; default: the event's one."
)
@click.option("--base", help="Compare with this revision instead of the event's base.")
@click.option("--head", help="Judge this revision instead of the event's head.")
@click.option("--at", type=int, hidden=True, help="Instant of the preview in nanoseconds; default: now.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@click.pass_obj
def check_approval_command(
    repo: Path, event: Path, reviews: Path | None, base: str | None, head: str | None, at: int | None, output: str
) -> int:
    """Has everyone agreed who has to? Exit 4 when not.

    Passes without a second person when the author belongs to the queue, only its jobs change, class and size are within
    its limits, nobody outside it is displaced, and no policy asks for approval. Cancelling and suspending own jobs
    passes at once.
    """
    request = request_of(_json(event), _json(reviews) if reviews is not None else ())
    clone = open_clone(repo)
    if base or head:
        request = replace(request, base=base or request.base, head=head or request.head)
    now = Instant(at) if at is not None else SystemClock().now()
    checked = check_approval(clone, request, now)
    click.echo(json.dumps(_tree(checked), indent=1, ensure_ascii=False) if output == "json" else _text(checked))
    return ExitStatus.OK if checked.approval.passed else ExitStatus.INVALID


@click.command()
@click.option("--into", type=click.Path(path_type=Path), help="Write this file instead of printing.")
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 1 when the file differs.")
@click.pass_obj
def codeowners(repo: Path, into: Path | None, *, only_check: bool) -> int:
    """CODEOWNERS for everything but the job folders, from the admins of the outermost queues."""
    cluster = cluster_of_files(files_below(repo))
    rules = Rules(documents=cluster.documents, quotas=cluster.desired.quotas, around=cluster.around)
    if not rules.owners:
        raise UsageError(
            "the outermost queues have no admins, so nobody owns the platform",
            code="NoPlatformOwners",
            remedy="name some: `admins: {github: ['@org/platform']}` in the queue without a parent",
        )
    content = codeowners_of(rules)
    if only_check:
        file = into or repo / ".github" / "CODEOWNERS"
        same = file.is_file() and file.read_bytes() == content
        click.echo(f"{'current' if same else 'stale'}: {file}", err=True)
        return ExitStatus.OK if same else ExitStatus.ERROR
    if into is None:
        click.echo(content.decode(), nl=False)
    else:
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_bytes(content)
    return ExitStatus.OK


def _json(path: Path) -> object:
    try:
        content = path.read_bytes()[:_MOST_BYTES]
        return json.loads(content)
    except (OSError, ValueError, RecursionError) as err:
        why = err.strerror if isinstance(err, OSError) else f"it is no JSON ({err})"
        raise UsageError(
            f"{path} cannot be read: {why}", code="BadEvent",
            remedy="in a workflow the event is at $GITHUB_EVENT_PATH; `gangops forge reviews` writes the others",
        ) from err  # fmt: skip


def _text(checked: Checked) -> str:
    approval = checked.approval
    if approval.express:
        return "pass: express lane, no second person needed"
    lines = ["pass: those who have to agree did" if approval.passed else "fail: somebody has to agree first"]
    lines += [f"  missing   {_told(reason)}" for reason in approval.missing]
    lines += [f"  no express lane   {_told(reason)}" for reason in approval.closed if reason not in approval.missing]
    return "\n".join(lines)


def _told(reason: Reason) -> str:
    who = f"  (ask: {', '.join(reason.who)})" if reason.who else ""
    return one_line(f"{reason.objection}: {reason.told}{who}")


def _tree(checked: Checked) -> dict[str, object]:
    approval = checked.approval
    return {
        "formatVersion": "1.0",
        "kind": "Approval",
        "pullRequest": checked.request.number,
        "author": checked.author.login,
        "passed": approval.passed,
        "express": approval.express,
        "missing": [_row(reason) for reason in approval.missing],
        "closed": [_row(reason) for reason in approval.closed],
        "changes": [
            {
                "path": ruling.path,
                "need": ruling.need.value,
                "cause": ruling.cause.value,
                "queue": ruling.queue,
                "granted": ruling.granted,
                "who": list(ruling.who),
            }
            for ruling in checked.rulings
        ],
    }


def _row(reason: Reason) -> dict[str, object]:
    return {"code": reason.objection.value, "told": reason.told, "who": list(reason.who)}
