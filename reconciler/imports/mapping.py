"""What are the other scheduler's names called here? A small YAML file that people write once for their cluster.

    queues:          {team-a: nlp}                    # account, partition, Kueue or Volcano queue -> queue
    priorityClasses: {high: production}               # qos, Kueue or Kubernetes priority class -> class
    gpuTypes:        {h100: H100-SXM5-80GB}           # type, partition or node selector value -> GPU type
    levels:          {cloud.provider.com/topology-rack: rack, switches: rack}      # topology key -> level
    nodeLabels:      {volta32gb: {gpu-memory: 32g}, "disk=ssd": {disk: ssd}}       # constraint, selector -> labels
    mounts:          {datasets: /fs/datasets}         # name of a claim -> folder on the nodes
    jobs:            {"1234": nlp/tokenize}           # job id of a dependency -> job
    gpusPerNode:     8                                # GPUs of a whole node; 8 when absent
    checkpointDir:   /fs/ckpt/{queue}/{name}          # where jobs that ask for a signal keep checkpoints
    workingDir:      /fs/home/team-a                  # where commands with relative paths start

Every key may be absent. Names without an entry are taken as they are where they could be ours, and noted otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from reconciler.documents.loader import Document, load
from reconciler.documents.similar import did_you_mean
from reconciler.errors import Diagnostic, InvalidInput

_TEXTS: Final = {
    "queues": "queues",
    "priorityClasses": "classes",
    "gpuTypes": "gpu_types",
    "levels": "levels",
    "mounts": "mounts",
    "jobs": "jobs",
}
_KNOWN: Final = (*_TEXTS, "nodeLabels", "gpusPerNode", "checkpointDir", "workingDir")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """The map file. Without one, everything is empty and a node has 8 GPUs."""

    queues: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)
    gpu_types: Mapping[str, str] = field(default_factory=dict)
    levels: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[str, str] = field(default_factory=dict)
    node_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpus_per_node: int = 8
    checkpoint_dir: str = ""
    working_dir: str = ""
    known_types: tuple[str, ...] = ()
    """GPU types of the cluster, where it is known: `h100` is the only one with h100 in its name."""

    def gpu_type(self, theirs: str) -> str:
        """Our name of a type of theirs: as mapped, else the only known one that contains it, else theirs."""
        if theirs in self.gpu_types:
            return self.gpu_types[theirs]
        alike = [known for known in self.known_types if theirs.lower() in known.lower()]
        return alike[0] if len(alike) == 1 and theirs not in self.known_types else theirs


def read_map(content: bytes, file: str, known_types: tuple[str, ...] = ()) -> Mapped:
    """The map file these bytes are. Raises: InvalidInput, with everything that is wrong with it."""
    loaded = load(content, file)
    if not loaded.ok:
        raise InvalidInput(loaded.diagnostics)
    document = loaded.documents[0]
    problems = list(_problems(document)) if isinstance(document.value, dict) else [_wrong(document, (), "a mapping")]
    if problems or not isinstance(document.value, dict):
        raise InvalidInput(problems)
    said: dict[str, Any] = document.value
    texts = {ours: {k: str(v) for k, v in said.get(key, {}).items()} for key, ours in _TEXTS.items()}
    return Mapped(
        **texts,
        node_labels=said.get("nodeLabels", {}),
        gpus_per_node=said.get("gpusPerNode", 8),
        checkpoint_dir=said.get("checkpointDir", ""),
        working_dir=said.get("workingDir", ""),
        known_types=known_types,
    )


def _problems(document: Document) -> list[Diagnostic]:
    assert isinstance(document.value, dict)
    found = []
    for key, value in document.value.items():
        if key not in _KNOWN:
            found.append(
                Diagnostic(
                    "UnknownField",
                    "Field is not known",
                    f"A map file has {', '.join(_KNOWN)}.",
                    document.place_of((key,), of_key=True),
                    did_you_mean(key, _KNOWN),
                )
            )
        elif key in _TEXTS and not _is_texts(value):
            found.append(_wrong(document, (key,), "a mapping of names to names"))
        elif key == "nodeLabels" and not (isinstance(value, dict) and all(map(_is_texts, value.values()))):
            found.append(_wrong(document, (key,), "a mapping of names to labels"))
        elif key == "gpusPerNode" and not (type(value) is int and 1 <= value <= 64):
            found.append(_wrong(document, (key,), "a number of GPUs, 1 to 64"))
        elif key in {"checkpointDir", "workingDir"} and not (isinstance(value, str) and value.startswith("/")):
            found.append(_wrong(document, (key,), "an absolute path"))
    return found


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _wrong(document: Document, path: tuple[str, ...], expected: str) -> Diagnostic:
    return Diagnostic(
        "WrongType",
        "Value has the wrong type",
        f"Expected {expected}.",
        document.place_of(path),
        "`gangops import sbatch --help` shows the keys.",
    )
