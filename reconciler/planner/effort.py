"""How much may the searches for victims of one decision cost, and who may still have one made?

A search that finds nobody can cost as much as one that does, so a few big jobs which nobody can help could use up
every round's steps and keep those behind them from ever being looked at. The steps of a round lie in three purses:
one for the line as it stands; one for those whom the last round passed over; and one for whoever stands behind a
place in the line that is another one every second, so that everybody's turn comes, whatever stands before him. What is
searched, and how, is for `preemption`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import SECOND, Instant

ROUND: Final = 400_000  # steps of all searches of a decision; one is about a microsecond's work
_SPREAD: Final = 2_654_435_769  # 2^32 over the golden ratio: its multiples fall evenly, wherever one begins to look
_RANGE_BITS: Final = 32


class Purse(StrEnum):
    """Whose steps they are."""

    LINE = "line"
    PASSED_OVER = "passedOver"
    TURN = "turn"


_SHARE: Final = {Purse.LINE: ROUND // 2, Purse.PASSED_OVER: ROUND // 4, Purse.TURN: ROUND // 4}


class Effort:
    """The steps of one decision. A search once begun is paid to its end (which has a limit of its own)."""

    __slots__ = ("_left", "_purse", "is_exhausted")

    def __init__(self) -> None:
        self._left = dict(_SHARE)
        self._purse = Purse.LINE
        self.is_exhausted = False  # somebody could not have a search made

    @property
    def spent(self) -> int:
        """Steps gone by in this decision."""
        return ROUND - sum(self._left.values())

    def spend(self, steps: int) -> None:
        """So many steps were made by the search that was begun last."""
        self._left[self._purse] -= steps

    def begin(self, *, passed_over: bool, in_turn: bool) -> bool:
        """Open a purse for one job's search; False: none that is for this job has anything left."""
        for purse, may_use in ((Purse.LINE, True), (Purse.PASSED_OVER, passed_over), (Purse.TURN, in_turn)):
            if may_use and self._left[purse] > 0:
                self._purse = purse
                return True
        self.is_exhausted = True
        return False


def was_passed_over(record: JobRecord) -> bool:
    """No search was made for it so far: it is new, or its reason says so."""
    return record.reason.code is ReasonCode.SEARCH_LIMIT or not record.reason.numbers


def turn_begins(now: Instant, waiting: int) -> int:
    """The place in a line of so many from which on it is everybody's turn; spread evenly over the seconds."""
    return (int(now) // SECOND * _SPREAD % (1 << _RANGE_BITS)) * waiting >> _RANGE_BITS
