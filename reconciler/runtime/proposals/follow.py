"""What becomes of a proposal: checked, merged, placed, started. One event for each, as it is seen.

Looks at git alone, and at the pull request where `gh` is there; whoever merges it. Waiting and the clock are the
caller's, so that nothing here depends on time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from reconciler.documents.hostlist import fold
from reconciler.documents.record import SUMMARY, Summary, job_path, read_allocation, read_summary
from reconciler.errors import GangOpsError, InvalidInput, NotFound
from reconciler.model.allocation import JobRecord
from reconciler.model.lifecycle import JobState
from reconciler.model.reasons import sentence
from reconciler.model.units import JobKey
from reconciler.render.arrays import STATES
from reconciler.runtime.clone import Clone
from reconciler.runtime.proposals.change import Change
from reconciler.runtime.proposals.pulls import Gh
from reconciler.store.history import file_at, is_ancestor
from reconciler.store.objects import find_commit

_PLACED = frozenset({JobState.STARTING, JobState.RUNNING})


class Stage(StrEnum):
    """How far it is. `waits` and `away` may come and go between the others."""

    CHECKED = "checked"
    MERGED = "merged"
    WAITS = "waits"
    PLACED = "placed"
    STARTED = "started"
    ENDED = "ended"
    AWAY = "away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One stage reached; `told` says by what."""

    stage: Stage
    told: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """A pull request that `gh` can be asked about."""

    gh: Gh
    address: str


def follow(
    clone: Clone, change: Change, commit: str, pull: Pull | None, *, overdue: Callable[[], bool], pause: Callable[[], None]
) -> Iterator[Event]:  # fmt: skip
    """The stages of a pushed change, until its job runs or, where no job starts by it, until it is merged.

    Raises: NotFound (TimedOut) once `overdue`; GangOpsError (ChecksFailed, PullRequestClosed).
    """
    merged, last = "", Event(stage=Stage.MERGED)
    away, checked = "", False
    while True:
        why = clone.refresh()
        if not merged:
            merged = _merged(clone, change, commit)
            told, silent = _asked(pull, checked) if pull is not None else ("", "")
            why = why or silent
            if told and not checked:
                checked = True
                yield Event(stage=Stage.CHECKED, told=told)
            if merged:
                yield Event(stage=Stage.MERGED, told=f"{clone.desired} {merged[:7]}")
        if why and not away:
            yield Event(stage=Stage.AWAY, told=why)
        away = why
        if merged and not change.job:
            return
        if merged and (event := _progress(clone, JobKey(change.job), merged)) is not None:
            if event.stage is not last.stage or (event.stage is Stage.WAITS and event != last):
                yield from _with_placed(event, last)
            last = event
            if event.stage in {Stage.STARTED, Stage.ENDED}:
                return
        if overdue():
            at = f"{last.stage} {last.told}".rstrip() if merged else "not merged"
            raise NotFound(f"the wait is over: {at}", code="TimedOut", remedy=f"gangops status {change.job}".rstrip())
        pause()


def _with_placed(event: Event, last: Event) -> Iterator[Event]:
    """A gang that starts within one look was placed as well."""
    if event.stage is Stage.STARTED and last.stage is not Stage.PLACED:
        yield Event(stage=Stage.PLACED, told=event.told)
    yield event


def _asked(pull: Pull, checked: bool) -> tuple[str, str]:
    """What the checks came to, "" while they run; and why that is not known now. Raises GangOpsError (ChecksFailed,
    PullRequestClosed)."""
    try:
        standing = pull.gh.standing(pull.address)
    except GangOpsError as err:
        return "", err.message
    if standing.state == "CLOSED":
        raise GangOpsError(
            f"{pull.address} was closed without a merge", code="PullRequestClosed", remedy="Nothing changed."
        )
    if standing.blocked and standing.state != "MERGED":
        raise _ChecksFailed(
            f"{', '.join(standing.failed)} failed", code="ChecksFailed", remedy=f"{pull.address}/checks says why."
        )
    if checked or (standing.state != "MERGED" and (standing.pending or not standing.checks)):
        return "", ""
    return f"{standing.checks} checks passed" if standing.checks else "no checks", ""


class _ChecksFailed(GangOpsError):
    exit_status = InvalidInput.exit_status


def _merged(clone: Clone, change: Change, commit: str) -> str:
    """The desired commit that has the change, however it was merged; "" as long as none has."""
    tip = clone.desired_tip()
    if find_commit(clone.git, commit) is not None and is_ancestor(clone.git, commit, tip):
        return tip
    return tip if all(file_at(clone.git, tip, path) == content for path, content in change.files.items()) else ""


def _progress(clone: Clone, key: JobKey, merged: str) -> Event | None:
    """How the job stands in the newest generation that answers to the merge, if there is one yet."""
    summary, record = _glance(clone, key)
    if summary is None or not is_ancestor(clone.git, merged, summary.desired_commit):
        return None
    if record is None:
        return None
    where = f"#{summary.generation}"
    if record.placement is not None and record.state in _PLACED:
        told = f"{where} {record.placement.level} {record.placement.domain} on {fold(record.placement.nodes)}"
        return Event(stage=Stage.STARTED if record.state is JobState.RUNNING else Stage.PLACED, told=told)
    if record.state is JobState.FINISHED:
        return Event(stage=Stage.ENDED, told=f"{where} {record.outcome}")
    return Event(stage=Stage.WAITS, told=f"{record.state}: {sentence(record.reason)}")


def _glance(clone: Clone, key: JobKey) -> tuple[Summary | None, JobRecord | None]:
    try:
        tip = clone.state_tip()
    except NotFound:
        return None, None
    files = {path: file_at(clone.git, tip, path) for path in (SUMMARY, job_path(key))}
    there = {path: content for path, content in files.items() if content is not None}
    jobs = read_allocation(there).jobs
    tasks = [record for name, record in jobs.items() if name != key]
    return read_summary(there), jobs.get(key) or (min(tasks, key=lambda r: STATES.index(r.state)) if tasks else None)
