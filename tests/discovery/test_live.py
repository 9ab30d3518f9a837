"""Captured machines, replayed: what is described, what is left open, and the machine the tests run on."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.cli.discover import summary
from reconciler.cli.root import root as gangops
from reconciler.discovery.live.capture import capture
from reconciler.discovery.live.describe import Description, describe
from reconciler.discovery.live.machine import Machine, look, pci_address
from reconciler.discovery.live.source import Source
from reconciler.documents.check import check_file
from reconciler.documents.cpulist import parse_cpus
from reconciler.documents.edit import new_document
from reconciler.documents.scaffold import scaffold
from reconciler.errors import GangOpsError, UsageError
from reconciler.runtime.authoring import check_folder
from tests.discovery.captured_trees import unpack


def replay(name: str, folder: Path) -> Machine:
    return look(Source(root=unpack(name, folder), captured=True))


def profile_spec(described: Description) -> Any:
    """The spec as the schema reads it back; both documents have to be valid."""
    assert described.profile is not None
    assert described.node_set is not None
    text = new_document(described.profile) + b"---\n" + new_document(described.node_set)
    checked = check_file(text, "discovered")
    assert [str(d) for d in checked.diagnostics] == []
    return checked.items[0].model.spec


def test_h100_with_nvswitch_and_eight_rails(tmp_path: Path) -> None:
    machine = replay("h100-nvswitch", tmp_path)
    described = describe(machine, rack="r01")
    spec = profile_spec(described)

    assert machine.host == "gpu-017"
    assert (spec.gpu_type, spec.gpu_memory >> 30, spec.gpus) == ("H100-80GB-HBM3", 80, 8)
    assert [(d.gpus, d.fabric, d.links) for d in spec.nvlink_domains] == [(tuple(range(8)), "nvswitch", 18)]
    assert [(s.numa, s.gpus, s.nics) for s in spec.pcie_switches] == [
        (gpu // 4, (gpu,), (f"mlx5_{gpu}",)) for gpu in range(8)
    ]
    assert [(n.name, n.rail, n.speed, n.kind) for n in spec.nics] == [
        (f"mlx5_{rail}", rail, 400_000_000_000, "roce") for rail in range(8)
    ]
    assert described.remarks == ()


def test_one_of_a_thing_is_told_as_one(tmp_path: Path) -> None:
    machine = replay("h100-nvswitch", tmp_path)
    one = replace(machine, gpus=machine.gpus[:1], nics=machine.nics[:1], numa=machine.numa[:1])
    assert summary(one)[0] == f"{machine.host}: 1 GPU, 1 NIC, 1 NUMA node"
    assert summary(machine)[0].startswith(f"{machine.host}: 8 GPUs, ")


def test_the_rack_is_found_by_its_switches(tmp_path: Path) -> None:
    machine = replay("h100-nvswitch", tmp_path)
    racks = {"r01": [f"tor-r01-rail{i}" for i in range(8)], "r02": [f"tor-r02-rail{i}" for i in range(8)]}
    node_set = describe(machine, racks=racks).node_set
    assert node_set is not None
    assert node_set["spec"] == {"nodes": "gpu-017", "profile": "h100-80gb-hbm3x8", "rack": "r01"}


def test_a100_pairs_and_a_nic_that_two_gpus_share(tmp_path: Path) -> None:
    described = describe(replay("a100-pcie-pairs", tmp_path), rack="r01")
    spec = profile_spec(described)
    assert [(d.gpus, d.fabric, d.links) for d in spec.nvlink_domains] == [
        ((n, n + 1), "direct", 12) for n in (0, 2, 4, 6)
    ]
    assert [(s.numa, s.gpus, s.nics) for s in spec.pcie_switches] == [
        (0, (0, 1), ("mlx5_0",)), (0, (2, 3), ()), (1, (4, 5), ("mlx5_1",)), (1, (6, 7), ()),
    ]  # fmt: skip
    assert {nic.kind for nic in spec.nics} == {"infiniband"}
    assert "mlx5_0 is nearest to GPU 0 and to 1; a profile gives it to one" in described.remarks
    assert any(remark.startswith("rails are numbered in the order of the GPUs") for remark in described.remarks)


def test_a_gb200_tray_names_its_clique_and_makes_no_rail_up(tmp_path: Path) -> None:
    described = describe(replay("gb200-tray", tmp_path), rack="r01")
    spec = profile_spec(described)
    assert [(d.gpus, d.fabric, d.links) for d in spec.nvlink_domains] == [((0, 1, 2, 3), "nvswitch", 18)]
    assert spec.nics == ()  # every NIC is as far from every GPU
    assert [numa.id for numa in spec.numa] == [0, 1]
    assert "NUMA nodes 2, 10, 18, 26 have no CPUs and are left out" in described.remarks
    assert described.node_set is not None
    assert described.node_set["spec"]["domains"] == {"nvlinkDomain": "clique-6c1bb54e-32766"}  # type: ignore[index,call-overload]  # a tree of YAML


def test_a_broken_machine_is_described_as_it_is_and_says_so(tmp_path: Path) -> None:
    described = describe(replay("broken", tmp_path), rack="r01")
    spec = profile_spec(described)
    assert spec.gpus == 7
    assert spec.nvlink_domains == ()  # the matrix was cut short: nothing is guessed from the rest
    wanted = {
        "the driver does not answer for the GPU at 0000:88:00.0",
        "GPU 5 has 18 NVLinks down: the profile describes it as it is now",
        "mlx5_3 is down",
        "mlx5_2 trained at x8 of x16",
    }
    assert wanted <= set(described.remarks)
    assert any(remark.startswith("nvidia-smi topo -m cannot be read") for remark in described.remarks)
    assert [nic.speed for nic in spec.nics if nic.name == "mlx5_3"] == [0]


def test_nics_that_tie_are_told_apart_by_their_switches_alone(tmp_path: Path) -> None:
    """Two GPUs and two NICs below one switch: with different ToRs each gets one, without nobody does."""
    tree = unpack("h100-nvswitch", tmp_path)
    machine = look(Source(root=tree, captured=True))
    alike = [nic.__class__(**{**_fields(nic), "bridges": machine.nics[0].bridges}) for nic in machine.nics[:2]]
    gpus = [gpu.__class__(**{**_fields(gpu), "bridges": machine.gpus[0].bridges}) for gpu in machine.gpus[:2]]
    two = Machine(**{**_fields(machine), "gpus": tuple(gpus), "nics": tuple(alike)})
    assert [n.name for n in profile_spec(describe(two, rack="r01")).nics] == ["mlx5_0", "mlx5_1"]

    deaf = tuple(nic.__class__(**{**_fields(nic), "switch": ""}) for nic in alike)
    described = describe(Machine(**{**_fields(two), "nics": deaf}), rack="r01")
    assert profile_spec(described).nics == ()
    (switch,) = profile_spec(described).pcie_switches
    assert (switch.gpus, switch.nics, switch.shared_nics) == ((0, 1), (), ("mlx5_0", "mlx5_1"))
    assert "mlx5_0, mlx5_1 are equally near to GPU 0, 1: none is given to any" in described.remarks


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.data())
def test_whatever_a_capture_holds_it_is_described_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Files cut, swapped and filled with anything: no crash, and what is described is valid or a diagnostic."""
    folder = tmp_path / "capture"
    shutil.rmtree(folder, ignore_errors=True)
    unpack(data.draw(st.sampled_from(["h100-nvswitch", "a100-pcie-pairs", "gb200-tray"])), folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    for path in data.draw(st.lists(st.sampled_from(files), max_size=6)):
        content = path.read_bytes()
        cut = content[: data.draw(st.integers(0, len(content)))]
        odd = [cut, b"", b"9" * 5000, "²".encode(), b"-1", b"0-999999999", b"[" * 3000]
        path.write_bytes(data.draw(st.binary(max_size=40) | st.sampled_from(odd)))
    described = describe(look(Source(root=folder, captured=True)), rack="r01")
    if described.profile is not None and described.node_set is not None:
        try:
            text = new_document(described.profile) + b"---\n" + new_document(described.node_set)
        except GangOpsError:
            return
        check_file(text, "discovered")


@pytest.mark.parametrize("name", ["h100-nvswitch", "a100-pcie-pairs", "gb200-tray", "broken"])
def test_a_capture_of_a_machine_is_that_machine(name: str, tmp_path: Path) -> None:
    source = Source(root=unpack(name, tmp_path / "one"), captured=True)
    written = capture(source, tmp_path / "two")
    assert written > 40
    assert look(Source(root=tmp_path / "two", captured=True)) == look(source)


def test_a_capture_of_this_machine_describes_it(tmp_path: Path) -> None:
    capture(Source(), tmp_path / "here")
    again, here = look(Source(root=tmp_path / "here", captured=True)), look(Source())
    assert ([(n.id, n.cpus) for n in again.numa], again.nics) == ([(n.id, n.cpus) for n in here.numa], here.nics)
    with pytest.raises(UsageError):
        capture(Source(), tmp_path / "here")


def test_a_link_to_itself_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    source = Source(root=tmp_path, captured=True)
    assert (source.resolved("loop"), source.text("loop"), source.names("loop")) == ("", "", [])


def test_this_machine_as_the_kernel_has_it() -> None:
    machine = look(Source())
    online = parse_cpus(Path("/sys/devices/system/cpu/online").read_text().strip())
    assert sorted(cpu for node in machine.numa for cpu in parse_cpus(node.cpus or "0")) == sorted(online)
    nodes = {int(p.name[4:]) for p in Path("/sys/devices/system/node").glob("node[0-9]*")}
    assert {node.id for node in machine.numa} == (nodes or {0})
    if not Path("/sys/class/infiniband").is_dir():
        cards = {p.name for p in Path("/sys/class/net").iterdir() if (p / "device").exists()}
        assert {nic.name for nic in machine.nics} == cards
    if shutil.which("nvidia-smi") is None:
        assert machine.gpus == ()
        assert describe(machine).profile is None


@pytest.mark.parametrize(
    ("printed", "kernel"),
    [("00000000:1B:00.0", "0000:1b:00.0"), ("00010000:01:00.0", "10000:01:00.0"), ("0000:3b:00.0", "0000:3b:00.0")],
)
def test_pci_addresses_are_spelled_as_the_kernel_does(printed: str, kernel: str) -> None:
    # The kernel pads a domain to four digits and lets a longer one stand.
    assert pci_address(printed) == kernel


# --- the verb ---


def repository(folder: Path) -> Path:
    for path, content in scaffold().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder / "cluster-state" / "inventory"


def discover(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(gangops, ["discover", *arguments], catch_exceptions=True)
    if isinstance(done.exception, GangOpsError):
        return int(done.exception.exit_status), done.exception.code
    assert done.exception is None, done.exception
    return done.exit_code, done.stdout


def test_printing_on_this_machine_works_and_json_has_the_facts() -> None:
    status, text = discover()
    assert status == 0
    assert text.startswith(f"# {os.uname().nodename.partition('.')[0]}: ")
    status, text = discover("-o", "json")
    assert json.loads(text)["kind"] == "Machine"
    assert len(json.loads(text)["machine"]["numa"]) >= 1


def test_into_adds_a_profile_and_a_set_then_joins_it_and_keeps_comments(tmp_path: Path) -> None:
    inventory = repository(tmp_path / "repo")
    capture = unpack("h100-nvswitch", tmp_path / "capture")
    arguments = ["--root", str(capture), "--into", str(inventory), "--rack", "r01"]

    status, text = discover(*arguments)
    assert (status, text.split()) == (
        0,
        ["cluster-state/inventory/h100-80gb-hbm3x8.yaml", "cluster-state/inventory/r01-gpu-017.yaml"],
    )
    assert [d for d in check_folder(tmp_path / "repo").diagnostics if d.is_error] == []

    node_set = inventory / "r01-gpu-017.yaml"
    node_set.write_text(node_set.read_text().replace("nodes:", "# the tall rack\n  nodes:"))
    (capture / "outputs" / "hostname.txt").write_text("gpu-018\n")
    assert discover(*arguments)[1].split() == ["cluster-state/inventory/r01-gpu-017.yaml"]
    assert "# the tall rack\n" in node_set.read_text()
    assert '"gpu-[017-018]"' in node_set.read_text() or "gpu-[017-018]" in node_set.read_text()
    assert discover(*arguments) == (0, "")


def test_into_refuses_what_it_cannot_know_or_would_break(tmp_path: Path) -> None:
    inventory = repository(tmp_path / "repo")
    before = {path: path.read_bytes() for path in inventory.iterdir()}
    h100 = str(unpack("h100-nvswitch", tmp_path / "h100"))
    tray = str(unpack("gb200-tray", tmp_path / "tray"))

    assert discover("--root", h100, "--into", str(inventory)) == (64, "RackUnknown")
    assert discover("--root", h100, "--into", str(inventory), "--rack", "r77")[0] == 4
    assert discover("--root", tray, "--into", str(inventory), "--rack", "r01")[0] == 4  # no level for its clique
    assert discover("--root", h100, "--into", str(inventory), "--profile", "hgx-h100", "--rack", "r01") == (
        64,
        "ProfileDiffers",
    )
    assert {path: path.read_bytes() for path in inventory.iterdir()} == before
