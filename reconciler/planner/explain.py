"""Why does a job wait, in numbers? Every blocker in the order of the rule book's table, the binding one first.

Reads, and changes nothing: what would help is tried inside trials. Jobs that differ in nothing that matters share one
answer. The numbers are as of now; a record keeps the older ones while its code is the same (`decide`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import accumulate, islice
from typing import Final

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Observed
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import ClassName, GpuType, Instant, JobKey, NodeName, QueueName
from reconciler.planner import elastic, placement
from reconciler.planner.arrays import Arrays
from reconciler.planner.backfill import Bookings, Openness
from reconciler.planner.draft import Draft
from reconciler.planner.ground import ground_of
from reconciler.planner.masks import gang_masks
from reconciler.planner.mixed import could_fit
from reconciler.planner.order import SortKey
from reconciler.planner.placement import Shape, Spot, Unfit
from reconciler.planner.promise import waits_for_preemptor
from reconciler.planner.rights import Claim, Rights, borrows_again
from reconciler.topology.drift import numbers_of

NEVER: Final = frozenset({ReasonCode.NEVER_FITS, ReasonCode.NEVER_FITS_QUOTA, ReasonCode.GPU_TYPE_MISSING})
"""Reasons that no waiting can cure: the job is held, not pending."""


UNPROVED: Final = ("proved", "false")
"""Among the numbers of a reason: perhaps there are gangs that could make room; nobody has looked, or not to the end."""

Likes = tuple[Shape, QueueName, ClassName, int, bool]


def likes(draft: Draft, job: Job) -> Likes:
    """Jobs with equal keys start, wait and are explained alike, unless they avoid nodes."""
    return placement.shape_of(job), job.queue, job.priority_class, draft.access.drained(job), draft.is_fixed(job)


def settle_waiting(draft: Draft, record: JobRecord, why: Reason) -> None:
    """Record why the job waits; what can never start is held."""
    state = JobState.HELD if why.code in NEVER else JobState.PENDING
    if record.state is state and record.reason.code is why.code and record.reason.numbers:
        return  # numbers are as of `since`; a job that is new here has none yet
    draft.put(replace(record, state=state, reason=why))


class Never:
    """What not even an empty, healthy cluster could start. Told at once, and apart from waiting."""

    __slots__ = ("_draft", "_fits", "_known")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._fits: dict[tuple[Shape, GpuType], Spot | Unfit | None] = {}  # on the empty cluster, whosever job it is
        self._known: dict[tuple[Shape, QueueName, bool], Reason | None] = {}

    def why(self, job: Job) -> Reason | None:
        """NeverFitsQuota, GpuTypeMissing or NeverFits; None when it could start some day."""
        key = (placement.shape_of(job), job.queue, self._draft.is_fixed(job))
        if key not in self._known:
            self._known[key] = self._judge(job)
        return self._known[key]

    def _judge(self, job: Job) -> Reason | None:
        draft = self._draft
        types = draft.access.types_for(job)
        if not types:
            return reason(ReasonCode.GPU_TYPE_MISSING, gpuTypes=", ".join(job.gpu_types) or "any")
        fixed = draft.is_fixed(job)
        most = {kind: draft.quotas.most(job.queue, kind, fixed=fixed) for kind in types}
        limits = {kind: limit for kind, limit in most.items() if limit is not None and limit < job.gpus}
        if len(limits) == len(types) and not job.mixed_types:
            return reason(ReasonCode.NEVER_FITS_QUOTA, need=job.gpus, queue=job.queue, most=max(limits.values()))
        best: Unfit | None = None
        for kind in (kind for kind in types if kind not in limits):
            key = (placement.shape_of(job), kind)
            if key not in self._fits:
                self._fits[key] = placement.fits_empty(draft.ground, kind, job, draft.access.refused(job))
            found = self._fits[key]
            if isinstance(found, Spot):
                return None
            if found is not None and (best is None or found.numbers.best_free > best.numbers.best_free):
                best = found
        return None if could_fit(draft, job) else self._never_fits(job, best)

    def _never_fits(self, job: Job, best: Unfit | None) -> Reason:
        if best is None:  # a level the Fabric does not have, or sizes that divide nothing
            level = job.required[0].level if job.required else "cluster"
            return reason(ReasonCode.NEVER_FITS, need=job.gpus, largest=0, level=level)
        level = self._draft.ground.level_name(best.numbers.level)
        largest = best.numbers.best_fit if best.numbers.best_free >= job.gpus else best.numbers.best_free
        short = {"short": best.short} if best.short else {}  # CPU or memory: a node with the GPUs has too little of it
        return reason(ReasonCode.NEVER_FITS, need=job.gpus, largest=largest, level=level, **short)


class _Passing:
    """GPUs on their way to new owners, by the owners' places in line."""

    __slots__ = ("_behind", "_places")

    def __init__(self, rows: Iterable[tuple[SortKey, int]]) -> None:
        ordered = sorted(rows)
        self._places = [place for place, _ in ordered]
        self._behind = [*accumulate((gpus for _, gpus in reversed(ordered)), initial=0)][::-1]

    def behind(self, place: SortKey) -> int:
        """GPUs that go to those who stand behind a place."""
        return self._behind[bisect_right(self._places, place)]


class Explainer:
    """The reasons of a whole sweep's waiting jobs."""

    __slots__ = (
        "_arrays", "_bookings", "_draft", "_idle", "_idle_gpus", "_known", "_passing", "_promised", "_promised_on", "_shut", "_rights",
        "_lifted", "_unowned", "_unproved", "_with_promised",
    )  # fmt: skip

    def __init__(
        self,
        draft: Draft,
        rights: Rights,
        bookings: Bookings | None = None,
        unproved: AbstractSet[Likes] = frozenset(),
    ) -> None:
        """`unproved`: for these a search for victims was not made, or not to its end."""
        self._draft, self._rights, self._unproved = draft, rights, unproved
        self._arrays = Arrays(draft.records.values())
        self._bookings = bookings if bookings is not None else Bookings(draft)
        self._known: dict[tuple[Likes, Openness], Reason] = {}
        self._lifted: Openness = ()  # bookings that are lifted just now
        self._with_promised: dict[tuple[object, ...], Spot | Unfit | None] = {}
        self._promised = [r for r in draft.records.values() if r.promise is not None]
        self._passing, self._unowned = self._in_flight()
        kinds, masks = draft.ground.types, [gang_masks(record) for record in self._promised]
        self._idle = {kind: tuple(draft.supply.left_idle(kind, masks)) for kind in kinds}
        self._idle_gpus = {kind: sum(mask.bit_count() for _, mask in self._idle[kind]) for kind in kinds}
        self._promised_on: dict[NodeName, list[int]] = {}  # who has GPUs there, by number
        for number, nodes in enumerate(masks):
            for node in nodes:
                self._promised_on.setdefault(node, []).append(number)
        self._shut = {kind: draft.supply.shut(kind) for kind in kinds}

    def why(self, record: JobRecord, job: Job, alike: Likes) -> Reason:
        """The binding blocker; jobs that are `alike` share it, unless they avoid nodes."""
        open_to = self._bookings.openness(record, job)
        if record.avoid:
            return self._first(record, job, open_to, alike)
        found = self._known.get((alike, open_to))
        if found is None:
            found = self._known[alike, open_to] = self._first(record, job, open_to, alike)
        reserved = self._bookings.reservations.get(record.job)
        if reserved is not None:
            return replace(found, numbers=(*found.numbers, ("earliestStart", int(reserved.starts))))
        return found

    def _first(self, record: JobRecord, job: Job, open_to: Openness, alike: Likes) -> Reason:
        self._lifted = self._bookings.idle(open_to)
        with self._bookings.lifted(self._lifted):
            found = next(self._all_blockers(record, job, self._draft.access.types_for(job), open_to))
        return replace(found, numbers=(*found.numbers, UNPROVED)) if alike in self._unproved else found

    def _in_flight(self) -> tuple[dict[GpuType, _Passing], dict[GpuType, int]]:
        """GPUs on their way to someone, by where their new owners stand in line; and those on their way to nobody."""
        draft = self._draft
        found: dict[GpuType, list[tuple[SortKey, int]]] = {kind: [] for kind in draft.ground.types}
        for record in draft.records.values():
            job = draft.job(record) if record.state is JobState.STARTING else None
            if job is not None:
                place = draft.line(record, job)
                for kind, gpus, _ in draft.ground.parts(gang_masks(record)):
                    found[kind].append((place, gpus))
        for record in self._promised:
            job, at = draft.job(record), draft.ground.type_at(gang_masks(record))
            if job is not None and at is not None:
                gpus = draft.supply.overlap(gang_masks(record), draft.supply.held)
                found[at].append((draft.line(record, job), gpus))
        leaving = {
            kind: sum(draft.supply.unclaimed(gang_masks(r)) for r in draft.releasing(kind))
            for kind in draft.ground.types
        }
        return {kind: _Passing(rows) for kind, rows in found.items()}, leaving

    def _passed_on(self, record: JobRecord, job: Job, kind: GpuType) -> int:
        """GPUs that went past it, for it could not use them, to jobs behind it in line; or are being released."""
        return self._passing[kind].behind(self._draft.line(record, job)) + self._unowned[kind]

    def blockers(self, record: JobRecord, job: Job) -> Iterator[Reason]:
        """Everything that stands in the way, in the order of the table. What alone would start it comes before
        the shortage; the shortage itself always closes the list."""
        types = self._draft.access.types_for(job)
        open_to = self._bookings.openness(record, job)
        self._lifted = self._bookings.idle(open_to)
        with self._bookings.lifted(self._lifted):
            found = list(self._all_blockers(record, job, types, open_to))
        yield from found

    def _all_blockers(
        self, record: JobRecord, job: Job, types: tuple[GpuType, ...], open_to: Openness
    ) -> Iterator[Reason]:
        if (full := self._arrays.full(job)) is not None:
            yield full
        yield from self._quota(job, types)
        yield from self._promises(record, job, types)
        booked = self._booked(record, job, types, open_to)
        if booked is not None and booked.code is ReasonCode.HELD_FOR:
            yield booked
        yield from self._nodes(record, job, types)
        yield from self._links(job, types)
        yield from self._windows(job, types)
        if booked is not None and booked.code is ReasonCode.WOULD_DELAY:
            yield booked
        yield self._shortage(record, job, types)

    def _booked(self, record: JobRecord, job: Job, types: tuple[GpuType, ...], open_to: Openness) -> Reason | None:
        """HeldFor or WouldDelay, when it would start if nobody before it had booked GPUs or quota for later."""
        draft, bookings = self._draft, self._bookings
        free = sum(draft.supply.engines[kind].free_gpus() for kind in types)
        if not bookings.made or bookings.idle_gpus(types) + free < job.gpus:
            return None
        lifted = bookings.idle(tuple(number for number in bookings.on(types) if number not in open_to))
        with bookings.lifted(lifted):
            spots = (draft.look(record, job, kind) for kind in types if draft.breach(job, kind) is None)
            spot = next((spot for spot in spots if isinstance(spot, Spot)), None)
        if spot is None:
            return None
        met = bookings.met(dict(spot.rows), open_to)
        quota = bookings.delayed(job, spot.gpu_type, open_to)
        booking, gpus = met if met is not None else (quota, job.gpus)
        if booking is None:
            return None
        if booking.is_hold:
            return reason(ReasonCode.HELD_FOR, gpus=gpus, owner=booking.owner, since=booking.since)
        limit = draft.desired.limit_of(job)
        to: int | str = draft.now + limit if limit is not None else "never"
        return reason(ReasonCode.WOULD_DELAY, owner=booking.owner, **{"from": int(booking.until), "to": to})

    def _quota(self, job: Job, types: tuple[GpuType, ...]) -> Iterator[Reason]:
        """A limit of the queue, when it stops every type. Use that is only promised is another's hold, not a matter of
        quota; nor is it one when all the GPUs there are are in use."""
        quotas = self._draft.quotas
        breaches = [(kind, self._draft.breach(job, kind)) for kind in types]
        if any(breach is None or quotas.is_matter_of_gpus(breach, kind, job.gpus) for kind, breach in breaches):
            return
        for kind, breach in breaches[:1]:
            if breach is None:
                continue
            promised = quotas.promised.get((breach.queue, kind), 0)
            owner = next((r for r in self._promised if breach.queue in quotas.path(r.queue)), None)
            if breach.would_be - promised <= breach.ceiling and owner is not None:
                yield reason(ReasonCode.HELD_FOR, gpus=promised, owner=owner.job)
            yield breach.reason(kind, job.gpus)

    def _promises(self, record: JobRecord, job: Job, types: tuple[GpuType, ...]) -> Iterator[Reason]:
        """Free GPUs that are promised to someone else would be enough."""
        draft = self._draft
        for kind in types:
            if not self._idle[kind] or self._idle_gpus[kind] + draft.supply.engines[kind].free_gpus() < job.gpus:
                continue
            spot = self._on_promised(record, job, kind)
            if isinstance(spot, Spot):
                wanted = {draft.ground.nodes[index].name: mask for index, mask in spot.rows}
                near = sorted({number for node in wanted for number in self._promised_on.get(node, ())})
                for owner in (self._promised[number] for number in near):
                    shared = sum((wanted.get(n, 0) & mask).bit_count() for n, mask in gang_masks(owner).items())
                    if shared:
                        yield reason(ReasonCode.HELD_FOR, gpus=shared, owner=owner.job)
                        return

    def _on_promised(self, record: JobRecord, job: Job, kind: GpuType) -> Spot | Unfit | None:
        """Where it would go if idle GPUs were promised to nobody; asked once for all who want the same."""
        draft = self._draft
        key = (placement.shape_of(job), kind, draft.access.drained(job), self._lifted)
        if key not in self._with_promised or record.avoid:
            with draft.supply.promises_open(kind, self._idle[kind]):
                spot = draft.look(record, job, kind)
            if record.avoid:
                return spot
            self._with_promised[key] = spot
        return self._with_promised[key]

    def _nodes(self, record: JobRecord, job: Job, types: tuple[GpuType, ...]) -> Iterator[Reason]:
        """Nodes that take no work now would be enough."""
        draft = self._draft
        for kind in types:
            if not draft.supply.reduced:
                return
            if self._shut[kind] + draft.supply.engines[kind].free_gpus() < job.gpus:
                continue
            with draft.supply.everything_open(kind):
                spot = draft.look(record, job, kind)
            if isinstance(spot, Spot):
                yield _node_state(draft, kind)
                return

    def _links(self, job: Job, types: tuple[GpuType, ...]) -> Iterator[Reason]:
        """The same GPUs with every NVLink up would be enough."""
        draft = self._draft
        for kind in types:
            if not draft.ground.torn:
                return
            refused = draft.access.refused(job) | draft.access.drained(job)
            spot = placement.fits_with_links(draft.supply, draft.with_links(), kind, job, refused)
            if isinstance(spot, Spot):
                torn = {node: draft.ground.torn.get(node, 0) for node, _ in spot.rows}
                named = [
                    f"{draft.ground.nodes[node].name} (GPU {numbers_of(mask)})" for node, mask in torn.items() if mask
                ]
                gpus = sum(mask.bit_count() for mask in torn.values())
                if named:  # otherwise something else is in the way, a hold for one
                    yield reason(ReasonCode.NVLINK_DOWN, gpus=gpus, nodes=", ".join(named[:_NAMED]))
                return

    def _windows(self, job: Job, types: tuple[GpuType, ...]) -> Iterator[Reason]:
        """Nodes that a maintenance window drains before the job would end would be enough."""
        draft, drained = self._draft, self._draft.access.drained(job)
        if not drained:
            return
        for kind in types:
            refused = draft.access.refused(job) | draft.access.unlinked(job)
            spot = placement.fit(draft.supply, kind, job, draft.access.asks(job, kind), refused)
            if isinstance(spot, Spot):
                gpus = sum(mask.bit_count() for index, mask in spot.rows if drained >> index & 1)
                names = {draft.ground.nodes[index].name for index, _ in spot.rows if drained >> index & 1}
                window = next((w.name for w in draft.desired.windows if w.node in names), "")
                yield reason(ReasonCode.MAINTENANCE, excluded=gpus, window=window)
                return

    def _shortage(self, record: JobRecord, job: Job, types: tuple[GpuType, ...]) -> Reason:
        """Too few GPUs, protected ones, or enough in the wrong shape.

        What went past it to jobs behind it counts as free: it could have had that, had the shape been right.
        """
        draft, need = self._draft, job.gpus
        free = {kind: draft.supply.engines[kind].free_gpus() for kind in types}
        claims = [self._rights.claim(job, kind) for kind in types]
        evictable, protected = sum(claim.most() for claim in claims), sum(claim.protected() for claim in claims)
        total = sum(free.values())
        could = {kind: free[kind] + self._passed_on(record, job, kind) for kind in types}
        could_have, of_one = sum(could.values()), max(could.values())
        if could_have >= need > of_one + evictable and not job.mixed_types:
            return reason(ReasonCode.GPU_TYPE_SPLIT, need=need, free=of_one)
        if could_have + evictable >= need:
            return self._wrong_shape(record, job, max(types, key=lambda kind: (free[kind], kind)))
        if (unfair := _unfair(draft, job, claims, need - could_have - evictable)) is not None:
            return unfair
        if could_have + evictable + protected >= need:
            return _protected(draft, claims, evictable, need - could_have - evictable)
        releasing = sum(r.gpus_held for kind in types for r in draft.releasing(kind))
        return reason(ReasonCode.CAPACITY, need=need, free=total, evictable=evictable, releasing=releasing)

    def _wrong_shape(self, record: JobRecord, job: Job, kind: GpuType) -> Reason:
        """Enough GPUs, but not where the job needs them."""
        draft = self._draft
        found = draft.look(record, job, kind)
        if not isinstance(found, Unfit):
            return reason(ReasonCode.CAPACITY, need=job.gpus, free=0, evictable=0, releasing=0)
        if found.short:
            return reason(ReasonCode.NODE_RESOURCES, short=found.short)
        if not found.proved:
            return reason(ReasonCode.SEARCH_LIMIT, steps=draft.supply.engines[kind].visits)
        numbers, tree = found.numbers, draft.ground.tree
        groups = found.ask.roles[0].groups
        if groups and numbers.groups_fit < numbers.groups_need and numbers.best_free >= job.gpus:
            level, units = groups[0]
            return reason(
                ReasonCode.GROUPS_DO_NOT_FIT, fitting=numbers.groups_fit, needed=numbers.groups_need,
                size=units * found.ask.roles[0].unit, level=draft.ground.level_name(level),
            )  # fmt: skip
        inside = numbers.level >= tree.node_level
        best = tree.nodes[numbers.best_domain] if inside else tree.domain_name(numbers.level, numbers.best_domain)
        return reason(
            ReasonCode.NO_DOMAIN_FITS, need=job.gpus, level=draft.ground.level_name(numbers.level), best=best,
            free=numbers.best_free,
        )  # fmt: skip


def blockers_of(
    desired: Desired, observed: Observed, allocated: Allocation, key: JobKey, now: Instant
) -> tuple[Reason, ...]:
    """Everything that stands in a job's way as of now, the binding blocker first; its own reason when it waits for
    nothing. For `explain`: computed live, never committed. Raises KeyError, when the allocation has no such job."""
    record = allocated.jobs[key]
    draft = Draft(desired, observed, ground_of(desired.inventory, observed), dict(allocated.jobs), now)
    job = draft.job(record)
    if job is None or record.state is not JobState.PENDING:
        return (record.reason,)
    least = elastic.smallest(job)
    after = (
        waits_for_preemptor(draft, record)
        or borrows_again(draft, record, least, partly=True)
        or draft.shares.why(job, least.gpus)
    )
    found = tuple(Explainer(draft, Rights(draft)).blockers(record, job))
    return (after, *found) if after is not None else found


_NAMED: Final = 5  # protected gangs named in a reason


def _protected(draft: Draft, claims: list[Claim], evictable: int, missing: int) -> Reason:
    """Protected, or until when, if enough of the protections end by the clock within `maxMinRuntime`."""
    protected = sum(claim.protected() for claim in claims)
    named = islice((one for claim in claims for one in claim.shielded), _NAMED)
    by = ", ".join(f"{one.record.job} ({one.by})" for one in named)
    latest = draft.now + draft.desired.scheduling.max_min_runtime
    for until, gpus in sorted((one.until, one.gpus) for claim in claims for one in claim.kept if one.until is not None):
        missing -= gpus
        if missing <= 0 and until <= latest:
            return reason(ReasonCode.PROTECTED_UNTIL, protected=protected, until=until, by=by)
    return reason(ReasonCode.PROTECTED, protected=protected, evictable=evictable, by=by)


def _unfair(draft: Draft, job: Job, claims: list[Claim], missing: int) -> Reason | None:
    """FairShareReached, when what is missing is held by queues that would end up with less than this one."""
    quotas = draft.quotas
    for kind, claim in ((claim.gpu_type, claim) for claim in claims if claim.unfair):
        if sum(c.gpus for c in claim.unfair) < missing:
            continue
        own, other = claim.sides(claim.unfair[0])
        share = (quotas.excess(own, kind) + job.gpus) // quotas.branches.weights[own]
        return reason(
            ReasonCode.FAIR_SHARE_REACHED, queue=quotas.branches.names[own], share=share, gpuType=kind,
            other=quotas.branches.names[other], otherShare=quotas.excess(other, kind) // quotas.branches.weights[other],
        )  # fmt: skip
    return None


def _node_state(draft: Draft, kind: GpuType) -> Reason:
    """How many GPUs are out, by state."""
    types = {node.name: node.shape.gpu_type for node in draft.ground.nodes}
    counts: dict[str, int] = {}
    for outage in draft.supply.outages:
        if types[outage.node] == kind:
            counts[outage.code] = counts.get(outage.code, 0) + outage.gpus
    states = ", ".join(f"{counts[code]} {code}" for code in sorted(counts))
    return reason(ReasonCode.NODE_STATE, excluded=sum(counts.values()), states=states)
