"""Which tasks of an array does the list `3,7-9` name, and how is a set of tasks written that way?

Exact, and bounded before anything is expanded. Whether the array has such tasks is for who knows the array.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from reconciler.documents.cpulist import print_cpus

MOST_TASKS: Final = 10_000  # of one array
SHARED: Final = 40
"""So many characters of their digests are the same for all tasks of one form of an array."""
_LIST: Final = re.compile(r"[0-9]{1,4}(?:-[0-9]{1,4})?(?:,[0-9]{1,4}(?:-[0-9]{1,4})?)*")


def parse_tasks(text: str) -> tuple[int, ...]:
    """Task numbers in rising order, each once. Raises: ValueError for wrong syntax or a range that falls."""
    if len(text) > 8 * MOST_TASKS or not _LIST.fullmatch(text):
        raise ValueError(f"{text[:60]!a} is no list of tasks such as 3,7-9")
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        first, last = int(low), int(high or low)
        if last < first:
            raise ValueError(f"the range of tasks {part} must rise")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def print_tasks(tasks: Iterable[int]) -> str:
    """The shortest list of these tasks, rising: `3,7-9`; "" for none."""
    return print_cpus(tasks)
