"""Cables to Fabric: what is a rack, what a spine group, and what is told when sources do not add up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reconciler.cli.root import root as gangops
from reconciler.documents.check import check_file
from reconciler.documents.edit import new_document
from reconciler.documents.loader import Tree
from reconciler.imports.topology import ImportedFabric, fabric_of


def tree(*switches: tuple[str, str, str], blocks: Mapping[str, str] | None = None) -> dict[str, Tree]:
    """Slurm's neutral form: (name, nodes, switches above it), names divided by blanks."""
    rows: list[Tree] = [
        {"name": name, "nodes": [*nodes.split()], "parents": [*above.split()], "children": [], "level": 0}
        for name, nodes, above in switches
    ]
    groups: list[Tree] = [{"name": name, "nodes": [*nodes.split()]} for name, nodes in (blocks or {}).items()]
    return {"format": "slurm-topology-conf/v1", "switches": rows, "blocks": groups}


def lldp(*switches: str) -> dict[str, Tree]:
    neighbours: dict[str, Tree] = {f"eth{i}": {"switch": s, "port": "swp1"} for i, s in enumerate(switches)}
    return {"format": "lldpctl-json/v1", "neighbors": neighbours}


def spec(imported: ImportedFabric) -> Any:
    assert imported.document is not None
    checked = check_file(new_document(imported.document, imported.comments), "imported")
    assert [str(d) for d in checked.diagnostics] == []
    return checked.items[0].model.spec


def codes(imported: ImportedFabric) -> list[str]:
    return [finding.code for finding in imported.findings]


def told(imported: ImportedFabric) -> list[str]:
    return [finding.detail for finding in imported.findings]


CLOS = tree(
    ("leaf1", "n1 n2", "s1 s2"),
    ("leaf2", "n3 n4", "s1 s2"),
    ("leaf3", "n5", "s3 s4"),
    ("s1", "", "core"),
    ("s2", "", "core"),
    ("s3", "", "core"),
    ("s4", "", "core"),
    ("core", "", ""),
)


def test_racks_with_the_same_spines_are_one_spine_group() -> None:
    imported = fabric_of({"topology.conf": CLOS}, "clos")
    found = spec(imported)
    assert [level.name for level in found.levels] == ["nvlinkDomain", "node", "rack", "spineGroup", "cluster"]
    groups = [(g.spines, [(r.name, r.tors) for r in g.racks]) for g in found.spine_groups]
    assert groups == [
        (("s1", "s2"), [("leaf1", ("leaf1",)), ("leaf2", ("leaf2",))]),
        (("s3", "s4"), [("leaf3", ("leaf3",))]),
    ]
    assert codes(imported) == []
    assert "rack leaf1: n[1-2]" in imported.comments
    assert any("joined by core" in line for line in imported.comments)


def test_unequal_spines_in_a_group_are_told_by_name() -> None:
    imported = fabric_of(
        {"t": tree(("leaf1", "n1", "s1 s2"), ("leaf2", "n2", "s1"), ("s1", "", ""), ("s2", "", ""))}, "f"
    )
    assert [[rack.name for rack in group.racks] for group in spec(imported).spine_groups] == [["leaf1", "leaf2"]]
    assert codes(imported) == ["SpineSetsDiffer"]
    assert told(imported) == ["Rack leaf2 does not reach s2, which others of its group do."]


def test_eight_rails_are_one_rack_and_a_missing_cable_is_told() -> None:
    rails = [f"tor-r01-rail{i}" for i in range(8)]
    sources = {"gpu-1.json": lldp(*rails), "gpu-2.json": lldp(*rails), "gpu-3.json": lldp(*rails[:5], *rails[6:])}
    imported = fabric_of(sources, "rails")
    found = spec(imported)
    assert [(rack.name, rack.tors) for rack in found.racks] == [("tor-r01", tuple(rails))]
    assert [level.name for level in found.levels] == ["nvlinkDomain", "node", "rack", "cluster"]
    assert told(imported) == ["gpu-3 not seen at tor-r01-rail5, where the others of its rack are."]
    assert "rack tor-r01: gpu-[1-3]" in imported.comments


def test_sources_that_contradict_each_other_are_named() -> None:
    ib: dict[str, Tree] = {
        "format": "ibnetdiscover/v1",
        "switches": {"leaf1": {"guid": "1", "hosts": ["n1", "n2"], "uplinks": ["s9"]}},
    }
    imported = fabric_of({"topology.conf": tree(("leaf1", "n1 n2", "s1"), ("s1", "", "")), "ib.txt": ib}, "f")
    assert codes(imported) == ["CablingContradicts"]
    assert told(imported) == ["Switch leaf1 is below s9 here, s1 in topology.conf."]
    assert imported.findings[0].place.file == "ib.txt"


def test_a_cycle_is_named_and_the_rest_is_still_read() -> None:
    imported = fabric_of({"t": tree(("leaf1", "n1", "a"), ("a", "", "b"), ("b", "", "a"))}, "f")
    assert told(imported) == ["a, b are above each other."]
    assert [group.spines for group in spec(imported).spine_groups] == [("a",)]


def test_nvlink_blocks_inside_racks_are_a_level_above_the_node() -> None:
    imported = fabric_of(
        {"a": tree(("leaf1", "n1 n2 n3 n4", "")), "b": tree(blocks={"b1": "n1 n2", "b2": "n3 n4"})}, "f"
    )
    assert [level.name for level in spec(imported).levels] == ["node", "nvlinkDomain", "rack", "cluster"]
    assert codes(imported) == []


def test_a_block_wider_than_a_rack_is_no_level() -> None:
    imported = fabric_of({"a": tree(("l1", "n1", ""), ("l2", "n2", "")), "b": tree(blocks={"b1": "n1 n2"})}, "f")
    assert [level.name for level in spec(imported).levels] == ["nvlinkDomain", "node", "rack", "cluster"]
    assert told(imported) == ["b1 spans racks l1, l2: levels are nested, a block lies inside one rack."]


def test_racks_that_share_a_leaf_are_told() -> None:
    imported = fabric_of({"t": tree(("l1", "n1 n2", ""), ("l2", "n2 n3", ""), ("l3", "n3", ""))}, "f")
    assert "NodeInTwoPlaces" in codes(imported)


def test_nothing_about_switches_makes_no_fabric() -> None:
    imported = fabric_of({"x": {"format": "numactl-hardware/v1"}}, "f")
    assert imported.document is None
    assert codes(imported) == ["NoTopology"]


@pytest.mark.parametrize("order", [1, -1], ids=["as given", "reversed"])
def test_the_order_of_files_changes_no_byte(order: int) -> None:
    rails = {f"gpu-{n}.json": lldp(f"a{n // 3}-1", f"a{n // 3}-2") for n in range(1, 9)}
    one = fabric_of(rails, "f")
    other = fabric_of(dict(list(rails.items())[::order]), "f")
    assert (one.document, one.comments) == (other.document, other.comments)


# --- the verb ---


def test_the_verb_prints_a_document_and_says_what_is_wrong_beside_it(tmp_path: Path) -> None:
    conf = tmp_path / "topology.conf"
    conf.write_text(
        "SwitchName=l1 Nodes=n[1-2]\nSwitchName=l2 Nodes=n3\nSwitchName=s1 Switches=l[1-2]\nSwitchName=s2 Switches=l1\n"
    )
    done = CliRunner().invoke(gangops, ["import", "topology", str(conf), "--name", "hall"])
    assert done.exit_code == 0, done.output
    checked = check_file(done.stdout.encode(), "out")
    assert [d.code for d in checked.diagnostics] == []
    assert (checked.items[0].name, checked.items[0].model.spec.spine_groups[0].spines) == ("hall", ("s1", "s2"))
    assert "#   spineGroup: racks whose leaf switches share spines; found: 1" in done.stdout
    assert "warning[SpineSetsDiffer]" in done.stderr
    assert "Rack l2 does not reach s2" in done.stderr


TOPOGRAPH_TREE = """\
# switch.3.1=spine-a
SwitchName=switch.3.1 Switches=switch.2.[1-2]
# switch.2.1=leaf-17
SwitchName=switch.2.1 Nodes=gb[01-04]
# switch.2.2=leaf-18
SwitchName=switch.2.2 Nodes=gb[05-08]
SwitchName=no-topology Nodes=login[1-2]
"""
TOPOGRAPH_BLOCKS = """\
# block001=6c1bb54e.1
BlockName=block001 Nodes=gb[01-02]
# block002=6c1bb54e.2
BlockName=block002 Nodes=gb[03-04]
# block003=6c1bb54e.3
BlockName=block003 Nodes=gb[05-08]
BlockSizes=2,4
"""
TOPOGRAPH_YAML = """\
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: switch.3.1
        children: switch.2.[1-2]
      - switch: switch.2.1
        nodes: gb[01-04]
      - switch: switch.2.2
        nodes: gb[05-08]
- topology: nvlink
  cluster_default: false
  block:
    block_sizes: [2, 4]
    blocks:
      - block: block001
        nodes: gb[01-02]
      - block: block002
        nodes: gb[03-04]
      - block: block003
        nodes: gb[05-08]
"""


def test_what_topograph_writes_becomes_racks_blocks_and_a_warning_of_nodes_it_could_not_place(tmp_path: Path) -> None:
    """One input of ours in each of its three forms: tree and blocks apart, and both in one topology.yaml."""
    files = {"tree.conf": TOPOGRAPH_TREE, "block.conf": TOPOGRAPH_BLOCKS, "topology.yaml": TOPOGRAPH_YAML}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    apart, together = (
        CliRunner().invoke(gangops, ["import", "topology", *(str(tmp_path / name) for name in names), "--name", "hall"])
        for names in (("tree.conf", "block.conf"), ("topology.yaml",))
    )
    assert apart.exit_code == together.exit_code == 0, apart.output
    assert apart.stdout == together.stdout
    fabric = check_file(apart.stdout.encode(), "out").items[0].model.spec
    assert [level.name for level in fabric.levels] == ["node", "nvlinkDomain", "rack", "spineGroup", "cluster"]
    (group,) = fabric.spine_groups
    assert [rack.tors for rack in group.racks] == [("switch.2.1",), ("switch.2.2",)]
    assert "# NVLink block block003: gb[05-08]" in apart.stdout
    assert "warning[PlaceUnknown]" in apart.stderr
    assert "login1, login2 could not be placed" in apart.stderr
    assert "PlaceUnknown" not in together.stderr


def test_the_verb_gives_no_document_for_what_is_none(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("the spines are on the third floor\n")
    done = CliRunner().invoke(gangops, ["import", "topology", str(other)], standalone_mode=False)
    assert done.return_value == 4
    assert done.stdout == ""
