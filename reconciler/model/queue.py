"""Queues, priority classes and the scheduling rules a cluster has chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reconciler.model.units import ClassName, Gpus, GpuType, Nanoseconds, QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One node of the quota tree. Numbers are GPUs by type; a type absent from `ceiling` has none.

    `lend` None lends all that is unused; a mapping lends at most that much of each type. `per_user_gpus` and
    `per_user_jobs` are what one person may hold in it and below it.
    """

    name: QueueName
    parent: QueueName | None
    guaranteed: Mapping[GpuType, Gpus]
    ceiling: Mapping[GpuType, Gpus]
    lend: Mapping[GpuType, Gpus] | None = None
    weight: int = 1
    guaranteed_shape: str = "gpu"
    run_as: str = "self"
    run_as_group: str = ""
    per_user_gpus: int | None = None
    per_user_jobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass:
    """What a priority is worth and how it is protected. `usage_permille` scales what it adds to fair share."""

    name: ClassName
    value: int
    preempts_lower: bool
    preemptible: bool
    default: bool = False
    min_runtime: Nanoseconds | None = None
    grace: Nanoseconds | None = None
    max_per_day: int | None = None
    usage_permille: int = 1000
    per_user_gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """The rules of `ClusterConfig.spec.scheduling` and `.agents` that decisions read. Defaults: DESIGN, rule book §13."""

    order: str = "fairShare"
    preempt_same_queue: str = "lowerPriority"
    preempt_other_queues: str = "reclaim"
    victim_order: tuple[str, ...] = ("lowestPriority", "leastLostWork", "fewestJobs")
    jobs_may_pass: str = "always"
    min_runtime: Nanoseconds = Nanoseconds(0)
    max_min_runtime: Nanoseconds = Nanoseconds(3600 * 10**9)
    cooldown: Nanoseconds = Nanoseconds(600 * 10**9)
    max_per_day: int = 4
    gang_start_timeout: Nanoseconds = Nanoseconds(120 * 10**9)
    kill_after: Nanoseconds = Nanoseconds(30 * 10**9)
    avoid_for: Nanoseconds = Nanoseconds(3600 * 10**9)
    default_time_limit: Nanoseconds | None = None
    half_life: Nanoseconds = Nanoseconds(7 * 86400 * 10**9)
    charge_ahead: Nanoseconds = Nanoseconds(3600 * 10**9)
    backfill: str = "conservative"
    reservations: int = 64
    hold_for_starved_after: Nanoseconds = Nanoseconds(86400 * 10**9)
    hold_max_share_ppm: int = 250_000
    move_to_start: str = "preemptible"
    max_moves_per_start: int = 2
    reclaim_straddlers: bool = True
    repair_wait: Nanoseconds = Nanoseconds(600 * 10**9)
    unlimited_counts_as: Nanoseconds = Nanoseconds(7 * 86400 * 10**9)
    defragment_action: str = "propose"
    defragment_threshold_ppm: int = 200_000
    defragment_moves_per_hour: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaTree:
    """All queues by name, in code point order."""

    queues: Mapping[QueueName, Queue] = field(default_factory=dict)

    def path(self, name: QueueName) -> tuple[QueueName, ...]:
        """From the queue up to its root; a name that is no queue stands alone."""
        found: list[QueueName] = []
        at: QueueName | None = name
        while at is not None and at in self.queues and at not in found:
            found.append(at)
            at = self.queues[at].parent
        return tuple(found) or (name,)
