"""The closed list of reasons, each with the numbers it carries and the sentence that shows them.

Rule book §12. A job without a reason does not exist; the sentence is a template over the numbers, so that text,
markdown and JSON say the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """Why a job is where it is."""

    # not a candidate
    NEVER_FITS = "NeverFits"
    NEVER_FITS_QUOTA = "NeverFitsQuota"
    SUSPENDED = "Suspended"
    AFTER = "After"
    BACK_OFF = "BackOff"
    QUEUE_GONE = "QueueGone"
    INVALID = "Invalid"
    ADMISSIONS_FROZEN = "AdmissionsFrozen"
    # a candidate that waits
    QUOTA_CEILING = "QuotaCeiling"
    WAITING_FOR_VICTIMS = "WaitingForVictims"
    HELD_FOR = "HeldFor"
    AFTER_PREEMPTOR = "AfterPreemptor"
    BLOCKED_BY_EARLIER = "BlockedByEarlier"
    NODE_STATE = "NodeState"
    MAINTENANCE = "Maintenance"
    GPU_TYPE_MISSING = "GpuTypeMissing"
    GPU_TYPE_SPLIT = "GpuTypeSplit"
    CAPACITY = "Capacity"
    NO_DOMAIN_FITS = "NoDomainFits"
    GROUPS_DO_NOT_FIT = "GroupsDoNotFit"
    NODE_RESOURCES = "NodeResources"
    PROTECTED = "Protected"
    SEARCH_LIMIT = "SearchLimit"
    # holds GPUs
    PLACED = "Placed"
    RUNNING = "Running"
    NODE_LOST = "NodeLost"
    PREEMPTED = "Preempted"
    START_FAILED = "StartFailed"
    RANK_FAILED = "RankFailed"
    TIME_LIMIT = "TimeLimit"
    CHANGED = "Changed"
    CANCELLED = "Cancelled"
    NODE_REMOVED = "NodeRemoved"
    # over
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


Number = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A code and its numbers, in the order they are told. Names in `numbers` are camelCase, as in YAML."""

    code: ReasonCode
    numbers: tuple[tuple[str, Number], ...] = ()

    def number(self, name: str) -> Number | None:
        return next((value for key, value in self.numbers if key == name), None)


def reason(code: ReasonCode, **numbers: Number) -> Reason:
    """Build a reason; keyword order is the order of telling."""
    return Reason(code=code, numbers=tuple(numbers.items()))


SENTENCES: dict[ReasonCode, str] = {
    ReasonCode.NEVER_FITS: "needs {need} GPUs in one {level}; the largest {level} of the empty cluster holds {largest}",
    ReasonCode.NEVER_FITS_QUOTA: "needs {need} GPUs; queue {queue} can never hold more than {most}",
    ReasonCode.SUSPENDED: "suspended in its file",
    ReasonCode.AFTER: "waits for {job} to be {condition}",
    ReasonCode.BACK_OFF: "failed {failures} times; next attempt at {until}",
    ReasonCode.QUEUE_GONE: "queue {queue} no longer exists",
    ReasonCode.INVALID: "its file is invalid: {problem}",
    ReasonCode.ADMISSIONS_FROZEN: "nothing is admitted while a cluster file is invalid: {file}",
    ReasonCode.QUOTA_CEILING: "queue {queue} would hold {wouldBe} of at most {ceiling} {gpuType}",
    ReasonCode.WAITING_FOR_VICTIMS: "{victims} stopping; {released} of {needed} GPUs released",
    ReasonCode.HELD_FOR: "{gpus} free GPUs are promised to {owner}",
    ReasonCode.AFTER_PREEMPTOR: "evicted by {preemptor}, which starts first",
    ReasonCode.BLOCKED_BY_EARLIER: "{owner} is before it in line",
    ReasonCode.NODE_STATE: "{excluded} GPUs are on nodes that take no work: {states}",
    ReasonCode.MAINTENANCE: "{excluded} GPUs are drained by {window} before it would end",
    ReasonCode.GPU_TYPE_MISSING: "no node has GPUs of type {gpuTypes}",
    ReasonCode.GPU_TYPE_SPLIT: "needs {need} GPUs of one type; the most free of one type is {free}",
    ReasonCode.CAPACITY: "needs {need} GPUs; {free} are free, {evictable} could be freed, {releasing} are being released",
    ReasonCode.NO_DOMAIN_FITS: "needs {need} GPUs in one {level}; the best, {best}, has {free} free",
    ReasonCode.GROUPS_DO_NOT_FIT: "{fitting} of {needed} groups of {size} fit inside one {level} each",
    ReasonCode.NODE_RESOURCES: "{short} is short on the nodes that have the GPUs",
    ReasonCode.PROTECTED: "{protected} GPUs it could take are protected: {by}",
    ReasonCode.SEARCH_LIMIT: "not found in {steps} steps",
    ReasonCode.PLACED: "{gpus} GPUs in one {level}",
    ReasonCode.RUNNING: "all {ranks} ranks started",
    ReasonCode.NODE_LOST: "{nodes} lost",
    ReasonCode.PREEMPTED: "gives way to {preemptor}; {lost} GPU-seconds since the last checkpoint",
    ReasonCode.START_FAILED: "{node} did not start it: {why}",
    ReasonCode.RANK_FAILED: "a rank on {node} exited with {exitCode}",
    ReasonCode.TIME_LIMIT: "its time limit of {limit} s is over",
    ReasonCode.CHANGED: "what it runs was changed",
    ReasonCode.CANCELLED: "its file was removed",
    ReasonCode.NODE_REMOVED: "{nodes} left the inventory",
    ReasonCode.SUCCEEDED: "every rank exited with 0",
    ReasonCode.FAILED: "a rank on {node} exited with {exitCode} and {restarts} restarts were used",
}


class _Shown(dict[str, Number]):
    def __missing__(self, key: str) -> Number:
        return "?"


def sentence(why: Reason) -> str:
    """The reason as one clause in English. A number that is missing shows as `?`, never as an error."""
    return SENTENCES[why.code].format_map(_Shown(why.numbers))
