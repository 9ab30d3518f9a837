"""What a change does to files, line by line, as people know it from git. Text in, text out; safe on any terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

_AROUND = 3
_MOST = 120
"""Lines of one file that are shown; a new file is as long as it is, and read as a whole elsewhere."""


def diff_text(before: Mapping[str, bytes | None], after: Mapping[str, bytes | None]) -> str:
    """A unified diff of the files in `after`, by path; None is an absent file. Files of a mass removal are named alone."""
    removed = [path for path in sorted(after) if after[path] is None]
    if len(removed) > 3:
        kept = "\n".join(line for path in sorted(set(after) - set(removed)) for line in _file(path, before, after))
        return "\n".join(filter(None, (kept, *(f"- {path}" for path in removed))))
    return "\n".join(line for path in sorted(after) for line in _file(path, before, after))


def _file(path: str, before: Mapping[str, bytes | None], after: Mapping[str, bytes | None]) -> Iterator[str]:
    old, new = before.get(path), after[path]
    names = (f"a/{path}" if old is not None else "/dev/null", f"b/{path}" if new is not None else "/dev/null")
    lines = list(difflib.unified_diff(_lines(old), _lines(new), *names, n=_AROUND, lineterm=""))
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"  ... and {len(lines) - _MOST} more lines"


def _lines(content: bytes | None) -> list[str]:
    text = (content or b"").decode("utf-8", "replace").removesuffix("\n")
    return [_shown(line) for line in text.split("\n")] if text else []


def _shown(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)
