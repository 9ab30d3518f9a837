"""`nvidia-smi topo -m`, as people paste it."""

from __future__ import annotations

import re

import pytest

from reconciler.discovery.nvidia_topo import parse
from reconciler.discovery.parsed import Kind, Status
from tests.discovery.samples import SAMPLES

_TEXT = SAMPLES[Kind.NVIDIA_TOPO]
_WHOLE = parse(_TEXT)


def test_reads_links_domains_nics_and_affinities() -> None:
    content = _WHOLE.content
    assert content["gpus"] == ["GPU0", "GPU1"]
    assert content["nvlink_count"] == {"GPU0-GPU1": 18}
    assert content["nvlink_domains"] == [["GPU0", "GPU1"]]
    assert content["nvlink_domain_all_to_all"] == [True]
    assert content["nics"] == {"NIC0": "mlx5_0", "NIC1": "mlx5_1"}
    assert content["nearest_nics"] == {
        "GPU0": {"link": "PIX", "nics": ["NIC0"]},
        "GPU1": {"link": "PIX", "nics": ["NIC1"]},
    }
    assert content["cpu_affinity"] == {"GPU0": "0-7", "GPU1": "8-15"}
    assert content["numa_affinity"] == {"GPU0": [0], "GPU1": [1]}
    assert content["gpu_numa_id"] == {"GPU0": None, "GPU1": None}


@pytest.mark.parametrize(
    "pasted",
    [
        _TEXT.replace("\tGPU0\tGPU1", "\t\x1b[4mGPU0\tGPU1").replace("NUMA ID\n", "NUMA ID\x1b[0m\n"),
        _TEXT.replace("\tGPU0\tGPU1", "\t[4mGPU0\tGPU1").replace("NUMA ID\n", "NUMA ID[0m\n"),
        _TEXT.replace("\tGPU0\tGPU1\tNIC0\tNIC1\t", "\x1b[4mGPU0GPU1NIC0NIC1\t"),
        "\n".join(f"> {line}" for line in _TEXT.split("\n")),
        re.sub(r"^(?=\tGPU0|GPU\d|NIC\d\t)", "[1,0]<stdout>:", _TEXT, flags=re.MULTILINE),
        "$ nvidia-smi topo -m\n" + _TEXT + "$ hostname\nnode7\n",
        "\n".join(reversed(_TEXT.split("NIC Legend:"))).replace("\tGPU0", "\n\tGPU0", 1),
        _TEXT.replace("NIC0: mlx5_0", "NIC0: mlx5_0 (port 1, up)"),
        _TEXT + "\n\tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n",
    ],
    ids=[
        "ansi",
        "ansi without escape",
        "glued header",
        "quoted",
        "mpirun",
        "prompts",
        "legend in front",
        "annotated",
        "p2p after it",
    ],
)
def test_how_it_was_pasted_changes_no_value(pasted: str) -> None:
    assert parse(pasted).content == _WHOLE.content


def test_blanks_for_tabs_are_read_where_columns_show() -> None:
    text = """\
        GPU0    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PHB                     1               N/A
NIC0    PHB      X
"""
    found = parse(text).content
    assert found["cpu_affinity"] == {"GPU0": None}
    assert found["numa_affinity"] == {"GPU0": [1]}


def test_a_header_whose_names_ran_together() -> None:
    text = """\
GPU0GPU1mlx5_0CPU AffinityNUMA AffinityGPU NUMA ID
GPU0     X     SYS    PHB    0-3,8-11    0        N/A
GPU1    SYS     X     SYS    4-7         1        N/A
mlx5_0  PHB    SYS     X
"""
    found = parse(text)
    assert found.status is Status.OK
    assert found.content["gpus"] == ["GPU0", "GPU1"]
    assert found.content["cpu_affinity"] == {"GPU0": "0-3,8-11", "GPU1": "4-7"}
    assert found.content["numa_affinity"] == {"GPU0": [0], "GPU1": [1]}


def test_an_affinity_that_may_be_in_either_column_is_no_affinity() -> None:
    text = """\
        GPU0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X          1   N/A
"""
    found = parse(text)
    assert found.status is Status.PARTIAL
    assert [w.code for w in found.warnings] == ["AFFINITY_UNCLEAR"]
    assert found.content["cpu_affinity"] == {"GPU0": None}
    assert found.content["numa_affinity"] == {"GPU0": None}


@pytest.mark.parametrize(
    ("was", "becomes", "code"),
    [
        ("GPU1\tNV18", "GPU1\tNV1", "ASYMMETRIC"),
        ("GPU1\tNV18\t X \tSYS\tPIX", "GPU1\tNV18\t X \tSYS\t", "TRUNCATED"),
        ("GPU1\tNV18\t X \tSYS\tPIX\t8-15\t1\t\tN/A\n", "", "TRUNCATED"),
        ("GPU1\tNV18\t X", "GPU1\tX\t X", "BAD_DIAGONAL"),
        ("\tGPU0\tGPU1\tNIC0", "\tGPU0\tNIC0", "UNKNOWN_ROW"),
        ("NIC0\tPIX", "GPU1\tPIX", "DUPLICATE_ROW"),
        ("\tPIX\tSYS\t0-7", "\tPIX\tC2C\t0-7", "UNKNOWN_LINK"),
        ("\tGPU0\tGPU1\tNIC0", "\tGPU0\tGPU0\tNIC0", "BAD_HEADER"),
    ],
)
def test_contradictions_are_errors(was: str, becomes: str, code: str) -> None:
    assert was in _TEXT
    found = parse(_TEXT.replace(was, becomes, 1))
    assert found.status is Status.ERROR
    assert code in {e.code for e in found.errors}
    assert not found.content


@pytest.mark.parametrize(
    ("was", "becomes", "code"),
    [
        ("  NIC1: mlx5_1\n", "", "NIC_LEGEND_MISSING"),
        ("  NIC1: mlx5_1\n", "  NIC1: mlx5_1\n  NIC1: mlx5_2\n", "NIC_LEGEND_MISSING"),
        ("NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t\n", "", "MISSING_ROWS"),
        ("\t0-7\t", "\tsome\t", "BAD_AFFINITY"),
    ],
)
def test_gaps_are_named(was: str, becomes: str, code: str) -> None:
    assert was in _TEXT
    found = parse(_TEXT.replace(was, becomes, 1))
    assert found.status is Status.PARTIAL
    assert [w.code for w in found.warnings] == [code]


def test_no_prefix_of_a_text_gives_another_value_with_status_ok() -> None:
    for end in range(len(_TEXT)):
        found = parse(_TEXT[:end])
        if found.status is Status.OK:
            assert found.content == _WHOLE.content, _TEXT[:end]


def test_a_ring_is_a_domain_but_not_all_to_all() -> None:
    text = """\
\tGPU0\tGPU1\tGPU2\tGPU3
GPU0\tX\tNV1\tSYS\tNV2
GPU1\tNV1\tX\tNV2\tSYS
GPU2\tSYS\tNV2\tX\tNV1
GPU3\tNV2\tSYS\tNV1\tX
"""
    content = parse(text).content
    assert content["nvlink_domains"] == [["GPU0", "GPU1", "GPU2", "GPU3"]]
    assert content["nvlink_domain_all_to_all"] == [False]
    assert content["cpu_affinity"] is None


def test_when_all_nics_tie_all_are_named() -> None:
    text = "\tGPU0\tmlx5_1\tmlx5_0\nGPU0\tX\tNODE\tNODE\nmlx5_1\tNODE\tX\tPIX\nmlx5_0\tNODE\tPIX\tX\n"
    assert parse(text).content["nearest_nics"] == {"GPU0": {"link": "NODE", "nics": ["mlx5_1", "mlx5_0"]}}


def test_two_machines_in_one_text_are_not_mixed() -> None:
    found = parse(_TEXT + _TEXT.replace("0-7", "0-3"))
    assert found.content == _WHOLE.content
    assert found.status is Status.PARTIAL
    assert "EXTRA_MATRIX" in {w.code for w in found.warnings}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("No devices were found\n", "NO_DEVICES"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "DRIVER"),
        ("hello\n", "NO_MATRIX"),
    ],
)
def test_messages_instead_of_a_matrix(message: str, code: str) -> None:
    assert [e.code for e in parse(message).errors] == [code]
