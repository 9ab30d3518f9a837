"""Verbs that look again: `wait` and `status --watch`, and `describe` of jobs and nodes, on a real clone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result

from reconciler.cli import watch as watching
from reconciler.cli.root import root
from reconciler.errors import GangOpsError, NotFound, Unreachable, UsageError
from reconciler.model.units import MINUTE
from tests.runtime.lab import NODES, Desk, Lab, job_file, job_text, jobs
from tests.store.world import git


@pytest.fixture
def desk(lab: Lab) -> Desk:
    """One job runs, one waits; there is a clone of that."""
    lab.begin(**jobs("sft", gpus=16))
    desk = lab.desk()
    desk.settle()
    lab.desire({job_file("wide"): job_text("wide", 32)})
    desk.settle()
    git(lab.folder, "clone", "-q", str(lab.remote.path), "clone")
    return desk


def gangops(lab: Lab, *arguments: str) -> Result:
    return CliRunner().invoke(root, ["-C", str(lab.folder / "clone"), *arguments])


@contextmanager
def between_looks(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object]) -> Iterator[None]:
    """What happens between one look and the next, instead of a second passing; Ctrl-C after the last."""
    left = list(acts)

    def sleep(seconds: float) -> None:
        assert seconds <= 1
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    with monkeypatch.context() as patched:
        patched.setattr(watching, "pause", sleep)
        yield


# --- wait ---


def test_wait_tells_what_it_does_and_ends_with_the_job(lab: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish() -> None:
        desk.engine.cluster.finish("nlp/sft")
        desk.settle()

    with between_looks(monkeypatch, lambda: None, finish):
        done = gangops(lab, "wait", "nlp/wide", "--for", "running", "--timeout", "30m")
    assert (done.exit_code, done.stdout) == (0, "nlp/wide Running\n")
    states = [line.split("  ")[-1].split(":")[0] for line in done.stderr.splitlines()]
    assert states == ["Pending", "Starting (prepare)", "Starting (run)", "Running"]


@pytest.mark.parametrize(("code", "status", "word"), [(0, 0, "Succeeded"), (9, 1, "Failed")])
def test_the_outcome_is_the_exit_status(
    lab: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch, code: int, status: int, word: str
) -> None:
    lab.desire({job_file("sft"): job_text("sft", 16, more="  restart: {onFailure: 0}\n")})
    desk.settle()

    def finish() -> None:
        desk.engine.cluster.finish("nlp/sft", code)
        desk.settle()

    with between_looks(monkeypatch, finish):
        done = gangops(lab, "wait", "nlp/sft")
    assert (done.exit_code, done.stdout) == (status, f"nlp/sft {word}\n")


def test_a_job_that_is_merged_is_waited_for_and_a_mistake_is_not(
    lab: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.desire({job_file("late"): job_text("late", 8)})
    with between_looks(monkeypatch, desk.settle):
        assert gangops(lab, "wait", "nlp/late", "--for", "running").exit_code == 0
    done = gangops(lab, "wait", "nlp/latte")
    assert isinstance(done.exception, NotFound)
    assert (done.exception.code, done.exception.remedy) == ("UnknownJob", "did you mean nlp/late?")


def test_over_time_says_what_the_job_does(lab: Lab, desk: Desk) -> None:
    done = gangops(lab, "wait", "nlp/wide", "--timeout", "0")
    assert isinstance(done.exception, NotFound)
    assert (done.exception.code, done.exception.exit_status) == ("TimedOut", 3)
    assert "nlp/wide is Pending" in done.exception.message


def test_over_time_with_nobody_to_ask_is_another_exit_status(
    lab: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        lab.remote.path.rename(lab.folder / "away.git")
        monkeypatch.setattr(watching, "clock", lambda: 1e12)

    with between_looks(monkeypatch, away):
        done = gangops(lab, "wait", "nlp/wide", "--timeout", "1h")
    assert isinstance(done.exception, Unreachable)
    assert done.exception.exit_status == 7


def test_a_job_that_is_forgotten_did_not_end_well(lab: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def cancel() -> None:
        lab.desire({job_file("wide"): None})
        desk.settle()

    with between_looks(monkeypatch, cancel):
        done = gangops(lab, "wait", "nlp/wide")
    assert isinstance(done.exception, GangOpsError)
    assert (done.exception.code, done.exception.exit_status) == ("JobGone", 1)


@pytest.mark.parametrize("text", ["soon", "-1", "1 h"])
def test_a_timeout_that_is_none_is_named(lab: Lab, desk: Desk, text: str) -> None:
    done = gangops(lab, "wait", "nlp/sft", "--timeout", text)
    assert isinstance(done.exception, UsageError)
    assert done.exception.code == "BadTime"


# --- status --watch ---


def test_off_a_terminal_every_change_is_a_line(lab: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish() -> None:
        desk.engine.cluster.finish("nlp/sft")
        desk.settle()

    with between_looks(monkeypatch, finish, lambda: None):
        done = gangops(lab, "status", "--watch")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("lab   generation 4")
    assert "\x1b" not in done.stdout
    changes = [line.split(None, 4)[2:] for line in lines if line.startswith("2026-01-01 ")]
    assert [(number, job, told.split(":")[0]) for number, job, told in changes] == [
        ("#5", "nlp/sft", "Succeeded"),
        ("#5", "nlp/wide", "Starting (prepare)"),
        ("#6", "nlp/wide", "Starting (run)"),
        ("#7", "nlp/wide", "Running"),
    ]


def test_of_one_job_only_its_own_changes(lab: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish() -> None:
        desk.engine.cluster.finish("nlp/sft")
        desk.settle()

    with between_looks(monkeypatch, finish):
        done = gangops(lab, "status", "nlp/sft", "--watch")
    assert [line.split()[3] for line in done.stdout.splitlines() if " #" in line] == ["nlp/sft"]


def test_tasks_of_which_the_same_is_said_share_a_line(lab: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep() -> None:
        lab.desire({job_file("grid"): job_text("grid", 1, more="  array: {count: 12}\n")})
        desk.settle()

    with between_looks(monkeypatch, sweep, lambda: None):
        done = gangops(lab, "status", "--watch")
    grid = [line.split()[3:5] for line in done.stdout.splitlines() if "  nlp/grid." in line]
    # All twelve fit beside what runs: each step of theirs is one line.
    assert grid == [["nlp/grid.0-11", word] for word in ("Starting", "Starting", "Running:")]


def test_on_a_terminal_the_page_is_drawn_anew(lab: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)

    def finish() -> None:
        desk.engine.cluster.finish("nlp/sft")
        desk.settle()

    with between_looks(monkeypatch, finish, lambda: None):
        done = CliRunner().invoke(root, ["-C", str(lab.folder / "clone"), "status", "--watch"], color=True)
    first, second = done.stdout.split(watching.CLEAR)[1:]
    assert "generation 4" in first
    assert "generation 7" in second


def test_machines_do_not_watch(lab: Lab, desk: Desk) -> None:
    done = gangops(lab, "status", "--watch", "-o", "json")
    assert isinstance(done.exception, UsageError)


# --- describe ---


def test_describe_tells_the_whole_story(lab: Lab, desk: Desk) -> None:
    lines = gangops(lab, "describe", "nlp/sft").stdout.splitlines()
    assert lines[lines.index("Attempts") + 2].split()[0] == "1"
    story = [line.split()[2:4] for line in lines[lines.index("Story") + 1 :]]
    assert story == [["#1", "place"], ["#2", "start"], ["#3", "running"]]


def test_describe_says_how_to_reach_what_a_job_serves(lab: Lab, desk: Desk) -> None:
    lab.desire({job_file("notebook"): job_text("notebook", 8).replace("train.py]}", "train.py], ports: 1}")})
    desk.settle()
    lines = gangops(lab, "describe", "nlp/notebook").stdout.splitlines()
    url, tunnel = lines[lines.index("Reach") + 1 :][:2]
    (reach,) = json.loads(gangops(lab, "describe", "nlp/notebook", "-o", "json").stdout)["reach"]
    assert url.split()[0] == reach["url"] == f"http://localhost:{reach['port']}"
    assert tunnel.strip() == f"after: {reach['tunnel']}"
    assert "Reach" not in gangops(lab, "describe", "nlp/sft").stdout.splitlines()


def test_a_name_alone_will_do_where_it_is_the_only_one(lab: Lab, desk: Desk) -> None:
    assert gangops(lab, "describe", "wide").stdout.startswith("job           nlp/wide\n")


def test_describe_for_machines(lab: Lab, desk: Desk) -> None:
    tree = json.loads(gangops(lab, "describe", "nlp/sft", "-o", "json").stdout)
    assert (tree["formatVersion"], tree["kind"], tree["record"]["state"]) == ("1.0", "Job", "Running")
    assert [one["how"] for one in tree["attempts"]] == ["Running"]
    assert [step["action"] for step in tree["story"]] == ["place", "start", "running"]


def test_describe_a_node(lab: Lab, desk: Desk) -> None:
    desk.engine.cluster.break_gpu("gpu-001", 7, "Xid 79")
    lab.clock.advance(60 * 10**9)
    desk.settle()
    text = gangops(lab, "describe", "gpu-001").stdout
    lines = text.splitlines()
    assert lines[0] == "gpu-001 in sg0/r01: Ready. 8 of 8 GPUs held, 1 out, 0 idle."
    assert "! GPU 7 is not healthy: Xid 79 (capacity removed)" in lines
    rows = [line.split() for line in lines if "GPU-gpu-001-" in line]
    assert [(row[0], row[5], row[6]) for row in rows] == [(str(i), "nlp/sft", str(i)) for i in range(8)]
    assert rows[7][7:] == ["Xid", "79"]
    tree = json.loads(gangops(lab, "describe", "gpu-001", "-o", "json").stdout)
    assert (tree["kind"], tree["holders"], [one["code"] for one in tree["drift"]]) == (
        "Node", {"nlp/sft": 8}, ["GpuFaulty"],
    )  # fmt: skip


def test_a_merged_cordon_shows_at_once_also_of_a_node_that_is_away(lab: Lab, desk: Desk) -> None:
    cordon = NODES.replace("rack: r02}", "rack: r02, overrides: {gpu-003: {cordoned: fan}, gpu-004: {cordoned: fan}}}")
    desk.engine.cluster.lose("gpu-004")
    lab.clock.advance(10 * MINUTE)
    lab.desire({"cluster-state/inventory/nodes.yaml": cordon})
    desk.settle()
    table = gangops(lab, "get", "nodes").stdout.splitlines()
    assert [line.split("  ")[2].strip() for line in table[1:]] == ["Ready", "Ready", "Cordoned", "Lost, Cordoned"]
    nodes = json.loads(gangops(lab, "get", "nodes", "-o", "json").stdout)["nodes"]
    assert [[state["state"] for state in one["states"]] for one in nodes] == [
        [],
        [],
        ["Cordoned"],
        ["Lost", "Cordoned"],
    ]
    warned = [line for line in gangops(lab, "status").stdout.splitlines() if line.startswith("! node")]
    assert warned[0] == "! node gpu-003 is Cordoned: fan"
    assert warned[1].startswith("! node gpu-004 is Lost: since ")
    assert warned[1].endswith("; Cordoned: fan")
    page = gangops(lab, "explain", "node", "gpu-003").stdout.splitlines()
    assert page[:3] == [
        "gpu-003 in sg0/r02: Cordoned. 0 of 8 GPUs held, 8 out, 0 idle.",
        "  State   Cordoned: fan; nothing new starts there; what runs goes on",
        "  Out     8 GPUs: Cordoned (fan)",
    ]


def test_what_is_neither_is_told_with_what_is_near(lab: Lab, desk: Desk) -> None:
    done = gangops(lab, "describe", "gpu-01")
    assert isinstance(done.exception, NotFound)
    assert (done.exception.code, done.exception.remedy) == ("UnknownName", "did you mean gpu-001?")
