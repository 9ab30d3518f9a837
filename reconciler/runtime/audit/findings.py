"""What an audit says: one thing that is wrong, one generation's verdict, and the whole answer. Values alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from reconciler.model.units import Instant

CHECKS = ("objects", "chain", "trailers", "signatures", "desired", "inputs", "replay", "judge", "receipts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, at the generation that first shows it. `position` counts from the chain's beginning."""

    position: int
    generation: int
    commit: str
    check: str
    code: str
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a node said of one attempt: the generation it obeyed, as it came into the record."""

    node: str
    job: str
    attempt: int
    generation: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One generation's verdict, and what the checks that need an order follow through."""

    position: int
    generation: int
    commit: str
    findings: tuple[Finding, ...]
    version: int
    package: str
    epoch: int
    signer: str = ""
    fingerprint: str = ""
    identical: bool = False
    receipts: tuple[Receipt, ...] = ()
    ordered: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is verified: from the root or from a generation on. `root` is the id the first commit must have."""

    since: int | None = None
    until: int | None = None
    since_at: Instant | None = None
    until_at: Instant | None = None
    root: str = ""
    contains: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Verdict:
    """The whole answer. `judged` in the chain's order; `notices` are no faults, but what the proof does not cover."""

    root: str
    root_pinned: bool
    from_root: bool
    judged: list[Judged] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    receipts: int = 0

    @property
    def first_bad(self) -> Finding | None:
        """The earliest finding, the most telling check first."""
        return min(self.findings, key=lambda one: (one.position, CHECKS.index(one.check)), default=None)
