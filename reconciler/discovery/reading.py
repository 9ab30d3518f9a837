"""What do these bytes say, taken as one of the formats we know?

The way in for everything captured: size and text are checked once here, then the parser of the kind is called. No
file is opened, no program run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from reconciler.discovery import (
    hostlists,
    ibnetdiscover,
    lldp,
    nccl_xml,
    numactl,
    nvidia_topo,
    rocm_topo,
    slurm_gres,
    slurm_nodes,
    slurm_topology,
    slurm_topology_yaml,
)
from reconciler.discovery.detect import kind_of
from reconciler.discovery.parsed import MAX_BYTES, MAX_LINES, Kind, Parsed, Remark, Status, failure

PARSERS: Final[Mapping[Kind, Callable[[str], Parsed]]] = MappingProxyType(
    {
        Kind.NVIDIA_TOPO: nvidia_topo.parse,
        Kind.NUMACTL: numactl.parse,
        Kind.NCCL_XML: nccl_xml.parse,
        Kind.ROCM_TOPO: rocm_topo.parse,
        Kind.LLDP: lldp.parse,
        Kind.IBNETDISCOVER: ibnetdiscover.parse,
        Kind.SLURM_TOPOLOGY: slurm_topology.parse,
        Kind.SLURM_TOPOLOGY_YAML: slurm_topology_yaml.parse,
        Kind.SLURM_GRES: slurm_gres.parse,
        Kind.SLURM_NODES: slurm_nodes.parse,
        Kind.HOSTLIST: hostlists.parse,
    }
)

# A text of these that is cut is no text of these.
_SELF_CLOSING: Final = frozenset({Kind.NCCL_XML, Kind.LLDP})


def read(content: bytes, kind: Kind | None = None) -> Parsed:
    """What the bytes say, as `kind` or as what they look like. Never raises for bad content."""
    if len(content) > MAX_BYTES:
        return failure(kind, "TOO_LARGE", f"{len(content)} bytes; at most {MAX_BYTES} are read")
    text, crlf = _text(content)
    if text is None:
        return failure(kind, "NOT_TEXT", "undecodable bytes or NUL found: not UTF-8 text")
    if text.count("\n") > MAX_LINES:
        return failure(kind, "TOO_LARGE", f"more than {MAX_LINES} lines")
    if not text.strip():
        return failure(kind, "EMPTY", "the file has no content")
    kind = kind or kind_of(text)
    if kind is None:
        return failure(None, "UNKNOWN_KIND", "the text looks like none of the formats that are read; --kind names one")
    parsed = PARSERS[kind](text)
    if parsed.status is not Status.ERROR and kind not in _SELF_CLOSING and not text.endswith("\n"):
        remark = Remark(code="NO_LINE_END", reason="the last line has no end: it may be cut, its last value wrong")
        parsed = replace(parsed, status=Status.PARTIAL, warnings=(*parsed.warnings, remark))
    if crlf:
        remark = Remark(code="CRLF", reason="DOS line ends accepted")
        parsed = replace(parsed, warnings=(*parsed.warnings, remark))
    return parsed


def _text(content: bytes) -> tuple[str | None, bool]:
    """The text with Unix line ends, and whether they were others; None when the bytes are no text."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None, False
    if "\0" in text:
        return None, False
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    return plain, plain != text
