"""Times and generations as people type them, and progress on a terminal: what the verbs of the record share."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from reconciler.documents.quantities import parse_duration, parse_instant, print_instant
from reconciler.errors import UsageError
from reconciler.model.units import SECOND, Instant

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MINUTE = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(Z|[+-]\d\d:\d\d)")
_COMMIT = re.compile(r"[0-9a-fA-F]{7,40}")
_SPACED = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d\S*)")
Progress = Callable[[int, int], None]


def moment(text: str, now: Instant | None = None) -> Instant:
    """An instant: RFC 3339 (seconds may be left out), a date (its midnight UTC), or `2h ago` when `now` is given.

    Raises UsageError (BadTime).
    """
    asked = text.strip()
    if _DATE.fullmatch(asked):
        asked += "T00:00:00Z"
    asked = _SPACED.sub(r"\1T\2", _MINUTE.sub(r"\1T\2:00\3", asked))
    try:
        if now is not None and asked.endswith(" ago"):
            return Instant(now - parse_duration(asked.removesuffix(" ago").strip()))
        return Instant(parse_instant(asked))
    except ValueError as err:
        raise UsageError(
            f"{text!r} is no time", code="BadTime", remedy='such as "2026-11-28T09:00Z", 2026-11-28, or "2h ago"'
        ) from err


class Span(click.ParamType):  # type: ignore[type-arg]  # generic in no click we support
    """Seconds: a number, or a duration such as 30m."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ARG002  click's
        if isinstance(value, int | float):
            return float(value)
        text = str(value)
        try:
            return float(text) if text.isdecimal() else parse_duration(text) / SECOND
        except ValueError as err:
            raise UsageError(f"{text!r} is no time span", code="BadTime", remedy="such as 90, 30m or 12h") from err


def between(since: str | None, until: str | None, now: Instant) -> tuple[Instant | None, Instant | None]:
    """`--since` and `--until`. Raises UsageError (BadTime, EmptyPeriod)."""
    begin = moment(since, now) if since is not None else None
    end = moment(until, now) if until is not None else None
    if begin is not None and end is not None and end < begin:
        raise UsageError(
            "--until is before --since", code="EmptyPeriod", remedy="Give the earlier of the two to --since."
        )
    return begin, end


def not_to_come(at: Instant, now: Instant, newest: int) -> Instant:
    """The same instant, unless it is still to come for us and for the record. Raises UsageError (TimeToCome)."""
    if at > max(now, newest):
        raise UsageError(
            f"{print_instant(at)} is still to come",
            code="TimeToCome",
            remedy="`gangops plan` and `explain` say what is expected.",
        )
    return at


def commit_beginning(_context: click.Context, option: click.Parameter, value: str | tuple[str, ...] | None) -> object:
    """For click: a commit id, or at least seven digits that one begins with; several of them where the option may repeat.

    Raises UsageError (BadCommit): an empty one would be the beginning of any.
    """
    for text in (value,) if isinstance(value, str) else value or ():
        if not _COMMIT.fullmatch(text):
            raise UsageError(
                f"--{option.name} {text!r} is no commit id",
                code="BadCommit",
                remedy="Give seven to forty hexadecimal digits.",
            )
    return tuple(text.lower() for text in value) if isinstance(value, tuple) else value.lower() if value else ""


def bound(text: str | None, now: Instant) -> tuple[int | None, Instant | None]:
    """`412` and `#412` as a generation, anything else as an instant."""
    if text is None:
        return None, None
    digits = text.removeprefix("#")
    return (int(digits), None) if digits.isdecimal() and len(digits) < 15 else (None, moment(text, now))


def generation_range(text: str) -> tuple[int, int]:
    """`412`, `400..412` or `400..` as the first and the last of them; (0, 0) for "". Raises UsageError (BadRange)."""
    first, dots, last = text.replace("#", "").partition("..")
    if text and not ((first.isdecimal() and (not dots or not last or last.isdecimal())) and len(text) < 40):
        raise UsageError(f"{text!r} names no generations", code="BadRange", remedy="such as 417, 400..417 or 400..")
    if not text:
        return 0, 0
    begin, end = int(first), int(last) if last else 10**15 if dots else int(first)
    if end < begin:
        raise UsageError(f"{text!r} names no generations", code="BadRange", remedy="Give the lower number first.")
    return begin, end


@contextmanager
def progress(label: str) -> Iterator[Progress | None]:
    """A bar on standard error while something long is done; nothing where that is no terminal, or within a second."""
    if not sys.stderr.isatty():
        yield None
        return
    begun, shown = time.monotonic(), False

    def told(done: int, of: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begun < 1:
            return
        shown = True
        filled = done * 30 // of if of else 30
        click.echo(f"\r{label}  [{'#' * filled}{'-' * (30 - filled)}]  {done} of {of}", nl=False, err=True)

    yield told
    if shown:
        click.echo("\r\x1b[K", nl=False, err=True)
