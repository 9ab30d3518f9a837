"""Did our commit become the record? Pushes with compare-and-swap and tells the outcomes apart.

A decision counts once the remote has it, and only then may anyone act on it. Nothing here rebases, merges or
forces: who lost the race decides again. When and how often to try again is left to the runtime.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from reconciler.errors import BrokenInvariant, Fenced, GangOpsError, StoreError, Unreachable
from reconciler.store.branches import CONTINUED, is_in_record
from reconciler.store.failpoints import reach
from reconciler.store.failures import redact, shown
from reconciler.store.history import commit_meta, is_ancestor
from reconciler.store.mirror import Mirror
from reconciler.store.names import checked_object_id, is_object_id


class PushResult(StrEnum):
    """How a push ended. Closed: each wants something else from the caller."""

    OK = "ok"  # the remote has the commit
    LOST_RACE = "lost_race"  # another writer was first: discard, fetch, decide again
    REJECTED = "rejected"  # a rule of the remote: needs a person
    AUTHENTICATION = "auth"  # the token was not taken: read it again later
    UNREACHABLE = "error"  # nobody answered: try again later


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a push ended, with the remote's own words, redacted."""

    result: PushResult
    message: str = ""

    def raise_for_result(self) -> None:
        """Nothing when it is OK. Raises: Fenced(LostRace), StoreError(PushRejected), Unreachable."""
        if self.result is not PushResult.OK:
            raise _error_of(self)


# In the reason git gives for a refused ref; first match wins. A broken lock file or directory at the remote does
# not heal by deciding again, so it is looked for before the words of a lost race.
_NOT_A_RACE = re.compile(r"Permission denied|No space left|exists; cannot create|Read-only file system")
_LOST_RACE = re.compile(
    r"stale info|fetch first|non-fast-forward|needs force|cannot lock ref|failed to lock|failed to update ref|"
    r"atomic transaction failed|incorrect old value|reference already exists"
)


def publish(mirror: Mirror, commit: str, *, expected: str | None) -> Outcome:
    """Makes `commit` the tip of the state branch if the tip is still `expected`; None creates the branch.

    A lost answer is looked up: it is a success when our commit is the tip or in its history.
    Raises: BrokenInvariant when the commit does not build on `expected` (the lease alone would let it pass);
    StoreError for faults of this machine (LocalStorageFull, CloneBroken).
    """
    parents = commit_meta(mirror.git, checked_object_id(commit)).parents
    if (parents[0] if parents else None) != expected:
        raise BrokenInvariant(f"state commit {commit[:12]} does not build on the expected tip {expected}")
    outcome = _push(mirror, {mirror.state_ref: (commit, expected)})
    if isinstance(outcome, str):
        outcome = _look_up(mirror, commit, expected, outcome)
    reach("after-push-response")
    if outcome.result is PushResult.OK:
        mirror.note_published(commit)
    return outcome


def publish_rotated(mirror: Mirror, closing: str, first: str, branch: str, *, expected: str) -> Outcome:
    """Closes the branch the record is in with one commit and begins `branch` with the other: both, or neither.

    The lease on the old branch decides a race with a reconciler that publishes at the same time. Raises as `publish`.
    """
    if commit_meta(mirror.git, closing).parents[:1] != (expected,) or commit_meta(mirror.git, first).parents:
        raise BrokenInvariant("the closing commit does not build on the expected tip, or the first one has a parent")
    old = mirror.state_ref
    outcome = _push(mirror, {old: (closing, expected), branch: (first, None)})
    if isinstance(outcome, str):
        told, tip = outcome, mirror.remote_refs(mirror.branches.record).get(branch)
        outcome = Outcome(result=PushResult.OK if tip == first else PushResult.UNREACHABLE, message=told)
    if outcome.result is PushResult.OK:
        mirror.note_published(closing, old)
        mirror.note_published(first, branch)
    return outcome


def _push(mirror: Mirror, wanted: Mapping[str, tuple[str, str | None]]) -> Outcome | str:
    """The outcome as the remote told it, or what was heard when it did not tell. `wanted`: new and old tip by ref."""
    record = mirror.branches.record
    leases = [f"--force-with-lease={ref}:{expected or ''}" for ref, (_, expected) in wanted.items()]
    try:
        pushed = mirror.at(record).run(
            "push", "--porcelain", "--atomic", "--no-verify", *leases,
            "--end-of-options", record.url, *(f"{commit}:{ref}" for ref, (commit, _) in wanted.items()),
            accept=(0, 1), network=True,
        )  # fmt: skip
    except StoreError as err:
        if err.code == "AuthenticationFailed":
            return Outcome(result=PushResult.AUTHENTICATION, message=err.message)
        if isinstance(err, Unreachable) or err.code == "GitFailed":
            return err.message
        raise
    reach("after-push")
    told = redact(pushed.stdout.decode("utf-8", "replace"))
    outcomes = [read_porcelain(told, pushed.stderr, ref) for ref in wanted]
    wrong = next((one for one in outcomes if one is not None and one.result is not PushResult.OK), None)
    return wrong or outcomes[0] or pushed.stderr or told


def read_porcelain(stdout: str, stderr: str, ref: str) -> Outcome | None:
    """The outcome as the remote told it for our ref, or None when it said nothing that can be relied on."""
    for line in stdout.splitlines():
        flag, _, rest = line.partition("\t")
        names, _, summary = rest.partition("\t")
        if names.rpartition(":")[2] != ref:
            continue
        if flag in {" ", "*", "+", "="}:
            return Outcome(result=PushResult.OK)
        told = shown(f"{summary.strip()}\n{_remote_words(stderr)}")
        if summary.startswith("[remote failure]"):
            return None
        lost = _LOST_RACE.search(summary) and not _NOT_A_RACE.search(told)
        return Outcome(result=PushResult.LOST_RACE if lost else PushResult.REJECTED, message=told)
    return None


def _remote_words(stderr: str) -> str:
    lines = [line.removeprefix("remote:").strip() for line in stderr.splitlines() if line.startswith("remote:")]
    return "\n".join(lines)


def _look_up(mirror: Mirror, commit: str, expected: str | None, told: str) -> Outcome:
    """What became of a push whose answer was lost: ask the remote for its tip."""
    record, ref = mirror.branches.record, mirror.state_ref
    try:
        tip = mirror.remote_refs(record).get(ref)
        if tip is not None and tip not in {commit, expected}:
            mirror.fetch_state()
    except Unreachable as err:
        refused = err.code == "AuthenticationFailed"
        return Outcome(result=PushResult.AUTHENTICATION if refused else PushResult.UNREACHABLE, message=err.message)
    if tip is not None and is_ancestor(mirror.git, commit, tip):
        return Outcome(result=PushResult.OK, message="found at the remote after its answer was lost")
    if tip == expected:
        return Outcome(result=PushResult.UNREACHABLE, message=told)
    return Outcome(result=PushResult.LOST_RACE, message=told)


def _error_of(outcome: Outcome) -> GangOpsError:
    message = outcome.message or outcome.result.value
    match outcome.result:
        case PushResult.LOST_RACE:
            return Fenced(message, remedy="Fetch and decide again; nothing of this decision was applied.")
        case PushResult.REJECTED:
            remedy = (
                "Let the reconciler's account push to the state branch; the remote's words say which rule stopped it."
            )
            return StoreError(message, code="PushRejected", remedy=remedy)
        case PushResult.AUTHENTICATION:
            remedy = "Renew the credential file; it is read again at every attempt."
            return Unreachable(message, code="AuthenticationFailed", remedy=remedy)
        case PushResult.UNREACHABLE | PushResult.OK:
            return Unreachable(message, remedy="Nothing was applied; the same decision is made again when it answers.")


# -- what we published last, remembered outside the clone


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedMark:
    """The last state commit known to be at the remote, in a file of the state folder.

    The clone may be thrown away at any time; this may not, or a rewound branch would look like a fresh one.
    """

    folder: Path

    @property
    def file(self) -> Path:
        """Where it is kept."""
        return self.folder / "last-published"

    def read(self) -> str | None:
        """The commit, or None when nothing was published from here. Raises StoreError(MarkUnreadable)."""
        try:
            text = self.file.read_text("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        if not is_object_id(text):
            raise StoreError(
                f"{self.file.name} does not hold a commit id",
                code="MarkUnreadable",
                remedy="Compare the state branch with what you expect, then write its tip into the file or remove it.",
            )
        return text

    def write(self, commit: str) -> None:
        """Remembers a commit; after a crash the file holds the old or the new one, whole.

        Raises StoreError(LocalStorageFull).
        """
        fresh = self.folder / f"last-published.{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with fresh.open("wb") as file:
                file.write(f"{checked_object_id(commit)}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.file)
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as err:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            remedy = "Free space in the state folder; the next round continues by itself."
            raise StoreError(f"last-published: {err.strerror}", code="LocalStorageFull", remedy=remedy) from err


def check_continues(mirror: Mirror, mark: PublishedMark, tip: str | None) -> None:
    """Nothing when the state branch as fetched has all we ever published in its history.

    Raises: StoreError(StateMissing) when it is gone, or was never made; StoreError(StateRewritten) when it was
    rewound or rewritten. Neither is built upon: what was decided and acted on would be forgotten.
    """
    published = mark.read()
    branch = mirror.state_ref
    if tip is None:
        made = "was deleted" if published else "does not exist yet"
        remedy = (
            f"Push commit {published} to it again, or push a backup and run `gangops init --restored`."
            if published
            else "Make it once with `gangops init --state`."
        )
        raise StoreError(f"the state branch {branch} {made}", code="StateMissing", remedy=remedy)
    _check_not_closed(mirror, tip)
    if published is None or is_in_record(mirror.git, published, tip):
        return
    if branch != mirror.branches.state:  # it may be in a branch that was closed, which a fresh clone does not have
        mirror.fetch_record()
        if is_in_record(mirror.git, published, tip):
            return
    how = "was rewound" if is_ancestor(mirror.git, tip, published) else "was rewritten"
    raise StoreError(
        f"the state branch {branch} {how}: its tip {tip[:12]} does not contain {published[:12]}, published from here",
        code="StateRewritten",
        remedy=f"Push {published} to it again; or, if the change is wanted, run `gangops init --restored`.",
    )


def _check_not_closed(mirror: Mirror, tip: str) -> None:
    """Nobody builds on a branch that was closed. Raises StoreError(StateMissing)."""
    following = dict(commit_meta(mirror.git, tip).trailers).get(CONTINUED, "")
    if following:
        raise StoreError(
            f"{mirror.state_ref} was closed: the record goes on in {following}, which does not exist",
            code="StateMissing",
            remedy=f"Push {following} again from a clone that has it; nothing is decided until then.",
        )
