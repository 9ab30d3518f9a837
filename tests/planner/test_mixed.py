"""Unlike nodes, unlike members, labels, taints, CPUs and ceilings together: whatever is decided, the judge accepts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.units import DomainName, Gpus, GpuType, NodeName, QueueName
from reconciler.planner.ground import ground_of
from reconciler.planner.ranks import obeys
from tests.planner.worlds import Cluster, inventory, job, queue, shape, taint, with_jobs, world

SHAPES = (shape(8, "H100", nvlink=(0b1111, 0b11110000), cpus=64), shape(4, "A100", cpus=32), shape(6, "H100", cpus=48))
TYPES = ((), ("H100",), ("A100",), ("A100", "H100"), ("H100", "A100"))


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    found = []
    for number in range(draw(st.integers(2, 7))):
        rack = draw(st.sampled_from(("r1", "r2", "r3")))
        path = (DomainName("sg1" if rack == "r3" else "sg0"), DomainName(rack))
        taints = (taint("ci", draw(st.sampled_from(("NoSchedule", "PreferNoSchedule")))),) * draw(st.integers(0, 1))
        labels = {"fs": draw(st.sampled_from(("fast", "slow")))}
        made = draw(st.sampled_from(SHAPES))
        engine = draw(st.sampled_from(("agents", "agents", "slurm")))
        name = NodeName(f"n{number}")
        found.append(Node(name=name, shape=made, path=path, labels=labels, taints=taints, engine=engine))
    return found


@st.composite
def asked(draw: st.DrawFn, number: int) -> Job:
    home, rank = draw(st.sampled_from(("nlp", "vision"))), draw(st.sampled_from(("high", "low", "normal")))
    level = draw(st.sampled_from(({}, {"job": "rack"}, {"job": "spineGroup"}, {"job": "node"})))
    if draw(st.booleans()):
        roles = [("leader", 1, draw(st.integers(1, 2))), ("worker", draw(st.integers(1, 3)), draw(st.integers(1, 6)))]
        total = sum(workers * each for _, workers, each in roles)
        made = replace(job(f"{home}/j{number}", total, rank, required=level, roles=roles), dimensions=())
    else:
        tensor, pipeline, data = draw(
            st.sampled_from(((1, 1, 5), (2, 2, 2), (4, 1, 3), (2, 3, 2), (1, 4, 1), (4, 2, 2)))
        )
        sizes = {"tensor": tensor, "pipeline": pipeline, "data": data}
        order = draw(st.permutations(sorted(sizes)))
        if draw(st.booleans()):
            level = {**level, "tensor": draw(st.sampled_from(("nvlinkDomain", "node", "rack")))}
        if draw(st.booleans()):
            level = {**level, "pipeline": draw(st.sampled_from(("rack", "spineGroup", "node")))}
        preferred = draw(st.sampled_from(({}, {"job": "rack"}, {"pipeline": "rack", "tensor": "nvlinkDomain"})))
        dims = {name: sizes[name] for name in order}
        made = job(f"{home}/j{number}", tensor * pipeline * data, rank, dims=dims, required=level, preferred=preferred)
    return replace(
        made,
        gpu_types=tuple(GpuType(kind) for kind in draw(st.sampled_from(TYPES))),
        cpus_per_gpu=draw(st.sampled_from((0, 0, 6, 12))),
        tolerations=draw(st.sampled_from(((), ("ci",)))),
        node_labels=draw(st.sampled_from(({}, {}, {"fs": "fast"}))),
        mixed_types=draw(st.booleans()),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Desired:
    limit = draw(st.sampled_from((None, 10)))
    ceiling = {} if limit is None else {GpuType(kind): Gpus(limit) for kind in ("A100", "H100")}
    nlp = replace(queue("nlp"), name=QueueName("nlp"), ceiling=ceiling)
    made = world(queues=[nlp, queue("root", None), queue("vision")])
    return replace(made, inventory=replace(inventory(), nodes=tuple(sorted(draw(nodes()), key=lambda n: n.name))))


@settings(
    derandomize=True, deadline=None, database=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow]
)
@given(clusters(), st.data())
def test_whatever_is_decided_is_whole_inside_its_levels_and_accepted(desired: Desired, of: st.DataObject) -> None:
    """`Cluster.step` asks the judge about every decision; jobs arrive in two waves, so that some preempt."""
    cluster = Cluster(desired)
    for wave in range(2):
        some = [of.draw(asked(10 * wave + number)) for number in range(of.draw(st.integers(1, 4)))]
        cluster.desired = with_jobs(cluster.desired, *some)
        for _ in range(5):
            cluster.step(1)
    ground = ground_of(cluster.desired.inventory)
    for record in cluster.allocation.jobs.values():
        assert record.state in (JobState.RUNNING, JobState.PENDING, JobState.HELD), cluster.show()
        if record.placement is not None:
            assert obeys(ground, cluster.desired.jobs[record.job], record.placement), cluster.show()
            assert record.placement.comm_time >= record.placement.comm_bound
