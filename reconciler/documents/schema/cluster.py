"""ClusterConfig: how this cluster decides, judges silence and keeps its record. One document, `cluster.yaml`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from reconciler.documents.schema.base import Count, Document, Duration, Line, Listed, Positive, Share, Size, Strict


class MassRemoval(Strict):
    """The guard against a commit that removes too much at once."""

    max_share: Share = 300_000
    """Removing more than this share of live jobs, or of nodes, waits for someone to acknowledge it."""
    acknowledge: Literal["trailer"] = "trailer"
    """How: an `Acknowledge-Removal:` trailer in a later commit."""


class ObservedRules(Strict):
    """When what was merely observed is worth a commit."""

    coalesce: Duration = 300 * 10**9
    """Checkpoint times and receipts alone cause no commit more often than this."""


class StateRepository(Strict):
    """The state branch in a repository of its own."""

    url: Line = ""
    """Its address; empty is the repository this file is in."""
    mirror_to: Line = ""
    """A second address that every state commit is copied to."""


class Repository(Strict):
    """Which branches, how often they are looked at, and what is refused."""

    desired_branch: Line = "main"
    """People's branch: what is desired."""
    state_branch: Line = "allocations"
    """The reconciler's branch: what was decided."""
    poll_interval: Duration = 2 * 10**9
    """How often the remote is asked for merges and requests; a webhook only shortens the wait."""
    publish_interval: Duration = 12 * 10**9
    """When many jobs start, one state commit in this time, after four at once. What stops or ends never waits. 0s: nothing does."""
    require_signed_desired: bool = False
    """True: a desired commit that no key of a User document signed is not decided on."""
    authority: Literal["enforced", "off"] = "enforced"
    """enforced: what is merged is acted on only if a member, admin or owner stands behind it, where queues name any."""
    victims_must_match_preview: bool = False
    """True: a job makes only those pay whom the preview of its merge named, as the merge commit's trailers tell."""
    rewrites_need_acknowledgement: bool = False
    """True: a force-pushed desired branch waits for someone to acknowledge it."""
    mass_removal: MassRemoval = MassRemoval.model_construct()
    """The guard against removing too much at once."""
    observed: ObservedRules = ObservedRules.model_construct()
    """When observations alone are committed."""
    state: StateRepository = StateRepository.model_construct()
    """Where the state branch lives."""


class FairShare(Strict):
    """How past use weighs against a queue."""

    half_life: Duration = 7 * 86400 * 10**9
    """Use this long ago counts half."""
    charge_ahead: Duration = 3600 * 10**9
    """Starts count at once as if they had already run this long, so that no queue takes a whole round."""


class Backfill(Strict):
    """Letting small work run in the gap before a large gang starts."""

    mode: Literal["none", "easy", "conservative"] = "conservative"
    """conservative: a later job starts only if no reservation moves; easy: only the first counts."""
    reservations: Count = 64
    """Reservations kept for each GPU type."""


class Defragment(Strict):
    """Gathering scattered idle GPUs into whole NVLink domains."""

    threshold: Share = 200_000
    """Fragmentation above which moves are considered."""
    action: Literal["never", "propose", "move"] = "propose"
    """propose: show the moves; move: make them."""
    max_moves_per_hour: Count = 4
    """Moves at most in any hour."""


VictimOrder: TypeAlias = Literal["lowestPriority", "leastLostWork", "fewestJobs"]


class SchedulingRules(Strict):
    """How jobs are ordered, and what may be taken from whom."""

    cycle_interval: Duration = 5 * 10**9
    """The longest wait between two rounds; reports and pushes wake it sooner."""
    order: Literal["fairShare", "priorityThenAge"] = "fairShare"
    """fairShare: guarantees first, then least use for its weight; priority orders inside a queue."""
    fair_share: FairShare = FairShare.model_construct()
    """How past use weighs."""
    preempt_same_queue: Literal["never", "lowerPriority"] = "lowerPriority"
    """Whether a job may displace one of strictly lower priority in its own queue."""
    preempt_other_queues: Literal["never", "reclaim", "fairShare"] = "reclaim"
    """reclaim: a queue takes its guarantee back from borrowers; fairShare: and evens out what is borrowed."""
    victim_order: Listed[VictimOrder] = (
        "lowestPriority",
        "leastLostWork",
        "fewestJobs",
    )
    """What is spared first, compared in this order."""
    backfill: Backfill = Backfill.model_construct()
    """Work in gaps."""
    hold_for_starved_after: Duration = 86400 * 10**9
    """A job that waited this long has nodes held for it."""
    hold_max_share: Share = 250_000
    """Holds take at most this share of a GPU type."""
    defragment: Defragment = Defragment.model_construct()
    """Gathering idle GPUs."""
    cooldown: Duration = 600 * 10**9
    """A gang that was interrupted is not a victim again before this."""
    jobs_may_pass: Literal["always", "otherGpuTypes", "never"] = "always"  # noqa: S105  # no password
    """Whether later jobs may start while an earlier one waits."""
    move_to_start: Literal["never", "preemptible"] = "preemptible"
    """Whether small jobs may be moved so that a gang fits."""
    max_moves_per_start: Count = 2
    """Jobs moved at most for one start."""
    max_per_day: Count = 4
    """Interruptions of one job at most in 24 hours."""
    min_runtime: Duration = 0
    """A job younger than this is no victim. Priority classes override it."""
    max_min_runtime: Duration = 3600 * 10**9
    """The cap on every minRuntime."""
    reclaim_straddlers: bool = True
    """An owner may take back one gang that is partly within the borrower's guarantee, when nothing else serves."""
    on_node_loss: Literal["replaceElseRestart"] = "replaceElseRestart"
    """Replace the lost members in place when that fits, else place the whole gang anew."""
    repair_wait: Duration = 600 * 10**9
    """How long a broken gang keeps its healthy GPUs while it waits for replacements."""
    unlimited_counts_as: Duration = 7 * 86400 * 10**9
    """The length taken for a job without time limit where a window has to be judged."""
    default_time_limit: Duration | None = None
    """Time limit of jobs that name none. Absent: no limit."""
    kill_after: Duration = 30 * 10**9
    """Time between SIGTERM and the kill."""
    avoid_for: Duration = 3600 * 10**9
    """How long a gang avoids a node where it failed to start."""


class MassLoss(Strict):
    """When many nodes fall silent at once it is our own link."""

    max_share: Share = 500_000
    """More than this share silent at once: nothing is failed over."""


class AgentRules(Strict):
    """How silence of a node is judged."""

    report_interval: Duration = 5 * 10**9
    """How often an agent reports at least."""
    unreachable_after: Duration = 30 * 10**9
    """Silent this long: no new work on the node."""
    lost_after: Duration = 300 * 10**9
    """Silent this long: its gangs are failed over, once they are fenced."""
    lease_margin: Duration = 2 * 10**9
    """Waited beyond the end of a lease before its GPUs count as released."""
    gang_start_timeout: Duration = 120 * 10**9
    """All nodes of a gang must be prepared, and started, within this."""
    mass_loss: MassLoss = MassLoss.model_construct()
    """When it is our own link."""


class SlurmRules(Strict):
    """How work is handed to Slurm, where Slurm is the engine."""

    pin_gpus: Literal["auto", "off"] = "auto"
    """auto: ask for exactly the decided GPUs on nodes whose gres.conf gives each slot a type of its own; off: Slurm
    picks the index, and what it picked is recorded. Whole nodes need neither."""
    partition: Annotated[Line, Field(pattern=r"^[A-Za-z0-9_.-]*$")] = ""
    """Where jobs are submitted; empty is Slurm's default partition."""
    account: Annotated[Line, Field(pattern=r"^[A-Za-z0-9_.-]*$")] = ""
    """The account that Slurm charges; empty is the submitter's default."""
    folder: Annotated[str, Field(pattern=r"^/[^\x00-\x1f]*$")] = "/var/spool/gangops"
    """Logs and receipts of jobs, on the file system that the nodes and the reconciler share."""
    poll_interval: Duration = 2 * 10**9
    """How often Slurm is looked at."""
    timeout: Duration = 10 * 10**9
    """How long one call of Slurm may take before Slurm counts as not heard."""


class Trust(Strict):
    """Files, relative to cluster-state/, that say whom to believe."""

    state_signers: Line = "trust/state.allowed_signers"
    """Keys that may sign state commits (ssh allowed_signers)."""
    node_ca: Annotated[Line, Field(alias="nodeCA")] = "trust/node-ca.pem"
    """The authority that signed the nodes' certificates."""


class Limits(Strict):
    """How much the desired tree may ask of its reader."""

    max_files: Positive = 20_000
    """Files at most."""
    max_file_bytes: Size = 1 << 20
    """Bytes of one file at most."""


class ClusterSpec(Strict):
    """Everything has a default: `spec: {}` is a working cluster."""

    repository: Repository = Repository.model_construct()
    """Branches and guards."""
    engine: Literal["agents", "slurm"] = "agents"
    """Who starts and stops work. A NodeSet may differ."""
    scheduling: SchedulingRules = SchedulingRules.model_construct()
    """How jobs are ordered and displaced."""
    agents: AgentRules = AgentRules.model_construct()
    """How silence is judged."""
    slurm: SlurmRules = SlurmRules.model_construct()
    """How work is handed to Slurm."""
    trust: Trust = Trust.model_construct()
    """Whom to believe."""
    limits: Limits = Limits.model_construct()
    """What is too much."""


class ClusterConfig(Document):
    """How this cluster decides, judges silence and keeps its record."""

    kind: Literal["ClusterConfig"]
    """The kind of document."""
    spec: ClusterSpec
    """The rules; each has a default."""
