"""Promises of the planner, on random small clusters and random lives of them.

Every step of a `Cluster` already asserts that the judge accepts the decision and that simulated nodes never have two
live attempts on one GPU, run unprepared or let go of living ranks; here the promises are checked a third time, in the
words of the rule book, and with what no judge sees: equal inputs, other orders, and that everything comes to rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from reconciler.documents.record import changed_jobs
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Observed
from reconciler.model.tombstones import buried
from reconciler.model.units import SECOND, ClassName, JobKey, Nanoseconds, NodeName
from reconciler.planner.decide import decide
from tests.planner.strategies import KEYS, Asked, Site, asked, sites
from tests.planner.worlds import START, Cluster, job, queue, taint, window, with_jobs, with_node, world

K = TypeVar("K")
V = TypeVar("V")

SMALL = settings(
    derandomize=True, deadline=None, database=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow]
)


def reversed_order(mapping: Mapping[K, V]) -> dict[K, V]:
    return dict(reversed(list(mapping.items())))


def shuffled(desired: Desired, observed: Observed, previous: Allocation) -> tuple[Desired, Observed, Allocation]:
    """The same values, every mapping in the opposite order."""
    quotas = replace(desired.quotas, queues=reversed_order(desired.quotas.queues))
    return (
        replace(
            desired, jobs=reversed_order(desired.jobs), classes=reversed_order(desired.classes), quotas=quotas,
            invalid=reversed_order(desired.invalid),
        ),
        replace(observed, nodes=reversed_order(observed.nodes), jobs=reversed_order(observed.jobs)),
        replace(previous, jobs=reversed_order(previous.jobs), tombstones=buried(reversed_order(previous.tombstones))),
    )  # fmt: skip


# --- the promises, in plain words ---


def check(cluster: Cluster, began: Iterable[JobKey]) -> None:
    """No GPU is bound twice; each gang that holds GPUs is whole; a gang that began now lies inside its levels."""
    taken: dict[tuple[NodeName, int], JobKey] = {}
    for key, record in cluster.allocation.jobs.items():
        for rank in record.placement.ranks if record.placement and record.state.holds_gpus else ():
            assert (rank.node, rank.gpu) not in taken, f"{key} and {taken[rank.node, rank.gpu]}\n{cluster.show()}"
            taken[rank.node, rank.gpu] = key
        wanted = cluster.desired.jobs.get(key)
        if wanted is not None and wanted.digest == record.digest:
            assert record.gpus_held in (0, wanted.gpus), cluster.show()
    for key in began:
        record, asked = cluster.allocation.jobs[key], cluster.desired.jobs[key]
        for locality in asked.required:
            for members in groups(asked, locality.group, record):
                assert len({domain(cluster.desired, locality.level, *gpu) for gpu in members}) == 1, cluster.show()
    assert cluster.desired.jobs.keys() <= cluster.allocation.jobs.keys()


def groups(asked: Job, name: str, record: JobRecord) -> list[list[tuple[NodeName, int]]]:
    """(node, GPU) of the ranks that have all coordinates but this dimension's in common."""
    assert record.placement is not None

    def others(rank: int) -> tuple[int, ...]:
        rest, found = rank, []
        for dimension in asked.dimensions:
            rest, coordinate = divmod(rest, dimension.size)
            found.append(-1 if name in ("job", dimension.name) else coordinate)
        return tuple(found) if name != "job" else ()

    ranks = sorted(record.placement.ranks, key=lambda rank: others(rank.rank))
    return [[(rank.node, rank.gpu) for rank in same] for _, same in groupby(ranks, lambda rank: others(rank.rank))]


def domain(desired: Desired, level: str, name: NodeName, gpu: int) -> object:
    node = next(node for node in desired.inventory.nodes if node.name == name)
    island = next(mask for mask in node.shape.nvlink if mask >> gpu & 1)
    return {
        "nvlinkDomain": (name, island), "node": name, "rack": node.path, "spineGroup": node.path[:1], "cluster": 0
    }[level]  # fmt: skip


def starts(before: Allocation, after: Allocation) -> list[JobKey]:
    """Jobs whose attempt began in between."""
    old = {key: record.attempt for key, record in before.jobs.items()}
    return [key for key, record in after.jobs.items() if record.state.holds_gpus and record.attempt > old.get(key, 0)]


# --- one decision ---


@SMALL
@given(sites(most_jobs=6))
def test_a_first_decision_keeps_the_promises_and_everything_comes_to_rest(site: Site) -> None:
    cluster = Cluster(site.world())
    before = cluster.allocation
    cluster.step()
    check(cluster, starts(before, cluster.allocation))
    cluster.settle()
    assert not any(r.state in (JobState.STARTING, JobState.STOPPING) for r in cluster.allocation.jobs.values())


@SMALL
@given(sites(most_jobs=6))
def test_equal_inputs_give_equal_bytes_in_any_order(site: Site) -> None:
    cluster = Cluster(site.world())
    for _ in range(4):
        inputs = (cluster.desired, cluster.observe(), cluster.allocation)
        one, two = decide(*inputs, cluster.now), decide(*inputs, cluster.now)
        other = decide(*shuffled(*inputs), cluster.now)
        files = changed_jobs(cluster.allocation, one.allocation)
        assert files == changed_jobs(cluster.allocation, two.allocation)
        assert files == changed_jobs(cluster.allocation, other.allocation)
        assert one.changes == two.changes == other.changes
        assert list(other.allocation.jobs) == sorted(one.allocation.jobs)
        cluster.step(1)


@SMALL
@given(sites(most_jobs=6), st.integers(1, 10**6))
def test_an_unchanged_cluster_keeps_its_allocation_however_late_it_is(site: Site, seconds: int) -> None:
    desired = site.world()
    endless = [replace(one, time_limit=None) for one in desired.jobs.values()]
    patient = replace(desired.scheduling, hold_for_starved_after=Nanoseconds(10**7 * SECOND))
    cluster = Cluster(replace(with_jobs(desired, *endless), scheduling=patient))
    cluster.settle()
    rest = cluster.allocation
    cluster.step(seconds)
    assert cluster.allocation is rest, cluster.show()


# --- a life ---


class Life(RuleBasedStateMachine):
    """People submit, edit and delete; nodes fail, hang and come back; jobs end. After each, a few rounds."""

    cluster: Cluster
    all_nodes: tuple[Node, ...]

    @initialize(site=sites())
    def begin(self, site: Site) -> None:
        self.cluster = Cluster(site.world())
        self.all_nodes = self.cluster.desired.inventory.nodes

    def then(self, *seconds: int) -> None:
        for span in seconds or (1,):
            before = self.cluster.allocation
            inputs = (self.cluster.desired, self.cluster.observe(), before)
            self.cluster.step(span)
            check(self.cluster, starts(before, self.cluster.allocation))
            if span == 0:
                other = decide(*shuffled(*inputs), self.cluster.now)
                assert not changed_jobs(self.cluster.allocation, other.allocation), self.cluster.show()

    # people

    @rule(key=st.sampled_from(KEYS), what=asked())
    def submit(self, key: str, what: Asked) -> None:
        self.cluster.desired = with_jobs(self.cluster.desired, what.job(key))
        self.then(0, 1)

    @rule(key=st.sampled_from(KEYS), rank=st.sampled_from(("high", "low", "normal")), suspend=st.booleans())
    def edit(self, key: str, rank: str, suspend: bool) -> None:
        one = self.cluster.desired.jobs.get(JobKey(key))
        if one is not None:
            edited = replace(one, priority_class=ClassName(rank), suspend=suspend)
            self.cluster.desired = with_jobs(self.cluster.desired, edited)
            self.then(0)

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: str) -> None:
        self.cluster.desired = with_jobs(self.cluster.desired, without=[key])
        self.then(0)

    @rule(limit=st.sampled_from((None, 0, 4, 8)))
    def set_ceiling(self, limit: int | None) -> None:
        queues = {**self.cluster.desired.quotas.queues, queue("nlp").name: queue("nlp", ceiling=limit)}
        self.cluster.desired = replace(self.cluster.desired, quotas=replace(self.cluster.desired.quotas, queues=queues))
        self.then(0)

    @rule(of=st.data(), why=st.sampled_from(("", "fan")), failed=st.sampled_from((0, 0, 0b10)))
    def declare(self, of: st.DataObject, why: str, failed: int) -> None:
        self.cluster.desired = with_node(self.cluster.desired, self._some_node(of), cordoned=why, failed=failed)
        self.then(0)

    @rule(of=st.data(), tainted=st.booleans())
    def taint_or_untaint(self, of: st.DataObject, tainted: bool) -> None:
        taints = (taint("ci"),) * tainted
        self.cluster.desired = with_node(self.cluster.desired, self._some_node(of), taints=taints)
        self.then(0)

    @rule(of=st.data(), begins=st.integers(10, 300))
    def plan_maintenance(self, of: st.DataObject, begins: int) -> None:
        at = (self.cluster.now - START) // SECOND + begins
        works = window(self._some_node(of), at, at + 100)
        self.cluster.desired = replace(self.cluster.desired, windows=(*self.cluster.desired.windows[-1:], works))
        self.then(0)

    @rule(of=st.data())
    def take_out_or_put_back(self, of: st.DataObject) -> None:
        declared, name = self.cluster.desired.inventory, self._some_node(of)
        left = tuple(node for node in declared.nodes if node.name != name)
        nodes = left if len(left) < len(declared.nodes) else self.all_nodes
        if nodes:
            self.cluster.desired = replace(self.cluster.desired, inventory=replace(declared, nodes=nodes))
            self.then(0)

    @rule(blocked=st.booleans())
    def break_a_cluster_file(self, blocked: bool) -> None:
        self.cluster.desired = replace(self.cluster.desired, blocked="cluster.yaml" * blocked)
        self.then(0)

    # hardware

    @rule(of=st.data(), how=st.sampled_from(("die", "cut", "back")))
    def link(self, of: st.DataObject, how: str) -> None:
        getattr(self.cluster, how)(self._some_node(of))
        self.then(0, 1)

    @rule(of=st.data())
    def confirm_dead(self, of: st.DataObject) -> None:
        node = self.cluster.nodes[NodeName(self._some_node(of))]
        node.confirmed_dead = node.off
        self.then(0)

    @rule(of=st.data(), refuses=st.booleans(), hangs=st.booleans())
    def misbehave(self, of: st.DataObject, refuses: bool, hangs: bool) -> None:
        node = self.cluster.nodes[NodeName(self._some_node(of))]
        node.refuses, node.hangs = refuses, hangs
        self.then(1)

    # jobs and time

    @rule(key=st.sampled_from(KEYS), code=st.sampled_from((0, 1)))
    def end(self, key: str, code: int) -> None:
        self.cluster.end(key, code)
        self.then(0, 1)

    @precondition(lambda self: any(r.state is JobState.RUNNING for r in self.cluster.allocation.jobs.values()))
    @rule(of=st.data())
    def save(self, of: st.DataObject) -> None:
        running = [key for key, r in self.cluster.allocation.jobs.items() if r.state is JobState.RUNNING]
        self.cluster.saves(of.draw(st.sampled_from(running)))
        self.then(0)

    @rule(seconds=st.sampled_from((1, 10, 61, 150)))
    def wait(self, seconds: int) -> None:
        self.then(seconds, 1)

    def _some_node(self, of: st.DataObject) -> str:
        return of.draw(st.sampled_from(sorted(self.cluster.nodes)))

    def teardown(self) -> None:
        """Once everything is mended and people leave it alone, the cluster comes to rest, and nobody is stuck."""
        if not hasattr(self, "cluster"):
            return
        for name, node in self.cluster.nodes.items():
            self.cluster.back(name)
            node.refuses = node.hangs = False
        self.cluster.desired = replace(self.cluster.desired, blocked="")
        self.cluster.settle(seconds=130, rounds=60)
        stuck = {JobState.STARTING, JobState.STOPPING, JobState.LOST, JobState.PROMISED, JobState.REPAIRING}
        assert not stuck & {r.state for r in self.cluster.allocation.jobs.values()}, self.cluster.show()


TestLife = Life.TestCase
TestLife.settings = settings(SMALL, max_examples=60, stateful_step_count=30)


# --- a promise is looked at again before it comes true ---


def on_the_way() -> Cluster:
    """nlp/high was promised both nodes of rack r01, from which nlp/low is being evicted; r02 is free by now."""
    cluster = Cluster(world(jobs=[job("nlp/low", 16, "low", preferred={"job": "rack"})]))
    cluster.settle()
    cluster.desired = with_jobs(cluster.desired, job("vision/old", 16))
    cluster.settle()
    cluster.nodes[NodeName("gpu-001")].hangs = True
    cluster.desired = with_jobs(cluster.desired, job("nlp/high", 16, "high", limit=600, preferred={"job": "rack"}))
    cluster.step(1)
    promise = cluster.allocation.jobs[JobKey("nlp/high")].promise
    assert promise is not None, cluster.show()
    assert promise.placement.nodes == ("gpu-001", "gpu-002")
    cluster.end("vision/old")
    cluster.nodes[NodeName("gpu-001")].hangs = False
    return cluster


EDITS: Mapping[str, Callable[[Desired], Desired]] = {
    "cordoned": lambda desired: with_node(desired, "gpu-001", cordoned="fan"),
    "tainted": lambda desired: with_node(desired, "gpu-001", taints=(taint("ci"),)),
    "maintenance": lambda desired: replace(desired, windows=(window("gpu-001", 300, 900),)),
    "taken out": lambda desired: replace(
        desired, inventory=replace(desired.inventory, nodes=desired.inventory.nodes[1:])
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_promise_is_mended_when_a_node_of_its_target_takes_the_job_no_more(edit: str) -> None:
    cluster = on_the_way()
    cluster.desired = EDITS[edit](cluster.desired)
    cluster.settle()
    assert cluster.places("nlp/high") == {"gpu-003": 8, "gpu-002": 8}, cluster.show()  # the good part stays


def test_a_promise_falls_when_the_job_asks_for_a_narrower_level() -> None:
    cluster = on_the_way()
    narrower = job("nlp/high", 16, "high", limit=600, preferred={"job": "rack"}, required={"job": "node"})
    cluster.desired = with_jobs(cluster.desired, narrower)
    cluster.settle()
    assert cluster.places("nlp/high") == {}, cluster.show()
