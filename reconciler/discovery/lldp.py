"""Which switch port is each interface plugged into, as `lldpctl -f json` or `-f json0` says?

With eight rails a node has eight switches: neighbours are a table, not one name.
"""

from __future__ import annotations

import json
from typing import Final

from reconciler.discovery.parsed import Kind, Notes, Parsed, failure, listed, shortened
from reconciler.documents.loader import Tree

# Port ids of these types name a port; of others (a MAC address) the description does.
_PORT_NAMES: Final = frozenset({"ifname", "local", "ifalias"})
_MOST_INTERFACES: Final = 10_000
_FIELDS: Final = frozenset({"id", "name", "descr", "mgmt-ip", "mgmt-iface", "capability"})


class _RepeatedKey(ValueError):
    """A key that an object has twice."""


def parse(text: str) -> Parsed:
    """Neighbour of each interface: the switch's system name and the port there."""
    try:
        root = json.loads(text, object_pairs_hook=_object)
    except _RepeatedKey as error:
        return failure(Kind.LLDP, "DUPLICATE_KEY", f"key {shortened(str(error), 40)} comes twice in one object")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else shortened(str(error))
        return failure(Kind.LLDP, "BAD_JSON", reason)
    lldp = _one(root.get("lldp")) if isinstance(root, dict) else None
    if not isinstance(lldp, dict):
        return failure(Kind.LLDP, "NOT_LLDP", "no object `lldp` as lldpctl prints it")
    notes = Notes()
    neighbours: dict[str, Tree] = {}
    several: list[str] = []
    for interface, what in _interfaces(lldp.get("interface")):
        if interface in neighbours or interface in several:
            several.append(interface)
            neighbours.pop(interface, None)
        elif len(neighbours) == _MOST_INTERFACES:
            return failure(Kind.LLDP, "TOO_MANY_INTERFACES", f"more than {_MOST_INTERFACES} interfaces")
        else:
            neighbours[interface] = _neighbour(interface, what, notes)
    if several:
        notes.gap("SEVERAL_NEIGHBORS", f"{listed(sorted(set(several)))} sees more than one neighbour: left out")
    if not neighbours:
        notes.warn("NO_NEIGHBORS", "no interface has a neighbour")
    return notes.parsed(Kind.LLDP, {"neighbors": neighbours})


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        last = {key: index for index, (key, _) in enumerate(pairs)}
        raise _RepeatedKey(next(key for index, (key, _) in enumerate(pairs) if last[key] != index))
    return found


def _one(value: object) -> object:
    """json0 wraps every value in a list; a list of one is its element."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _interfaces(value: object) -> list[tuple[str, dict[str, object]]]:
    """Interfaces by name, from a list of one-key objects, one object (a single neighbour), or json0's list."""
    found: list[tuple[str, dict[str, object]]] = []
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, dict):
            continue
        if isinstance(entry.get("name"), str):
            found.append((entry["name"], entry))
        else:
            found += [(name, what) for name, what in entry.items() if isinstance(what, dict)]
    return found


def _neighbour(interface: str, what: dict[str, object], notes: Notes) -> dict[str, Tree]:
    switch = _system_name(_one(what.get("chassis")))
    port = _port(_one(what.get("port")))
    if switch is None:
        notes.gap("NO_SYSTEM_NAME", f"the neighbour of {shortened(interface, 40)} does not give its name")
    if port is None:
        notes.gap("NO_PORT", f"the neighbour of {shortened(interface, 40)} does not name its port")
    return {"switch": switch, "port": port}


def _system_name(chassis: object) -> str | None:
    if not isinstance(chassis, dict):
        return None
    if isinstance(name := _text(chassis.get("name")), str):
        return name
    # json: the chassis is the only key; without a system name its fields stand there instead.
    names = [key for key, value in chassis.items() if isinstance(value, dict) and key not in _FIELDS]
    return names[0] if len(names) == 1 and len(chassis) == 1 else None


def _port(port: object) -> str | None:
    if not isinstance(port, dict):
        return None
    identity = _one(port.get("id"))
    if isinstance(identity, dict) and identity.get("type") in _PORT_NAMES:
        return _text(identity)
    return _text(port.get("descr"))


def _text(value: object) -> str | None:
    """A value that json has as text, and json0 as `[{"value": text}]`."""
    found = _one(value)
    if isinstance(found, dict):
        found = found.get("value")
    return found if isinstance(found, str) and found else None
