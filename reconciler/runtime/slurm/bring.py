"""`gangops import slurm-cluster`: a Slurm cluster as a repository's documents, to be read, corrected and merged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reconciler.documents.desired import source_file, validate_files
from reconciler.documents.edit import new_document
from reconciler.documents.loader import Tree
from reconciler.documents.schema.base import API_VERSION
from reconciler.documents.schema.files import schema_files
from reconciler.engines.slurm.seen import SlurmNode
from reconciler.errors import Diagnostic, Place, Severity, UsageError
from reconciler.imports.slurm.hardware import ONLY_RACK, Machine, gpu_memory_is_known, node_sets_of, profiles_of
from reconciler.imports.slurm.rules import Rules, rules_of
from reconciler.imports.topology import ImportedFabric, fabric_of
from reconciler.model.counting import counted
from reconciler.runtime.slurm.sources import Captured

USAGE_FILE: Final = "slurm-usage.json"
_PLAIN_LEVELS: Final[tuple[dict[str, Tree], ...]] = (
    {"name": "nvlinkDomain", "latency": "0.7us", "bandwidth": "450GBps"},
    {"name": "node", "latency": "1.2us", "bandwidth": "64GBps"},
    {"name": "rack", "latency": "3us", "bandwidth": "400Gbps"},
    {"name": "cluster", "latency": "8us", "bandwidth": "400Gbps"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """The files to write by path, and everything that a person should look at."""

    files: Mapping[str, bytes]
    notes: tuple[Diagnostic, ...]
    nodes: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What only the person who asks can say. `gpu_type` names GPUs that Slurm has no type for."""

    cluster: str = "slurm"
    gpu_type: str = "gpu"
    mail_domain: str = ""
    folder: str = ""


def brought(said: Captured, wishes: Wishes) -> Brought:
    """The documents of a Slurm cluster. Raises: UsageError (NoGpuNodes)."""
    machines = [_machine(node, wishes.gpu_type) for _, node in sorted(said.nodes.items()) if node.gpus.count]
    if not machines:
        raise UsageError(
            "no node with GPUs is named in what was given",
            code="NoGpuNodes",
            remedy="Give the output of `scontrol show node --json` (on 22.05: `sinfo --json`), or use --live.",
        )
    types = sorted({machine.gpu_type for machine in machines})
    fabric = fabric_of(said.topology, wishes.cluster)
    racks = _racks(fabric, machines)
    rules = rules_of(said.associations, said.qos, said.shares, types, wishes.mail_domain)
    notes = [*fabric.findings, *rules.notes, *_hardware_notes(machines, racks), *_missing(said)]
    files = _files(said, wishes, machines, fabric, racks, rules)
    documents = {path: content for path, content in files.items() if path.startswith("cluster-state/")}
    notes += validate_files([source_file(path, content) for path, content in sorted(documents.items())])
    return Brought(
        files=files, notes=tuple(dict.fromkeys(notes)), nodes=len(machines), gpus=sum(m.gpus for m in machines)
    )


def write(found: Brought, into: Path) -> tuple[Path, ...]:
    """Write the files below a folder. Raises: UsageError (FilesExist), when one of them is there already."""
    there = [path for path in found.files if (into / path).exists() and not path.startswith("schemas/")]
    if there:
        raise UsageError(
            f"{into} has already: {', '.join(there)}",
            code="FilesExist",
            remedy="Import into an empty folder, compare, and take over what you want.",
        )
    for path, content in found.files.items():
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return tuple(into / path for path in found.files)


def _machine(node: SlurmNode, gpu_type: str) -> Machine:
    return Machine(
        name=node.name,
        gpu_type=node.gpus.kind or gpu_type,
        gpus=node.gpus.count,
        cpus=node.cpus,
        memory=node.memory,
        sockets=node.sockets,
        addressable=bool(node.gpus.slots),
    )


def _racks(fabric: ImportedFabric, machines: Sequence[Machine]) -> dict[str, tuple[str, ...]]:
    """The nodes of each rack; those that no switch serves stand in a rack of their own."""
    racks = {name: tuple(nodes) for name, nodes in fabric.racks.items()}
    placed = {node for nodes in racks.values() for node in nodes}
    rest = tuple(machine.name for machine in machines if machine.name not in placed)
    return racks | ({ONLY_RACK: rest} if rest else {})


def _files(
    said: Captured,
    wishes: Wishes,
    machines: Sequence[Machine],
    fabric: ImportedFabric,
    racks: Mapping[str, tuple[str, ...]],
    rules: Rules,
) -> dict[str, bytes]:
    profiles = [document for _, document in profiles_of(machines).values()]
    usage = {"formatVersion": "1.0", "kind": "SeededUsage", "gpuSeconds": rules.usage}
    files = {
        "cluster-state/cluster.yaml": new_document(
            _config(said, wishes), ["Slurm starts and stops the work; GangOps decides."]
        ),
        "cluster-state/fabric/slurm.yaml": _fabric(fabric, wishes.cluster, ONLY_RACK in racks),
        "cluster-state/inventory/profiles.yaml": _documents(
            profiles,
            [
                "Slurm knows nothing of NVLink, NICs and the memory of a GPU: usual values stand here.",
                *_doubts(machines),
            ],
        ),
        "cluster-state/inventory/nodes.yaml": _documents(node_sets_of(machines, racks, fabric.blocks), []),
        "cluster-state/queues/slurm.yaml": _documents(
            rules.queues or [_root()],
            [
                "Accounts as queues. Slurm guarantees nothing, so nothing is guaranteed here: add `guaranteed` where it is due."
            ],
        ),
        "cluster-state/priorities/slurm.yaml": _documents(rules.classes, ["Every QOS as a priority class."]),
        "cluster-state/users/slurm.yaml": _documents(rules.users, []),
        USAGE_FILE: (json.dumps(usage, indent=2) + "\n").encode(),
    }
    files |= {f"schemas/{name}": content for name, content in schema_files().items()}
    if not rules.usage:
        del files[USAGE_FILE]
    return {path: content for path, content in files.items() if content}


def _config(said: Captured, wishes: Wishes) -> dict[str, Tree]:
    slurm: dict[str, Tree] = {"folder": wishes.folder} if wishes.folder else {}
    default = next((partition.name for partition in said.partitions if partition.default), "")
    if default:
        slurm["partition"] = default
    spec: dict[str, Tree] = {"engine": "slurm"} | ({"slurm": slurm} if slurm else {})
    return {"apiVersion": API_VERSION, "kind": "ClusterConfig", "metadata": {"name": wishes.cluster}, "spec": spec}


def _fabric(fabric: ImportedFabric, name: str, rest: bool) -> bytes:
    document = fabric.document
    if document is None:
        levels: list[Tree] = [*_PLAIN_LEVELS]
        plain: dict[str, Tree] = {"levels": levels, "racks": [{"name": ONLY_RACK}]}
        document = {"apiVersion": API_VERSION, "kind": "Fabric", "metadata": {"name": name}, "spec": plain}
        return new_document(document, ["Nothing was said about switches: one rack holds all. Put in what is cabled."])
    spec = document["spec"]
    if rest and isinstance(spec, dict):
        groups, racks = spec.get("spineGroups"), spec.get("racks")
        if isinstance(groups, list):
            spec["spineGroups"] = [*groups, {"name": "unplaced", "racks": [{"name": ONLY_RACK}]}]
        elif isinstance(racks, list):
            spec["racks"] = [*racks, {"name": ONLY_RACK}]
    return new_document(document, fabric.comments)


def _root() -> dict[str, Tree]:
    return {"apiVersion": API_VERSION, "kind": "Queue", "metadata": {"name": "root"}, "spec": {}}


def _documents(documents: Sequence[Mapping[str, Tree]], comments: Sequence[str]) -> bytes:
    texts = [new_document(document, comments if not number else ()) for number, document in enumerate(documents)]
    return b"---\n".join(texts)


def _doubts(machines: Sequence[Machine]) -> list[str]:
    unknown = sorted({m.gpu_type for m in machines if not gpu_memory_is_known(m.gpu_type)})
    return [f"80GiB is a guess for {kind}." for kind in unknown]


def _hardware_notes(machines: Sequence[Machine], racks: Mapping[str, tuple[str, ...]]) -> list[Diagnostic]:
    notes = []
    free = sum(not machine.addressable for machine in machines)
    if free:
        told = (
            f"{free} of {counted(len(machines), 'node')}: Slurm picks the index there. Whole nodes need no pins; for parts of a node "
            "give each slot a type in gres.conf."
        )
        notes.append(_note("nodes", "GpusNotPinned", "GPUs cannot be asked for by index", told))
    if ONLY_RACK in racks and len(racks) > 1:
        told = f"{counted(len(racks[ONLY_RACK]), 'node is', 'nodes are')} below no switch and in rack {ONLY_RACK}."
        notes.append(_note("topology", "NodeUnplaced", "Nodes have no place", told))
    return notes


def _missing(said: Captured) -> list[Diagnostic]:
    notes = [_note("slurm", "NotAsked", "Something could not be read", told) for told in said.missing]
    if not said.associations:
        told = "No associations were given, so there is one queue, root. Give `sacctmgr -P show associations`."
        notes.append(_note("accounts", "NoAccounts", "Nothing was said about accounts", told))
    return notes


def _note(source: str, code: str, summary: str, detail: str) -> Diagnostic:
    return Diagnostic(code, summary, detail, Place(source), "", Severity.WARNING)
