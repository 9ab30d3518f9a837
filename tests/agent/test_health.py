"""What is remembered of GPUs between looks: logged faults, slowing down that lasts, and the speed of a link at work."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from reconciler.agent.health import BEGINS_SECONDS, ENDS_SECONDS, Course

HOT = "heat, by the hardware"


def record(text: str, *, level: int = 4, at: int = 5_000_000) -> bytes:
    """A line as /dev/kmsg has it, with the fields that follow it."""
    return f"{level},812,{at},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n".encode()


LINES: dict[str, tuple[bytes, list[int]]] = {
    "as drivers write it now": (
        record("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has"),
        [79],
    ),
    "as old drivers did": (record("NVRM: Xid (0000:3b:00): 48, Ch 0000000b"), [48]),
    "two of one GPU": (
        record("NVRM: Xid (PCI:0000:3b:00): 95, x") + record("NVRM: Xid (PCI:0000:3b:00): 74, x"),
        [74, 95],
    ),
    "the same twice": (2 * record("NVRM: Xid (PCI:0000:3b:00): 79, x"), [79]),
    "capitals": (record("NVRM: Xid (PCI:0000:3B:00): 79, x"), [79]),
    "of another GPU": (record("NVRM: Xid (PCI:0000:5e:00): 79, x"), []),
    "a job's own error": (record("NVRM: Xid (PCI:0000:3b:00): 31, pid=9, name=python, MMU Fault"), []),
    "what the driver tells better": (record("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed"), []),
    "written by a program, not by the kernel": (record("NVRM: Xid (PCI:0000:3b:00): 79, x", level=12), []),
    "inside another line": (record("audit: comm=NVRM: Xid (PCI:0000:3b:00): 79, x"), []),
    "nothing at all": (b"", []),
    "no record": (b"\xff\x00;;;NVRM: Xid (PCI:0000:3b:00): 79", []),
}


@pytest.mark.parametrize(("records", "xids"), LINES.values(), ids=LINES)
def test_faults_of_a_gpu_out_of_the_kernels_log(records: bytes, xids: list[int]) -> None:
    course = Course()
    course.take_in(records)
    assert course.xids("00000000:3B:00.0") == xids


def test_a_log_is_read_on_from_where_it_was_left(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(record("NVRM: Xid (PCI:0000:3b:00): 79, x"))
    course = Course(log=log)
    course.read_log()
    with log.open("ab") as more:
        more.write(record("NVRM: Xid (PCI:0000:3b:00): 48, x"))
    course.read_log()
    assert course.xids("0000:3b:00.0") == [48, 79]


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    course = Course(log=tmp_path / "none")
    course.read_log()
    assert course.xids("0000:3b:00.0") == []


def test_faults_from_before_a_reset_that_somebody_marked_are_over(tmp_path: Path) -> None:
    mark = tmp_path / "gpus-reset"
    course = Course(reset_mark=mark)
    now = int(time.monotonic() * 1_000_000)
    course.take_in(record("NVRM: Xid (PCI:0000:3b:00): 79, x", at=now - 60_000_000))
    assert course.xids("0000:3b:00.0") == [79]
    mark.touch()
    os.utime(mark, (time.time() - 30, time.time() - 30))
    assert course.xids("0000:3b:00.0") == []
    course.take_in(record("NVRM: Xid (PCI:0000:3b:00): 48, x", at=now - 10_000_000))
    assert course.xids("0000:3b:00.0") == [48]


def test_slowing_down_is_told_when_it_lasts_and_until_it_has_been_over_for_long() -> None:
    course, told = Course(), []
    looks = [(0, HOT), (30, HOT), (BEGINS_SECONDS, "power brake"), (90, ""), (90 + ENDS_SECONDS - 40, ""), (700, "")]
    for at, why in looks:
        told.append(course.throttled("GPU-0", why, at))
    assert told == ["", "", "power brake", "power brake", "power brake", ""]


def test_short_peaks_are_never_told() -> None:
    course = Course()
    looks = [(second, HOT if second % 40 else "") for second in range(0, 4000, 10)]
    assert {course.throttled("GPU-0", why, second) for second, why in looks} == {""}


def test_the_reason_that_was_told_stays_while_it_lasts() -> None:
    course = Course()
    told = {course.throttled("GPU-0", why, at) for at, why in ((0, HOT), (60, HOT), (70, "power brake"), (80, HOT))}
    assert told == {"", HOT}


def test_an_idle_gpu_keeps_the_speed_it_had_at_work() -> None:
    course = Course()
    looks = [(2_500, False), (32_000, True), (2_500, False), (16_000, True), (2_500, False)]
    assert [course.speed("GPU-0", seen, at_work=work) for seen, work in looks] == [0, 32_000, 32_000, 16_000, 16_000]
