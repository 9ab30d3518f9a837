"""What planning does with broken links: NVLink domains are split for the groups that need them, and for nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from reconciler.model.allocation import Allocation, JobRecord, Promise
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import NicReport, Observed
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import MINUTE, SECOND, DomainName, Instant, JobKey, LevelName, NodeName
from reconciler.planner.decide import decide
from reconciler.planner.explain import blockers_of
from reconciler.planner.ground import ground_of
from reconciler.planner.verify import violations
from reconciler.planner.verify.case import Breach
from tests.planner.worlds import START, allocation, job, pending, placement, ready, running, saw, shape, world

KEY = JobKey("nlp/a")
ALL = ("gpu-001", "gpu-002", "gpu-003", "gpu-004")
NOW = Instant(START + MINUTE)


def broken(observed: Observed, *nodes: str, gpus: Sequence[int] = (5,)) -> Observed:
    """The same observation, except that these GPUs of the nodes have no NVLink up, their other GPUs 18."""
    for node in nodes:
        reports = observed.nodes[NodeName(node)].gpus
        observed = saw(observed, node, gpus=tuple(replace(r, nvlinks=0 if r.index in gpus else 18) for r in reports))
    return observed


def tensor(gpus: int, size: int, key: str = KEY, level: str = "nvlinkDomain") -> Desired:
    dims = {"tensor": size, "data": gpus // size}
    return world(jobs=[job(key, gpus, dims=dims, required={"tensor": level})])


def decided(desired: Desired, observed: Observed, *records: JobRecord) -> Allocation:
    """The next allocation, which the independent judge accepts."""
    before = allocation(desired, *records)
    after = decide(desired, observed, before, NOW).allocation
    assert violations(desired, observed, before, after) == ()
    return after


def places(made: Allocation, key: JobKey = KEY) -> dict[str, int]:
    place = made.jobs[key].placement
    assert place is not None, made.jobs[key].reason
    return {str(node): mask for node, mask in place.masks.items()}


def test_a_tensor_group_keeps_away_from_a_domain_that_lost_links() -> None:
    desired = tensor(24, 8)
    made = decided(desired, broken(ready(desired), "gpu-002"))
    assert places(made) == {"gpu-001": 255, "gpu-003": 255, "gpu-004": 255}


def test_what_asks_for_no_nvlink_gets_every_gpu() -> None:
    desired = world(jobs=[job(KEY, 32)])
    assert places(decided(desired, broken(ready(desired), "gpu-002"))) == dict.fromkeys(ALL, 255)


def test_smaller_groups_use_what_is_left_of_the_domain() -> None:
    """Seven linked GPUs hold three pairs; the GPU apart and one that has no partner hold none."""
    desired = tensor(30, 2)
    masks = places(decided(desired, broken(ready(desired), "gpu-002")))
    assert masks["gpu-002"].bit_count() == 6
    assert not masks["gpu-002"] >> 5 & 1
    assert sum(mask.bit_count() for mask in masks.values()) == 30


def test_it_waits_for_the_links_and_says_where() -> None:
    desired = tensor(32, 8)
    observed = broken(ready(desired), "gpu-002")
    made = decided(desired, observed)
    record = made.jobs[KEY]
    assert record.state is JobState.PENDING  # not held: the cluster as declared would do
    assert record.reason.code is ReasonCode.NVLINK_DOWN
    assert record.reason.numbers[:2] == reason(ReasonCode.NVLINK_DOWN, gpus=1, nodes="gpu-002 (GPU 5)").numbers
    assert blockers_of(desired, observed, made, KEY, NOW)[0].code is ReasonCode.NVLINK_DOWN


def test_when_busy_gpus_are_missing_as_well_links_are_not_the_cause() -> None:
    desired = tensor(32, 8)
    desired = replace(desired, jobs={**desired.jobs, JobKey("vision/b"): job("vision/b", 8, "high")})
    other = running(desired, "vision/b", {"gpu-001": 8})
    made = decided(desired, broken(ready(desired, other), "gpu-002"), other, pending(desired, KEY))
    assert made.jobs[KEY].reason.code is not ReasonCode.NVLINK_DOWN


def test_a_gang_that_runs_across_the_break_is_left_alone() -> None:
    desired = tensor(8, 8)
    record = running(desired, KEY, {"gpu-002": 8}, level="nvlinkDomain")
    made = decided(desired, broken(ready(desired, record), "gpu-002"), record)
    assert made.jobs[KEY] == record


def test_in_a_domain_of_several_nodes_a_tray_that_lost_links_is_avoided_as_a_whole() -> None:
    desired = tensor(16, 16)
    names = ("node", "nvlinkDomain", "rack", "cluster")
    trays = replace(
        desired.inventory,
        levels=tuple(
            replace(level, name=LevelName(name))
            for level, name in zip(desired.inventory.levels[1:], names, strict=True)
        ),
        nodes=tuple(
            replace(node, path=(DomainName("r1"), DomainName("block-1" if node.name < "gpu-004" else "block-2")))
            for node in desired.inventory.nodes
        ),
    )
    desired = replace(desired, inventory=trays)
    assert places(decided(desired, broken(ready(desired), "gpu-002"))) == {"gpu-001": 255, "gpu-003": 255}


def promised(desired: Desired, level: str) -> JobRecord:
    """The job with all of gpu-002 promised to it, every GPU of it free."""
    kept = Promise(
        placement=placement(desired, {"gpu-002": 8}, level=level),
        made=START,
        deadline=Instant(START + 3600 * SECOND),
        waiting_for=(),
    )
    return replace(pending(desired, KEY), state=JobState.PROMISED, promise=kept)


def test_a_promise_across_a_break_moves() -> None:
    desired = tensor(8, 8)
    record = promised(desired, "nvlinkDomain")
    assert places(decided(desired, ready(desired), record)) == {"gpu-002": 255}
    assert places(decided(desired, broken(ready(desired), "gpu-002"), record)) == {"gpu-001": 255}


def dark(observed: Observed, node: str, nic: int) -> Observed:
    nics = tuple(NicReport(name=f"mlx5_{i}", up=i != nic) for i in range(8))
    return saw(observed, node, nics=nics)


def nics_of(made: Allocation) -> list[tuple[str, int, str, int]]:
    place = made.jobs[KEY].placement
    assert place is not None
    return [(rank.node, rank.gpu, rank.nic, rank.rail) for rank in place.ranks]


def test_a_gpu_whose_nic_is_down_has_no_rail_and_keeps_its_capacity() -> None:
    desired = world(jobs=[job(KEY, 32)])
    rows = nics_of(decided(desired, dark(ready(desired), "gpu-002", 5)))
    assert len(rows) == 32
    assert [row for row in rows if not row[2]] == [("gpu-002", 5, "", -1)]
    assert all((nic, rail) == (f"mlx5_{gpu}", gpu) for _, gpu, nic, rail in rows if nic)


@pytest.mark.parametrize("nic", [5, -1], ids=["went down", "as promised"])
def test_a_promise_starts_where_it_was_made_with_the_nics_there_are_now(nic: int) -> None:
    desired = world(jobs=[job(KEY, 8)])
    rows = nics_of(decided(desired, dark(ready(desired), "gpu-002", nic), promised(desired, "node")))
    assert {node for node, *_ in rows} == {"gpu-002"}
    assert [gpu for _, gpu, name, _ in rows if not name] == ([5] if nic == 5 else [])


def test_the_judge_refuses_a_tensor_group_across_a_break() -> None:
    desired = tensor(8, 8)
    before = allocation(desired, pending(desired, KEY))
    good = decide(desired, ready(desired), before, NOW).allocation
    node = next(iter(places(good)))
    found = violations(desired, broken(ready(desired), node), before, good)
    assert Breach.LEVEL_BROKEN in {violation.code for violation in found}


def test_pairs_that_lost_one_pair_still_hold_pairs() -> None:
    dims, required = {"tensor": 2, "data": 15}, {"tensor": "nvlinkDomain"}
    desired = world(of=shape(8, nvlink=(3, 12, 48, 192)), jobs=[job(KEY, 30, dims=dims, required=required)])
    masks = places(decided(desired, broken(ready(desired), "gpu-003", gpus=(2, 3))))
    assert masks == {"gpu-001": 255, "gpu-002": 255, "gpu-003": 0b11110011, "gpu-004": 255}


def test_nothing_broken_is_the_same_ground() -> None:
    desired = tensor(8, 8)
    assert ground_of(desired.inventory, ready(desired)) is ground_of(desired.inventory)
    observed = broken(ready(desired), "gpu-001")
    assert ground_of(desired.inventory, observed) is ground_of(desired.inventory, observed)
    assert ground_of(desired.inventory, observed).torn == {0: 1 << 5}
