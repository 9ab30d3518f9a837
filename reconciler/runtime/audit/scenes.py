"""What was the cluster over the record, and how was a job labelled then? As far as usage has to know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from reconciler.documents.layout import JOBS
from reconciler.documents.loader import STATE_LIMITS, load
from reconciler.documents.record import FROZEN
from reconciler.model.desired import Desired
from reconciler.model.units import JobKey, document_of
from reconciler.runtime.audit.index import Index
from reconciler.runtime.reading import DesiredReader
from reconciler.store.objects import subtree
from reconciler.store.runner import Git
from reconciler.store.trees import read_tree
from reconciler.store.walk import objects_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The cluster from one generation on: GPU type and GPU mask of each node, and what each (queue, type)
    without queues below it is guaranteed and may have."""

    position: int
    nodes: Mapping[str, tuple[str, int]]
    guaranteed: Mapping[tuple[str, str], int]
    ceiling: Mapping[tuple[str, str], int]

    def declared(self) -> dict[str, int]:
        """GPUs by type."""
        found: dict[str, int] = defaultdict(int)
        for kind, mask in self.nodes.values():
            found[kind] += mask.bit_count()
        return dict(found)


def scenes(git: Git, index: Index) -> list[Scene]:
    """The inventory and quotas over the record, read again only where their files changed. Raises StoreError."""
    reader = DesiredReader(git)
    found: list[Scene] = []
    for position, changed in enumerate(index.commits["scenery"]):
        if not changed and position:
            continue
        commit = index.ids[position]
        tree = read_tree(git, commit, ("frozen",), optional=("frozen",))
        frozen = {entry.path.removeprefix(FROZEN): tree.blobs[entry.oid] for entry in tree.entries}
        has_desired = subtree(git, commit, "desired/cluster-state") is not None
        named = index.texts[index.commits["desired"][position]]
        desired = reader.recorded(commit, named, frozen).desired if has_desired else None
        if desired is not None:
            found.append(scene_of(position, desired))
    return found


def scene_of(position: int, desired: Desired) -> Scene:
    """What usage needs of a desired state."""
    inner = {queue.parent for queue in desired.quotas.queues.values()}
    queues = [queue for queue in desired.quotas.queues.values() if queue.name not in inner]
    return Scene(
        position=position,
        nodes={node.name: (node.shape.gpu_type, node.shape.all_gpus) for node in desired.inventory.nodes},
        guaranteed={(q.name, kind): gpus for q in queues for kind, gpus in q.guaranteed.items()},
        ceiling={(q.name, kind): gpus for q in queues for kind, gpus in q.ceiling.items()},
    )


def labelled(git: Git, index: Index, label: str) -> Callable[[int], str]:
    """By which value of a label an event counts, read from the job's file as the event's decision knew it."""
    known: dict[tuple[int, int], str] = {}
    pairs = sorted(set(zip(index.events["job"], index.events["asked"], strict=True)))
    names = [
        f"{index.texts[asked]}:{JOBS}{document_of(JobKey(index.texts[job]))}.yaml" for job, asked in pairs if asked
    ]
    contents = objects_named(git, names)
    for (job, asked), content in zip((p for p in pairs if p[1]), contents, strict=True):
        known[job, asked] = _label(content, label)
    return lambda event: known.get((index.events["job"][event], index.events["asked"][event]), "")


def _label(content: bytes | None, label: str) -> str:
    documents = load(content, "job", STATE_LIMITS).documents if content is not None else ()
    tree = documents[0].value if documents else None
    metadata = tree.get("metadata") if isinstance(tree, dict) else None
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return str(labels.get(label, "")) if isinstance(labels, dict) else ""
