"""The reconciler: each round compares what is desired with what is seen, decides, commits, and only then acts.

Nothing is remembered between rounds but caches: a round starts from the state branch, so a crash at any line resumes
by itself. A push that lost the race discards the decision and decides again; it is never rebased.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from reconciler.documents.holders import holders_of
from reconciler.documents.loader import bulk
from reconciler.errors import EngineUnavailable, Fenced, GangOpsError, StoreError, Unreachable
from reconciler.model.desired import Desired
from reconciler.model.observed import Provenance
from reconciler.model.units import (
    DAY,
    SECOND,
    CommitId,
    Instant,
    JobKey,
    Nanoseconds,
)
from reconciler.planner.still import Decider
from reconciler.ports import Clock, Committed, Engine
from reconciler.runtime.authorised import Authority
from reconciler.runtime.condition import STANDBY, Condition, condition_after, condition_of, standing_by
from reconciler.runtime.gathering import Due, Gathering
from reconciler.runtime.generation import Generation, Inputs, NextGeneration, next_generation, read_generation
from reconciler.runtime.herald import Herald, Report
from reconciler.runtime.notices.teller import Teller
from reconciler.runtime.proofs import Proofs
from reconciler.runtime.provenance import provenance_after
from reconciler.runtime.reading import DesiredReader, ReadDesired
from reconciler.runtime.requests import over, requests_after
from reconciler.runtime.status_server import LoopMetrics
from reconciler.runtime.taken import Taking, told_by
from reconciler.runtime.telling import message_of, trigger_of
from reconciler.runtime.wanted import Wanted, wanted
from reconciler.store.mirror import Fetched, Mirror
from reconciler.store.publish import PublishedMark, PushResult, check_continues, publish
from reconciler.store.statecommit import Writer, build_on

_PATIENCE = 30 * SECOND
"""How long a single round waits for nodes to call."""
_RACES = 8
"""Lost pushes in a row before a round gives up and waits for the next one."""
_MAINTAIN_EVERY = DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round's result: the generation that holds now, and whether this round committed it.

    `held` says why the newest desired commit was not acted on, and the last one decided on was instead.
    """

    generation: Generation
    desired: ReadDesired
    committed: NextGeneration | None
    held: GangOpsError | None = None


class Reconciler:
    """Runs rounds against one state branch. `report` is called with an event name and its fields, for the log."""

    def __init__(
        self,
        *,
        mirror: Mirror,
        mark: PublishedMark,
        writer: Writer,
        reader: DesiredReader,
        engine: Engine,
        clock: Clock,
        cluster_id: str,
        report: Report,
        teller: Teller | None = None,
        metrics: LoopMetrics | None = None,
        gathering: Gathering | None = None,
    ) -> None:
        self._mirror = mirror
        self._mark = mark
        self._writer = writer
        self._reader = reader
        self._authority = Authority(mirror.git, reader)
        self._taking = Taking(reader)
        self._engine = engine
        self._clock = clock
        self._cluster_id = cluster_id
        self._report = report
        self._decider = Decider()
        self.teller = teller
        self._current: Generation | None = None
        self._engine_started = False
        self._fetched: Fetched | None = None
        self._away: StoreError | None = None
        self._fetch_again_at = Nanoseconds(0)
        self._woken = False
        self._due = Due(clock, gathering)
        self._maintain_at = Nanoseconds(clock.monotonic() + _MAINTAIN_EVERY)
        self._standing_by = False
        self._tried = ""
        self._brought: tuple[tuple[ReadDesired, CommitId], Mapping[JobKey, Provenance]] | None = None
        self.metrics = metrics or LoopMetrics()
        self._herald = Herald(report, self.metrics, teller)
        self.condition = Condition(ready=False, reason="Starting", since=clock.now())
        self.last: Round | None = None

    # -- one round

    def round(self) -> Round:
        """One pass: fetch, read, observe, decide, commit, apply. Returns after at most one committed generation.

        Raises GangOpsError when nothing could be decided or committed; nothing was applied then.
        """
        started = self._clock.monotonic()
        try:
            result = self._round()
        except GangOpsError as err:
            self.metrics.round_ended("failed", Nanoseconds(self._clock.monotonic() - started))
            self._failed(err)
            raise
        took = Nanoseconds(self._clock.monotonic() - started)
        self.metrics.round_ended("committed" if result.committed else "unchanged", took)
        self.last = result
        return result

    def _round(self) -> Round:
        self._due.at = None
        for _ in range(_RACES):
            # 1. What do the branches say now? Someone else's generation is taken over, never built around.
            fetched = self._fetch()
            current = self._continue_from(fetched)
            # 2. What is desired, and may this change be acted on?
            want = wanted(
                self._mirror.git, self._reader, self._authority, fetched.desired or None, self._away, current
            )  # fmt: skip
            # 3. What is seen? The engine starts from the committed observation.
            self._start_engine(want.desired, current)
            if not self._engine.leads():
                self._stand_by(current)
                return Round(generation=current, desired=want.read, committed=None, held=want.held)
            if self._standing_by:
                self._take_over(current)
                continue
            now = Instant(max(self._clock.now(), current.allocation.decided_at))
            observed = replace(
                self._engine.observe(want.desired, now),
                provenance=self._provenance(want, current),
                requests=requests_after(
                    self._mirror.git, current.observed.requests, fetched.requests, want.read, self._cluster_id, now
                ),
            )
            self._herald.refusals(observed)
            # 4. Decide; the judge inside refuses what must never be committed.
            inputs = Inputs(
                desired=want.desired,
                read=want.read.read,
                frozen=want.read.frozen,
                observed=observed,
                previous=current,
                now=now,
                trigger=trigger_of(current, want.desired.commit, observed.requests),
                verdicts=want.read.verdicts,
            )
            with bulk():
                following = next_generation(inputs, self._decider)
            taken = self._taking.of(want.read, current, told_by(following))
            if not self._due.is_due(following, current, want.desired.repository, taken):
                self._settled(want, current)
                return Round(generation=current, desired=want.read, committed=None, held=want.held)
            # 5. Commit and publish; only a push that won is acted on.
            commit = self._commit(following, current, want.desired.commit, taken)
            self._tried = commit
            if self.teller is not None:
                self.teller.expects(following.summary.generation, commit)
            outcome = publish(self._mirror, commit, expected=current.commit)
            self.metrics.pushed(outcome.result.value)
            if outcome.result is PushResult.LOST_RACE:
                self._report("lost-race", {"generation": following.summary.generation})
                if self.teller is not None:
                    self.teller.lost(following.summary.generation, commit)
                self._fetch_again_at = Nanoseconds(0)
                time.sleep(random.uniform(0.01, 0.1))  # noqa: S311  jitter between two writers, not a secret
                continue
            outcome.raise_for_result()
            self._mark.write(commit)
            self._fetched = replace(fetched, state=commit, rewritten=None)
            # 6. Apply.
            self._current = following.committed_as(commit)
            self._apply(self._current)
            self._due.committed(following, want.desired.repository, taken)
            self._herald.published(following, commit, taken)
            self._clear_requests(fetched)
            self._settled(want, self._current)
            return Round(generation=self._current, desired=want.read, committed=following, held=want.held)
        raise Fenced(f"lost the push {_RACES} times in a row", remedy="Is another reconciler writing this branch?")

    # -- steps of a round, in order

    def _fetch(self) -> Fetched:
        """The tips, asked again when the poll interval is over or somebody woke us for it.

        While the desired branch is away and the record is not, `desired` is "" and `_away` says why.
        """
        now = self._clock.monotonic()
        if self._fetched is None or now >= self._fetch_again_at:
            self._away = None
            # Before the fetch: who wakes us while it goes on may tell of a push that it does not see.
            desired = self.last.desired.desired if self.last else None
            self._fetch_again_at = Nanoseconds(now + (desired.repository.poll_interval if desired else 0))
            try:
                self._fetched = self._mirror.fetch()
            except StoreError as err:
                if not isinstance(err, Unreachable) and err.code != "SourceMissing":
                    raise
                self._away = err
                self._fetched = Fetched(desired="", state=self._mirror.fetch_state(), rewritten=None, requests={})
            if self._fetched.rewritten is not None:
                change = self._fetched.rewritten
                self._report("desired-rewritten", {"old": change.old[:12], "new": change.new[:12]})
        return self._fetched

    def _continue_from(self, fetched: Fetched) -> Generation:
        if self._current is not None and fetched.state == self._current.commit:
            return self._current
        check_continues(self._mirror, self._mark, fetched.state)
        assert fetched.state is not None
        current = read_generation(self._mirror.git, fetched.state)
        if current.summary.cluster_id != self._cluster_id:
            raise StoreError(
                f"the state branch belongs to cluster {current.summary.cluster_id}, these settings to {self._cluster_id}",
                code="NotOurCluster",
                remedy="Correct clusterId in reconciler.toml, or point it at the right repository.",
            )
        self._mark.write(fetched.state)
        self._current = current
        self._report("continue", {"generation": current.summary.generation, "commit": fetched.state[:12]})
        if self.teller is not None:
            self.teller.reached(current.summary.generation, fetched.state)
        if self._engine_started:
            if fetched.state != self._tried:
                self._engine.follow(current.observed)
            self._apply(current)
        return current

    def _start_engine(self, desired: Desired, current: Generation) -> None:
        if self._engine_started:
            return
        self._engine.start(desired, current.observed)
        self._engine_started = True
        self._apply(current)

    def _stand_by(self, current: Generation) -> None:
        """Another reconciler leads, as far as nodes tell: keep up with its record, decide nothing."""
        self._standing_by = True
        self._become(standing_by(current.summary.generation))

    def _take_over(self, current: Generation) -> None:
        """Enough nodes call here now. The record may have moved since it was last asked for."""
        self._standing_by = False
        self._fetch_again_at = Nanoseconds(0)
        self._report("leads", {"generation": current.summary.generation})

    def _provenance(self, want: Wanted, current: Generation) -> Mapping[JobKey, Provenance]:
        """Who brought the jobs, from the record and for what is new from git. People are those of the tree before."""
        asked = (want.read, current.commit)
        if self._brought is None or self._brought[0][0] is not asked[0] or self._brought[0][1] != asked[1]:
            git, decided = self._mirror.git, current.summary.desired_commit
            known, base = current.observed.provenance, None
            if want.desired.commit != decided:
                base = self._reader.recorded(current.commit, decided, current.frozen)
            self._brought = asked, provenance_after(git, known, want.read, base, decided, current.allocation)
        return self._brought[1]

    def _commit(self, following: NextGeneration, current: Generation, desired: str, taken: tuple[str, ...]) -> str:
        return build_on(
            self._mirror.git,
            following.changes,
            parent=current.commit,
            desired=desired,
            message=message_of(following, current, taken),
            at=following.summary.decided_at,
            writer=self._writer,
        )

    def _apply(self, generation: Generation) -> None:
        proofs = Proofs(self._mirror.git, generation)
        self._engine.apply(
            Committed(
                commit=generation.commit,
                generation=generation.summary.generation,
                epoch=generation.summary.epoch,
                orders=generation.node_orders,
                proof_of=proofs,
                holders_of=self._holders_of,
            )
        )

    def _clear_requests(self, fetched: Fetched) -> None:
        """What is over and on record leaves the remote. Where it may not be removed it does no harm: it is known."""
        assert self._current is not None
        gone = over(self._current.observed.requests, fetched.requests)
        if not gone:
            return
        try:
            self._mirror.remove_requests(gone)
        except StoreError as err:
            self._report(
                "requests-left", {"refs": len(gone), "why": err.message.splitlines()[0] if err.message else ""}
            )
        else:
            left = {ref: commit for ref, commit in fetched.requests.items() if ref not in gone}
            self._fetched = replace(self._fetched, requests=left) if self._fetched is not None else None

    def _holders_of(self, job: JobKey) -> list[str] | None:
        """Who may look into a job, by the last round."""
        last = self.last
        if last is None or last.desired.desired is None:
            return None
        return holders_of(job, last.desired.desired, last.generation.observed)

    # -- telling

    def _settled(self, want: Wanted, generation: Generation) -> None:
        self._reader.save()
        held = want.held
        self._become(condition_of(want.read, generation.allocation) if held is None else condition_after(held))

    def _failed(self, err: GangOpsError) -> None:
        self._become(condition_after(err))
        self._fetch_again_at = Nanoseconds(0)

    def _become(self, condition: Condition) -> None:
        before = self.condition
        same = (before.ready, before.stalled, before.reason) == (condition.ready, condition.stalled, condition.reason)
        since = before.since if same else self._clock.now()
        self.condition = replace(condition, since=since)
        if not same:
            self._herald.became(condition)

    def once(self) -> Round:
        """One round that decides; the nodes get a while to call. Raises EngineUnavailable (Standby), else as `round`."""
        end = self._clock.monotonic() + _PATIENCE
        done = self.round()
        while self._standing_by and (left := end - self._clock.monotonic()) > 0:
            self._engine.wait(Nanoseconds(min(left, SECOND)))
            done = self.round()
        if self._standing_by:
            raise EngineUnavailable(self.condition.message, code=STANDBY, remedy=self.condition.remedy)
        return done

    # -- for ever

    def run(self, stop: threading.Event) -> None:
        """Rounds until `stop`: reports and pushes wake it, `cycleInterval` is only the longest wait."""
        failures = 0
        try:
            while not stop.is_set():
                try:
                    self.round()
                    failures = 0
                except GangOpsError:
                    failures += 1
                self.maintain()
                self._pause(failures, stop)
        finally:
            self._engine.stop()

    def maintain(self) -> None:
        """Once a day, between two rounds: pack the clone and keep its history quick to walk. A failure is only told."""
        if self._clock.monotonic() < self._maintain_at:
            return
        self._maintain_at = Nanoseconds(self._clock.monotonic() + _MAINTAIN_EVERY)
        try:
            self._mirror.maintain()
        except GangOpsError as err:
            self._report("maintenance-failed", {"reason": err.code, "message": err.message})

    def _pause(self, failures: int, stop: threading.Event) -> None:
        """Until something was reported; after a failure for 2, 4, ... 60 s whatever is reported, unless woken."""
        desired = self.last.desired.desired if self.last else None
        span = min(desired.repository.cycle_interval, desired.repository.poll_interval) if desired else SECOND
        if failures:
            span = Nanoseconds(min(60, 2**failures) * SECOND)
        if not self._engine_started:
            stop.wait(span / SECOND)
            return
        now = self._clock.monotonic()
        due = self._due.at
        end = now + span if due is None or failures else min(now + span, max(now, due))
        while not stop.is_set() and (left := end - self._clock.monotonic()) > 0:
            if self._engine.wait(Nanoseconds(left)) and (not failures or self._woken):
                break
        self._woken = False

    def wake(self) -> None:
        """A branch moved: fetch now, do not wait for the poll interval."""
        self._fetch_again_at = Nanoseconds(0)
        self._woken = True
        if self._engine_started:
            self._engine.wake()
