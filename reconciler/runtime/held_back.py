"""Is what was merged acted on? Asked of a clone and of the record in it, by the checks that the reconciler makes itself.

A commit that a guard refuses leaves no trace in the record: the last one decided on goes on. So whoever reads the record
asks the newest desired commit the same questions. How the reconciler is apart from that, its own condition tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reconciler.documents.withheld import WITHHELD
from reconciler.errors import GangOpsError, InvalidInput
from reconciler.model.units import MINUTE, CommitId, Instant, Nanoseconds
from reconciler.render.names import age, one_line
from reconciler.runtime.authorised import Authority
from reconciler.runtime.generation import Generation
from reconciler.runtime.reading import CLUSTER_PATH, POLICY_PATH, DesiredReader
from reconciler.runtime.taken import taken_between
from reconciler.runtime.wanted import Wanted, wanted
from reconciler.store.history import commit_meta, is_ancestor
from reconciler.store.objects import subtree
from reconciler.store.runner import Git

LATE: Final = "NotDecidedOn"
_POLLS: Final = 5
"""Poll intervals after which a commit is late, and never less than a minute: a round may take its time.

The interval by which commits of the record are spaced out comes on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """`commit`, made `waited` ago, is not acted on, `decided` is instead. `code` is why: a guard's, or NotDecidedOn."""

    commit: CommitId
    decided: CommitId
    code: str
    told: str
    remedy: str
    waited: Nanoseconds

    @property
    def sentence(self) -> str:
        """What is not acted on, why, what counts until then, and the remedy."""
        if self.code == LATE:
            what = f"Nothing was decided yet on commit {self.commit[:12]}, {age(self.waited)} old"
            return f"{what}; {self.decided[:7]} still counts. {self.remedy}"
        what = f"What was merged is not acted on ({self.code}): {self.told}"
        return f"{what}. Until then {self.decided[:7]} counts. {self.remedy}"


def held_back(
    git: Git, reader: DesiredReader, current: Generation, newest: CommitId, now: Instant, *, fresh: bool
) -> HeldBack | None:  # fmt: skip
    """Why `newest` is not acted on; None when it is, when it says nothing new, or when that cannot be known here.

    `fresh`: it was fetched just now; of an older look nobody can say that the reconciler is late.
    """
    try:
        return _held_back(git, reader, current, newest, now, fresh=fresh)
    except GangOpsError:
        return None  # the clone is shallow, or its tree cannot be read: what is shown beside it stands all the same


def _held_back(
    git: Git, reader: DesiredReader, current: Generation, newest: CommitId, now: Instant, *, fresh: bool
) -> HeldBack | None:  # fmt: skip
    decided = current.summary.desired_commit
    if newest == decided or not _differs(git, newest, current):
        return None
    if not fresh and is_ancestor(git, newest, decided):
        return None  # the record was fetched after the desired branch
    want = wanted(git, reader, Authority(git, reader), newest, None, current)
    waited = Nanoseconds(max(0, now - commit_meta(git, newest).committed_at))
    if want.held is not None:
        return HeldBack(
            commit=newest, decided=decided, code=want.held.code, told=one_line(_first_of(want.held)),
            remedy=want.held.remedy or f"`gangops validate --rev {newest[:12]}` names all that is wrong.", waited=waited,
        )  # fmt: skip
    rules = want.desired.repository
    patience = max(_POLLS * rules.poll_interval, MINUTE) + rules.publish_interval
    if not fresh or waited < patience or not _says_more(reader, current, want):
        return None
    return HeldBack(
        commit=newest, decided=decided, code=LATE, told="nothing was decided on it yet", waited=waited,
        remedy="`gangops doctor --cluster` says what is wrong.",
    )  # fmt: skip


def _differs(git: Git, newest: CommitId, current: Generation) -> bool:
    """Whether anything that is read differs from what is on record: most other files are nobody's business here."""
    folders = (CLUSTER_PATH, POLICY_PATH)
    return any(subtree(git, newest, one) != subtree(git, current.commit, f"desired/{one}") for one in folders)


def _says_more(reader: DesiredReader, current: Generation, want: Wanted) -> bool:
    """Whether it means something else, or has changes nobody may act on yet: a comment is no reason for a generation."""
    base = reader.recorded(current.commit, current.summary.desired_commit, current.frozen)
    withheld = want.read.frozen.get(WITHHELD) != current.frozen.get(WITHHELD)
    return withheld or bool(taken_between(base, want.read, ()))


def _first_of(err: GangOpsError) -> str:
    if isinstance(err, InvalidInput):
        errors = [one for one in err.diagnostics if one.is_error]
        return f"{errors[0].summary} ({errors[0].place.file})" if errors else "its own files make no sense"
    return err.message
