"""What two consecutive generations are worth telling: a table of steps, and what holds for every notice."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from reconciler.model.allocation import JobRecord
from reconciler.model.lifecycle import Cause, JobState, Outcome
from reconciler.model.observed import Person, Provenance
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import HOUR, SECOND, CommitId, Digest, GpuSeconds, Instant, JobKey
from reconciler.runtime.notices.derive import Story
from reconciler.runtime.notices.events import Moment, Notice, NoticeKind, notices_between
from reconciler.runtime.reading import DesiredReader
from tests.runtime.lab import Lab, jobs

SFT = JobKey("nlp/sft")
RANK_FAILED = reason(ReasonCode.RANK_FAILED, node="gpu-001", exitCode=9)
NODE_LOST = reason(ReasonCode.NODE_LOST, nodes="gpu-001")
GIVES_WAY = reason(ReasonCode.PREEMPTED, preemptor="nlp/high", lost=7200)


@dataclass(frozen=True)
class World:
    """A moment in which `nlp/sft` runs on a whole node, and any other made from it."""

    running: Moment

    @property
    def record(self) -> JobRecord:
        return self.running.allocation.jobs[SFT]

    def at(self, record: JobRecord | None, commit: str = "a") -> Moment:
        """The same cluster with this record of the job."""
        allocation = self.running.allocation
        return Moment(
            commit=CommitId(commit * 40), desired=self.running.desired, observed=self.running.observed,
            allocation=replace(allocation, jobs={} if record is None else {SFT: record}),
        )  # fmt: skip

    def told(self, before: JobRecord | None, after: JobRecord | None) -> tuple[Notice, ...]:
        return notices_between(self.at(before, "b"), self.at(after))


@pytest.fixture
def world(lab: Lab) -> World:
    lab.begin(**jobs("sft"))
    desk = lab.desk()
    desk.settle()
    moment, _ = Story(desk.mirror.git, DesiredReader(desk.mirror.git)).notices(CommitId(lab.tip))
    assert moment is not None
    assert moment.allocation.jobs[SFT].state is JobState.RUNNING
    return World(moment)


def stops(record: JobRecord, cause: Cause, why: object = GIVES_WAY, **more: object) -> JobRecord:
    return replace(record, state=JobState.STOPPING, cause=cause, reason=why, **more)  # type: ignore[arg-type]  # a test's


@pytest.mark.parametrize("cause", [Cause.RANK_FAILED, Cause.START_FAILED, Cause.NODE_LOST], ids=str)
def test_an_attempt_that_ends_badly_failed(world: World, cause: Cause) -> None:
    (told,) = world.told(world.record, stops(world.record, cause, RANK_FAILED, lost_work=GpuSeconds(7200)))
    assert (told.kind, told.detail("cause"), told.detail("node")) == (NoticeKind.FAILED, str(cause), "gpu-001")
    assert (told.detail("exitCode"), told.detail("lostGpuSeconds")) == (9, 7200)


@pytest.mark.parametrize(
    "cause",
    [Cause.PREEMPTED, Cause.RECLAIMED, Cause.FAIR_SHARE, Cause.MOVED, Cause.RESIZED, Cause.MAINTENANCE, Cause.NODE_REMOVED],
    ids=str,
)  # fmt: skip
def test_who_gives_way_is_told_with_the_cause(world: World, cause: Cause) -> None:
    high = JobKey("nlp/high")
    (told,) = world.told(world.record, stops(world.record, cause, preemptor=high, grace=120 * SECOND))
    assert (told.kind, told.detail("cause"), told.detail("by")) == (NoticeKind.PREEMPTED, str(cause), high)
    assert told.detail("graceSeconds") == 120


@pytest.mark.parametrize("cause", [Cause.CANCELLED, Cause.CHANGED, Cause.SUSPENDED, Cause.TIME_LIMIT], ids=str)
def test_what_its_owner_asked_for_is_no_preemption(world: World, cause: Cause) -> None:
    assert world.told(world.record, stops(world.record, cause)) == ()


@pytest.mark.parametrize("outcome", list(Outcome), ids=str)
def test_every_incarnation_finishes_once_with_its_outcome(world: World, outcome: Outcome) -> None:
    over = replace(world.record, state=JobState.FINISHED, outcome=outcome, placement=None)
    (told,) = world.told(stops(world.record, Cause.CANCELLED), over)
    assert (told.kind, told.detail("outcome"), told.detail("attempts")) == (NoticeKind.FINISHED, str(outcome), 1)
    assert world.told(over, replace(over, reason=RANK_FAILED)) == ()


def test_a_start_and_a_later_attempt_are_told_apart(world: World) -> None:
    record, starting = world.record, replace(world.record, state=JobState.STARTING, started=None)
    (started,) = world.told(starting, record)
    (resumed,) = world.told(replace(starting, attempt=3), replace(record, attempt=3, first_attempt=1))
    assert (started.kind, started.attempt) == (NoticeKind.STARTED, 1)
    assert (resumed.kind, resumed.attempt) == (NoticeKind.RESUMED, 3)
    assert started.id != resumed.id


def test_a_silent_node_that_comes_back_is_no_news(world: World) -> None:
    lost = replace(world.record, state=JobState.LOST, reason=NODE_LOST)
    assert world.told(world.record, lost) == ()
    assert world.told(lost, world.record) == ()


def test_a_node_that_stays_away_failed_the_attempt(world: World) -> None:
    lost = replace(world.record, state=JobState.LOST, reason=NODE_LOST)
    (told,) = world.told(lost, replace(lost, state=JobState.REPAIRING, cause=None))
    assert (told.kind, told.detail("cause"), told.detail("node")) == (NoticeKind.FAILED, "NodeLost", "gpu-001")
    (stopped,) = world.told(lost, stops(lost, Cause.NODE_LOST, NODE_LOST))
    assert stopped.kind is NoticeKind.FAILED


def test_while_it_stops_nothing_is_told_again(world: World) -> None:
    stopping = stops(world.record, Cause.PREEMPTED)
    assert world.told(stopping, replace(stopping, deadline=Instant(5))) == ()
    assert world.told(stopping, stops(world.record, Cause.CANCELLED)) == ()


@pytest.mark.parametrize("gone", [True, False])
def test_a_job_that_comes_or_goes_without_running_is_no_news(world: World, gone: bool) -> None:
    pending = replace(world.record, state=JobState.PENDING, placement=None, started=None, attempt=0)
    assert world.told(pending if gone else None, None if gone else pending) == ()


@pytest.mark.parametrize(
    ("state", "events"), [("Stopping", ["Finished"]), ("Pending", ["Finished"]), ("Finished", [])], ids=str
)
def test_an_incarnation_that_ran_and_whose_file_went_is_over_once(
    world: World, state: str, events: list[NoticeKind]
) -> None:
    ada = Person(user="ada", email="ada@example.org")
    brought = Provenance(job=SFT, digest=Digest("d"), file="f", commit=CommitId("c"), author=ada, pull_request="12")
    before = world.at(replace(stops(world.record, Cause.CANCELLED), state=JobState(state)), "b")
    told = notices_between(
        replace(before, observed=replace(before.observed, provenance={SFT: brought})), world.at(None)
    )
    assert [notice.kind for notice in told] == events
    for notice in told:
        assert (notice.detail("outcome"), notice.author, notice.requests) == ("Cancelled", ada, ("12",))
        assert notice.commit == "a" * 40


def test_who_asked_and_both_pull_requests_go_with_it(world: World) -> None:
    ada = Person(user="ada", email="ada@example.org")
    high = JobKey("nlp/high")
    before, after = world.at(world.record, "b"), world.at(stops(world.record, Cause.PREEMPTED, preemptor=high))
    brought = {
        key: Provenance(job=key, digest=Digest("d"), file="f", commit=CommitId("c"), author=ada, pull_request=number)
        for key, number in ((SFT, "12"), (high, "88"))
    }
    (told,) = notices_between(before, replace(after, observed=replace(after.observed, provenance=brought)))
    assert (told.author, told.requests) == (ada, ("12", "88"))


def test_the_same_commit_gives_the_same_notices_from_memory_and_from_git(lab: Lab) -> None:
    lab.begin(**jobs("a", "b", gpus=16))
    desk = lab.desk()
    desk.settle()
    desk.engine.cluster.finish("nlp/a", 7)
    lab.clock.advance(HOUR)
    desk.settle()
    commits = [CommitId(meta.id) for meta in reversed(lab.log())]
    one, other = (Story(desk.mirror.git, DesiredReader(desk.mirror.git)) for _ in range(2))
    forward = [one.notices(commit)[1] for commit in commits]
    backward = [other.notices(commit)[1] for commit in reversed(commits)]
    assert forward == backward[::-1]
    found = [notice for notices in forward for notice in notices]
    assert len({notice.id for notice in found}) == len(found) >= 3
