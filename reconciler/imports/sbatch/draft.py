"""A Job in the making: one component of a script, what came along of it, and its shape in nodes and GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reconciler.imports.mapping import Mapped
from reconciler.imports.notes import Notes
from reconciler.imports.sbatch.parse import Component


@dataclass(slots=True)
class Draft:
    """A Job being made of one component. `taken` has the options that came along."""

    component: Component
    mapped: Mapped
    notes: Notes
    spec: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def get(self, key: str, *options: str) -> Any:
        """The neutral value; its options count as taken."""
        self.taken |= set(options)
        return self.component.asked.get(key)

    def line(self, *options: str) -> int:
        return next((self.component.said[name].line for name in options if name in self.component.said), 0)

    def note(self, code: str, detail: str, option: str, remedy: str = "") -> None:
        self.notes.note(code, detail, line=self.line(option), at=f"--{option}", remedy=remedy)


def shape_of(draft: Draft) -> tuple[int, int] | None:
    """(nodes, GPUs of each) as far as it is even; None, noted, when there are no GPUs or they do not divide."""
    gpus = draft.component.asked.get("gpus")
    if gpus is None:
        return None
    nodes = nodes_of(draft)
    if "per_node" in gpus:
        return gpus.get("total", gpus["per_node"] * nodes) // gpus["per_node"], gpus["per_node"]
    total = gpus.get("total", gpus.get("per_task", 1))
    return (nodes, total // nodes) if total % nodes == 0 else (1, total)


def nodes_of(draft: Draft) -> int:
    """Nodes at most, as Slurm would count them."""
    asked = draft.component.asked
    if "nodes" in asked:
        return int(asked["nodes"]["max"])
    tasks, each = asked.get("ntasks_total"), asked.get("ntasks_per_node")
    return -(-tasks // each) if tasks and each else 1
