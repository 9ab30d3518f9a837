"""An answer from memory is the one that deciding anew would give, at every instant up to the very last nanosecond."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from reconciler.model.allocation import Allocation, Usage
from reconciler.model.decision import Decision, Denial
from reconciler.model.desired import Desired, Window
from reconciler.model.job import Elastic, Job
from reconciler.model.observed import Observed
from reconciler.model.queue import Queue, Scheduling
from reconciler.model.units import (
    HOUR,
    MINUTE,
    SECOND,
    CommitId,
    Gpus,
    GpuType,
    Instant,
    JobKey,
    Nanoseconds,
    QueueName,
)
from reconciler.planner.decide import decide
from reconciler.planner.moment import Moment, Watch, unsure
from reconciler.planner.still import Decider
from tests.planner.worlds import (
    H100,
    START,
    Cluster,
    Spines,
    allocation,
    job,
    pending,
    queue,
    ready,
    running,
    window,
    with_jobs,
    world,
)

KIND = GpuType(H100)
SPINES: Spines = {"sg0": {"r1": ["a1", "a2"], "r2": ["b1", "b2"]}, "sg1": {"r3": ["c1", "c2"]}}
HOMES = ("a", "b", "org1", "c")


# --- random worlds ---


@st.composite
def rules(draw: st.DrawFn) -> Scheduling:
    def span(*seconds: int) -> Nanoseconds:
        return Nanoseconds(draw(st.sampled_from(seconds)) * SECOND)

    return Scheduling(
        order=draw(st.sampled_from(("fairShare", "fairShare", "priorityThenAge"))),
        preempt_other_queues=draw(st.sampled_from(("never", "reclaim", "fairShare"))),
        jobs_may_pass=draw(st.sampled_from(("always", "always", "otherGpuTypes"))),
        min_runtime=span(0, 30, 300), cooldown=span(0, 60), half_life=span(60, 600, 86_400), charge_ahead=span(0, 60),
        backfill=draw(st.sampled_from(("none", "easy", "conservative", "conservative"))),
        hold_for_starved_after=span(60, 3_600), move_to_start=draw(st.sampled_from(("never", "preemptible"))),
        reclaim_straddlers=draw(st.booleans()), defragment_action=draw(st.sampled_from(("never", "propose", "move"))),
        default_time_limit=draw(st.sampled_from((None, None, Nanoseconds(500 * SECOND)))),
    )  # fmt: skip


@st.composite
def trees(draw: st.DrawFn) -> list[Queue]:
    guaranteed = st.sampled_from((0, 0, 4, 8))
    rows = [queue("root", None), queue("a"), queue("b"), queue("org"), queue("org1", "org"), queue("c", "org")]
    return [
        replace(row, guaranteed={KIND: Gpus(draw(guaranteed))}, weight=draw(st.sampled_from((1, 3))))
        if row.name in HOMES
        else row
        for row in rows
    ]


@st.composite
def jobs(draw: st.DrawFn, number: int) -> Job:
    gpus = draw(st.sampled_from((1, 2, 3, 4, 4, 8, 8, 12)))
    made = job(
        f"{draw(st.sampled_from(HOMES))}/j{number:02}", gpus, draw(st.sampled_from(("low", "normal", "normal", "high"))),
        required=draw(st.sampled_from(({}, {"job": "rack"}, {"job": "node"} if gpus <= 4 else {"job": "spineGroup"}))),
        checkpoint=draw(st.sampled_from((None, 20))), limit=draw(st.sampled_from((None, 40, 100, 400, 5_000))),
    )  # fmt: skip
    if draw(st.integers(0, 5)) == 0 and gpus > 1:
        return replace(made, elastic=Elastic(dimension="data", least=1, most=gpus))
    return made


def lived_on(cluster: Cluster, seconds: int) -> None:
    """A round as `Cluster.step`, without the judge, who is heard elsewhere."""
    cluster.now = Instant(cluster.now + seconds * SECOND)
    decision = decide(cluster.desired, cluster.observe(), cluster.allocation, cluster.now)
    cluster.allocation = decision.allocation if decision.changed else cluster.allocation
    cluster._obey()


@st.composite
def lives(draw: st.DrawFn) -> Cluster:
    """A cluster some rounds into its life, with people who come and jobs that end."""
    windows: list[Window] = []
    for node in draw(st.sets(st.sampled_from(("a1", "b2", "c1")), max_size=1)):
        begins = draw(st.integers(30, 400))
        windows.append(window(node, begins, begins + 300))
    cluster = Cluster(world(SPINES, 4, queues=draw(trees()), rules=draw(rules()), windows=windows))
    number = 0
    for _ in range(draw(st.integers(1, 4))):
        fresh = [draw(jobs(number + one)) for one in range(draw(st.integers(1, 7)))]
        number += len(fresh)
        cluster.desired = with_jobs(cluster.desired, *fresh)
        for _ in range(draw(st.integers(1, 5))):
            lived_on(cluster, draw(st.sampled_from((0, 1, 1, 7, 45))))
        if draw(st.booleans()):
            cluster.end(draw(st.sampled_from(sorted(cluster.desired.jobs))))
    if draw(st.booleans()):
        keys = [(name, KIND) for name in ("a", "b", "c", "org", "org1")]
        usage = tuple(
            Usage(queue=QueueName(name), gpu_type=kind, acc=draw(st.integers(0, 10**7)), rate=0) for name, kind in keys
        )
        cluster.allocation = replace(cluster.allocation, usage=usage)
    return cluster


@settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=300,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
@given(lives(), st.lists(st.integers(1, 2_000 * SECOND), max_size=4), st.data())
def test_memory_says_what_deciding_says(cluster: Cluster, later: list[int], pick: st.DataObject) -> None:
    """At any later instant, the last nanosecond before something turns among them; whatever was saved meanwhile."""
    decider, known, seen = Decider(), cluster.allocation, cluster.observe()
    for _ in range(6):
        decision = decider.decide(cluster.desired, seen, known, cluster.now)
        assert decision == decide(cluster.desired, seen, known, cluster.now)
        answer = decider._answer
        if answer is None:
            break
        last = answer.until - 1
        instants = sorted({min(Instant(cluster.now + span), last) for span in later} | {last})
        for at in instants if last < START + 10**6 * SECOND else ():
            remembered = decider.decide(cluster.desired, seen, known, Instant(at))
            assert remembered == decide(cluster.desired, seen, known, Instant(at)), (at - cluster.now, cluster.show())
            if not decider.from_memory:
                break  # the queues stand otherwise to each other: what is remembered now is another answer
        at_work = sorted(key for key, record in known.jobs.items() if record.started)
        for key in at_work[: pick.draw(st.integers(0, 2))]:
            cluster.saves(str(key))
        seen = replace(seen, jobs=dict(cluster.checkpoints))
        cluster.now = Instant(min(last, cluster.now + 10**6 * SECOND) + pick.draw(st.integers(0, 3)))
        if decision.changed:
            break


# --- chosen worlds: when is memory used, and when not ---


def crowded(**said: object) -> tuple[Desired, Observed, Allocation]:
    """Two racks full of jobs that run for an hour, one that started a minute later, and one that waits."""
    names = ("gpu-001", "gpu-002", "gpu-003", "gpu-004")
    full = [job(f"nlp/run{number}", 8, limit=3_600) for number in range(4)]
    chosen = replace(Scheduling(order="fairShare", cooldown=Nanoseconds(0), defragment_action="never"), **said)  # type: ignore[arg-type]  # fields by name
    desired = world(jobs=[*full, job("vision/wait", 8, limit=600)], rules=chosen)
    began = [Instant(START - 600 * SECOND + 60 * SECOND * number) for number in range(4)]
    rows = [running(desired, one.key, {name: 8}, started=at) for one, name, at in zip(full, names, began, strict=True)]
    known = allocation(desired, *rows, pending(desired, "vision/wait"))
    return desired, ready(desired, *rows), decide(desired, ready(desired, *rows), known, START).allocation


def test_a_round_in_which_nothing_changed_is_answered_until_the_first_limit() -> None:
    """The job of the first hour is told to stop at its limit, 3,000 s from now; that is when deciding is needed again."""
    desired, seen, known = crowded(hold_for_starved_after=Nanoseconds(90_000 * SECOND))
    decider, told = Decider(), []
    for second in (0, 1, 2_000, 2_399, 2_400, 2_999, 3_000):
        now = Instant(START + second * SECOND)
        decision = decider.decide(desired, seen, known, now)
        assert decision == decide(desired, seen, known, now)
        told.append((second, decider.from_memory, decision.changed))
    # At 2,400 s the waiting job, were it to start, would not be over when the first place for it comes free: a question
    # that turns, though nothing comes of it.
    assert told == [
        (0, False, False), (1, True, False), (2_000, True, False), (2_399, True, False), (2_400, True, False),
        (2_999, False, False), (3_000, False, True),
    ]  # fmt: skip


def changed_node(seen: Observed) -> Observed:
    node = next(iter(seen.nodes))
    return replace(seen, nodes={**seen.nodes, node: replace(seen.nodes[node], unhealthy="xid 79")})


@pytest.mark.parametrize("what", ["desired", "seen", "previous", "earlier", "rules"])
def test_other_arguments_are_decided_anew(what: str) -> None:
    desired, seen, known = crowded()
    decider = Decider()
    now = Instant(START + 10 * SECOND)
    assert not decider.decide(desired, seen, known, now).changed
    if what == "desired":
        desired = with_jobs(desired, job("vision/more", 8))
    elif what == "seen":
        seen = changed_node(seen)
    elif what == "previous":
        known = replace(known, moved=())
    elif what == "earlier":
        now = Instant(START + 9 * SECOND)
    else:
        desired = replace(desired, scheduling=replace(desired.scheduling, cooldown=Nanoseconds(HOUR)))
    assert decider.decide(desired, seen, known, now) == decide(desired, seen, known, now)
    assert not decider.from_memory


def test_equal_arguments_need_not_be_the_same_objects() -> None:
    """A commit that changes no rule and no job, and reports that say the same again."""
    desired, seen, known = crowded()
    decider = Decider()
    decider.decide(desired, seen, known, START)
    again = replace(desired, commit=CommitId("d" * 40), jobs=dict(desired.jobs))
    fresh = Observed(nodes={name: replace(node) for name, node in seen.nodes.items()})
    now = Instant(START + SECOND)
    found = decider.decide(again, fresh, known, now)
    assert decider.from_memory
    assert found == decide(again, fresh, known, now)
    assert found.allocation.desired_commit == again.commit


def test_queues_that_pass_each_other_end_an_answer() -> None:
    """Two queues wait; one has used more long ago, the other uses more now: when the first has the smaller share, their
    jobs change places in the line, and so may their reservations."""
    desired, seen, known = crowded(half_life=Nanoseconds(HOUR), charge_ahead=Nanoseconds(0))
    desired = with_jobs(desired, job("nlp/wait", 8, limit=600))
    known = replace(known, jobs=dict(sorted({**known.jobs, JobKey("nlp/wait"): pending(desired, "nlp/wait")}.items())))
    used = (("nlp", 1_000_000, 4_000), ("vision", 8_000_000, 0))
    usage = tuple(Usage(queue=QueueName(name), gpu_type=KIND, acc=acc, rate=rate) for name, acc, rate in used)
    known = replace(known, usage=usage, usage_as_of=known.decided_at)
    decider, asked = Decider(), []
    for minute in range(40):
        now = Instant(START + minute * MINUTE)
        decision = decider.decide(desired, seen, known, now)
        assert decision == decide(desired, seen, known, now)
        known = decision.allocation if decision.changed else known
        asked.append(decider.from_memory)
    # 1,000 + 4 a second catches up with 8,000 less a little: after some 27 minutes.
    passed = [minute for minute, from_memory in enumerate(asked) if not from_memory]
    assert [minute for minute in passed if 20 <= minute <= 32], passed
    assert sum(asked) > 30


def test_a_denied_start_is_never_remembered() -> None:
    """What a policy says of a plan may depend on the time: it is asked every round."""
    desired = world(jobs=[job("nlp/a", 8)])
    known, seen, asked = allocation(desired), ready(desired), []

    def judge(made: Decision) -> tuple[Denial, ...]:
        asked.append(type(made.allocation.decided_at))
        return (Denial(policy="p", rule="r", message="m"),) if made.changed else ()

    decider = Decider()
    for second in range(3):
        now = Instant(START + second * SECOND)
        before = len(asked)
        decision = decider.decide(desired, seen, known, now, judge)
        assert len(asked) > before
        assert not decider.from_memory
        assert decision == decide(desired, seen, known, now, judge)
        known = decision.allocation
    assert set(asked) == {int}


def test_no_watched_instant_leaves_a_decision() -> None:
    """All numbers of a changed decision are plain ones, wherever they are."""
    desired = world(jobs=[job("nlp/a", 8, limit=60), job("nlp/b", 64)])
    decision = Decider().decide(desired, ready(desired), allocation(desired), START)
    assert decision.changed

    def values(value: object) -> list[object]:
        if isinstance(value, dict):
            return [part for item in value.items() for part in values(item)]
        if isinstance(value, tuple | list):
            return [part for item in value for part in values(item)]
        if hasattr(value, "__dataclass_fields__"):
            return [part for name in value.__dataclass_fields__ for part in values(getattr(value, name))]
        return [value]

    assert not [value for value in values(decision) if isinstance(value, Moment)]


# --- moments ---

QUESTIONS: Mapping[str, Callable[[int, int], bool]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip


@settings(derandomize=True, deadline=None, database=None, max_examples=500)
@given(st.integers(0, 50), st.integers(-20, 20), st.integers(-30, 80), st.sampled_from(sorted(QUESTIONS)))
def test_a_watch_knows_when_an_answer_turns(now: int, by: int, fixed: int, sign: str) -> None:
    """Both ways round; checked against asking at every later instant."""
    ask = QUESTIONS[sign]
    for turned in (False, True):
        watch = Watch()
        moment = Moment.of(now, watch) + by
        answer = ask(fixed, moment) if turned else ask(moment, fixed)
        later = [ask(fixed, now + by + n) if turned else ask(now + by + n, fixed) for n in range(200)]
        assert answer == later[0]
        turns = next((n for n, other in enumerate(later) if other != answer), None)
        if turns is None:
            assert watch.holds_for >= 200 or sign in ("==", "!=")  # careful where it could be bold
        else:
            assert 0 < watch.holds_for <= turns
        assert all(other == answer for other in later[: watch.holds_for])


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda now: now * 2, id="times"), pytest.param(lambda now: 2 * now, id="by"),
        pytest.param(lambda now: now // 2, id="divided"), pytest.param(lambda now: 9 // now, id="divides"),
        pytest.param(lambda now: now % 2, id="rest"), pytest.param(lambda now: divmod(now, 2), id="divmod"),
        pytest.param(lambda now: now / 2, id="fraction"), pytest.param(lambda now: {now}, id="in a set"),
        pytest.param(bool, id="is it nought"), pytest.param(lambda now: f"{now}", id="shown"),
        pytest.param(str, id="as text"), pytest.param(lambda now: 9 - now, id="taken away"),
        pytest.param(lambda now: now + now, id="doubled"), pytest.param(lambda now: -now, id="negative"),
        pytest.param(abs, id="size"), pytest.param(lambda now: now >> 1, id="shifted"),
        pytest.param(lambda now: now & 1, id="bits"), pytest.param(unsure, id="said to be unsure"),
    ],
)  # fmt: skip
def test_any_other_use_makes_the_watch_unsure(use: object) -> None:
    watch = Watch()
    assert callable(use)
    use(Moment.of(5, watch))
    assert watch.holds_for == 0


def test_two_that_move_together_stay_as_far_apart() -> None:
    watch = Watch()
    now = Moment.of(5, watch)
    assert (now + 3) - now == 3
    assert now < now + 1
    assert type(now - (now + 3)) is int
    assert watch.holds_for > 10**20
    assert type(int(now)) is int
