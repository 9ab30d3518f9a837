"""What is found wrong, row by row: a healthy cluster, one thing changed, and exactly one anomaly with its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.engines.certificates import certificate_end, issue_server, make_ca
from reconciler.errors import UsageError
from reconciler.model.allocation import Avoid, Metrics
from reconciler.model.anomaly import MEANINGS, AnomalyCode, Disk, Hop, Lifetime, Misbound, NodeVitals, Writing
from reconciler.model.lifecycle import JobState, Phase
from reconciler.model.observed import AttemptState, NodeCondition
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import DAY, HOUR, MINUTE, SECOND, Bytes, CommitId, Instant, JobKey, Nanoseconds, NodeName
from reconciler.render.anomalies import anomalies_page, anomalies_tree
from reconciler.runtime.anomalies import anomalies_of
from reconciler.runtime.anomalies.gather import Captured, ask, hops_of, read_captured, signers_of
from reconciler.runtime.anomalies.situation import Health, Situation
from reconciler.runtime.status_server import LoopMetrics, StatusServer, StatusSnapshot
from tests.planner.worlds import START, allocation, job, pending, ready, running, said, saw, shape, world

NODE, OTHER = NodeName("gpu-001"), NodeName("gpu-002")
SFT, WIDE = JobKey("nlp/sft"), JobKey("nlp/wide")
DESIRED = world(jobs=[job("nlp/sft", 16), job("nlp/wide", 8)])
SFT_RUNS = running(DESIRED, "nlp/sft", {"gpu-001": 8, "gpu-002": 8})
WELL = Situation(
    desired=DESIRED,
    allocation=replace(allocation(DESIRED, SFT_RUNS, pending(DESIRED, "nlp/wide")), metrics=Metrics(idle=16, phi_whole=16)),
    observed=ready(DESIRED, SFT_RUNS),
    now=Instant(START + 10 * SECOND),
    vitals={NODE: NodeVitals(node=NODE, certificate_ends=Instant(START + 20 * DAY), disks=(Disk(path="/", free=Bytes(50 << 30), size=Bytes(100 << 30)),))},
    health=Health(asked=True, pushes={"ok": 100, "lost_race": 2}),
    writings=tuple(Writing(writer="a", at=START, generation=n) for n in (3, 2, 1)),
    lifetimes=(Lifetime(name="node CA", ends=Instant(START + 900 * DAY), spare=Nanoseconds(90 * DAY)),),
    disks=(Disk(path="/var/lib/gangops", free=Bytes(20 << 30), size=Bytes(100 << 30)),),
    hops=(Hop(node=NODE, gpu="0", peer_node=NODE, peer="1", via="P2P/CUMEM"), Hop(node=NODE, gpu="7", peer_node=OTHER, peer="0", via="NET/IB/0/GDRDMA")),
)  # fmt: skip

Change = Callable[[Situation], Situation]


def sees(node: str, **changes: object) -> Change:
    return lambda at: replace(at, observed=saw(at.observed, node, **changes))


def says(node: NodeName, **changes: object) -> Change:
    return lambda at: replace(at, vitals={**at.vitals, node: replace(NodeVitals(node=node), **changes)})  # type: ignore[arg-type]  # fields by name


def has(key: JobKey, **changes: object) -> Change:
    def changed(at: Situation) -> Situation:
        record = replace(at.allocation.jobs[key], **changes)  # type: ignore[arg-type]  # fields by name
        return replace(at, allocation=replace(at.allocation, jobs={**at.allocation.jobs, key: record}))

    return changed


def both(*changes: Change) -> Change:
    def changed(at: Situation) -> Situation:
        for change in changes:
            at = change(at)
        return at

    return changed


def with_metrics(idle: int, stranded: int) -> Change:
    numbers = Metrics(idle=idle, stranded=stranded, phi_whole=idle - stranded)
    return lambda at: replace(at, allocation=replace(at.allocation, metrics=numbers))


def foreign(at: Situation) -> Situation:
    gpus = at.observed.nodes[OTHER].gpus
    taken = tuple(replace(gpu, foreign="pid 4711 python (root)") if gpu.index in (2, 3) else gpu for gpu in gpus)
    return sees("gpu-002", gpus=taken)(at)


def starting(waited: int, phase: Phase = Phase.PREPARE) -> Change:
    since = Instant(WELL.now - waited * SECOND)
    return has(SFT, state=JobState.STARTING, phase=phase, since=since)


def receipt(node: str, state: AttemptState) -> Change:
    return lambda at: replace(at, observed=said(at.observed, node, "nlp/sft", 1, state))


def avoids(key: JobKey, node: NodeName, until: int = START + HOUR) -> Change:
    return has(key, avoid=(Avoid(node=node, until=Instant(until)),))


def wrote(*writers: str, every: int = MINUTE) -> Change:
    rows = tuple(
        Writing(writer=who, at=Instant(START - n * every), generation=100 - n) for n, who in enumerate(writers)
    )
    return lambda at: replace(at, writings=rows)


def hop(node: NodeName, peer_node: NodeName, via: str) -> Change:
    return lambda at: replace(at, hops=(*at.hops, Hop(node=node, gpu="1", peer_node=peer_node, peer="2", via=via)))


STOPPING = both(
    has(SFT, state=JobState.STOPPING, phase=Phase.STOP, deadline=START), receipt("gpu-001", AttemptState.GONE)
)
BROKEN_UP = has(WIDE, reason=reason(ReasonCode.NO_DOMAIN_FITS, level="node", need=8, largest=4))
CODE = AnomalyCode

ROWS: dict[str, tuple[Change, AnomalyCode, str, str, bool]] = {
    # what is changed -> code, subject, evidence, grave
    "a reconciler that does not answer": (
        lambda at: replace(at, health=Health(asked=True, away="http://c:1 does not answer")),
        CODE.RECONCILER_SILENT, "reconciler", "http://c:1 does not answer", True),
    "a reconciler that cannot publish": (
        lambda at: replace(at, health=Health(asked=True, ready=False, reason="PushRejected", message="a rule", remedy="Allow it.")),
        CODE.RECONCILER_STALLED, "reconciler", "PushRejected: a rule Allow it.", True),
    "a file that defines the cluster is broken": (
        lambda at: replace(at, desired=replace(at.desired, commit=CommitId("c0ffee" * 6), blocked="cluster-state/cluster.yaml")),
        CODE.STARTS_BLOCKED, "cluster-state/cluster.yaml",
        "as it is in c0ffeec0ffee, cluster-state/cluster.yaml does not count, and no job starts", True),
    "two writers by turns": (
        wrote("a", "b", "a", "b"), CODE.WRITERS_FIGHT, "reconciler",
        "the writer changed 3 times in 4 generations of the last hour: a and b", True),
    "pushes lost to a writer of the same name": (
        lambda at: replace(at, health=Health(asked=True, pushes={"ok": 6, "lost_race": 3})),
        CODE.WRITERS_FIGHT, "reconciler", "3 of 9 pushes since its start lost against another writer", True),
    "a CA that ends in two months": (
        lambda at: replace(at, lifetimes=(Lifetime(name="node CA", ends=Instant(at.now + 60 * DAY), spare=Nanoseconds(90 * DAY)),)),
        CODE.AUTHORITY_EXPIRES, "node CA", "ends at 2024-01-13T22:13:30+00:00, in 60 days", False),
    "a signing key that ended": (
        lambda at: replace(at, signers=(Lifetime(name="gangops", ends=Instant(at.now - DAY), spare=Nanoseconds(30 * DAY)),)),
        CODE.SIGNER_EXPIRES, "gangops", "ended at 2023-11-13T22:13:30+00:00, 1 day ago", True),
    "a lost node with ranks": (
        sees("gpu-001", condition=NodeCondition.LOST), CODE.NODE_LOST, "gpu-001",
        "Lost since 2023-11-14T22:13:20+00:00; it has ranks of nlp/sft", True),
    "a node that is silent and idle": (
        sees("gpu-003", condition=NodeCondition.UNREACHABLE), CODE.NODE_LOST, "gpu-003",
        "Unreachable since 2023-11-14T22:13:20+00:00; nothing runs there", False),
    "a health hook that fails": (
        sees("gpu-003", unhealthy="health: no IB"), CODE.NODE_UNHEALTHY, "gpu-003", "health: no IB", True),
    "a node that refuses orders": (
        sees("gpu-003", refused="SignerUnknown: no such key"), CODE.NODE_REFUSES, "gpu-003", "SignerUnknown: no such key", True),
    "a node that two jobs avoid": (
        both(avoids(SFT, NODE), avoids(WIDE, NODE)), CODE.NODE_FAILS_GANGS, "gpu-001",
        "2 jobs failed there lately: nlp/sft, nlp/wide", True),
    "one job avoids it and another one was refused there": (
        both(avoids(WIDE, NODE), receipt("gpu-001", AttemptState.REFUSED)), CODE.NODE_FAILS_GANGS, "gpu-001",
        "2 jobs failed there lately: nlp/sft, nlp/wide", True),
    "a clock two seconds ahead": (
        says(NODE, skew=2_340_000_000), CODE.CLOCK_SKEWED, "gpu-001", "its clock is 2.3 s ahead of the reconciler's", False),
    "a clock an hour behind": (
        says(NODE, skew=-HOUR), CODE.CLOCK_SKEWED, "gpu-001", "its clock is 3600.0 s behind the reconciler's", True),
    "a disk that is filling up": (
        says(NODE, disks=(Disk(path="/fs/logs", free=Bytes(9 << 20), size=Bytes(100 << 20)),)),
        CODE.DISK_FULL, "gpu-001", "/fs/logs has 9 of 100 MiB free, 9 %", False),
    "the reconciler's disk is full": (
        lambda at: replace(at, disks=(Disk(path="/var", free=Bytes(0), size=Bytes(100 << 20)),)),
        CODE.DISK_FULL, "reconciler", "/var has 0 of 100 MiB free, 0 %", True),
    "a certificate that was not renewed": (
        says(NODE, certificate_ends=Instant(WELL.now + 6 * DAY)), CODE.CERTIFICATE_EXPIRES, "gpu-001",
        "ends at 2023-11-20T22:13:30+00:00, in 6 days", True),
    "a stranger on two GPUs": (
        foreign, CODE.GPU_FOREIGN, "gpu-002", "GPU 2, 3 used by pid 4711 python (root)", True),
    "a gang of which one node still prepares": (
        both(starting(61), receipt("gpu-001", AttemptState.PREPARED), receipt("gpu-002", AttemptState.PREPARING)),
        CODE.GANG_NOT_STARTING, "nlp/sft", "ordered to prepare 61 s ago, of 120 s at most: gpu-002 is Preparing", True),
    "a gang that is prepared, and one node does not run it": (
        both(starting(90, Phase.RUN), receipt("gpu-002", AttemptState.PREPARED)),
        CODE.GANG_NOT_STARTING, "nlp/sft", "ordered to run 90 s ago, of 120 s at most: gpu-002 is Prepared", True),
    "a gang of which one node has not taken the order": (
        both(starting(61), receipt("gpu-001", AttemptState.PREPARED), sees("gpu-002", attempts=())),
        CODE.GANG_NOT_STARTING, "nlp/sft",
        "ordered to prepare 61 s ago, of 120 s at most: gpu-002 has not taken the order", True),
    "starts that fail in a row": (
        both(has(WIDE, failed_starts=2), lambda at: has(WIDE, avoid=(Avoid(node=NODE, until=Instant(at.now + 1)),))(at)),
        CODE.GANG_NOT_STARTING, "nlp/wide", "2 starts failed in a row; it avoids gpu-001", True),
    "a rank that outlives its kill": (
        both(STOPPING, receipt("gpu-002", AttemptState.KILL_FAILED)), CODE.GANG_NOT_STOPPING, "nlp/sft",
        "not gone: gpu-002 KillFailed", True),
    "a gang that is not gone long after its deadline": (
        both(STOPPING, lambda at: replace(at, now=Instant(START + 31 * SECOND))), CODE.GANG_NOT_STOPPING, "nlp/sft",
        "not gone: gpu-002 Running", True),
    "ranks bound elsewhere": (
        says(NODE, misbound=(Misbound(job=SFT, rank=3, pid=99, what="cpus", ordered="0-3", seen="0-127"),)),
        CODE.BINDING_DIFFERS, "nlp/sft", "rank 3 on gpu-001 (pid 99) has cpus 0-127, not 0-3", False),
    "a ring through shared memory": (
        hop(NODE, NODE, "SHM/direct/direct"), CODE.RING_LEAVES_NVLINK, "gpu-001", "GPU 1 to 2 via SHM/direct/direct", True),
    "a ring across PCIe by the topology": (
        hop(NODE, NODE, "SYS"), CODE.RING_LEAVES_NVLINK, "gpu-001", "GPU 1 to 2 via SYS", True),
    "a ring over TCP": (
        hop(NODE, OTHER, "NET/Socket/0"), CODE.RING_OVER_SOCKETS, "gpu-001", "GPU 1 to gpu-002 via NET/Socket/0", True),
    "idle GPUs in pieces and a job that needs a domain": (
        both(with_metrics(16, 8), BROKEN_UP), CODE.FRAGMENTED, "cluster",
        "Phi 50 % is over 20 %: 8 of 16 idle GPUs stranded; waiting for a whole domain: nlp/wide (8 GPUs, NoDomainFits)", True),
    "idle GPUs in pieces and nobody waits for them": (
        with_metrics(16, 8), CODE.FRAGMENTED, "cluster",
        "Phi 50 % is over 20 %: 8 of 16 idle GPUs stranded; no job waits for a whole domain now", False),
}  # fmt: skip


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    assert anomalies_of(WELL) == ()


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_thing_wrong_is_one_anomaly(row: tuple[Change, AnomalyCode, str, str, bool]) -> None:
    change, code, on, evidence, grave = row
    assert [(a.code, a.on, a.evidence, a.grave) for a in anomalies_of(change(WELL))] == [(code, on, evidence, grave)]


def test_every_code_has_a_row() -> None:
    assert {code for _, code, _, _, _ in ROWS.values()} == set(AnomalyCode) == set(MEANINGS)


@pytest.mark.parametrize(
    "quiet",
    [
        wrote("b", "b", "a", "a", "b"),  # a takeover and the way back
        wrote("a", "b", "a", "b", every=2 * HOUR),  # long ago
        lambda at: replace(at, health=Health(asked=True, pushes={"ok": 100, "lost_race": 9})),
        avoids(SFT, NODE),  # one job alone may be its own fault
        both(avoids(SFT, NODE, START), avoids(WIDE, NODE, START)),  # over
        says(NODE, skew=1_999_999_999),
        starting(60),
        both(STOPPING, receipt("gpu-002", AttemptState.STOPPING)),  # its kill is not over
        hop(NODE, NODE, "NV18"),
        lambda at: replace(at, desired=world(of=shape(nvlink=[1 << n for n in range(8)])), hops=(Hop(node=NODE, gpu="0", peer_node=NODE, peer="1", via="SHM/direct"),)),
        with_metrics(10, 2),  # at the threshold
        lambda at: replace(at, desired=replace(at.desired, blocked="request freeze-1")),  # somebody means it
    ],
)  # fmt: skip
def test_what_is_usual_is_not_told(quiet: Change) -> None:
    assert anomalies_of(quiet(WELL)) == ()


def test_grave_ones_come_first_and_many_are_counted() -> None:
    wrong = tuple(Misbound(job=SFT, rank=n, pid=n, what="memory", ordered="0", seen="default") for n in range(6))
    found = anomalies_of(both(says(NODE, misbound=wrong), sees("gpu-003", unhealthy="no"))(WELL))
    assert [a.code for a in found] == [CODE.NODE_UNHEALTHY, CODE.BINDING_DIFFERS]
    assert found[1].evidence.endswith("rank 3 on gpu-001 (pid 3) has memory default, not 0; and 2 more")


def test_a_page_names_evidence_cause_and_a_command_to_copy() -> None:
    page = anomalies_page(anomalies_of(foreign(WELL)), ["generation 7"], None)
    assert page.splitlines() == [
        "! GpuForeign  gpu-002",
        "    seen  GPU 2, 3 used by pid 4711 python (root)",
        "    why   a process that nobody placed uses it; such a GPU is given to nobody",
        "    mend  ssh gpu-002 nvidia-smi --query-compute-apps=pid,name --format=csv",
        "",
        "1 anomaly, 1 grave; looked at generation 7",
    ]
    assert anomalies_page((), ["generation 7"], None) == "no anomalies; looked at generation 7"
    (row,) = anomalies_tree(anomalies_of(foreign(WELL)))
    assert (row["code"], row["on"], row["grave"]) == ("GpuForeign", "gpu-002", True)
    assert str(row["mend"]).startswith("ssh gpu-002 ")


def test_every_command_names_only_verbs_that_exist() -> None:
    from reconciler.cli.root import VERBS

    named = [verb for meaning in MEANINGS.values() for verb in re.findall(r"gangops ([a-z]+)", meaning.mend)]
    assert named
    assert set(named) <= set(VERBS)


# --- looking ---


def test_a_running_reconciler_is_asked_for_its_health_and_its_nodes() -> None:
    vitals = NodeVitals(
        node=NODE, skew=-5, certificate_ends=START,
        misbound=(Misbound(job=SFT, rank=1, pid=2, what="cpus", ordered="0", seen="1"),),
        disks=(Disk(path="/", free=Bytes(1), size=Bytes(2)),),
    )  # fmt: skip
    well = StatusSnapshot(
        ready=True, stalled=True, reason="PushRejected", since=None, generation=3, message="m", remedy="r",
        vitals={NODE: vitals},
    )  # fmt: skip
    metrics = LoopMetrics()
    metrics.pushed("ok")
    metrics.pushed("lost_race")
    server = StatusServer(lambda: well, metrics)
    server.start()
    host, port = server.address
    try:
        found, nodes = ask(f"{host}:{port}")
    finally:
        server.stop()
    assert found == Health(
        asked=True, ready=False, reason="PushRejected", message="m", remedy="r", pushes={"lost_race": 1, "ok": 1}
    )
    assert nodes == {NODE: vitals}
    silent, none = ask(f"http://{host}:{port}/")
    assert (silent.asked, bool(silent.away), none) == (True, True, {})


def test_the_last_day_of_a_key_is_read_from_allowed_signers() -> None:
    text = (
        b'# gangops valid-before="20200101" ssh-ed25519 AAAA\n'
        b'gangops namespaces="git",valid-before="20260401" ssh-ed25519 AAAA\n'
        b'next valid-after="20260101",valid-before="202604011230Z" ssh-ed25519 BBBB\n'
        b'for-ever namespaces="git" ssh-ed25519 CCCC\n'
        b'odd valid-before="20261301" ssh-ed25519 CCCC\n'
    )
    found = [(one.name, one.ends // SECOND) for one in signers_of(text)]
    assert found == [("gangops", 1_775_001_600), ("next", 1_775_046_600)]
    assert signers_of(None) == ()


def test_a_certificate_tells_its_end(tmp_path: Path) -> None:
    make_ca(tmp_path, "lab", START)
    made = issue_server(tmp_path, ["localhost"], tmp_path / "tls", START)
    assert certificate_end(tmp_path / "ca.crt") == START + 3650 * DAY
    assert certificate_end(made.certificate) == START + 30 * DAY
    assert certificate_end(tmp_path / "none") is None


TOPO = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\t X \tNV4\tSYS\tSYS\nGPU1\tNV4\t X \tSYS\tSYS\nGPU2\tSYS\tSYS\t X \tNV4\nGPU3\tSYS\tSYS\tNV4\t X \n"


def test_a_topology_shows_where_a_gangs_ring_leaves_nvlink() -> None:
    desired = world(jobs=[job("nlp/sft", 4)], gpus=4)
    held = allocation(desired, running(desired, "nlp/sft", {"gpu-001": (0, 1, 2, 3)}))
    found = hops_of(Captured(topologies={NODE: TOPO, OTHER: TOPO}), held)
    assert [(h.node, h.gpu, h.peer, h.via) for h in found] == [
        (NODE, "0", "1", "NV4"), (NODE, "1", "2", "SYS"), (NODE, "2", "3", "NV4"), (NODE, "3", "0", "SYS"),
    ]  # fmt: skip


@pytest.mark.parametrize(("given", "code"), [("gpu-001", "BadOption"), ("gpu-001=/nowhere/x", "FileUnreadable")])
def test_what_is_brought_along_has_to_be_there(given: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_captured([given], [])
    assert caught.value.code == code


def test_what_is_no_topology_is_said_to_be_none() -> None:
    with pytest.raises(UsageError) as caught:
        hops_of(Captured(topologies={NODE: "hello"}), WELL.allocation)
    assert caught.value.code == "NotATopology"
