"""cordon, uncordon, drain, quota: each edit is one that the planner then sees, and nothing beside it moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.documents.desired import SourceFile, load_desired
from reconciler.documents.edit import format_text
from reconciler.errors import ExitStatus
from reconciler.model.desired import Desired
from reconciler.model.units import HOUR, MINUTE, SECOND, CommitId, GpuType, Instant, QueueName
from reconciler.runtime.clone import open_clone
from reconciler.runtime.proposals import nodes
from reconciler.runtime.proposals.change import Change
from reconciler.runtime.proposals.desk import Desk
from reconciler.store.statecommit import Writer
from tests.cli.people import Person, codes, person_at
from tests.runtime.lab import BASE, Lab
from tests.store.world import NOW, new_repository, text

SETS = """\
# racks
apiVersion: gangops/v1
kind: NodeSet
metadata: {name: r01}
spec: {nodes: "gpu-[001-004]", profile: small, rack: r01}   # four
---
apiVersion: gangops/v1
kind: NodeSet
metadata: {name: r02}
spec:
  nodes: "gpu-[005-008]"
  profile: small
  rack: r02
  overrides:                         # what differs
    gpu-005:
      gpus: {"5": {state: failed, reason: XID 79}}
    "gpu-[006-007]": {labels: {disk: new}}
"""
NODES = "cluster-state/inventory/nodes.yaml"
PARTLY = (
    '+spec: {nodes: "gpu-[001-004]", profile: small, rack: r01, '
    'overrides: {"gpu-[001-002]": {cordoned: DC-1}}}   # four'
)


@pytest.fixture
def lab(tmp_path: Path, writer: Writer) -> Lab:
    found = Lab(folder=tmp_path, remote=new_repository(tmp_path / "remote.git"), writer=writer)
    found.desire({NODES: SETS})
    return found


class World:
    """The desired tree as a chain of changes makes it; each is made on what the one before left."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    @property
    def desk(self) -> Desk:
        return Desk(open_clone(self.lab.remote.path))

    def after(self, change: Change) -> Desired:
        assert change.files, change.unchanged
        self.lab.desire({path: None if new is None else new.decode() for path, new in change.files.items()})
        return self.desired

    @property
    def desired(self) -> Desired:
        files = [SourceFile(path=p, oid=p + c, content=c.encode()) for p, c in sorted(self.lab.files.items())]
        loaded = load_desired(files, CommitId("0" * 40))
        assert not [d for d in loaded.diagnostics if d.is_error], loaded.diagnostics
        assert loaded.desired is not None
        return loaded.desired

    @property
    def nodes(self) -> str:
        return self.lab.files[NODES]


@pytest.fixture
def world(lab: Lab) -> World:
    return World(lab)


def cordoned(desired: Desired) -> dict[str, str]:
    return {node.name: node.cordoned for node in desired.inventory.nodes if node.cordoned}


def every(first: int, last: int, why: str) -> dict[str, str]:
    return {f"gpu-00{n}": why for n in range(first, last + 1)}


def lines_changed(before: str, after: str) -> list[str]:
    """Lines of the one that the other has not, marked as a diff does."""
    old, new = before.splitlines(), after.splitlines()
    return [*(f"-{line}" for line in old if line not in new), *(f"+{line}" for line in new if line not in old)]


@pytest.mark.parametrize(
    ("lists", "expected", "lines"),
    [
        (
            ("gpu-[001-004]",),
            every(1, 4, "DC-1"),
            [
                '-spec: {nodes: "gpu-[001-004]", profile: small, rack: r01}   # four',
                '+spec: {nodes: "gpu-[001-004]", profile: small, rack: r01, cordoned: DC-1}   # four',
            ],
        ),
        (
            ("gpu-001", "gpu-002"),
            every(1, 2, "DC-1"),
            [
                '-spec: {nodes: "gpu-[001-004]", profile: small, rack: r01}   # four',
                PARTLY,
            ],
        ),
        (("gpu-005",), every(5, 5, "DC-1"), ["+      cordoned: DC-1"]),
        (
            ("gpu-[006-008]",),
            every(6, 8, "DC-1"),
            [
                '-    "gpu-[006-007]": {labels: {disk: new}}',
                '+    "gpu-[006-007]": {labels: {disk: new}, cordoned: DC-1}',
                "+    gpu-008: {cordoned: DC-1}",
            ],
        ),
        (("gpu-[005-008]",), every(5, 8, "DC-1"), ["+  cordoned: DC-1"]),
    ],
    ids=["a whole set", "some without overrides", "one that has an override", "an override of two", "the other set"],
)
def test_a_cordon_is_written_where_it_belongs_and_taken_back_without_a_trace(
    world: World, lists: tuple[str, ...], expected: dict[str, str], lines: list[str]
) -> None:
    assert cordoned(world.after(nodes.cordon(world.desk, lists, "DC-1"))) == expected
    assert lines_changed(SETS, world.nodes) == lines
    assert cordoned(world.after(nodes.uncordon(world.desk, lists, Instant(NOW)))) == {}
    if "overrides" not in lines[-1]:
        assert world.nodes == SETS


def test_one_node_of_a_cordoned_set_comes_back_and_the_others_stay(world: World) -> None:
    world.after(nodes.cordon(world.desk, ("gpu-[001-004]",), "DC-1"))
    assert cordoned(world.after(nodes.uncordon(world.desk, ("gpu-002",), Instant(NOW)))) == {
        "gpu-001": "DC-1", "gpu-003": "DC-1", "gpu-004": "DC-1",
    }  # fmt: skip
    assert cordoned(world.after(nodes.uncordon(world.desk, ("gpu-003",), Instant(NOW)))) == {
        "gpu-001": "DC-1", "gpu-004": "DC-1",
    }  # fmt: skip


def test_what_is_cordoned_already_keeps_its_reason(world: World) -> None:
    world.after(nodes.cordon(world.desk, ("gpu-001",), "DC-1"))
    change = nodes.cordon(world.desk, ("gpu-[001-002]",), "DC-2")
    assert change.remarks == ("gpu-001 is cordoned already: DC-1.",)
    assert cordoned(world.after(change)) == {"gpu-001": "DC-1", "gpu-002": "DC-2"}
    assert nodes.cordon(world.desk, ("gpu-[001-002]",), "DC-3").unchanged == "gpu-[001-002] are cordoned already"


def test_a_part_of_a_shared_override_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ada = person_at(world.lab, monkeypatch)
    found = ada.run("cordon", "gpu-006", "-r", "x", "--yes")
    assert codes(found) == ("OverrideShared", ExitStatus.ERROR)
    assert "gpu-[006-007]" in str(found.exception)


# --- drains ---


def windows(desired: Desired) -> dict[str, tuple[int, int, str]]:
    return {w.node: (w.begins, w.ends, w.drain) for w in desired.windows}


MINUTE_OF_NOW = NOW // (60 * 10**9) * (60 * 10**9)


def test_a_drain_without_an_end_is_a_cordon_and_a_window_and_uncordon_undoes_both(world: World) -> None:
    change = nodes.drain(world.desk, ("gpu-[001-002]",), "XID 79", Instant(NOW))
    desired = world.after(change)
    assert cordoned(desired) == every(1, 2, "XID 79")
    assert windows(desired) == dict.fromkeys(
        ("gpu-001", "gpu-002"), (MINUTE_OF_NOW, MINUTE_OF_NOW + 24 * HOUR, "checkpoint")
    )
    made = next(path for path in change.files if "maintenance" in path)
    assert format_text(world.lab.files[made].encode()).decode() == world.lab.files[made]
    later = Instant(NOW + HOUR)
    again = nodes.drain(world.desk, ("gpu-001",), "XID 79", later)
    assert again.unchanged == "gpu-001 is drained already, until 2026-01-02 00:00:00Z"
    desired = world.after(nodes.uncordon(world.desk, ("gpu-001",), later))
    assert cordoned(desired) == every(2, 2, "XID 79")
    assert list(windows(desired)) == ["gpu-002"]
    desired = world.after(nodes.uncordon(world.desk, ("gpu-002",), later))
    assert (cordoned(desired), windows(desired), made in world.lab.files) == ({}, {}, False)


def test_a_drain_with_an_end_is_a_window_alone(world: World) -> None:
    until = Instant(MINUTE_OF_NOW + 4 * HOUR)
    change = nodes.drain(world.desk, ("gpu-003",), "memory", Instant(NOW), until=until, how="wait")
    desired = world.after(change)
    assert cordoned(desired) == {}
    assert windows(desired) == {"gpu-003": (MINUTE_OF_NOW, until, "wait")}
    assert change.title == "Drain gpu-003 until 2026-01-01 04:00:00Z: memory"


def test_a_drain_ends_with_a_minute_so_that_saying_it_twice_is_one_change(world: World) -> None:
    first, again = (
        nodes.drain(world.desk, ("gpu-003",), "memory", at, until=Instant(at + 4 * HOUR))
        for at in (Instant(NOW + 1), Instant(NOW + 59 * SECOND))
    )
    assert again.files == first.files
    assert windows(world.after(first)) == {"gpu-003": (MINUTE_OF_NOW, MINUTE_OF_NOW + 4 * HOUR + MINUTE, "checkpoint")}


def test_a_planned_window_of_somebody_else_stays_and_is_told(world: World) -> None:
    path = "cluster-state/maintenance/firmware.yaml"
    world.lab.desire(
        {
            path: """\
apiVersion: gangops/v1
kind: Maintenance
metadata: {name: firmware}
spec: {nodes: "gpu-[001-002]", from: "2026-01-01T00:00:00+00:00", to: "2026-01-01T09:00:00+00:00", reason: DC-9}
"""
        }
    )
    told = f"gpu-001 is still in Maintenance firmware ({path}), 2026-01-01 00:00:00Z to 2026-01-01 09:00:00Z."
    assert (
        nodes.uncordon(world.desk, ("gpu-001",), Instant(NOW)).unchanged
        == f"gpu-001 is not cordoned in any file\n{told}"
    )
    world.after(nodes.cordon(world.desk, ("gpu-001",), "DC-1"))
    change = nodes.uncordon(world.desk, ("gpu-001",), Instant(NOW))
    assert change.remarks == (told,)
    assert list(change.files) == [NODES]


# --- as a person types it ---


@pytest.fixture
def ada(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Person:
    lab.begin()
    lab.desk().settle()
    return person_at(lab, monkeypatch)


def test_drain_from_the_command_line(ada: Person) -> None:
    told = ada.done("drain", "gpu-[001-002]", "--reason", "XID 79", "--for", "4h", "--yes").stdout
    branch = ada.only_branch()
    (change,) = ada.changed(branch)
    assert branch.startswith("gangops/drain-gpu-001-002-")
    assert change.startswith("A cluster-state/maintenance/drain-gpu-001-002-")
    assert max(map(len, told.partition("\nBranch")[0].splitlines())) <= 80
    assert "No job changes" in told


@pytest.mark.parametrize(
    ("arguments", "guaranteed", "ceiling"),
    [
        (("H100=16",), {"H100": 16}, {}),
        (("--guaranteed", "H100=0", "--ceiling", "H100=24"), {"H100": 0}, {"H100": 24}),
    ],
)
def test_quota_set(
    ada: Person, arguments: tuple[str, ...], guaranteed: dict[str, int], ceiling: dict[str, int]
) -> None:
    ada.done("quota", "set", "nlp", *arguments, "--yes", "-m", "as agreed")
    path = "cluster-state/queues/tree.yaml"
    content = ada.at(ada.only_branch(), path)
    assert content is not None
    world = World(ada.lab)
    ada.lab.files[path] = content
    queue = world.desired.quotas.queues[QueueName("nlp")]
    assert {GpuType(k): v for k, v in guaranteed.items()} == dict(queue.guaranteed)
    assert {GpuType(k): v for k, v in ceiling.items()} == dict(queue.ceiling)
    assert BASE[path].partition("---")[0] == content.partition("---")[0]
    assert text(ada.lab.remote.path, "log", "-1", "--format=%b", ada.only_branch()) == "as agreed"


def test_a_quota_that_cannot_be_is_shown_and_not_pushed(ada: Person) -> None:
    found = ada.run("quota", "set", "nlp", "H100=16", "--ceiling", "H100=8", "--yes")
    assert codes(found) == ("ProposalInvalid", ExitStatus.INVALID)
    assert "! NOT TO BE MERGED" in found.stdout
    assert "cluster-state/queues/tree.yaml:" in found.stdout
    assert ada.branches() == []
