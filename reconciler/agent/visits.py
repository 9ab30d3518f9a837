"""What happens when somebody may look into a job here? Its logs, or a shell, over a connection the agent dials out.

A thread for each visit, which ends with it: nothing here may hold up reports or ranks. Whether the person may is
`admission`'s to say; lines come from `loglines`, terminals from `terminal`.
"""

from __future__ import annotations

import json
import select
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

from reconciler.agent.admission import Challenges, VisitRefused, read_request, signer_among
from reconciler.agent.client import LinkDown
from reconciler.agent.loglines import LogFolder, Printed, follow, read
from reconciler.agent.say import Voice
from reconciler.agent.terminal import Terminal, tell_exit
from reconciler.agent.websocket import TEXT, WebSocket
from reconciler.errors import GangOpsError
from reconciler.wire import VISITS_PATH, Visit, VisitRequest

if TYPE_CHECKING:
    from reconciler.agent.household import Resident
    from reconciler.agent.roster import Roster

MOST_AT_ONCE = 64
BATCH_BYTES = 1 << 16
_LOOK_AGAIN_SECONDS = 0.2


class Visits:
    """The visits under way on this node."""

    def __init__(self, roster: Roster, cluster: str, say: Voice) -> None:
        self._roster, self._cluster, self._say = roster, cluster, say
        self._challenges = Challenges()
        self._began = time.time_ns()
        self._room = threading.Semaphore(MOST_AT_ONCE)

    def begin(self, visit: Visit, server: str, context: ssl.SSLContext) -> None:
        """Meet the person at the server that told of them; returns at once."""
        threading.Thread(target=self._meet, args=(visit, server, context), name="visit", daemon=True).start()

    def _meet(self, visit: Visit, server: str, context: ssl.SSLContext) -> None:
        try:
            line = WebSocket(server, f"{VISITS_PATH}/{visit.id}", context)
        except LinkDown as err:
            self._say(f"a visit could not be met: {err.message}")
            return
        try:
            self._receive(visit, line)
        except LinkDown:
            pass  # they left
        except Exception as err:  # noqa: BLE001 - a visit that fails is no reason for the agent to end
            self._say(f"a visit failed: {err!r}")
        finally:
            line.close()

    def _receive(self, visit: Visit, line: WebSocket) -> None:
        room = self._room.acquire(blocking=False)
        try:
            if not room:
                raise VisitRefused(f"{MOST_AT_ONCE} visits are under way on this node", code="TooMany")
            asked, resident, user = self._admit(visit)
            self._say(f"{asked.job}: {asked.kind} for {user}")
            self._serve(asked, resident, line)
        except GangOpsError as err:
            if isinstance(err, LinkDown):
                raise
            self._say(f"a visit was refused: {err.message} [{err.code}]")
            _tell(line, {"refused": err.code, "message": err.message, "remedy": err.remedy})
        finally:
            if room:
                self._room.release()

    def _admit(self, visit: Visit) -> tuple[VisitRequest, Resident, str]:
        """Raises VisitRefused."""
        now = time.time_ns()
        asked = read_request(visit.request, visit.signature, now)
        if (asked.node, asked.cluster) != (self._roster.conf.node, self._cluster):
            raise VisitRefused("the request is for another node", code="BadRequest")
        if int(asked.challenge.partition(".")[0]) < self._began:
            raise VisitRefused("this agent has just been started: ask again", code="JustStarted")
        resident = self._roster.resident(asked.job)
        if resident is None:
            raise VisitRefused(f"{asked.job} was never on {asked.node}", code="NotHere")
        user = signer_among(visit.request, visit.signature, resident.holders)
        self._challenges.use(asked.challenge)
        return asked, resident, user

    def _serve(self, asked: VisitRequest, resident: Resident, line: WebSocket) -> None:
        if asked.kind == "shell":
            self._open_shell(asked, line)
        else:
            self._show_logs(asked, resident, line)

    def _open_shell(self, asked: VisitRequest, line: WebSocket) -> None:
        folder, rank = self._roster.rank_to_visit(asked.job, asked.attempt, asked.rank)
        terminal = Terminal(folder, rank, asked)
        try:
            _tell(line, {"accepted": True, "rank": rank})
            tell_exit(line, terminal.serve(line))
        finally:
            terminal.close()

    # --- logs ----------------------------------------------------------------------------------------------------

    def _show_logs(self, asked: VisitRequest, resident: Resident, line: WebSocket) -> None:
        folder = LogFolder(self._roster.conf.logs_dir, asked.job, resident.owner)
        attempts = folder.attempts()
        attempt = asked.attempt or max(attempts, default=0)
        ranks = [rank for rank in folder.ranks(attempt) if asked.rank in (-1, rank)]
        _tell(line, {"accepted": True, "attempts": attempts, "ranks": ranks})
        batch = _Batch(line)
        if asked.follow:
            rank = None if asked.rank < 0 else asked.rank

            def pause() -> None:
                batch.send()
                _watch_for_end(line, _LOOK_AGAIN_SECONDS)

            lines = follow(folder, asked.attempt or None, rank, pause, lambda: False)
        else:
            lines = read(folder, attempt, ranks)
        for printed in lines:
            batch.add(printed)
        batch.send()
        _tell(line, {"end": True})


class _Batch:
    """Lines gathered into messages."""

    def __init__(self, line: WebSocket) -> None:
        self._line, self._lines, self._size = line, list[list[Any]](), 0

    def add(self, printed: Printed) -> None:
        self._lines.append([printed.at, printed.attempt, printed.rank, printed.text])
        self._size += len(printed.text) + 40
        if self._size >= BATCH_BYTES:
            self.send()

    def send(self) -> None:
        if self._lines:
            _tell(self._line, {"lines": self._lines})
            self._lines, self._size = [], 0


def _tell(line: WebSocket, content: dict[str, Any]) -> None:
    line.send(json.dumps(content, separators=(",", ":")).encode(), TEXT)


def _watch_for_end(line: WebSocket, seconds: float) -> None:
    """Wait a moment; raises LinkDown once the other side has left."""
    select.select([line], [], [], seconds)
    line.receive()
