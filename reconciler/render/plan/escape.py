"""Anybody's text inside markdown that a forge renders: shown as it is, and doing nothing.

Nobody is mentioned, nothing is linked or referred to, no table cell ends early, no HTML, no fence, no control
character and no workflow command comes of it. A zero-width space after the sign breaks what would become a mention, a
reference or a command; all other signs with a meaning are written as entities.
"""

from __future__ import annotations

import re
from textwrap import wrap

from reconciler.render.names import one_line

_GAP = "&#8203;"  # a space without width
_BREAKS = re.compile(
    r"(?<=[@#])"  # mentions, references to issues
    r"|(?<=:)(?=:)|(?<=:)(?=//)"  # commands to a build's log, addresses
    r"|(?<=:)(?=[a-z0-9_+-]+:)"  # names of emoji
    r"|(?<=\bwww)(?=\.)|(?<=\bGH)(?=-[0-9])",  # addresses and issues without a sign
    re.IGNORECASE,
)
_COMMIT = re.compile(r"\b[0-9a-f]{7,40}\b", re.IGNORECASE)
_HERE = "\ue000"  # where a gap goes; no text can bring this one along, for it is not printable
_ENTITIES = {ord(sign): f"&#{ord(sign)};" for sign in '&<>|\\`*_~[]@#!${}^"'}
_NAME = re.compile(r"[A-Za-z0-9 ._/+,=:()>\[\]-]*[A-Za-z0-9.)\]]")


def prose(text: str, most: int = 300) -> str:
    """One line of text, at most so many characters of it."""
    shown = _BREAKS.sub(_HERE, _short(text, most).replace("->", "→"))
    shown = _COMMIT.sub(lambda found: _HERE.join(wrap(found[0], 5)), shown)
    return shown.translate(_ENTITIES).replace(_HERE, _GAP)


def code(text: str, most: int = 200) -> str:
    """A name in the type of code. Within backticks nothing is mentioned or linked."""
    flat = _short(text, most)
    if not flat:
        return ""
    if _NAME.fullmatch(flat) and "::" not in flat and not flat.startswith(" "):
        return f"`{flat}`"
    return f"<code>{prose(flat, most)}</code>"


def fenced(text: str) -> str:
    """A line inside a fence: no backticks, so that it cannot end it, and no command to a build's log."""
    return one_line(text).replace("`", "'").replace("::", ": :").replace("##[", "## [")


def _short(text: str, most: int) -> str:
    flat = one_line(text)
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"
