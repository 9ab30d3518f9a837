"""A Slurm cluster as documents, from captured output; and what GangOps would do with one, without touching it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from reconciler.documents.loader import load
from reconciler.errors import InvalidInput, UsageError
from reconciler.imports.slurm.rules import rules_of
from reconciler.imports.slurm.tables import duration_of, gpus_in, kind_of, name_of, rows_of
from reconciler.model.units import SECOND, Instant
from reconciler.render.shadow import shadow_text, shadow_tree
from reconciler.runtime.seeding import seeded_usage
from reconciler.runtime.slurm.bring import USAGE_FILE, Brought, Wishes, brought, write
from reconciler.runtime.slurm.shadow import shadow
from reconciler.runtime.slurm.sources import captured
from tests.engines.builders import desired_of

NOW = 1_796_000_000
ACCOUNTS = """\
Account|User|ParentName|Share|Partition|GrpTRES|GrpTRESMins|MaxTRES|MaxWall|MaxSubmit
root|||||||||
root|root|root|1||||||
nlp||root|30||gres/gpu=24|||2-00:00:00|
nlp|alice|nlp|1||||||
nlp|carol|nlp|1||||||
speech||nlp|parent||||||
vision||root|10||gres/gpu:h100=8|cpu=1000|gres/gpu=4||100
vision|bob|vision|1||||||
"""
QOS = """\
Name|Priority|Preempt|GraceTime|PreemptExemptTime|UsageFactor|MaxTRESPU|Flags
normal|100||00:00:00||1.000000||
high|1000|normal,low|00:02:00||1.000000|gres/gpu=8|DenyOnLimit
low|10|||00:30:00|0.500000||
"""
SHARES = """\
Account|User|RawShares|RawUsage|GrpTRESRaw
root||||cpu=900,gres/gpu=1000
 nlp||30|99999|cpu=600,mem=1,gres/gpu=700
  speech||1|99|cpu=600,mem=1,gres/gpu=50
 vision||10|5555|cpu=300,gres/gpu=300
  vision|bob|1|5555|cpu=300,gres/gpu=300
"""


def node(number: int, **changes: object) -> dict[str, object]:
    name = f"n{number:03d}"
    base: dict[str, object] = {
        "name": name,
        "address": name,
        "state": ["IDLE"],
        "gres": "gpu:h100:8(S:0-1)",
        "cpus": 64,
    }
    return {**base, "real_memory": 1_024_000, "sockets": 2, "partitions": ["main"], **changes}


def job(number: int, state: str = "PENDING", **changes: object) -> dict[str, object]:
    base: dict[str, object] = {"job_id": number, "name": f"job-{number}", "job_state": [state], "user_name": "alice"}
    base |= {"account": "nlp", "partition": "main", "submit_time": NOW - 3600, "state_reason": "Resources"}
    if state == "RUNNING":
        base["start_time"] = NOW - 600
    return {**base, **changes}


def runs(number: int, nodes: str, *gpus: str, **changes: object) -> dict[str, object]:
    return job(number, "RUNNING", nodes=nodes, gres_detail=[f"gpu:h100:1(IDX:{index})" for index in gpus], **changes)


def topology(nodes: int, rack: int = 8) -> str:
    racks = range(-(-nodes // rack))
    lines = [
        f"SwitchName=r{r:02d} Level=0 LinkSpeed=1 Nodes=n[{r * rack + 1:03d}-{r * rack + rack:03d}]" for r in racks
    ]
    spines = range(0, len(racks), 4)
    for s, first in enumerate(spines):
        below = ",".join(f"r{r:02d}" for r in racks[first : first + 4])
        lines.append(f"SwitchName=s{s} Level=1 LinkSpeed=1 Nodes=n[001-{nodes:03d}] Switches={below}")
    return "\n".join(lines) + "\n"


def folder(tmp_path: Path, nodes: Iterable[object], jobs: Iterable[object] | None = None, **texts: str) -> Path:
    """Captured output as somebody would keep it."""
    place = tmp_path / "captured"
    place.mkdir()
    (place / "nodes.json").write_text(json.dumps({"nodes": list(nodes)}), encoding="utf-8")
    if jobs is not None:
        (place / "jobs.json").write_text(json.dumps({"jobs": list(jobs)}), encoding="utf-8")
    for name, text in texts.items():
        (place / f"{name}.txt").write_text(text, encoding="utf-8")
    return place


def documents(found: Brought) -> dict[tuple[str, str], Any]:
    """Every document's spec, by kind and name."""
    trees = [d.value for path, c in found.files.items() if path.endswith(".yaml") for d in load(c, path).documents]
    return {(str(tree["kind"]), str(tree["metadata"]["name"])): tree["spec"] for tree in trees}  # type: ignore[call-overload, index]  # documents are mappings


# --- import ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def imported(tmp_path: Path) -> Brought:
    nodes = [*(node(n) for n in range(1, 17)), node(99, gres="gpu:a100:4(S:0)", sockets=1)]
    place = folder(tmp_path, nodes, topo=topology(16), accounts=ACCOUNTS, qos=QOS, shares=SHARES)
    return brought(captured([place]), Wishes(mail_domain="example.org", folder="/fs/gangops"))


def test_an_imported_cluster_is_valid_as_it_stands(imported: Brought) -> None:
    assert [note for note in imported.notes if note.is_error] == []
    assert (imported.nodes, imported.gpus) == (17, 132)


def test_switches_become_racks_and_nodes_stand_in_them(imported: Brought) -> None:
    found = documents(imported)
    sets = {
        name: (spec["nodes"], spec["rack"], spec["profile"])
        for (kind, name), spec in found.items()
        if kind == "NodeSet"
    }
    assert sets == {
        "r00-8x-h100": ("n[001-008]", "r00", "8x-h100"),
        "r01-8x-h100": ("n[009-016]", "r01", "8x-h100"),
        "rack-1-4x-a100": ("n099", "rack-1", "4x-a100"),
    }
    groups = found["Fabric", "slurm"]["spineGroups"]
    assert [[rack["name"] for rack in group["racks"]] for group in groups] == [["r00", "r01"], ["rack-1"]]
    assert {note.code for note in imported.notes} >= {"NodeUnplaced", "GpusNotPinned"}


def test_a_profile_has_what_slurm_knows_and_says_what_is_a_guess(imported: Brought) -> None:
    profile = documents(imported)["NodeProfile", "8x-h100"]
    assert (profile["gpuType"], profile["gpuMemory"], profile["gpus"]) == ("h100", "80GiB", 8)
    assert [(numa["cpus"], numa["memory"]) for numa in profile["numa"]] == [
        ("0-31", "512000MiB"),
        ("32-63", "512000MiB"),
    ]
    assert [switch["gpus"] for switch in profile["pcieSwitches"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert b"usual values stand here" in imported.files["cluster-state/inventory/profiles.yaml"]


def test_accounts_become_queues_with_weight_ceiling_limits_and_members(imported: Brought) -> None:
    found = documents(imported)
    queues = {name: spec for (kind, name), spec in found.items() if kind == "Queue"}
    assert queues["root"] == {}
    assert queues["nlp"] == {
        "parent": "root", "weight": 30, "ceiling": {"a100": 24, "h100": 24}, "limits": {"timeLimit": "2d"},
        "members": {"users": ["alice@example.org", "carol@example.org"]},
    }  # fmt: skip
    assert queues["speech"] == {"parent": "nlp"}
    assert queues["vision"]["ceiling"] == {"h100": 8}
    assert queues["vision"]["limits"] == {"gpusPerJob": 4, "pendingJobs": 100}
    assert any("grptresmins=cpu=1000" in note.detail for note in imported.notes)


def test_a_qos_becomes_a_priority_class(imported: Brought) -> None:
    classes = {name: spec for (kind, name), spec in documents(imported).items() if kind == "PriorityClass"}
    assert classes == {
        "normal": {"value": 100, "default": True, "preempts": "never"},
        "high": {"value": 1000, "grace": "2m", "maxGpusPerUser": 8},
        "low": {"value": 10, "preempts": "never", "minRuntime": "30m", "countsTowardsFairShare": "50%"},
    }


def test_past_use_is_that_of_leaf_accounts_in_gpu_seconds(imported: Brought) -> None:
    assert json.loads(imported.files[USAGE_FILE])["gpuSeconds"] == {
        "speech": {"a100": 3000},
        "vision": {"a100": 18_000},
    }


def test_use_that_slurm_only_bills_is_taken_for_gpu_seconds_and_noted() -> None:
    shares = rows_of("Account|User|RawUsage|GrpTRESRaw\nnlp||5000|cpu=9\n")
    found = rules_of(rows_of("Account|User|ParentName|Share\nnlp|||1\n"), (), shares, ["h100"], "")
    assert found.usage == {"nlp": {"h100": 5000}}
    assert [note.code for note in found.notes] == ["UsageIsBilling"]


def test_people_without_an_address_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    found = brought(captured([folder(tmp_path, [node(1)], accounts=ACCOUNTS)]), Wishes())
    assert not [kind for kind, _ in documents(found) if kind == "User"]
    assert "NoMailDomain" in {note.code for note in found.notes}


def test_without_accounts_and_switches_there_is_one_queue_and_one_rack(tmp_path: Path) -> None:
    found = brought(captured([folder(tmp_path, [node(1), node(2, gres="gpu:2")])]), Wishes(gpu_type="l40s"))
    assert [note for note in found.notes if note.is_error] == []
    kinds = documents(found)
    assert ("Queue", "root") in kinds
    assert kinds["NodeProfile", "2x-l40s"]["gpuMemory"] == "48GiB"
    assert {spec["rack"] for (kind, _), spec in kinds.items() if kind == "NodeSet"} == {"rack-1"}
    assert "NoAccounts" in {note.code for note in found.notes}


def test_nothing_is_written_over(tmp_path: Path) -> None:
    found = brought(captured([folder(tmp_path, [node(1)])]), Wishes())
    assert write(found, tmp_path / "into")
    with pytest.raises(UsageError) as caught:
        write(found, tmp_path / "into")
    assert caught.value.code == "FilesExist"


@pytest.mark.parametrize(
    ("text", "code"), [("hello", "NotSlurm"), ('{"nodes": []}', "NoGpuNodes"), ('{"pings": []}', "NoGpuNodes")]
)
def test_what_is_no_capture_of_slurm_is_refused(tmp_path: Path, text: str, code: str) -> None:
    file = tmp_path / "file"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        brought(captured([file]), Wishes())
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("2-00:00:00", "2d"),
        ("1-12:30:05", "1d12h30m5s"),
        ("00:30:00", "30m"),
        ("90", "90m"),
        ("", ""),
        ("00:00:00", ""),
    ],
)
def test_durations(text: str, duration: str) -> None:
    assert duration_of(text) == duration


def test_tables_are_told_apart_by_their_columns() -> None:
    assert [kind_of(text) for text in (ACCOUNTS, QOS, SHARES, "a|b\n", "")] == ["associations", "qos", "shares", "", ""]
    assert gpus_in("cpu=8,gres/gpu:h100=16,gres/gpu=20,gres/gpumem=7") == {"h100": 16, "": 20}
    assert [name_of(text) for text in ("Team_A", "x" * 99, "___")] == ["team-a", "x" * 63, ""]


# --- seeded use ------------------------------------------------------------------------------------------------------


def test_seeded_use_is_checked_against_the_tree_it_begins_on(tmp_path: Path) -> None:
    file = tmp_path / "usage.json"
    file.write_text('{"gpuSeconds": {"gone": {"h100": 5}, "also": {"b200": -1}}}', encoding="utf-8")
    with pytest.raises(InvalidInput) as caught:
        seeded_usage(file, desired_of(["n1"]))
    assert sorted(d.code for d in caught.value.diagnostics) == [
        "OutOfRange",
        "UnknownGpuType",
        "UnknownQueue",
        "UnknownQueue",
    ]
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        seeded_usage(file, desired_of(["n1"]))
    assert refused.value.code == "NotUsage"


# --- shadow ----------------------------------------------------------------------------------------------------------


def looked_at(tmp_path: Path, nodes: Iterable[object], jobs: Iterable[object], **texts: str) -> Any:
    place = folder(tmp_path, nodes, jobs, **texts)
    return shadow_tree(shadow(captured([place]), Wishes(), Instant(NOW * SECOND)))


def test_phi_tells_scattered_idle_gpus_from_a_free_node(tmp_path: Path) -> None:
    """Four nodes with two jobs of one GPU each have 24 idle GPUs and not one whole node; the fifth is whole."""
    jobs = [runs(n, f"n{n:03d}", "0-1") for n in range(1, 5)]
    found = looked_at(tmp_path, [node(n) for n in range(1, 6)], jobs)
    assert found["now"] == {"capacity": 40, "held": 8, "idle": 32, "stranded": 24, "phiPpm": 750_000}
    assert (found["nodes"], found["running"], found["waiting"]) == (5, 4, [])


def test_a_waiting_job_is_told_where_it_would_start_or_why_not(tmp_path: Path) -> None:
    jobs = [
        *(runs(n, f"n{n:03d}", "0-7") for n in range(1, 7)),
        runs(7, "n007", "0-3"),
        job(20, tres_per_node="gres/gpu:8", node_count=1, time_limit=60),
        job(21, tres_per_node="gres/gpu:8", node_count=2, state_reason="Priority"),
        job(22, tres_per_node="gres/gpu:2", node_count=1),
        job(23, tres_per_node="", node_count=1),
    ]
    found = looked_at(tmp_path, [node(n) for n in range(1, 9)], jobs, topo=topology(8))
    by_id = {one["job"]: one for one in found["waiting"]}
    assert (by_id[20]["starts"], by_id[20]["nodes"]) == (True, "n008")
    assert (by_id[21]["starts"], by_id[21]["gpus"], by_id[21]["slurmReason"]) == (False, 16, "Priority")
    assert by_id[21]["reason"]
    assert by_id[22]["nodes"] == "n007"  # a small job opens no empty node
    assert by_id[20]["waitedSeconds"] == 3600
    assert found["leftOut"] == ["1 job without GPUs: what runs is counted as being in the way"]


def test_what_would_be_moved_for_a_gang_is_named(tmp_path: Path) -> None:
    """Two half-used nodes: one job moves beside the other, and the gang has its node."""
    jobs = [runs(1, "n001", "0-3"), runs(2, "n002", "0-3"), job(20, tres_per_node="gres/gpu:8", node_count=1)]
    found = looked_at(tmp_path, [node(1), node(2)], jobs)
    [waits] = found["waiting"]
    assert waits["starts"]
    assert waits["victims"] in (["1"], ["2"])
    assert found["stopped"] == [f"job {waits['victims'][0]} (job-{waits['victims'][0]}) of alice, 4 GPUs: move"]


def test_a_queue_at_its_ceiling_waits_although_gpus_are_idle(tmp_path: Path) -> None:
    jobs = [runs(1, "n001", "0-7", account="vision"), job(2, tres_per_node="gpu:1", node_count=1, account="vision")]
    [waits] = looked_at(tmp_path, [node(1), node(2)], jobs, accounts=ACCOUNTS)["waiting"]
    assert (waits["queue"], waits["starts"]) == ("vision", False)
    assert waits["reason"] == "queue vision would hold 9 of at most 8 h100"


def test_nodes_that_are_off_or_somebody_elses_have_no_room(tmp_path: Path) -> None:
    nodes = [node(1, state=["DOWN", "NOT_RESPONDING"]), node(2, state=["IDLE", "DRAIN"], reason="fan"), node(3)]
    jobs = [
        job(5, "RUNNING", nodes="n003", gres_detail=[], shared=["none"]),
        job(6, tres_per_node="gpu:1", node_count=1),
    ]
    found = looked_at(tmp_path, nodes, jobs)
    assert (found["nodesOff"], found["now"]["idle"]) == (2, 0)
    assert [one["starts"] for one in found["waiting"]] == [False]


def test_a_job_stays_in_its_partition_and_a_held_one_waits(tmp_path: Path) -> None:
    nodes = [node(1, partitions=["cpuish"]), node(2, partitions=["main"])]
    jobs = [
        job(1, tres_per_node="gpu:8", node_count=1, partition="main"),
        job(2, tres_per_node="gpu:8", node_count=1, partition="cpuish", state_reason="JobHeldUser"),
    ]
    first, second = looked_at(tmp_path, nodes, jobs)["waiting"]
    assert (first["nodes"], second["starts"]) == ("n002", False)


def test_a_large_cluster_is_looked_at_in_seconds(tmp_path: Path) -> None:
    """128 nodes, 1,000 jobs waiting: well below the ten seconds a person would wait."""
    busy = [runs(n, f"n{n:03d}", "0-4") for n in range(1, 100)]
    waiting = [job(1000 + n, tres_per_node=f"gpu:{1 + n % 8}", node_count=1 + (n % 8 == 7) * 3) for n in range(1000)]
    began = time.process_time()
    found = looked_at(tmp_path, [node(n) for n in range(1, 129)], [*busy, *waiting], topo=topology(128))
    assert time.process_time() - began < 10
    assert len(found["waiting"]) == 1000
    assert sum(one["starts"] for one in found["waiting"]) > 0
    assert found["after"]["held"] + found["after"]["idle"] == 1024


def test_the_page_is_calm_and_fits_a_terminal(tmp_path: Path) -> None:
    jobs = [
        runs(1, "n001", "0-3"),
        job(2, tres_per_node="gpu:8", node_count=1),
        job(3, tres_per_node="gpu:8", node_count=9),
    ]
    place = folder(tmp_path, [node(n) for n in range(1, 4)], jobs)
    text = shadow_text(shadow(captured([place]), Wishes(), Instant(NOW * SECOND)), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "3 nodes; 24 GPUs: 4 held by 1 job, 20 idle, 4 stranded; Phi 0.20 (83 % idle)" in text.replace("\n", " ")
    assert "GangOps would start 1 of 2 waiting jobs now (8 GPUs)" in text
