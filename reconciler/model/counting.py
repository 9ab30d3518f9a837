"""How is a number of things said? The one place that knows one from several, for sentences of people."""

from __future__ import annotations


def counted(number: int, one: str, several: str = "") -> str:
    """`1 GPU`, `2 GPUs`, `0 GPUs`; `several` where an `s` at the end does not make it, or a verb goes with it."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"
