"""Which cgroups are chosen, what is written there, and, as root, that a rank is really held by them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.agent import cgroups
from reconciler.agent.cgroups import Hierarchy, controls_of, find_hierarchies, said_of

ROOT = Path(__file__).parents[2]


def mounts(*rows: tuple[str, str, str]) -> str:
    return "".join(f"x {where} {kind} {options} 0 0\n" for where, kind, options in rows)


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2/cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return tmp_path / "v2"


@pytest.fixture
def old(tmp_path: Path) -> list[tuple[str, str, str]]:
    """Mounts of v1."""
    for name in ("memory", "pids", "devices"):
        (tmp_path / name).mkdir()
    return [(str(tmp_path / name), "cgroup", f"rw,{name}") for name in ("memory", "pids", "devices")]


def test_v2_is_taken_when_it_limits_memory(unified: Path, old: list[tuple[str, str, str]]) -> None:
    (found,) = find_hierarchies("", mounts((str(unified), "cgroup2", "rw"), *old), may_make=True)
    assert found == {"kind": "v2", "root": f"{unified}/gangops", "controllers": "memory pids", "above": str(unified)}
    assert said_of([found]) == "v2 limits memory, pids; other GPUs are closed by bubblewrap or containers alone"


def test_v1_is_taken_where_v2_has_no_controllers(unified: Path, old: list[tuple[str, str, str]]) -> None:
    (unified / "cgroup.controllers").write_text("")
    found = find_hierarchies("", mounts((str(unified), "cgroup2", "rw"), *old), may_make=True)
    assert [hierarchy["root"] for hierarchy in found] == [f"{where}/gangops" for where, _, _ in old]
    assert said_of(found) == "v1 limits memory, pids; other GPUs are closed"


def test_else_there_are_process_groups(old: list[tuple[str, str, str]]) -> None:
    for asked, rows, may_make in (("none", old, True), ("", old, False), ("", [], True)):
        assert find_hierarchies(asked, mounts(*rows), may_make=may_make) == []
    assert said_of([]) == "none: process groups are used, and nothing is limited"


def test_what_cannot_be_written_is_not_counted_on(old: list[tuple[str, str, str]], tmp_path: Path) -> None:
    Path(old[1][0]).rmdir()
    assert [hierarchy["kind"] for hierarchy in find_hierarchies("", mounts(*old), may_make=True)] == [
        "memory",
        "devices",
    ]


def test_controllers_are_passed_on_down_to_a_rank_of_v2(unified: Path) -> None:
    """Files stand for the kernel's: each folder has those that cgroups of v2 have."""
    found = find_hierarchies("", mounts((str(unified), "cgroup2", "rw")), may_make=True)
    folder = unified / "gangops"
    for name in ("", "q", "j", "1", "0"):
        folder = folder / name
        folder.mkdir(exist_ok=True)
        for file in ("cgroup.subtree_control", "cgroup.procs", "memory.max", "pids.max"):
            (folder / file).touch()
    (unified / "cgroup.subtree_control").touch()
    cgroups.join(found, "q/j/1/0", controls_of(7 << 30, []))
    for above in (unified, unified / "gangops", *(unified / "gangops" / path for path in ("q", "q/j", "q/j/1"))):
        assert (above / "cgroup.subtree_control").read_text() == "+memory +pids", above
    assert {file: (folder / file).read_text() for file in ("memory.max", "pids.max", "cgroup.procs")} == {
        "memory.max": str(7 << 30),
        "pids.max": "65536",
        "cgroup.procs": "0",
    }
    assert (folder / "cgroup.subtree_control").read_text() == "", "processes and controllers are not in one folder"


def test_a_rank_that_comes_while_another_of_its_queue_leaves_gets_its_cgroup(
    unified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_hierarchies("", mounts((str(unified), "cgroup2", "rw")), may_make=True)
    (unified / "gangops/q/old/1/0").mkdir(parents=True)
    make, leaving = os.mkdir, ["q/old/1/0"]

    def made(path: str, mode: int = 0o777) -> None:
        if path.endswith("q/new") and leaving:
            cgroups.leave(found, leaving.pop())  # `q` was there a moment ago
        make(path, mode)
        if path.endswith("/0"):
            for file in ("cgroup.procs", "memory.max", "pids.max"):
                Path(path, file).touch()

    monkeypatch.setattr(os, "mkdir", made)
    cgroups.join(found, "q/new/1/0", controls_of(0, []))
    assert (unified / "gangops/q/new/1/0/cgroup.procs").read_text() == "0"
    assert not (unified / "gangops/q/old").exists()


def test_a_folder_that_was_delegated_is_used_as_it_is(unified: Path) -> None:
    (found,) = find_hierarchies(f"{unified}/site.slice", "", may_make=False)
    assert found == {"kind": "v2", "root": f"{unified}/site.slice", "controllers": "memory pids"}


def test_what_is_written_for_a_rank() -> None:
    controls = controls_of(8 << 30, ["c 195:1"])
    assert controls["v2"] == [["memory.max", "8589934592"], ["pids.max", "65536"]]
    assert controls["memory"] == [["memory.limit_in_bytes", "8589934592"]]
    assert controls["devices"] == [["devices.allow", "a"], ["devices.deny", "c 195:1 rwm"]]
    assert controls_of(0, [])["v2"][0] == ["memory.max", "max"]
    assert controls_of(0, [])["memory"] == [["memory.limit_in_bytes", "-1"]]


# --- real ones ---


@pytest.fixture
def real() -> Iterator[list[Hierarchy]]:
    if os.geteuid() != 0:
        pytest.skip("only root makes cgroups at the top")
    found = find_hierarchies("", Path("/proc/mounts").read_text(), may_make=True)
    for hierarchy in found:
        hierarchy["root"] += f"-test-{os.getpid()}"
    if not found or not all(os.access(Path(hierarchy["root"]).parent, os.W_OK) for hierarchy in found):
        pytest.skip("no cgroups here")
    yield found
    end(found)
    cgroups.leave(found, "q/j/1/0")
    for hierarchy in found:
        if Path(hierarchy["root"]).is_dir():
            Path(hierarchy["root"]).rmdir()


def end(found: list[Hierarchy]) -> None:
    """Kill until nobody is left: a killed process takes a moment to go, and one that forks takes more than one kill."""
    ends = time.monotonic() + 60
    while cgroups.members(found, "q/j/1/0"):
        cgroups.kill(found, "q/j/1/0")
        assert time.monotonic() < ends
        time.sleep(0.02)


def inside(found: list[Hierarchy], program: str, foreign: list[str], memory: int = 0) -> subprocess.Popen[str]:
    """A Python program in the cgroups of a rank, started as the rank is."""
    joins = (
        f"from reconciler.agent import cgroups; cgroups.join({found!r}, 'q/j/1/0', {controls_of(memory, foreign)!r})"
    )
    return subprocess.Popen([sys.executable, "-c", f"{joins}\n{program}"], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def of_kind(found: list[Hierarchy], *kinds: str) -> None:
    if not any(hierarchy["kind"] in kinds for hierarchy in found):
        pytest.skip(f"no cgroup of {' or '.join(kinds)} here")


@pytest.mark.root
def test_a_rank_and_all_it_starts_is_in_its_cgroups_and_killed_by_them(real: list[Hierarchy]) -> None:
    program = "import os\nif os.fork() == 0: os.setsid()\nprint(os.getpid(), flush=True)\nimport time; time.sleep(300)"
    rank = inside(real, program, [])
    assert rank.stdout
    pids = sorted(int(rank.stdout.readline()) for _ in range(2))
    assert cgroups.members(real, "q/j/1/0") == pids
    for hierarchy in real:
        assert cgroups.members([hierarchy], "q/j/1/0") == pids, hierarchy["kind"]
    cgroups.kill(real, "q/j/1/0")
    rank.stdout.close()
    assert rank.wait(60) == -signal.SIGKILL


@pytest.mark.root
def test_the_gpus_of_others_cannot_be_opened(real: list[Hierarchy], tmp_path: Path) -> None:
    """Two devices every machine has stand for a GPU of the rank's own and one of another."""
    of_kind(real, "devices")
    for name, minor in (("own", 3), ("other", 7)):  # null and full
        os.mknod(tmp_path / name, 0o20666, os.makedev(1, minor))
    program = f"for n in ('own', 'other'):\n try: open('{tmp_path}/' + n, 'rb'); print('opened')\n except OSError as e: print(e.errno)"
    assert inside(real, program, ["c 1:7"]).communicate(timeout=60)[0].split() == ["opened", "1"]
    assert inside(real, program, []).communicate(timeout=60)[0].split() == ["opened", "opened"]


@pytest.mark.root
def test_memory_above_the_limit_is_not_had(real: list[Hierarchy]) -> None:
    of_kind(real, "memory", "v2")
    if real[0]["kind"] == "v2" and "memory" not in real[0]["controllers"]:
        pytest.skip("no memory controller here")
    program = "x = bytearray(200 << 20); print(len(x))"
    assert inside(real, program, [], 64 << 20).communicate(timeout=60)[0] == ""
    assert inside(real, program, [], 512 << 20).communicate(timeout=60)[0] == f"{200 << 20}\n"


@pytest.mark.root
def test_a_fork_bomb_ends_at_the_limit(real: list[Hierarchy], monkeypatch: pytest.MonkeyPatch) -> None:
    of_kind(real, "pids", "v2")
    if real[0]["kind"] == "v2" and "pids" not in real[0]["controllers"]:
        pytest.skip("no pids controller here")
    monkeypatch.setattr(cgroups, "MOST_PROCESSES", 20)
    program = "import os, time\nn = 0\ntry:\n while n < 100:\n  if os.fork() == 0: time.sleep(60); os._exit(0)\n  n += 1\nexcept OSError: pass\nprint(n)"
    bomb = inside(real, program, [])
    assert bomb.stdout
    assert int(bomb.stdout.readline()) < 20
    bomb.stdout.close()
    end(real)
    bomb.wait(60)
