"""What `simulate` says on standard error while it works, and how Ctrl-C ends it between two instants."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from reconciler.model.counting import counted
from reconciler.model.units import DAY

if TYPE_CHECKING:
    from reconciler.render.simulation import Simulated
    from reconciler.runtime.simulation.run import Reached

_ALOUD_SECONDS = 30
"""How often progress is told where no terminal is."""


@dataclass
class Interrupt:
    """Whether somebody pressed Ctrl-C. The instant under way is finished; pressed again it ends at once."""

    asked: bool = False


@contextmanager
def until_interrupted() -> Iterator[Interrupt]:
    """Inside, Ctrl-C is noted instead of raised; the second one is raised."""
    interrupt = Interrupt()

    def end(_signal: int, _frame: object) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True

    before = signal.signal(signal.SIGINT, end)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


class Screen:
    """Progress on standard error: one line that is written anew on a terminal, elsewhere a line now and then."""

    def __init__(self, name: str, interrupt: Interrupt) -> None:
        self._name, self._interrupt = name, interrupt
        self._is_terminal = sys.stderr.isatty()
        self._pause = 0.2 if self._is_terminal else _ALOUD_SECONDS
        self._last = time.monotonic()
        self._begun = time.process_time()
        self._shown = False

    def told(self, reached: Reached) -> bool:
        """Show how far it is; False once somebody wants it to end."""
        if (now := time.monotonic()) - self._last >= self._pause:
            self._last, self._shown = now, True
            line = f"{self._name}: {reached.over:,} of {reached.total:,} jobs over, day {reached.now // DAY}, {reached.decisions:,} decisions"
            click.echo(f"\r\x1b[K{line[:79]}" if self._is_terminal else line, nl=not self._is_terminal, err=True)
        return not self._interrupt.asked

    def close(self, found: Simulated) -> None:
        """What it cost, which is not part of the result: it differs from machine to machine."""
        spent = time.process_time() - self._begun
        each = spent / found.decisions * 1000 if found.decisions else 0.0
        start = "\r\x1b[K" if self._is_terminal and self._shown else ""
        click.echo(
            f"{start}{self._name}: {counted(found.decisions, 'decision')} in {spent:.1f} s of processor time, {each:.1f} ms each",
            err=True,
        )
