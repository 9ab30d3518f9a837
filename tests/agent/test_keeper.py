"""What an agent makes of what it finds after a crash: pids that came round again, another boot, a lost journal."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.agent import proc
from reconciler.agent.conf import read_conf
from reconciler.agent.folder import AttemptFolder
from reconciler.agent.journal import JournalFull, Record
from reconciler.agent.launch import launcher_command
from reconciler.agent.runtime import Keeper
from reconciler.agent.say import Voice
from reconciler.agent.verify import NOTHING, RefusedOrder, verify
from reconciler.wire import AttemptOrder, AttemptStatus

from .conftest import NODE, PATIENCE, Agents, StateRepo, running


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else, which must survive everything here."""
    found = subprocess.Popen(["sleep", "300"], start_new_session=True)
    yield found
    found.kill()
    found.wait()


MakeKeeper = Callable[[], Keeper]


@pytest.fixture
def make(agents: Agents) -> MakeKeeper:
    """A keeper without its threads: only `step` acts."""

    def keeper() -> Keeper:
        conf = read_conf(agents.conf)
        conf.state_dir.mkdir(exist_ok=True)
        return Keeper(conf, Voice(NODE), conf.state_dir / "events", lambda: None)

    return keeper


def ordered(keeper: Keeper, repo: StateRepo, generation: int, *orders: AttemptOrder) -> None:
    keeper.accept(*verify(repo.orders(generation, *orders), repo.trust, keeper.roster.journal.accepted))
    keeper.step()


def only(keeper: Keeper) -> AttemptStatus:
    (status,) = keeper.statuses()
    return status


def prepared(keeper: Keeper, repo: StateRepo, order: AttemptOrder) -> AttemptStatus:
    ordered(keeper, repo, 1, order)
    ends = time.monotonic() + PATIENCE
    while only(keeper).state == "Preparing":
        assert time.monotonic() < ends
        time.sleep(0.01)
        keeper.step()
    return only(keeper)


def pretend_launched(keeper: Keeper, order: AttemptOrder, pid: int, start: int, boot: str = "") -> None:
    """A journal and a status file as a dead agent and a dead shim would have left them."""
    here = boot or keeper.roster.boot
    keeper.roster.journal.keep(Record(order.job, 1, order.digest, "launched", "Running", 1, 1, "c", boot=here))
    folder = keeper.roster.folder / order.job / "1"
    folder.mkdir(parents=True)
    for rank in range(2):
        facts = {"rank": rank, "digest": order.digest, "boot": here, "shim": pid, "shimStart": start}
        facts |= {"pid": pid, "start": start, "startedAt": 1}
        (folder / f"{rank}.status").write_text("".join(f"{key}={value}\n" for key, value in facts.items()))


def test_a_pid_that_came_round_again_is_neither_adopted_nor_killed(
    make: MakeKeeper, repo: StateRepo, order: AttemptOrder, stranger: subprocess.Popen[bytes]
) -> None:
    keeper = make()
    pretend_launched(keeper, order, stranger.pid, proc.start_time(stranger.pid) - 1)
    ordered(keeper, repo, 1, running(order, "run"))
    assert (only(keeper).state, only(keeper).exitCode, only(keeper).reason) == ("Exited", 137, "ShimLost")
    ordered(keeper, repo, 2, running(order, "stop"))
    assert stranger.poll() is None


def test_the_same_pid_and_start_time_are_adopted(
    make: MakeKeeper, repo: StateRepo, order: AttemptOrder, stranger: subprocess.Popen[bytes]
) -> None:
    keeper = make()
    pretend_launched(keeper, order, stranger.pid, proc.start_time(stranger.pid))
    ordered(keeper, repo, 1, running(order, "run"))
    assert only(keeper).state == "Running"


def test_after_a_reboot_nothing_is_adopted(
    make: MakeKeeper, repo: StateRepo, order: AttemptOrder, stranger: subprocess.Popen[bytes]
) -> None:
    keeper = make()
    pretend_launched(keeper, order, stranger.pid, proc.start_time(stranger.pid), boot="another")
    ordered(keeper, repo, 1, running(order, "run"))
    assert (only(keeper).state, only(keeper).reason) == ("Gone", "Rebooted")
    assert stranger.poll() is None


def test_attempts_the_journal_lost_are_found_by_their_folders(
    make: MakeKeeper, repo: StateRepo, order: AttemptOrder, stranger: subprocess.Popen[bytes]
) -> None:
    keeper = make()
    pretend_launched(keeper, order, stranger.pid, proc.start_time(stranger.pid))
    (keeper.conf.state_dir / "journal").unlink()
    again = make()
    assert again.roster.journal.accepted == NOTHING
    again.step()
    assert only(again).state == "Running", "nothing is stopped before anyone said what belongs here"
    ordered(again, repo, 1, running(order, "run"))
    assert only(again).state == "Running"


def test_a_promise_that_cannot_be_written_down_is_a_refusal(
    make: MakeKeeper, repo: StateRepo, order: AttemptOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = make()

    def full(line: bytes) -> None:
        if b'"attempt"' in line:
            raise JournalFull("full")

    monkeypatch.setattr(keeper.roster.journal, "_append", full)
    refused = prepared(keeper, repo, order)
    assert refused.state == "Refused"
    assert refused.reason.startswith("LocalStorageFull")


def test_an_order_that_cannot_be_written_down_is_not_accepted(
    make: MakeKeeper, repo: StateRepo, order: AttemptOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = make()

    def full(line: bytes) -> None:
        raise JournalFull("full")

    monkeypatch.setattr(keeper.roster.journal, "_append", full)
    with pytest.raises(RefusedOrder) as caught:
        ordered(keeper, repo, 1, order)
    assert caught.value.code == "LocalStorageFull"
    assert (keeper.roster.orders, keeper.roster.journal.accepted) == ({}, NOTHING)


def test_a_launch_that_cannot_be_written_down_waits_until_it_can(
    make: MakeKeeper, repo: StateRepo, order: AttemptOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = make()
    assert prepared(keeper, repo, order).state == "Prepared"
    append, begun = keeper.roster.journal._append, list[Path]()

    def full(line: bytes) -> None:
        if b'"launched"' in line:
            raise JournalFull("full")
        append(line)

    monkeypatch.setattr(keeper.launchers, "start", lambda _, spec: begun.append(spec))
    monkeypatch.setattr(keeper.roster.journal, "_append", full)
    ordered(keeper, repo, 2, running(order, "run"))
    keeper.step()
    assert begun == [], "an agent that is killed now would know nothing of these ranks"
    monkeypatch.setattr(keeper.roster.journal, "_append", append)
    keeper.step()
    assert begun == [keeper.roster.folder / order.job / "1" / "spec.json"]


def test_another_incarnation_under_the_same_number_waits_for_the_first_to_end(
    make: MakeKeeper, repo: StateRepo, order: AttemptOrder
) -> None:
    keeper = make()
    assert prepared(keeper, repo, order).state == "Prepared"
    other = running(order, "prepare", digest="sha256:2")
    ordered(keeper, repo, 2, other)
    assert only(keeper).state == "Gone"
    keeper.step()
    assert keeper.statuses() == []
    keeper.step()
    assert keeper.roster.preparing[order.job, 1].digest == "sha256:2"


def test_a_launcher_left_behind_starts_nothing_after_the_launch_was_cancelled(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path / "1")
    spec = folder.write_spec({"folder": str(folder.path), "processes": [{"rank": 0}]})
    assert folder.cancel_launch()
    done = subprocess.run(launcher_command(spec), capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert folder.shims().facts == {}


def test_a_lease_is_never_shortened(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    for end in (500, 300, 600, 1):
        folder.extend_lease(end)
    assert int((tmp_path / "lease").read_text()) == 600


def test_lease_bound_work_is_not_started_unless_a_reconciler_answered_within_the_lease(
    make: MakeKeeper, repo: StateRepo, order: AttemptOrder
) -> None:
    keeper = make()
    leased = running(order, "prepare", fence="lease", leaseSeconds=2)
    assert prepared(keeper, repo, leased).state == "Prepared"
    keeper.leases.renew(proc.boottime() - 3_000_000_000, 2)
    ordered(keeper, repo, 2, running(leased, "run"))
    assert keeper.launchers.under_way == {}
    assert not list(keeper.roster.folder.glob("**/spec.json"))
