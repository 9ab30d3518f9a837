"""What do `squeue --json`, `sinfo --json`, `scontrol show node --json` and partitions in text say? Three generations.

| | 22.05 | 24.11, 26.05 |
|---|---|---|
| numbers | plain, null for none | `{set, infinite, number}` |
| states | one word, flags beside it | a list of words |
| nodes | `sinfo --json`, one a node | `scontrol show node --json` |

Pure: text in, values out. A field that is missing or odd becomes "unknown", never an exception: what cannot be read
at all is `BadMessage`, and the caller treats Slurm as not heard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from reconciler.documents.hostlist import expand
from reconciler.engines.slurm.gres import asked_of, held_of, slots_of
from reconciler.engines.slurm.seen import Partition, SlurmJob, SlurmNode
from reconciler.model.units import NodeName
from reconciler.wire import BadMessage

_NO_VALUE: Final = (0xFFFFFFFE, 0xFFFFFFFFFFFFFFFE, 0xFFFE)
_INFINITE: Final = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_MINUTES: Final = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)|([0-9]+)")
_MOST_TEXT: Final = 1 << 16


def version_of(text: str) -> tuple[int, int]:
    """(22, 5) of `slurm 22.05.8`. Raises: BadMessage."""
    found = re.search(r"\b([0-9]{2})\.([0-9]{2})(?:\.|-|\b)", text)
    if not found:
        raise BadMessage(f"no version of Slurm in {text[:60]!r}")
    return int(found[1]), int(found[2])


def nodes_of(text: str) -> dict[NodeName, SlurmNode]:
    """All nodes by name. Raises: BadMessage."""
    found = (_node(tree) for tree in _listed(text, "nodes"))
    return {node.name: node for node in found if node.name}


def jobs_of(text: str) -> tuple[SlurmJob, ...]:
    """All jobs by number, the ended ones that Slurm still shows among them. Raises: BadMessage."""
    return tuple(sorted((_job(tree) for tree in _listed(text, "jobs")), key=lambda job: job.id))


def partitions_of(text: str) -> tuple[Partition, ...]:
    """The partitions of `scontrol show partition -o`, which is text on every version."""
    return tuple(_partition(line) for line in text.splitlines() if line.startswith("PartitionName="))


# --- nodes ---


def _node(tree: Mapping[str, Any]) -> SlurmNode:
    slots = slots_of(_text(tree, "gres"))
    return SlurmNode(
        name=NodeName(_text(tree, "name")),
        address=_text(tree, "address"),
        states=_states(tree, "state") | _states(tree, "state_flags"),
        reason=_text(tree, "reason"),
        boot_time=_number(tree, "boot_time") or 0,
        gpus=slots,
        cpus=_number(tree, "cpus") or 0,
        cpus_used=_number(tree, "alloc_cpus") or 0,
        memory=_number(tree, "real_memory") or 0,
        sockets=_number(tree, "sockets") or 1,
        features=_words(tree, "features"),
        partitions=_words(tree, "partitions"),
        version=_text(tree, "slurmd_version") or _text(tree, "version"),
    )


# --- jobs ---


def _job(tree: Mapping[str, Any]) -> SlurmJob:
    states = _states(tree, "job_state")
    # 22.05 says COMPLETING in place of the state it will end in; later ones say both.
    state = next(iter(sorted(states - {"COMPLETING"})), "COMPLETING")
    nodes = hosts(_text(tree, "nodes"))
    gpus, counts = _gpus(tree, nodes)
    return SlurmJob(
        id=_number(tree, "job_id") or 0,
        name=_text(tree, "name"),
        state=state,
        comment=_text(tree, "comment"),
        completing="COMPLETING" in states,
        user=_text(tree, "user_name"),
        account=_text(tree, "account"),
        partition=_text(tree, "partition"),
        reason=_text(tree, "state_reason"),
        nodes=nodes,
        gpus=gpus,
        counts=counts,
        exit_code=_exit(tree.get("exit_code"))[0],
        signal=_exit(tree.get("exit_code"))[1],
        started=_number(tree, "start_time") or 0,
        submitted=_number(tree, "submit_time") or 0,
        ended=_number(tree, "end_time") or 0,
        limit=_limit(tree.get("time_limit")),
        restarts=_number(tree, "restart_cnt") or 0,
        het=_number(tree, "het_job_id") or 0,
        whole_nodes=_whole(tree),
        node_count=_number(tree, "node_count") or 0,
        tasks=_number(tree, "tasks") or 0,
        per_node=_text(tree, "tres_per_node"),
        per_job=_text(tree, "tres_per_job"),
        required=hosts(_text(tree, "required_nodes")),
        dependency=_text(tree, "dependency"),
        priority=_number(tree, "priority") or 0,
        qos=_text(tree, "qos"),
    )


def _gpus(tree: Mapping[str, Any], nodes: tuple[NodeName, ...]) -> tuple[dict[NodeName, int], dict[NodeName, int]]:
    """`gres_detail` has one text a node, in the order of the node list."""
    detail = tree.get("gres_detail")
    masks: dict[NodeName, int] = {}
    counts: dict[NodeName, int] = {}
    for node, text in zip(nodes, detail if isinstance(detail, list) else (), strict=False):
        mask, unknown = held_of(str(text))
        if mask:
            masks[node] = mask
        if unknown:
            counts[node] = unknown
    if not masks and not counts and "COMPLETING" in _states(tree, "job_state"):
        # 22.05 no longer tells the GPUs of a job that is being cleared away, and they are not free yet.
        counts = {node: count for node in nodes if (count := asked_of(_text(tree, "tres_per_node")))}
    return masks, counts


def _exit(value: object) -> tuple[int | None, int]:
    """(status, signal): 22.05 has the number that wait() gave, later ones have both apart."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value >> 8 & 0xFF, value & 0x7F
    if isinstance(value, dict):
        ended_by = value.get("signal")
        number = _number(ended_by, "id") or _number(ended_by, "signal_id") if isinstance(ended_by, dict) else None
        return _number(value, "return_code"), number or 0
    return None, 0


def _whole(tree: Mapping[str, Any]) -> bool:
    """The job shares its nodes with nobody. Slurm calls that "not shared", and 24.05 and later "exclusive"."""
    told = _states(tree, "exclusive") | _states(tree, "shared")
    return bool(told & {"NONE", "TRUE", "EXCLUSIVE"})


def _limit(value: object) -> int | None:
    if isinstance(value, dict):
        return None if value.get("infinite") or not value.get("set", True) else _plain(value.get("number"))
    number = _plain(value)
    return None if number in (None, 0, *_INFINITE) else number


# --- partitions ---


def _partition(line: str) -> Partition:
    said = dict(re.findall(r"(?:^| )([A-Za-z_:]+)=([^ ]*)", line))
    return Partition(
        name=said.get("PartitionName", ""),
        default=said.get("Default", "NO") == "YES",
        up=said.get("State", "UP") == "UP",
        max_minutes=minutes_of(said.get("MaxTime", "UNLIMITED")),
        tier=int(said.get("PriorityTier", "1")) if said.get("PriorityTier", "1").isdecimal() else 1,
        nodes=hosts("" if said.get("Nodes") in (None, "(null)") else said["Nodes"]),
    )


def minutes_of(text: str) -> int | None:
    """`1-02:30:00` in minutes; None for UNLIMITED and whatever else is no time."""
    found = _MINUTES.fullmatch(text)
    if not found:
        return None
    days, hours, minutes, _, alone = found.groups()
    return int(alone) if alone else int(days or 0) * 1440 + int(hours or 0) * 60 + int(minutes)


# --- small parts ---


def hosts(text: str) -> tuple[NodeName, ...]:
    """The names of a node list in Slurm's own order; none when it cannot be read."""
    if not text or text.startswith("("):
        return ()
    try:
        return tuple(NodeName(name) for name in expand(text))
    except ValueError:
        return ()


def _listed(text: str, what: str) -> list[Mapping[str, Any]]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise BadMessage(f"Slurm's list of {what} is no JSON: {text[:60]!r}") from err
    found = tree.get(what) if isinstance(tree, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise BadMessage(f"Slurm's answer has no list of {what}")
    return found


def _text(tree: Mapping[str, Any], key: str) -> str:
    value = tree.get(key)
    return value[:_MOST_TEXT] if isinstance(value, str) and value != "(null)" else ""


def _words(tree: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = tree.get(key)
    found = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(str(word) for word in found if word)


def _states(tree: Mapping[str, Any], key: str) -> frozenset[str]:
    value = tree.get(key)
    if isinstance(value, bool):
        return frozenset({"TRUE"} if value else ())
    return frozenset(word.upper() for word in _words(tree, key))


def _number(tree: object, key: str) -> int | None:
    return _plain(tree.get(key)) if isinstance(tree, dict) else None


def _plain(value: object) -> int | None:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    if isinstance(value, bool) or not isinstance(value, int) or value in _NO_VALUE:
        return None
    return value
