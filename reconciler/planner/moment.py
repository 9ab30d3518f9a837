"""Until when would everything that was asked about the time be answered the same?

A `Moment` is an instant that keeps watch over the questions it is asked. It adds and compares like the number it is;
each comparison with a fixed instant notes when its answer would turn. A decision made with a `Moment` for its `now`
runs through the very same steps at every later instant before the first such turn: an instant that is only added to
and compared can do nothing else. What is done with it beyond that (multiplied, shown, looked up) makes the watch
unsure at once. Three uses are exempt, by `int(now)`, because something else answers for them: prices of victims, which
choose among sets but make none; decayed use, whose order is compared by itself (`still`); and whose turn it is, which
only counts when the steps of a round ran out, and then the watch is unsure.
"""

from __future__ import annotations

from typing import Final, Self

from reconciler.model.units import Instant

_FOR_EVER: Final = 1 << 80


class Watch:
    """`next_turn`: nanoseconds from the moment on until the first of all answers given so far turns."""

    __slots__ = ("_is_sure", "next_turn")

    def __init__(self) -> None:
        self.next_turn = _FOR_EVER
        self._is_sure = True

    @property
    def holds_for(self) -> int:
        """How long all that was made of the moment stays what it is, in nanoseconds; 0 when unsure."""
        return self.next_turn if self._is_sure else 0

    def turns_in(self, span: int) -> None:
        """Some answer is another one after so many nanoseconds."""
        self.next_turn = min(self.next_turn, span)

    def is_unsure(self) -> None:
        """Something depends on the time in another way than by a comparison."""
        self._is_sure = False


class Moment(int):
    """The present instant, or one at a fixed distance from it, under watch."""

    _watch: Watch

    @classmethod
    def of(cls, at: int, watch: Watch) -> Self:
        """That instant, which tells the watch what it is asked."""
        made = cls(at)
        made._watch = watch
        return made

    def __add__(self, other: int) -> int:
        if isinstance(other, Moment):
            self._watch.is_unsure()
            return int.__add__(self, other)
        return self.of(int.__add__(self, other), self._watch)

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        if isinstance(other, Moment):  # the distance of two that move together is fixed
            return int.__sub__(self, other)
        return self.of(int.__sub__(self, other), self._watch)

    def __lt__(self, other: int) -> bool:
        found = int.__lt__(self, other)
        if found and not isinstance(other, Moment):
            self._watch.turns_in(int.__sub__(other, self))
        return found

    def __ge__(self, other: int) -> bool:
        found = int.__ge__(self, other)
        if not found and not isinstance(other, Moment):
            self._watch.turns_in(int.__sub__(other, self))
        return found

    def __le__(self, other: int) -> bool:
        found = int.__le__(self, other)
        if found and not isinstance(other, Moment):
            self._watch.turns_in(int.__sub__(other, self) + 1)
        return found

    def __gt__(self, other: int) -> bool:
        found = int.__gt__(self, other)
        if not found and not isinstance(other, Moment):
            self._watch.turns_in(int.__sub__(other, self) + 1)
        return found

    def __eq__(self, other: object) -> bool:
        found = int.__eq__(self, other)
        if isinstance(other, int) and not isinstance(other, Moment) and int.__le__(self, other):
            self._watch.turns_in(max(1, int.__sub__(other, self)))
        return found

    def __ne__(self, other: object) -> bool:
        return not self == other

    def is_unsure(self) -> None:
        """No comparison shows what depends on it from here on."""
        self._watch.is_unsure()

    def _value(self) -> int:
        """The number alone, for a use that nobody watches."""
        self._watch.is_unsure()
        return int(self)

    def __hash__(self) -> int:
        return hash(self._value())

    def __bool__(self) -> bool:
        return bool(self._value())

    def __str__(self) -> str:
        return str(self._value())

    def __format__(self, spec: str) -> str:
        return format(self._value(), spec)

    def __rsub__(self, other: int) -> int:
        return other - self._value()

    def __mul__(self, other: int) -> int:
        return self._value() * other

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        return self._value() // other

    def __rfloordiv__(self, other: int) -> int:
        return other // self._value()

    def __mod__(self, other: int) -> int:
        return self._value() % other

    def __divmod__(self, other: int) -> tuple[int, int]:
        return divmod(self._value(), other)

    def __truediv__(self, other: int) -> float:
        return self._value() / other

    def __rshift__(self, other: int) -> int:
        return self._value() >> other

    def __lshift__(self, other: int) -> int:
        return self._value() << other

    def __and__(self, other: int) -> int:
        return self._value() & other

    def __or__(self, other: int) -> int:
        return self._value() | other

    def __neg__(self) -> int:
        return -self._value()

    def __abs__(self) -> int:
        return abs(self._value())


def unsure(now: Instant) -> None:
    """What follows depends on the time, or on what grows with it, in a way that no comparison shows."""
    if isinstance(now, Moment):
        now.is_unsure()
