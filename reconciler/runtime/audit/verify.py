"""Is the record true? Every generation against its parent, its signers, its inputs, and the decision made again.

Checks of one generation need nothing but it and the one before, so parts of the chain are judged side by side; what
agents said they did is then followed through in the chain's order. Nothing is taken from the index or from a
commit-graph: each object is hashed, each parent read from the signed bytes. That a branch was not *rewound* cannot be
seen in it alone: the commit this clone verified last, or one the auditor wrote down, must still be in it.
"""

from __future__ import annotations

from collections.abc import Callable

from reconciler.model.counting import counted
from reconciler.model.decision import DECISION_VERSION
from reconciler.runtime.audit.ends import chosen, disguises, lost, root_faults
from reconciler.runtime.audit.findings import CHECKS, Bounds, Verdict
from reconciler.runtime.audit.parts import judged_in_order
from reconciler.runtime.audit.seams import seam_faults
from reconciler.runtime.audit.signers import revoked_since
from reconciler.runtime.audit.whole import object_faults, receipt_faults
from reconciler.store.branches import went_on_from
from reconciler.store.runner import Git
from reconciler.store.walk import record_chain

Progress = Callable[[int, int], None]
_WHOLE = Bounds()


def verify(
    git: Git,
    tip: str,
    *,
    signers: bytes = b"",
    bounds: Bounds = _WHOLE,
    branch: str = "",
    processes: int = 1,
    progress: Progress | None = None,
) -> Verdict:
    """Verify a state branch up to a commit. Never raises for a bad record: what is wrong is in the verdict.

    `signers` is an allowed_signers file from outside the record, `branch` the name of the branch it ends in. Raises NotFound (UnknownGeneration) for bounds that
    name nothing; StoreError when git itself fails.
    """
    chain = record_chain(git, tip)
    part, first = chosen(git, chain, bounds)
    verdict = Verdict(root=chain[0].id, root_pinned=bool(bounds.root or signers), from_root=first == 0)
    # 1. Does this clone show what is in it, and is what was seen before still there?
    verdict.findings += [*disguises(git, chain), *lost(git, chain, bounds), *root_faults(git, chain, bounds)]
    verdict.findings += seam_faults(git, chain, branch)
    # 2. Each generation against the one before.
    told = progress or (lambda _done, _of: None)
    for judged in judged_in_order(git, part, first, signers, processes):
        verdict.judged.append(judged)
        verdict.findings += judged.findings
        told(len(verdict.judged), len(part))
    # 3. What agents did, in the order of generations.
    before = went_on_from(git, part[0].id) if not part[0].parent else ""
    cut = any(one.code == "ChainCut" for one in verdict.findings)
    verdict.findings += receipt_faults(verdict, complete=first == 0 and not before and not cut)
    # 4. Every object under all of it, trees included.
    verdict.findings += object_faults(git, part, first)
    verdict.findings.sort(key=lambda one: (one.position, CHECKS.index(one.check)))
    _notice(verdict, bounds, signers)
    verdict.notices += revoked_since(git, verdict, tip)
    if git.run("rev-parse", "--is-shallow-repository").stdout.strip() == b"true":
        verdict.notices.append("who brought what was not looked at: this clone is shallow (`git fetch --unshallow`)")
    if before:
        verdict.notices.append(
            f"the record goes on from {before[:12]} in the branch before, which this clone does not have: fetch it"
        )
    return verdict


def _notice(verdict: Verdict, bounds: Bounds, signers: bytes) -> None:
    for package, numbers in _other_versions(verdict).items():
        verdict.notices.append(
            f"{counted(len(numbers), 'decision')} of another decision version, judged by the invariants, not made again: "
            f"pipx run --spec gangops=={package} gangops replay {numbers[0]}..{numbers[-1]}"
        )
    if verdict.from_root and not (bounds.root or signers):
        verdict.notices.append(
            f"the first commit {verdict.root[:12]} was believed: pin it with --root, or name its signers with --signers"
        )
    if not verdict.from_root and verdict.judged:
        verdict.notices.append(f"what came before generation {verdict.judged[0].generation} was not looked at")


def _other_versions(verdict: Verdict) -> dict[str, list[int]]:
    """Generations that were decided by another decision version, by the release that made them."""
    found: dict[str, list[int]] = {}
    for one in verdict.judged:
        if one.version not in {0, DECISION_VERSION}:
            found.setdefault(one.package, []).append(one.generation)
    return found
