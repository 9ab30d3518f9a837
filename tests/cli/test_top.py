"""`gangops top` without a terminal: the screen is driven by keys and read back."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from textual.css.query import NoMatches
from textual.pilot import Pilot
from textual.widgets import DataTable, Static, TabbedContent

from reconciler.cli.root import root
from reconciler.cli.top_screen import Page, Top
from reconciler.errors import StoreError, UsageError
from reconciler.runtime.clone import open_clone
from reconciler.runtime.looking import Looking, Seen
from reconciler.store.statecommit import Writer
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.store.world import new_repository

SEEN = Seen(
    headline="lab   generation 7, decided 3s ago\n16 of 32 GPUs held   Phi 0.000",
    jobs=(["JOB", "STATE", "WHERE"], [["nlp/a", "Running", "r01 gpu-[001-002]"], ["nlp/b", "Pending", "-"], ["nlp/c", "Held", "-"]]),
    nodes=(["NODE", "GPUS"], [["gpu-001", "########"], ["gpu-002", "00000000"]]),
    queues=(["QUEUE", "HELD"], [["root", "16"], ["  nlp", "16"]]),
)  # fmt: skip


class Scripted:
    """A cluster that a test changes."""

    def __init__(self) -> None:
        self.seen, self.looks = SEEN, 0
        self.fails = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def look(self) -> Seen:
        self.looks += 1
        assert self.goes_on.wait(60)
        if self.fails:
            raise StoreError("the clone is busy", code="CloneBusy")
        return self.seen

    def job(self, name: str) -> str:
        return f"all of [{name}]"


async def until(pilot: Pilot[None], reached: Callable[[], object]) -> None:
    """A key was handled, a look has come to its end: what the pilot waits for by itself is a quiet moment."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        with contextlib.suppress(NoMatches):  # a page is there before what it shows
            if reached():
                return
        await pilot.pause()
    raise AssertionError("never")


def cells(app: Top, name: str) -> list[list[str]]:
    shown = app.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in shown.get_row_at(row)] for row in range(shown.row_count)]


async def go_down(app: Top, pilot: Pilot[None], rows: int) -> None:
    """That many rows down in the table that has the cursor."""
    for _ in range(rows):
        shown = app.focused
        assert isinstance(shown, DataTable)
        before = shown.cursor_row
        await pilot.press("down")
        await until(pilot, lambda shown=shown, before=before: shown.cursor_row == before + 1)  # type: ignore[misc]  # mypy infers no lambda with a default


def words(app: Top, name: str) -> str:
    return str(app.screen.query_one(name, Static).render())


async def test_tables_and_keys() -> None:
    app = Top(Scripted(), 3600)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: cells(app, "jobs"))
        assert words(app, "#headline") == SEEN.headline
        assert cells(app, "jobs") == SEEN.jobs[1]  # brackets are no markup
        for key, name in (("2", "nodes"), ("3", "queues"), ("1", "jobs")):
            await pilot.press(key)
            await until(pilot, lambda name=name: app.query_one("#tabs", TabbedContent).active == f"pane-{name}")  # type: ignore[misc]  # mypy infers no lambda with a default
            await until(pilot, lambda name=name: app.focused is app.query_one(f"#{name}"))  # type: ignore[misc]  # as above
        assert cells(app, "nodes") == SEEN.nodes[1]
        await go_down(app, pilot, 1)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Page) and words(app, "#page") == "all of [nlp/b]")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, Page))


async def test_another_look_keeps_the_cursor_on_its_job() -> None:
    cluster = Scripted()
    app = Top(cluster, 3600)
    async with app.run_test() as pilot:
        await until(pilot, lambda: cells(app, "jobs"))
        await go_down(app, pilot, 2)
        cluster.seen = replace(SEEN, jobs=(SEEN.jobs[0], [["nlp/0", "Running", "-"], *SEEN.jobs[1]]))
        await pilot.press("r")
        await until(pilot, lambda: len(cells(app, "jobs")) == 4)
        shown = app.query_one("#jobs", DataTable)
        assert cluster.looks == 2
        await until(pilot, lambda: str(shown.get_row_at(shown.cursor_row)[0]) == "nlp/c")
        cluster.seen = replace(SEEN, jobs=(SEEN.jobs[0], []))
        await pilot.press("r")
        await until(pilot, lambda: cells(app, "jobs") == [])


async def test_a_key_pressed_during_a_look_asks_for_one_more() -> None:
    cluster = Scripted()
    cluster.goes_on.clear()
    app = Top(cluster, 3600)
    async with app.run_test() as pilot:
        await until(pilot, lambda: cluster.looks == 1)
        for _ in range(3):
            await pilot.press("r")
        cluster.goes_on.set()
        await until(pilot, lambda: cluster.looks == 2 and not any(worker.is_running for worker in app.workers))
        await pilot.press("r")
        await until(pilot, lambda: cluster.looks == 3)  # three keys were one look more


async def test_a_long_name_leaves_room_for_what_it_is_about() -> None:
    name = "nlp/" + "a" * 30 + "-" + "b" * 29
    cluster = Scripted()
    cluster.seen = replace(SEEN, jobs=(["JOB", "STATE", "GPUS"], [["nlp/x", "Running", "8"], [name, "Lost", "1024"]]))
    app = Top(cluster, 3600)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: cells(app, "jobs"))
        (_, row) = cells(app, "jobs")
        assert len(row[0]) <= 40
        assert (row[0][:5], row[0][-5:], "…" in row[0]) == (name[:5], name[-5:], True)
        assert app.query_one("#jobs", DataTable).get_row_at(1)[2].justify == "right"
        assert app.screen.max_scroll_y == 0  # nothing but the tables scrolls
        await go_down(app, pilot, 1)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Page) and words(app, "#page") == f"all of [{name}]")


async def test_a_look_that_fails_is_said_and_the_rows_stay() -> None:
    cluster = Scripted()
    app = Top(cluster, 3600)
    async with app.run_test() as pilot:
        await until(pilot, lambda: cells(app, "jobs"))
        cluster.fails = True
        await pilot.press("r")
        await until(pilot, lambda: words(app, "#told") == "the clone is busy (CloneBusy); trying again")
        assert cells(app, "jobs") == SEEN.jobs[1]
        await pilot.press("q")
    assert app.return_code == 0


def test_what_is_looked_at_is_the_newest_generation(tmp_path: Path, writer: Writer) -> None:
    lab = Lab(folder=tmp_path, remote=new_repository(tmp_path / "remote.git"), writer=writer)
    lab.begin(**jobs("sft"))
    desk = lab.desk()
    desk.settle()
    looking = Looking(open_clone(lab.remote.path), fetch=False, now=lab.clock.now)
    seen = looking.look()
    assert seen.headline.startswith(f"lab   generation {desk.summary.generation}, decided ")
    assert [row[:3] for row in seen.jobs[1]] == [["nlp/sft", "Running", "8"]]
    assert [row[0] for row in seen.nodes[1]] == ["gpu-001", "gpu-002", "gpu-003", "gpu-004"]
    assert [row[0].strip() for row in seen.queues[1]] == ["root", "nlp"]
    assert looking.job("nlp/sft").startswith("job           nlp/sft\nstate         Running")
    assert looking.job("nlp/none") == ""
    array = job_text("sweep", 1, more="  array: {count: 3}\n")
    lab.desire({job_file("sweep"): array})
    desk.settle()
    looking.look()
    head, counts, _, columns, *_ = looking.job("nlp/sweep").splitlines()
    assert (head, counts) == ("nlp/sweep   3 tasks of 1 GPU each", "3 Running")
    assert columns.split()[:2] == ["TASK", "STATE"]
    lab.desire(jobs("two"))
    desk.settle()
    assert [row[0] for row in looking.look().jobs[1]] == ["nlp/sft", "nlp/sweep", "nlp/two"]


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("textual", "reconciler.cli.top"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    done = CliRunner().invoke(root, ["top"])
    assert isinstance(done.exception, UsageError)
    assert (done.exception.code, 'pip install "gangops[tui]"' in done.exception.remedy) == ("ExtraMissing", True)


def test_without_a_terminal_it_points_to_status() -> None:
    done = CliRunner().invoke(root, ["top"])
    assert isinstance(done.exception, UsageError)
    assert (done.exception.code, done.exception.remedy) == ("NoTerminal", "gangops status")
