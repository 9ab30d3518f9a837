"""Close the branch the record is in and begin the next one, so that a year of decisions need not be carried for ever.

Two ordinary generations, both decided at the instant of the last one and on what it saw, so that nothing new is decided:
the first closes the old branch and names the new one, the second has no parent, brings the whole tree along, and names
the first. They are pushed together or not at all. A running reconciler that publishes meanwhile wins the race or loses
it, and then goes on in the new branch; agents see two generations like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.errors import InvalidInput, StoreError, UsageError
from reconciler.runtime.generation import (
    Generation,
    Inputs,
    NextGeneration,
    next_generation,
    read_generation,
    state_files,
    trailers,
)
from reconciler.runtime.reading import DesiredReader
from reconciler.runtime.service import mirror_of
from reconciler.runtime.settings import Settings
from reconciler.runtime.telling import ROTATE
from reconciler.store.branches import CONTINUED, PREVIOUS, year_of
from reconciler.store.mirror import Mirror
from reconciler.store.publish import PublishedMark, check_continues, publish_rotated
from reconciler.store.signatures import Signer
from reconciler.store.statecommit import Message, Writer, build, build_on

_HEADS = "refs/heads/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotated:
    """The two branches by name, the commit that closed the old one and the first of the new one."""

    old: str
    closing: str
    new: str
    first: str
    generation: int


def rotate(settings: Settings, year: int) -> Rotated:
    """Begin the record's branch of a year.

    Raises UsageError (YearNotLater) unless it comes after the branch there is; StoreError (StateMissing, StateRewritten,
    NotOurCluster, PushRejected), Fenced when somebody published meanwhile, Unreachable.
    """
    mirror, mark = mirror_of(settings), PublishedMark(folder=settings.folder)
    writer = Writer(identity=settings.identity, signer=Signer(key=settings.signing_key))
    done = rotate_in(mirror, mark, writer, settings.cluster_id, year)
    mark.write(done.first)
    return done


def rotate_in(mirror: Mirror, mark: PublishedMark, writer: Writer, cluster_id: str, year: int) -> Rotated:
    """As `rotate`, in a clone that is open; the mark is read and not written."""
    # 1. Where is the record now, and does the year come after it?
    fetched = mirror.fetch()
    check_continues(mirror, mark, fetched.state)
    assert fetched.state is not None
    branch = _next_branch(mirror, year)
    current = read_generation(mirror.git, fetched.state)
    if current.summary.cluster_id != cluster_id:
        raise StoreError(
            f"the record is of cluster {current.summary.cluster_id}, not {cluster_id}", code="NotOurCluster",
            remedy="Correct clusterId in reconciler.toml, or point it at the right repository.",
        )  # fmt: skip
    # 2. Two generations that decide nothing new.
    closing = _unchanged(mirror, current)
    old = mirror.state_ref.removeprefix(_HEADS)
    sealed = build_on(
        mirror.git, closing.changes, parent=current.commit, desired=current.summary.desired_commit,
        message=_message(closing, f"Close this branch: the record goes on in {branch}", {CONTINUED: branch}),
        at=closing.summary.decided_at, writer=writer,
    )  # fmt: skip
    first = _unchanged(mirror, closing.committed_as(sealed))
    files = {**state_files(mirror.git, sealed), **first.changes}
    begun = build(
        mirror.git, {path: content for path, content in files.items() if content is not None}, parent=None,
        desired=current.summary.desired_commit, at=first.summary.decided_at, writer=writer,
        message=_message(first, f"Go on with the record of {old}", {PREVIOUS: sealed}),
    )  # fmt: skip
    # 3. Both, or neither.
    publish_rotated(mirror, sealed, begun, f"{_HEADS}{branch}", expected=current.commit).raise_for_result()
    return Rotated(old=old, closing=sealed, new=branch, first=begun, generation=first.summary.generation)


def _next_branch(mirror: Mirror, year: int) -> str:
    base = mirror.branches.state
    now = year_of(mirror.state_ref, base) or 0
    if not max(now, 999) < year <= 9999:
        raise UsageError(
            f"the record is in {mirror.state_ref.removeprefix(_HEADS)}, and {year} does not come after that",
            code="YearNotLater",
            remedy="Give a later year of four digits with --year.",
        )
    return f"{base.removeprefix(_HEADS)}-{year}"


def _unchanged(mirror: Mirror, current: Generation) -> NextGeneration:
    """The next generation at the same instant, on what was seen and desired then."""
    read = DesiredReader(mirror.git).recorded(current.commit, current.summary.desired_commit, current.frozen)
    if read.desired is None:
        raise InvalidInput(read.diagnostics)
    return next_generation(
        Inputs(
            desired=read.desired, read=read.read, frozen=current.frozen, observed=current.observed, previous=current,
            now=current.allocation.decided_at, trigger=ROTATE, verdicts=read.verdicts,
        )
    )  # fmt: skip


def _message(made: NextGeneration, subject: str, more: dict[str, str]) -> Message:
    return Message(subject=subject, body="", trailers={**trailers(made.summary), **more})
