"""Trees of documents for tests: the scaffold, changed in one place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reconciler.documents.desired import SourceFile, source_file, validate_files
from reconciler.documents.scaffold import scaffold
from reconciler.errors import Diagnostic

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT.parent / "shared" / "examples"

CONFIG = "cluster-state/cluster.yaml"
FABRIC = "cluster-state/fabric/network.yaml"
PROFILE = "cluster-state/inventory/profile.yaml"
RACKS = "cluster-state/inventory/racks.yaml"
QUEUES = "cluster-state/queues/tree.yaml"
CLASSES = "cluster-state/priorities/classes.yaml"
HELLO = "cluster-state/jobs/research/hello.yaml"


def starter() -> dict[str, str]:
    """The scaffold as text: valid, four nodes in two racks, queue research, one job."""
    return {path: content.decode() for path, content in scaffold().items() if path.endswith(".yaml")}


def changed(path: str, old: str, new: str) -> dict[str, str]:
    """The starter with one text replaced once."""
    tree = starter()
    assert tree[path].count(old) >= 1, f"{old!r} is not in {path}"
    tree[path] = tree[path].replace(old, new, 1)
    return tree


def sources(tree: Mapping[str, str]) -> list[SourceFile]:
    return [source_file(path, text.encode()) for path, text in tree.items()]


def problems(tree: Mapping[str, str]) -> tuple[Diagnostic, ...]:
    return validate_files(sources(tree))


def codes(tree: Mapping[str, str]) -> list[str]:
    return [d.code for d in problems(tree)]


def job(body: str = "", *, name: str = "x", gpus: int = 8, run: str = "{command: [python3, a.py]}") -> str:
    """A job of queue research; `body` has further fields of spec, one a line."""
    lines = "".join(f"  {line}\n" for line in body.splitlines())
    limit = "" if "timeLimit" in body else "  timeLimit: 1h\n"
    return (
        f"apiVersion: gangops/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  queue: research\n  gpus: {gpus}\n"
        f"{limit}{lines}  run: {run}\n"
    )


def with_job(text: str, name: str = "x") -> dict[str, str]:
    """The starter and one more job."""
    return {**starter(), f"cluster-state/jobs/research/{name}.yaml": text}


def files_below(root: Path, *folders: str) -> list[SourceFile]:
    """The YAML files of these folders, by their path from `root`."""
    return [
        source_file(path.relative_to(root).as_posix(), path.read_bytes())
        for folder in folders
        for path in sorted((root / folder).rglob("*.yaml"))
    ]
