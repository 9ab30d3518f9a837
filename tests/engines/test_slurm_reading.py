"""What three generations of Slurm print comes out as the same values; what follows for a gang is a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.engines.slurm.commands import Ended, Reader
from reconciler.engines.slurm.facts import boot_id, foreign_gpus, speaks, unhealthy_of
from reconciler.engines.slurm.gres import asked_of, held_of, request_of, slots_of
from reconciler.engines.slurm.judge import Case, Do, Receipt, Submitted, judge
from reconciler.engines.slurm.naming import Tag, find_tag
from reconciler.engines.slurm.reading import jobs_of, minutes_of, nodes_of, partitions_of, version_of
from reconciler.engines.slurm.seen import GpuSlots, SlurmJob, SlurmNode
from reconciler.engines.slurm.submit import end_minutes
from reconciler.errors import EngineUnavailable
from reconciler.model.desired import SlurmRules
from reconciler.model.observed import AttemptState
from reconciler.model.units import SECOND, Instant, JobKey, NodeName
from reconciler.wire import BadMessage, CheckpointOrder

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "slurm" / "samples"
NODE = NodeName("n1")


def sample(version: str, name: str) -> str:
    path = SAMPLES / version / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"no {path}")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("version", "listing", "busy"),
    [
        ("22.05", "sinfojson", 0b11),
        ("24.11", "scontrolshownodejson", 0b110011),
        ("26.05", "scontrolshownodejson", 0b110011),
    ],
)
def test_nodes_and_jobs_of_every_version_come_out_alike(version: str, listing: str, busy: int) -> None:
    nodes = nodes_of(sample(version, listing))
    assert [*nodes] == ["node001", "node002", "node003", "node004"]
    first = nodes[NodeName("node001")]
    assert (first.gpus, first.address, first.cpus, first.memory, first.sockets) == (
        GpuSlots(count=8, kind="h100"), "127.0.0.1", 64, 1_024_000, 2,
    )  # fmt: skip
    assert (first.states, first.features) == (frozenset({"MIXED"}), ("rack01", "spine1"))
    assert first.partitions == ("main", "low", "high")
    assert first.boot_time > 1_796_000_000
    assert first.version.startswith(version)
    jobs = jobs_of(sample(version, "squeuejson"))
    waiting = jobs[0]
    assert (waiting.waits, waiting.holds, waiting.comment) == (True, False, '{"uid":"u1","sha":"deadbeef"}')
    assert (waiting.required, waiting.node_count, waiting.limit) == (("node002", "node003"), 2, 60)
    assert asked_of(waiting.per_node) == 8
    running = [job for job in jobs if job.holds]
    assert running
    assert all(job.state == "RUNNING" and job.nodes == ("node001",) for job in running)
    assert sum(job.gpus[NodeName("node001")] for job in running) == busy
    assert {job.user for job in jobs} == {"root"}


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("gpu:h100:8(S:0-1)", GpuSlots(count=8, kind="h100")),
        ("gpu:8", GpuSlots(count=8)),
        ("gpu:g0:1(S:0),gpu:g1:1(S:0),shard:16", GpuSlots(count=2, slots=("g0", "g1"))),
        ("gpu:a100:4(S:0),gpu:a30:2(S:1)", GpuSlots(count=6)),
        ("gpu:h100:4(S:0),gpu:h100:4(S:1)", GpuSlots(count=8, kind="h100")),
        ("gpu:a100:1", GpuSlots(count=1, kind="a100")),
        ("(null)", GpuSlots(count=0)),
        ("bandwidth:lustre:no_consume:4G", GpuSlots(count=0)),
    ],
)
def test_the_gpus_of_a_node(text: str, slots: GpuSlots) -> None:
    assert slots_of(text) == slots


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("gpu:h100:2(IDX:0-1)", (0b11, 0)),
        ("gpu:h100:4(IDX:0-1,4-5)", (0b110011, 0)),
        ("gpu:g2:1(IDX:2),gpu:g5:1(IDX:5)", (0b100100, 0)),
        ("gpu:2", (0, 2)),
        ("gpu:h100:0(IDX:N/A)", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_the_gpus_a_job_holds(text: str, held: tuple[int, int]) -> None:
    assert held_of(text) == held


def test_gpus_are_asked_for_by_slot_where_slots_have_types() -> None:
    slots = slots_of(",".join(f"gpu:g{i}:1" for i in range(8)))
    assert request_of(slots, 0b100100, pinned=True) == "gpu:g2:1,gpu:g5:1"
    assert request_of(slots, 0b100100, pinned=False) == "gpu:2"
    assert request_of(GpuSlots(count=8, kind="h100"), 0b11, pinned=True) == "gpu:h100:2"


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("UNLIMITED", None), ("1-00:00:00", 1440), ("02:30:00", 150), ("30:00", 30), ("45", 45), ("nonsense", None)],
)
def test_time_limits_in_minutes(text: str, minutes: int | None) -> None:
    assert minutes_of(text) == minutes


def test_partitions_are_read_from_text() -> None:
    text = (
        "PartitionName=main AllowGroups=ALL Default=YES MaxTime=UNLIMITED Nodes=node[001-002] PriorityTier=10 State=UP\n"
        "PartitionName=low AllowGroups=ALL Default=NO MaxTime=7-00:00:00 Nodes=(null) PriorityTier=1 State=DOWN\n"
    )
    main, low = partitions_of(text)
    assert (main.name, main.default, main.up, main.max_minutes, main.tier) == ("main", True, True, None, 10)
    assert main.nodes == ("node001", "node002")
    assert (low.default, low.up, low.max_minutes, low.nodes) == (False, False, 10_080, ())


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: x", "[]", '{"jobs": 3}', '{"jobs": [1]}', "[" * 9999])
def test_what_is_no_list_is_no_sight_of_slurm(text: str) -> None:
    with pytest.raises(BadMessage):
        jobs_of(text)
    answers = {"sinfo": "slurm 22.05.8"}
    reader = Reader(lambda argv, **_: Ended(status=0, out=answers.pop(argv[0], text), err=""))
    with pytest.raises(EngineUnavailable) as caught:
        reader.look()
    assert caught.value.code == "SlurmUnreadable"


def test_odd_fields_are_unknown_and_no_failure() -> None:
    [job] = jobs_of('{"jobs":[{"job_id":7,"job_state":["RUNNING"],"nodes":"n[","gres_detail":3,"exit_code":"x"}]}')
    assert (job.id, job.nodes, job.gpus, job.exit_code, job.limit) == (7, (), {}, None, None)


@pytest.mark.parametrize(("text", "version"), [("slurm 22.05.8", (22, 5)), ("slurm-wlm 26.05.5-2", (26, 5))])
def test_the_version_decides_how_nodes_are_listed(text: str, version: tuple[int, int]) -> None:
    assert version_of(text) == version


# --- whose a job is --------------------------------------------------------------------------------------------------


def tag(**changes: object) -> Tag:
    said: dict[str, object] = {"cluster": "c1", "job": JobKey("nlp/sft"), "attempt": 2, "digest": "ab" * 32}
    return Tag(**{**said, "epoch": 1, "generation": 9, **changes})  # type: ignore[arg-type]  # the fields of a tag


def test_a_tag_survives_the_comment() -> None:
    asked = tag().asked_at(Instant(5), 3)
    assert find_tag(asked.name, asked.comment(), "c1") == asked
    assert " " not in asked.comment()


@pytest.mark.parametrize(
    ("name", "comment", "cluster"),
    [
        (tag().name, tag().comment(), "c2"),
        ("gangops-else", tag().comment(), "c1"),
        (tag().name, tag(attempt=3).comment(), "c1"),
        (tag().name, "{", "c1"),
        (tag().name, "{}", "c1"),
        ("sleep", "", "c1"),
    ],
    ids=["another cluster's", "another name", "another attempt", "broken", "empty", "somebody's"],
)
def test_only_a_comment_that_belongs_to_the_name_makes_a_job_ours(name: str, comment: str, cluster: str) -> None:
    assert find_tag(name, comment, cluster) is None


# --- nodes -----------------------------------------------------------------------------------------------------------


def node(**changes: object) -> SlurmNode:
    said: dict[str, object] = {"name": NODE, "address": "10.0.0.1", "states": frozenset({"IDLE"}), "boot_time": 1000}
    return SlurmNode(**{**said, "gpus": GpuSlots(count=8, kind="h100"), **changes})  # type: ignore[arg-type]  # its fields


@pytest.mark.parametrize(
    ("states", "spoken", "why"),
    [
        ({"IDLE"}, True, ""),
        ({"MIXED", "DRAIN"}, True, "Slurm: drained: fan"),
        ({"DOWN"}, True, "Slurm: down: fan"),
        ({"DOWN", "NOT_RESPONDING"}, False, "Slurm: down: fan"),
        ({"IDLE", "NOT_RESPONDING"}, False, ""),
        ({"IDLE", "POWERED_DOWN"}, False, ""),
        ({"IDLE", "RESERVED"}, True, "Slurm: reserved: fan"),
    ],
)
def test_what_a_nodes_states_mean(states: set[str], spoken: bool, why: str) -> None:
    seen = node(states=frozenset(states), reason="fan" if why else "")
    assert (speaks(seen), unhealthy_of(seen, SlurmRules())) == (spoken, why)


def test_a_node_outside_the_partition_takes_nothing() -> None:
    seen = node(partitions=("main",))
    assert unhealthy_of(seen, SlurmRules(partition="gangs")) == "Slurm: not in partition gangs"


def test_a_boot_time_that_wanders_is_the_same_boot() -> None:
    assert boot_id(node(boot_time=1000), "") == "slurm-1000"
    assert boot_id(node(boot_time=1003), "slurm-1000") == "slurm-1000"
    assert boot_id(node(boot_time=0), "slurm-1000") == "slurm-1000"
    assert boot_id(node(boot_time=1100), "slurm-1000") == "slurm-1100"


def theirs(number: int, **changes: object) -> SlurmJob:
    said: dict[str, object] = {"id": number, "name": "x", "state": "RUNNING", "user": "eve", "nodes": (NODE,)}
    return SlurmJob(**{**said, **changes})  # type: ignore[arg-type]  # the fields of a job


@pytest.mark.parametrize(
    ("job", "ours", "found"),
    [
        (theirs(1, gpus={NODE: 0b110}), 0, {1, 2}),
        (theirs(1, gpus={NODE: 0b110}), 0b10, {0, 2}),
        (theirs(1, counts={NODE: 2}), 0b1, {1, 2}),
        (theirs(1, whole_nodes=True), 0b1111, {4, 5, 6, 7}),
        (theirs(1, nodes=(NodeName("n2"),), gpus={NodeName("n2"): 255}), 0, set()),
    ],
    ids=["by index", "never one that we hold", "by number", "the whole node", "elsewhere"],
)
def test_gpus_of_others(job: SlurmJob, ours: int, found: set[int]) -> None:
    assert foreign_gpus(node(), [job], ours) == dict.fromkeys(found, "Slurm job 1 (x) of eve")


def test_whoever_has_the_last_cpu_has_the_gpus_that_are_left() -> None:
    assert foreign_gpus(node(cpus=64, cpus_used=64), [theirs(1)], 0b1) == dict.fromkeys(
        range(1, 8), "Slurm job 1 (x) of eve"
    )
    assert foreign_gpus(node(cpus=64, cpus_used=63), [theirs(1)], 0b1) == {}


# --- what follows ----------------------------------------------------------------------------------------------------


def sub(*states: str, number: int = 7, completing: bool = False, asked: int = 0, **changes: object) -> Submitted:
    jobs = tuple(theirs(number + i, state=state, completing=completing, **changes) for i, state in enumerate(states))
    return Submitted(tag=tag(asked=asked, marker=50), jobs=jobs)


CHECKPOINT = CheckpointOrder(dir="/c", marker="/c/m", signal="SIGUSR1", to="leader", graceSeconds=10)
S = AttemptState


@pytest.mark.parametrize(
    ("case", "state", "do", "code"),
    [
        (Case(phase="prepare"), S.PREPARED, Do.NOTHING, None),
        (Case(phase="prepare", busy=True), S.PREPARING, Do.NOTHING, None),
        (Case(phase="prepare", refusal="no"), S.REFUSED, Do.NOTHING, None),
        (Case(phase="prepare", submitted=(sub("RUNNING"),)), S.RUNNING, Do.NOTHING, None),
        (Case(phase="run"), S.PREPARED, Do.SUBMIT, None),
        (Case(phase="run", busy=True), S.PREPARED, Do.NOTHING, None),
        (Case(phase="run", receipt=Receipt(begun=True)), S.RUNNING, Do.SUBMIT, None),
        (Case(phase="run", receipt=Receipt(begun=True, code=0)), S.EXITED, Do.NOTHING, 0),
        (Case(phase="run", submitted=(sub("PENDING"),)), S.PREPARED, Do.NOTHING, None),
        (Case(phase="run", submitted=(sub("RUNNING", "PENDING"),)), S.PREPARED, Do.NOTHING, None),
        (Case(phase="run", submitted=(sub("RUNNING", "RUNNING"),)), S.RUNNING, Do.NOTHING, None),
        (Case(phase="run", submitted=(sub("RUNNING"),), up=False), S.PREPARED, Do.NOTHING, None),
        (Case(phase="run", submitted=(sub("PENDING", restarts=1),)), S.RUNNING, Do.CANCEL, None),
        (Case(phase="run", submitted=(sub("COMPLETED"),)), S.EXITED, Do.NOTHING, 0),
        (Case(phase="run", submitted=(sub("FAILED", exit_code=9),)), S.EXITED, Do.NOTHING, 9),
        (Case(phase="run", submitted=(sub("CANCELLED", signal=15),)), S.EXITED, Do.NOTHING, 143),
        (Case(phase="run", submitted=(sub("NODE_FAIL", exit_code=0),)), S.EXITED, Do.NOTHING, 1),
        (Case(phase="run", submitted=(sub("TIMEOUT"),)), S.GONE, Do.NOTHING, None),
        (Case(phase="run", submitted=(sub("COMPLETED", completing=True),)), S.RUNNING, Do.NOTHING, None),
        (Case(phase="run", submitted=(sub("CANCELLED"), sub("COMPLETED", number=9))), S.EXITED, Do.NOTHING, 0),
        (Case(phase="run", submitted=(sub("CANCELLED", nodes=()),)), S.PREPARED, Do.SUBMIT, None),
        (Case(phase="run", submitted=(sub("CANCELLED", nodes=(), restarts=1),)), S.EXITED, Do.NOTHING, 1),
        (Case(phase="run", submitted=(sub("NODE_FAIL"), sub("CANCELLED", number=9, nodes=()))), S.EXITED, Do.NOTHING, 1),
        (Case(phase="stop"), S.GONE, Do.NOTHING, None),
        (Case(phase="stop", submitted=(sub("PENDING"),)), S.STOPPING, Do.CANCEL, None),
        (Case(phase="stop", submitted=(sub("RUNNING"),)), S.STOPPING, Do.CANCEL, None),
        (Case(phase="stop", submitted=(sub("CANCELLED", completing=True),)), S.STOPPING, Do.NOTHING, None),
        (Case(phase="stop", submitted=(sub("CANCELLED", signal=15),)), S.GONE, Do.NOTHING, 143),
        (Case(phase="", submitted=(sub("RUNNING"),)), S.STOPPING, Do.CANCEL, None),
        (Case(phase="checkpoint", submitted=(sub("RUNNING"),), checkpoint=CHECKPOINT), S.STOPPING, Do.ASK, None),
        (Case(phase="checkpoint", submitted=(sub("RUNNING"),)), S.STOPPING, Do.CANCEL, None),
        (Case(phase="checkpoint", submitted=(sub("PENDING"),), checkpoint=CHECKPOINT), S.STOPPING, Do.CANCEL, None),
        (
            Case(phase="checkpoint", submitted=(sub("RUNNING", asked=100),), checkpoint=CHECKPOINT, marker=50, now=Instant(100)),
            S.STOPPING, Do.NOTHING, None,
        ),
        (
            Case(phase="checkpoint", submitted=(sub("RUNNING", asked=100),), checkpoint=CHECKPOINT, marker=51, now=Instant(100)),
            S.STOPPING, Do.CANCEL, None,
        ),
        (
            Case(phase="checkpoint", submitted=(sub("RUNNING", asked=100),), checkpoint=CHECKPOINT, now=Instant(100 + 10 * SECOND)),
            S.STOPPING, Do.CANCEL, None,
        ),
    ],
)  # fmt: skip
def test_what_follows_for_a_gang(case: Case, state: AttemptState, do: Do, code: int | None) -> None:
    verdict = judge(case)
    assert (verdict.state, verdict.do, verdict.code) == (state, do, code)


def test_of_two_submissions_the_one_that_runs_stays() -> None:
    waits, runs = sub("PENDING", number=3), sub("RUNNING", number=8)
    verdict = judge(Case(phase="run", submitted=(waits, runs)))
    assert (verdict.state, verdict.target, verdict.extra) == (S.RUNNING, runs, (waits,))


def test_the_limit_slurm_is_told_is_never_before_the_deadline() -> None:
    assert end_minutes(Instant(700 * SECOND), 100, 30) == 11
    assert end_minutes(Instant(660 * SECOND), 90, 30) == 10
    assert end_minutes(Instant(50 * SECOND), 100, 30) == 1
