"""No gang spans engines: racks migrate one by one, and every gang lies where one engine starts all of it."""

from __future__ import annotations

from dataclasses import replace

from reconciler.model.desired import Desired
from reconciler.model.inventory import AGENTS, SLURM
from reconciler.model.lifecycle import JobState
from reconciler.model.units import JobKey
from tests.planner.worlds import Cluster, Spines, job, world

SPINES: Spines = {"s1": {"r1": ["a1", "a2", "a3"], "r2": ["b1", "b2", "b3"]}}


def split(desired: Desired, *on_slurm: str) -> Desired:
    """The same with these nodes handed to Slurm."""
    nodes = tuple(replace(n, engine=SLURM if n.name in on_slurm else AGENTS) for n in desired.inventory.nodes)
    return replace(desired, inventory=replace(desired.inventory, nodes=nodes))


def test_a_gang_goes_where_one_engine_holds_it_although_another_rack_is_nearer() -> None:
    """The preferred rack has three nodes, of which Slurm has two: the gang of three goes to the other rack."""
    gang = job("nlp/gang", 24, preferred={"job": "rack"})
    cluster = Cluster(split(world(SPINES, jobs=[gang]), "a1", "a2"))
    cluster.settle()
    assert sorted(cluster.places("nlp/gang")) == ["b1", "b2", "b3"]


def test_a_gang_that_only_both_engines_together_hold_waits() -> None:
    cluster = Cluster(split(world(SPINES, jobs=[job("nlp/gang", 32)]), "a1", "a2", "a3"))
    cluster.settle()
    assert cluster.state("nlp/gang") in {JobState.PENDING, JobState.HELD}
    one_engine = Cluster(world(SPINES, jobs=[job("nlp/gang", 32)]))
    one_engine.settle()
    assert one_engine.state("nlp/gang") is JobState.RUNNING


def test_small_jobs_use_the_nodes_of_every_engine() -> None:
    jobs = [job(f"nlp/j{number}", 8) for number in range(6)]
    cluster = Cluster(split(world(SPINES, jobs=jobs), "a1", "a2"))
    cluster.settle()
    assert sorted(node for one in jobs for node in cluster.places(one.key)) == ["a1", "a2", "a3", "b1", "b2", "b3"]


def test_a_gang_is_repaired_with_a_node_of_its_own_engine() -> None:
    """Slurm has the free node next to it in its rack; the one that completes it is in the other rack."""
    gang = job("nlp/gang", 16, preferred={"job": "rack"})
    cluster = Cluster(split(world(SPINES, jobs=[gang]), "a3", "b3"))
    cluster.settle()
    before = sorted(cluster.places("nlp/gang"))
    assert before in (["a1", "a2"], ["b1", "b2"])
    cluster.die(before[0])
    cluster.step(60)
    cluster.settle()
    assert cluster.state("nlp/gang") is JobState.RUNNING
    assert not {"a3", "b3"} & set(cluster.places("nlp/gang")), cluster.show()


def test_a_spare_is_of_the_gangs_own_engine() -> None:
    gang = replace(job("nlp/gang", 16, preferred={"job": "rack"}), spares=1)
    cluster = Cluster(split(world(SPINES, jobs=[gang]), "a3", "b3"))
    cluster.settle()
    record = cluster.allocation.jobs[JobKey("nlp/gang")]
    assert record.state is JobState.RUNNING
    assert [spare.node for spare in record.spares if spare.node in {"a3", "b3"}] == []
    assert len(record.spares) == 1


def test_the_level_of_a_gang_across_spines_is_still_the_cluster() -> None:
    spines: Spines = {"s1": {"r1": ["a1", "a2"]}, "s2": {"r2": ["b1", "b2"]}}
    cluster = Cluster(split(world(spines, jobs=[job("nlp/gang", 24)]), "b2"))
    cluster.settle()
    place = cluster.allocation.jobs[JobKey("nlp/gang")].placement
    assert place is not None
    assert (place.level, sorted(place.nodes)) == ("cluster", ["a1", "a2", "b1"])
