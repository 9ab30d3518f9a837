"""When and where would a blocked gang start, at the earliest, if nobody new got in its way?

The answer is exact for gangs of equal units, groups inside groups included: a domain has room for n of them from the
n-th instant of its sorted slots on. Gangs of unlike members are tried on an engine as of an instant, by bisection.
The search takes the domain that is complete first and in it the nodes that come last, so that those that are free
now stay useful until then. A reservation is worked out anew in every decision and is no state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.units import GpuType, Instant, JobKey, Nanoseconds, QueueName
from reconciler.planner import placement
from reconciler.planner.draft import Draft
from reconciler.planner.placement import Ask, Spot
from reconciler.planner.profile import NEVER, NOW, Profile, QuotaReturns, SlotIndex
from reconciler.planner.windows import closed_between
from reconciler.topology.capacity import Capacity
from reconciler.topology.find import NoFit, Request
from reconciler.topology.gpus import tightest_gpus
from reconciler.topology.roles import find_roles
from reconciler.topology.tree import ROOT, GpuMask, Level, NodeIndex, NodeMask
from reconciler.topology.units import units_on

Masks = Mapping[NodeIndex, GpuMask]

TRIED: Final = 200_000  # nodes put into engines for gangs of unlike members, in one decision
ROUNDS: Final = 16  # times a search is repeated around maintenance windows

_Room = tuple[int, ...]
"""From when there is room for one group (or unit), then the node of each unit of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The GPUs a blocked gang will start on, and when. `ends` is NEVER for a gang without a time limit."""

    job: JobKey
    queue: QueueName
    gpu_type: GpuType
    masks: Masks
    layout: tuple[int, ...]
    starts: Instant
    ends: Instant

    @property
    def gpus(self) -> int:
        return sum(mask.bit_count() for mask in self.masks.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A place and the instant from which it is free; `missing` of its units are not free now."""

    at: Instant
    missing: int
    masks: Masks
    layout: tuple[int, ...]


class Planner:
    """Finds reservations and targets of holds on the profiles of one decision."""

    __slots__ = ("_draft", "_profiles", "_tried", "quota")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._profiles: dict[GpuType, Profile] = {}
        self._tried = 0
        self.quota = QuotaReturns(draft)

    def profile(self, gpu_type: GpuType) -> Profile:
        """Made when first asked for: by then the pass may have placed some, which it contains."""
        found = self._profiles.get(gpu_type)
        if found is None:
            found = self._profiles[gpu_type] = Profile(self._draft, gpu_type)
        return found

    def knows(self, gpu_type: GpuType) -> bool:
        """Its profile was made, so what happens from now on must be told to it."""
        return gpu_type in self._profiles

    def forget(self) -> None:
        """Too much has changed: the profiles are made anew when asked for."""
        self._profiles.clear()
        self.quota = QuotaReturns(self._draft)

    def earliest(
        self, record: JobRecord, job: Job, gpu_type: GpuType, spoken_for: Mapping[int, int] | None = None
    ) -> Reservation | None:
        """The earliest start by known ends, quota and nodes together; None when nobody can say.

        `spoken_for`: quota by queue that was reserved before it.
        """
        draft = self._draft
        least = self.quota.first_instant(job, gpu_type, draft.now, spoken_for or {})
        if least >= NEVER:
            return None
        found = self._clear_of_windows(record, job, gpu_type, least)
        if found is None or found.at >= NEVER:
            return None
        limit = draft.desired.limit_of(job)
        return Reservation(
            job=record.job, queue=job.queue, gpu_type=gpu_type, masks=found.masks, layout=found.layout, starts=found.at,
            ends=Instant(found.at + limit) if limit is not None else NEVER,
        )  # fmt: skip

    def target(self, record: JobRecord, job: Job, gpu_type: GpuType) -> Found | None:
        """Where a hold gathers GPUs: the domain with fewest missing, its free nodes first, then those that end first."""
        refused = self._refused(record, job) | self._draft.access.drained(job)
        return self._search(job, gpu_type, refused, Instant(self._draft.now), gather=True)

    def _refused(self, record: JobRecord, job: Job) -> NodeMask:
        draft = self._draft
        avoided = placement.avoided_nodes(record.avoid, draft.ground, draft.now)[0] if record.avoid else 0
        return draft.access.refused(job) | avoided

    def _clear_of_windows(self, record: JobRecord, job: Job, gpu_type: GpuType, least: Instant) -> Found | None:
        """The earliest place whose nodes no window closes while it would run."""
        draft, refused = self._draft, self._refused(record, job)
        limit = draft.desired.limit_of(job)
        length = limit if limit is not None else draft.desired.scheduling.unlimited_counts_as
        found = self._search(job, gpu_type, refused, least)
        if not draft.desired.windows:
            return found
        reopened = least
        shut = refused
        for _ in range(ROUNDS):
            closed, opens = self._conflicts(job, found, length) if found is not None else (0, reopened)
            if not closed:
                break
            shut, reopened = shut | closed, max(reopened, opens)
            found = self._search(job, gpu_type, shut, least)
        later = self._search(job, gpu_type, refused, reopened) if reopened > least else None
        later = later if later is not None and not self._conflicts(job, later, length)[0] else None
        if found is not None and self._conflicts(job, found, length)[0]:
            found = None
        return min((f for f in (found, later) if f is not None), key=lambda f: f.at, default=None)

    def _conflicts(self, job: Job, found: Found, length: Nanoseconds) -> tuple[NodeMask, Instant]:
        """Nodes of a place that a window closes meanwhile, and when the last of these windows is over."""
        begins, ends = found.at, Instant(found.at + length)
        closed, over = closed_between(self._draft.desired, self._draft.ground, job, begins, ends)
        mine = 0
        for node in found.masks:
            mine |= 1 << node
        return closed & mine, over

    def _search(
        self, job: Job, gpu_type: GpuType, refused: NodeMask, least: Instant, *, gather: bool = False
    ) -> Found | None:
        """The best place over all cuts of the gang; earliest first, or fewest missing first when it gathers."""
        best: Found | None = None
        for ask in self._draft.access.asks(job, gpu_type):
            if len(ask.roles) == 1:
                found = self._of_equals(job, gpu_type, ask, refused, least, gather=gather)
            else:
                found = self._of_unlikes(gpu_type, ask, refused, least)
            if found is not None and (best is None or _rank(found, gather) < _rank(best, gather)):
                best = found
        return best

    # --- equal units: closed form ---

    def _of_equals(
        self, job: Job, gpu_type: GpuType, ask: Ask, refused: NodeMask, least: Instant, *, gather: bool
    ) -> Found | None:
        role, tree, profile = ask.roles[0], self._draft.ground.tree, self.profile(gpu_type)
        index = profile.slots(role.unit, role.share)
        refused |= self._too_small(job, gpu_type, role)
        level = role.required if role.required <= tree.leaf_level else ROOT
        count = role.units // role.groups[0][1] if role.groups else role.units
        best: tuple[tuple[int, ...], int] | None = None
        for domain in range(len(tree.domains[level])):
            rooms = _rooms(index, role.groups, level, domain, refused)
            if len(rooms) < count:
                continue
            at = max(rooms[count - 1][0], least)
            if best is not None and not gather and at > best[0][0]:
                continue  # it comes free later, however tight it is
            ready = bisect_left(rooms, (at + 1,))
            missing = count - min(count, bisect_left(rooms, (NOW + 1,)))
            key = (missing, at, ready, domain) if gather else (at, ready, missing, domain)
            if best is None or key < best[0]:
                best = key, domain
                if at == least and ready == count:
                    break  # nothing is sooner and tighter
        if best is None:
            return None
        rooms = _rooms(index, role.groups, level, best[1], refused)
        at = Instant(max(rooms[count - 1][0], least))
        ready = bisect_left(rooms, (at + 1,))
        chosen = rooms[:count] if gather else rooms[ready - count : ready]
        missing = sum(1 for room in chosen if room[0] > NOW)
        nodes = [node for room in chosen for node in room[1:]]
        return Found(at=at, missing=missing, masks=self._masks(profile, role, nodes, at), layout=ask.layout)

    def _too_small(self, job: Job, gpu_type: GpuType, role: Request) -> NodeMask:
        """Nodes whose CPUs or memory would not do even if the unit were alone there."""
        if not job.cpus_per_gpu and not job.memory_per_gpu:
            return 0
        ground, mask = self._draft.ground, 0
        for node in ground.members[gpu_type]:
            cpus, memory = ground.resources_of(node)
            if role.unit * job.cpus_per_gpu > cpus or role.unit * job.memory_per_gpu > memory:
                mask |= 1 << node
        return mask

    def _masks(self, profile: Profile, role: Request, nodes: list[NodeIndex], at: Instant) -> Masks:
        """The very GPUs: on each node those that come last, in one piece where the units want it."""
        units: dict[NodeIndex, int] = {}
        for node in nodes:
            units[node] = units.get(node, 0) + 1
        tree, found = self._draft.ground.tree, {}
        for node in sorted(units):
            shape, mask = tree.shapes[tree.shape_of[node]], 0
            for since, gpus in sorted(profile.rows(node), reverse=True):
                if since > at:
                    continue
                mask |= gpus
                if units_on(shape, mask, role.unit, role.share) >= units[node]:
                    break
            found[node] = tightest_gpus(shape, mask, units[node] * role.unit, role.share)
        return found

    # --- unlike members: an engine as of an instant ---

    def _of_unlikes(self, gpu_type: GpuType, ask: Ask, refused: NodeMask, least: Instant) -> Found | None:
        tree = self._draft.ground.tree
        level = max(role.required for role in ask.roles)
        level = min(level, tree.leaf_level)
        best: Found | None = None
        for domain in range(len(tree.domains[level])):
            found = self._in_domain(gpu_type, ask, level, domain, refused, least, best.at if best is not None else None)
            if found is not None and (best is None or found.at < best.at):
                best = found
        return best

    def _in_domain(
        self, gpu_type: GpuType, ask: Ask, level: Level, domain: int, refused: NodeMask, least: Instant,
        before: Instant | None,
    ) -> Found | None:  # fmt: skip
        """The first instant at which the gang fits the domain, if it is earlier than `before`."""
        profile, tree = self.profile(gpu_type), self._draft.ground.tree
        first, end = tree.span(level, domain, tree.node_level)
        nodes = [node for node in range(first, end) if profile.rows(node) and not refused >> node & 1]
        instants = sorted({max(since, least) for node in nodes for since, _ in profile.rows(node)})
        instants = [at for at in instants if at < NEVER and (before is None or at < before)]
        low, high, best = 0, len(instants) - 1, None
        while low <= high:
            middle = (low + high) // 2
            found = self._fits_at(gpu_type, ask, nodes, instants[middle])
            if found is not None:
                best, high = found, middle - 1
            else:
                low = middle + 1
        return best

    def _fits_at(self, gpu_type: GpuType, ask: Ask, nodes: list[NodeIndex], at: Instant) -> Found | None:
        self._tried += len(nodes)
        if self._tried > TRIED:
            return None
        ground, profile = self._draft.ground, self.profile(gpu_type)
        engine = Capacity(ground.tree, nodes, block_level=ground.block_level)
        for node in nodes:
            busy = ground.whole[node] & ~profile.free_at(node, at)
            if busy:
                engine.take(node, busy)
        found = find_roles(engine, ask.roles)
        if isinstance(found, NoFit):
            return None
        masks: dict[NodeIndex, GpuMask] = {}
        for part in found:
            for node, mask in part.nodes(engine):
                masks[node] = masks.get(node, 0) | mask
        missing = sum(1 for node, mask in masks.items() if mask & ~profile.free_at(node, NOW))
        return Found(at=at, missing=missing, masks=masks, layout=ask.layout)


def _rank(found: Found, gather: bool) -> tuple[int, int]:
    return (found.missing, found.at) if gather else (found.at, 0)


def _rooms(
    index: SlotIndex, groups: tuple[tuple[Level, int], ...], level: Level, domain: int, refused: NodeMask
) -> Sequence[_Room]:
    """From when a domain has room for the first, the second ... outermost group (or unit, without groups)."""
    if not groups:
        slots = index.inside(level, domain)
        return [slot for slot in slots if not refused >> slot[1] & 1] if refused else slots
    (inside, size), rest = groups[0], groups[1:]
    ratio = size // rest[0][1] if rest else size
    found: list[_Room] = []
    for child in index.domains(level, domain, inside):
        rooms = _rooms(index, rest, inside, child, refused)
        for last in range(ratio - 1, len(rooms), ratio):
            chunk = rooms[last - ratio + 1 : last + 1]
            found.append((chunk[-1][0], *(node for room in chunk for node in room[1:])))
    found.sort()
    return found


def spot_of(reservation: Reservation | Found, gpu_type: GpuType) -> Spot:
    """The same GPUs as a spot."""
    return Spot(gpu_type=gpu_type, rows=tuple(sorted(reservation.masks.items())), layout=reservation.layout)
