"""What a commit may not do by accident: remove a large part of the running jobs or nodes, or forget what was decided on.

A commit that removes more than `massRemoval.maxShare` of what is live is not acted on until its own message
carries `Acknowledge-Removal: N`, where N is the number it removes. Where `rewritesNeedAcknowledgement` is set, a
desired branch whose history lost the last commit decided on waits for `Acknowledge-Rewrite: COMMIT`.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.errors import StoreError
from reconciler.model.allocation import Allocation
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import Cause
from reconciler.model.units import CommitId, document_of
from reconciler.store.history import commit_meta, is_ancestor
from reconciler.store.runner import Git

ACKNOWLEDGE = "Acknowledge-Removal"
ACKNOWLEDGE_REWRITE = "Acknowledge-Rewrite"


def is_rewrite(git: Git, desired: CommitId, decided: CommitId) -> bool:
    """Whether the commit decided on last is not in the history of the one desired now."""
    return desired != decided and not is_ancestor(git, decided, desired)


def check_rewrite(git: Git, desired: CommitId, decided: CommitId) -> None:
    """For a rewritten branch where that needs a word. Raises StoreError (RewriteRefused) naming both commits."""
    if _said(git, desired, ACKNOWLEDGE_REWRITE) == decided:
        return
    raise StoreError(
        f"the desired branch was rewritten: {desired[:12]} does not have {decided[:12]}, decided on last, in its history",
        code="RewriteRefused",
        remedy=f"If that is meant, add a commit on top whose message ends with `{ACKNOWLEDGE_REWRITE}: {decided}`.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """More than may go at once: how much, of how much, and the limit in millionths."""

    gone: int
    of: int
    what: str
    limit_ppm: int


def check_removal(git: Git, desired: Desired, previous: Allocation) -> None:
    """Raises StoreError (MassRemovalRefused) naming count, limit and commit."""
    for found in removals(git, desired, previous):
        raise StoreError(
            f"commit {desired.commit[:12]} removes {found.gone} of {found.of} {found.what}; "
            f"at most {found.limit_ppm // 10_000} % may go at once",
            code="MassRemovalRefused",
            remedy=f"If that is meant, add a commit on top whose message ends with `{ACKNOWLEDGE}: {found.gone}`.",
        )


def removals(git: Git, desired: Desired, previous: Allocation) -> tuple[Removal, ...]:
    """Everything of which more than the limit goes, and that the commit's message does not acknowledge."""
    live = [r for r in previous.jobs.values() if r.state.holds_gpus and r.cause is not Cause.CANCELLED]
    documents = {document_of(r.job) for r in live}  # an array is one job, however many of its tasks run
    removed = {key for key in documents if desired.job_of(key) is None and key not in desired.invalid}
    known = {node.name for node in desired.inventory.nodes}
    # A node whose gangs are all leaving already is not removed a second time.
    used = {node for r in live if r.placement and r.cause is not Cause.NODE_REMOVED for node in r.placement.masks}
    limit = desired.repository.mass_removal_ppm
    found = (
        Removal(gone=len(removed), of=len(documents), what="running jobs", limit_ppm=limit),
        Removal(gone=len(used - known), of=len(used), what="nodes in use", limit_ppm=limit),
    )
    return tuple(one for one in found if _is_refused(git, desired, one))


def _is_refused(git: Git, desired: Desired, one: Removal) -> bool:
    if one.gone <= 1 or one.gone * 1_000_000 <= one.limit_ppm * one.of:
        return False
    return _said(git, desired.commit, ACKNOWLEDGE) != str(one.gone)


def _said(git: Git, commit: CommitId, trailer: str) -> str:
    return dict(commit_meta(git, commit).trailers).get(trailer, "").strip()
