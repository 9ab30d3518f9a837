"""What did a parser find, how much of it is there, and what was wrong with the text?

The one result of every parser of this package. Whether the hardware is as declared is not asked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from reconciler.documents.loader import Tree

MAX_BYTES: Final = 8 << 20  # of one captured output
MAX_LINES: Final = 100_000
LONGEST_LINE: Final = 64 << 10  # characters, where a line is one row of a table
MAX_NAMES: Final = 50_000  # node, switch or device names that one text may expand to
_MOST_REMARKS: Final = 50  # of one sort; a text that is wrong everywhere says so once


class Kind(StrEnum):
    """The formats that are read; each value is the name of its neutral format, without the version."""

    NVIDIA_TOPO = "nvidia-smi-topo-m"
    NUMACTL = "numactl-hardware"
    NCCL_XML = "nccl-topo-xml"
    ROCM_TOPO = "rocm-smi-showtopo"
    LLDP = "lldpctl-json"
    IBNETDISCOVER = "ibnetdiscover"
    SLURM_TOPOLOGY = "slurm-topology-conf"
    SLURM_TOPOLOGY_YAML = "slurm-topology-yaml"
    SLURM_GRES = "slurm-gres-conf"
    SLURM_NODES = "slurm-conf-nodes"
    HOSTLIST = "hostlist"

    @property
    def format_name(self) -> str:
        """The versioned name that results carry."""
        return f"{self.value}/v1"


class Status(StrEnum):
    """How far a result can be trusted: all of it, what it lists (gaps are named), or not at all."""

    OK = "ok"
    PARTIAL = "partial"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One thing to know about a text. `code` is stable and in capitals; `reason` names the place."""

    code: str
    reason: str

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What one text says. With status error, `content` is for looking at (often empty), never for use."""

    format: str | None  # None: it could not be told what the text is
    status: Status
    content: Mapping[str, Tree]
    warnings: tuple[Remark, ...] = ()
    errors: tuple[Remark, ...] = ()

    def tree(self) -> dict[str, Tree]:
        """The neutral format: format, status, the values, then warnings and errors as `CODE: reason`."""
        return {
            "format": self.format,
            "status": str(self.status),
            **self.content,
            "warnings": [str(remark) for remark in self.warnings],
            "errors": [str(remark) for remark in self.errors],
        }


@dataclass(slots=True, kw_only=True)
class Notes:
    """Gathers what a parser has to say while it reads; the status follows from it."""

    warnings: list[Remark] = field(default_factory=list)
    errors: list[Remark] = field(default_factory=list)
    gaps: bool = False

    def warn(self, code: str, reason: str) -> None:
        """Worth knowing; every value is there and right."""
        if len(self.warnings) < _MOST_REMARKS:
            self.warnings.append(Remark(code=code, reason=reason))

    def gap(self, code: str, reason: str) -> None:
        """Something is missing or unknown: the result is partial."""
        self.gaps = True
        self.warn(code, reason)

    def fail(self, code: str, reason: str) -> None:
        """The result is of no use."""
        if len(self.errors) < _MOST_REMARKS:
            self.errors.append(Remark(code=code, reason=reason))

    def parsed(self, kind: Kind, content: Mapping[str, Tree]) -> Parsed:
        """The result with its status; `content` as given, also with errors."""
        status = Status.ERROR if self.errors else Status.PARTIAL if self.gaps else Status.OK
        return Parsed(
            format=kind.format_name,
            status=status,
            content=content,
            warnings=tuple(self.warnings),
            errors=tuple(self.errors),
        )


def failure(kind: Kind | None, code: str, reason: str) -> Parsed:
    """A result with one error and no values."""
    return Parsed(
        format=kind.format_name if kind else None,
        status=Status.ERROR,
        content={},
        errors=(Remark(code=code, reason=reason),),
    )


def listed(names: Mapping[str, object] | list[str] | tuple[str, ...], most: int = 8) -> str:
    """Names for a message, no more than `most` of them."""
    shown = [shortened(name) for name in list(names)[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def shortened(text: str, most: int = 80) -> str:
    """Foreign text for a message: one line, printable, cut."""
    plain = "".join(c if c.isprintable() else "?" for c in text[: most + 1])
    return plain if len(plain) <= most else f"{plain[:most]}..."
