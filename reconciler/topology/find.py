"""Where one gang fits best right now: the placement rule, searched on the bit sets of `capacity`.

The rule: the narrowest level from preferred to required at which some domain holds the gang; among those domains the
fewest domains of the preferred level, then fewest crossings by its groups, then tightest (wholly free nodes, then
free GPUs), then the lowest number. A worker's GPUs are on one node; a group of consecutive ranks stays inside one
domain of its level. For workers that are all alike this is a closed form, so the answer is exact, groups included.
Gangs of unlike members are `roles`. Who may have what, and retrying with less, is the planner's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from reconciler.topology.capacity import Capacity
from reconciler.topology.counts import KEY
from reconciler.topology.gpus import choose
from reconciler.topology.request import Placement, Request, request
from reconciler.topology.rooms import (
    buckets_of,
    domains_holding,
    group_at,
    groups_fit,
    groups_that_fit,
    tightest,
    tightest_first,
)
from reconciler.topology.shortage import NoFit, no_fit
from reconciler.topology.tree import ROOT, DomainIndex, GpuMask, Level, NodeIndex, bits_of, lowest_bits
from reconciler.topology.units import units_on

__all__ = ["NoFit", "Placement", "Request", "find", "pack", "request", "tightest_node"]  # all that a search needs

Plan: TypeAlias = list[tuple[DomainIndex, int]]  # (domain, units in it), in order


def find(capacity: Capacity, asked: Request) -> Placement | NoFit:
    """The best placement of a gang by the rule above, or the numbers of why there is none. Binds nothing.

    `capacity.visits` is the number of domains and buckets looked at.
    """
    capacity.visits = 0
    tree = capacity.tree
    gpus = asked.units * asked.unit
    if gpus <= capacity.largest_node and (asked.units == 1 or asked.start > tree.leaf_level):
        placed = _on_one_node(capacity, asked, gpus)
        if placed is not None:
            return placed
    if asked.units > 1:
        for level in range(min(asked.start, tree.leaf_level), asked.required - 1, -1):
            best = _best(capacity, asked, level)
            if best is not None:
                return pack(capacity, asked, level, *best)
    return no_fit(capacity, asked)


# --- 1. everything on one node ---


def _on_one_node(capacity: Capacity, asked: Request, gpus: int) -> Placement | None:
    """Inside one NVLink island if that is preferred and possible, else on any node that fits tightest."""
    if asked.start > capacity.tree.node_level and capacity.has_islands:
        node = tightest_node(capacity, gpus, gpus)
        if node is not None:
            return Placement((), ((node, choose(capacity, node, gpus, gpus)),))
    node = tightest_node(capacity, gpus, asked.share)
    return None if node is None else Placement((), ((node, choose(capacity, node, gpus, asked.share)),))


def tightest_node(capacity: Capacity, gpus: int, share: int = 1, within: int = -1) -> NodeIndex | None:
    """The node to put `gpus` GPUs on: partly used before wholly free, fewest free GPUs, tightest leaf, lowest number.

    So an empty node is opened only when no used one fits, and then in the leaf with fewest empty ones.
    within: bit set of the leaves to look at.
    """
    has_part = capacity.has_part
    for count in range(gpus, len(has_part)):
        leaves = has_part[count] & within
        if leaves:
            node = _node_in(capacity, leaves, capacity.parts[count], gpus, share)
            if node is not None:
                return node
    for size in capacity.node_sizes:
        if size >= gpus:
            leaves = capacity.has_whole[size] & within
            if leaves:
                node = _node_in(capacity, leaves, capacity.wholes[size], gpus, share)
                if node is not None:
                    return node
    return None


def _node_in(capacity: Capacity, leaves: int, slots_of: list[int], gpus: int, share: int) -> NodeIndex | None:
    """The first node of the tightest of `leaves`; with islands, the first whose islands hold the pieces."""
    first = capacity.tree.first_child[-1]
    if share == 1 or not capacity.has_islands:
        leaf = tightest(capacity, capacity.tree.leaf_level, leaves)
        slots = slots_of[leaf]
        return first[leaf] + (slots & -slots).bit_length() - 1
    tree = capacity.tree
    for leaf in tightest_first(capacity, tree.leaf_level, leaves):
        for slot in bits_of(slots_of[leaf]):
            capacity.visits += 1
            node = first[leaf] + slot
            if units_on(tree.shapes[tree.shape_of[node]], capacity.free_mask(node), gpus, share):
                return node
    return None


# --- 2. the domain ---


def _best(capacity: Capacity, asked: Request, level: Level) -> tuple[DomainIndex, Plan | None] | None:
    """The domain of one level that the rule prefers, and the leaves in it if known; None when none holds the gang."""
    units = asked.units
    spreads = level < asked.count_level or asked.groups or asked.soft_group
    if not spreads and level > ROOT and capacity.counts_whole(asked.unit, asked.share):
        capacity.visits += 1  # the hot path: three times count-trailing-zeros
        fitting = capacity.counts.filled[level] >> units
        if not fitting:
            return None
        count = units + (fitting & -fitting).bit_length() - 1
        rests = capacity.counts.rests[level][count]
        domains = capacity.counts.tight[level][count << KEY | (rests & -rests).bit_length() - 1]
        return (domains & -domains).bit_length() - 1, None
    holding = domains_holding(capacity, asked, level)
    if not holding:
        return None
    return _best_of(capacity, asked, level, holding) if spreads else (tightest(capacity, level, holding), None)


def _best_of(capacity: Capacity, asked: Request, level: Level, holding: int) -> tuple[DomainIndex, Plan | None] | None:
    """Among domains with enough units: groups must fit, then fewest domains of the preferred level, then crossings.

    Stops at the first that no other can beat; else all candidates of the level are compared.
    """
    leaf_level = capacity.tree.leaf_level
    best, best_plan, best_cost = -1, Plan(), (0, 0)
    inner = max(asked.count_level, level)
    target = inner if inner > level else leaf_level
    filled, _ = buckets_of(capacity, asked, inner)
    most = filled.bit_length() - 1 if inner > ROOT else asked.units
    bound = (-(-asked.units // most), 0) if inner > level else (1, 0)
    for domain in tightest_first(capacity, level, holding):
        if asked.groups and not groups_fit(capacity, asked, level, domain):
            continue
        plan = _spread(capacity, asked, level, domain, asked.units, target)
        if asked.soft_group and _crossings(plan, asked.soft_group):
            plan = _aligned(capacity, asked, level, domain, target, plan)
        cost = (len(plan) if inner > level else 1, _crossings(plan, asked.soft_group))
        if best < 0 or cost < best_cost:
            best, best_plan, best_cost = domain, plan, cost
            if cost <= bound:
                break
    if best < 0:
        return None
    rows = (_spread(capacity, asked, target, inside, units, leaf_level) for inside, units in best_plan)
    return best, [row for plan in rows for row in plan]


def _aligned(capacity: Capacity, asked: Request, level: Level, domain: DomainIndex, target: Level, plan: Plan) -> Plan:
    """A plan that cuts no soft group in two, if there is one over as few domains; else the plan as it is."""
    if asked.groups or asked.units % asked.soft_group:
        return plan
    strict = replace(asked, groups=((target, asked.soft_group),))
    if not groups_fit(capacity, strict, level, domain):
        return plan
    whole_groups = _spread(capacity, strict, level, domain, asked.units, target)
    return whole_groups if len(whole_groups) <= len(plan) else plan


def _crossings(plan: Plan, group: int) -> int:
    """Groups of consecutive units that a plan cuts in two (or more: counted at each cut)."""
    cuts, seen = 0, 0
    if group:
        for _, units in plan[:-1]:
            seen += units
            cuts += seen % group != 0
    return cuts


# --- 3. inside the domain ---


def pack(capacity: Capacity, asked: Request, level: Level, domain: DomainIndex, plan: Plan | None = None) -> Placement:
    """The gang inside a domain that holds it: few inner domains, the last one the tightest that fits.

    plan: units for each leaf, if they have been worked out already.
    """
    whole: list[tuple[DomainIndex, int]] = []
    parts: list[tuple[NodeIndex, GpuMask]] = []
    if plan is None:
        plan = _spread(capacity, asked, level, domain, asked.units, capacity.tree.leaf_level)
    if capacity.counts_whole(asked.unit, asked.share):
        slots_of = capacity.wholes[asked.unit]
        for leaf, units in plan:
            whole.append((leaf, lowest_bits(slots_of[leaf], units)))
    else:
        for leaf, units in plan:
            parts += _in_leaf(capacity, asked, leaf, units)
    return Placement(tuple(sorted(whole)), tuple(sorted(parts)))


def _spread(capacity: Capacity, asked: Request, level: Level, domain: DomainIndex, units: int, target: Level) -> Plan:
    """(domain of level `target`, units) for every one used, in order."""
    if level >= target:
        return [(domain, units)]
    inner = _inner_level(capacity, asked, level)
    return [
        row
        for inside, amount in _plan(capacity, asked, level, domain, units)
        for row in _spread(capacity, asked, inner, inside, amount, target)
    ]


def _inner_level(capacity: Capacity, asked: Request, level: Level) -> Level:
    """The level over which to divide next: the preferred one or the leaves, but never past a group's level."""
    inner = asked.count_level if asked.count_level > level else capacity.tree.leaf_level
    return next((at for at, _ in asked.groups if level < at < inner), inner)


def _plan(capacity: Capacity, asked: Request, level: Level, domain: DomainIndex, units: int) -> Plan:
    """Units for each domain of the next level that matters, in order: as few domains as possible.

    When levels lie between, going down one by one keeps to fewer of those; it is preferred when it costs nothing.
    """
    inner = _inner_level(capacity, asked, level)
    if inner <= level:
        return [(domain, units)]
    direct = _divide(capacity, asked, level, domain, units, inner)
    if inner == level + 1 or len(direct) == 1:
        return direct
    stepwise: Plan = []
    for child, amount in _divide(capacity, asked, level, domain, units, level + 1):
        stepwise += _plan(capacity, asked, level + 1, child, amount)
    return stepwise if len(stepwise) <= len(direct) else direct


def _divide(capacity: Capacity, asked: Request, level: Level, domain: DomainIndex, units: int, inner: Level) -> Plan:
    """Cut units over the domains of `inner` in one domain, in whole groups: largest first, the last best-fit."""
    first, end = capacity.tree.span(level, domain, inner)
    at, size = group_at(asked, inner)
    if size > 1 and (at > inner or asked.groups[-1][0] > inner):
        filled, buckets = 0, dict[int, int]()
        for inside in range(first, end):
            room = size * groups_that_fit(capacity, asked, inner, inside)
            buckets[room] = buckets.get(room, 0) | 1 << inside
            filled |= 1 << room
        return largest_first(capacity, filled, buckets, (1 << end) - (1 << first), size, units // size)
    filled, known = buckets_of(capacity, asked, inner)
    return largest_first(capacity, filled, known, (1 << end) - (1 << first), size, units // size)


def largest_first(
    capacity: Capacity, filled: int, buckets: Mapping[int, int] | list[int], within: int, size: int, groups: int
) -> list[tuple[int, int]]:
    """(domain, units) for `groups` groups of `size` units: the fewest domains that can hold them.

    Those with most room first while they are used up; the rest goes to the one with least room that holds it.
    """
    plan, left, rooms = [], groups, filled
    while left and rooms:
        room = rooms.bit_length() - 1
        rooms ^= 1 << room
        here, fits = buckets[room] & within, room // size
        capacity.visits += 1
        while here and 0 < fits <= left:
            low = here & -here
            here ^= low
            within ^= low
            plan.append((low.bit_length() - 1, fits * size))
            left -= fits
        if here and fits > left:
            break  # one of these holds all the rest
    rooms = filled >> left * size << left * size if left else 0
    while rooms:
        low = rooms & -rooms
        rooms ^= low
        capacity.visits += 1
        here = buckets[low.bit_length() - 1] & within
        if here:
            plan.append(((here & -here).bit_length() - 1, left * size))
            break
    plan.sort()
    return plan


def _in_leaf(capacity: Capacity, asked: Request, leaf: DomainIndex, units: int) -> list[tuple[NodeIndex, GpuMask]]:
    """Workers smaller than a node, inside one leaf: partly used nodes first, then as few empty ones as possible."""
    first = capacity.tree.first_child[-1][leaf]
    used: dict[int, int] = {}
    empty: dict[int, int] = {}
    for count, row in enumerate(capacity.parts):
        if row[leaf]:
            _sort_by_room(capacity, asked, count, first, row[leaf], used)
    if asked.start > capacity.tree.leaf_level:  # as few nodes as possible was asked for
        empty = used
    for count in capacity.node_sizes:
        if capacity.wholes[count][leaf]:
            _sort_by_room(capacity, asked, count, first, capacity.wholes[count][leaf], empty)
    parts, left = [], units
    for rooms in (used, empty):
        held = min(left, sum(fits * slots.bit_count() for fits, slots in rooms.items()))
        left -= held
        for slot, amount in largest_first(capacity, sum(1 << fits for fits in rooms), rooms, -1, 1, held):
            parts.append((first + slot, choose(capacity, first + slot, amount * asked.unit, asked.share)))
    return parts


def _sort_by_room(
    capacity: Capacity, asked: Request, count: int, first: NodeIndex, slots: int, rooms: dict[int, int]
) -> None:
    """Add the nodes at `slots`, each with `count` free GPUs, to `rooms`: units -> slots."""
    if asked.share == 1 or not capacity.has_islands:
        rooms[count // asked.unit] = rooms.get(count // asked.unit, 0) | slots
        return
    tree = capacity.tree
    for slot in bits_of(slots):
        shape = tree.shapes[tree.shape_of[first + slot]]
        fits = units_on(shape, capacity.free_mask(first + slot), asked.unit, asked.share)
        rooms[fits] = rooms.get(fits, 0) | 1 << slot
