"""What a change would do before it is merged: the decision the loop would make for the head of it, against the one it
would make for the base, both on one state commit of a clone. Asks no agent and runs nothing but git; the observation
is the committed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from reconciler import __version__
from reconciler.errors import Diagnostic, InvalidInput, Place, StoreError, sorted_by_place
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.decision import DECISION_VERSION, Tidying
from reconciler.model.desired import Desired, PolicyHold
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Provenance
from reconciler.model.units import Instant, JobKey
from reconciler.planner.forecast import Forecast, forecast
from reconciler.policy.verdicts import Verdicts
from reconciler.render.plan import Basis, Plan, Side, plan_of, refused_plan
from reconciler.render.plan.build import Told
from reconciler.render.plan.model import Removal
from reconciler.runtime.beside import Beside, both
from reconciler.runtime.clone import Clone
from reconciler.runtime.generation import PREVIEW, Decided, Generation, Inputs, assumed, decided, standing
from reconciler.runtime.guards import ACKNOWLEDGE, removals
from reconciler.runtime.known_states import known_generation
from reconciler.runtime.provenance import foreseen
from reconciler.runtime.reading import DesiredReader, ReadDesired
from reconciler.store.objects import resolve_all

Starts = dict[JobKey, Forecast]

_WATCHED = 40
"""Waiting jobs whose start is forecast, beside those of the change itself."""
_LINES = 200
"""Edited files whose jobs are told with their line."""
_INSTANTS = 60
_LARGE = 1_000
"""Jobs from which on both sides are decided at once."""
_LOOKS = 1_500
"""Instants a forecast looks at, and waiting jobs it looks at in all: a preview has seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which preview. Revisions; `base` "": against what holds now. `state` "": the newest state commit of the clone."""

    head: str
    base: str = ""
    state: str = ""


def preview(clone: Clone, head: str, now: Instant, *, base: str | None = None, state: str = "",
            reader: DesiredReader | None = None) -> Plan:  # fmt: skip
    """The plan of `head`; with `base`, as compared with what `base` alone would give.

    Problems of the head are findings of the plan; files that allow no decision give a plan that is not `decided`.
    Raises InvalidInput when the base allows none, NotFound for an unknown revision. Without a state branch the cluster is empty and well.
    """
    return Preview(clone, reader or DesiredReader(clone.git), Asked(head=head, base=base or "", state=state)).plan(now)


class Preview:
    """One change on one state, read once."""

    def __init__(self, clone: Clone, reader: DesiredReader, asked: Asked, *, states: Path | None = None) -> None:
        """`states`: a file that keeps the last state read. Raises NotFound for an unknown revision."""
        self._clone, self._reader = clone, reader
        named = [revision for revision in (asked.head, asked.state, asked.base) if revision]
        commits = dict(zip(named, resolve_all(clone.git, named), strict=True))
        self._head_commit, self._base_commit = commits[asked.head], commits.get(asked.base, "")
        state = commits[asked.state] if asked.state else clone.find_state()
        self._assumed = state is None
        self._current = known_generation(clone.git, state, states) if state is not None else self._assume()
        self._foreseen: dict[str, Mapping[JobKey, Provenance]] = {}
        self._base = self._read(self._base_commit) if asked.base else None
        self._head = self._read(self._head_commit)

    def _assume(self) -> Generation:
        """A cluster in which nothing runs and every declared node is well: there is no record yet.

        Raises InvalidInput when neither side says which nodes there are.
        """
        read = self._reader.read(self._base_commit or self._head_commit, None)
        if read.desired is None:
            raise InvalidInput(read.diagnostics)
        return assumed(read.desired)

    def _read(self, commit: str) -> ReadDesired:
        try:
            return self._reader.read(commit, None if self._assumed else self._current)
        except InvalidInput as err:
            return ReadDesired(desired=None, diagnostics=err.diagnostics, frozen={}, read=())
        except StoreError as err:
            if err.code != "PathNotFound":
                raise
            return _without_folder(commit, err)

    @property
    def digest(self) -> str:
        """What the preview stands on: both trees as read, the state commit, the decision version. Not the time."""
        lines = [f"version {DECISION_VERSION}", f"state {self._current.commit}"]
        for side, read in (("base", self._base), ("head", self._head)):
            if read is not None:
                lines += [f"{side} {path} {oid}" for path, oid in sorted(read.read)]
                lines += [] if read.read else [f"{side} {d.code} {d.place.file}" for d in read.diagnostics]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def plan(self, now: Instant) -> Plan:
        """Decide both sides and compare."""
        now = Instant(max(now, self._current.allocation.decided_at))
        told = self._told()
        if self._head.desired is None:
            return refused_plan(self._basis(now, self._current.summary.cluster_id, ""), told)
        large = len(self._current.allocation.jobs) >= _LARGE
        with Beside(_OtherSide(self, now), worth=large) as other:
            other.ask(None)
            following = self._decide(self._head, now)
            after, desired = following.decision.allocation, following.inputs.desired
            before = other.answer()
            assert isinstance(before, _Undone)
            was, without = self._recorded(before.held), before.part.whole(self._current.allocation)
            watched = self._watched((was, without), (self._head.desired, after))
            other.ask(watched)
            starts = starts_of(desired, self._current, after, now, watched)
            then = other.answer()
            assert not isinstance(then, _Undone)
        sides = [
            _side(was, without, then, before.part.tidying),
            _side(desired, after, starts, following.decision.tidying),
        ]
        basis = self._basis(now, desired.cluster, following.digest)
        return plan_of(basis, sides[0], sides[1], following.inputs.observed, told)

    def _without(self, now: Instant) -> _Undone:
        """What policies hold back and what is decided without the change; only what differs from what holds now."""
        if self._base is None:
            return _Undone(held={}, part=part_of(self._current.allocation, self._current.allocation))
        if self._base.desired is None:
            raise InvalidInput(self._base.diagnostics)
        found = self._decide(self._base, now)
        part = part_of(found.decision.allocation, self._current.allocation)
        return _Undone(held=found.inputs.desired.policy, part=replace(part, tidying=found.decision.tidying))

    def _starts_without(self, undone: _Undone, now: Instant, watched: frozenset[JobKey]) -> Starts:
        without = undone.part.whole(self._current.allocation)
        return starts_of(self._recorded(undone.held), self._current, without, now, watched)

    def _recorded(self, held: Mapping[JobKey, PolicyHold]) -> Desired:
        """What is desired without the change."""
        if self._base is not None and self._base.desired is not None:
            return replace(self._base.desired, policy=held)
        recorded = self._before().desired or self._head.desired
        assert recorded is not None  # the caller looked at the head
        return recorded

    def _decide(self, read: ReadDesired, now: Instant) -> Decided:
        return decided(self._inputs(read, now))

    def _inputs(self, read: ReadDesired, now: Instant) -> Inputs:
        assert read.desired is not None
        seen, commit = self._current.observed, read.desired.commit
        if commit not in self._foreseen:
            self._foreseen[commit] = foreseen(self._clone.git, seen.provenance, read, commit)
        return Inputs(
            desired=read.desired,
            read=read.read,
            frozen=read.frozen,
            observed=replace(seen, provenance=self._foreseen[commit]),
            previous=self._current,
            now=now,
            trigger=PREVIEW,
            verdicts=read.verdicts,
        )

    def _basis(self, now: Instant, cluster: str, inputs: str) -> Basis:
        return Basis(
            cluster=cluster,
            base=self._base_commit,
            head=self._head_commit,
            state=self._current.commit,
            generation=self._current.summary.generation,
            at=now,
            state_at=self._current.summary.decided_at,
            digest=self.digest,
            decision_version=DECISION_VERSION,
            package_version=__version__,
            inputs_digest=inputs,
        )

    # --- what is said beside the decision ---

    def _told(self) -> Told:
        removed = removals(self._clone.git, self._head.desired, self._current.allocation) if self._head.desired else ()
        files = self._files()
        return Told(
            diagnostics=self._diagnostics(self._head),
            known=self._diagnostics(self._before()),
            files=files,
            sources={**_sources(self._base, files), **_sources(self._head, files)},
            removals=tuple(
                Removal(gone=r.gone, of=r.of, what=r.what, limit=r.limit_ppm // 10_000,
                        acknowledge=f"{ACKNOWLEDGE}: {r.gone}")
                for r in removed
            ),
        )  # fmt: skip

    def _diagnostics(self, read: ReadDesired) -> tuple[Diagnostic, ...]:
        """Of the files, and of the policies that judge them."""
        found = list(read.diagnostics)
        if read.verdicts is not None and read.desired is not None:
            provenance = standing(self._inputs(read, self._current.summary.decided_at))
            _judge_by_two(read.verdicts, provenance)
            found += read.verdicts.diagnostics(provenance, proposal=True)
        return sorted_by_place(found)

    def _files(self) -> tuple[str, ...]:
        """Paths that differ between base (or what was decided on last) and head, sorted."""
        return tuple(sorted({path for path, _ in {*self._before().read} ^ {*self._head.read}}))

    def _before(self) -> ReadDesired:
        """The base; without one, what was decided on last."""
        current = self._current
        if self._assumed:
            return self._base or self._head
        return self._base or self._reader.recorded(current.commit, current.summary.desired_commit, current.frozen)

    def _watched(self, *sides: tuple[Desired, Allocation]) -> frozenset[JobKey]:
        """Waiting jobs whose start matters: those the change edits or brings, and the first in age of the rest."""
        (before, one), (after, other) = sides
        waiting = [r for r in other.jobs.values() if r.state in (JobState.PENDING, JobState.PROMISED)]
        own = [r.job for r in waiting if before.jobs.get(r.job) != after.jobs.get(r.job)]
        moved = [r.job for r in waiting if (was := one.jobs.get(r.job)) is not None and was.state is not r.state]
        oldest = sorted(waiting, key=lambda r: (r.submitted, r.job))
        return frozenset((*own[:_WATCHED], *moved[:_WATCHED], *(r.job for r in oldest[:_WATCHED])))


def _judge_by_two(verdicts: Verdicts, provenance: Mapping[JobKey, Provenance]) -> None:
    """Let two processes ask the policies about many jobs that nobody asked about before."""
    keys = verdicts.unjudged()
    if len(keys) < _LARGE:
        return
    middle = len(keys) // 2
    found, _ = both(
        lambda: verdicts.found_in(keys[middle:], provenance), lambda: verdicts.found_in(keys[:middle], provenance)
    )
    verdicts.take(found, provenance)


def _side(desired: Desired, allocation: Allocation, starts: Starts, tidying: tuple[Tidying, ...]) -> Side:
    latest = {key: one.at for key, one in starts.items()}
    likely = {key: one.p90 for key, one in starts.items() if one.p90 is not None}
    return Side(desired=desired, allocation=allocation, starts=latest, likely=likely, tidying=tidying)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An allocation as it differs from another: its own without jobs, their keys in order, and the records that differ."""

    frame: Allocation
    order: tuple[JobKey, ...]
    records: Mapping[JobKey, JobRecord]
    tidying: tuple[Tidying, ...] = ()

    def whole(self, known: Allocation) -> Allocation:
        """The allocation, over the one it differs from."""
        jobs = {key: self.records.get(key) or known.jobs[key] for key in self.order}
        return replace(self.frame, jobs=jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Undone:
    """The side without the change: what policies hold back, and what is decided."""

    held: Mapping[JobKey, PolicyHold]
    part: Part


class _OtherSide:
    """Answers about the side without the change: None asks what is decided there, watched jobs when they start."""

    def __init__(self, preview: Preview, now: Instant) -> None:
        self._preview, self._now = preview, now
        self._undone: _Undone | None = None

    def __call__(self, watched: frozenset[JobKey] | None) -> _Undone | Starts:
        if self._undone is None:
            self._undone = self._preview._without(self._now)  # noqa: SLF001  a part of it that lives in a copy
        if watched is None:
            return self._undone
        return self._preview._starts_without(self._undone, self._now, watched)  # noqa: SLF001


def part_of(allocation: Allocation, known: Allocation) -> Part:
    """The part of an allocation that is not another's: small, to be copied."""
    records = {key: one for key, one in allocation.jobs.items() if one is not known.jobs.get(key)}
    return Part(frame=replace(allocation, jobs={}), order=tuple(allocation.jobs), records=records)


def starts_of(
    desired: Desired, current: Generation, allocation: Allocation, now: Instant, watched: frozenset[JobKey]
) -> Starts:
    """Forecast starts of the jobs that are watched, as far as they can be told."""
    if not watched:
        return {}
    waiting = sum(record.state in (JobState.PENDING, JobState.HELD) for record in allocation.jobs.values())
    instants = max(1, min(_INSTANTS, _LOOKS // max(1, waiting)))
    found = forecast(desired, current.observed, replace(allocation, decided_at=now), now, watched, instants=instants)
    return {key: one for key, one in found.items() if key in watched}


def _sources(read: ReadDesired | None, edited: tuple[str, ...]) -> dict[JobKey, tuple[str, int]]:
    """File and line of each job; the line of those that are edited alone, for it costs a look into the file."""
    if read is None:
        return {}
    lines = frozenset(edited[:_LINES])
    return {
        key: (item.file, item.place("spec", of_key=True).line if item.file in lines else 0)
        for key, item in read.items.items()
    }


def _without_folder(commit: str, err: StoreError) -> ReadDesired:
    """A head without `cluster-state/` is wrong in the way a file is: said, with its place, and never read as empty."""
    problem = Diagnostic(
        "PathNotFound",
        "There is no desired state",
        f"{err.message}. A tree without it is never read as an empty one.",
        Place("cluster-state"),
        err.remedy or "Put the folder back.",
    )
    return ReadDesired(desired=None, diagnostics=(problem,), frozen={}, read=((f"commit:{commit}", commit),))


def stale(plan_digest: str, found: Iterable[str]) -> bool:
    """Whether a digest, whole or its first characters as a footer shows them, is none of those found."""
    asked = plan_digest.removeprefix("sha256:").rstrip("….").lower()
    return len(asked) < 8 or not any(digest.startswith(asked) for digest in found)
