"""Slurm's own files: topology, devices, nodes, and the host lists in all of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.discovery import hostlists, slurm_gres, slurm_nodes, slurm_topology, slurm_topology_yaml
from reconciler.discovery.parsed import Kind, Parsed, Status
from reconciler.documents import hostlist as strict
from tests.discovery.samples import SAMPLES


def _codes(found: Parsed) -> set[str]:
    return {remark.code for remark in (*found.errors, *found.warnings)}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1[8-11]", "n18 n19 n110 n111"),
        ("n[8-10]1", "n81 n91 n101"),
        ("r[1-2][3-4]", "r13 r14 r23 r24"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[001-3]", "n001 n002 n003"),
        ("b,a", "b a"),
        ("a,,b a", "a b a"),
        ("/dev/nvidia[0-1]", "/dev/nvidia0 /dev/nvidia1"),
    ],
)
def test_hostlists_expand_as_scontrol_does(text: str, names: str) -> None:
    assert hostlists.expand(text, 100) == names.split()


@pytest.mark.parametrize("text", ["n[2-1]", "n[1-", "n]", "n[a]", "n[1-200]", "@group", "n[0-9][0-9][0-9]", "é"])
def test_hostlists_refused(text: str) -> None:
    with pytest.raises(ValueError):
        hostlists.expand(text, 100)


@given(
    st.lists(
        st.from_regex(r"\A[a-z]{1,3}(\[(0?[0-9])(-1[0-9])?(,2[0-9])?\])?([a-z](\[[0-4]-[5-9]\])?)?\Z"),
        min_size=1,
        max_size=4,
    ).map(",".join)
)
def test_where_our_strict_lists_take_a_text_both_agree(text: str) -> None:
    try:
        expected = strict.expand(text)
    except ValueError:
        return
    assert sorted(hostlists.expand(text, 10_000)) == sorted(expected)


def test_topology_conf_levels_parents_and_roots() -> None:
    found = slurm_topology.parse(SAMPLES[Kind.SLURM_TOPOLOGY])
    assert found.status is Status.OK
    assert found.content == {
        "plugin": "tree",
        "switches": [
            {"name": "leaf1", "nodes": ["n1", "n2"], "children": [], "level": 0, "parents": ["top"]},
            {"name": "leaf2", "nodes": ["n3", "n4"], "children": [], "level": 0, "parents": ["top"]},
            {"name": "top", "nodes": [], "children": ["leaf1", "leaf2"], "level": 1, "parents": []},
        ],
        "roots": ["top"],
        "undefined_switches": [],
        "node_count": 4,
        "duplicate_nodes": [],
    }


@pytest.mark.parametrize(
    ("text", "status", "codes"),
    [
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", Status.ERROR, {"CYCLE"}),
        ("SwitchName=a Switches=a\n", Status.ERROR, {"CYCLE"}),
        ("SwitchName=a Switches=b\n", Status.PARTIAL, {"UNDEFINED_SWITCHES"}),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n", Status.OK, {"DUPLICATE_NODES", "MULTIPLE_ROOTS"}),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", Status.ERROR, {"DUPLICATE_SWITCH"}),
        ("SwitchName=a Nodes=n[1\n", Status.ERROR, {"BAD_HOSTLIST"}),
        ("SwitchName=a Nodes=n1 Colour=red\n", Status.PARTIAL, {"UNKNOWN_KEY"}),
        ("SwitchName=a Nodes=ALL\n", Status.PARTIAL, {"ALL_NODES"}),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2\n", Status.ERROR, {"MIXED_PLUGINS"}),
        ("SwitchName=a Nodes\n", Status.ERROR, {"BAD_LINE", "NO_TOPOLOGY"}),
        ("SwitchName=a Nodes=n1 Nodes=n2\n", Status.ERROR, {"DUPLICATE_KEY", "NO_TOPOLOGY"}),
        ("SwitchName=a Nodes=n1\ninclude other.conf\n", Status.PARTIAL, {"INCLUDE"}),
        ("BlockSizes=4\n", Status.ERROR, {"NO_BLOCKS"}),
        ("BlockName=b Nodes=n1\nBlockSizes=a\n", Status.ERROR, {"BAD_BLOCK_SIZES"}),
        ("# nothing\n", Status.ERROR, {"NO_TOPOLOGY"}),
    ],
)
def test_topology_conf_odd(text: str, status: Status, codes: set[str]) -> None:
    found = slurm_topology.parse(text)
    assert (found.status, _codes(found)) == (status, codes)


def test_a_clos_fabric_is_no_error_and_a_switch_above_a_cycle_is_not_in_it() -> None:
    clos = "SwitchName=l1 Nodes=n1\nSwitchName=s1 Switches=l1\nSwitchName=s2 Switches=l1\n"
    found = slurm_topology.parse(clos)
    assert (found.status, _codes(found)) == (Status.OK, {"MULTI_PARENT", "MULTIPLE_ROOTS"})
    cyclic = "SwitchName=a Switches=b\nSwitchName=b Switches=c\nSwitchName=c Switches=b,l\nSwitchName=l Nodes=n1\n"
    content: Any = slurm_topology.parse(cyclic).content
    assert content["cycle_members"] == ["b", "c"]
    assert {s["name"]: s["level"] for s in content["switches"]} == {"a": None, "b": None, "c": None, "l": 0}


def test_rings() -> None:
    found = slurm_topology.parse("RingName=r1 Nodes=n[1-3]\n")
    assert found.content["rings"] == [{"name": "r1", "nodes": ["n1", "n2", "n3"]}]
    assert found.content["plugin"] == "ring"


def test_topology_yaml_says_what_topology_conf_would() -> None:
    found = slurm_topology_yaml.parse(SAMPLES[Kind.SLURM_TOPOLOGY_YAML])
    assert found.status is Status.OK
    content: Any = found.content
    fat, racks, plain = content["topologies"]
    assert (fat.pop("name"), fat.pop("cluster_default")) == ("fat", True)
    conf = "SwitchName=top Switches=leaf[1-2]\nSwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\n"
    assert fat == slurm_topology.parse(conf).content
    assert (racks["plugin"], racks["block_sizes"], racks["node_count"]) == ("block", [2, 4], 4)
    assert plain == {"name": "plain", "cluster_default": False, "plugin": "flat"}


def test_topology_yaml_with_slurms_capitals() -> None:
    found = slurm_topology_yaml.parse("- topology: True North\n  cluster_default: True\n  flat: TRUE\n")
    assert found.content == {"topologies": [{"name": "True North", "cluster_default": True, "plugin": "flat"}]}
    assert slurm_topology_yaml.parse("- topology: a\n  cluster_default: yes\n  flat: true\n").status is Status.ERROR


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("- topology: a\n  flat: &x true\n", Status.ERROR, "YAML_REFUSED"),
        ("- topology: a\n  topology: b\n  flat: true\n", Status.ERROR, "YAML_REFUSED"),
        ("- topology: a\n  torus: {}\n", Status.PARTIAL, "UNKNOWN_PLUGIN"),
        ("- topology: a\n  tree: 5\n", Status.ERROR, "BAD_TOPOLOGY"),
        ("- topology: a\n", Status.ERROR, "BAD_TOPOLOGY"),
        ("- flat: true\n", Status.ERROR, "BAD_TOPOLOGY"),
        ("a: b\n", Status.ERROR, "NO_TOPOLOGY"),
        ("- topology: a\n  block:\n    block_sizes: [x]\n    blocks: []\n", Status.ERROR, "BAD_BLOCK_SIZES"),
    ],
)
def test_topology_yaml_odd(text: str, status: Status, code: str) -> None:
    found = slurm_topology_yaml.parse(text)
    assert (found.status, _codes(found)) == (status, {code})


def test_gres_conf() -> None:
    found = slurm_gres.parse(SAMPLES[Kind.SLURM_GRES])
    assert found.status is Status.OK
    assert found.content["autodetect_default"] == "nvml"
    assert found.content["entries"] == [
        {
            "name": "gpu",
            "nodes": ["n1", "n2"],
            "type": "h100",
            "files": ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"],
            "count": 4,
            "cores": "0-7,16-23",
            "links": None,
            "flags": "nvidia_gpu_env",
            "autodetect": None,
        },
        {
            "name": "shard",
            "nodes": None,
            "type": None,
            "files": None,
            "count": 2048,
            "cores": None,
            "links": None,
            "flags": None,
            "autodetect": None,
        },
    ]


@pytest.mark.parametrize(
    ("line", "status", "code"),
    [
        ("Name=gpu File=/dev/nvidia[0-1] Count=3", Status.ERROR, "COUNT_MISMATCH"),
        ("Name=gpu Count=many", Status.ERROR, "BAD_COUNT"),
        ("Name=gpu Cores=3-1", Status.PARTIAL, "BAD_CORES"),
        ("Name=gpu Cores=0-9000", Status.OK, "CORES_SUSPECT"),
        ("Name=gpu CPUs=0-3", Status.OK, "DEPRECATED_KEY"),
        ("Name=gpu MultipleFiles=/dev/a", Status.PARTIAL, "UNKNOWN_KEY"),
        ("File=/dev/nvidia0", Status.ERROR, "NO_NAME"),
    ],
)
def test_gres_conf_odd(line: str, status: Status, code: str) -> None:
    found = slurm_gres.parse(f"{line}\nName=shard\n")
    assert (found.status, _codes(found)) == (status, {code})


def test_slurm_conf_nodes_and_partitions() -> None:
    found = slurm_nodes.parse(SAMPLES[Kind.SLURM_NODES])
    assert found.status is Status.OK
    assert found.content["nodes"] == [
        {
            "names": ["n1", "n2"],
            "cpus": 32,
            "real_memory_mb": 1000,
            "gres": [{"name": "gpu", "type": "h100", "count": 8}, {"name": "shard", "type": None, "count": 32}],
            "state": "UNKNOWN",
        },
        {"names": ["n3"], "cpus": 4, "real_memory_mb": 500, "gres": [], "state": "UNKNOWN"},
    ]
    assert found.content["partitions"] == [
        {"name": "all", "nodes": ["n1", "n2", "n3"], "default": True, "max_time_s": 129_600}
    ]


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("1:30", 90), ("1:00:00", 3600), ("2-0", 172_800), ("1-2:03", 93_780), ("UNLIMITED", None)],
)
def test_partition_times(time: str, seconds: int | None) -> None:
    content: Any = slurm_nodes.parse(f"NodeName=a\nPartitionName=p Nodes=a MaxTime={time}\n").content
    assert content["partitions"][0]["max_time_s"] == seconds


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("NodeName=a\nNodeName=a\n", Status.ERROR, "DUPLICATE_NODES"),
        ("NodeName=a Gres=gpu:b:c:1\n", Status.PARTIAL, "BAD_GRES"),
        ("NodeName=a CPUs=lots\n", Status.PARTIAL, "BAD_NUMBER"),
        ("NodeName=a\nNodeSet=s Feature=f\n", Status.PARTIAL, "NODESET_FEATURE"),
        ("NodeName=a\nPartitionName=p MaxTime=soon\n", Status.PARTIAL, "BAD_TIME"),
        ("ClusterName=x\n", Status.ERROR, "NO_NODES"),
    ],
)
def test_slurm_conf_odd(text: str, status: Status, code: str) -> None:
    found = slurm_nodes.parse(text)
    assert (found.status, _codes(found)) == (status, {code})


def test_partitions_of_node_sets() -> None:
    content: Any = slurm_nodes.parse("NodeName=a[1-3]\nNodeSet=s Nodes=a[1-2]\nPartitionName=p Nodes=s,a3\n").content
    assert content["partitions"][0]["nodes"] == ["a1", "a2", "a3"]
