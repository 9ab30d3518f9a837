"""Which known word was probably meant? One answer, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

_ALIKE: Final = 0.6
_MOST: Final = 1000  # among more, a guess costs more than it tells
_LONGEST: Final = 80  # characters; comparing takes time with the square of it


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, the first in order among equals; None when none is much like it."""
    return _closest(word[:_LONGEST], tuple(known))


@lru_cache(maxsize=1024)  # a queue that was renamed is asked about by each of its jobs
def _closest(word: str, known: tuple[str, ...]) -> str | None:
    if len(known) > _MOST:
        return None
    best, found = _ALIKE, None
    for candidate in sorted(set(known)):
        likeness = SequenceMatcher(None, word.lower(), candidate.lower(), autojunk=False).ratio()
        if likeness > best or (likeness == best and found is None):
            best, found = likeness, candidate
    return found


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`Did you mean "x"?`, or "" when nothing is much like it."""
    found = closest(word, known)
    return f'Did you mean "{found}"?' if found else ""


def listed(words: Iterable[str], most: int = 8) -> str:
    """`a, b, c`, sorted and cut after `most`; "none" when there are none."""
    names = sorted(set(words))
    return (", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")) or "none"
