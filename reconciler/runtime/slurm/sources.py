"""Where does what we know of a Slurm cluster come from: captured files, or its own commands that only look?

Files are told apart by what is in them, so that a folder of captured output can be given as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from reconciler.discovery.reading import read
from reconciler.documents.loader import Tree
from reconciler.engines.slurm.commands import Reader
from reconciler.engines.slurm.reading import jobs_of, nodes_of, partitions_of
from reconciler.engines.slurm.seen import Partition, SlurmJob, SlurmNode
from reconciler.errors import EngineUnavailable, NotFound, UsageError
from reconciler.imports.slurm.tables import Row, kind_of, rows_of
from reconciler.model.units import NodeName
from reconciler.wire import BadMessage

_MOST_BYTES: Final = 256 << 20
_COLUMNS: Final = (
    "Account,User,ParentName,Share,Partition,GrpTRES,GrpTRESMins,GrpJobs,GrpWall,MaxTRES,MaxWall,MaxJobs,MaxSubmit"
)
_QOS_COLUMNS: Final = (
    "Name,Priority,Preempt,GraceTime,PreemptExemptTime,UsageFactor,MaxWall,GrpTRES,MaxTRES,MaxTRESPU,MaxJobsPU,Flags"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """All that was said of one Slurm cluster. `topology` are neutral formats by source, as `imports.topology` reads."""

    nodes: Mapping[NodeName, SlurmNode] = field(default_factory=dict)
    jobs: tuple[SlurmJob, ...] = ()
    has_jobs: bool = False
    partitions: tuple[Partition, ...] = ()
    topology: Mapping[str, Mapping[str, Tree]] = field(default_factory=dict)
    associations: tuple[Row, ...] = ()
    qos: tuple[Row, ...] = ()
    shares: tuple[Row, ...] = ()
    missing: tuple[str, ...] = ()
    """What could not be asked, each with Slurm's reason."""
    is_live: bool = False

    @property
    def at(self) -> int:
        """Seconds since 1970 by which captured output was surely printed: the last thing that its jobs did; 0 unknown."""
        times = [max(job.submitted, job.started if job.holds else 0) for job in self.jobs]
        return max(times, default=0)


def captured(files: Iterable[Path]) -> Captured:
    """What these files, and the files of these folders, say. Raises: NotFound, UsageError (NotSlurm)."""
    found = Captured()
    for file in _all_files(files):
        found = _with_text(found, str(file), _text_of(file))
    return found


def live(reader: Reader) -> Captured:
    """What the cluster itself says, by commands that only look. Raises: EngineUnavailable."""
    sight = reader.look()
    found = Captured(nodes=sight.nodes, jobs=sight.jobs, has_jobs=True, partitions=reader.partitions(), is_live=True)
    missing = []
    for argv in (
        ("scontrol", "show", "topology"),
        ("sacctmgr", "-P", "show", "associations", f"format={_COLUMNS}"),
        ("sacctmgr", "-P", "show", "qos", f"format={_QOS_COLUMNS}"),
        ("sshare", "-a", "-P", "-o", "Account,User,RawShares,RawUsage,GrpTRESRaw"),
    ):
        try:
            text = reader.ask(*argv)
        except EngineUnavailable as err:
            missing.append(f"{' '.join(argv[:4])}: {err.message}")
            continue
        with suppress(UsageError):  # an empty answer says nothing
            found = _with_text(found, " ".join(argv[:3]), text)
    return replace(found, missing=tuple(missing))


def _all_files(files: Iterable[Path]) -> Iterable[Path]:
    for file in files:
        if file.is_dir():
            yield from sorted(path for path in file.iterdir() if path.is_file())
        else:
            yield file


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as err:
        raise NotFound(f"{file}: {err.strerror}", code="FileNotReadable", remedy="Name a readable file.") from err


def _with_text(found: Captured, source: str, text: str) -> Captured:
    """What was known, and what this text adds. Raises: UsageError (NotSlurm)."""
    if text.lstrip().startswith("{"):
        return _with_json(found, source, text)
    table = kind_of(text)
    if table == "associations":
        return replace(found, associations=(*found.associations, *rows_of(text)))
    if table == "qos":
        return replace(found, qos=(*found.qos, *rows_of(text)))
    if table == "shares":
        return replace(found, shares=(*found.shares, *rows_of(text)))
    if "SwitchName=" in text or "BlockName=" in text or text.lstrip().startswith(("---", "- topology:")):
        parsed = read(_as_conf(text).encode())
        return replace(found, topology={**found.topology, source: parsed.tree()})
    if "PartitionName=" in text and "NodeName=" not in text:
        return replace(found, partitions=(*found.partitions, *partitions_of(text)))
    raise UsageError(
        f"{source} is none of the outputs that are read here",
        code="NotSlurm",
        remedy="Known are: sinfo --json (22.05) or scontrol show node --json, squeue --json, scontrol show partition -o, "
        "scontrol show topology or topology.conf, sacctmgr -P show associations, sacctmgr -P show qos, sshare -a -P.",
    )


def _with_json(found: Captured, source: str, text: str) -> Captured:
    with suppress(BadMessage):
        jobs = jobs_of(text)
        return replace(found, jobs=jobs, has_jobs=True)
    with suppress(BadMessage):
        return replace(found, nodes={**found.nodes, **nodes_of(text)})
    # Other JSON that Slurm prints (sinfo of 24.11, sdiag, ping) says nothing that is needed.
    return replace(found, missing=(*found.missing, f"{source}: JSON without nodes or jobs"))


def _as_conf(text: str) -> str:
    """`scontrol show topology` as the topology.conf it was made of: level and speed dropped, and derived node lists."""
    if "Level=" not in text:
        return text
    lines = []
    for line in text.splitlines():
        words = [word for word in line.split() if not word.startswith(("Level=", "LinkSpeed="))]
        if any(word.startswith("Switches=") for word in words):
            words = [word for word in words if not word.startswith("Nodes=")]
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"
