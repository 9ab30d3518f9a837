"""How fast did each attempt go? What programs last said of themselves, kept beside the record and never in it.

Progress is a hint that changes every second, so no commit has it. The last word of each attempt is kept in the state
folder, so that a job's pace before a move can be set beside that after it. Losing it loses nothing else.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from reconciler.model.units import SECOND, Instant, JobKey, Nanoseconds
from reconciler.ports import Clock, LiveAttempt
from reconciler.render.life import Pace
from reconciler.store.whole import write_whole

ATTEMPTS = 8
"""Newest attempts of a job that are kept."""
JOBS = 20_000
_EVERY_SECONDS = 10.0
_WRITE_EVERY = Nanoseconds(60 * SECOND)
_MOST_BYTES = 64 << 20


class Paces:
    """The last pace of each attempt. `note` is called with what is seen now; any thread may ask."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._jobs: dict[JobKey, dict[int, Pace]] = _read(file) if file is not None else {}

    def note(self, live: Mapping[JobKey, LiveAttempt], now: Instant) -> None:
        """Keep what running attempts report; the jobs heard of longest ago go first when there are too many."""
        with self._lock:
            for job, at in live.items():
                pace = pace_of(at.attempt, at.progress, now)
                if pace is None:
                    continue
                kept = self._jobs.pop(job, {})
                kept[at.attempt] = pace
                self._jobs[job] = {number: kept[number] for number in sorted(kept)[-ATTEMPTS:]}
            for job in list(self._jobs)[: max(0, len(self._jobs) - JOBS)]:
                del self._jobs[job]

    def of(self) -> Mapping[JobKey, tuple[Pace, ...]]:
        """All that is known, attempts in order."""
        with self._lock:
            return {job: tuple(kept.values()) for job, kept in self._jobs.items()}

    def save(self) -> None:
        """Best effort: without the file the next start knows less."""
        if self._file is None:
            return
        tree = {job: [pace_tree(pace) for pace in paces] for job, paces in self.of().items()}
        with contextlib.suppress(OSError):
            write_whole(self._file, json.dumps(tree).encode())

    def watch(self, live: Callable[[], Mapping[JobKey, LiveAttempt]], clock: Clock, stop: threading.Event) -> None:
        """Note what is seen every ten seconds, until `stop`: a thread's whole life."""
        saved = clock.monotonic()
        while not stop.wait(_EVERY_SECONDS):
            self.note(live(), clock.now())
            if clock.monotonic() - saved >= _WRITE_EVERY:
                self.save()
                saved = clock.monotonic()
        self.save()


def pace_of(attempt: int, progress: Mapping[str, object], now: Instant) -> Pace | None:
    """What a heartbeat says of the pace; None when it says nothing of it."""
    step = progress.get("step")
    pace = Pace(
        attempt=attempt,
        step=step if isinstance(step, int) and not isinstance(step, bool) else None,
        step_seconds=_positive(progress.get("stepSeconds")),
        tokens_per_second=_positive(progress.get("tokensPerSecond")),
        mfu=_positive(progress.get("mfu")),
        at=now,
    )
    said = (pace.step, pace.step_seconds, pace.tokens_per_second, pace.mfu)
    return pace if any(value is not None for value in said) else None


def _positive(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return float(value) if good and isinstance(value, int | float) else None


def pace_tree(pace: Pace) -> dict[str, object]:
    """A pace as JSON has it, without what is not known."""
    names = {"attempt": pace.attempt, "step": pace.step, "stepSeconds": pace.step_seconds,
             "tokensPerSecond": pace.tokens_per_second, "mfu": pace.mfu, "at": int(pace.at)}  # fmt: skip
    return {name: value for name, value in names.items() if value is not None}


def pace_from(tree: object) -> Pace | None:
    """What `pace_tree` wrote; None for anything else."""
    if not isinstance(tree, dict) or not isinstance(tree.get("attempt"), int):
        return None
    at = tree.get("at")
    return pace_of(tree["attempt"], tree, Instant(at if isinstance(at, int) else 0))


def _read(file: Path) -> dict[JobKey, dict[int, Pace]]:
    try:
        if file.stat().st_size > _MOST_BYTES:
            return {}
        tree = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(tree, dict):
        return {}
    found = {
        JobKey(job): {pace.attempt: pace for row in rows if (pace := pace_from(row)) is not None}
        for job, rows in tree.items()
        if isinstance(rows, list)
    }
    return {job: paces for job, paces in found.items() if paces}
