"""The numbers of a plan that a scenario may ask for, computed from node counts alone.

Without ending: the state after the plan has been carried out. Ending in `_before`: the state before it. Exact fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from reconciler.model.units import HOUR
from reconciler.runtime.scenario.ledger import Ledger, add
from reconciler.runtime.scenario.quotas import Quotas
from reconciler.runtime.scenario.world import World, seats_by_node

Numbers = Mapping[str, Fraction | dict[str, Fraction]]

_BOARD: Final = 8  # GPUs of a whole baseboard, as the format defines phi_frag


def numbers_of(ledger: Ledger) -> Numbers:
    """Every number there is, by name."""
    accounts, after = Quotas(ledger), dict[str, int]()
    for seats in ledger.afterwards().values():
        add(after, seats_by_node(seats))
    before: dict[str, int] = {}
    for row in ledger.world.scenario.running:
        add(before, row.placement)
    return {
        "phi_frag_before": _fragmentation(ledger.world, before),
        "phi_frag_after": _fragmentation(ledger.world, after),
        "idle_gpus_before": Fraction(sum(_idle(ledger.world, before).values())),
        "idle_gpus_after": Fraction(sum(_idle(ledger.world, after).values())),
        "borrowed_gpus_before": _whole(accounts.borrowed(accounts.before)),
        "borrowed_gpus": _whole(accounts.borrowed(accounts.after)),
        "lost_gpu_hours": _lost(ledger),
    }


ALIASES: Final = {
    "phi_frag": "phi_frag_after", "idle_gpus": "idle_gpus_after", "borrowed_gpus_after": "borrowed_gpus",
    "lost_gpu_hours_after": "lost_gpu_hours",
}  # fmt: skip
"""Other spellings of the same numbers."""


def _idle(world: World, used: Mapping[str, int]) -> dict[str, int]:
    """Free GPUs by node, of nodes that take work."""
    return {
        name: spot.row.gpus - used.get(name, 0) for name, spot in world.nodes.items() if spot.row.state == "ready"
    }  # fmt: skip


def _fragmentation(world: World, used: Mapping[str, int]) -> Fraction:
    idle = _idle(world, used).values()
    total = sum(idle)
    return 1 - Fraction(sum(gpus // _BOARD * _BOARD for gpus in idle), total) if total else Fraction(0)


def _lost(ledger: Ledger) -> Fraction:
    """GPU-hours since the last checkpoint, or the start, of all that the plan interrupts."""
    total = Fraction(0)
    for job in (*ledger.plan.evicted, *ledger.plan.moved, *ledger.plan.shrunk):
        row = ledger.world.running.get(job)
        if row is not None:
            since = ledger.world.scenario.now - max(row.started, row.last_checkpoint or row.started)
            total += Fraction(sum(row.placement.values()) * since, HOUR)
    return total


def _whole(counts: Mapping[str, int]) -> dict[str, Fraction]:
    return {name: Fraction(count) for name, count in counts.items()}
