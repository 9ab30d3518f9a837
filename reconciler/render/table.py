"""Aligned columns, with two blanks between them; no lines, no colour, nothing lost on any terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from rich.cells import cell_len

_INDENT = "    "
_GAP = "  "
_LEAST = 16  # columns of a cell that is folded
_WORDS = 26  # columns in which sentences can be read


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None, right: str = "") -> str:
    """Rows under a header. `right` names columns (by header) that are aligned to the right.

    Where a terminal of `width` columns is too narrow, the last column goes on over several lines, if there is room
    for a few words in each; else it goes below its row, indented and wrapped: a reason cut in half is no reason. Where
    that is not enough, the widest columns go on over several lines. Cells are measured as a terminal shows them, so
    wide characters keep the columns straight.
    """
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(cell_len(row[i]) for row in cells) for i in range(len(header))]
    numeric = {i for i, name in enumerate(header) if name in right.split()}
    if width is None or sum(widths) + 2 * (len(widths) - 1) <= width:
        return "\n".join(_aligned(row, widths, numeric) for row in cells)
    rest = width - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1)
    if rest >= _WORDS and len(widths) - 1 not in numeric:
        return "\n".join(line for row in cells for line in _folded(row, [*widths[:-1], rest], numeric))
    widths = _narrowed(widths[:-1], width)
    lines = _folded(header[:-1], widths, numeric)
    for row in cells[1:]:
        lines += _folded(row[:-1], widths, numeric)
        if row[-1] and row[-1] != "-":
            lines += below(row[-1], width)
    return "\n".join(lines)


def below(text: str, width: int | None, indent: str = _INDENT) -> list[str]:
    """The text as indented lines no wider than `width`, broken between words where that is possible."""
    if width is None:
        return [f"{indent}{text}"]
    return textwrap.wrap(
        text, max(width, len(indent) + 20), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def fitted(start: str, name: str, width: int | None) -> list[str]:
    """A line that ends with a name, or two where they are too wide together: a name is never cut."""
    line = f"{start}{name}"
    return [line] if width is None or cell_len(line) <= width else [start.rstrip(), f"{_INDENT}{name}"]


def continued(line: str, width: int | None, hang: int = 4) -> list[str]:
    """The line, and what of it is too wide below it, indented `hang` deeper than the line is; a path is never cut."""
    indent = line[: len(line) - len(line.lstrip())]
    if width is None or len(line) <= width:
        return [line]
    return textwrap.wrap(
        line.lstrip(), width, initial_indent=indent, subsequent_indent=indent + " " * hang, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _narrowed(widths: Sequence[int], width: int) -> list[int]:
    """Widths that fit in `width` with their gaps, as far as no column is cut below `_LEAST`: the widest gives first."""
    fitted = list(widths)
    over = sum(fitted) + len(_GAP) * (len(fitted) - 1) - width
    for i in sorted(range(len(fitted)), key=lambda i: -fitted[i]):
        gives = min(max(over, 0), max(0, fitted[i] - _LEAST))
        fitted[i] -= gives
        over -= gives
    return fitted


def _folded(row: Sequence[str], widths: Sequence[int], numeric: set[int]) -> list[str]:
    """The row, on as many lines as its longest cell needs."""
    cells = [
        textwrap.wrap(text, size, break_on_hyphens=False) if cell_len(text) > size else [text]
        for text, size in zip(row, widths, strict=True)
    ]
    return [_aligned(line, widths, numeric) for line in zip_longest(*cells, fillvalue="")]


def _aligned(row: Sequence[str], widths: Sequence[int], numeric: set[int]) -> str:
    return _GAP.join(_cell(text, widths[i], i in numeric) for i, text in enumerate(row)).rstrip()


def _cell(text: str, width: int, right: bool) -> str:
    gap = " " * (width - cell_len(text))
    return gap + text if right else text + gap
