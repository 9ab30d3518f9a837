"""The closed list of reasons, each with the numbers it carries and the sentence that shows them.

Rule book §12. A job without a reason does not exist; the sentence is a template over the numbers, so that text,
markdown and JSON say the same thing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from reconciler.model.units import SECOND


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
    POLICY = "Policy"
    APPROVAL = "Approval"
    POLICY_PLAN = "PolicyPlan"
    NO_ACCOUNT = "NoAccount"
    REQUESTED = "Requested"
    FROZEN = "Frozen"
    # a candidate that waits
    USER_LIMIT = "UserLimit"
    QUOTA_CEILING = "QuotaCeiling"
    QUOTA_EXHAUSTED = "QuotaExhausted"
    LEND_LIMIT = "LendLimit"
    NON_PREEMPTIBLE_OVER_GUARANTEE = "NonPreemptibleOverGuarantee"
    FAIR_SHARE_REACHED = "FairShareReached"
    AFTER_RECLAIM = "AfterReclaim"
    WAITING_FOR_VICTIMS = "WaitingForVictims"
    HELD_FOR = "HeldFor"
    AFTER_PREEMPTOR = "AfterPreemptor"
    BLOCKED_BY_EARLIER = "BlockedByEarlier"
    NODE_STATE = "NodeState"
    NVLINK_DOWN = "NvlinkDown"
    MAINTENANCE = "Maintenance"
    GPU_TYPE_MISSING = "GpuTypeMissing"
    GPU_TYPE_SPLIT = "GpuTypeSplit"
    CAPACITY = "Capacity"
    NO_DOMAIN_FITS = "NoDomainFits"
    GROUPS_DO_NOT_FIT = "GroupsDoNotFit"
    NODE_RESOURCES = "NodeResources"
    PROTECTED = "Protected"
    PROTECTED_UNTIL = "ProtectedUntil"
    WOULD_DELAY = "WouldDelay"
    STARTS_SOON = "StartsSoon"
    SEARCH_LIMIT = "SearchLimit"
    MAX_PARALLEL = "MaxParallel"
    # holds GPUs
    PLACED = "Placed"
    RUNNING = "Running"
    NODE_LOST = "NodeLost"
    REPAIR_WAIT = "RepairWait"
    MOVED = "Moved"
    RESIZED = "Resized"
    PREEMPTED = "Preempted"
    RECLAIMED = "Reclaimed"
    FAIR_SHARE = "FairShare"
    START_FAILED = "StartFailed"
    RANK_FAILED = "RankFailed"
    TIME_LIMIT = "TimeLimit"
    IDLE = "Idle"
    CHANGED = "Changed"
    CANCELLED = "Cancelled"
    NODE_REMOVED = "NodeRemoved"
    # over
    TASK_CANCELLED = "TaskCancelled"
    ARRAY_STOPPED = "ArrayStopped"
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

    def count(self, name: str) -> int:
        """That number where it is one; 0 where the reason tells none."""
        found = self.number(name)
        return found if isinstance(found, int) else 0


def reason(code: ReasonCode, **numbers: Number) -> Reason:
    """Build a reason; keyword order is the order of telling."""
    return Reason(code=code, numbers=tuple(numbers.items()))


SENTENCES: dict[ReasonCode, str] = {
    # {name|for one|for several}: which form is told depends on the number of that name, which stands where # is.
    ReasonCode.NEVER_FITS: "needs {need|# GPU|# GPUs} in one {level}; the largest {level} of the empty cluster holds {largest}",
    ReasonCode.NEVER_FITS_QUOTA: "needs {need|# GPU|# GPUs}; queue {queue} can never hold more than {most}",
    ReasonCode.SUSPENDED: "suspended in its file",
    ReasonCode.AFTER: "waits for {job} to be {condition}",
    ReasonCode.BACK_OFF: "failed {failures|# time|# times}, last: {last}; next attempt at {until}",
    ReasonCode.QUEUE_GONE: "queue {queue} no longer exists",
    ReasonCode.INVALID: "its file is invalid: {problem}",
    ReasonCode.ADMISSIONS_FROZEN: "nothing is admitted while a cluster file is invalid or withheld: {file}",
    ReasonCode.POLICY: "policy {policy} denies it ({rule}): {message}",
    ReasonCode.APPROVAL: "policy {policy} wants approval by {approvers} ({rule}): {message}",
    ReasonCode.POLICY_PLAN: "policy {policy} denies what its start would do ({rule}): {message}",
    ReasonCode.NO_ACCOUNT: "jobs of queue {queue} run as who brought them, and no account is known for {user}",
    ReasonCode.REQUESTED: "{done} by {by} until {until} (request {request}): {message}",
    ReasonCode.FROZEN: "{by} lets nothing of {what} start until {until} (request {request}): {message}",
    ReasonCode.USER_LIMIT: "{user} would hold {wouldBe} of at most {most} {what} in {scope}",
    ReasonCode.QUOTA_CEILING: "queue {queue} would hold {wouldBe} of at most {ceiling} {gpuType}",
    ReasonCode.QUOTA_EXHAUSTED: "needs {need} {gpuType}; queue {queue} may add {room} before others give some back",
    ReasonCode.LEND_LIMIT: "needs {need} {gpuType}; queue {lender} lends no more than {lend} of what it does not use",
    ReasonCode.NON_PREEMPTIBLE_OVER_GUARANTEE: "it is not preemptible, so it may only use what queue {queue} is "
    "guaranteed: {used} in use and {need} needed of {guaranteed} {gpuType}",
    ReasonCode.FAIR_SHARE_REACHED: "queue {queue} would have {share} {gpuType} a weight above its guarantee, "
    "more than the {otherShare} of {other}",
    ReasonCode.AFTER_RECLAIM: "gave borrowed GPUs back; borrows again from {until}",
    ReasonCode.WAITING_FOR_VICTIMS: "{victims} stopping; {released} of {needed|# GPU|# GPUs} released",
    ReasonCode.HELD_FOR: "{gpus|# free GPU is|# free GPUs are} promised to {owner}",
    ReasonCode.AFTER_PREEMPTOR: "evicted by {preemptor}, which starts first",
    ReasonCode.BLOCKED_BY_EARLIER: "{owner} is before it in line",
    ReasonCode.NODE_STATE: "{excluded|# GPU is on a node that takes|# GPUs are on nodes that take} no work: {states}",
    ReasonCode.NVLINK_DOWN: "{gpus|# GPU|# GPUs} lost NVLinks, which splits the domain its groups would need on {nodes}",
    ReasonCode.MAINTENANCE: "{excluded|# GPU is|# GPUs are} drained by {window} before it would end",
    ReasonCode.GPU_TYPE_MISSING: "no node has GPUs of type {gpuTypes}",
    ReasonCode.GPU_TYPE_SPLIT: "needs {need|# GPU|# GPUs} of one type; the most free of one type is {free}",
    ReasonCode.CAPACITY: "needs {need|# GPU|# GPUs}; {free|# is|# are} free, {evictable} could be freed, {releasing|# is|# are} being released",
    ReasonCode.NO_DOMAIN_FITS: "needs {need|# GPU|# GPUs} in one {level}; the best, {best}, has {free} free",
    ReasonCode.GROUPS_DO_NOT_FIT: "{fitting} of {needed|# group of|# groups of} {size} fit inside one {level} each",
    ReasonCode.NODE_RESOURCES: "{short} is short on the nodes that have the GPUs",
    ReasonCode.PROTECTED: "{protected|# GPU it could take is|# GPUs it could take are} protected: {by}",
    ReasonCode.PROTECTED_UNTIL: "{protected|# GPU it could take is|# GPUs it could take are} protected until {until}: {by}",
    ReasonCode.WOULD_DELAY: "would delay {owner}, which is to start at {from}, until {to}",
    ReasonCode.STARTS_SOON: "starts on free GPUs at {at}; nobody is evicted for less than that",
    ReasonCode.SEARCH_LIMIT: "not found in {steps|# step|# steps}",
    ReasonCode.MAX_PARALLEL: "{running|# task|# tasks} of {array} {running|holds|hold} GPUs, as many as it allows at once",
    ReasonCode.PLACED: "{gpus|# GPU|# GPUs} in one {level}",
    ReasonCode.RUNNING: "{ranks|its one rank|all # ranks} started",
    ReasonCode.NODE_LOST: "{nodes} lost",
    ReasonCode.REPAIR_WAIT: "{missing} of {need|# GPU|# GPUs} lost; keeps the rest for a replacement until {until}",
    ReasonCode.MOVED: "moves to {target}{purpose}; {lost|# GPU-second|# GPU-seconds} since the last checkpoint",
    ReasonCode.RESIZED: "goes on with {gpus|# GPU|# GPUs} instead of {held}{purpose}; {lost|# GPU-second|# GPU-seconds} since the last checkpoint",
    ReasonCode.PREEMPTED: "gives way to {preemptor}; {lost|# GPU-second|# GPU-seconds} since the last checkpoint",
    ReasonCode.RECLAIMED: "gives borrowed GPUs back to {preemptor}; {lost|# GPU-second|# GPU-seconds} since the last checkpoint",
    ReasonCode.FAIR_SHARE: "evens out use with {preemptor}; {lost|# GPU-second|# GPU-seconds} since the last checkpoint",
    ReasonCode.START_FAILED: "{node} did not start it: {why}",
    ReasonCode.RANK_FAILED: "a rank on {node} exited with {exitCode}",
    ReasonCode.TIME_LIMIT: "its time limit of {limit} s is over",
    ReasonCode.IDLE: "nobody has used it for {idle} s; it ends after {limit} s",
    ReasonCode.CHANGED: "what it runs was changed",
    ReasonCode.CANCELLED: "its file was removed",
    ReasonCode.NODE_REMOVED: "{nodes} left the inventory",
    ReasonCode.TASK_CANCELLED: "its file says that this task is cancelled",
    ReasonCode.ARRAY_STOPPED: "not started: {task} failed, and its array stops then",
    ReasonCode.SUCCEEDED: "every rank exited with 0",
    ReasonCode.FAILED: "a rank on {node} exited with {exitCode} and {restarts|# restart was|# restarts were} used",
}


class _Shown(dict[str, Number]):
    def __missing__(self, key: str) -> Number:
        return "?"


_INSTANTS = frozenset({"until", "from", "to", "at", "deadline"})


def _told(name: str, value: Number) -> Number:
    """An instant as people write it, to the second, in UTC; any other number as it is."""
    if name not in _INSTANTS or not isinstance(value, int):
        return value
    days, rest = divmod(value // SECOND, 86_400)
    # Days since 1970 to a date of the Gregorian calendar, counted in years that begin in March.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year_of_era + 400 * era + (1 if month <= 2 else 0)
    return f"{year:04d}-{month:02d}-{day:02d}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}Z"


_COUNTED = re.compile(r"\{(\w+)\|([^|{}]*)\|([^{}]*)\}")
_CAPITAL = re.compile(r"[A-Z]")


def _counted(found: re.Match[str], why: Reason) -> str:
    """The form for one or the form for several, with the number's place in it."""
    return found[2 if why.number(found[1]) == 1 else 3].replace("#", f"{{{found[1]}}}")


def template(code: ReasonCode) -> str:
    """The sentence of a code with its numbers' names in braces, as for several: `all {ranks} ranks started`."""
    return _COUNTED.sub(lambda found: _counted(found, Reason(code=code)), SENTENCES[code])


def blank(code: ReasonCode) -> str:
    """The sentence of a code for people, without numbers: `all <ranks> ranks started`."""
    return re.sub(r"\{(\w+)\}", lambda name: f"<{_CAPITAL.sub(_apart, name[1])}>", template(code))


def _apart(capital: re.Match[str]) -> str:
    return f" {capital[0].lower()}"


def sentence(why: Reason) -> str:
    """The reason as one clause in English. A number that is missing shows as `?`, never as an error."""
    text = _COUNTED.sub(lambda found: _counted(found, why), SENTENCES[why.code])
    told = text.format_map(_Shown((name, _told(name, value)) for name, value in why.numbers))
    if why.code is ReasonCode.MAINTENANCE and (by := why.number("by")) is not None:
        told = f"{told}; asked for by {by}: {why.number('message')}"
    return f"{told}; not proved, the search ran out of steps" if ("proved", "false") in why.numbers else told
