"""Logs of ranks: the right files, every line once, across rotations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.errors import NotFound
from reconciler.runtime.logs import follow, log_files, read_logs


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / "nlp/sft" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, newline="")
    return path


def test_the_latest_attempt_by_rank(tmp_path: Path) -> None:
    for name in ("2/0.log", "10/10.log", "10/2.log", "10/0.log", "10/0.log.1", "10/notes.txt", "old/0.log"):
        write(tmp_path, name, "")
    found = log_files(tmp_path, "nlp/sft", None, None)
    assert [path.relative_to(tmp_path / "nlp/sft").as_posix() for path in found] == [
        "10/0.log",
        "10/2.log",
        "10/10.log",
    ]
    assert [path.name for path in log_files(tmp_path, "nlp/sft", 2, None)] == ["0.log"]
    assert [path.name for path in log_files(tmp_path, "nlp/sft", None, 2)] == ["2.log"]


@pytest.mark.parametrize(("attempt", "rank"), [(7, None), (None, 5)])
def test_what_is_not_there_says_which_attempts_are(tmp_path: Path, attempt: int | None, rank: int | None) -> None:
    write(tmp_path, "1/0.log", "")
    write(tmp_path, "3/0.log", "")
    with pytest.raises(NotFound) as caught:
        log_files(tmp_path, "nlp/sft", attempt, rank)
    assert caught.value.code == "LogsMissing"
    assert "1, 3" in caught.value.remedy


def test_an_array_has_its_logs_by_task(tmp_path: Path) -> None:
    for task in (0, 1, 2, 10):
        write(tmp_path, f"../sweep.{task}/1/0.log", "")
    with pytest.raises(NotFound) as caught:
        log_files(tmp_path, "nlp/sweep", None, None)
    assert caught.value.remedy == "tasks with logs: 0-2,10; name one as nlp/sweep.N"
    assert len(log_files(tmp_path, "nlp/sweep.10", None, None)) == 1


def test_a_job_without_any_logs(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        log_files(tmp_path, "nlp/sft", None, None)
    assert "none" in caught.value.remedy


def test_rotated_parts_come_first_and_oldest_first(tmp_path: Path) -> None:
    file = write(tmp_path, "1/0.log", "last\n")
    for age in range(1, 12):
        write(tmp_path, f"1/0.log.{age}", f"age {age}\n")
    assert list(read_logs([file])) == [f"age {age}" for age in range(11, 0, -1)] + ["last"]


def test_lines_of_several_ranks_carry_their_rank(tmp_path: Path) -> None:
    files = [write(tmp_path, "1/0.log", "a\nb\n"), write(tmp_path, "1/12.log", "c\n")]
    assert list(read_logs(files)) == ["   0 | a", "   0 | b", "  12 | c"]


def test_only_a_line_feed_ends_a_line_and_any_bytes_can_be_shown(tmp_path: Path) -> None:
    file = write(tmp_path, "1/0.log", "10%\r20%\u2028x\n")
    file.write_bytes(file.read_bytes() + b"\xff\n")
    assert list(read_logs([file])) == ["10%\r20%\u2028x", "\ufffd"]


class Over(Exception):
    """The script is at its end."""


def followed(files: list[Path], *script: Callable[[], object]) -> list[str]:
    """Lines that come while the script is played, one step each time nothing is new."""
    steps = iter(script)
    lines: list[str] = []

    def pause() -> None:
        step = next(steps, None)
        if step is None:
            raise Over
        step()

    def collect() -> None:
        for line in follow(files, pause):
            lines.append(line)  # noqa: PERF402  kept one by one: the end is an exception

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

    lines = followed([file], more(b"o\nthr"), more(b""), more("ée\n".encode()[:1]), more("ée\n".encode()[1:]))
    assert lines == ["one", "two", "thrée"]


def test_following_survives_a_rotation_even_when_the_new_file_is_longer(tmp_path: Path) -> None:
    file = write(tmp_path, "1/0.log", "one\n")

    def rotate() -> None:
        with file.open("a") as stream:
            stream.write("two\n")
        file.rename(file.with_suffix(".log.1"))
        file.write_text("three\nfour\nfive\nsix\n")

    assert followed([file], rotate) == ["one", "two", "three", "four", "five", "six"]


def test_following_waits_for_a_file_that_is_gone(tmp_path: Path) -> None:
    file = write(tmp_path, "1/0.log", "one\n")
    moved = file.with_suffix(".log.1")
    assert followed([file], lambda: file.rename(moved), lambda: None, lambda: file.write_text("two\n")) == [
        "one",
        "two",
    ]
