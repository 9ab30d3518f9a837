"""How do the tasks of an array read in the record? A table in the array's one file; equal tasks share a row.

Of ten thousand tasks most wait alike: they are one row, `tasks: 128-9999`. What tells tasks of a row apart is the end of
their digests, written beside each other. Which values a row holds is for `record`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from reconciler.documents.loader import Tree
from reconciler.documents.places import from_spans, spans
from reconciler.documents.tasklist import MOST_TASKS, SHARED
from reconciler.model.units import Digest

_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Row:
    """Tasks that are equal but for their digests: `tree` says all else, `digests` belong to `tasks` one by one."""

    tasks: tuple[int, ...]
    digests: tuple[Digest, ...]
    tree: Mapping[str, Tree]


def rows_of(
    tasks: Mapping[int, _T], digest_of: Callable[[_T], Digest], alike: Callable[[_T, Digest], _T],
    tree_of: Callable[[_T], Mapping[str, Tree]],
) -> list[Tree]:  # fmt: skip
    """The table of these tasks, by number. `alike` is the value without what is its own: tasks equal then are one row.

    It is handed the part of the digest that all tasks of a form of the array share.
    """
    groups: dict[_T, list[int]] = {}
    for index in sorted(tasks):
        value = tasks[index]
        groups.setdefault(alike(value, Digest(digest_of(value)[:SHARED])), []).append(index)
    return [
        {"tasks": spans(found), "own": _once(digest_of(tasks[index])[SHARED:] for index in found), **tree_of(value)}
        for value, found in groups.items()
    ]


def _once(ends: Iterable[str]) -> str:
    found = list(ends)
    return found[0] if len(set(found)) == 1 else ",".join(found)


def read_rows(table: Tree) -> Iterator[Row]:
    """The rows that `rows_of` wrote. Raises LookupError, TypeError or ValueError for anything else."""
    if not isinstance(table, list):
        raise TypeError("a table of tasks is a list")
    for row in table:
        if not isinstance(row, dict):
            raise TypeError("a row of tasks is a mapping")
        rest = dict(row)
        tasks = from_spans(str(rest.pop("tasks")))
        ends = str(rest.pop("own")).split(",")
        ends = ends * len(tasks) if len(ends) == 1 else ends
        if (
            not tasks
            or len(ends) != len(tasks)
            or tasks[0] < 0
            or tasks[-1] >= MOST_TASKS
            or tasks != sorted(set(tasks))
        ):
            raise ValueError(f"{str(row['tasks'])[:40]} is no list of tasks with a digest each")
        yield Row(tuple(tasks), tuple(Digest(f"{rest['digest']}{end}") for end in ends), rest)
