"""How did every job that is over end? A mapping that grows for years, and that generations share.

It lies in folders, as it does in the record: a decision that buries a job copies one folder, and what differs between
two generations is looked for in those folders alone that are not the very same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from reconciler.model.lifecycle import Outcome
from reconciler.model.observed import Person, Proof
from reconciler.model.units import Digest, Instant, JobKey, document_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A finished incarnation: keeps a reverted clean-up from running anything again.

    `submitter` brought it, where that is vouched for: who reverts its removal does not become the one it runs as.
    """

    job: JobKey
    digest: Digest
    outcome: Outcome
    at: Instant
    attempts: int
    submitter: Person | None = None
    vouched: Proof = Proof.NONE


Stones = Mapping[JobKey, tuple[Tombstone, ...]]
_NONE: Stones = MappingProxyType({})


@lru_cache(maxsize=1 << 16)
def folder_of(key: JobKey) -> str:
    """Two hex digits of the sha256 of a job's name, without its queue; a task lies with its array."""
    name = document_of(key).rpartition("/")[2]
    return hashlib.sha256(name.encode()).hexdigest()[:2]


@dataclass(frozen=True, slots=True, eq=False)
class Tombstones(Stones):
    """By job or task, the first incarnation first; in code point order. `buried` makes one, `updated` another."""

    folders: Mapping[str, Stones] = field(default_factory=dict)
    """Those of each `folder_of`; none is empty."""

    def __getitem__(self, key: JobKey) -> tuple[Tombstone, ...]:
        return self.folders[folder_of(key)][key]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self.folders.get(folder_of(JobKey(key)), _NONE)

    def __iter__(self) -> Iterator[JobKey]:
        return iter(sorted(key for folder in self.folders.values() for key in folder))

    def __len__(self) -> int:
        return sum(map(len, self.folders.values()))

    def __eq__(self, other: object) -> bool:
        return self.folders == other.folders if isinstance(other, Tombstones) else dict(self) == other

    __hash__ = None  # type: ignore[assignment]  # as of every mapping

    def updated(self, fresh: Stones, gone: Collection[JobKey] = ()) -> Tombstones:
        """With these, and without what was known of the jobs and arrays `gone`."""
        if not fresh and not gone:
            return self
        folders, added = dict(self.folders), buried(fresh).folders
        for name in {*added, *map(folder_of, gone)}:
            kept = {key: stones for key, stones in folders.pop(name, _NONE).items() if document_of(key) not in gone}
            if folder := {**kept, **added.get(name, _NONE)}:
                folders[name] = folder
        return Tombstones(folders)

    def apart(self, other: Tombstones) -> tuple[Stones, Stones]:
        """What lies in folders that differ, here and there: all that was added, changed or removed, with its neighbours."""
        ours, theirs = self.folders, other.folders
        names = {name for name in ours.keys() | theirs.keys() if ours.get(name) is not theirs.get(name)}
        return _within(ours, names), _within(theirs, names)


def buried(stones: Stones) -> Tombstones:
    """The same, in folders."""
    folders: dict[str, dict[JobKey, tuple[Tombstone, ...]]] = {}
    for key, known in stones.items():
        folders.setdefault(folder_of(key), {})[key] = known
    return Tombstones(folders)


def _within(folders: Mapping[str, Stones], names: Collection[str]) -> Stones:
    return dict(sorted(item for name in names for item in folders.get(name, _NONE).items()))
