"""What a node says of its hardware: asked of a stand-in for nvidia-smi, read from a made-up /sys, or pretended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.agent.conf import Simulation
from reconciler.agent.hardware import clique_of, hardware, links_up
from reconciler.agent.health import Course
from reconciler.agent.sysfs import network_ports, numa_nodes, pci_numa

UUIDS = ("GPU-00000000-0000-4000-8000-000000000000", "GPU-00000000-0000-4000-8000-000000000001")

WORN = "@worn"

SMI = f"""\
#!/bin/sh
case "$*" in
  --query-gpu=index,*) cat <<'END'
0, {UUIDS[0]}, NVIDIA A100-SXM4-80GB, 550.90.07, 0
1, {UUIDS[1]}, NVIDIA A100-SXM4-80GB, 550.90.07, 2
END
  ;;
  --query-gpu=uuid,memory*) cat <<'END'
{UUIDS[0]}, 81920, 16, 16, 00000000:1B:00.0
{UUIDS[1]}, 81920, 8, 16, 00000000:43:00.0
END
  ;;
  "nvlink --status") cat <<'END'
GPU 0: NVIDIA A100-SXM4-80GB (UUID: {UUIDS[0]})
\t Link 0: 25 GB/s
\t Link 1: 25 GB/s
GPU 1: NVIDIA A100-SXM4-80GB (UUID: {UUIDS[1]})
\t Link 0: 25 GB/s
\t Link 1: <inactive>
END
  ;;
  --query-remapped-rows*) cat <<'END'
{UUIDS[0]}, {WORN}, 0
{UUIDS[1]}, 0, 1
END
  ;;
  --query-gpu=uuid,gpu_recovery_action*) cat <<'END'
{UUIDS[0]}, None
{UUIDS[1]}, Drain and Reset
END
  ;;
  --query-gpu=uuid,pstate,*clocks_throttle_reasons*) cat <<'END'
{UUIDS[0]}, P0, 3, 4, Not Active, Active, Not Active
{UUIDS[1]}, P8, 1, 4, Not Active, Not Active, Not Active
END
  ;;
  --query-compute-apps*) ;;
  *) exit 2 ;;
esac
"""


def nobody(_: int) -> bool:
    return False


def test_links_memory_and_lanes_of_real_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.replace(WORN, "0"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = hardware("n1", None, nobody)
    assert (found["gpuType"], found["driver"], found["clique"]) == ("A100-SXM4-80GB", "550.90.07", "")
    told = [(g["healthy"], g["memoryBytes"] >> 30, g["nvlinks"], g["pcieWidth"], g["pcieMost"]) for g in found["gpus"]]
    assert told == [(True, 80, 2, 16, 16), (False, 80, 1, 8, 16)]
    assert found["gpus"][1]["reason"] == "2 uncorrected memory errors"
    assert found["numa"] == numa_nodes()


def test_a_driver_that_knows_no_links_still_tells_of_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.replace("--query-gpu=uuid,memory*)", "--none)").replace('"nvlink --status")', "--none2)"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = hardware("n1", None, nobody)
    assert [gpu["uuid"] for gpu in found["gpus"]] == list(UUIDS)
    assert not {"nvlinks", "memoryBytes", "pcieWidth"} & found["gpus"][0].keys()


def test_health_of_real_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one look tells is told at once; slowing down only when it lasts, the speed of a link only when it works."""
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.replace(WORN, "0"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    log = tmp_path / "kmsg"
    log.write_text("3,9,5000000,-;NVRM: Xid (PCI:0000:43:00): 48, pid=7, DBE\n")
    course = Course(log=log)
    one, other = hardware("n1", None, nobody, course)["gpus"]
    assert (one["pcieSpeed"], one["pcieFastest"]) == (8_000, 16_000)
    assert not {"xids", "recovery", "rowsPending", "throttled"} & one.keys()
    assert (other["recovery"], other["xids"], other["rowsPending"]) == ("Drain and Reset", [48], True)
    assert "pcieSpeed" not in other

    course.take_in(b"3,10,6000000,-;NVRM: Xid (PCI:0000:1b:00): 94, pid=7, contained\n")
    one = hardware("n1", None, nobody, course)["gpus"][0]
    assert (one["xids"], one["recovery"]) == ([94], "None")  # that nothing is left to do is news now


@pytest.mark.parametrize("answer", ["[N/A]", "N/A", "Unknown Error", ""])
def test_a_driver_that_knows_no_recovery_says_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.replace("Drain and Reset", answer).replace("uuid,pstate", "nothing"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = hardware("n1", None, nobody)["gpus"]
    assert not any("recovery" in gpu for gpu in found)
    assert not any({"throttled", "pcieSpeed"} & gpu.keys() for gpu in found)


def test_a_gpu_without_spare_rows_is_not_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.replace(WORN, "1"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    told = [(gpu["healthy"], gpu["reason"]) for gpu in hardware("n1", None, nobody)["gpus"]]
    assert told == [(False, "no spare memory rows are left"), (False, "2 uncorrected memory errors")]


def test_no_nvidia_smi_is_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = hardware("n1", None, nobody)
    assert (found["gpus"], found["gpuType"]) == ([], "")
    assert "clique" not in found


def test_the_simulated_profile_is_read_again_and_tells_nothing_of_this_machine(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text("{}")
    simulation = Simulation(8, "H100", profile)
    before = hardware("n1", simulation, nobody)
    assert len(before["gpus"]) == 8
    assert not {"nics", "numa", "clique"} & before.keys()
    assert "nvlinks" not in before["gpus"][5]

    profile.write_text(json.dumps({"gpus": [{"index": 5, "nvlinks": 0}], "nics": [{"name": "mlx5_0", "up": False}]}))
    after = hardware("n1", simulation, nobody)
    assert [gpu.get("nvlinks", -1) for gpu in after["gpus"]] == [-1, -1, -1, -1, -1, 0, -1, -1]
    assert after["nics"] == [{"name": "mlx5_0", "up": False}]

    profile.write_text("[1]")
    assert hardware("n1", simulation, nobody) == before


@pytest.mark.parametrize(
    ("text", "clique"),
    [
        (
            "CliqueId : 7\n ClusterUUID : 6c1bb54e-0000-4b1f-9f2a-000000000001\n",
            "6c1bb54e-0000-4b1f-9f2a-000000000001.7",
        ),
        ("CliqueId : 0\n ClusterUUID : 00000000-0000-0000-0000-000000000000\n", ""),
        ("CliqueId : N/A\n ClusterUUID : N/A\n", ""),
        ("", ""),
    ],
)
def test_clique(text: str, clique: str) -> None:
    assert clique_of(text) == clique


def test_links_of_a_gpu_without_any_are_unknown() -> None:
    assert links_up(f"GPU 0: X (UUID: {UUIDS[0]})\nGPU 1: X (UUID: {UUIDS[1]})\n Link 0: <inactive>\n") == {UUIDS[1]: 0}


def write(root: Path, files: dict[str, str]) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{content}\n")


def test_ports_and_numa_nodes_of_a_made_up_machine(tmp_path: Path) -> None:
    device = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0"
    port = f"{device}/infiniband/mlx5_0"
    write(
        tmp_path,
        {
            "sys/devices/system/node/node0/cpulist": "0-3",
            "sys/devices/system/node/node10/cpulist": "",
            "sys/devices/system/node/node2/cpulist": "4-7",
            f"{device}/numa_node": "0",
            f"{device}/current_link_width": "8",
            f"{device}/max_link_width": "16",
            f"{device}/current_link_speed": "16.0 GT/s PCIe",
            f"{device}/max_link_speed": "32.0 GT/s PCIe",
            f"{device}/net/ens1/operstate": "up",
            f"{port}/ports/1/state": "4: ACTIVE",
            f"{port}/ports/1/rate": "400 Gb/sec (4X NDR)",
        },
    )
    (tmp_path / port / "device").symlink_to("../..")
    for link, target in (
        ("sys/class/infiniband/mlx5_0", f"../../../{port}"),
        ("sys/bus/pci/devices/0000:16:00.0", f"../../../../{device}"),
    ):
        (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / link).symlink_to(target)

    assert numa_nodes(tmp_path) == [{"id": 0, "cpus": "0-3"}, {"id": 2, "cpus": "4-7"}, {"id": 10, "cpus": ""}]
    up = {
        "name": "mlx5_0",
        "up": True,
        "bitsPerSecond": 400_000_000_000,
        "pcieWidth": 8,
        "pcieMost": 16,
        "pcieSpeed": 16_000,
        "pcieFastest": 32_000,
        "numa": 0,
        "switch": "tor-1",
    }
    assert network_ports(tmp_path, {"ens1": "tor-1"}) == [up]
    # A port that is no faster than this is no fault of the card.
    write(tmp_path, {"sys/devices/pci0000:15/0000:15:01.0/max_link_speed": "16.0 GT/s PCIe"})
    up["pcieFastest"] = 16_000
    assert network_ports(tmp_path, {"ens1": "tor-1"}) == [up]
    assert pci_numa("00000000:16:00.0", tmp_path) == 0

    write(tmp_path, {f"{port}/ports/1/state": "1: DOWN"})
    assert network_ports(tmp_path, {}) == [{**up, "up": False, "bitsPerSecond": 0, "switch": ""}]
