"""Units and identifiers as types, so that passing one for another is a type error.

Instants are whole nanoseconds UTC since 1970; ages never occur in state. Everything is an integer.
"""

from __future__ import annotations

from typing import Final, NewType

Instant = NewType("Instant", int)
Nanoseconds = NewType("Nanoseconds", int)
Bytes = NewType("Bytes", int)
BitsPerSecond = NewType("BitsPerSecond", int)
Gpus = NewType("Gpus", int)
GpuSeconds = NewType("GpuSeconds", int)

JobKey = NewType("JobKey", str)
"""`queue/name`, the identity of a job across its incarnations; `queue/name.7` of a task of an array."""
QueueName = NewType("QueueName", str)
NodeName = NewType("NodeName", str)
GpuType = NewType("GpuType", str)
LevelName = NewType("LevelName", str)
DomainName = NewType("DomainName", str)
ClassName = NewType("ClassName", str)
Digest = NewType("Digest", str)
"""Lower-case hex of a sha256 over canonical bytes."""
CommitId = NewType("CommitId", str)

SECOND: Final = Nanoseconds(1_000_000_000)
MINUTE: Final = Nanoseconds(60 * SECOND)
HOUR: Final = Nanoseconds(60 * MINUTE)
DAY: Final = Nanoseconds(24 * HOUR)

NODE_LEVEL: Final = LevelName("node")
CLUSTER_LEVEL: Final = LevelName("cluster")
NVLINK_LEVEL: Final = LevelName("nvlinkDomain")


def job_key(queue: str, name: str) -> JobKey:
    """The one spelling of a job's identity."""
    return JobKey(f"{queue}/{name}")


def task_key(array: JobKey, index: int) -> JobKey:
    """The identity of one task of an array: `queue/name.7`. No name that people give has a dot in it."""
    return JobKey(f"{array}.{index}")


def document_of(key: JobKey) -> JobKey:
    """The job whose file this is of: of a task its array, of any other job the job itself."""
    return JobKey(key.partition(".")[0])


def index_of(key: JobKey) -> int | None:
    """Which task of its array this is; None for a job that is no task."""
    _, dot, index = key.partition(".")
    return int(index) if dot and index.isdecimal() else None


def seconds(ns: int) -> int:
    """Whole seconds in a span, rounded down. Display and GPU-second arithmetic only."""
    return ns // SECOND
