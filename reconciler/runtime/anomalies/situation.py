"""All that finders look at: the committed record and observation, and what is live beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reconciler.model.allocation import Allocation
from reconciler.model.anomaly import Disk, Hop, Lifetime, NodeVitals, Writing
from reconciler.model.desired import Desired
from reconciler.model.observed import Observed
from reconciler.model.units import Instant, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a reconciler says of itself. `asked` False: nobody asked; then the rest means nothing.

    `pushes` counts by result since it started; `away`, when it did not answer, says why.
    """

    asked: bool = False
    away: str = ""
    ready: bool = True
    reason: str = ""
    message: str = ""
    remedy: str = ""
    pushes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A cluster at one moment. What could not be looked at is empty, and says nothing.

    `vitals` are by node; `writings` the last commits of the record, newest first; `lifetimes` are of the control
    plane's certificates, `signers` of the keys decisions are signed with; `disks` are the reconciler's own; `hops`
    are neighbours in NCCL's rings.
    """

    desired: Desired
    allocation: Allocation
    observed: Observed
    now: Instant
    vitals: Mapping[NodeName, NodeVitals] = field(default_factory=dict)
    health: Health = Health()
    writings: tuple[Writing, ...] = ()
    lifetimes: tuple[Lifetime, ...] = ()
    signers: tuple[Lifetime, ...] = ()
    disks: tuple[Disk, ...] = ()
    hops: tuple[Hop, ...] = ()
