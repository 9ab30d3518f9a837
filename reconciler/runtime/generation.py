"""One generation of the record as values, read from its commit, and the next one computed from its inputs.

`next_generation` is what the loop commits, what the preview shows and what the replay recomputes: one pure function,
so the three can never disagree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reconciler import __version__
from reconciler.documents.layout import path_of
from reconciler.documents.record import (
    FROZEN,
    NODES,
    OBSERVED_JOBS,
    OBSERVED_NODES,
    OBSERVED_PROVENANCE,
    REQUESTS,
    SUMMARY,
    Changes,
    Files,
    Summary,
    changed_jobs,
    differing,
    observed_files,
    read_allocation,
    read_observed,
    read_summary,
    summary_bytes,
)
from reconciler.errors import BrokenInvariant, StoreError
from reconciler.model.allocation import Allocation, Usage, empty_allocation
from reconciler.model.decision import DECISION_VERSION, Decision, Judge
from reconciler.model.desired import Desired
from reconciler.model.observed import GpuReport, NodeCondition, NodeObservation, Observed, Provenance
from reconciler.model.units import CommitId, Instant, JobKey, NodeName
from reconciler.planner.decide import decide
from reconciler.planner.requested import as_requested
from reconciler.planner.still import Decider
from reconciler.planner.verify import violations
from reconciler.policy.plan import judge_of
from reconciler.policy.previewed import differences, preview_judge
from reconciler.policy.verdicts import Verdicts
from reconciler.store.names import object_id
from reconciler.store.objects import blobs
from reconciler.store.runner import Git
from reconciler.store.trees import REGULAR, file_ids

if TYPE_CHECKING:
    from reconciler.documents.orders import Orders

PREVIEW = "preview"
"""The trigger of a decision that is only shown: what it would do once somebody has seen it."""
_RESTORED = "restored to epoch "
STATE_PATHS = ("allocation", "finished", "frozen", "observed", "requests")
_SEEN = (OBSERVED_NODES, OBSERVED_JOBS, OBSERVED_PROVENANCE, REQUESTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A committed generation. `nodes` holds the bytes of each node's orders file, `frozen` last valid documents."""

    commit: CommitId
    summary: Summary
    allocation: Allocation
    observed: Observed
    observed_files: Files
    orders: Orders
    node_files: Files
    frozen: Mapping[str, bytes]

    @property
    def node_orders(self) -> dict[NodeName, bytes]:
        """The bytes of each node's orders file, by node."""
        return {NodeName(path.rpartition("/")[2].removesuffix(".json")): at for path, at in self.node_files.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that a decision reads. `read` are the paths and blob ids of the desired tree; `frozen` the last valid
    bytes of each file that is invalid now. `verdicts` are the tree's policies; None: it has none."""

    desired: Desired
    read: tuple[tuple[str, str], ...]
    frozen: Mapping[str, bytes]
    observed: Observed
    previous: Generation
    now: Instant
    trigger: str
    package_version: str = __version__
    verdicts: Verdicts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextGeneration:
    """A decision, what it changes in the state tree, and everything the tree then holds.

    `observed_moved` when the observation differs from the last recorded one.
    """

    decision: Decision
    allocation: Allocation
    summary: Summary
    changes: Changes
    observed_moved: bool
    inputs: Inputs
    observed_files: Files
    orders: Orders
    node_files: Files

    def committed_as(self, commit: str) -> Generation:
        """This generation, once its commit is known; equal to reading that commit back."""
        return Generation(
            commit=CommitId(commit),
            summary=self.summary,
            allocation=self.allocation,
            observed=self.inputs.observed,
            observed_files=self.observed_files,
            orders=self.orders,
            node_files=self.node_files,
            frozen=self.inputs.frozen,
        )


def state_files(git: Git, commit: str, *, of_nodes: bool | None = None) -> dict[str, bytes]:
    """All that a state commit's tree holds beside `desired/`, by path. Raises StoreError (BadRecord).

    `of_nodes`: the orders of nodes alone, or all but those.
    """
    found = file_ids(git, commit, STATE_PATHS)
    if of_nodes is not None:
        found = tuple(row for row in found if row[0].startswith(NODES) == of_nodes)
    for path, mode, _ in found:
        if mode != REGULAR:
            raise StoreError(f"{path} in the state branch is no plain file", code="BadRecord")
    contents = blobs(git, (oid for _, _, oid in found))
    return {path: contents[oid] for path, _, oid in found}


def read_generation(git: Git, commit: str) -> Generation:
    """The generation a state commit holds. Raises StoreError (PathNotFound, BadRecord)."""
    return generation_of(commit, state_files(git, commit))


def generation_of(commit: str, files: Files) -> Generation:
    """The generation whose state tree holds these files. Raises StoreError (PathNotFound, BadRecord)."""
    seen = {p: c for p, c in files.items() if p.startswith(_SEEN)}
    nodes = {p: c for p, c in files.items() if p.startswith(NODES)}
    summary = read_summary(files)
    return Generation(
        commit=CommitId(commit),
        summary=summary,
        allocation=read_allocation(files, summary),
        observed=read_observed(files),
        observed_files=seen,
        orders=orders_in(nodes),
        node_files=nodes,
        frozen={p.removeprefix(FROZEN): c for p, c in files.items() if p.startswith(FROZEN)},
    )


def orders_in(node_files: Files) -> Orders:
    """What the orders files of nodes say, by node. Raises StoreError (BadRecord)."""
    from reconciler.documents.orders import read_orders  # here and below: a preview looks at no orders

    return {NodeName(o.node): o for o in (read_orders(content) for content in node_files.values())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision that its judge let pass. `inputs` with what policies hold back; `seen` are the observation's files."""

    inputs: Inputs
    decision: Decision
    seen: Files
    digest: str


def decided(inputs: Inputs, decider: Decider | None = None) -> Decided:
    """Let the policies speak, decide, and have it judged by code that did not make it.

    A `decider` that is kept from round to round gives the same decisions sooner; what it remembers was judged before.
    Raises BrokenInvariant when the independent judge refuses the decision: nothing of it may be committed.
    """
    previous = inputs.previous.allocation
    requests = inputs.observed.requests
    inputs = replace(inputs, desired=as_requested(inputs.desired, requests, _not_before(inputs)))
    judge: Judge | None = None
    if (verdicts := inputs.verdicts) is not None:
        held = verdicts.holds(standing(inputs))
        inputs = replace(inputs, desired=replace(inputs.desired, policy={**held, **inputs.desired.policy}))
        judge = judge_of(verdicts.over_plans, inputs.desired, previous)
    if inputs.desired.repository.victims_must_match_preview and inputs.trigger != PREVIEW:
        judge = preview_judge(previous, standing(inputs), judge)
    make = decide if decider is None else decider.decide
    decision = make(inputs.desired, inputs.observed, previous, inputs.now, judge)
    was_judged = decider is not None and decider.from_memory
    found = () if was_judged else violations(inputs.desired, inputs.observed, previous, decision.allocation)
    inventory = inputs.desired.inventory
    all_seen = observed_files(inputs.observed, inventory, inputs.previous.observed, inputs.previous.observed_files)
    digest = inputs_digest(inputs, all_seen)
    if found:
        told = "; ".join(str(violation) for violation in found)
        raise BrokenInvariant(f"a decision was refused by its judge: {told} (inputs {digest})")
    return Decided(inputs=inputs, decision=decision, seen=all_seen, digest=digest)


def next_generation(inputs: Inputs, decider: Decider | None = None) -> NextGeneration:
    """Decide, judge, and say what the next state commit changes. `decider`: see `decided`.

    Raises BrokenInvariant when the independent judge refuses the decision: nothing of it may be committed.
    """
    # 1. Decide.
    found = decided(inputs, decider)
    inputs, decision, all_seen, digest = found.inputs, found.decision, found.seen, found.digest
    previous, inventory = inputs.previous.allocation, inputs.desired.inventory
    # 2. Derive each node's orders, and everything that differs in the tree. A generation that changes nothing is
    #    committed only to record what was observed.
    allocation = decision.allocation
    if not decision.changed:
        allocation = replace(
            allocation,
            generation=previous.generation + 1,
            decided_at=_not_before(inputs),
            desired_commit=inputs.desired.commit,
        )
    # A restore is the one generation that raises the epoch, and says so in its trigger, so that it can be replayed.
    if (raised := raised_epoch(inputs.trigger)) is not None:
        allocation = replace(allocation, epoch=raised)
    from reconciler.documents.orders import orders_files, orders_of

    orders = orders_of(allocation, inputs.desired, inputs.observed, inputs.previous.orders)
    node_files = orders_files(orders, inventory, inputs.previous.orders, inputs.previous.node_files)
    seen = differing(inputs.previous.observed_files, all_seen)
    changes = changed_jobs(previous, allocation)
    changes.update(differing(inputs.previous.node_files, node_files))
    changes.update(seen)
    changes.update({f"{FROZEN}{p}": c for p, c in differing(inputs.previous.frozen, inputs.frozen).items()})
    # 3. Bind it all with two digests: of what was read, and of what came out.
    summary = Summary(
        generation=allocation.generation,
        epoch=allocation.epoch,
        cluster_id=allocation.cluster_id,
        decision_id=_decision_id(digest, changes),
        decided_at=allocation.decided_at,
        decision_version=DECISION_VERSION,
        package_version=inputs.package_version,
        desired_commit=allocation.desired_commit,
        inputs_digest=digest,
        previous_commit=inputs.previous.commit,
        trigger=inputs.trigger,
        metrics=allocation.metrics,
        usage=allocation.usage,
        usage_as_of=allocation.usage_as_of,
        moved=allocation.moved,
        run_lengths=allocation.run_lengths,
        previews=_previews(inputs),
        differs=differences(allocation, previous, standing(inputs)),
    )
    changes[SUMMARY] = summary_bytes(summary)
    return NextGeneration(
        decision=decision,
        allocation=allocation,
        summary=summary,
        changes=changes,
        observed_moved=bool(seen),
        inputs=inputs,
        observed_files=all_seen,
        orders=orders,
        node_files=node_files,
    )


def restored_to(epoch: int) -> str:
    """The trigger of the generation that goes on from a backup in this epoch."""
    return f"{_RESTORED}{epoch}"


def raised_epoch(trigger: str) -> int | None:
    """The epoch that a generation with this trigger begins; None for any other trigger."""
    number = trigger.removeprefix(_RESTORED)
    return int(number) if number != trigger and number.isdecimal() else None


def first_generation(
    cluster_id: str, epoch: int, desired: str, now: Instant, usage: tuple[Usage, ...] = ()
) -> tuple[Summary, dict[str, bytes]]:
    """Generation 0 of a new record: nothing held, and nothing known but what queues used before it began. The files of
    its tree."""
    allocation = empty_allocation(cluster_id, epoch, now, CommitId(desired))
    summary = Summary(
        generation=0,
        epoch=epoch,
        cluster_id=cluster_id,
        decision_id="0" * 32,
        decided_at=now,
        decision_version=DECISION_VERSION,
        package_version=__version__,
        desired_commit=CommitId(desired),
        inputs_digest="0" * 64,
        previous_commit="",
        trigger="init",
        metrics=allocation.metrics,
        usage=usage,
        usage_as_of=now if usage else Instant(0),
    )
    return summary, {SUMMARY: summary_bytes(summary)}


def assumed(desired: Desired) -> Generation:
    """What stands in for a record where there is none: nothing runs, and every declared node is as declared, and well."""
    allocation = empty_allocation(desired.cluster, 0, Instant(0), desired.commit)
    summary, _ = first_generation(desired.cluster, 0, desired.commit, Instant(0))
    nodes = {
        node.name: NodeObservation(
            node=node.name,
            boot_id="",
            address="",
            condition=NodeCondition.READY,
            condition_since=Instant(0),
            gpu_type=node.shape.gpu_type,
            gpus=tuple(GpuReport(index=index, uuid="") for index in range(len(node.shape.gpus))),
        )
        for node in desired.inventory.nodes
    }
    return Generation(
        commit=CommitId(""), summary=summary, allocation=allocation, observed=Observed(nodes=nodes), observed_files={},
        orders={}, node_files={}, frozen={},
    )  # fmt: skip


def inputs_digest(inputs: Inputs, seen: Files) -> str:
    """sha256 over the blob ids of the paths read, the observation, the previous commit, the time and the version.

    `seen` are the observation's files.
    """
    lines = [f"desired {path} {oid}" for path, oid in sorted(inputs.read)]
    lines += [f"frozen {path} {blob_id(content)}" for path, content in sorted(inputs.frozen.items())]
    lines += [f"observed {path} {blob_id(content)}" for path, content in sorted(seen.items())]
    lines += [f"previous {inputs.previous.commit}", f"now {_not_before(inputs)}", f"version {DECISION_VERSION}"]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def standing(inputs: Inputs) -> dict[JobKey, Provenance]:
    """The provenance that speaks of the files as they are: what is only proposed does not ride on older approvals."""
    files, frozen = dict(inputs.read), inputs.desired.frozen
    return {
        key: brought
        for key, brought in inputs.observed.provenance.items()
        if key in frozen or brought.file == files.get(path_of(key))
    }


def _previews(inputs: Inputs) -> tuple[str, ...]:
    """Digests of the previews of what was brought since the last generation, each once, sorted."""
    known = inputs.previous.observed.provenance
    fresh = (one.preview for key, one in inputs.observed.provenance.items() if one is not known.get(key))
    before = {one.preview.digest for one in known.values() if one.preview is not None}
    return tuple(sorted({shown.digest for shown in fresh if shown is not None} - before))


def _not_before(inputs: Inputs) -> Instant:
    """Recorded time never goes back, whatever the clock does."""
    return max(inputs.now, inputs.previous.allocation.decided_at)


def _decision_id(digest: str, changes: Changes) -> str:
    out = hashlib.sha256(digest.encode())
    for path, content in sorted(changes.items()):
        out.update(f"\n{path} {'-' if content is None else blob_id(content)}".encode())
    return out.hexdigest()[:32]


def blob_id(content: bytes) -> str:
    """The id git gives to a file of this content."""
    return object_id("blob", content)


def trailers(summary: Summary) -> dict[str, str]:
    """What the commit message repeats of the summary, each exactly once."""
    return {
        "Generation": str(summary.generation),
        "Epoch": str(summary.epoch),
        "Cluster-Id": summary.cluster_id,
        "Decision-Id": summary.decision_id,
        "Desired-Commit": summary.desired_commit,
        "Inputs-Digest": summary.inputs_digest,
    }
