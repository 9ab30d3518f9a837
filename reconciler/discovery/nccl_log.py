"""Which way do NCCL's rings go? The connections of a log that `NCCL_DEBUG=INFO` wrote, by node and GPU.

Reads the output of any number of processes mixed together, behind prefixes such as those of `gangops logs`. Ranks are
numbered anew in each communicator, so which node a rank is on is kept by communicator. Whether a way is a good one
is judged elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.discovery.parsed import LONGEST_LINE
from reconciler.model.anomaly import Hop

_MOST_HOPS: Final = 100_000
_LINE: Final = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d+):(?P<thread>\d+) \[\w+\] NCCL INFO (?P<rest>.*)")
# ncclCommInitRank and its kin name the communicator by an id that all its ranks share.
_JOINED: Final = re.compile(r".*\bcommId (?P<comm>0x[0-9a-f]+)")
_HOP: Final = re.compile(
    r"Channel \d+(?:/\d+)? ?: (?P<one>\d+)\[(?P<gpu>\w+)\] -> (?P<other>\d+)\[(?P<peer>\w+)\]"
    r"(?: \[(?P<side>send|receive)\])? via (?P<via>\S+(?: Libfabric\S*)?)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    """One line: in which communicator, between which ranks, told by a host that is on one of its ends."""

    comm: str
    one: int
    gpu: str
    other: int
    peer: str
    via: str


def parse_nccl_log(text: str) -> tuple[Hop, ...]:
    """A hop for each connection of each channel, told once however many lines tell of it; in the order of nodes.

    A rank whose node no line tells is on node "". Text without such lines gives none.
    """
    hosts: dict[tuple[str, int], str] = {}
    comms: dict[tuple[str, ...], str] = {}
    connections: list[_Connection] = []
    for line in text.split("\n"):
        found = _LINE.search(line[:LONGEST_LINE])
        if found is None or len(connections) >= _MOST_HOPS:
            continue
        speaker = (found["host"], found["pid"], found["thread"])
        if joined := _JOINED.match(found["rest"]):
            comms[speaker] = comms[speaker[:2]] = joined["comm"]
        elif hop := _HOP.match(found["rest"]):
            # Connections made later, at the first use, are told by other threads of the process.
            comm = comms.get(speaker) or comms.get(speaker[:2], "")
            one, other = int(hop["one"]), int(hop["other"])
            # The sender tells of a connection, unless the line says that it is the receiver's.
            hosts[comm, other if hop["side"] == "receive" else one] = found["host"]
            connections.append(
                _Connection(comm=comm, one=one, gpu=hop["gpu"], other=other, peer=hop["peer"], via=hop["via"])
            )
    return _hops(connections, hosts)


def _hops(connections: Iterable[_Connection], hosts: Mapping[tuple[str, int], str]) -> tuple[Hop, ...]:
    found = {
        Hop(
            node=hosts.get((at.comm, at.one), ""),
            gpu=at.gpu,
            peer_node=hosts.get((at.comm, at.other), ""),
            peer=at.peer,
            via=at.via,
        )
        for at in connections
    }
    known = (hop for hop in found if hop.node and hop.peer_node)
    return tuple(sorted(known, key=lambda hop: (hop.node, hop.gpu, hop.peer_node, hop.peer, hop.via)))


def ring_hops(node: str, gpus: Iterable[int], links: Mapping[str, Mapping[str, str]]) -> tuple[Hop, ...]:
    """The hops of a ring over these GPUs of one node, in this order and back, by the links of `nvidia-smi topo -m`.

    A pair of which the matrix says nothing is left out; so is a ring of one GPU.
    """
    names = [f"GPU{gpu}" for gpu in gpus]
    pairs = list(zip(names, [*names[1:], *names[:1]], strict=True)) if len(names) > 1 else []
    ways = ((one, other, links.get(one, {}).get(other, "")) for one, other in pairs)
    return tuple(
        Hop(node=node, gpu=one.removeprefix("GPU"), peer_node=node, peer=other.removeprefix("GPU"), via=way)
        for one, other, way in ways
        if way
    )
