"""rocm-smi, lldpctl and ibnetdiscover."""

from __future__ import annotations

import json

import pytest

from reconciler.discovery import ibnetdiscover, lldp, rocm_topo
from reconciler.discovery.detect import kind_of
from reconciler.discovery.parsed import Kind, Status
from tests.discovery.samples import SAMPLES

_ROCM, _LLDP, _IB = (SAMPLES[kind] for kind in (Kind.ROCM_TOPO, Kind.LLDP, Kind.IBNETDISCOVER))


def test_rocm_matrices_numa_and_domains() -> None:
    found = rocm_topo.parse(_ROCM)
    assert found.status is Status.OK
    assert found.content == {
        "gpu_count": 2,
        "link_type": [["0", "XGMI"], ["XGMI", "0"]],
        "hops": [[0, 1], [1, 0]],
        "weight": [[0, 15], [15, 0]],
        "numa_node": [0, 1],
        "link_domains": [[0, 1]],
    }


def test_rocm_of_older_versions_says_the_same() -> None:
    older = _ROCM.replace("GPU[0]", "GPU 0").replace("GPU[1]", "GPU 1")
    assert rocm_topo.parse(older).content == rocm_topo.parse(_ROCM).content


@pytest.mark.parametrize(
    ("was", "becomes", "status", "code"),
    [
        ("GPU1   15     0\n", "", Status.ERROR, "TRUNCATED"),
        ("GPU1   15     0\n", "GPU1   15\n", Status.ERROR, "TRUNCATED"),
        ("GPU1   15     0\n", "GPU1   16     0\n", Status.ERROR, "ASYMMETRIC"),
        ("GPU1   15     0\n", "GPU0   0     15\n", Status.ERROR, "DUPLICATE_ROW"),
        ("Hops between", "Hops among", Status.PARTIAL, "MISSING_SECTION"),
        ("GPU[1]", "GPU[0]", Status.ERROR, "CONTRADICTION"),
        ("GPU[1]", "GPU[2]", Status.PARTIAL, "NO_NUMA"),
        ("GPU0   GPU1", "GPU0   GPU2", Status.ERROR, "BAD_HEADER"),
    ],
)
def test_rocm_odd(was: str, becomes: str, status: Status, code: str) -> None:
    assert was in _ROCM
    found = rocm_topo.parse(_ROCM.replace(was, becomes, 1))
    assert found.status is status
    assert code in {remark.code for remark in (*found.errors, *found.warnings)}


def test_lldp_names_switch_and_port() -> None:
    found = lldp.parse(_LLDP)
    assert found.status is Status.OK
    assert found.content == {
        "neighbors": {"eth0": {"switch": "leaf1", "port": "swp1"}, "eth1": {"switch": "leaf2", "port": "swp2"}}
    }


def test_lldp_json0_says_the_same() -> None:
    interface = {
        "name": "eth0",
        "chassis": [{"id": [{"type": "mac", "value": "x"}], "name": [{"value": "leaf1"}]}],
        "port": [{"id": [{"type": "ifname", "value": "swp1"}], "descr": [{"value": "one"}]}],
    }
    found = lldp.parse(json.dumps({"lldp": [{"interface": [interface]}]}))
    assert found.content == {"neighbors": {"eth0": {"switch": "leaf1", "port": "swp1"}}}
    assert found.status is Status.OK


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        (_LLDP.replace('"leaf1": {"id"', '"id": {"id"'), Status.PARTIAL, "NO_SYSTEM_NAME"),
        (_LLDP.replace('"descr": "swp2"', '"ttl": "120"'), Status.PARTIAL, "NO_PORT"),
        (_LLDP.replace("eth1", "eth0"), Status.PARTIAL, "SEVERAL_NEIGHBORS"),
        ('{"lldp": {}}', Status.OK, "NO_NEIGHBORS"),
        ('{"lldp": {"interface": {"a": {}, "a": {}}}}', Status.ERROR, "DUPLICATE_KEY"),
        ("{}", Status.ERROR, "NOT_LLDP"),
        (_LLDP[:-10], Status.ERROR, "BAD_JSON"),
        ("[" * 100_000, Status.ERROR, "BAD_JSON"),
        ("9" * 10_000, Status.ERROR, "BAD_JSON"),
    ],
)
def test_lldp_odd(text: str, status: Status, code: str) -> None:
    found = lldp.parse(text)
    assert found.status is status
    assert code in {remark.code for remark in (*found.errors, *found.warnings)}


def test_ibnetdiscover_hosts_and_uplinks() -> None:
    found = ibnetdiscover.parse(_IB)
    assert found.status is Status.OK
    assert found.content == {
        "switches": {
            "leaf1": {"guid": "00000000000000a1", "hosts": ["node1"], "uplinks": ["spine1"]},
            "spine1": {"guid": "00000000000000a9", "hosts": [], "uplinks": []},
        }
    }


@pytest.mark.parametrize(
    ("was", "becomes", "status", "code"),
    [
        ('# "spine1" base', '# "leaf1" base', Status.OK, "NAMES_NOT_UNIQUE"),
        ('[1]\t"S-00000000000000a1"[2]', '[1]\t"H-00000000000000b2"[2]', Status.PARTIAL, "ONE_SIDED_LINKS"),
        ('[1]\t"H-00000000000000b1"', '[1]\t"H-', Status.PARTIAL, "UNREADABLE_LINE"),
        ("node1 mlx5_0", "Mellanox Technologies Aggregation Node", Status.PARTIAL, "NO_HOSTS_BELOW"),
        ("Switch\t41", "Turnip\t41", Status.PARTIAL, "MISSING_SECTIONS"),
        ("node1 mlx5_0", "MT25408 ConnectX Mellanox Technologies", Status.PARTIAL, "HOSTS_WITHOUT_NAME"),
    ],
)
def test_ibnetdiscover_odd(was: str, becomes: str, status: Status, code: str) -> None:
    assert was in _IB
    found = ibnetdiscover.parse(_IB.replace(was, becomes, 1))
    assert code in {remark.code for remark in (*found.errors, *found.warnings)}
    assert found.status is status


def test_an_indented_paste_says_the_same() -> None:
    indented = "\n".join(f"   {line}" for line in _IB.split("\n"))
    assert kind_of(indented) is Kind.IBNETDISCOVER
    assert ibnetdiscover.parse(indented).content == ibnetdiscover.parse(_IB).content


def test_switches_of_one_name_stay_two() -> None:
    found = ibnetdiscover.parse(_IB.replace('# "spine1" base', '# "leaf1" base'))
    assert set(found.content["switches"]) == {"S-00000000000000a1", "S-00000000000000a9"}  # type: ignore[arg-type]  # a mapping


def test_links_of_host_sections_count_too() -> None:
    text = 'Ca\t1 "H-b1"\t\t# "node1 mlx5_0"\n[1](b1) \t"S-a1"[1]\t\t# lid 2 lmc 0 "MF0;leaf1:M/U1" lid 1 4xHDR\n'
    text += 'Switch\t41 "S-a1"\t\t# "MF0;leaf1:M/U1" enhanced port 0 lid 1 lmc 0\n'
    found = ibnetdiscover.parse(text)
    assert found.content == {"switches": {"leaf1": {"guid": "a1", "hosts": ["node1"], "uplinks": []}}}
