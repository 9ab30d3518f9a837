"""Is a state commit of the form its writer gives it? Header, message, trigger, the first one, and folders.

A signature covers whatever stands in a commit, and git shows only part of it: a second author, an encoding, a message that
ends at a NUL, a folder that names a file twice. So nothing may stand there but what the writer writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from reconciler import __version__
from reconciler.documents.record import SUMMARY
from reconciler.errors import StoreError
from reconciler.model.decision import DECISION_VERSION
from reconciler.model.units import SECOND
from reconciler.runtime.audit.people import Fault
from reconciler.runtime.audit.reel import Frame
from reconciler.runtime.generation import Generation, first_generation, raised_epoch
from reconciler.runtime.telling import ROTATE, trigger_of
from reconciler.store.branches import CONTINUED, PREVIOUS
from reconciler.store.history import CommitMeta
from reconciler.store.signatures import split_signature

_MODES = frozenset({b"100644", b"100755", b"120000", b"40000", b"160000"})
_FOLDER = b"40000"


def header_faults(frame: Frame) -> Iterator[Fault]:
    """Anything in the header but tree, parents, one person twice at one time in UTC, and a signature; text that git hides."""
    meta = frame.meta
    seconds = meta.committed_at // SECOND
    person = f"{meta.committer} {seconds} +0000"
    told = [f"tree {meta.tree}", *(f"parent {oid}" for oid in meta.parents), f"author {person}", f"committer {person}"]
    try:
        payload = split_signature(frame.raw)[0]
    except StoreError:
        payload = frame.raw  # what is wrong with the signature is said where it is checked
    if payload.partition(b"\n\n")[0] != "\n".join(told).encode() and meta.authored_at == meta.committed_at:
        yield (
            "chain",
            "ForeignHeader",
            "its header holds more, or other people, than the writer of the record puts there",
        )
    if not all(char == "\n" or char.isprintable() for char in meta.message):
        yield "trailers", "ForeignText", "its message holds what git does not show"


def trigger_faults(meta: CommitMeta, now: Generation, then: Generation, *, carried: bool) -> Iterator[Fault]:
    """A trigger that is none of the loop's, or is not what happened."""
    trigger, raised = now.summary.trigger, raised_epoch(now.summary.trigger)
    said = dict(meta.trailers)
    if raised is not None or now.summary.epoch != then.summary.epoch:
        right = raised == now.summary.epoch > then.summary.epoch
    elif trigger == ROTATE or carried or CONTINUED in said or PREVIOUS in said:
        right = trigger == ROTATE and (PREVIOUS in said if carried else CONTINUED in said)
    else:
        right = trigger == trigger_of(then, now.summary.desired_commit, now.observed.requests)
    if not right:
        yield "inputs", "WrongTrigger", f"{trigger!r} is not what made the loop decide"


def version_faults(now: Generation) -> Iterator[Fault]:
    """A decision that says it is of another version than the release that it says made it: it would escape its replay."""
    summary = now.summary
    if summary.package_version == __version__ and summary.decision_version != DECISION_VERSION:
        told = f"gangops {__version__} decides by version {DECISION_VERSION}, never by {summary.decision_version}"
        yield "replay", "WrongVersion", told


def beginning_faults(frame: Frame, now: Generation) -> Iterator[Fault]:
    """Of the first commit of all: anything but an empty generation 0."""
    summary = now.summary
    _, files = first_generation(
        summary.cluster_id, summary.epoch, summary.desired_commit, summary.decided_at, summary.usage
    )
    ours = summary.decision_version == DECISION_VERSION
    others = frame.files.keys() - {SUMMARY}
    if summary.generation or summary.trigger != "init" or summary.previous_commit or others:
        yield "chain", "NotTheBeginning", "the record begins with it, and it is no empty generation 0"
    elif ours and _apart_from_version(files[SUMMARY]) != _apart_from_version(frame.files[SUMMARY]):
        yield "chain", "NotTheBeginning", "its summary is not that of a record that begins"


def _apart_from_version(summary: bytes) -> list[bytes]:
    return [line for line in summary.split(b"\n") if not line.startswith(b"packageVersion:")]


def folder_fault(content: bytes) -> str:
    """What is wrong with a folder as git stores it: names twice, out of order or not allowed, modes git has not; "" if nothing."""
    entries: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(content):
        space, end = content.find(b" ", at), content.find(b"\0", at)
        if not at < space < end or end + 21 > len(content):
            return "cannot be read"
        entries.append((content[at:space], content[space + 1 : end]))
        at = end + 21
    for mode, name in entries:
        if mode not in _MODES:
            return f"gives {_shown(name)} a mode that is none"
        if not name or b"/" in name or name in {b".", b".."} or name.lower() == b".git":
            return f"holds the name {_shown(name)}"
    if len({name for _, name in entries}) != len(entries):
        return "names a file twice"
    keys = [name + b"/" if mode == _FOLDER else name for mode, name in entries]
    return "" if all(one < other for one, other in pairwise(keys)) else "is out of order"


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "replace"))
