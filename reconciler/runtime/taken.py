"""Does the newest desired tree say something else than the one on record? In words; () when it only looks different.

A cordon, a quota or a reservation that moves no job is in force from the round that read it. The record has to say so
from then on, not only from the next decision; and a comment is no reason for a generation.
"""

from __future__ import annotations

from collections.abc import Collection

from reconciler.documents.compared import documents_between
from reconciler.documents.layout import is_document, is_trust, key_of
from reconciler.model.units import CommitId, JobKey, document_of
from reconciler.render.taken import taken_lines
from reconciler.runtime.generation import Generation, NextGeneration
from reconciler.runtime.reading import DesiredReader, ReadDesired


class Taking:
    """The comparison with what is on record; the last answer is kept, for rounds in which neither side moved."""

    __slots__ = ("_last", "_reader")

    def __init__(self, reader: DesiredReader) -> None:
        self._reader = reader
        self._last: tuple[ReadDesired, CommitId, tuple[str, ...]] | None = None

    def of(self, read: ReadDesired, current: Generation, told: Collection[JobKey]) -> tuple[str, ...]:
        """What `read` says otherwise than the tree that `current` answered to, a line each.

        `told` are the jobs whose change the decision tells.
        """
        decided = current.summary.desired_commit
        if read.desired is None or read.desired.commit == decided:
            return ()
        if not told and self._last is not None and self._last[0] is read and self._last[1] == current.commit:
            return self._last[2]
        found = taken_between(self._reader.recorded(current.commit, decided, current.frozen), read, told)
        if not told:
            self._last = read, current.commit, found
        return found


def told_by(following: NextGeneration) -> frozenset[JobKey]:
    """The jobs whose change the decision tells."""
    return frozenset(document_of(change.job) for change in following.decision.changes)


def taken_between(base: ReadDesired, read: ReadDesired, told: Collection[JobKey]) -> tuple[str, ...]:
    """The same for two trees that were read; they are not of one commit."""
    if base.desired is None or base.documents is None or read.desired is None or read.documents is None:
        return ("take in the first tree that makes sense",)
    moved = {path for path, _ in {*base.read} ^ {*read.read}}
    trust = sorted(filter(is_trust, moved))
    if not trust and not any(map(is_document, moved)):
        return ()
    documents = documents_between(base.documents, read.documents)
    # Changes that are withheld are told as such.
    waiting = {key for one in read.withheld if (key := key_of(one.path)) is not None}
    return taken_lines(base.desired, read.desired, documents, trust, waiting.union(told))
