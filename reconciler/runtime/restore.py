"""Go on from a backup of the record: one ordinary generation that decides nothing new and raises the epoch.

Agents remember the last order they accepted as (epoch, generation). A backup is older than that, so without a higher
epoch they would refuse everything that follows it; with one they follow it, and refuse the line that was given up,
should it ever come back. What the lost generations had started is stopped by the first decision that does not know it.
"""

from __future__ import annotations

from reconciler.documents.record import Summary
from reconciler.errors import InvalidInput, StoreError, UsageError
from reconciler.runtime.generation import Inputs, next_generation, read_generation, restored_to, trailers
from reconciler.runtime.reading import DesiredReader
from reconciler.runtime.service import mirror_of
from reconciler.runtime.settings import Settings
from reconciler.store.mirror import Mirror
from reconciler.store.publish import PublishedMark, publish
from reconciler.store.signatures import Signer
from reconciler.store.statecommit import Message, Writer, build_on


def restore(settings: Settings, epoch: int | None = None) -> tuple[Summary, str]:
    """Continue the state branch as it now is at the remote, in a higher epoch: by default the next one.

    The summary of the new generation and its commit. Raises UsageError (EpochNotHigher), StoreError (StateMissing,
    NotOurCluster, PushRejected), Fenced when somebody published meanwhile, Unreachable.
    """
    mirror, mark = mirror_of(settings), PublishedMark(folder=settings.folder)
    writer = Writer(identity=settings.identity, signer=Signer(key=settings.signing_key))
    return restore_in(mirror, mark, writer, settings.cluster_id, epoch)


def restore_in(
    mirror: Mirror, mark: PublishedMark, writer: Writer, cluster_id: str, epoch: int | None = None
) -> tuple[Summary, str]:
    """As `restore`, in a clone that is open."""
    # 1. What does the backup say? The mark of what we published before is not asked: that line is given up.
    tip = mirror.fetch().state
    if tip is None:
        raise StoreError(
            "there is no state branch to go on from",
            code="StateMissing",
            remedy="Push the backup first; or begin a new record with `gangops init --state`.",
        )
    current = read_generation(mirror.git, tip)
    summary = current.summary
    if summary.cluster_id != cluster_id:
        raise StoreError(
            f"the record is of cluster {summary.cluster_id}, not {cluster_id}", code="NotOurCluster",
            remedy="Correct clusterId in reconciler.toml, or point it at the right repository.",
        )  # fmt: skip
    raised = summary.epoch + 1 if epoch is None else epoch
    if not summary.epoch < raised < 2**31:
        raise UsageError(
            f"epoch {raised} does not come after epoch {summary.epoch} of the backup",
            code="EpochNotHigher",
            remedy="Leave --epoch out; or, after several restores, give one above all that agents have seen.",
        )
    # 2. The same instant, the same observation, the same desired tree: nothing new is decided.
    read = DesiredReader(mirror.git).recorded(tip, summary.desired_commit, current.frozen)
    if read.desired is None:
        raise InvalidInput(read.diagnostics)
    made = next_generation(
        Inputs(
            desired=read.desired, read=read.read, frozen=current.frozen, observed=current.observed, previous=current,
            now=summary.decided_at, trigger=restored_to(raised), verdicts=read.verdicts,
        )
    )  # fmt: skip
    # 3. Publish it, and from here on build on it.
    message = Message(
        subject=f"Go on from a backup of generation {summary.generation}, in epoch {raised}", body="",
        trailers=trailers(made.summary),
    )  # fmt: skip
    commit = build_on(
        mirror.git, made.changes, parent=tip, desired=summary.desired_commit, message=message,
        at=made.summary.decided_at, writer=writer,
    )  # fmt: skip
    publish(mirror, commit, expected=tip).raise_for_result()
    mark.write(commit)
    return made.summary, commit
