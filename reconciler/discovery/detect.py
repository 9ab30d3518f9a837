"""Which format is a text, judged by what only that format has?"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from reconciler.discovery import hostlists
from reconciler.discovery.parsed import Kind, Status

_LOOKED_AT: Final = 128 << 10  # characters from the start
_LINE_LOOKED_AT: Final = 400
_LINE: Final = re.MULTILINE | re.IGNORECASE


def _has(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, _LINE)
    return lambda text: compiled.search(text) is not None


# First match wins.
_MARKS: Final[tuple[tuple[Kind, Callable[[str], bool]], ...]] = (
    (Kind.NCCL_XML, _has(r"\A\s*<(?:\?xml|!--|!DOCTYPE|system\b)")),
    (Kind.LLDP, _has(r'\A\s*\{\s*"lldp"')),
    # Its rows look like those of nvidia-smi, so its titles are asked for first.
    (Kind.ROCM_TOPO, _has(r"ROCm System Management Interface|^=+ ?(?:weight|hops|link type) between two GPUs")),
    (
        Kind.NUMACTL,
        _has(r"^[>|# \t]*(?:available: +\d+ nodes?|node \d+ (?:cpus|size):)|\ANo NUMA (?:support )?available"),
    ),
    (Kind.IBNETDISCOVER, _has(r'^[ \t>]*(?:switchguid=|caguid=|Switch\s+\d+\s+"S-|Ca\s+\d+\s+"H-)')),
    (
        Kind.NVIDIA_TOPO,
        _has(r"\bGPU0.*(?:GPU1|CPU Affinity)|^[^\n]*\bGPU\d+\s+X\s|NVIDIA-SMI has failed|No devices were found"),
    ),
    (Kind.NVIDIA_TOPO, _has(r"\AFailed to initialize NVML")),
    (Kind.SLURM_TOPOLOGY_YAML, _has(r"^-\s+topology\s*:")),
    (Kind.SLURM_TOPOLOGY, _has(r"^\s*(?:SwitchName|BlockName|BlockSizes|RingName)\s*=")),
    (Kind.SLURM_GRES, _has(r"^\s*(?:NodeName=\S+\s+)?(?:Name\s*=|AutoDetect\s*=)")),
    (Kind.SLURM_NODES, _has(r"^\s*(?:NodeName|PartitionName|NodeSet)\s*=")),
)


def kind_of(text: str) -> Kind | None:
    """The format of a text; None when nothing speaks for any."""
    start = "\n".join(line[:_LINE_LOOKED_AT] for line in text[:_LOOKED_AT].split("\n"))
    for kind, has_mark in _MARKS:
        if has_mark(start):
            return kind
    # Any word is a host list of one: a bracket or a comma, and no blanks, make it meant as one.
    lists = [line.partition("#")[0].split() for line in start.split("\n")]
    if ("[" in start or "," in start) and max(map(len, lists)) == 1 and hostlists.parse(text).status is Status.OK:
        return Kind.HOSTLIST
    return None
