"""Adopting drift: which differences a file can hold, how they are written, and what is left for people."""

from __future__ import annotations

import pytest

from reconciler.documents.check import check_file
from reconciler.documents.scaffold import scaffold
from reconciler.errors import NotFound
from reconciler.model.inventory import GpuSlot, Node, NodeShape
from reconciler.model.observed import GpuReport, NicReport, NodeCondition, NodeObservation
from reconciler.model.units import Bytes, DomainName, GpuType, Instant, NodeName
from reconciler.runtime.inventory import Adoption, adopt, racks_with_switches

RACKS = "cluster-state/inventory/racks.yaml"
FILES = {path: content for path, content in scaffold().items() if not path.startswith("schemas/")}


def node(name: str) -> Node:
    slots = tuple(GpuSlot(index=i, numa=i // 4, nic=f"mlx5_{i}", rail=i, links=18) for i in range(8))
    shape = NodeShape(
        profile="hgx-h100", gpu_type=GpuType("H100"), gpu_memory=Bytes(80 << 30), gpus=slots, nvlink=(0xFF,), numa=()
    )
    return Node(name=NodeName(name), shape=shape, path=(DomainName("sg0"), DomainName("r01")), labels={})


def adopted(
    files: dict[str, bytes], *, without: int = 5, links: int = 18, dark: str = "mlx5_2", xids: tuple[int, ...] = ()
) -> Adoption:
    seen = NodeObservation(
        node=NodeName("gpu-02"),
        boot_id="b",
        address="",
        condition=NodeCondition.READY,
        condition_since=Instant(1),
        gpu_type="H100",
        gpus=tuple(
            GpuReport(index=i, uuid="", nvlinks=links if i == 7 else 18, xids=xids if i == 3 else ())
            for i in range(8)
            if i != without
        ),
        nics=tuple(NicReport(name=f"mlx5_{i}", up=f"mlx5_{i}" != dark) for i in range(8)),
    )
    return adopt(files, node("gpu-02"), seen)


def test_missing_gpus_and_dark_nics_become_overrides_and_comments_stay() -> None:
    done = adopted(FILES, links=17)
    assert [d.code for d in done.adopted] == ["GpuMissing", "NicDown"]
    assert [d.code for d in done.left] == ["NvlinkDown"]
    assert list(done.changes) == [RACKS]
    text = done.changes[RACKS].decode()
    assert "# Which nodes stand where. A node list is in Slurm's syntax, in quotes." in text
    override = check_file(text.encode(), RACKS).items[0].model.spec.overrides["gpu-02"]
    assert {gpu: said.state for gpu, said in override.gpus.items()} == {5: "failed"}
    assert {nic: said.state for nic, said in override.nics.items()} == {"mlx5_2": "down"}
    assert check_file(text.encode(), RACKS).items[1].model == check_file(FILES[RACKS], RACKS).items[1].model


def test_a_fatal_fault_becomes_a_failed_gpu_with_its_reason_and_a_lesser_one_is_left() -> None:
    done = adopted(FILES, without=-1, dark="", xids=(74, 79))
    assert [d.code for d in done.adopted] == ["XidFatal"]
    assert [d.code for d in done.left] == ["XidLogged"]
    gpus = check_file(done.changes[RACKS], RACKS).items[0].model.spec.overrides["gpu-02"].gpus
    assert {gpu: (said.state, said.reason) for gpu, said in gpus.items()} == {3: ("failed", "XID 79: fell off the bus")}


def test_an_override_that_names_the_node_alone_is_added_to() -> None:
    mine = FILES[RACKS].replace(b"rack: r01}", b"rack: r01, overrides: {gpu-02: {cordoned: fans}}}  # fans are loud", 1)
    done = adopted({**FILES, RACKS: mine})
    text = done.changes[RACKS]
    override = check_file(text, RACKS).items[0].model.spec.overrides["gpu-02"]
    assert (override.cordoned, list(override.gpus), list(override.nics)) == ("fans", [5], ["mlx5_2"])
    assert b"# fans are loud" in text


def test_nothing_to_adopt_changes_nothing() -> None:
    done = adopted(FILES, without=-1, dark="")
    assert (done.changes, done.adopted, done.left) == ({}, (), ())


def test_a_node_of_no_set_is_not_found() -> None:
    with pytest.raises(NotFound) as caught:
        adopted({path: content for path, content in FILES.items() if path != RACKS})
    assert caught.value.code == "UnknownNode"


def test_switches_of_racks_are_expanded() -> None:
    fabric = b"""\
apiVersion: gangops/v1
kind: Fabric
metadata: {name: f}
spec:
  levels: [{name: node, latency: 1us, bandwidth: 1Gbps}, {name: rack, latency: 1us, bandwidth: 1Gbps}, {name: cluster, latency: 1us, bandwidth: 1Gbps}]
  racks: [{name: r1, tors: ["tor-[0-1]", spare]}, {name: r2}]
"""
    assert racks_with_switches({"cluster-state/fabric/f.yaml": fabric}) == {"r1": ("tor-0", "tor-1", "spare")}
