"""What does the value of each sbatch option say? Text in; numbers, names and lists out; `ValueError` says what is wrong.

Times are seconds, memory is in MiB. Everything is bounded before it is expanded.
"""

from __future__ import annotations

import re
from typing import Any, Final

from reconciler.documents.hostlist import expand

MOST_TASKS: Final = 10_000
UNLIMITED: Final = "unlimited"
_COUNT: Final = re.compile(r"([0-9]{1,9})([kKmM]?)")
_TIMES: Final = re.compile(
    r"(?:(?P<days>[0-9]{1,6})-)?(?P<a>[0-9]{1,9})(?::(?P<b>[0-9]{1,6}))?(?::(?P<c>[0-9]{1,6}))?(?:\.[0-9]*)?"
)
_MEMORY: Final = re.compile(r"([0-9]{1,12})([kKmMgGtT]?)[bB]?")
_SIGNALS: Final = {
    "1": "HUP", "2": "INT", "3": "QUIT", "6": "ABRT", "9": "KILL", "10": "USR1", "12": "USR2", "14": "ALRM",
    "15": "TERM", "16": "URG", "18": "CONT", "19": "STOP", "20": "TSTP", "21": "TTIN", "22": "TTOU", "23": "URG",
}  # fmt: skip
_SIGNAL_NAMES: Final = frozenset(
    {"HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "USR1", "USR2", "URG", "CONT", "STOP", "TSTP", "TTIN",
     "TTOU", "XCPU"}
)  # fmt: skip
_GPU: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9_.-]{0,62})(?::([0-9]{1,9}))?|([0-9]{1,9}))")
_DEPENDENCY: Final = re.compile(
    r"(afterany|afterok|afternotok|aftercorr|afterburstbuffer|after|expand)((?::[0-9]{1,10}(?:_(?:[0-9]{1,9}|\*))?(?:\+[0-9]{1,9})?)+)"
)


class MixedSeparators(ValueError):
    """`,` and `?` in one list of dependencies: refused by slurmctld, not by sbatch."""


def text(value: str) -> str:
    """Any text but none."""
    if not value:
        raise ValueError("must not be empty")
    return value


def count(value: str) -> int:
    """A number from 1; `k` and `m` multiply by 1024 and its square."""
    found = _COUNT.fullmatch(value)
    if not found or int(found[1]) < 1:
        raise ValueError("must be a number, 1 or more")
    return int(found[1]) * {"": 1, "k": 1024, "m": 1024**2}[found[2].lower()]


def number(value: str) -> int:
    """A number from 0."""
    found = _COUNT.fullmatch(value)
    if not found:
        raise ValueError("must be a number")
    return int(found[1]) * {"": 1, "k": 1024, "m": 1024**2}[found[2].lower()]


def nice(value: str | None) -> int:
    """The adjustment of `--nice`, 100 when none is said."""
    if value is None:
        return 100
    if not re.fullmatch(r"[-+]?[0-9]{1,10}", value):
        raise ValueError("must be a whole number")
    return int(value)


def names(value: str) -> list[str]:
    """Names between commas."""
    found = [part for part in value.split(",") if part]
    if not found or len(found) > 1000:
        raise ValueError("must be names between commas")
    return found


def hosts(value: str) -> list[str]:
    """A hostlist, expanded."""
    if "/" in value:
        raise ValueError("names a file, which is not read")
    return list(expand(value))


def nodes(value: str) -> dict[str, int]:
    """`N` or `MIN-MAX`."""
    low, dash, high = value.partition("-")
    if "," in value or ":" in value:
        raise ValueError("is a list of node counts; only one count or a range is read")
    least = count(low)
    most = count(high) if dash else least
    if most < least:
        raise ValueError("must rise")
    return {"min": least, "max": most}


def seconds(value: str) -> int | str:
    """`MM`, `MM:SS`, `HH:MM:SS`, `D-HH[:MM[:SS]]`; `unlimited` for UNLIMITED, INFINITE and 0."""
    if value.upper() in {"UNLIMITED", "INFINITE", "-1"}:
        return UNLIMITED
    found = _TIMES.fullmatch(value)
    if not found:
        raise ValueError("must be MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS")
    a, b, c = int(found["a"]), found["b"], found["c"]
    if found["days"] is not None:
        total = int(found["days"]) * 86_400 + a * 3600 + int(b or 0) * 60 + int(c or 0)
    elif c is not None:
        total = a * 3600 + int(b) * 60 + int(c)
    else:
        total = a * 60 + int(b or 0)
    return total or UNLIMITED


def switches(value: str) -> dict[str, int]:
    """`COUNT[@TIME]`: at most so many leaf switches, and how long to wait for that."""
    most, at, wait = value.partition("@")
    try:
        found = {"count": count(most)}
    except ValueError:
        raise ValueError("must be 1 or more") from None
    if at:
        longest = seconds(wait)
        if isinstance(longest, int):
            found["max_wait_s"] = longest
    return found


def signal(value: str) -> dict[str, Any]:
    """`[R|B|RB:]SIGNAL[@SECONDS]`. The lead is 60 s when none is said."""
    found = re.fullmatch(r"(?:([RrBb]{1,2}):)?([A-Za-z0-9]{1,12})(?:@([0-9]{1,5}))?", value)
    if not found:
        raise ValueError("must be [B:]SIGNAL[@SECONDS]")
    name = found[2].upper().removeprefix("SIG")
    name = _SIGNALS.get(name, name)
    lead = int(found[3]) if found[3] else 60
    if name not in _SIGNAL_NAMES or lead > 65_535:
        raise ValueError("is no signal that is known, or its lead is above 65535 s")
    return {"name": name, "seconds": lead, "target": "batch" if "B" in (found[1] or "").upper() else "steps"}


def gpus(value: str) -> tuple[str | None, int]:
    """`[TYPE:]COUNT` of one type; (type, count)."""
    if "," in value:
        raise ValueError("names several types of GPU; one gang has one type")
    found = _GPU.fullmatch(value)
    if not found:
        raise ValueError("must be COUNT or TYPE:COUNT")
    total = int(found[3] or found[2] or 1)
    if total < 1:
        raise ValueError("must be 1 or more")
    return found[1], total


def gres(value: str) -> dict[str, tuple[str | None, int]]:
    """`NAME[:TYPE][:COUNT],...`: (type, count) by name, for each node."""
    found: dict[str, tuple[str | None, int]] = {}
    if value.lower() == "none":
        return found
    for part in names(value):
        pieces = part.removeprefix("gres/").replace("=", ":").split(":")
        name, *rest = pieces
        total = 1
        if rest and _COUNT.fullmatch(rest[-1]):
            total = number(rest.pop())
        if len(rest) > 1 or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name):
            raise ValueError("must be NAME[:TYPE][:COUNT] between commas")
        if name in found:
            raise ValueError(f"names {name} twice; one gang has one type")
        found[name] = (rest[0] if rest else None, total)
    return found


def memory(value: str) -> int:
    """MiB of `40000`, `128G`; a part of a MiB counts as one."""
    found = _MEMORY.fullmatch(value)
    if not found:
        raise ValueError("must be a number with K, M, G or T")
    kib = int(found[1]) * {"k": 1, "m": 1024, "": 1024, "g": 1024**2, "t": 1024**3}[found[2].lower()]
    return -(-kib // 1024)


def yes_no(value: str) -> bool:
    """`yes` or `no`."""
    if value.lower() not in {"yes", "no"}:
        raise ValueError("must be yes or no")
    return value.lower() == "yes"


def array(value: str) -> dict[str, Any]:
    """`0-15%4`, `1,3,5-9:2`: the ids in order, and how many run at once."""
    spec, percent, most = value.partition("%")
    ids: dict[int, None] = {}
    for part in spec.split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?", part)
        if not found:
            raise ValueError("must be ids and ranges such as 0-15 or 1,3,5-9:2, then perhaps %MOST")
        low, high, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if high < low or step < 1:
            raise ValueError("must rise, by steps of 1 or more")
        if len(ids) + (high - low) // step + 1 > MOST_TASKS:
            raise ValueError(f"has more than {MOST_TASKS} tasks")
        ids |= dict.fromkeys(range(low, high + 1, step))
    tasks: dict[str, Any] = {"ids": sorted(ids)}
    return tasks | ({"max_concurrent": count(most)} if percent else {})


def dependencies(value: str) -> tuple[list[dict[str, Any]], str | None]:
    """`TYPE:ID[+MINUTES][:ID...]` joined by `,` (all) or `?` (any); and which of the two joins them, if any does.

    Raises: MixedSeparators, when both do.
    """
    if "," in value and "?" in value:
        raise MixedSeparators('"," (and) and "?" (or) may not be mixed')
    parts = re.split(r"[,?]", value)
    if len(parts) > 1000:
        raise ValueError("has more than 1000 conditions")
    found = [entry for part in parts for entry in _dependency(part)]
    return found, (None if len(found) < 2 else "any" if "?" in value else "all")


def _dependency(part: str) -> list[dict[str, Any]]:
    if part == "singleton":
        return [{"type": "singleton"}]
    said = _DEPENDENCY.fullmatch(part)
    if not said:
        raise ValueError("must be conditions such as afterok:1234 or singleton")
    by_delay: dict[int, list[int | str]] = {}
    for one in said[2][1:].split(":"):
        job, _, delay = one.partition("+")
        by_delay.setdefault(int(delay or 0), []).append(int(job) if job.isdigit() else job)
    return [
        {"type": said[1], "jobs": jobs} | ({"delay_min": delay} if delay else {}) for delay, jobs in by_delay.items()
    ]
