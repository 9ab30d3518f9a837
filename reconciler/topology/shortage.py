"""Why a gang does not fit, in numbers that a person can check: what it needs, and the best that there is.

Numbers only: which reason they amount to is the planner's business.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.topology.capacity import Capacity
from reconciler.topology.request import Request
from reconciler.topology.rooms import group_at, groups_that_fit, units_in
from reconciler.topology.tree import ROOT, DomainIndex, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFit:
    """Why a gang does not fit, in numbers. All in GPUs but the groups; the domain is the best of its level."""

    level: Level  # the widest level allowed
    need: int
    free: int  # free GPUs of the whole pool
    best_domain: DomainIndex
    best_fit: int  # GPUs of this gang that would fit there, in whole workers
    best_free: int  # free GPUs there
    groups_fit: int  # outermost groups that fit there; without groups: workers
    groups_need: int
    proved: bool = True  # False: the search hit its bound, a placement may exist


def no_fit(capacity: Capacity, asked: Request, *, proved: bool = True) -> NoFit:
    """The numbers behind "does not fit", at the widest level allowed; for a single worker that is the node."""
    if asked.units == 1:
        return _no_node(capacity, asked, proved)
    level = asked.required
    domain, units = capacity.largest_domain(level, asked.unit, asked.share)
    _, size = group_at(asked, level)
    fits = units
    if asked.groups:
        domains = range(len(capacity.tree.domains[level]))
        fits, negative = max((groups_that_fit(capacity, asked, level, d), -d) for d in domains)
        domain = -negative
        units = units_in(capacity, asked, level, domain)
    return NoFit(
        level=asked.required,
        need=asked.gpus,
        free=capacity.counts.free[ROOT][0],
        best_domain=domain,
        best_fit=units * asked.unit,
        best_free=capacity.counts.free[level][domain],
        groups_fit=fits,
        groups_need=asked.units // size,
        proved=proved,
    )


def _no_node(capacity: Capacity, asked: Request, proved: bool) -> NoFit:
    """The node with most free GPUs, lowest number first, is still too small (or its NVLink islands are)."""
    tree, best, most = capacity.tree, 0, 0
    used = [(count, capacity.has_part[count], row) for count, row in enumerate(capacity.parts)]
    empty = [(count, capacity.has_whole[count], row) for count, row in capacity.wholes.items()]
    for count, leaves, row in (*used, *empty):
        if leaves and count >= most:
            leaf = (leaves & -leaves).bit_length() - 1
            node = tree.first_child[-1][leaf] + (row[leaf] & -row[leaf]).bit_length() - 1
            best, most = (min(best, node) if count == most else node), count
    return NoFit(
        level=max(asked.required, tree.node_level),
        need=asked.gpus,
        free=capacity.counts.free[ROOT][0],
        best_domain=best,
        best_fit=0,
        best_free=most,
        groups_fit=0,
        groups_need=1,
        proved=proved,
    )
