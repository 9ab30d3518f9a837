"""What is each commit worth telling? From memory where the loop just made it, else read from git again."""

from __future__ import annotations

import threading
from collections import deque

from reconciler.model.units import CommitId
from reconciler.runtime.generation import read_generation
from reconciler.runtime.notices.events import Moment, Notice, notices_between
from reconciler.runtime.reading import DesiredReader
from reconciler.store.history import commit_meta
from reconciler.store.runner import Git

_MOMENTS, _COMMITS = 4, 64


class Story:
    """Notices by commit, derived once for all couriers. `remember` never waits for them."""

    def __init__(self, git: Git, reader: DesiredReader) -> None:
        self._git = git
        self._reader = reader
        self._deriving = threading.Lock()
        self._fresh: deque[Moment] = deque(maxlen=_MOMENTS)
        self._read: deque[Moment] = deque(maxlen=_MOMENTS)
        self._derived: deque[tuple[Moment | None, CommitId, tuple[Notice, ...]]] = deque(maxlen=_COMMITS)

    def remember(self, moment: Moment) -> None:
        """The loop just published this."""
        self._fresh.append(moment)

    def notices(self, commit: CommitId) -> tuple[Moment | None, tuple[Notice, ...]]:
        """A commit, and what to tell of it; nothing where no desired state was ever valid. Raises GangOpsError."""
        with self._deriving:
            for moment, known, notices in self._derived:
                if known == commit:
                    return moment, notices
            parents = commit_meta(self._git, commit).parents
            before, after = self._moment(CommitId(parents[0])) if parents else None, self._moment(commit)
            found = notices_between(before, after) if before is not None and after is not None else ()
            self._derived.append((after if found else None, commit, found))
            return after, found

    def _moment(self, commit: CommitId) -> Moment | None:
        for moment in (*tuple(self._fresh), *self._read):
            if moment.commit == commit:
                return moment
        made = read_generation(self._git, commit)
        desired = self._reader.recorded(commit, made.summary.desired_commit, made.frozen).desired
        if desired is None:
            return None
        moment = Moment(commit=commit, allocation=made.allocation, observed=made.observed, desired=desired)
        self._read.append(moment)
        return moment
