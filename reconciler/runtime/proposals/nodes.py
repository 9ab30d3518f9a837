"""How are nodes taken out of use, and given back, by editing the inventory?

A cordon is a reason in the NodeSet: of the whole set where all its nodes are named, else in its overrides. A drain is
a cordon and a Maintenance window that begins now, so that what runs there leaves through its checkpoint; with an end
it is the window alone. `uncordon` undoes both.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from reconciler.documents.convert_cluster import names_of
from reconciler.documents.edit import new_document
from reconciler.documents.hostlist import fold
from reconciler.documents.loader import Tree
from reconciler.documents.quantities import print_instant
from reconciler.errors import GangOpsError, UsageError
from reconciler.model.units import HOUR, MINUTE, Instant
from reconciler.render.names import one_line, when
from reconciler.runtime.proposals.change import Change, unchanged
from reconciler.runtime.proposals.desk import Desk, Found

FOLDER: Final = "cluster-state/maintenance"
_SCHEMA: Final = "yaml-language-server: $schema=../../schemas/maintenance.schema.json"
_DRAIN: Final = "drain-"
_UNTIL_UNCORDONED: Final = 24 * HOUR  # the window that empties a node whose cordon then keeps it empty
_LONGEST_REASON: Final = 256


def cordon(desk: Desk, lists: tuple[str, ...], reason: str) -> Change:
    """No new work on these nodes; what runs there goes on. Raises: UsageError; NotFound (UnknownNode);
    GangOpsError (OverrideShared)."""
    nodes = desk.nodes(lists)
    files, remarks = _cordoned(desk, nodes, _checked(reason))
    if not files:
        return unchanged("cordon", _named(nodes), f"{_shown(nodes)} {_is(nodes)} cordoned already")
    return Change(
        verb="cordon", name=_named(nodes), title=f"Cordon {_shown(nodes)}: {reason}", files=files, remarks=remarks
    )


def drain(
    desk: Desk, lists: tuple[str, ...], reason: str, now: Instant, *, until: Instant | None = None,
    how: str = "checkpoint",
) -> Change:  # fmt: skip
    """What runs on these nodes leaves; `until`: they come back then by themselves, else with `uncordon`.

    Raises: UsageError; NotFound (UnknownNode); GangOpsError (OverrideShared).
    """
    nodes, begins = desk.nodes(lists), Instant(now // MINUTE * MINUTE)
    if until is not None and until <= now:
        raise UsageError("the end of the drain has passed", code="BadTime", remedy="--for 4h, or a later --until")
    until = Instant(-(-until // MINUTE) * MINUTE) if until is not None else None  # files are read by people
    already = [w for w in _windows(desk, now) if w.item.name.startswith(_DRAIN) and set(nodes) <= set(w.spec.nodes)]
    files, remarks = ({}, ()) if until is not None else _cordoned(desk, nodes, _checked(reason))
    if already and not files:
        told = when(Instant(already[0].spec.to))
        return unchanged("drain", _named(nodes), f"{_shown(nodes)} {_is(nodes)} drained already, until {told}")
    ends = until if until is not None else Instant(begins + _UNTIL_UNCORDONED)
    path, content = _window(nodes, begins, ends, _checked(reason), how)
    told = f" until {when(until)}" if until is not None else ""
    return Change(
        verb="drain", name=_named(nodes), title=f"Drain {_shown(nodes)}{told}: {reason}",
        files={**files, path: content}, remarks=remarks,
    )  # fmt: skip


def uncordon(desk: Desk, lists: tuple[str, ...], now: Instant) -> Change:
    """These nodes take work again: their cordons go, and their drains. Raises: UsageError; NotFound (UnknownNode);
    GangOpsError (OverrideShared)."""
    nodes = desk.nodes(lists)
    files: dict[str, bytes | None] = {**_uncordoned(desk, nodes)}
    remarks = []
    for window in _windows(desk, now):
        inside = [node for node in window.spec.nodes if node in nodes]
        if inside and window.item.name.startswith(_DRAIN) and window.item.kind == "Maintenance":
            files[window.path] = _without(window, inside)
        elif inside:
            remarks.append(f"{_shown(inside)} {_is(inside)} still in {window.item.kind} {window.item.name} ({window.path}), "
                           f"{when(Instant(window.spec.from_))} to {when(Instant(window.spec.to))}.")  # fmt: skip
    remarks += _requested(desk, nodes, now)
    if not files:
        why = f"{_shown(nodes)} {_is(nodes)} not cordoned in any file" + "".join(f"\n{remark}" for remark in remarks)
        return unchanged("uncordon", _named(nodes), why)
    return Change(
        verb="uncordon", name=_named(nodes), title=f"Uncordon {_shown(nodes)}", files=files, remarks=tuple(remarks)
    )


# --- cordons --------------------------------------------------------------------------------------------------------


def _cordoned(desk: Desk, nodes: Collection[str], reason: str) -> tuple[dict[str, bytes | None], tuple[str, ...]]:
    """Files with these nodes cordoned; those that are already stay as they are, and are told."""
    files: dict[str, bytes | None] = {}
    remarks = []
    for found in desk.documents("NodeSet"):
        said = _reasons(found)
        old = [node for node in found.spec.nodes if node in nodes and said[node]]
        new = [node for node in found.spec.nodes if node in nodes and not said[node]]
        for why in dict.fromkeys(said[node] for node in old):
            same = [node for node in old if said[node] == why]
            remarks.append(f"{_shown(same)} {_is(same)} cordoned already: {why}.")
        if new:
            content = files.get(found.path) or found.content
            files[found.path] = _with_reason(content, found, new, reason)
    return files, tuple(remarks)


def _with_reason(content: bytes, found: Found, nodes: Sequence[str], reason: str) -> bytes:
    """The file with these nodes of the set cordoned, none of which is now."""
    if len(nodes) == len(found.spec.nodes):
        return found.put(content, ("spec", "cordoned"), reason)
    left = set(nodes)
    for key, _ in _overriding(found, nodes):
        content = found.put(content, ("spec", "overrides", key, "cordoned"), reason)
        left -= set(names_of(key, len(found.spec.nodes)))
    if left:
        content = found.put(content, ("spec", "overrides", fold(left)), {"cordoned": reason})
    return content


def _uncordoned(desk: Desk, nodes: Collection[str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for found in desk.documents("NodeSet"):
        said = _reasons(found)
        wanted = [node for node in found.spec.nodes if node in nodes and said[node]]
        if wanted:
            files[found.path] = _without_reason(files.get(found.path, found.content), found, wanted)
    return files


def _without_reason(content: bytes, found: Found, nodes: Sequence[str]) -> bytes:
    """The file with these nodes of the set given back. What the whole set says is said of the others, node by node."""
    spec, left = found.spec, len(found.spec.overrides)
    for key, override in spec.overrides.items():
        names = names_of(key, len(spec.nodes))
        inside = [name for name in names if name in nodes]
        if not override.cordoned or not inside:
            continue
        alone = override.model_fields_set == {"cordoned"}
        others = [name for name in names if name not in nodes]
        if others and not alone:
            raise _shared(found, key)
        if others:
            content = found.put(content, ("spec", "overrides", fold(others)), {"cordoned": override.cordoned})
            left += 1
        content = found.take(content, ("spec", "overrides", key, *(() if alone else ("cordoned",))))
        left -= alone
    if spec.overrides and not left:
        content = found.take(content, ("spec", "overrides"))
    if spec.cordoned:
        content = found.take(content, ("spec", "cordoned"))
        others = [node for node in spec.nodes if node not in nodes and not _own_reason(found, node)]
        content = _with_reason(content, found, others, spec.cordoned) if others else content
    return content


def _overriding(found: Found, nodes: Collection[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Overrides of the set that name some of these nodes, none of them any other. Raises GangOpsError (OverrideShared)."""
    keys = []
    for key in found.spec.overrides:
        names = names_of(key, len(found.spec.nodes))
        inside = [name for name in names if name in nodes]
        if inside and len(inside) < len(names):
            raise _shared(found, key)
        if inside:
            keys.append((key, names))
    return keys


def _shared(found: Found, key: str) -> GangOpsError:
    return GangOpsError(
        f"NodeSet {found.name} says the same of all of {key} ({found.path})",
        code="OverrideShared",
        remedy=f"Name all of {key}, or split that override with an editor.",
    )


def _reasons(found: Found) -> Mapping[str, str]:
    """Why each node of the set is cordoned; "" where it is not."""
    return {node: _own_reason(found, node) or found.spec.cordoned or "" for node in found.spec.nodes}


def _own_reason(found: Found, node: str) -> str:
    for key, override in found.spec.overrides.items():
        if override.cordoned and node in names_of(key, len(found.spec.nodes)):
            return str(override.cordoned)
    return ""


# --- windows --------------------------------------------------------------------------------------------------------


def _windows(desk: Desk, now: Instant) -> list[Found]:
    """Windows that are open."""
    return [
        found
        for kind in ("Maintenance", "Reservation")
        for found in desk.documents(kind)
        if found.spec.from_ <= now < found.spec.to
    ]


def _window(nodes: Sequence[str], begins: Instant, ends: Instant, reason: str, how: str) -> tuple[str, bytes]:
    """Path and content of a new Maintenance."""
    digest = hashlib.sha256(f"{begins} {' '.join(nodes)}".encode()).hexdigest()[:6]
    name = f"{_DRAIN}{_named(nodes)[:45].strip('-')}-{digest}"
    spec: dict[str, Tree] = {
        "nodes": fold(nodes), "from": print_instant(begins), "to": print_instant(ends), "reason": reason, "drain": how,
    }  # fmt: skip
    tree: dict[str, Tree] = {
        "apiVersion": "gangops/v1", "kind": "Maintenance", "metadata": {"name": name}, "spec": spec,
    }  # fmt: skip
    return f"{FOLDER}/{name}.yaml", new_document(tree, [_SCHEMA])


def _without(window: Found, nodes: Collection[str]) -> bytes | None:
    """The window's file without these nodes; None when none is left. Files of `drain` hold one document."""
    rest = [node for node in window.spec.nodes if node not in nodes]
    if not rest:
        return None
    return window.put(window.content, ("spec", "nodes"), fold(rest))


# --- requests -------------------------------------------------------------------------------------------------------


def _requested(desk: Desk, nodes: Sequence[str], now: Instant) -> Iterator[str]:
    """The requests in force that keep some of these nodes, whatever the files say, and how each of them ends."""
    for request in desk.generation.observed.requests.values() if desk.generation is not None else ():
        inside = [node for node in nodes if node in request.nodes]
        if not inside or request.ask is None or not request.in_force(now):
            continue
        why = f" ({one_line(request.reason)})" if request.reason else ""
        yield (
            f"{_shown(inside)} {_is(inside)} {request.ask.done} by request {request.id} of {request.by}{why} until "
            f"{when(request.expires)}, whatever the files say. It ends then by itself; sooner, merge the lasting change "
            f"(`gangops {request.ask} {_quoted(request.nodes)}`), which ends it, and uncordon after that."
        )


# --- words ----------------------------------------------------------------------------------------------------------


def _checked(reason: str) -> str:
    reason = " ".join(reason.split())
    if not reason or len(reason) > _LONGEST_REASON:
        raise UsageError(
            f"a reason has 1 to {_LONGEST_REASON} characters", code="ReasonMissing", remedy="such as --reason 'XID 79'"
        )
    return reason


def _shown(nodes: Iterable[str]) -> str:
    return fold(nodes)


def _quoted(nodes: Iterable[str]) -> str:
    """For a shell, to which brackets mean something."""
    return shlex.quote(fold(nodes))


def _named(nodes: Sequence[str]) -> str:
    return re.sub(r"[^a-z0-9]+", "-", fold(nodes).lower()).strip("-")


def _is(nodes: Collection[str]) -> str:
    return "is" if len(nodes) == 1 else "are"
