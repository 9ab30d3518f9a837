"""`numactl --hardware`, whole, folded, elided and cut."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.discovery.numactl import parse
from reconciler.discovery.parsed import Kind, Status
from tests.discovery.samples import SAMPLES

_TEXT = SAMPLES[Kind.NUMACTL]
_WHOLE = parse(_TEXT)


def test_reads_nodes_and_distances() -> None:
    content = _WHOLE.content
    assert content["declared_node_ids"] == [0, 1, 2]
    assert content["nodes"] == [
        {"id": 0, "cpus": "0-3", "cpu_count": 4, "size_mb": 1000, "free_mb": 900},
        {"id": 1, "cpus": "4-5", "cpu_count": 2, "size_mb": 0, "free_mb": 0},
        {"id": 2, "cpus": "", "cpu_count": 0, "size_mb": 500, "free_mb": 400},
    ]
    assert content["memory_only_nodes"] == [2]
    assert content["cpu_only_nodes"] == [1]
    assert content["empty_nodes"] == []
    assert content["distances"] == {"ids": [0, 1, 2], "matrix": [[10, 21, 30], [21, 10, 30], [30, 30, 10]]}


@pytest.mark.parametrize(
    "pasted",
    [
        "\n".join(f"> {line}" for line in _TEXT.split("\n")),
        _TEXT.replace("cpus: 0 1 2 3", "cpus: 0 1\n2 3"),
        _TEXT.replace("cpus: 0 1 2 3", "cpus:\n0 1 2 3"),
        _TEXT.replace("  0:  10  21  30", "  0:  10  21\n30"),
        "# numactl -H\n" + _TEXT + "$\n",
    ],
)
def test_how_it_was_pasted_changes_no_value(pasted: str) -> None:
    assert parse(pasted).content == _WHOLE.content


@pytest.mark.parametrize(
    ("was", "becomes", "code"),
    [
        ("cpus: 0 1 2 3", "cpus: 0 1 ... 3", "ELIDED"),
        ("cpus: 0 1 2 3", "cpus: 0 1\n... 3", "ELIDED"),
        ("cpus: 0 1 2 3", "cpus: 0 1 b 3", "BAD_CPUS"),
        ("cpus: 0 1 2 3", "cpus: 0 1 99999", "BAD_CPUS"),
        ("node 1 free: 0 MB\n", "", "NO_FREE"),
        ("node 1 size: 0 MB\n", "", "NO_SIZE"),
        ("node 1 cpus: 4 5\n", "", "NO_CPUS"),
        ("3 nodes (0-2)", "4 nodes (0-3)", "MISSING_NODES"),
        ("3 nodes (0-2)", "2 nodes (0-1)", "UNDECLARED_NODES"),
        ("3 nodes (0-2)", "2 nodes (0-2)", "NODE_COUNT"),
        ("available: 3 nodes (0-2)\n", "", "NO_DECLARATION"),
        ("  1:  21  10  30\n", "", "MISSING_DISTANCES"),
        ("  1:  21  10  30\n", "  1:  21  10\n", "BAD_DISTANCES"),
        ("  2:  30  30  10\n", "  2:  30  30  1\n", "BAD_DISTANCES"),
    ],
)
def test_gaps_are_named(was: str, becomes: str, code: str) -> None:
    assert was in _TEXT
    found = parse(_TEXT.replace(was, becomes, 1))
    assert found.status is Status.PARTIAL
    assert code in {w.code for w in found.warnings}


def test_rows_that_are_missing_leave_the_others_right() -> None:
    found = parse(_TEXT.replace("  1:  21  10  30\n", ""))
    assert found.content["distances"] == {"ids": [0, 2], "columns": [0, 1, 2], "matrix": [[10, 21, 30], [30, 30, 10]]}


def test_cpus_in_two_nodes_are_a_warning_alone() -> None:
    found = parse(_TEXT.replace("cpus: 4 5", "cpus: 0 1 2 3"))
    assert [w.code for w in found.warnings] == ["SHARED_CPUS"]
    assert found.status is Status.OK


def test_no_prefix_of_a_text_gives_a_wrong_value() -> None:
    whole: Any = _WHOLE.content
    nodes = {node["id"]: node for node in whole["nodes"]}
    for end in range(len(_TEXT)):
        found: Any = parse(_TEXT[:end])
        assert found.status is not Status.OK or found.content == _WHOLE.content
        for node in found.content.get("nodes", ()):
            assert all(value in {None, nodes[node["id"]][key]} for key, value in node.items()), _TEXT[:end]


def test_the_second_output_is_not_mixed_with_the_first() -> None:
    found = parse(_TEXT + _TEXT.replace("1000", "2000"))
    assert found.content == _WHOLE.content
    assert [w.code for w in found.warnings] == ["EXTRA_OUTPUT"]


@pytest.mark.parametrize(("text", "code"), [("No NUMA available on this system\n", "NO_NUMA"), ("x\n", "NO_NODES")])
def test_no_nodes(text: str, code: str) -> None:
    assert [e.code for e in parse(text).errors] == [code]


def test_a_node_twice_is_an_error() -> None:
    found = parse(_TEXT.replace("node 1 cpus", "node 0 cpus"))
    assert [e.code for e in found.errors] == ["DUPLICATE_NODE"]
