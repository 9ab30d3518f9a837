"""Orders: every node has a file, an attempt's order is written once, and only its phase and deadline ever change."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.documents.orders import orders_bytes, orders_files, orders_of, read_orders
from reconciler.errors import StoreError
from reconciler.model.allocation import Allocation, JobRecord, Placement, Promise, RankPlace
from reconciler.model.desired import Desired
from reconciler.model.job import Launch, Run, Task
from reconciler.model.lifecycle import Cause, JobState, Phase
from reconciler.model.observed import GpuReport, NicReport, NodeCondition, NodeObservation, Observed
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import SECOND, Bytes, CommitId, Instant, JobKey, LevelName, Nanoseconds, NodeName, job_key
from reconciler.wire import NodeOrders
from tests.planner.worlds import START, job, world

NODES = ("gpu-001", "gpu-002", "gpu-003", "gpu-004")
SEEN = Observed(
    nodes={
        NodeName(name): NodeObservation(
            node=NodeName(name),
            boot_id=f"boot-{name}",
            address=f"10.0.0.{number}",
            condition=NodeCondition.READY,
            condition_since=START,
            gpus=tuple(GpuReport(index=i, uuid=f"GPU-{name}-{i}") for i in range(8)),
        )
        for number, name in enumerate(NODES, 1)
    }
)
SFT = replace(
    job("nlp/sft", 4, checkpoint=60, limit=3600),
    run=Run(
        runtime="process", launch=Launch.PER_GPU, command=("python", "train.py"), env={"B": "2", "A": "1"}, ports=1
    ),
)


def placed(*rows: tuple[str, int]) -> Placement:
    counts: dict[str, int] = {}
    ranks = []
    for rank, (node, gpu) in enumerate(rows):
        local = counts[node] = counts.get(node, -1) + 1
        ranks.append(
            RankPlace(
                rank=rank, node=NodeName(node), local_rank=local, gpu=gpu, numa=gpu // 4, nic=f"mlx5_{gpu}", rail=gpu
            )
        )
    return Placement(ranks=tuple(ranks), level=LevelName("rack"), domain="r01")


def starting(placement: Placement, key: JobKey = SFT.key) -> JobRecord:
    return JobRecord(
        job=key,
        queue=SFT.queue,
        digest=SFT.digest,
        state=JobState.STARTING,
        since=START,
        submitted=START,
        reason=reason(ReasonCode.PLACED, gpus=4, level="rack"),
        attempt=1,
        phase=Phase.PREPARE,
        placement=placement,
        ports=(29400, 29401),
    )


def allocation(*records: JobRecord) -> Allocation:
    return Allocation(
        generation=1,
        epoch=1,
        cluster_id="test",
        decided_at=START,
        desired_commit=CommitId("c" * 40),
        jobs={record.job: record for record in records},
    )


ON_TWO = placed(("gpu-001", 0), ("gpu-002", 4), ("gpu-001", 1), ("gpu-002", 5))
DESIRED = world(jobs=[SFT])


def first() -> dict[NodeName, NodeOrders]:
    return orders_of(allocation(starting(ON_TWO)), DESIRED, SEEN, {})


def test_every_declared_node_has_a_file_and_an_idle_one_says_so() -> None:
    files = orders_files(first(), DESIRED.inventory)
    assert sorted(files) == [
        f"allocation/nodes/{rack}/{node}.json" for rack, node in zip(("r01", "r01", "r02", "r02"), NODES, strict=True)
    ]
    assert json.loads(files["allocation/nodes/r02/gpu-004.json"]) == {
        "node": "gpu-004",
        "attempts": [],
        "formatVersion": "1.0",
    }


def test_an_order_is_complete() -> None:
    (order,) = first()[NodeName("gpu-002")].attempts
    assert (order.job, order.attempt, order.phase, order.worldSize) == ("nlp/sft", 1, "prepare", 4)
    assert (order.nodeRank, order.nodeCount, order.leaderAddress) == (1, 2, "10.0.0.1")
    assert (order.port, order.ports, order.resume, order.deadline) == (29400, [29401], False, None)
    assert order.run.command == ["python", "train.py"]
    assert list(order.run.env) == ["A", "B"]
    assert order.checkpoint is not None
    assert order.checkpoint.marker == "/ckpt/latest"
    assert order.checkpoint.graceSeconds == 60


def with_shape(**changes: object) -> Desired:
    nodes = [replace(n, shape=replace(n.shape, **changes)) for n in DESIRED.inventory.nodes]  # type: ignore[arg-type]  # fields by name
    return replace(DESIRED, inventory=replace(DESIRED.inventory, nodes=tuple(nodes)))


def with_nics(near: tuple[tuple[str, ...], ...], *dark: str) -> list[list[str]]:
    """The NICs near each of the two ranks on gpu-002 (GPU 4 and 5), given those of all GPUs and those that are down.

    Of these the last is not there at all.
    """
    slots = tuple(replace(s, near=n) for s, n in zip(DESIRED.inventory.nodes[0].shape.gpus, near, strict=True))
    names = sorted({name for names in near for name in names})
    seen = replace(
        SEEN.nodes[NodeName("gpu-002")],
        nics=tuple(NicReport(name=n, up=n not in dark) for n in names if n not in dark[-1:]),
    )
    observed = replace(SEEN, nodes={**SEEN.nodes, seen.node: seen})
    desired = with_shape(gpus=slots)
    (order,) = orders_of(allocation(starting(ON_TWO)), desired, observed, {})[NodeName("gpu-002")].attempts
    return [rank.near for rank in order.ranks]


PAIRS = tuple((f"mlx5_{i // 2 * 2}", f"mlx5_{i // 2 * 2 + 1}") for i in range(8))
SINGLE = tuple((f"mlx5_{i}",) for i in range(8))


@pytest.mark.parametrize(
    ("near", "dark", "told"),
    [
        (PAIRS, (), [["mlx5_4", "mlx5_5"]] * 2),
        (PAIRS, ("mlx5_5",), [["mlx5_4"]] * 2),
        (SINGLE, ("mlx5_5", "mlx5_0"), [["mlx5_4"], ["mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_6", "mlx5_7"]]),
        (((),) * 8, (), [[], []]),
    ],
    ids=["two below a switch", "one of them is down", "its only one is down: all others", "not said"],
)
def test_each_rank_is_told_the_nics_near_its_gpu(
    near: tuple[tuple[str, ...], ...], dark: tuple[str, ...], told: list[list[str]]
) -> None:
    assert with_nics(near, *dark) == told


def test_the_profiles_topology_file_is_part_of_the_order() -> None:
    desired = with_shape(topo_file="/etc/nccl/hgx.xml")
    (order,) = orders_of(allocation(starting(ON_TWO)), desired, SEEN, {})[NodeName("gpu-002")].attempts
    assert order.topoFile == "/etc/nccl/hgx.xml"
    assert read_orders(orders_bytes(NodeOrders(node="gpu-002", attempts=[order]))).attempts == [order]


def test_ranks_in_several_runs_on_a_node_keep_their_gpus() -> None:
    """Ranks 0 and 2 are on the first node, 1 and 3 on the second: each with its own GPU, NUMA node, NIC and UUID."""
    rows = {
        node: [(r.rank, r.localRank, r.gpu, r.uuid, r.numa, r.nic, r.cpus) for r in orders.attempts[0].ranks]
        for node, orders in first().items()
        if orders.attempts
    }
    assert rows == {
        "gpu-001": [
            (0, 0, 0, "GPU-gpu-001-0", 0, "mlx5_0", "0-63"),
            (2, 1, 1, "GPU-gpu-001-1", 0, "mlx5_1", "0-63"),
        ],
        "gpu-002": [
            (1, 0, 4, "GPU-gpu-002-4", 1, "mlx5_4", "64-127"),
            (3, 1, 5, "GPU-gpu-002-5", 1, "mlx5_5", "64-127"),
        ],
    }


# --- an order is written once ---


def elsewhere(desired: Desired) -> Desired:
    """Everything about the job changed, and its nodes have other profiles."""
    changed = replace(
        SFT, run=replace(SFT.run, command=("rm", "-rf")), time_limit=None, checkpoint=None, memory_per_gpu=Bytes(5)
    )
    return replace(desired, jobs={changed.key: changed})


PHASES = [
    (JobState.RUNNING, Phase.RUN, None),
    (JobState.STOPPING, Phase.CHECKPOINT, Instant(START + 90 * SECOND)),
    (JobState.STOPPING, Phase.STOP, Instant(START + 120 * SECOND)),
    (JobState.LOST, Phase.RUN, None),
]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PHASES), st.sampled_from(["same", "changed", "gone"]), st.booleans())))
def test_only_phase_and_deadline_ever_change(
    steps: list[tuple[tuple[JobState, Phase, Instant | None], str, bool]],
) -> None:
    before = first()
    record = starting(ON_TWO)
    for (state, phase, deadline), files, seen in steps:
        record = replace(record, state=state, phase=phase, deadline=deadline, started=START)
        desired = {"same": DESIRED, "changed": elsewhere(DESIRED), "gone": replace(DESIRED, jobs={})}[files]
        after = orders_of(allocation(record), desired, SEEN if seen else Observed(), before)
        for node in ("gpu-001", "gpu-002"):
            (old,), (new,) = before[NodeName(node)].attempts, after[NodeName(node)].attempts
            assert replace(new, phase=old.phase, deadline=old.deadline) == old
            assert new.phase == phase
            assert deadline is None or new.deadline == deadline
        before = after


@pytest.mark.parametrize(
    ("record", "desired", "end"),
    [
        (
            replace(starting(ON_TWO), state=JobState.RUNNING, phase=Phase.RUN, started=START),
            DESIRED,
            START + 3600 * SECOND,
        ),
        (replace(starting(ON_TWO), state=JobState.RUNNING, phase=Phase.RUN, started=START), elsewhere(DESIRED), None),
        (
            replace(starting(ON_TWO), state=JobState.STOPPING, phase=Phase.STOP, started=START, deadline=Instant(5)),
            DESIRED,
            5,
        ),
        (starting(ON_TWO), DESIRED, None),
    ],
    ids=["ends by its time limit", "no time limit any more", "a stop has its own end", "not started yet"],
)
def test_the_deadline(record: JobRecord, desired: Desired, end: int | None) -> None:
    orders = orders_of(allocation(record), desired, SEEN, first())
    assert orders[NodeName("gpu-001")].attempts[0].deadline == end


def test_a_job_whose_file_is_gone_keeps_its_last_known_end() -> None:
    running = replace(starting(ON_TWO), state=JobState.RUNNING, phase=Phase.RUN, started=START)
    before = orders_of(allocation(running), DESIRED, SEEN, first())
    after = orders_of(allocation(running), replace(DESIRED, jobs={}), SEEN, before)
    assert after == before
    assert after[NodeName("gpu-001")].attempts[0].deadline == START + 3600 * SECOND


def test_a_released_job_has_no_order() -> None:
    released = replace(starting(ON_TWO), state=JobState.PENDING, placement=None, phase=None)
    assert not any(o.attempts for o in orders_of(allocation(released), DESIRED, SEEN, first()).values())


def test_a_node_out_of_the_inventory_keeps_its_orders_while_it_is_held() -> None:
    inventory = DESIRED.inventory
    smaller = replace(DESIRED, inventory=replace(inventory, nodes=inventory.nodes[1:]))
    stopping = replace(starting(ON_TWO), state=JobState.STOPPING, phase=Phase.CHECKPOINT, deadline=Instant(9))
    orders = orders_of(allocation(stopping), smaller, SEEN, first())
    assert orders[NodeName("gpu-001")].attempts[0].phase == "checkpoint"
    assert "allocation/nodes/unknown/gpu-001.json" in orders_files(orders, smaller.inventory)
    released = replace(stopping, state=JobState.PENDING, placement=None, phase=None)
    assert NodeName("gpu-001") not in orders_of(allocation(released), smaller, SEEN, orders)


def test_attempts_of_a_node_are_in_order_of_their_jobs() -> None:
    other = replace(SFT, name="aaa")
    desired = world(jobs=[SFT, other])
    records = sorted(
        [starting(placed(("gpu-001", 0))), starting(placed(("gpu-001", 1)), job_key("nlp", "aaa"))], key=lambda r: r.job
    )
    orders = orders_of(allocation(*records), desired, SEEN, {})
    assert [a.job for a in orders[NodeName("gpu-001")].attempts] == ["nlp/aaa", "nlp/sft"]


# --- bytes ---


def test_orders_read_back_and_have_one_spelling() -> None:
    for orders in first().values():
        content = orders_bytes(orders)
        assert read_orders(content) == orders
        assert orders_bytes(read_orders(content)) == content


def test_equal_orders_keep_their_very_bytes() -> None:
    before = first()
    files = orders_files(before, DESIRED.inventory)
    stopping = replace(starting(placed(("gpu-001", 0))), attempt=2, phase=Phase.STOP)
    after = orders_of(allocation(stopping), DESIRED, SEEN, before)
    again = orders_files(after, DESIRED.inventory, before, files)
    assert again == orders_files(after, DESIRED.inventory)
    kept = "allocation/nodes/r02/gpu-003.json"
    assert again[kept] is files[kept]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"attempts": [{}]}', b"\xff"])
def test_a_file_that_is_not_ours_is_a_bad_record(content: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        read_orders(content)
    assert caught.value.code == "BadRecord"


def test_the_lease_is_rounded_up() -> None:
    restart = replace(SFT.restart, lease=Nanoseconds(4 * SECOND + 1))
    desired = world(jobs=[replace(SFT, restart=restart)])
    orders = orders_of(allocation(starting(ON_TWO)), desired, SEEN, {})
    assert orders[NodeName("gpu-001")].attempts[0].leaseSeconds == 5


def test_a_resized_gang_gets_its_new_world_size_and_keeps_the_old_order_until_it_has_stopped() -> None:
    before = first()
    smaller = placed(("gpu-001", 0), ("gpu-001", 1))
    stops = replace(
        starting(ON_TWO), state=JobState.STOPPING, phase=Phase.STOP, cause=Cause.RESIZED,
        promise=Promise(placement=smaller, made=START, deadline=START, waiting_for=(SFT.key,)),
    )  # fmt: skip
    stopping = orders_of(allocation(stops), DESIRED, SEEN, before)
    assert [order.worldSize for order in stopping[NodeName("gpu-002")].attempts] == [4]
    begun = orders_of(allocation(replace(starting(smaller), attempt=2)), DESIRED, SEEN, stopping)
    (order,) = begun[NodeName("gpu-001")].attempts
    assert (order.attempt, order.worldSize, order.nodeCount, len(order.ranks)) == (2, 2, 1, 2)
    assert begun[NodeName("gpu-002")].attempts == []


def test_a_moved_gang_is_ordered_on_its_new_node_only_once_it_starts_there() -> None:
    target = placed(("gpu-003", 0), ("gpu-003", 1))
    stops = replace(
        starting(placed(("gpu-001", 0), ("gpu-001", 1))), state=JobState.STOPPING, phase=Phase.STOP, cause=Cause.MOVED,
        promise=Promise(placement=target, made=START, deadline=START, waiting_for=(SFT.key,)),
    )  # fmt: skip
    assert orders_of(allocation(stops), DESIRED, SEEN, first())[NodeName("gpu-003")].attempts == []
    begun = orders_of(allocation(replace(starting(target), attempt=2)), DESIRED, SEEN, {})
    assert [order.leaderAddress for order in begun[NodeName("gpu-003")].attempts] == [
        SEEN.nodes[NodeName("gpu-003")].address
    ]


def test_a_task_of_an_array_is_told_its_number_and_parameters_and_no_other_job_is() -> None:
    task = Task(array=JobKey("nlp/sweep"), index=7, size=12, parameters={"seed": "1", "lr": "0.1"})
    one = replace(SFT, name="sweep.7", task=task)
    desired = world(jobs=[SFT, one])
    records = (starting(placed(("gpu-001", 0))), starting(placed(("gpu-001", 1)), one.key))
    (plain, of_array) = orders_of(allocation(*records), desired, SEEN, {})[NodeName("gpu-001")].attempts
    assert (plain.job, plain.taskIndex, plain.parameters) == ("nlp/sft", None, {})
    assert (of_array.job, of_array.taskIndex) == ("nlp/sweep.7", 7)
    assert list(of_array.parameters.items()) == [("lr", "0.1"), ("seed", "1")]
    again = read_orders(orders_bytes(NodeOrders(node="gpu-001", attempts=[of_array])))
    assert again.attempts == [of_array]
