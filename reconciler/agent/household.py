"""Whose jobs were here? Who holds each, and under which uid it ran: kept when its orders are gone, so that its logs can
still be read. Written only from proven orders.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_KEPT = 4096
"""Jobs that are remembered; the ones heard of longest ago are forgotten first."""


@dataclass(frozen=True)
class Resident:
    """One job. `owner` is the uid its ranks have, None when that is the agent's own."""

    owner: int | None
    holders: Sequence[str]


class Household:
    """A file for each job in a folder of the agent's own. Never raises: without it only old logs are out of reach."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, job: str, resident: Resident) -> None:
        """Remember a job as it is now."""
        if self.find(job) == resident:
            return
        path = self._path(job)
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps([resident.owner, list(resident.holders)]), encoding="utf-8")
            fresh.replace(path)
            self._forget()

    def find(self, job: str) -> Resident | None:
        """The job as it was last known."""
        try:
            owner, holders = json.loads(self._path(job).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return Resident(owner, holders)

    def _path(self, job: str) -> Path:
        return self._folder / f"{job.replace('/', '+')}.json"

    def _forget(self) -> None:
        names = os.listdir(self._folder)  # noqa: PTH208 - only their number is needed most of the time
        if len(names) > MOST_KEPT:
            paths = sorted((self._folder / name for name in names), key=lambda p: p.stat().st_mtime_ns)
            for path in paths[: len(names) - MOST_KEPT]:
                path.unlink(missing_ok=True)
