"""The facts of every generation in one file beside the clone, so that a question asked again is answered at once.

A cache and nothing more: bound to the commit it ends at, extended when the branch went on, made anew when it did not
(or when the file is damaged), and never evidence. By-path questions do without it. Columns of integers are read back
with one copy each, which is what makes a hundred thousand generations load in a blink.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from reconciler import __version__
from reconciler.documents.loader import bulk
from reconciler.documents.record import JOBS, OBSERVED_JOBS, SUMMARY
from reconciler.errors import StoreError
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.units import SECOND, JobKey, document_of, index_of, task_key
from reconciler.runtime.audit.glance import RecordTexts, instant, job_glance, masks, record_texts, summary_glance
from reconciler.runtime.audit.origins import Origin, Origins
from reconciler.store.objects import blobs
from reconciler.store.runner import Git
from reconciler.store.walk import ABSENT, Link, changed_paths, objects_named, record_chain
from reconciler.store.whole import write_whole

_MAGIC = f"gangops audit index 5 {__version__} {sys.byteorder}\n".encode()
_CHUNK = 2000
_SCENERY = tuple(
    f"desired/cluster-state/{folder}" for folder in ("fabric", "inventory", "queues", "priorities", "cluster.yaml")
)
_JOB_FOLDER = JOBS.rstrip("/")
Progress = Callable[[int, int], None]

COMMIT_COLUMNS = {
    "generation": "q", "at": "q", "version": "i", "trigger": "i", "desired": "i", "scenery": "b",
    "declared": "i", "capacity": "i", "held": "i", "promised": "i", "idle": "i", "stranded": "i", "whole": "i", "idleOf": "i",
}  # fmt: skip
EVENT_COLUMNS = {
    "commit": "i", "job": "i", "queue": "i", "state": "i", "phase": "i", "code": "i", "cause": "i", "outcome": "i",
    "attempt": "i", "place": "i", "reserved": "i", "spares": "i", "preemptor": "i", "person": "i", "request": "i", "asked": "i",
    "started": "q", "lost": "q", "failed": "q",
}  # fmt: skip
HOLDING = frozenset(str(state) for state in JobState if state.holds_gpus)
EVICTED = frozenset(map(str, (Cause.PREEMPTED, Cause.RECLAIMED, Cause.FAIR_SHARE, Cause.MOVED, Cause.RESIZED)))


@dataclass
class Index:
    """Columns over generations (`commits`) and over changes of jobs' records (`events`), both in the record's order.

    Texts are numbers into `texts`; 0 is "". `place`, `reserved` and `spares` are words of `glance`. `failed` of an event are the GPU-seconds
    a failure threw away, `lost` what the record says evictions cost so far. `asked` is the desired commit that last
    touched the job's file, by `person` and pull request `request`.
    """

    ids: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=lambda: [""])
    commits: dict[str, array[int]] = field(default_factory=lambda: {n: array(c) for n, c in COMMIT_COLUMNS.items()})
    events: dict[str, array[int]] = field(default_factory=lambda: {n: array(c) for n, c in EVENT_COLUMNS.items()})
    origins: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    """When each job that is not running any more, and not yet written off, stopped running."""

    @property
    def tip(self) -> str:
        return self.ids[-1] if self.ids else ""

    def text(self, column: str, event: int) -> str:
        """A text column of an event."""
        return self.texts[self.events[column][event]]

    def holds(self, event: int) -> dict[str, int]:
        """GPU masks by node that the job has after an event and nobody else can have: those with a rank, and spares."""
        if self.text("state", event) not in HOLDING:
            return {}
        found = masks(self.text("place", event))
        for node, mask in masks(self.text("spares", event)).items():
            found[node] = found.get(node, 0) | mask
        return found

    def position_at(self, at: int) -> int:
        """The generation in force at an instant, as a position in `commits`; -1 before the first."""
        return bisect_right(self.commits["at"], at) - 1

    def first_event(self, position: int) -> int:
        """The first event of the generation at a position, or of a later one."""
        return bisect_right(self.events["commit"], position - 1)

    def standing(self, position: int) -> dict[int, int]:
        """The newest event of each job as of a generation: job's text number -> event."""
        end = self.first_event(position + 1)
        return dict(zip(self.events["job"][:end], range(end), strict=True))


def index_file(git: Git) -> Path:
    """Where the cache of a clone lies: inside its git folder, so that it goes when the clone goes."""
    told = git.run("rev-parse", "--git-path", "gangops/audit-index").stdout.decode().strip()
    return git.folder / told


def indexed(git: Git, tip: str, progress: Progress | None = None) -> Index:
    """The index of a state branch up to a commit: loaded, brought up to date, and kept again. Raises StoreError."""
    file = index_file(git)
    index = _load(file)
    if index is not None and index.tip == tip:
        return index
    links = _continuation(git, tip, index) if index is not None else None
    if index is None or links is None:
        index, links = Index(), record_chain(git, tip)
    with bulk():
        _Builder(git, index).extend(links, progress or (lambda _done, _of: None))
    _save(file, index)
    return index


def _continuation(git: Git, tip: str, index: Index) -> list[Link] | None:
    """What is new since the index was made; None when the branch no longer has that commit in its chain."""
    try:
        links = record_chain(git, tip, after=index.tip)
    except StoreError:
        return None  # the old tip is gone from the clone
    return links if links and links[0].parent == index.tip else None


_DROPPED = job_glance(b"")
_UNREAD: RecordTexts = {None: (b"", b"")}
"""A job that is no array, whatever its record says: every change of its file is an event of its own."""


_Rows = list[tuple[str, dict[str, str]]]


def _wanted(rows: _Rows) -> list[str]:
    """The blobs of a stretch that are looked into, in the record's order: packed together, they are read together."""
    found = (
        oid for _, paths in rows for path, oid in paths.items()
        if oid != ABSENT and " " not in oid and (path == SUMMARY or path.startswith(JOBS))
    )  # fmt: skip
    return list(dict.fromkeys(found))


class _Numbers(dict[str, int]):
    """The number of each text; a text that is not known yet is added to `texts`."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__((text, number) for number, text in enumerate(texts))
        self._texts = texts

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self._texts)
        self._texts.append(text)
        return number


class _Builder:
    """Appends generations to an index."""

    def __init__(self, git: Git, index: Index) -> None:
        self._git, self._index = git, index
        self._numbers = _Numbers(index.texts)
        self._merged: dict[str, str] = {}
        self._tables: dict[str, RecordTexts] = {}
        self._arrays = {document_of(JobKey(text)) for text in index.texts if index_of(JobKey(text)) is not None}
        self._since = index.tip
        self._last = {job: event for event, job in enumerate(index.events["job"])}
        """The newest event of each job that was looked at for losses."""
        self._origins = Origins(git, by_path={path: Origin(*row) for path, row in index.origins.items()})
        if len(index.ids) > 1:
            self._origins.at = index.texts[index.commits["desired"][-1]]

    def extend(self, links: list[Link], progress: Progress) -> None:
        """Read these generations, oldest first. `progress` hears how many are done, of how many."""
        self._merged = {link.id: link.merged for link in links}
        newest = next((link.merged for link in reversed(links) if link.merged), "")
        base, begun, done = len(self._index.ids), len(self._index.events["commit"]), 0
        rows = changed_paths(self._git, links, (_JOB_FOLDER, SUMMARY, *_SCENERY))
        # Git reads the next stretch while this one is understood, and people's branch meanwhile.
        with ThreadPoolExecutor(2) as ahead:
            people = ahead.submit(self._origins.look_ahead, newest) if newest and newest != self._origins.at else None
            pending: deque[tuple[_Rows, Future[Mapping[str, bytes]]]] = deque()
            while (chunk := list(islice(rows, _CHUNK))) or pending:
                if chunk:
                    pending.append((chunk, ahead.submit(blobs, self._git, _wanted(chunk))))
                if len(pending) > 1 or not chunk:
                    stretch, contents = pending.popleft()
                    self._take(stretch, contents.result())
                    done += len(stretch)
                    progress(done, len(links))
            if people is not None:
                people.result()
        self._attribute(base, begun)
        progress(len(links), len(links))
        self._index.origins = {p: (o.commit, o.person, o.request) for p, o in self._origins.by_path.items()}

    def _take(self, rows: _Rows, contents: Mapping[str, bytes]) -> None:
        begun, base = len(self._index.events["commit"]), len(self._index.ids)
        commits: list[tuple[int, ...]] = []
        events: list[tuple[int, ...]] = []
        for position, (commit, paths) in enumerate(rows, base):
            commits.append(self._commit(commit, paths, contents.get(paths.get(SUMMARY, ""), b"")))
            for path, oid in paths.items():
                if path.startswith(JOBS):
                    events += self._events(position, path, contents.get(oid, b""))
        self._index.ids += (commit for commit, _ in rows)
        for table, made in ((self._index.commits, commits), (self._index.events, events)):
            for column, values in zip(table.values(), zip(*made, strict=True), strict=False):
                column.extend(values)
        self._write_off(begun)

    def _commit(self, commit: str, paths: dict[str, str], summary: bytes) -> tuple[int, ...]:
        told = summary_glance(summary)
        desired = self._merged[commit]
        scenery = any(path.startswith("desired/") for path in paths)
        number = self._numbers
        return (
            told.generation,
            told.at,
            told.version,
            number[told.trigger],
            number[desired or told.desired],
            scenery,
            *told.metrics,
            number[told.idle_by_type],
        )

    def _events(self, position: int, path: str, content: bytes) -> Iterator[tuple[int, ...]]:
        """What happened to the job of this file, or to each of its tasks."""
        job = JobKey(path[len(JOBS) : -len(".yaml")])
        now = record_texts(content)
        is_array = any(index is not None for index in now)
        before = self._tables.get(path)
        if before is None:
            before = self._recorded(path) if is_array or job in self._arrays else {}
        if is_array:
            self._arrays.add(job)
        elif not now and not before:
            before = _UNREAD  # its record was dropped
        self._tables[path] = now if is_array else _UNREAD if now else {}
        for index in sorted({*now, *before}, key=lambda index: -1 if index is None else index):
            text = now.get(index)
            if text != before.get(index):
                key = job if index is None else task_key(job, index)
                yield self._event(position, key, text[0] if text is not None else None)

    def _recorded(self, path: str) -> RecordTexts:
        """A file as of the last generation that was indexed before."""
        if not self._since:
            return {}
        return record_texts(objects_named(self._git, (f"{self._since}:{path}",))[0] or b"")

    def _event(self, position: int, job: str, content: bytes | None) -> tuple[int, ...]:
        told = job_glance(content) if content is not None else _DROPPED
        number = self._numbers
        return (
            position, number[job], number[told.queue], number[told.state], number[told.phase], number[told.code],
            number[told.cause], number[told.outcome], told.attempt, number[told.place], number[told.reserved],
            number[told.spares], number[told.preemptor], 0, 0, 0, told.started, told.lost, 0,
        )  # fmt: skip

    def _attribute(self, base: int, begun: int) -> None:
        """Who asked for each job of the new events, as of the desired commit its decision answered."""
        events, number, event = self._index.events, self._numbers, begun
        for position in range(base, len(self._index.ids)):
            desired = self._merged[self._index.ids[position]]
            if desired:
                self._origins.advance(desired)
            while event < len(events["commit"]) and events["commit"][event] == position:
                origin = self._origins.of(self._index.text("job", event))
                for column, text in (("person", origin.person), ("request", origin.request), ("asked", origin.commit)):
                    events[column][event] = number[text]
                event += 1

    def _write_off(self, begun: int) -> None:
        """What failures threw away, for the new events: GPUs times the time since the last checkpoint or the start."""
        losses = list(self._losses(begun))
        names = [
            f"{self._index.ids[self._index.events['commit'][e]]}:{OBSERVED_JOBS}{self._index.text('job', e)}.yaml"
            for e, _, _ in losses
        ]
        for (event, left, before), seen in zip(losses, objects_named(self._git, names), strict=True):
            since = max(self._index.events["started"][before], _checkpoint(seen, self._index.events["attempt"][before]))
            gpus = gpus_in(self._index.text("place", before))
            self._index.events["failed"][event] = gpus * max(0, (left - since) // SECOND)

    def _losses(self, begun: int) -> Iterator[tuple[int, int, int]]:
        """(event, when the work ended, the event that last told of it) for each new event that writes work off."""
        index, left, before = self._index, self._index.left, self._last
        for event in range(begun, len(index.events["commit"])):
            job = index.events["job"][event]
            was, state = before.get(job), index.text("state", event)
            before[job] = event
            if was is None:
                continue
            name, at = index.texts[job], index.commits["at"][index.events["commit"][event]]
            ran = index.text("state", was)
            if ran == JobState.RUNNING and state != JobState.RUNNING:
                left[name] = at
            if state == JobState.RUNNING:
                left.pop(name, None)
            if name in left and state != JobState.LOST:
                ended = left.pop(name)
                evicted = index.text("cause", event) in EVICTED and ran != JobState.LOST
                if _is_failure(ran, state, index.text("cause", event), index.text("outcome", event)) and not evicted:
                    yield event, ended, was


def gpus_in(words: str) -> int:
    """How many GPUs a placement has."""
    return sum(int(word.rpartition(":")[2], 16).bit_count() for word in words.split())


_FAILURES = frozenset(map(str, (Cause.NODE_LOST, Cause.RANK_FAILED, Cause.START_FAILED, Cause.NODE_REMOVED)))


def _is_failure(ran: str, state: str, cause: str, outcome: str) -> bool:
    """Whether work that ended was thrown away by a failure, and not ended by a wish, a limit or success."""
    return ran == JobState.LOST or state == JobState.REPAIRING or cause in _FAILURES or outcome == "Failed"


def _checkpoint(seen: bytes | None, attempt: int) -> int:
    lines = dict(line.split(": ", 1) for line in (seen or b"").decode("utf-8", "replace").splitlines() if ": " in line)
    return instant(lines.get("checkpoint", "").strip('"')) if lines.get("attempt") == str(attempt) else 0


# --- the file ---


def _save(file: Path, index: Index) -> None:
    """Best effort: in a clone that cannot be written, each question reads the branch again."""
    columns = [*index.commits.values(), *index.events.values()]
    header = {
        "texts": index.texts,
        "origins": index.origins,
        "left": index.left,
        "lengths": [len(index.ids), *map(len, columns)],
    }
    head = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    body = b"".join([head, b"\n", bytes.fromhex("".join(index.ids)), *(column.tobytes() for column in columns)])
    with contextlib.suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        write_whole(file, _MAGIC + hashlib.sha256(body).digest() + body)


def _load(file: Path) -> Index | None:
    """What was kept; None when there is nothing, or nothing whole."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + 32
    if (
        not content.startswith(_MAGIC)
        or hashlib.sha256(memoryview(content)[start:]).digest() != content[len(_MAGIC) : start]
    ):
        return None
    end = content.index(b"\n", start)
    header = json.loads(content[start:end])
    count, *lengths = header["lengths"]
    ids = content[end + 1 : end + 1 + 20 * count].hex()
    index = Index(
        ids=[ids[i : i + 40] for i in range(0, 40 * count, 40)],
        texts=header["texts"],
        origins={path: (row[0], row[1], row[2]) for path, row in header["origins"].items()},
        left=header["left"],
    )
    at = end + 1 + 20 * count
    for column, length in zip([*index.commits.values(), *index.events.values()], lengths, strict=True):
        size = length * column.itemsize
        column.frombytes(content[at : at + size])
        at += size
    return index
