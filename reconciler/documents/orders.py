"""Each node's orders file: derived from the job records, and complete, so that an agent needs nothing else.

An attempt's order is written once, when the gang is placed; afterwards only phase, deadline and holders change.
So a job whose file was edited or removed meanwhile still stops the way it was started.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from types import MappingProxyType

from reconciler.documents.canonical import to_json
from reconciler.documents.holders import holders_of, still_holding
from reconciler.documents.record import NO_FILES, Files, orders_path, racks_of
from reconciler.errors import StoreError
from reconciler.model.allocation import Allocation, JobRecord, RankPlace
from reconciler.model.desired import Desired
from reconciler.model.inventory import Inventory, NodeShape
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Observed
from reconciler.model.units import SECOND, Instant, Nanoseconds, NodeName, seconds
from reconciler.planner.people import account_of
from reconciler.wire import AttemptOrder, BadMessage, CheckpointOrder, NodeOrders, RankOrder, RunOrder, decode_orders

Orders = Mapping[NodeName, NodeOrders]
NO_ORDERS: Orders = MappingProxyType({})


def orders_of(
    allocation: Allocation, desired: Desired, observed: Observed, previous: Orders
) -> dict[NodeName, NodeOrders]:
    """Orders by node: one entry for each attempt that holds GPUs there, sorted by job.

    Every declared node has a file, so that an idle agent can be shown that it has nothing to do. A node that left
    the inventory keeps its file while something on it is still held.
    """
    attempts: dict[NodeName, list[AttemptOrder]] = {node.name: [] for node in desired.inventory.nodes}
    shapes = {node.name: node.shape for node in desired.inventory.nodes}
    for record in allocation.jobs.values():
        if record.placement is None or not record.state.holds_gpus or record.phase is None:
            continue
        by_node: dict[NodeName, list[RankPlace]] = {}
        for place in record.placement.ranks:
            by_node.setdefault(place.node, []).append(place)
        holders = holders_of(record.job, desired, observed)
        for node in by_node:
            order = _kept(record, previous.get(node)) or _fresh(record, node, by_node, desired, observed, shapes)
            if order is not None:
                attempts.setdefault(node, []).append(_current(order, record, desired, holders))
    return {node: NodeOrders(node=node, attempts=found) for node, found in sorted(attempts.items())}


def orders_bytes(orders: NodeOrders) -> bytes:
    """The node's file: canonical JSON. Holders and idle seconds only where there are any: older records have none."""
    tree = asdict(orders)
    for attempt in tree["attempts"]:
        if not attempt["holders"]:
            del attempt["holders"]
        if not attempt["run"]["idleSeconds"]:
            del attempt["run"]["idleSeconds"]
    return to_json(tree)


def orders_files(
    orders: Orders, inventory: Inventory, before: Orders = NO_ORDERS, files: Files = NO_FILES
) -> dict[str, bytes]:
    """All files under `allocation/nodes/`. Orders equal to those `before` keep their bytes from `files`."""
    racks = racks_of(inventory)
    found: dict[str, bytes] = {}
    for node, order in orders.items():
        path = orders_path(node, racks)
        kept = files.get(path) if before.get(node) == order else None
        found[path] = kept or orders_bytes(order)
    return found


def read_orders(content: bytes) -> NodeOrders:
    """The orders in a node's file. Raises StoreError (code BadRecord)."""
    try:
        return decode_orders(content)
    except BadMessage as err:
        raise StoreError(f"a node's orders in the state branch cannot be read: {err}", code="BadRecord") from err


def _kept(record: JobRecord, before: NodeOrders | None) -> AttemptOrder | None:
    orders = before.attempts if before else []
    return next((o for o in orders if o.job == record.job and o.attempt == record.attempt), None)


def _current(order: AttemptOrder, record: JobRecord, desired: Desired, held: list[str] | None) -> AttemptOrder:
    """The order in its present phase. The deadline is the stop's own, else the end by time limit.

    Without a file there is no time limit to read: the last known end stays.
    """
    job = desired.jobs.get(record.job)
    deadline: int | None = record.deadline
    if deadline is None and record.started is not None:
        deadline = _end(record.started, job.time_limit) if job else order.deadline
    phase = str(record.phase)
    holders = held if held is not None else still_holding(order.holders, desired.keys)
    if (order.phase, order.deadline, order.holders) == (phase, deadline, holders):
        return order
    return replace(order, phase=phase, deadline=deadline, holders=holders)


def _end(started: Instant, limit: Nanoseconds | None) -> int | None:
    return None if limit is None else started + limit


def _fresh(
    record: JobRecord,
    node: NodeName,
    by_node: Mapping[NodeName, list[RankPlace]],
    desired: Desired,
    observed: Observed,
    shapes: Mapping[NodeName, NodeShape],
) -> AttemptOrder | None:
    job, shape = desired.jobs.get(record.job), shapes.get(node)
    if job is None or shape is None or record.placement is None or record.state is not JobState.STARTING:
        return None
    nodes, places = list(by_node), by_node[node]  # in rank order: the first node leads
    leader, seen = observed.nodes.get(nodes[0]), observed.nodes.get(node)
    uuids = {gpu.index: gpu.uuid for gpu in seen.gpus} if seen else {}
    lit = {nic.name for nic in seen.nics if nic.up} if seen and seen.nics else None
    return AttemptOrder(
        job=record.job,
        attempt=record.attempt,
        phase=str(record.phase),
        digest=record.digest,
        worldSize=len(record.placement.ranks),
        nodeRank=nodes.index(node),
        nodeCount=len(nodes),
        leaderAddress=leader.address if leader else "",
        port=record.ports[0] if record.ports else 0,
        ports=list(record.ports[1:]),
        resume=record.resumes,
        deadline=None,
        killSeconds=seconds(desired.scheduling.kill_after),
        fence=str(job.restart.fence),
        leaseSeconds=seconds(job.restart.lease + SECOND - 1),
        cpusPerGpu=job.cpus_per_gpu,
        memoryBytes=job.memory_per_gpu * len(places),
        run=_run_order(job, account_of(desired, observed, job)),
        checkpoint=_checkpoint_order(job),
        ranks=[_rank_order(place, uuids, shape, lit) for place in places],
        topoFile=shape.topo_file,
        taskIndex=job.task.index if job.task is not None else None,
        parameters=dict(sorted(job.task.parameters.items())) if job.task is not None else {},
    )


def _run_order(job: Job, account: str) -> RunOrder:
    run = job.run
    return RunOrder(
        runtime=run.runtime,
        launch=str(run.launch),
        command=list(run.command),
        script=run.script,
        session=run.session,
        image=run.image,
        workingDir=run.working_dir,
        env={name: run.env[name] for name in sorted(run.env)},
        mounts=[{"source": m.source, "target": m.target, "readOnly": m.read_only} for m in run.mounts],
        secretFiles=list(run.secret_files),
        user=account,
        group=run.group,
        heartbeatFile=run.heartbeat_file,
        idleSeconds=0 if run.idle_timeout is None else max(1, seconds(run.idle_timeout)),
    )


def _checkpoint_order(job: Job) -> CheckpointOrder | None:
    checkpoint = job.checkpoint
    if checkpoint is None:
        return None
    marker = checkpoint.marker
    return CheckpointOrder(
        dir=checkpoint.directory,
        marker=marker if marker.startswith("/") else f"{checkpoint.directory}/{marker}",
        signal=checkpoint.signal,
        to=checkpoint.signal_to,
        graceSeconds=seconds(checkpoint.grace),
    )


def _rank_order(place: RankPlace, uuids: Mapping[int, str], shape: NodeShape, lit: Collection[str] | None) -> RankOrder:
    """The rank as its agent needs it. `lit`: the NICs that are up; None when the node did not say.

    When none near its GPU is up, all others that serve GPUs are as near as any.
    """
    slot = next((slot for slot in shape.gpus if slot.index == place.gpu), None)
    near = [nic for nic in slot.near if lit is None or nic in lit] if slot else []
    if slot and slot.near and lit is not None and not near:
        near = [nic for nic in dict.fromkeys(n for s in shape.gpus for n in s.near) if nic in lit]
    cpus = next((numa.cpus for numa in shape.numa if numa.id == place.numa), "")
    return RankOrder(
        rank=place.rank,
        localRank=place.local_rank,
        gpu=place.gpu,
        uuid=uuids.get(place.gpu, ""),
        numa=place.numa,
        cpus=cpus,
        nic=place.nic,
        rail=place.rail,
        near=near,
    )
