"""Small worlds for tests of engines: desired states, orders and committed generations, each in one line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict

from reconciler.errors import StoreError
from reconciler.model.desired import AgentRules, Desired, RepositoryRules
from reconciler.model.inventory import GpuSlot, Inventory, Level, Node, NodeShape, NumaNode
from reconciler.model.queue import QuotaTree, Scheduling
from reconciler.model.units import (
    SECOND,
    BitsPerSecond,
    Bytes,
    CommitId,
    DomainName,
    GpuType,
    LevelName,
    Nanoseconds,
    NodeName,
)
from reconciler.ports import Committed
from reconciler.wire import AttemptOrder, CheckpointOrder, NodeOrders, Proof, RankOrder, RunOrder

RULES = AgentRules(
    unreachable_after=Nanoseconds(30 * SECOND), lost_after=Nanoseconds(300 * SECOND), mass_loss_ppm=500_000
)


def desired_of(names: list[str], *, rules: AgentRules = RULES, dead: tuple[str, ...] = ()) -> Desired:
    """A cluster of 8-GPU nodes in one rack, and nothing else."""
    shape = NodeShape(
        profile="small",
        gpu_type=GpuType("h100"),
        gpu_memory=Bytes(80 * 2**30),
        gpus=tuple(GpuSlot(index=i, numa=i // 4, nic=f"mlx5_{i}", rail=i) for i in range(8)),
        nvlink=(255,),
        numa=tuple(NumaNode(id=i, cpus=f"{i * 8}-{i * 8 + 7}", cpu_count=8, memory=Bytes(2**30)) for i in (0, 1)),
    )
    levels = tuple(
        Level(name=LevelName(name), latency=Nanoseconds(1000), bandwidth=BitsPerSecond(10**9))
        for name in ("node", "rack", "cluster")
    )
    nodes = tuple(
        Node(name=NodeName(n), shape=shape, path=(DomainName("r01"),), labels={}, dead=n in dead) for n in sorted(names)
    )
    return Desired(
        commit=CommitId("d" * 40),
        cluster="test",
        scheduling=Scheduling(),
        agents=rules,
        repository=RepositoryRules(),
        inventory=Inventory(levels=levels, nodes=nodes),
        quotas=QuotaTree(),
        classes={},
        jobs={},
    )


def attempt_order(
    job: str = "nlp/sft",
    *,
    phase: str = "prepare",
    attempt: int = 1,
    gpus: tuple[int, ...] = (0, 1),
    lease: int | None = None,
) -> AttemptOrder:
    """One attempt on a node; `lease` in seconds makes it one that lives by its lease."""
    return AttemptOrder(
        job=job,
        attempt=attempt,
        phase=phase,
        digest="0" * 64,
        worldSize=len(gpus),
        nodeRank=0,
        nodeCount=1,
        leaderAddress="127.0.1.1",
        port=20_000,
        ports=[],
        resume=attempt > 1,
        deadline=None,
        killSeconds=30,
        fence="confirm" if lease is None else "lease",
        leaseSeconds=lease or 60,
        cpusPerGpu=1,
        memoryBytes=2**20,
        run=RunOrder(
            runtime="process",
            launch="perGpu",
            command=["true"],
            script="",
            session=False,
            image="",
            workingDir="",
            env={},
            mounts=[],
            secretFiles=[],
            user="self",
            group="",
            heartbeatFile="",
        ),
        checkpoint=CheckpointOrder(dir="/ckpt", marker="/ckpt/latest", signal="SIGUSR1", to="leader", graceSeconds=60),
        ranks=[
            RankOrder(rank=i, localRank=i, gpu=gpu, uuid="", numa=0, cpus="", nic="", rail=gpu)
            for i, gpu in enumerate(gpus)
        ],
    )


def committed_of(
    generation: int,
    orders: Mapping[str, list[AttemptOrder]],
    *,
    epoch: int = 1,
    unavailable: bool = False,
    salt: str = "",
) -> Committed:
    """A pushed generation; `unavailable` makes its proofs unreadable, `salt` another commit of the same number."""
    commit = CommitId(hashlib.sha1(f"{epoch}.{generation}{salt}".encode()).hexdigest())
    files = {
        NodeName(node): json.dumps(asdict(NodeOrders(node=node, attempts=attempts)), sort_keys=True).encode()
        for node, attempts in orders.items()
    }

    def proof_of(node: NodeName) -> Proof:
        if unavailable:
            raise StoreError("the commit is not at hand", code="SourceMissing")
        return Proof(
            commitId=commit,
            commit=json.dumps({"epoch": epoch}).encode(),
            trees=[],
            path=f"r01/{node}.json",
            file=files[node],
        )

    return Committed(commit=commit, generation=generation, epoch=epoch, orders=files, proof_of=proof_of)
