"""Everything known about one node, as people read it: its GPUs and who has them, its NICs, its drift, its receipts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from reconciler.model.allocation import JobRecord
from reconciler.model.inventory import Node
from reconciler.model.observed import NodeCondition, NodeObservation
from reconciler.model.units import Instant
from reconciler.render.names import age, one_line, when
from reconciler.render.table import table
from reconciler.topology.drift import Drift

_GBPS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One thing that keeps a node from taking work: a word, why in somebody's words ("" when nobody said), and what it
    means for what runs there."""

    word: str
    means: str
    why: str = ""

    @property
    def told(self) -> str:
        """`Cordoned: fan`, the reason on one line."""
        return f"{self.word}: {one_line(self.why)}" if self.why else self.word

    def tree(self) -> dict[str, object]:
        """For JSON and YAML."""
        return {"state": self.word, **({"why": self.why} if self.why else {})}


def troubles(node: Node | None, seen: NodeObservation | None) -> tuple[Trouble, ...]:
    """All that applies, what says most first; () for a node that is Ready. `node` None: it left the inventory."""
    return tuple(_troubles(node, seen))


def condition(node: Node | None, seen: NodeObservation | None) -> str:
    """The words of all that applies, `Lost, Cordoned`, or `Ready`."""
    return ", ".join(one.word for one in _troubles(node, seen)) or "Ready"


def _troubles(node: Node | None, seen: NodeObservation | None) -> Iterator[Trouble]:
    if node is not None and node.dead:
        yield Trouble(word="Dead", means="a person declared it dead: what ran there counts as gone")
    if seen is None:
        yield Trouble(word="NeverSeen", means="no capacity before its agent has reported")
    elif seen.condition is NodeCondition.LOST:
        since = f"since {when(seen.condition_since)}"
        yield Trouble(word="Lost", why=since, means="its GPUs stay bound until its ranks are known to be gone")
    elif seen.condition is NodeCondition.UNREACHABLE:
        since = f"since {when(seen.condition_since)}"
        yield Trouble(word="Unreachable", why=since, means="nothing new starts there; what runs goes on")
    if node is not None and node.cordoned:
        yield Trouble(word="Cordoned", why=node.cordoned, means="nothing new starts there; what runs goes on")
    if seen is not None and seen.unhealthy:
        yield Trouble(word="Unhealthy", why=seen.unhealthy, means="nothing new starts there until that is over")
    if seen is not None and seen.refused:
        yield Trouble(word="Refusing", why=seen.refused, means="it goes on with the last orders it accepted")


def node_lines(node: Node, seen: NodeObservation | None, now: Instant) -> list[str]:
    """What it is and since when it is so, a label a line."""
    return [f"  {label:<10}{text}" for label, text in node_facts(node, seen, now)]


def node_facts(node: Node, seen: NodeObservation | None, now: Instant) -> list[tuple[str, str]]:
    """Labels and texts of `node_lines`."""
    rows = [("profile", f"{node.shape.profile}: {len(node.shape.gpus)} of {node.shape.gpu_type}")]
    if node.cordoned:
        rows.append(("cordoned", one_line(node.cordoned)))
    if seen is None:
        rows.append(("seen", "never: it has no capacity before its agent has reported"))
    else:
        since = f"{when(seen.condition_since)}  ({age(now - seen.condition_since)})"
        rows += [("condition", f"{seen.condition} since {since}"), ("address", seen.address), ("boot", seen.boot_id)]
        told = (
            ("unhealthy", seen.unhealthy),
            ("driver", seen.driver),
            ("reports", seen.gpu_type),
            ("clique", seen.clique),
        )
        rows += [(label, one_line(text)) for label, text in told if text]
    return rows


def gpu_table(
    node: Node, seen: NodeObservation | None, records: Sequence[JobRecord], width: int | None
) -> str:  # fmt: skip
    """A line a declared GPU: who has it and as which rank, and what is odd about it.

    Where whole UUIDs do not fit they are short, `GPU-1a2b3c4d`: CUDA and nvidia-smi know a GPU by that too.
    """
    rows, numbers = gpu_rows(node, seen, records), "GPU NUMA RAIL RANK"
    whole = table(GPU_HEADER, rows, right=numbers)
    if width is None or max(map(cell_len, whole.splitlines())) <= width:
        return whole
    short = [[index, uuid[:_SHORT_UUID], *rest] for index, uuid, *rest in rows]
    return table(GPU_HEADER, short, width=width, right=numbers)


_SHORT_UUID = len("GPU-1a2b3c4d")


GPU_HEADER = ("GPU", "UUID", "NUMA", "NIC", "RAIL", "HELD BY", "RANK", "NOTE")


def gpu_rows(node: Node, seen: NodeObservation | None, records: Sequence[JobRecord]) -> list[list[str]]:
    """The cells of `gpu_table`, as `GPU_HEADER` has them."""
    reported = {gpu.index: gpu for gpu in seen.gpus} if seen is not None else {}
    holder = _holders(node, records)
    rows = []
    for slot in node.shape.gpus:
        gpu = reported.get(slot.index)
        notes = [] if gpu is not None or seen is None else ["not seen"]
        if node.failed >> slot.index & 1:
            notes.append("declared failed")
        if gpu is not None:
            used = f"used by {gpu.foreign}" if gpu.foreign else ""
            notes += filter(None, (gpu.fault, used, f"slowed down: {gpu.throttled}" if gpu.throttled else ""))
        job, rank = holder.get(slot.index, ("-", "-"))
        numa, rail = (str(number) if number >= 0 else "-" for number in (slot.numa, slot.rail))
        rows.append(
            [str(slot.index), gpu.uuid if gpu is not None else "-", numa, slot.nic or "-", rail, job, rank,
             one_line("; ".join(notes)) or "-"]
        )  # fmt: skip
    return rows


def _holders(node: Node, records: Sequence[JobRecord]) -> dict[int, tuple[str, str]]:
    """Job and rank by GPU index; a spare has no rank."""
    found: dict[int, tuple[str, str]] = {}
    for record in records:
        if record.placement is None or not record.state.holds_gpus:
            continue
        for spare in record.spares:
            if spare.node == node.name:
                bits = range(spare.mask.bit_length())
                found.update({i: (str(record.job), "spare") for i in bits if spare.mask >> i & 1})
        ranks = (place for place in record.placement.ranks if place.node == node.name)
        found.update({place.gpu: (str(record.job), str(place.rank)) for place in ranks})
    return found


def nic_table(seen: NodeObservation, width: int | None) -> str:
    """A line a NIC that the node reports."""
    rows = [
        [nic.name, "up" if nic.up else "DOWN", f"{nic.speed // _GBPS} Gbps" if nic.speed else "-",
         str(nic.numa) if nic.numa >= 0 else "-", nic.switch or "-"]
        for nic in seen.nics
    ]  # fmt: skip
    return table(["NIC", "LINK", "SPEED", "NUMA", "SWITCH"], rows, width=width, right="SPEED NUMA")


def receipt_table(seen: NodeObservation, now: Instant, width: int | None) -> str:
    """A line for each attempt the node last spoke of."""
    rows = [
        [one.job, str(one.attempt), str(one.state), age(now - one.at), "-" if one.exit_code is None else str(one.exit_code),
         one_line(one.reason) or "-"]
        for one in seen.attempts
    ]  # fmt: skip
    return table(["JOB", "ATTEMPT", "SAID", "SINCE", "EXIT", "REASON"], rows, width=width, right="ATTEMPT SINCE EXIT")


def drift_lines(drifts: Sequence[Drift]) -> list[str]:
    """What differs from the declaration, and what planning does about it."""
    return [f"! {one_line(drift.sentence)} ({drift.effect})" for drift in drifts]
