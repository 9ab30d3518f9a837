"""A check's job: what it writes for the forge to show. Annotations on stdout, a summary, outputs, and the plan's files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reconciler.render.names import one_line
from reconciler.render.plan import Plan, plan_markdown, plan_text
from reconciler.render.plan.forms import exit_status, printed
from reconciler.render.plan.model import Finding
from reconciler.runtime.forge.events import Event, PullRequest
from reconciler.store.history import parse_commit
from reconciler.store.objects import raw_commit, resolve
from reconciler.store.runner import Git

_ANNOTATIONS = 10
"""Of each kind; a forge shows no more of one step."""


def sides(git: Git, event: Event) -> tuple[str, str]:
    """Base and head of what would be merged: the two sides of the merge commit that the forge checked out, if it did.

    Else those of the event. Raises NotFound (UnknownRevision) when the clone has neither.
    """
    head = resolve(git, "HEAD")
    parents = parse_commit(head, raw_commit(git, head)).parents
    if isinstance(event, PullRequest) and len(parents) == 2 and parents[1] == event.head:
        return parents[0], head
    return resolve(git, event.base), resolve(git, event.head)  # type: ignore[union-attr]  # checked by the caller


def write_files(plan: Plan, folder: Path) -> None:
    """The plan in every form, in a folder that becomes the artefact."""
    folder.mkdir(parents=True, exist_ok=True)
    for form, name in (("json", "plan.json"), ("markdown", "plan.md"), ("html", "plan.html"), ("table", "plan.txt")):
        (folder / name).write_text(f"{printed(plan, form)}\n", encoding="utf-8")


def write_summary(plan: Plan, file: Path | None) -> None:
    """The plan at the end of the job's summary."""
    if file is not None:
        with file.open("a", encoding="utf-8") as out:
            out.write(f"{plan_markdown(plan)}\n")


def write_outputs(plan: Plan, file: Path | None) -> None:
    """What later steps may want to know; nothing in it is anybody's text."""
    if file is not None:
        with file.open("a", encoding="utf-8") as out:
            out.write(f"digest={plan.basis.digest}\nchanges={str(plan.changes).lower()}\n")
            out.write(f"exit-status={int(exit_status(plan))}\nvictims={len(plan.victims)}\n")


def log(plan: Plan) -> str:
    """What the build's log shows: the plan, then a command for each annotation."""
    return "\n".join([plan_text(plan), *annotation_lines(plan)])


def annotation_lines(plan: Plan) -> list[str]:
    """Workflow commands that put findings beside the lines they are about."""
    shown = [*plan.errors[:_ANNOTATIONS], *plan.warnings[:_ANNOTATIONS]]
    told = [_annotation(one) for one in shown]
    return [*told, *(f"::error title=Mass removal::{command_text(text)}" for text in _removals(plan))]


def _annotation(one: Finding) -> str:
    place = {"file": one.file, "line": str(one.line or ""), "col": str(one.column or ""), "title": one.code}
    told = ",".join(f"{key}={_property(value)}" for key, value in place.items() if value)
    kind = "error" if one.is_error else "warning"
    return f"::{kind} {told}::{command_text(' '.join(filter(None, (one.detail, one.remedy))))}"


def _removals(plan: Plan) -> Iterator[str]:
    for gone in plan.removals:
        yield f"{gone.gone} of {gone.of} {gone.what} would go at once; at most {gone.limit} % may"


def command_text(text: str) -> str:
    """The part after the command: a percent sign and line ends would be read as escapes."""
    return one_line(text).replace("%", "%25").replace("##[", "## [")


def _property(text: str) -> str:
    return command_text(text).replace(":", "%3A").replace(",", "%2C")
