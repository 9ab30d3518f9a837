"""Does a recorded decision follow from its recorded inputs? Recompute it and compare every byte.

All inputs are in the commit and its first parent: desired tree, frozen documents, observation, previous
allocation, and the time. No agent, no clock, no network is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from reconciler.documents.record import Files, differing
from reconciler.errors import GangOpsError
from reconciler.model.decision import DECISION_VERSION
from reconciler.runtime.audit.fields import field_changes
from reconciler.runtime.generation import (
    Generation,
    Inputs,
    NextGeneration,
    generation_of,
    next_generation,
    state_files,
    trailers,
)
from reconciler.runtime.reading import DesiredReader, ReadDesired
from reconciler.store.branches import named_before, whole_log
from reconciler.store.history import CommitMeta
from reconciler.store.objects import find_commit, subtree
from reconciler.store.runner import Git

_MOST_FIELDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One generation's verdict. `differs` names paths (or trailers) that came out otherwise; `why` when it could
    not be recomputed at all. `other_version` marks a decision of another decision version: not recomputed here;
    `package` is the release that made it. `cut_off`: the generation it stands on is not in this clone. `fields` says of differing files what was recorded and what comes out."""

    generation: int
    commit: str
    differs: tuple[str, ...] = ()
    why: str = ""
    other_version: bool = False
    cut_off: bool = False
    package: str = ""
    fields: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        return not self.differs and not self.why and not self.other_version and not self.cut_off

    @property
    def wrong(self) -> bool:
        """It was made again, or should have been, and is not what was recorded."""
        return not self.identical and not self.other_version and not self.cut_off


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A state commit as read: its files, and the generation they hold."""

    files: Files
    generation: Generation


_Read = Callable[[str], _Recorded]


def replay(git: Git, tip: str, *, reader: DesiredReader | None = None) -> Iterator[Replayed]:
    """Every generation reachable from a state commit, newest first; generation 0 has no inputs and is skipped."""
    reading = reader or DesiredReader(git)
    # Each commit is looked at twice in a row: as the result, then as what the next one stood on.
    read = lru_cache(maxsize=2)(lambda commit: _read(git, commit))
    for meta in list(whole_log(git, tip)):
        if _stands_on(meta):
            yield _replay(git, meta, reading, read)


def replay_part(git: Git, tip: str, first: int, last: int) -> Iterator[Replayed]:
    """The generations of a range that have a parent, newest first; only their own trees are read."""
    reading = DesiredReader(git)
    read = lru_cache(maxsize=2)(lambda commit: _read(git, commit))
    for meta in whole_log(git, tip):
        number = _claimed(meta)
        if 0 <= number < first:
            return
        if _stands_on(meta) and first <= number <= last:
            yield _replay(git, meta, reading, read)


def _stands_on(meta: CommitMeta) -> str:
    """The generation before: the parent, or where a later branch goes on from; "" for the first of all."""
    return meta.parents[0] if meta.parents else named_before(meta)


def _read(git: Git, commit: str) -> _Recorded:
    files = state_files(git, commit)
    return _Recorded(files, generation_of(commit, files))


def _replay(git: Git, meta: CommitMeta, reader: DesiredReader, read: _Read) -> Replayed:
    try:
        recorded, previous = read(meta.id), read(_stands_on(meta))
        number = recorded.generation.summary.generation
        if recorded.generation.summary.decision_version != DECISION_VERSION:
            package = recorded.generation.summary.package_version
            return Replayed(generation=number, commit=meta.id, other_version=True, package=package)
        outcome, fields = _outcome_differs(meta, recorded, previous, reader)
        differs = [*_inputs_differ(git, meta, recorded), *outcome]
    except GangOpsError as err:
        cut_off = find_commit(git, _stands_on(meta)) is None
        told = "" if cut_off else f"{err.code}: {err.message}"
        return Replayed(generation=_claimed(meta), commit=meta.id, why=told, cut_off=cut_off)
    return Replayed(generation=number, commit=meta.id, differs=tuple(differs), fields=fields)


def _inputs_differ(git: Git, meta: CommitMeta, recorded: _Recorded) -> list[str]:
    """Whether the commit stands on the desired commit it names, and holds that commit's tree."""
    desired = recorded.generation.summary.desired_commit
    if meta.parents and meta.parents[1:] != (desired,):
        return ["second parent"]
    return [] if subtree(git, meta.id, "desired") == subtree(git, desired, "") else ["desired/"]


def _outcome_differs(
    meta: CommitMeta, recorded: _Recorded, previous: _Recorded, reader: DesiredReader
) -> tuple[list[str], tuple[str, ...]]:
    """Paths and trailers that come out otherwise when the decision is made again, and which fields of them."""
    then = recorded.generation
    read = reader.recorded(meta.id, then.summary.desired_commit, then.frozen)
    if read.desired is None:
        return ["desired/"], ()
    again = made_again(then, previous.generation, read)
    wrong, fields = outcome_differs(previous.files, recorded.files, again.changes)
    said = dict(meta.trailers)
    return wrong + [f"trailer {key}" for key, value in trailers(then.summary).items() if said.get(key) != value], fields


def made_again(then: Generation, previous: Generation, read: ReadDesired) -> NextGeneration:
    """The decision once more, from the inputs that were recorded. Raises BrokenInvariant when its judge refuses it."""
    assert read.desired is not None
    return next_generation(
        Inputs(
            desired=read.desired,
            read=read.read,
            frozen=then.frozen,
            observed=then.observed,
            previous=previous,
            now=then.summary.decided_at,
            trigger=then.summary.trigger,
            package_version=then.summary.package_version,
            verdicts=read.verdicts,
        )
    )


def outcome_differs(
    before: Files, recorded: Files, changes: Mapping[str, bytes | None]
) -> tuple[list[str], tuple[str, ...]]:
    """Paths whose recorded bytes are not those that come out, and which fields, as `path: field recorded -> comes out`."""
    expected = _changed(before, changes)
    wrong = sorted(differing(expected, recorded))
    told = (f"{path}: {line}" for path in wrong for line in field_changes(recorded.get(path), expected.get(path), path))
    return wrong, tuple(islice(told, _MOST_FIELDS))


def _changed(files: Files, changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    both = {**files, **changes}
    return {path: content for path, content in both.items() if content is not None}


def _claimed(meta: CommitMeta) -> int:
    """The generation a commit says it is, -1 when it says none."""
    said = dict(meta.trailers).get("Generation", "")
    return int(said) if said.isdecimal() and len(said) < 19 else -1
