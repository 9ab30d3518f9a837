"""Usage against counting GPU by GPU: over made-up records, every GPU is in exactly one column at every instant.

Nodes come and go, are cordoned, promised while somebody still holds them, and kept as spares; the period asked for begins
and ends inside attempts. What `usage` sweeps, the test counts one GPU and one stretch of time after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.lifecycle import JobState
from reconciler.model.units import DAY, SECOND, Instant
from reconciler.runtime.audit.answers import SPARE, Question, answers, holders_at
from reconciler.runtime.audit.index import HOLDING, Index, indexed
from reconciler.runtime.audit.scenes import Scene, scenes
from reconciler.runtime.audit.usage import Hours, usage
from reconciler.runtime.generation import read_generation
from tests.runtime.lab import Lab, job_file, job_text

NODES = ("n1", "n2", "n3")
TYPES = {"n1": "H100", "n2": "H100", "n3": "L40S"}
JOBS = ("nlp/a", "nlp/b", "vision/c")
GPUS = 4
COLUMN = {
    "Starting": "starting", "Running": "running", "Lost": "stalled", "Repairing": "stalled", "Stopping": "stopping",
}  # fmt: skip
Gpu = tuple[str, int]


@dataclass(frozen=True)
class Moment:
    """What is so from an instant on: the holder's state and what is spare, by GPU; what is promised; what is down."""

    at: int
    declared: frozenset[str]
    states: Mapping[str, str]
    held: Mapping[Gpu, tuple[str, bool]]
    promised: Mapping[Gpu, str]
    down: frozenset[Gpu]

    def column(self, gpu: Gpu) -> str:
        """Where this GPU counts."""
        if gpu in self.held:
            job, spare = self.held[gpu]
            return "reserved" if spare else COLUMN[self.states[job]]
        if gpu in self.promised:
            return "reserved"
        return "unavailable" if gpu in self.down else "idle"


@st.composite
def moments(draw: st.DrawFn) -> list[Moment]:
    """Three to eight generations, hours apart."""
    found: list[Moment] = []
    at = 1_767_225_600 * SECOND
    for _ in range(draw(st.integers(3, 8))):
        states = {job: draw(st.sampled_from([*sorted(COLUMN), "Pending", "Finished", ""])) for job in JOBS}
        declared = frozenset(node for node in NODES if draw(st.integers(0, 5)))
        held: dict[Gpu, tuple[str, bool]] = {}
        promised: dict[Gpu, str] = {}
        down = set()
        for gpu in ((node, index) for node in NODES for index in range(GPUS)):
            job = draw(st.sampled_from((*JOBS, "")))
            if job and states[job] in COLUMN:
                held[gpu] = job, draw(st.integers(0, 3)) == 0
            waiting = [name for name in JOBS if states[name] == "Pending"]
            if gpu[0] in declared and waiting and draw(st.booleans()):
                promised[gpu] = draw(st.sampled_from(waiting))
            elif gpu not in held and draw(st.integers(0, 3)) == 0:
                down.add(gpu)
        only_nodes = draw(st.booleans())
        if found and only_nodes:  # only the inventory and what is down changed
            before = found[-1]
            found.append(
                Moment(at, declared, before.states, before.held, before.promised, frozenset(down - before.held.keys()))
            )
        else:
            found.append(Moment(at, declared, states, held, promised, frozenset(down)))
        at += draw(st.integers(1, 30 * 3600)) * SECOND + draw(st.integers(0, 999_999_999))
    return found


@dataclass
class Made:
    """An index of such moments, and its scenes."""

    index: Index = field(default_factory=Index)
    world: list[Scene] = field(default_factory=list)
    last: dict[str, dict[str, int]] = field(default_factory=dict)

    def number(self, text: str) -> int:
        if text not in self.index.texts:
            self.index.texts.append(text)
        return self.index.texts.index(text)

    def take(self, moment: Moment) -> None:
        """One more generation."""
        position, commits = len(self.index.ids), self.index.commits
        self.index.ids.append(f"{position:040x}")
        idle = Counter(dict.fromkeys(TYPES.values(), 0))
        idle.update(
            TYPES[node] for node in moment.declared for gpu in range(GPUS) if moment.column((node, gpu)) == "idle"
        )
        for name, column in commits.items():
            column.append({"at": moment.at, "generation": position, "idle": sum(idle.values())}.get(name, 0))
        commits["idleOf"][-1] = self.number(" ".join(f"{kind}:{count}" for kind, count in sorted(idle.items())))
        self.world.append(
            Scene(
                position=position, nodes={node: (TYPES[node], (1 << GPUS) - 1) for node in moment.declared},
                guaranteed={}, ceiling={},
            )
        )  # fmt: skip
        for job in JOBS:
            held = {gpu: spare for gpu, (holder, spare) in moment.held.items() if holder == job}
            told = {
                "commit": position, "job": self.number(job), "queue": self.number(job.partition("/")[0]), "state": self.number(moment.states[job]),
                "place": self.number(words({gpu for gpu, spare in held.items() if not spare})),
                "spares": self.number(words({gpu for gpu, spare in held.items() if spare})),
                "reserved": self.number(words({gpu for gpu, to in moment.promised.items() if to == job})),
            }  # fmt: skip
            if self.last.get(job) != {**told, "commit": 0}:
                self.last[job] = {**told, "commit": 0}
                for name, column in self.index.events.items():
                    column.append(told.get(name, 0))


def words(gpus: set[Gpu]) -> str:
    masks: Counter[str] = Counter()
    for node, index in gpus:
        masks[node] += 1 << index
    return " ".join(f"{node}:{mask:x}" for node, mask in sorted(masks.items()))


@settings(deadline=None, max_examples=80)
@given(
    told=moments(),
    cut=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
    period=st.sampled_from(["all", "day", "week"]),
)
def test_every_gpu_is_in_one_column_at_every_instant(told: list[Moment], cut: tuple[int, int], period: str) -> None:
    made = Made()
    for moment in told:
        made.take(moment)
    first, last = told[0].at, told[-1].at + 3 * 3600 * SECOND
    since, until = (first + (last - first) * part // 1000 for part in sorted(cut))
    if since == until:  # a window has a length, and what comes after the record's end is nobody's to expect
        since, until = (since, until + 1) if until < last else (since - 1, until)
    used = usage(made.index, made.world, period=period, since=Instant(since), until=Instant(until))
    expected: Counter[tuple[str, str]] = Counter()
    queues: Counter[tuple[str, str]] = Counter()
    outside = 0
    for moment, end in zip(told, [*(one.at for one in told[1:]), last], strict=True):
        span = max(0, min(end, until) - max(moment.at, since))
        for gpu in ((node, index) for node in NODES for index in range(GPUS)):
            if gpu[0] in moment.declared:
                expected[TYPES[gpu[0]], moment.column(gpu)] += span
                job = moment.held[gpu][0] if gpu in moment.held else moment.promised.get(gpu, "")
                queues[job.partition("/")[0], moment.column(gpu)] += span if job else 0
            elif gpu in moment.held:
                outside += span
    got: Counter[tuple[str, str]] = Counter()
    for total in used.totals:
        assert total.capacity == total.hours.allocated + total.hours.reserved + total.idle + total.unavailable
        for kind in total.types:
            assert kind.capacity == kind.allocated + kind.reserved + kind.idle + kind.unavailable
            got[kind.gpu_type, "idle"] += kind.idle
            got[kind.gpu_type, "unavailable"] += kind.unavailable
    by_queue: Counter[tuple[str, str]] = Counter()
    for row in used.rows:
        for column in ("starting", "running", "stalled", "stopping", "reserved"):
            got[row.gpu_type, column] += getattr(row.hours, column)
            by_queue[row.key, column] += getattr(row.hours, column)
    assert +got == +expected
    assert +by_queue == +queues
    assert sum(total.undeclared for total in used.totals) == outside
    assert sum(total.capacity for total in used.totals) == sum(expected.values())


def test_each_holding_state_has_a_column() -> None:
    assert set(COLUMN) == HOLDING == {str(state) for state in JobState if state.holds_gpus}
    assert set(COLUMN.values()) <= set(Hours.__slots__)


# --- spares, in a record of the real reconciler ---


@pytest.fixture
def spared(lab: Lab) -> Lab:
    """A gang of one node with a spare one beside it, for a day."""
    lab.begin(**{job_file("a"): job_text("a", 8, more="  topology: {spares: 1}\n")})
    desk = lab.desk()
    desk.settle()
    lab.clock.advance(DAY)
    lab.desire({job_file("b"): job_text("b", 8)})
    desk.settle()
    return lab


def test_spares_are_reserved_for_their_gang_and_neither_idle_nor_down(spared: Lab) -> None:
    access = spared.remote.git
    index = indexed(access, spared.tip)
    since = next(
        index.commits["at"][index.events["commit"][e]] for e in range(len(index.ids)) if index.text("spares", e)
    )
    (total,) = usage(index, scenes(access, index), since=Instant(since)).totals
    span = index.commits["at"][-1] - since
    assert total.hours.reserved == 8 * span
    assert total.unavailable == 0


def test_who_holds_a_spare_gpu_is_told(spared: Lab) -> None:
    access = spared.remote.git
    index = indexed(access, spared.tip)
    at = Instant(index.commits["at"][-1])
    allocation = read_generation(access, spared.tip).allocation
    held = {(str(n), m, str(j)) for n, by in allocation.holders().items() for j, m in by.items()}
    found = holders_at(index, at)
    assert {(one.node, one.mask, one.job) for one in found} == held
    (spare,) = (one for one in found if one.state == SPARE)
    assert (spare.job, spare.given.action) == ("nlp/a", "place")
    assert {one.job for one in answers(index, Question(node=spare.node))} == {"nlp/a"}
