"""How is a number of things said? The one place that knows one from several, for sentences of people."""

from __future__ import annotations


def counted(number: int, one: str, several: str = "") -> str:
    """`1 GPU`, `0 GPUs`, `1,200 GPUs`; `several` where an `s` at the end does not make it, or a verb goes with it."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
