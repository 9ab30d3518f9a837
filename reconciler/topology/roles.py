"""Where a gang of unlike members fits: a leader of 1 GPU beside workers of 8, or 12 GPUs as 8 + 4.

Largest members first, each placed by `find`'s rule inside one shared domain. That greedy way can miss a packing, so
when it fails everywhere at a level, a search over the numbers of free GPUs answers, bounded by `VISITS`; when the
bound is hit, or when groups or NVLink islands put it out of the search's reach, the answer says `proved=False`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.topology.capacity import Capacity
from reconciler.topology.find import find, pack, tightest_node
from reconciler.topology.gpus import choose
from reconciler.topology.request import Placement, Request, request
from reconciler.topology.rooms import domains_holding, groups_fit, tightest_first
from reconciler.topology.shortage import NoFit, no_fit
from reconciler.topology.tree import ROOT, DomainIndex, Level, NodeIndex, Tree, bits_of

VISITS: Final = 10_000  # steps of the exact search, for one gang


def cut(
    tree: Tree,
    *,
    gpus: int,
    node_gpus: int,
    required: Level = ROOT,
    preferred: Level | None = None,
    groups: Sequence[tuple[int, Level]] = (),
) -> tuple[Request, ...]:
    """A gang of `gpus` as whole nodes of `node_gpus` and at most one part of a node, for `find_roles`.

    `groups` bind the whole nodes. Raises: ValueError, as `request` does.
    """
    nodes, rest = divmod(gpus, node_gpus)
    found = []
    if nodes:
        found.append(
            request(tree, workers=nodes, gpus_each=node_gpus, required=required, preferred=preferred, groups=groups)
        )
    if rest:
        found.append(request(tree, workers=1, gpus_each=rest, required=required, preferred=preferred))
    return tuple(found)


def find_roles(capacity: Capacity, roles: Sequence[Request]) -> tuple[Placement, ...] | NoFit:
    """A placement for each role, in the order given, all inside one domain of the level they share.

    The roles' levels must be the same; the narrowest `required` and the first role's preference count.
    """
    if len(roles) == 1:
        found = find(capacity, roles[0])
        return found if isinstance(found, NoFit) else (found,)
    capacity.visits = 0
    tree, required = capacity.tree, max(role.required for role in roles)
    start = max(roles[0].start, required)
    if start > tree.leaf_level:
        placed = _on_one_node(capacity, roles)
        if placed is not None:
            return placed
    proved = True
    for level in range(min(start, tree.leaf_level), required - 1, -1):
        placed = _greedy(capacity, roles, level)
        if placed is None:
            placed, complete = _exact(capacity, roles, level)
            proved = proved and complete
        if placed is not None:
            return placed
    return _why_not(capacity, roles, required, proved)


def _why_not(capacity: Capacity, roles: Sequence[Request], required: Level, proved: bool) -> NoFit:
    """Numbers of the whole gang, in the domain where most of its largest role fits."""
    largest = max(roles, key=lambda role: (role.unit, role.units))
    alone = no_fit(capacity, largest, proved=proved)
    return NoFit(
        level=max(alone.level, required),
        need=sum(role.gpus for role in roles),
        free=alone.free,
        best_domain=alone.best_domain,
        best_fit=min(alone.best_fit, largest.gpus),
        best_free=alone.best_free,
        groups_fit=alone.groups_fit,
        groups_need=alone.groups_need,
        proved=proved,
    )


def _largest_first(roles: Sequence[Request]) -> list[int]:
    return sorted(range(len(roles)), key=lambda index: (-roles[index].unit, index))


def _on_one_node(capacity: Capacity, roles: Sequence[Request]) -> tuple[Placement, ...] | None:
    total = sum(role.gpus for role in roles)
    share = max(role.share for role in roles)
    if total > capacity.largest_node or any(total % role.share or share % role.share for role in roles):
        return None
    node = tightest_node(capacity, total, share)
    if node is None:
        return None
    placed: dict[int, Placement] = {}
    with capacity.trial():
        for index in _largest_first(roles):
            placed[index] = Placement((), ((node, choose(capacity, node, roles[index].gpus, roles[index].share)),))
            placed[index].bind(capacity)
    return tuple(placed[index] for index in range(len(roles)))


def _greedy(capacity: Capacity, roles: Sequence[Request], level: Level) -> tuple[Placement, ...] | None:
    """The best domain of a level in which placing role after role succeeds."""
    best, fewest = None, 0
    for domain in tightest_first(capacity, level, _candidates(capacity, roles, level)):
        placed = _in_domain(capacity, roles, level, domain)
        if placed is None:
            continue
        used = _domains_used(capacity, roles[0].count_level, placed) if level < roles[0].count_level else 1
        if best is None or used < fewest:
            best, fewest = placed, used
        if used == 1:
            break
    return best


def _candidates(capacity: Capacity, roles: Sequence[Request], level: Level) -> int:
    """Bit set of the domains in which each role would fit alone."""
    domains = (1 << len(capacity.tree.domains[level])) - 1
    for role in roles:
        domains &= domains_holding(capacity, role, level)
    return domains


def _domains_used(capacity: Capacity, level: Level, placed: Sequence[Placement]) -> int:
    tree = capacity.tree
    leaves = {leaf for part in placed for leaf, _ in part.whole}
    leaves |= {tree.leaf_of[node] for part in placed for node, _ in part.parts}
    return len({tree.enclosing(tree.leaf_level, leaf, level) for leaf in leaves})


def _in_domain(
    capacity: Capacity, roles: Sequence[Request], level: Level, domain: DomainIndex
) -> tuple[Placement, ...] | None:
    """Role after role, largest members first, each into what the ones before left over."""
    first, end = capacity.tree.span(level, domain, capacity.tree.leaf_level)
    leaves = (1 << end) - (1 << first)
    placed: dict[int, Placement] = {}
    with capacity.trial():
        for index in _largest_first(roles):
            role = roles[index]
            capacity.visits += 1
            if role.units == 1:
                node = tightest_node(capacity, role.unit, role.share, leaves)
                if node is None:
                    return None
                placed[index] = Placement((), ((node, choose(capacity, node, role.unit, role.share)),))
            elif groups_fit(capacity, role, level, domain):
                placed[index] = pack(capacity, role, level, domain)
            else:
                return None
            placed[index].bind(capacity)
    return tuple(placed[index] for index in range(len(roles)))


# --- when greedy fails ---


def _exact(capacity: Capacity, roles: Sequence[Request], level: Level) -> tuple[tuple[Placement, ...] | None, bool]:
    """A packing in some domain of a level, or None; and whether that None is proved."""
    domains = bits_of(_candidates(capacity, roles, level))
    if any(role.groups or (role.share > 1 and capacity.has_islands) for role in roles):
        return None, not domains
    order = _largest_first(roles)
    items = [roles[index].unit for index in order for _ in range(roles[index].units)]
    left = VISITS
    for domain in domains:
        if capacity.counts.free[level][domain] < sum(items):
            continue
        nodes = _nodes_by_free(capacity, level, domain)
        chosen, steps = pack_exactly([len(rows) for rows in nodes], items, left)
        capacity.visits += steps
        left -= steps
        if chosen is not None:
            return _concrete(capacity, roles, order, nodes, chosen), True
        if left <= 0:
            return None, False
    return None, True


def _nodes_by_free(capacity: Capacity, level: Level, domain: DomainIndex) -> list[list[NodeIndex]]:
    """[free GPUs] = nodes of the domain with so many, highest number first."""
    first, end = capacity.tree.span(level, domain, capacity.tree.leaf_level)
    nodes: list[list[NodeIndex]] = [[] for _ in range(capacity.largest_node + 1)]
    starts = capacity.tree.first_child[-1]
    for count, row in (*enumerate(capacity.parts), *capacity.wholes.items()):
        for leaf in range(first, end):
            nodes[count] += [starts[leaf] + slot for slot in bits_of(row[leaf])]
    for rows in nodes:
        rows.sort(reverse=True)
    return nodes


def pack_exactly(counts: list[int], items: Sequence[int], limit: int) -> tuple[list[int] | None, int]:
    """Put items (GPUs, descending) on nodes: counts[k] = nodes with k free GPUs. Also the steps taken.

    Returns for each item the k of the node it goes on at its turn, or None: impossible, or `limit` steps used up.
    Equal items go on nodes of non-increasing k (any packing can be put in that order), states that failed are
    not tried again, and the tightest node is tried first.
    """
    counts, steps = list(counts), 0
    chosen: list[int] = []
    failed: set[tuple[int, int, tuple[int, ...]]] = set()
    k = items[0]
    while True:
        index = len(chosen)
        size = items[index]
        top = chosen[-1] if index and items[index - 1] == size else len(counts) - 1
        while k <= top and not counts[k]:
            k += 1
        if k > top or (index, top, tuple(counts)) in failed:
            failed.add((index, top, tuple(counts)))
            if not chosen:
                return None, steps
            last = chosen.pop()
            counts[last] += 1
            counts[last - items[index - 1]] -= 1
            k = last + 1
            continue
        steps += 1
        if steps > limit:
            return None, steps
        counts[k] -= 1
        counts[k - size] += 1
        chosen.append(k)
        if len(chosen) == len(items):
            return chosen, steps
        k = items[len(chosen)]


def _concrete(
    capacity: Capacity, roles: Sequence[Request], order: Sequence[int], nodes: list[list[NodeIndex]], chosen: list[int]
) -> tuple[Placement, ...]:
    """Real nodes and GPUs for the numbers found, lowest node first."""
    placed: dict[int, Placement] = {}
    turns = iter(chosen)
    with capacity.trial():
        for index in order:
            masks: dict[NodeIndex, int] = {}
            for _ in range(roles[index].units):
                k = next(turns)
                node = nodes[k].pop()
                mask = choose(capacity, node, roles[index].unit)
                capacity.take(node, mask)
                masks[node] = masks.get(node, 0) | mask
                rest = nodes[k - roles[index].unit]
                rest.append(node)
                rest.sort(reverse=True)
            placed[index] = Placement((), tuple(sorted(masks.items())))
    return tuple(placed[index] for index in range(len(roles)))
