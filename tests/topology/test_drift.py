"""Declared against observed hardware: what is told, what it takes away, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reconciler.documents.cpulist import parse_cpus
from reconciler.model.observed import GpuReport, NodeObservation, NumaReport, Observed
from reconciler.model.units import Bytes, DomainName, GpuType, Instant, NodeName
from reconciler.planner.capacity import Supply
from reconciler.planner.ground import ground_of
from reconciler.topology.drift import Drift, DriftCode, Effect, drift_of, effective, node_drift, numbers_of, unlinked
from tests.topology.machines import GIB, gpus, inventory, nics, node, seen, shape

CASES: dict[str, tuple[NodeObservation, tuple[str, ...]]] = {
    "as declared": (seen(), ()),
    "one that says nothing but its GPUs": (
        seen(gpus=tuple(GpuReport(index=i, uuid="") for i in range(8)), nics=(), numa=()),
        (),
    ),
    "another model": (seen(gpu_type="H200"), ("has GPUs of type H200, not H100",)),
    "two GPUs missing": (seen(gpus=gpus(g2=None, g3=None)), ("GPU 2-3 not seen",)),
    "one GPU more": (seen(gpus=(*gpus(), GpuReport(index=8, uuid=""))), ("GPU 8 seen, not declared",)),
    "a smaller memory": (
        seen(gpus=gpus(g0={"memory": Bytes(40 * GIB)})),
        ("GPU 0 with 40960 MiB of memory, not 81920",),
    ),
    "NVLinks down": (seen(gpus=gpus(g5={"nvlinks": 0})), ("GPU 5 with 0 of 18 NVLinks up",)),
    "one NVLink of two GPUs down": (
        seen(gpus=gpus(g1={"nvlinks": 17}, g2={"nvlinks": 17})),
        ("GPU 1-2 with 17 of 18 NVLinks up",),
    ),
    "a NIC down": (seen(nics=nics(n5={"up": False})), ("mlx5_5 is down, which serves GPU 5",)),
    "a NIC gone": (seen(nics=nics(n5=None)), ("mlx5_5 not seen, which serves GPU 5",)),
    "narrow slots": (
        seen(gpus=gpus(g1={"pcie_width": 8}), nics=nics(n1={"pcie_width": 4})),
        ("GPU 1 trained at x8 of x16", "mlx5_1 trained at x4 of x16"),
    ),
    "a GPU that is ill": (
        seen(gpus=gpus(g3={"healthy": False, "reason": "2 uncorrected memory errors"})),
        ("GPU 3 is not healthy: 2 uncorrected memory errors",),
    ),
    "a fatal fault of two GPUs": (
        seen(gpus=gpus(g3={"xids": (79,)}, g4={"xids": (79,)})),
        ("GPU 3-4 logged XID 79: fell off the bus",),
    ),
    "a fault that is none of the fatal ones": (seen(gpus=gpus(g3={"xids": (74,)})), ("GPU 3 logged XID 74",)),
    "a fatal fault after which nothing is left to do": (
        seen(gpus=gpus(g3={"xids": (48,), "recovery": "None"})),
        ("GPU 3 logged XID 48",),
    ),
    "a driver that asks for something": (
        seen(gpus=gpus(g3={"recovery": "Drain and Reset"})),
        ("GPU 3 has a fault for which its driver asks: Drain and Reset",),
    ),
    "memory rows that wait for a reset": (
        seen(gpus=gpus(g3={"rows_pending": True})),
        ("GPU 3 has memory rows that a reset will replace",),
    ),
    "a hot GPU": (
        seen(gpus=gpus(g3={"throttled": "heat, by the hardware"})),
        ("GPU 3 has been slowed down for a while: heat, by the hardware",),
    ),
    "slow lanes": (
        seen(
            gpus=gpus(g1={"pcie_speed": 16_000, "pcie_fastest": 32_000}),
            nics=nics(n1={"pcie_speed": 8_000, "pcie_fastest": 32_000}),
        ),
        ("GPU 1 trained at 16000 of 32000 MT/s a lane", "mlx5_1 trained at 8000 of 32000 MT/s a lane"),
    ),
    "another NUMA node": (seen(gpus=gpus(g0={"numa": 1})), ("GPU 0 is at NUMA node 1, not 0",)),
    "fewer CPUs": (
        seen(numa=(NumaReport(id=0, cpus="0-3,6"), NumaReport(id=1, cpus="8-15"))),
        ("NUMA node 0 has CPUs 0-3,6, without 4-5,7 of those declared",),
    ),
}


@pytest.mark.parametrize(("observation", "told"), CASES.values(), ids=CASES)
def test_what_is_told_of_one_node(observation: NodeObservation, told: tuple[str, ...]) -> None:
    assert tuple(drift.sentence for drift in node_drift(node(), observation)) == told


TAKEN = {"TypeDiffers", "GpuMissing", "GpuFaulty", "RecoveryNeeded", "XidFatal"}
EFFECTS_BY_CODE = {
    **dict.fromkeys(TAKEN, Effect.CAPACITY_REMOVED),
    "NvlinkDown": Effect.DOMAIN_SPLIT,
    "NicMissing": Effect.RAIL_AVOIDED,
    "NicDown": Effect.RAIL_AVOIDED,
}


@pytest.mark.parametrize("code", DriftCode)
def test_what_planning_does_about_each_sort(code: DriftCode) -> None:
    """The table of the decision record, said a second time."""
    wanted = EFFECTS_BY_CODE.get(code.value, Effect.WARNING_ONLY)
    drift = Drift(node=NodeName("n1"), code=code)
    assert (drift.effect, drift.is_grave) == (wanted, wanted is not Effect.WARNING_ONLY)


@pytest.mark.parametrize(("observation", "told"), CASES.values(), ids=CASES)
def test_capacity_is_removed_from_exactly_the_gpus_of_which_that_is_told(
    observation: NodeObservation, told: tuple[str, ...]
) -> None:
    """What the drift says and what the planner offers are worked out apart; here they meet."""
    declared = node()
    supply = Supply(ground_of(inventory(declared)), Observed(nodes={declared.name: observation}), {}, (), ())
    lost = set()
    for drift in node_drift(declared, observation):
        if drift.effect is Effect.CAPACITY_REMOVED:
            lost |= set(parse_cpus(str(dict(drift.numbers).get("gpus", "0-7"))))
    assert {i for i in range(8) if not supply.usable[0] >> i & 1} == lost


def test_a_reported_name_that_is_known_for_the_type_is_no_drift() -> None:
    known = replace(shape(), gpu_type=GpuType("H100-SXM5-80GB"), models=("H100-80GB-HBM3",))
    as_driver = seen(gpu_type="H100-80GB-HBM3")
    assert node_drift(node(of=known), as_driver) == ()
    (drift,) = node_drift(node(of=known), seen(gpu_type="H100-PCIe"))
    assert drift.sentence == "has GPUs of type H100-PCIe, not H100-SXM5-80GB"


@pytest.mark.parametrize("state", [None, {"xids": (79,)}, {"healthy": False}, {"recovery": "Reset"}])
def test_of_a_gpu_declared_failed_nothing_more_is_told(state: dict[str, Any] | None) -> None:
    assert node_drift(replace(node(), failed=1 << 5), seen(gpus=gpus(g5=state))) == ()


def test_a_nic_at_another_racks_switch_is_told_when_the_rack_names_its_switches() -> None:
    declared = inventory(node())
    moved = Observed(nodes={NodeName("n1"): seen(nics=nics(n3={"switch": "tor-r9"}))})
    switches = {DomainName("r1"): tuple(f"tor-{i}" for i in range(8))}

    assert drift_of(declared, moved) == ()
    (drift,) = drift_of(replace(declared, switches=switches), moved)
    assert (drift.code, drift.sentence) == (DriftCode.SWITCH_DIFFERS, "mlx5_3 is cabled to tor-r9, no switch of r1")
    assert drift.effect is Effect.WARNING_ONLY


def test_a_node_never_seen_has_no_drift() -> None:
    assert drift_of(inventory(node()), Observed()) == ()


def test_twins_that_differ_are_told_against_what_most_of_them_have() -> None:
    names = ("n1", "n2", "n3")
    nodes = {NodeName(n): seen(n) for n in names}
    nodes[NodeName("n2")] = seen("n2", driver="550.9")
    (drift,) = drift_of(inventory(*(node(n) for n in names)), Observed(nodes=nodes))
    assert (drift.node, drift.code) == ("n2", DriftCode.TWIN_DIFFERS)
    assert drift.numbers == (("what", "driver"), ("seen", "550.9"), ("most", "570.1"), ("count", 2))


def test_two_twins_that_differ_prove_nothing_about_either() -> None:
    nodes = {NodeName("n1"): seen("n1"), NodeName("n2"): seen("n2", driver="550.9")}
    assert drift_of(inventory(node("n1"), node("n2")), Observed(nodes=nodes)) == ()


def test_a_tray_in_another_clique_than_its_block_is_told() -> None:
    trays = [node(f"t{i}", path=("block-1",)) for i in range(3)]
    nodes = {tray.name: seen(tray.name, clique="uuid.1") for tray in trays}
    nodes[NodeName("t1")] = seen("t1", clique="uuid.2")
    (drift,) = drift_of(inventory(*trays, above=("nvlinkDomain",)), Observed(nodes=nodes))
    assert (drift.node, drift.code) == ("t1", DriftCode.CLIQUE_DIFFERS)
    assert dict(drift.numbers)["most"] == "uuid.1"


# --- what is left ---


def test_a_broken_nvlink_splits_its_island_and_nothing_else() -> None:
    declared = inventory(node("n1"), node("n2"))
    seen_now = Observed(nodes={NodeName("n1"): seen("n1", gpus=gpus(g5={"nvlinks": 0})), NodeName("n2"): seen("n2")})
    usable = effective(declared, seen_now)
    assert usable.nodes[0].shape.nvlink == (0b11011111, 0b00100000)
    assert replace(usable.nodes[0].shape, nvlink=(0xFF,)) == declared.nodes[0].shape
    assert usable.nodes[1] is declared.nodes[1]


def test_the_inventory_is_the_same_object_while_nothing_is_taken_away() -> None:
    declared = inventory(node())
    narrow = seen(gpus=gpus(g0={"pcie_width": 8}))
    assert effective(declared, Observed(nodes={NodeName("n1"): narrow})) is declared
    assert effective(declared, Observed()) is declared


def test_a_gpu_whose_nic_is_down_has_no_rail() -> None:
    dark = Observed(nodes={NodeName("n1"): seen(nics=nics(n5={"up": False}))})
    slots = effective(inventory(node()), dark).nodes[0].shape.gpus
    assert [(slot.nic, slot.rail) for slot in slots[4:7]] == [("mlx5_4", 4), ("", -1), ("mlx5_6", 6)]


def test_a_nic_that_is_nobodys_own_serves_all_it_is_near_to_and_is_no_ones_rail() -> None:
    slots = tuple(replace(s, nic="", rail=-1, near=(f"mlx5_{s.index // 4}", "mlx5_7")) for s in shape().gpus)
    tied = node(of=replace(shape(), gpus=slots))
    dark = seen(nics=nics(n1={"up": False}, n2=None))
    assert [drift.sentence for drift in node_drift(tied, dark)] == ["mlx5_1 is down, which serves GPU 4-7"]
    usable = effective(inventory(tied), Observed(nodes={NodeName("n1"): dark})).nodes[0].shape.gpus
    assert [slot.near for slot in usable[3:5]] == [("mlx5_0", "mlx5_7"), ("mlx5_7",)]


def test_pairs_lose_only_the_pair_that_broke() -> None:
    pairs = shape(0b11, 0b1100, 0b110000, 0b11000000, links=12)
    broken = gpus(**{f"g{i}": {"nvlinks": 0 if i in {2, 3} else 12} for i in range(8)})
    assert unlinked(pairs, broken) == 0b1100


def test_without_declared_links_the_other_gpus_of_the_island_are_the_measure() -> None:
    assert unlinked(shape(links=0), gpus(g5={"nvlinks": 12})) == 1 << 5
    assert unlinked(shape(links=0), gpus(**{f"g{i}": {"nvlinks": 0} for i in range(8)})) == 0xFF


def test_gpus_that_stand_alone_need_no_links() -> None:
    alone = shape(*(1 << i for i in range(8)), links=0)
    assert unlinked(alone, gpus(**{f"g{i}": {"nvlinks": 0} for i in range(8)})) == 0


@pytest.mark.parametrize(("mask", "text"), [(0, ""), (1, "0"), (0b10111, "0-2,4"), (0xFF00, "8-15")])
def test_numbers_of(mask: int, text: str) -> None:
    assert numbers_of(mask) == text


def test_equal_facts_give_the_same_object_again() -> None:
    declared = inventory(node("n1"), node("n2"))
    broken = seen("n1", gpus=gpus(g5={"nvlinks": 0}))
    first = effective(declared, Observed(nodes={NodeName("n1"): broken}))
    later = replace(broken, condition_since=Instant(99))  # the same facts, said by a later report
    assert effective(declared, Observed(nodes={NodeName("n1"): later})) is first
    assert effective(declared, Observed(nodes={NodeName("n1"): seen("n1")})) is declared
