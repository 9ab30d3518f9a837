"""Which CPUs does the Linux list `0-55,112-167` name, and how is a set of CPUs written that way?

Exact, and bounded before anything is expanded. Where CPUs belong is for the inventory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_MOST: Final = 8192  # CPU numbers end below this; the largest machines Linux runs on
_LIST: Final = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*")


def parse_cpus(text: str) -> tuple[int, ...]:
    """CPU numbers in rising order, each once. Raises: ValueError for wrong syntax or numbers from 8192 on."""
    if len(text) > 8 * _MOST or not _LIST.fullmatch(text):
        raise ValueError(f"{text[:60]!a} is not a CPU list such as 0-55,112-167")
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        first, last = int(low), int(high or low)
        if last < first or last >= _MOST:
            raise ValueError(f"CPU range {part} must rise and stay below {_MOST}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def print_cpus(cpus: Iterable[int]) -> str:
    """The shortest list of these CPUs, rising: `0-3,8`; "" for none."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
