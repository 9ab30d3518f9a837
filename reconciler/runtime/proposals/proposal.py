"""From a change to a branch somebody can merge: what it would do, the commit in the person's name, the push.

Everything is made from git objects. No work tree, index or branch of the clone is touched, so that it works in a clone
with edits under way, in a bare one, and from any folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reconciler.errors import GangOpsError, InvalidInput, NotFound, StoreError, UsageError
from reconciler.model.counting import counted
from reconciler.model.units import Instant
from reconciler.render.diff import diff_text
from reconciler.render.plan import Plan
from reconciler.runtime.clone import Clone
from reconciler.runtime.preview import Asked, Preview
from reconciler.runtime.proposals.change import Change
from reconciler.runtime.proposals.desk import Desk
from reconciler.runtime.reading import DesiredReader
from reconciler.store.history import file_at
from reconciler.store.person import as_person, author_line, commit_as, push_branch, scratch_commit
from reconciler.store.statecommit import tree_with


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A change on a base, not yet a commit of anybody's. `plan` None: `no_plan` says why none can be told."""

    change: Change
    base: str
    tree: str
    branch: str
    diff: str
    plan: Plan | None
    no_plan: str = ""


def fetch(clone: Clone) -> None:
    """The newest desired commit, and the record where there is one.

    Raises: UsageError (NoRemote); Unreachable; StoreError (SourceMissing).
    """
    if not clone.url:
        raise UsageError(
            "this clone has no remote called origin to push a proposal to",
            code="NoRemote",
            remedy="`gangops use URL`, or stand in a clone of the cluster repository; --dry-run needs no remote",
        )
    try:
        clone.fetch()
    except StoreError as err:
        if err.code != "SourceMissing":
            raise
        clone.fetch(state=False)


def proposal_of(
    desk: Desk, change: Change, now: Instant, reader: DesiredReader, *, states: Path | None = None
) -> Proposal:
    """What a change would do, decided on the newest record. Raises: what `Preview` does, but for a missing record."""
    git, base = desk.clone.git, desk.base
    tree = tree_with(git, change.files, base)
    head = scratch_commit(git, tree, base, change.message, author_line(as_person(git)))
    before = {path: file_at(git, base, path) for path in change.files}
    plan, no_plan = None, ""
    try:
        plan = Preview(desk.clone, reader, Asked(head=head, base=base), states=states).plan(now)
    except NotFound as err:
        no_plan = f"no plan: {err.message}"
    except InvalidInput as err:
        problem = err.diagnostics[0]
        no_plan = f"no plan: {desk.clone.desired} itself has errors, the first at {problem.place} [{problem.code}]"
    return Proposal(
        change=change, base=base, tree=tree, branch=change.branch(base), diff=diff_text(before, change.files),
        plan=plan, no_plan=no_plan,
    )  # fmt: skip


def push(clone: Clone, proposal: Proposal) -> str:
    """The commit of a proposal, made by whoever runs this and pushed as a branch of its own.

    Raises: UsageError (NoIdentity); StoreError (BranchExists, NoPushRights, PushRejected, SigningFailed); Unreachable.
    """
    git = as_person(clone.git)
    commit = commit_as(git, proposal.tree, proposal.base, proposal.change.message)
    push_branch(git, commit, proposal.branch)
    return commit


def refused(proposal: Proposal) -> GangOpsError | None:
    """Why a proposal is not worth a branch: errors that main does not have. None when it is."""
    count = len(proposal.plan.errors) if proposal.plan is not None else 0
    if not count:
        return None
    return _Invalid(
        f"nothing was pushed: the change has {counted(count, 'error')}",
        code="ProposalInvalid",
        remedy="Each is told above, with its place and what to do.",
    )


class _Invalid(GangOpsError):
    exit_status = InvalidInput.exit_status
