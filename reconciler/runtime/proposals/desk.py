"""What a verb finds on the desired branch and in the record: jobs, nodes, queues by the names people type.

Read from git objects at the newest desired commit; files on disk are never looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from reconciler.documents.check import Item, check_file
from reconciler.documents.edit import remove_value, set_value
from reconciler.documents.hostlist import expand
from reconciler.documents.layout import CONFIG, JOBS, ROOT, is_document, key_of, path_of
from reconciler.documents.loader import Tree
from reconciler.documents.positions import Path as YamlPath
from reconciler.documents.record import SUMMARY, job_path, read_allocation
from reconciler.documents.similar import did_you_mean
from reconciler.errors import InvalidInput, NotFound, UsageError
from reconciler.model.allocation import JobRecord
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.units import JobKey
from reconciler.render.arrays import leading, tally
from reconciler.runtime.clone import Clone
from reconciler.runtime.generation import Generation
from reconciler.runtime.known_states import known_generation
from reconciler.store.history import file_at
from reconciler.store.objects import blobs, subtree
from reconciler.store.trees import REGULAR, tree_entries

_FOLDERS = ("fabric", "inventory", "queues", "priorities", "maintenance", "users")
_WORDS = {"Queue": "queue", "PriorityClass": "priority class"}
_OVER = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """One job as it is desired: `item` is its document, `record` what the newest generation says of it.

    Of an array `tasks` are the records of all its tasks, and `record` that of the one that is furthest from its end.
    """

    key: JobKey
    path: str
    content: bytes
    item: Item
    record: JobRecord | None
    tasks: tuple[JobRecord, ...] = ()

    @property
    def spec(self) -> Any:
        """The spec as its schema has it."""
        return self.item.model.spec

    @property
    def ended(self) -> str:
        """How this incarnation ended for good; "" when it did not."""
        if self.tasks:
            over = all(record.state is JobState.FINISHED for record in self.tasks)
            return tally(self.tasks) if over and any(record.outcome in _OVER for record in self.tasks) else ""
        record = self.record
        if record is None or record.state is not JobState.FINISHED or record.outcome not in _OVER:
            return ""
        return str(record.outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One document of the cluster's own files."""

    path: str
    content: bytes
    item: Item

    @property
    def spec(self) -> Any:
        """The spec as its schema has it."""
        return self.item.model.spec

    @property
    def name(self) -> str:
        return self.item.name

    def put(self, content: bytes, path: YamlPath, value: Tree) -> bytes:
        """Its file, as it has become meanwhile, with a value of this document set. Raises what `set_value` does."""
        return set_value(content, path, value, index=self.item.index, file=self.path)

    def take(self, content: bytes, path: YamlPath) -> bytes:
        """Likewise, without what is at a path. Raises what `remove_value` does."""
        return remove_value(content, path, index=self.item.index, file=self.path)


class Desk:
    """The newest desired commit of a clone, read as far as a verb asks. `states`: a file that keeps the last state."""

    def __init__(self, clone: Clone, *, states: Path | None = None) -> None:
        self.clone = clone
        self.base = clone.desired_tip()
        self._states = states

    # --- jobs ---

    @cached_property
    def jobs(self) -> dict[JobKey, str]:
        """Path of every job that has a file in its place."""
        folder = JOBS.rstrip("/")
        entries = tree_entries(self.clone.git, self.base, folder) if self._has(folder) else ()
        return {key: entry.path for entry in entries if (key := key_of(entry.path)) is not None}

    def job(self, name: str) -> JobFile:
        """The job of this name, see `key_named`. Raises what that does; InvalidInput, when its file is wrong."""
        key = self.key_named(name)
        path = self.jobs[key]
        content = file_at(self.clone.git, self.base, path) or b""
        checked = check_file(content, path)
        item = next((one for one in checked.items if one.kind == "Job"), None)
        if item is None:
            raise InvalidInput([d for d in checked.diagnostics if d.is_error])
        records = self.records(key)
        tasks = tuple(record for record in records if record.job != key) if item.model.spec.array is not None else ()
        record = leading(tasks) if tasks else next((one for one in records if one.job == key), None)
        return JobFile(key=key, path=path, content=content, item=item, record=record, tasks=tasks)

    def key_named(self, name: str) -> JobKey:
        """The job a person means: `queue/name`, or the name alone where only one queue has it.

        Raises: NotFound (UnknownJob), UsageError (AmbiguousJob).
        """
        if JobKey(name) in self.jobs:
            return JobKey(name)
        named = [key for key in self.jobs if key.endswith(f"/{name}")]
        if len(named) == 1:
            return named[0]
        if named:
            raise UsageError(
                f"{len(named)} queues have a job {name}", code="AmbiguousJob", remedy=f"name one: {', '.join(named)}"
            )
        known = list(self.jobs) if "/" in name else sorted({key.partition("/")[2] for key in self.jobs})
        if self.records(JobKey(name)):
            raise NotFound(
                f"the file of {name} is gone from {self.clone.desired} already",
                code="UnknownJob",
                remedy=f"gangops status {name}",
            )
        raise NotFound(
            f"{self.clone.desired} has no job {name}",
            code="UnknownJob",
            remedy=did_you_mean(name, known) or "jobs are named queue/name; `gangops get jobs` lists them",
        )

    def job_content(self, key: JobKey) -> bytes | None:
        """The bytes of a job's file, or None."""
        return file_at(self.clone.git, self.base, path_of(key))

    def records(self, key: JobKey) -> tuple[JobRecord, ...]:
        """What the newest generation here says of a job, of an array of each task; nothing when there is no record."""
        with contextlib.suppress(NotFound):
            tip = self.clone.state_tip()
            files = {path: file_at(self.clone.git, tip, path) for path in (SUMMARY, job_path(key))}
            found = read_allocation({path: content for path, content in files.items() if content is not None})
            return tuple(found.jobs.values())
        return ()

    @cached_property
    def generation(self) -> Generation | None:
        """The newest generation here, or None when there is no record yet."""
        with contextlib.suppress(NotFound):
            return known_generation(self.clone.git, self.clone.state_tip(), self._states)
        return None

    # --- the cluster's own files ---

    @cached_property
    def cluster_files(self) -> Mapping[str, bytes]:
        """Documents of the cluster itself, without the jobs, by path."""
        git, config = self.clone.git, file_at(self.clone.git, self.base, CONFIG)
        folders = [folder for name in _FOLDERS if self._has(folder := f"{ROOT}{name}")]
        listed = [entry for folder in folders for entry in tree_entries(git, self.base, folder)]
        wanted = {entry.path: entry.oid for entry in listed if entry.mode == REGULAR and is_document(entry.path)}
        contents = blobs(git, wanted.values())
        files = {path: contents[oid] for path, oid in wanted.items()}
        return dict(sorted((files | ({CONFIG: config} if config is not None else {})).items()))

    def documents(self, kind: str) -> list[Found]:
        """Every valid document of a kind, by path and place in the file."""
        return [
            Found(path=path, content=content, item=item)
            for path, content in self.cluster_files.items()
            for item in self._items(path, content)
            if item.kind == kind
        ]

    def document(self, kind: str, name: str) -> Found:
        """The document of this kind and name. Raises NotFound (UnknownQueue, UnknownPriorityClass, ...)."""
        every = self.documents(kind)
        found = next((one for one in every if one.name == name), None)
        if found is None:
            names = [one.name for one in every]
            raise NotFound(
                f"there is no {_WORDS.get(kind, kind)} {name}",
                code=f"Unknown{kind}",
                remedy=did_you_mean(name, names) or f"there are: {', '.join(sorted(names)) or 'none'}",
            )
        return found

    def nodes(self, lists: tuple[str, ...]) -> tuple[str, ...]:
        """The declared nodes that these hostlists name, each once, in the order of the inventory.

        Raises: UsageError (BadNodeList), NotFound (UnknownNode).
        """
        wanted: set[str] = set()
        for text in lists:
            try:
                wanted |= set(expand(text))
            except ValueError as err:
                raise UsageError(
                    str(err), code="BadNodeList", remedy="such as gpu-007, or 'gpu-[001-004,007]'"
                ) from err
        known = [node for found in self.documents("NodeSet") for node in found.spec.nodes]
        strangers = sorted(wanted - set(known))
        if strangers:
            more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
            raise NotFound(
                f"the inventory has no node {strangers[0]}{more}",
                code="UnknownNode",
                remedy=did_you_mean(strangers[0], known) or "gangops get nodes -o name",
            )
        return tuple(node for node in known if node in wanted)

    def gpu_types(self) -> list[str]:
        """GPU types of the declared profiles, sorted."""
        return sorted({found.spec.gpu_type for found in self.documents("NodeProfile")})

    # --- git ---

    def _items(self, path: str, content: bytes) -> tuple[Item, ...]:
        if path not in self._checked:
            self._checked[path] = check_file(content, path).items
        return self._checked[path]

    @cached_property
    def _checked(self) -> dict[str, tuple[Item, ...]]:
        return {}

    def _has(self, folder: str) -> bool:
        return subtree(self.clone.git, self.base, folder) is not None
