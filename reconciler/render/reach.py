"""How does a person reach what a job serves, such as a notebook? The address of each of its ports, and a tunnel there."""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.model.allocation import JobRecord
from reconciler.model.observed import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """One port of a job. `variable` is how its ranks know it; `url` is good at the other end of `tunnel`, or on the
    cluster's own network with `address` for localhost."""

    variable: str
    address: str
    port: int
    url: str
    tunnel: str


def reaches(record: JobRecord, observed: Observed) -> tuple[Reach, ...]:
    """The ports that `run.ports` asked for, in order; none while the job has no place. They are on its first node."""
    if record.placement is None or not record.state.holds_gpus:
        return ()
    leader = record.placement.nodes[0]
    seen = observed.nodes.get(leader)
    address = seen.address if seen is not None and seen.address else leader
    return tuple(
        Reach(
            variable=f"GANGOPS_PORT_{number}",
            address=address,
            port=port,
            url=f"http://localhost:{port}",
            tunnel=f"ssh -N -L {port}:{_bracketed(address)}:{port} {leader}",
        )
        for number, port in enumerate(record.ports[1:])  # the first one is the rendezvous
    )


def reach_lines(record: JobRecord, observed: Observed) -> list[str]:
    """The same for people: two lines a port."""
    lines = []
    for reach in reaches(record, observed):
        lines += [f"{reach.url}  (${reach.variable} at {reach.address})", f"  after: {reach.tunnel}"]
    return lines


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
