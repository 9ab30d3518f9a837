"""What ranks printed, for who has no log folder: lines as an agent of the job reads them out of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from aiohttp import ClientWebSocketResponse, WSMsgType

from reconciler.agent.loglines import Printed
from reconciler.errors import EngineUnavailable
from reconciler.runtime.logs import logs_missing
from reconciler.runtime.visiting import Door, NotAdmitted, refusal_of, visit

_LOOK_SECONDS = 1.0
_QUIET_LOOKS = 2
"""How often in a row nothing has to come, once the job is over, before it is believed that nothing will."""
_AGAIN_SECONDS = 1.0
_MOST_FAILURES = 30


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Lines of one job: as for `log_lines`, or `followed_lines` when `following` until `over`. `node` "" for any."""

    job: str
    attempt: int | None = None
    rank: int | None = None
    following: bool = False
    over: Callable[[], bool] = lambda: False
    node: str = ""


@dataclass
class _Seen:
    """What was shown already, by attempt and rank: how many lines, and the time of the last."""

    lines: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    skipped: dict[tuple[int, int], int] = field(default_factory=dict)

    def is_new(self, line: Printed) -> bool:
        key = (line.attempt, line.rank)
        count, at = self.lines.get(key, (0, 0))
        if self.skipped.get(key, 0) < count and line.at <= at:
            self.skipped[key] = self.skipped.get(key, 0) + 1
            return False
        self.skipped[key] = count + 1
        self.lines[key] = (count + 1, line.at)
        return True


def remote_lines(door: Door, wanted: Wanted) -> Iterator[Printed]:
    """The lines, in order. Raises NotAdmitted, NotFound (LogsMissing), EngineUnavailable.

    A connection that breaks while following is made again, and goes on behind the last line that came.
    """
    with asyncio.Runner() as runner:
        lines = _lines(door, wanted)
        try:
            while (line := runner.run(_next(lines))) is not None:
                yield line
        finally:
            runner.run(lines.aclose())


async def _next(lines: AsyncGenerator[Printed]) -> Printed | None:
    return await anext(lines, None)


async def _lines(door: Door, wanted: Wanted) -> AsyncGenerator[Printed]:
    seen, failures = _Seen(), 0
    request = {
        "kind": "logs",
        "attempt": wanted.attempt or 0,
        "rank": -1 if wanted.rank is None else wanted.rank,
        "follow": wanted.following,
    }
    while True:
        try:
            async with visit(door, request, job=wanted.job, node=wanted.node) as line:
                seen.skipped.clear()
                async for printed in _of_one(line, wanted):
                    failures = 0
                    if seen.is_new(printed):
                        yield printed
                return
        except (EngineUnavailable, NotAdmitted) as err:
            failures += 1
            has_restarted = err.code == "JustStarted"  # the agent, since the server spoke of it
            is_broken = isinstance(err, EngineUnavailable) and wanted.following and bool(seen.lines)
            if failures > _MOST_FAILURES or not (has_restarted or is_broken):
                raise
            await asyncio.sleep(_AGAIN_SECONDS)


async def _of_one(line: ClientWebSocketResponse, wanted: Wanted) -> AsyncIterator[Printed]:
    """The lines of one connection, until the node has no more or, followed, the job is over."""
    quiet = 0
    while True:
        over = wanted.following and await asyncio.to_thread(wanted.over)
        message = None
        with contextlib.suppress(TimeoutError):
            message = await line.receive(timeout=_LOOK_SECONDS if wanted.following else None)
        if message is None:
            quiet += 1
            if over and quiet >= _QUIET_LOOKS:
                return
            continue
        if message.type is not WSMsgType.TEXT:
            raise EngineUnavailable("the connection to the node broke off", code="LinkDown", remedy="Ask again.")
        told = json.loads(message.data)
        if (refusal := refusal_of(told)) is not None:
            raise refusal
        if told.get("accepted") and not told["ranks"] and not wanted.following:
            raise logs_missing(wanted.job, wanted.attempt, wanted.rank, "the node's folder", told["attempts"])
        if told.get("end"):
            return
        if lines := told.get("lines"):
            quiet = 0
            for at, attempt, rank, text in lines:
                yield Printed(at, attempt, rank, text)
