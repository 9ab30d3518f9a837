"""Pages of what runs now, at eighty columns: complete, aligned, and with the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.errors import NotFound
from reconciler.model.allocation import Spare
from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import NodeCondition, NodeObservation, Observed
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import HOUR, SECOND, Instant, JobKey, NodeName
from reconciler.planner.forecast import Forecast
from reconciler.render.explain import explanation_page, node_page, reason_code
from reconciler.render.names import gpu_hours, gpus_of, one_line, places, share, span, when
from reconciler.render.node import condition
from reconciler.render.table import continued, table
from reconciler.render.view import (
    gpu_signs,
    headline,
    job_page,
    job_table,
    node_rows,
    node_table,
    queue_table,
    topology_table,
)
from tests.planner.worlds import START, placement, with_node
from tests.render.scene import (
    AFTER,
    BEFORE,
    BIG,
    DESIRED,
    METRICS,
    NO_RACK,
    NOW,
    OBSERVED,
    SUMMARY,
    SWEEP,
    TARGET,
    WIDE,
)


def test_status_on_eighty_columns() -> None:
    page = "\n\n".join(
        [
            headline(SUMMARY, METRICS, NOW),
            queue_table(DESIRED, AFTER.jobs, 80),
            job_table(DESIRED, AFTER.jobs, NOW, 80, wide=False),
        ]
    )
    assert page == (
        """\
h100-east   generation 8, decided 12s ago
6 of 32 GPUs held, 12 promised, 14 idle (6 of them stranded)   Phi 0.428

QUEUE     GUARANTEED  HELD  PROMISED  WAITING  CEILING
root               -     6        16        2        -
  nlp              -     2        16        1        -
  vision           -     4         -        1        -

JOB            STATE     GPUS  CLASS   WHERE              SINCE
nlp/eval       Running      2  normal  r02 gpu-003:2-3      12s
vision/sweep   Stopping     4  low     r01 gpu-001:0-3      12s
    gives way to nlp/pretrain; 3360 GPU-seconds since the last checkpoint
nlp/pretrain   Promised    16  high    r01 gpu-[001-002]    12s
    vision/sweep stopping; 12 of 16 GPUs released
vision/dino-l  Pending     32  normal  -                    12s
    needs 32 GPUs in one rack; the best, r02, has 14 free"""
    )


def test_wide_tables_add_columns_and_are_never_cut_off_a_terminal() -> None:
    lines = job_table(DESIRED, AFTER.jobs, NOW, None, wide=True).splitlines()
    assert lines[0].split() == ["JOB", "STATE", "GPUS", "CLASS", "WHERE", "SINCE", "ATTEMPT", "LEFT", "T_COMM", "WHY"]
    assert "  41.2ms  vision/sweep stopping; 12 of 16 GPUs released" in lines[3]
    assert len(lines) == 5


def test_a_job_on_a_page() -> None:
    record = replace(
        BEFORE.jobs[BIG], state=JobState.RUNNING, attempt=2, placement=TARGET, started=START,
        reason=reason(ReasonCode.RUNNING, ranks=16), victims=(SWEEP,),
    )  # fmt: skip
    assert job_page(record, DESIRED.jobs[BIG], DESIRED, NOW, ["mfu 0.41, step 120"]) == (
        """\
job           nlp/pretrain
state         Running
why           all 16 ranks started
since         2023-11-14 22:13:20Z  (12s)
submitted     2023-11-14 22:13:20Z  (12s)
attempt       2
where         r01 gpu-[001-002]
inside one    rack (r01)
T_comm        41.2ms a step; no placement could be below 40.1ms
asks          16 GPUs of H100, class high
groups        tensor 8 x data 2
preferred     job in one rack
time limit    4d4h, 4d3h left
victims       vision/sweep
live          mfu 0.41, step 120"""
    )


def test_a_job_s_page_names_its_spares_and_the_queue_table_counts_them() -> None:
    record = replace(
        BEFORE.jobs[BIG], state=JobState.RUNNING, placement=TARGET, spares=(Spare(node=NodeName("gpu-004"), mask=255),)
    )
    lines = job_page(record, DESIRED.jobs[BIG], DESIRED, NOW, []).splitlines()
    assert "spares        8 on gpu-004, for its repair" in lines
    table_of_queues = queue_table(DESIRED, {BIG: record}, 80).splitlines()
    row = next(line.split() for line in table_of_queues if line.strip().startswith("nlp"))
    assert row[2] == "24"


def test_a_victim_s_page_names_who_it_gave_way_to_and_the_price() -> None:
    page = job_page(AFTER.jobs[SWEEP], None, DESIRED, NOW, [])
    assert "state         Stopping, phase checkpoint" in page
    assert "asks          its file is gone" in page
    assert page.splitlines()[-2:] == ["gave way to   nlp/pretrain", "price paid    0.9 GPU-h"]


def test_an_explanation_marks_what_binds() -> None:
    blockers = [NO_RACK, reason(ReasonCode.NODE_STATE, excluded=8, states="1 Lost")]
    assert explanation_page(AFTER.jobs[WIDE], DESIRED.jobs[WIDE], blockers, 8, NOW, 80) == (
        """\
vision/dino-l is Pending since 2023-11-14 22:13:20Z (12s).
It asks for 32 GPUs of H100, all in one rack.

Blocked now by
  1. NoDomainFits   <- binding
     needs 32 GPUs in one rack; the best, r02, has 14 free
  2. NodeState
     8 GPUs are on nodes that take no work: 1 Lost

Decision #8. The same answer again: gangops replay 8"""
    )


def test_an_explanation_says_when_it_starts_by_limits_and_by_how_long_such_jobs_ran() -> None:
    sooner = Forecast(at=Instant(NOW + 2 * HOUR), reserved=True, p90=Instant(NOW + HOUR))
    lines = explanation_page(AFTER.jobs[WIDE], DESIRED.jobs[WIDE], [NO_RACK], 8, NOW, 80, expected=sooner).splitlines()
    at = lines.index("It would start")
    assert lines[at + 1 : at + 3] == [
        f"  at {when(Instant(NOW + 2 * HOUR))}  as it is, by a reservation",
        f"  at {when(Instant(NOW + HOUR))}  as it is, if none runs longer than 9 in 10 did",
    ]
    assert max(map(len, lines)) <= 80


def test_an_explanation_without_blockers_gives_the_recorded_reason() -> None:
    lines = explanation_page(AFTER.jobs[SWEEP], None, [], 8, NOW).splitlines()
    assert lines[2:4] == [
        "Because  Preempted",
        "    gives way to nlp/pretrain; 3360 GPU-seconds since the last checkpoint",
    ]


def test_a_code_is_explained_in_any_case_and_an_unknown_one_lists_all() -> None:
    code, means = reason_code("nodomainfits")
    assert code is ReasonCode.NO_DOMAIN_FITS
    assert means.startswith("needs {need} GPUs")
    with pytest.raises(NotFound) as caught:
        reason_code("Zzzz")
    assert caught.value.code == "UnknownCode"
    assert all(code in caught.value.remedy for code in ReasonCode)
    with pytest.raises(NotFound) as caught:
        reason_code("Runing")
    assert caught.value.remedy == "did you mean Running?"


def test_nodes_show_each_gpu() -> None:
    desired = with_node(DESIRED, "gpu-002", cordoned="DC-881")
    assert node_table(desired, OBSERVED, AFTER.holders(), 80).splitlines() == [
        "NODE     PLACE    CONDITION  GPUS      HELD BY",
        "gpu-001  sg0/r01  Ready      ####0000  vision/sweep",
        "gpu-002  sg0/r01  Cordoned   dddddddd  -",
        "gpu-003  sg0/r02  Ready      00##000x  nlp/eval",
        "gpu-004  sg0/r02  Lost       xxxxxxxx  -",
    ]


def test_a_foreign_process_shows_and_a_holder_shows_above_all() -> None:
    node = DESIRED.inventory.nodes[1]
    seen = OBSERVED.nodes[NodeName("gpu-002")]
    assert gpu_signs(node, seen, {}) == "f0000000"
    assert gpu_signs(node, None, {JobKey("a/b"): 0b11}) == "##xxxxxx"


NODE = DESIRED.inventory.nodes[1]
WELL = replace(OBSERVED.nodes[NodeName("gpu-002")], gpus=OBSERVED.nodes[NodeName("gpu-001")].gpus)
CORDONED, DEAD = replace(NODE, cordoned="fan (DC-1)"), replace(NODE, dead=True)
SINCE = when(WELL.condition_since)
LOST = replace(WELL, condition=NodeCondition.LOST)
STATES: dict[str, tuple[Node, NodeObservation | None, str, list[str]]] = {
    "ready": (NODE, WELL, "Ready", []),
    "never seen": (NODE, None, "NeverSeen", ["NeverSeen; no capacity before its agent has reported"]),
    "silent for long": (
        NODE, LOST, "Lost",
        [f"Lost: since {SINCE}; its GPUs stay bound until its ranks are known to be gone"],
    ),
    "silent for a while": (
        NODE, replace(WELL, condition=NodeCondition.UNREACHABLE), "Unreachable",
        [f"Unreachable: since {SINCE}; nothing new starts there; what runs goes on"],
    ),
    "cordoned": (
        CORDONED, WELL, "Cordoned", ["Cordoned: fan (DC-1); nothing new starts there; what runs goes on"],
    ),
    "cordoned, then silent": (
        CORDONED, LOST, "Lost, Cordoned",
        [
            f"Lost: since {SINCE}; its GPUs stay bound until its ranks are known to be gone",
            "Cordoned: fan (DC-1); nothing new starts there; what runs goes on",
        ],
    ),
    "cordoned before it was ever seen": (
        CORDONED, None, "NeverSeen, Cordoned",
        [
            "NeverSeen; no capacity before its agent has reported",
            "Cordoned: fan (DC-1); nothing new starts there; what runs goes on",
        ],
    ),
    "not well": (
        NODE, replace(WELL, unhealthy="disk\nfull"), "Unhealthy",
        ["Unhealthy: disk full; nothing new starts there until that is over"],
    ),
    "refusing orders": (
        NODE, replace(WELL, refused="BadSignature: no key"), "Refusing",
        ["Refusing: BadSignature: no key; it goes on with the last orders it accepted"],
    ),
    "declared dead": (
        DEAD, LOST, "Dead, Lost",
        [
            "Dead; a person declared it dead: what ran there counts as gone",
            f"Lost: since {SINCE}; its GPUs stay bound until its ranks are known to be gone",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES)
def test_each_state_of_a_node_is_said_and_none_hides_another(case: str) -> None:
    node, seen, word, sentences = STATES[case]
    assert condition(node, seen) == word
    lines = node_page(node, seen, (), {}, (), (), NOW).splitlines()
    assert lines[0] == f"gpu-002 in sg0/r01: {word}. 0 of 8 GPUs held, 0 out, 8 idle."
    assert [line.removeprefix("  State   ") for line in lines[1:]] == sentences
    (row,) = [row for row in node_rows(_with(node), _seeing(seen), {})[1] if row[0] == "gpu-002"]
    assert row[2] == word
    assert max(map(len, node_page(node, seen, (), {}, (), (), NOW, 80).splitlines())) <= 80


def _with(node: Node) -> Desired:
    nodes = tuple(node if one.name == node.name else one for one in DESIRED.inventory.nodes)
    return replace(DESIRED, inventory=replace(DESIRED.inventory, nodes=nodes))


def _seeing(seen: NodeObservation | None) -> Observed:
    nodes = {name: one for name, one in OBSERVED.nodes.items() if name != "gpu-002"}
    return Observed(nodes={**nodes, NodeName("gpu-002"): seen} if seen is not None else nodes)


def test_a_node_that_left_the_inventory_has_no_state_but_what_was_seen() -> None:
    assert condition(None, WELL) == "Ready"
    assert condition(None, LOST) == "Lost"


def test_topology_sets_what_was_ordered_beside_what_is_seen() -> None:
    rows = topology_table(placement(DESIRED, {"gpu-003": [6, 7]}), OBSERVED, 80).splitlines()
    assert rows == [
        "RANK  NODE     GPU  NUMA  NIC     RAIL  SEEN",
        "   0  gpu-003    6     1  mlx5_6     6  GPU-gpu-003-6",
        "   1  gpu-003    7     1  mlx5_7     7  failed: Xid 79",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_words_are_wrapped_and_never_lost(width: int) -> None:
    long = " ".join(f"word{n}" for n in range(40))
    text = table(["A", "N", "WHY"], [["x", "1", long], ["yy", "22", "-"]], width=width, right="N")
    assert [word for word in text.split() if word.startswith("word")] == long.split()
    assert max(map(len, text.splitlines())) <= width


def test_wide_characters_keep_the_columns() -> None:
    assert table(["A", "B"], [["日本", "x"], ["abcd", "y"]]).splitlines() == ["A     B", "日本  x", "abcd  y"]


@pytest.mark.parametrize(
    ("nanoseconds", "told"),
    [(-5, "0"), (0, "0"), (700, "700ns"), (1_500, "1.5us"), (6_100_000, "6.1ms"), (12 * SECOND, "12s"),
     (61 * SECOND, "1m1s"), (14 * 60 * SECOND, "14m"), (3600 * SECOND, "1h"), (3605 * SECOND, "1h"),
     (52 * 3600 * SECOND, "2d4h"), (86_400 * SECOND, "1d")],
)  # fmt: skip
def test_spans(nanoseconds: int, told: str) -> None:
    assert span(nanoseconds) == told


def test_other_short_forms() -> None:
    assert when(Instant(START + 5)) == "2023-11-14 22:13:20Z"
    assert [share(1, 3), share(2, 3), share(0, 0), share(1, 1)] == ["0.333", "0.666", "0.000", "1.000"]
    assert [gpu_hours(0), gpu_hours(3360), gpu_hours(3600 * 38)] == ["0.0 GPU-h", "0.9 GPU-h", "38.0 GPU-h"]
    assert [gpus_of(0b1), gpus_of(0b11), gpus_of(0b1001111)] == ["0", "0-1", "0-3+6"]
    assert one_line("a\n\tb\x1b c") == "a b c"


def test_places_fold_whole_nodes_and_name_the_gpus_of_parts() -> None:
    whole = placement(DESIRED, {"gpu-001": 8, "gpu-002": 8, "gpu-003": [0, 1, 4], "gpu-004": [7]})
    assert places(whole, DESIRED.inventory) == "r01 gpu-[001-002] r02 gpu-003:0-1+4,gpu-004:7"
    gone = replace(DESIRED.inventory, nodes=DESIRED.inventory.nodes[1:])
    assert places(whole, gone).startswith("? gpu-001:0-7 r01 gpu-002")


def test_where_even_that_is_too_wide_the_widest_columns_are_folded() -> None:
    rows = [["nlp/pretrain", "Running", "r03 gpu-[009-012] r04 gpu-[013-016] r05 gpu-[017-020]", "12s", "a reason"]]
    told = table(["JOB", "STATE", "WHERE", "SINCE", "WHY"], rows, width=60, right="SINCE")
    assert told.splitlines() == [
        "JOB           STATE    WHERE                           SINCE",
        "nlp/pretrain  Running  r03 gpu-[009-012] r04             12s",
        "                       gpu-[013-016] r05",
        "                       gpu-[017-020]",
        "    a reason",
    ]


def test_jobs_whose_queue_is_gone_are_counted_in_a_line_of_their_own() -> None:
    left = {name: queue for name, queue in DESIRED.quotas.queues.items() if name != "vision"}
    desired = replace(DESIRED, quotas=replace(DESIRED.quotas, queues=left))
    lines = queue_table(desired, AFTER.jobs, 80).splitlines()
    assert lines[-1].split() == ["(orphaned)", "-", "4", "-", "-", "-"]


def test_a_line_that_is_too_wide_goes_on_below_itself() -> None:
    line = "  H100-SXM5-80GB: holds 80; guaranteed 64, borrows 16, at most 96; room for 16 more"
    assert continued(line, None) == [line]
    assert continued(line, 80) == [line[:-5], "      more"]
    assert continued("  in 40s  with `gpus: 16` (disturbs 1 job)", 30, 8) == [
        "  in 40s  with `gpus: 16`",
        "          (disturbs 1 job)",
    ]
