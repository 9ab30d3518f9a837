"""The `run` part of a Job: what each launched process is, and what it sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from reconciler.documents.quantities import parse_duration
from reconciler.documents.schema.base import (
    DURATION_JSON,
    NOTHING,
    AbsolutePath,
    Duration,
    Line,
    Listed,
    Strict,
    Text,
    Variable,
    refuse,
)


class Mount(Strict):
    """A folder of the node that the job sees. Without a container, source and target are the same."""

    source: AbsolutePath
    """On the node, below one of the queue's mountRoots."""
    target: AbsolutePath
    """Where the job sees it."""
    read_only: bool = False
    """True: the job cannot write there."""


def _session(written: Any) -> Literal[True] | Mapping[str, int]:
    if written is True:
        return True
    if type(written) is not dict:
        refuse("WrongType" if type(written) is not bool else "UnknownValue", "Expected true, or {idleTimeout: 30m}.")
    if list(written) != ["idleTimeout"] or type(written["idleTimeout"]) is not str:
        refuse("UnknownField", "A session says idleTimeout, a duration such as 30m, and nothing else.")
    try:
        return {"idleTimeout": parse_duration(written["idleTimeout"])}
    except ValueError:
        refuse("BadDuration", "Expected a duration such as 30m for idleTimeout.")


Session: TypeAlias = Annotated[
    Literal[True] | Mapping[str, int],
    PlainValidator(_session),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": True},
                {
                    "type": "object",
                    "properties": {"idleTimeout": {"type": "string", "pattern": DURATION_JSON}},
                    "required": ["idleTimeout"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
"""True, or after which time of disuse it ends by itself."""


class Run(Strict):
    """What each launched process is. Exactly one of `command`, `script` and `session`."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["command"]}, {"required": ["script"]}, {"required": ["session"]}],
        }
    )

    runtime: Literal["process", "bubblewrap", "enroot", "apptainer", "podman"] | None = None
    """Absent: enroot when there is an `image`, else process. bubblewrap: a process that sees the node's files without
    being able to change them, but for its mounts."""
    launch: Literal["perGpu", "perNode"] | None = None
    """One process for each GPU, or one for each node. Absent: perNode for torchrun, else perGpu."""
    command: Annotated[Listed[Text], Field(min_length=1, max_length=1024)] | None = None
    """Program and arguments, started without a shell."""
    script: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    """Text handed to `bash -e`; an own `#!` line is honoured."""
    session: Session | None = None
    """True: starts nothing and holds the GPUs for `gangops shell`, until its time limit. `{idleTimeout: 30m}`: also ends when
    nobody has used it for that long."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Container image, best pinned by digest."""
    working_dir: AbsolutePath | None = None
    """Where it starts. Absent: the user's home, or the image's own."""
    env: Annotated[dict[Variable, Text], Field(max_length=1024)] = NOTHING
    """Environment. Values are public: secrets come by `secretFiles`."""
    secret_files: Listed[AbsolutePath] = ()
    """Files on the node with NAME=value lines, root-owned, read by the agent, below one of the queue's secretRoots.
    Never in git."""
    mounts: Annotated[Listed[Mount], Field(max_length=256)] = ()
    """Folders of the node that it sees."""
    ports: Annotated[int, Field(ge=0, le=16)] = 0
    """Ports chosen for it on its first node: $GANGOPS_PORT_0 and on."""
    ranks_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    """Older spelling of `launch`: 1 is perNode, more is perGpu."""
    rendezvous: Literal["torchrun"] = "torchrun"
    """How ranks meet: MASTER_ADDR, MASTER_PORT, RANK, LOCAL_RANK and WORLD_SIZE are set."""


class Health(Strict):
    """When a running gang counts as sick."""

    startup_timeout: Duration | None = None
    """All ranks must be up within this. Absent: as the cluster says."""
    heartbeat_file: Line | None = None
    """File whose last line, JSON, tells step, stepSeconds, tokensPerSecond and mfu."""
    stall_timeout: Duration | None = None
    """Without a newer heartbeat for this long it is restarted."""
