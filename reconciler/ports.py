"""What the loop needs from the outside world: engines and a clock, as protocols.

Adapters live in `engines` and `store`; they implement these and never import each other. Every engine call
carries the commit and generation it stands on, and no engine call happens before that commit was pushed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reconciler.model.anomaly import NodeVitals
from reconciler.model.desired import Desired
from reconciler.model.observed import Observed
from reconciler.model.units import CommitId, Instant, JobKey, Nanoseconds, NodeName
from reconciler.wire import Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A pushed generation, ready to be applied: each node's orders file, and how to prove it.

    `proof_of` may read git; it raises StoreError when the commit is not at hand. `holders_of` says who may look into a
    job now, as `USER ALGORITHM KEY`; None when it has no file.
    """

    commit: CommitId
    generation: int
    epoch: int
    orders: Mapping[NodeName, bytes]
    proof_of: Callable[[NodeName], Proof]
    holders_of: Callable[[JobKey], Sequence[str] | None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAttempt:
    """What is seen of a running attempt and never committed: last heartbeat, checkpoint, states of ranks."""

    job: JobKey
    attempt: int
    checkpoint: Instant | None
    progress: Mapping[str, Any]
    ranks: Mapping[NodeName, tuple[Mapping[str, Any], ...]]


class Clock(Protocol):
    """The only source of time; tests use one that jumps."""

    def now(self) -> Instant:
        """Wall clock, ns UTC: goes into records."""

    def monotonic(self) -> Nanoseconds:
        """For measuring silence; counts through suspend, never goes back."""


class Engine(Protocol):
    """The hands of the reconciler: agents, or Slurm. One contract test for all."""

    def start(self, desired: Desired, observed: Observed) -> None:
        """Begin listening, starting from the committed observation: no node is judged lost before it was listened
        for `lost_after`. Raises EngineUnavailable."""

    def apply(self, committed: Committed) -> None:
        """Let nodes act on a pushed generation. Idempotent; an older generation than the applied one is ignored."""

    def follow(self, observed: Observed) -> None:
        """Another reconciler committed this observation: it stands until nodes speak to us again."""

    def leads(self) -> bool:
        """Whether enough of the cluster speaks to us to decide for it; else another reconciler does, or nobody can."""

    def observe(self, desired: Desired, now: Instant) -> Observed:
        """Everything seen so far as facts: unchanged facts keep their instants, so equal worlds give equal values.
        Raises EngineUnavailable (code OwnLinkSuspected) when too many nodes are silent at once."""

    def live(self) -> Mapping[JobKey, LiveAttempt]:
        """Progress of running attempts, as last reported."""

    def visits(self) -> Mapping[str, int]:
        """People's visits to jobs, counted since the start: by kind those let in, by code those refused."""

    def rejected(self) -> Mapping[str, int]:
        """Calls that got an error, counted by code since the start."""

    def vitals(self) -> Mapping[NodeName, NodeVitals]:
        """What nodes that are not silent last said of themselves for people: no input of a decision."""

    def wait(self, timeout: Nanoseconds) -> bool:
        """Block until something new was reported (True) or the time is over (False)."""

    def wake(self) -> None:
        """End a `wait` in another thread now."""

    def stop(self) -> None:
        """Stop listening. Running work is not touched."""
