"""Logs of ranks: the right files, every line once and in its order, across rotations and attempts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.agent.loglines import LONGEST_LINE, LogFolder, Printed
from reconciler.agent.rotate import Log
from reconciler.errors import NotFound
from reconciler.runtime.logs import Labels, followed_lines, has_several, log_lines

JOB = "nlp/sft"
LIMITS = {"maxBytes": 0, "keep": 3, "bytesPerSecond": 0}


def write(root: Path, name: str, text: str) -> Path:
    path = root / JOB / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, newline="")
    return path


def mark(log: Path, *marks: tuple[int, int]) -> None:
    """Say when what begins at which offset was printed."""
    path = log.parent / log.name.replace(".log", ".times")
    path.write_text(f"inode {log.stat().st_ino}\n" + "".join(f"{offset} {at}\n" for offset, at in marks))


def texts(root: Path, attempt: int | None = None, rank: int | None = None) -> list[str]:
    return [line.text for line in log_lines(root, JOB, attempt, rank)]


def test_the_latest_attempt_by_rank(tmp_path: Path) -> None:
    for name in ("2/0.log", "10/10.log", "10/2.log", "10/0.log", "10/0.log.1", "10/notes.txt", "old/0.log"):
        write(tmp_path, name, f"{name}\n")
    assert texts(tmp_path) == ["10/0.log.1", "10/0.log", "10/2.log", "10/10.log"]
    assert texts(tmp_path, attempt=2) == ["2/0.log"]
    assert texts(tmp_path, rank=2) == ["10/2.log"]


@pytest.mark.parametrize(("attempt", "rank"), [(7, None), (None, 5)])
def test_what_is_not_there_says_which_attempts_are(tmp_path: Path, attempt: int | None, rank: int | None) -> None:
    write(tmp_path, "1/0.log", "")
    write(tmp_path, "3/0.log", "")
    with pytest.raises(NotFound) as caught:
        log_lines(tmp_path, JOB, attempt, rank)
    assert caught.value.code == "LogsMissing"
    assert "1, 3" in caught.value.remedy


def test_an_array_has_its_logs_by_task(tmp_path: Path) -> None:
    for task in (0, 1, 2, 10):
        write(tmp_path, f"../sweep.{task}/1/0.log", f"task {task}\n")
    with pytest.raises(NotFound) as caught:
        log_lines(tmp_path, "nlp/sweep")
    assert caught.value.remedy == "tasks with logs: 0-2,10; name one as nlp/sweep.N"
    assert [line.text for line in log_lines(tmp_path, "nlp/sweep.10")] == ["task 10"]


def test_a_job_without_any_logs(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        log_lines(tmp_path, JOB)
    assert "none" in caught.value.remedy


def test_rotated_parts_come_first_and_oldest_first(tmp_path: Path) -> None:
    write(tmp_path, "1/0.log", "last\n")
    for age in range(1, 12):
        write(tmp_path, f"1/0.log.{age}", f"age {age}\n")
    assert texts(tmp_path) == [f"age {age}" for age in range(11, 0, -1)] + ["last"]


def test_only_a_line_feed_ends_a_line_and_any_bytes_can_be_shown(tmp_path: Path) -> None:
    file = write(tmp_path, "1/0.log", "10%\r20%\u2028x\n")
    file.write_bytes(file.read_bytes() + b"\xff\nno end")
    assert texts(tmp_path) == ["10%\r20%\u2028x", "\ufffd", "no end"]


def test_what_never_ends_a_line_is_cut(tmp_path: Path) -> None:
    size = 3 * LONGEST_LINE
    write(tmp_path, "1/0.log", "x" * size)
    found = texts(tmp_path)
    assert "".join(found) == "x" * size
    assert len(found) > 1
    assert max(map(len, found)) <= LONGEST_LINE * 2


# --- by time --------------------------------------------------------------------------------------------------------


def test_lines_of_several_ranks_are_merged_by_time(tmp_path: Path) -> None:
    mark(write(tmp_path, "1/0.log", "a\nb\nc\n"), (0, 10), (2, 30), (4, 50))
    mark(write(tmp_path, "1/1.log", "d\ne\n"), (0, 20), (2, 50))
    labels = Labels(several=has_several(tmp_path, JOB, None))
    assert [labels.text(line) for line in log_lines(tmp_path, JOB)] == [
        "   0 | a", "   1 | d", "   0 | b", "   0 | c", "   1 | e",
    ]  # fmt: skip


def test_lines_between_two_marks_have_the_time_of_the_first(tmp_path: Path) -> None:
    mark(write(tmp_path, "1/0.log", "a\nb\nccc\nd\n"), (0, 10), (6, 30))
    assert [(line.text, line.at) for line in log_lines(tmp_path, JOB)] == [
        ("a", 10), ("b", 10), ("ccc", 10), ("d", 30),
    ]  # fmt: skip


def test_a_clock_that_was_set_back_does_not_turn_lines_round(tmp_path: Path) -> None:
    mark(write(tmp_path, "1/0.log", "a\nb\n"), (0, 90), (2, 5))
    mark(write(tmp_path, "1/1.log", "c\n"), (0, 50))
    assert texts(tmp_path) == ["c", "a", "b"]


def test_times_of_another_file_are_not_believed(tmp_path: Path) -> None:
    log = write(tmp_path, "1/0.log", "a\n")
    (log.parent / "0.times").write_text(f"inode {log.stat().st_ino + 1}\n0 77\n")
    assert [line.at for line in log_lines(tmp_path, JOB)] == [0]


def test_what_a_shim_writes_is_read_with_its_times_across_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / JOB / "1/0.log"
    path.parent.mkdir(parents=True)
    log = Log(str(path), {**LIMITS, "maxBytes": 20}, None, None)
    for number in range(10):
        log.write(f"line {number}..\n".encode())
    log.close()
    found = list(log_lines(tmp_path, JOB))
    assert [line.text for line in found] == [
        f"line {number}.." for number in range(2, 10)
    ]  # two a part, and three old ones
    assert all(line.at > 1_700_000_000_000_000_000 for line in found)
    assert [line.at for line in found] == sorted(line.at for line in found)


def test_timestamps_stand_in_front(tmp_path: Path) -> None:
    labels = Labels(several=True, timestamps=True)
    assert labels.text(Printed(1_764_547_200_123_456_789, 1, 12, "hi")) == "2025-12-01T00:00:00.123Z   12 | hi"
    assert labels.text(Printed(0, 1, 0, "hi")) == "-                           0 | hi"


# --- whose files ----------------------------------------------------------------------------------------------------


def test_nothing_is_read_through_a_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root's\n")
    write(tmp_path, "1/0.log", "mine\n")
    (tmp_path / JOB / "1/1.log").symlink_to(secret)
    assert texts(tmp_path) == ["mine"]


def test_only_files_of_the_owner_are_read(tmp_path: Path) -> None:
    write(tmp_path, "1/0.log", "mine\n")
    folder = LogFolder(tmp_path, JOB, owner=os.getuid() + 1)
    with pytest.raises(PermissionError):
        folder.open(1, "0.log")
    os.close(LogFolder(tmp_path, JOB, owner=os.getuid()).open(1, "0.log"))


# --- following ------------------------------------------------------------------------------------------------------


class Over(Exception):
    """The script is at its end."""


def followed(root: Path, *script: Callable[[], object], attempt: int | None = None, ends: bool = False) -> list[str]:
    """Lines that come while the script is played, one step each time nothing is new."""
    steps = list(script)
    lines: list[str] = []

    def pause() -> None:
        if not steps:
            raise Over
        steps.pop(0)()

    def collect() -> None:
        for line in followed_lines(root, JOB, attempt, pause=pause, over=lambda: ends and not steps):
            lines.append(line.text)  # noqa: PERF401  kept one by one: the end is an exception

    if ends:
        collect()
        return lines
    with pytest.raises(Over):
        collect()
    return lines


def test_following_gives_each_line_once_and_whole(tmp_path: Path) -> None:
    file = write(tmp_path, "1/0.log", "one\ntw")

    def more(content: bytes) -> Callable[[], object]:
        def append() -> None:
            with file.open("ab") as stream:
                stream.write(content)

        return append

    lines = followed(tmp_path, more(b"o\nthr"), more(b""), more("ée\n".encode()[:1]), more("ée\n".encode()[1:]))
    assert lines == ["one", "two", "thrée"]


def test_following_survives_a_rotation_even_when_the_new_file_is_longer(tmp_path: Path) -> None:
    file = write(tmp_path, "1/0.log", "one\n")

    def rotate() -> None:
        with file.open("a") as stream:
            stream.write("two\n")
        file.rename(file.with_suffix(".log.1"))
        file.write_text("three\nfour\nfive\nsix\n")

    assert followed(tmp_path, rotate) == ["one", "two", "three", "four", "five", "six"]


def test_following_waits_for_a_file_that_is_gone(tmp_path: Path) -> None:
    file = write(tmp_path, "1/0.log", "one\n")
    moved = file.with_suffix(".log.1")
    steps = (lambda: file.rename(moved), lambda: None, lambda: file.write_text("two\n"))
    assert followed(tmp_path, *steps) == ["one", "two"]


def test_following_begins_with_the_rotated_parts(tmp_path: Path) -> None:
    write(tmp_path, "1/0.log.1", "old\n")
    write(tmp_path, "1/0.log", "new\n")
    assert followed(tmp_path) == ["old", "new"]


def test_following_goes_on_with_the_next_attempt_and_leaves_nothing_of_the_last_out(tmp_path: Path) -> None:
    first = write(tmp_path, "1/0.log", "one\n")

    def preempted() -> None:
        with first.open("a") as stream:
            stream.write("saved\nno line end")
        write(tmp_path, "2/1.log", "resumed\n")

    assert followed(tmp_path, preempted) == ["one", "saved", "no line end", "resumed"]


def test_following_one_attempt_stays_with_it(tmp_path: Path) -> None:
    write(tmp_path, "1/0.log", "one\n")
    assert followed(tmp_path, lambda: write(tmp_path, "2/0.log", "two\n"), attempt=1) == ["one"]


def test_following_waits_for_a_job_that_has_not_begun_and_takes_ranks_that_come_later(tmp_path: Path) -> None:
    steps = (lambda: write(tmp_path, "1/0.log", "a\n"), lambda: write(tmp_path, "1/7.log", "b\n"))
    assert followed(tmp_path, *steps) == ["a", "b"]


def test_following_ends_with_the_job_and_its_last_words(tmp_path: Path) -> None:
    write(tmp_path, "1/0.log", "one\n")
    assert followed(tmp_path, lambda: write(tmp_path, "1/0.log", "one\nlast"), ends=True) == ["one", "last"]
