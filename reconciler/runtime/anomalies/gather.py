"""Looks at everything finders read: the record in a clone, a running reconciler, its local files, captured output.

What cannot be reached is left empty, and a reconciler that was asked and is silent is said to be. Nothing is judged here.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from reconciler.discovery import nvidia_topo
from reconciler.discovery.nccl_log import parse_nccl_log, ring_hops
from reconciler.documents.values import value_of
from reconciler.engines.certificates import CA_CERTIFICATE, certificate_end
from reconciler.errors import StoreError, UsageError
from reconciler.model.allocation import Allocation
from reconciler.model.anomaly import Disk, Hop, Lifetime, NodeVitals, Writing
from reconciler.model.desired import Desired
from reconciler.model.units import DAY, SECOND, Bytes, Instant, Nanoseconds, NodeName
from reconciler.runtime.anomalies.situation import Health, Situation
from reconciler.runtime.clone import Clone
from reconciler.runtime.generation import Generation
from reconciler.runtime.settings import Settings
from reconciler.store.history import CommitMeta, first_parent_log
from reconciler.store.objects import file_at

_WRITINGS: Final = 200
_SECONDS: Final = 5
_AUTHORITY_SPARE: Final = Nanoseconds(90 * DAY)
_SERVER_SPARE: Final = Nanoseconds(7 * DAY)
_SIGNER_SPARE: Final = Nanoseconds(30 * DAY)
_TRUST: Final = ("desired/cluster-state/trust/allowed_signers", "desired/cluster-state/trust/state.allowed_signers")
_LAST_DAY: Final = re.compile(r'valid-before="(\d{8})(\d{4})?(\d{2})?Z?"', re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Output that somebody brought along: `nvidia-smi topo -m` by node, and logs of NCCL."""

    topologies: Mapping[NodeName, str]
    logs: Sequence[str] = ()


def gather(
    clone: Clone, generation: Generation, desired: Desired, now: Instant, live: str, settings: Settings | None,
    captured: Captured,
) -> Situation:  # fmt: skip
    """The situation of a cluster at its newest generation. `live` is the reconciler's status address, "" not to ask.

    Raises UsageError for what was brought along and cannot be read.
    """
    health, vitals = ask(live) if live else (Health(), {})
    log = first_parent_log(clone.git, generation.commit, limit=_WRITINGS)
    return Situation(
        desired=desired,
        allocation=generation.allocation,
        observed=generation.observed,
        now=now,
        vitals=vitals,
        health=health,
        writings=tuple(_writing(meta) for meta in log),
        lifetimes=_own_certificates(settings) if settings else (),
        signers=tuple(signer for path in _TRUST for signer in signers_of(file_at(clone.git, generation.commit, path))),
        disks=_own_disks(settings) if settings else (),
        hops=hops_of(captured, generation.allocation),
    )


def _writing(meta: CommitMeta) -> Writing:
    said = dict(meta.trailers).get("Generation", "")
    number = int(said) if said.isdecimal() and len(said) < 19 else -1
    return Writing(writer=meta.committer, at=Instant(meta.committed_at), generation=number)


# --- a running reconciler ---


def ask(address: str) -> tuple[Health, Mapping[NodeName, NodeVitals]]:
    """What a reconciler says of itself and what its nodes say. One that does not answer is `away`."""
    base = (address if "://" in address else f"http://{address}").rstrip("/")
    try:
        health, live = _read(f"{base}/healthz"), _read(f"{base}/live")
        vitals = {NodeName(name): value_of(NodeVitals, row) for name, row in _mapping(live.get("nodes")).items()}
    except (OSError, ValueError, StoreError) as err:
        why = err.reason if isinstance(err, urllib.error.URLError) else err
        return Health(asked=True, away=f"{base} does not answer as a reconciler: {why}"), {}
    return Health(
        asked=True,
        ready=health.get("ready") is True and health.get("stalled") is not True,
        reason=str(health.get("reason", "")),
        message=str(health.get("message", "")),
        remedy=str(health.get("remedy", "")),
        pushes={result: count for result, count in _mapping(live.get("pushes")).items() if isinstance(count, int)},
    ), vitals


def _read(url: str) -> dict[str, Any]:
    """The object at an address; an answer that says "not well" is one too."""
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:  # noqa: S310  a local setting
            return _mapping(json.load(answer))
    except urllib.error.HTTPError as err:
        with err:
            return _mapping(json.load(err))


def _mapping(tree: object) -> dict[str, Any]:
    return tree if isinstance(tree, dict) else {}


# --- files of this machine ---


def _own_certificates(settings: Settings) -> tuple[Lifetime, ...]:
    """The CA of nodes, and the server's own certificate."""
    named = [("server certificate", settings.folder / "tls" / "server.crt", _SERVER_SPARE)]
    if settings.ca is not None:
        named.insert(0, ("node CA", settings.ca / CA_CERTIFICATE, _AUTHORITY_SPARE))
    found = ((name, certificate_end(path), spare) for name, path, spare in named)
    return tuple(Lifetime(name=name, ends=ends, spare=spare) for name, ends, spare in found if ends is not None)


def _own_disks(settings: Settings) -> tuple[Disk, ...]:
    try:
        found = os.statvfs(settings.folder)
    except OSError:
        return ()
    free, size = Bytes(found.f_bavail * found.f_frsize), Bytes(found.f_blocks * found.f_frsize)
    return (Disk(path=str(settings.folder), free=free, size=size),)


def signers_of(allowed: bytes | None) -> tuple[Lifetime, ...]:
    """The principals of an allowed_signers file whose key has a last day."""
    found = []
    for line in (allowed or b"").decode("utf-8", "replace").splitlines():
        last = _LAST_DAY.search(line)
        if last is not None and not line.lstrip().startswith("#"):
            try:
                at = datetime.strptime(f"{last[1]}{last[2] or '0000'}{last[3] or '00'}+0000", "%Y%m%d%H%M%S%z")
            except ValueError:
                continue
            ends = Instant(int(at.timestamp()) * SECOND)
            found.append(Lifetime(name=line.split()[0], ends=ends, spare=_SIGNER_SPARE))
    return tuple(found)


# --- captured output ---


def read_captured(topologies: Iterable[str], logs: Iterable[Path]) -> Captured:
    """Raises UsageError (BadOption, FileUnreadable): each topology is given as NODE=FILE."""
    found = {}
    for given in topologies:
        node, _, path = given.partition("=")
        if not node or not path:
            raise UsageError(
                f"--topo {given}", code="BadOption", remedy="--topo NODE=FILE, of nvidia-smi topo -m there"
            )
        found[NodeName(node)] = _text(Path(path))
    return Captured(topologies=found, logs=tuple(_text(path) for path in logs))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as err:
        raise UsageError(
            f"{path} cannot be read: {err.strerror}", code="FileUnreadable", remedy="name a readable file"
        ) from err


def hops_of(captured: Captured, allocation: Allocation) -> tuple[Hop, ...]:
    """The neighbours in rings: those that logs tell, and for each gang on a node whose topology is known, those of a
    ring over its GPUs there in the order of ranks. Raises UsageError (NotATopology)."""
    found = [hop for log in captured.logs for hop in parse_nccl_log(log)]
    for node, text in captured.topologies.items():
        parsed = nvidia_topo.parse(text)
        if parsed.errors:
            raise UsageError(
                f"--topo {node}: {parsed.errors[0]}", code="NotATopology", remedy="nvidia-smi topo -m > FILE"
            )
        links = _mapping(parsed.content["links"])
        for record in allocation.jobs.values():
            if record.placement is not None and record.state.holds_gpus:
                gpus = [place.gpu for place in record.placement.ranks if place.node == node]
                found += ring_hops(node, gpus, links)
    return tuple(dict.fromkeys(found))
