"""How does what was found of a machine get into the inventory people keep? As edits of their files, comments kept.

Files in, changed files out; nothing is written here. An edit that would make the repository invalid is refused with
the problems it would make. What a machine is made of is `discovery`'s, how it drifted is `topology.drift`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from reconciler.discovery.live.describe import Description
from reconciler.documents.check import Item, check_file
from reconciler.documents.convert_cluster import gpu_count
from reconciler.documents.desired import source_file, validate_files
from reconciler.documents.edit import new_document, set_value
from reconciler.documents.hostlist import expand, fold
from reconciler.documents.loader import Tree
from reconciler.errors import InvalidInput, NotFound, UsageError
from reconciler.model.gpu_models import models_of
from reconciler.model.inventory import Node
from reconciler.model.observed import NodeObservation
from reconciler.topology.drift import Drift, DriftCode, node_drift

FOLDER: Final = "cluster-state/inventory"

Files = Mapping[str, bytes]
"""A whole repository's documents by path from its top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One document: its file, which of that file's documents it is, and what it says."""

    path: str
    index: int
    item: Item

    @property
    def spec(self) -> Any:
        """The spec as its schema has it."""
        return self.item.model.spec


def documents_of_kind(files: Files, kind: str) -> list[Found]:
    """Every valid document of a kind, by path."""
    found = []
    for path, content in sorted(files.items()):
        if path.startswith("cluster-state/") and path.endswith((".yaml", ".yml")):
            checked = check_file(content, path)
            found += [Found(path=path, index=item.index, item=item) for item in checked.items if item.kind == kind]
    return found


def racks_with_switches(files: Files) -> dict[str, tuple[str, ...]]:
    """The switches of each declared rack that names some, hostlists expanded."""
    found: dict[str, tuple[str, ...]] = {}
    for fabric in documents_of_kind(files, "Fabric"):
        groups = [*fabric.spec.racks, *(rack for group in fabric.spec.spine_groups for rack in group.racks)]
        for rack in groups:
            names = [name for written in rack.tors for name in _names(written)]
            if names:
                found[rack.name] = tuple(names)
    return found


def _names(written: str) -> tuple[str, ...]:
    try:
        return expand(written) if "[" in written else (written,)
    except ValueError:
        return (written,)


# --- discover --into --------------------------------------------------------------------------------------------------


def with_node(files: Files, described: Description) -> dict[str, bytes]:
    """The files that change when this machine is added; none when the inventory has it already.

    A profile that says the same is used, whatever its name; the node joins the set of its profile and rack.
    Raises: UsageError (RackUnknown, ProfileDiffers, NodeElsewhere); InvalidInput, when the outcome would be invalid.
    """
    if described.profile is None or described.node_set is None:
        raise UsageError("there are no GPUs to describe", code="NoGpus", remedy="run this on a node with GPUs")
    changes: dict[str, bytes] = {}
    profile = _profile(files, described.profile, changes)
    _join_set(files, described.node_set, profile, changes)
    check_changes(files, changes)
    return changes


def _profile(files: Files, tree: Mapping[str, Tree], changes: dict[str, bytes]) -> str:
    """The name of the profile to use; a new one is put into `changes`."""
    text = new_document(
        tree, ["Printed by `gangops discover`. Reserve what the system needs: `reserved: {cpus: ...}`."]
    )
    checked = check_file(text, "discovered")
    if any(problem.is_error for problem in checked.diagnostics):
        raise InvalidInput(checked.diagnostics)
    (mine,) = checked.items
    for other in documents_of_kind(files, "NodeProfile"):
        if _alike(other.spec, mine.model.spec):
            return other.item.name
        if other.item.name == mine.name:
            raise UsageError(
                f"{other.path} has a NodeProfile {mine.name!r} that says something else",
                code="ProfileDiffers",
                remedy="compare them with `gangops discover`, or give this one a name with --profile",
            )
    changes[f"{FOLDER}/{mine.name}.yaml"] = text
    return mine.name


def _alike(declared: Any, found: Any) -> bool:
    """Whether two specs say the same of a machine, whatever they call its GPUs."""
    names = (declared.gpu_type, *models_of(declared.gpu_type, declared.gpu_models))
    return found.gpu_type in names and _hardware_of(declared) == _hardware_of(found)


def _hardware_of(spec: Any) -> Any:
    """The spec less what people decide, with its GPUs counted: equal for equal machines."""
    decided = {"gpu_type": "", "gpu_models": (), "reserved": None, "nccl_topo_file": None}
    return spec.model_copy(update={**decided, "gpus": gpu_count(spec)})


def _join_set(files: Files, tree: Mapping[str, Any], profile: str, changes: dict[str, bytes]) -> None:
    spec = {**tree["spec"], "profile": profile}
    node, rack, domains = spec["nodes"], spec["rack"], spec.get("domains", {})
    sets = documents_of_kind(files, "NodeSet")
    for other in sets:
        if node in other.spec.nodes:
            if other.spec.profile == profile:
                return
            raise UsageError(
                f"{node} is in NodeSet {other.item.name!r} with profile {other.spec.profile!r}, and looks like {profile!r}",
                code="NodeElsewhere",
                remedy=f"gangops inventory diff {node}; or move it to a NodeSet of its own",
            )
    if rack == "unknown":
        raise UsageError("the rack of this node is not known", code="RackUnknown", remedy="name it with --rack")
    for other in sets:
        plain = not other.spec.overrides and not other.spec.cordoned and not other.spec.dead
        if (other.spec.profile, other.spec.rack, other.spec.domains) == (profile, rack, domains) and plain:
            nodes = fold([*other.spec.nodes, node])
            changes[other.path] = set_value(
                files[other.path], ("spec", "nodes"), nodes, index=other.index, file=other.path
            )
            return
    names = {other.item.name for other in sets}
    name = rack if rack not in names else tree["metadata"]["name"]
    changes[f"{FOLDER}/{name}.yaml"] = new_document({**tree, "metadata": {"name": name}, "spec": spec})


def check_changes(files: Files, changes: Mapping[str, bytes]) -> None:
    """Raises InvalidInput with the errors that are there after a change and were not before it."""
    before = {str(problem) for problem in _errors(files)}
    new = [problem for problem in _errors({**files, **changes}) if str(problem) not in before]
    if new:
        raise InvalidInput(new)


def _errors(files: Files) -> list[Any]:
    sources = [source_file(path, content) for path, content in sorted(files.items())]
    return [problem for problem in validate_files(sources) if problem.is_error]


# --- inventory adopt --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What changes, what that settles, and what a file cannot settle."""

    changes: Mapping[str, bytes]
    adopted: tuple[Drift, ...]
    left: tuple[Drift, ...]


def adopt(files: Files, node: Node, seen: NodeObservation) -> Adoption:
    """Write down as overrides of this node what it reports: GPUs missing or faulty, NICs that are down or gone.

    Everything else is no property of one node in a file: it is left, and named. Raises: NotFound (UnknownNode);
    InvalidInput, when the outcome would be invalid.
    """
    found = next((s for s in documents_of_kind(files, "NodeSet") if node.name in s.spec.nodes), None)
    if found is None:
        raise NotFound(f"no NodeSet has {node.name}", code="UnknownNode", remedy="gangops get nodes")
    content, adopted, left = files[found.path], list[Drift](), list[Drift]()
    key = _override_key(found, node.name)
    for drift in node_drift(node, seen):
        edits = _OVERRIDES[drift.code](drift) if drift.code in _OVERRIDES else ()
        for path, value in edits:
            content = set_value(content, ("spec", "overrides", key, *path), value, index=found.index, file=found.path)
        (adopted if edits else left).append(drift)
    changes = {} if content == files[found.path] else {found.path: content}
    check_changes(files, changes)
    return Adoption(changes=changes, adopted=tuple(adopted), left=tuple(left))


def _override_key(found: Found, node: str) -> str:
    """How the set's overrides name this node alone."""
    return next((key for key in found.spec.overrides if tuple(_names(key)) == (node,)), node)


_Edit = tuple[tuple[str, ...], Tree]


def _failed_gpus(drift: Drift) -> Iterable[_Edit]:
    from reconciler.documents.cpulist import parse_cpus  # the same notation

    numbers = dict(drift.numbers)
    reason = _REASONS[drift.code].format_map(numbers)[:256]
    return [(("gpus", str(gpu)), {"state": "failed", "reason": reason}) for gpu in parse_cpus(str(numbers["gpus"]))]


_REASONS: Final[Mapping[DriftCode, str]] = {
    DriftCode.GPU_MISSING: "not seen by its agent",
    DriftCode.GPU_FAULTY: "{why}",
    DriftCode.RECOVERY_NEEDED: "its driver asks: {action}",
    DriftCode.XID_FATAL: "XID {xid}: {meaning}",
}


def _dark_nic(drift: Drift) -> Iterable[_Edit]:
    reason = "down" if drift.code is DriftCode.NIC_DOWN else "not seen by its agent"
    return [(("nics", str(dict(drift.numbers)["nic"])), {"state": "down", "reason": reason})]


_OVERRIDES: Final[Mapping[DriftCode, Callable[[Drift], Iterable[_Edit]]]] = {
    **dict.fromkeys(_REASONS, _failed_gpus),
    DriftCode.NIC_DOWN: _dark_nic,
    DriftCode.NIC_MISSING: _dark_nic,
}
