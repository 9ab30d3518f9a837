"""A Job as others count it: nodes and GPUs of each, and what of its document has no counterpart there.

Shared by the writers. They take the document as people wrote it, checked by the schema, not the job with every
default filled in: what was left unsaid stays unsaid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from posixpath import basename
from typing import Any, Final

from reconciler.documents.check import check
from reconciler.documents.loader import Document, load
from reconciler.errors import Diagnostic, InvalidInput
from reconciler.imports.mapping import Mapped
from reconciler.imports.notes import Notes
from reconciler.model.counting import counted

MOST_TASKS: Final = 1000  # of an array with parameters, which are written out one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The text, and a note for each field that is not in it. With `errors` there is no text."""

    text: str
    notes: tuple[Diagnostic, ...] = ()
    errors: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """`most` nodes (`least` when it may shrink) of `each` GPUs; `each` is 0 when GPUs do not divide evenly."""

    least: int
    most: int
    each: int


class JobText:
    """A Job document being written as something else; what is never read is noted."""

    def __init__(self, document: Document, notes: Notes) -> None:
        self.document = document
        self.notes = notes
        tree: Any = document.value
        self.name: str = tree["metadata"]["name"]
        self.metadata: dict[str, Any] = tree["metadata"]
        self.spec: dict[str, Any] = tree["spec"]
        self.run: dict[str, Any] = tree["spec"]["run"]
        self._taken: set[tuple[str, ...]] = set()

    def take(self, *path: str) -> Any:
        """The value at this path below `spec`, or None; it counts as carried over."""
        at: Any = self.spec
        for step in path:
            at = at.get(step) if isinstance(at, dict) else None
        if at is not None:
            self._taken.add(path)
        return at

    def note(self, code: str, detail: str, *path: str, remedy: str = "") -> None:
        """A note about a field below `spec`, which then counts as dealt with."""
        self._taken.add(path)
        place = self.document.place_of(("spec", *path), of_key=True)
        self.notes.note(code, detail, line=place.line, at=place.path, remedy=remedy)

    def note_leftovers(self) -> None:
        """A note for everything below `spec` that was never taken."""
        for path in list(self._left(())):
            self.note("NotCarriedOver", "There is no counterpart.", *path)

    def _left(self, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if path in self._taken:
            return
        at: Any = self.spec
        for step in path:
            at = at[step]
        if isinstance(at, dict) and (not path or any(taken[: len(path)] == path for taken in self._taken)):
            for key in at:
                yield from self._left((*path, key))
        elif path:
            yield path

    @property
    def launch(self) -> str:
        """PerGpu or perNode, the default included."""
        said = self.take("run", "launch")
        torchrun = basename((self.run.get("command") or [""])[0]) == "torchrun"
        return str(said or ("perNode" if torchrun or self.run.get("session") else "perGpu"))


def read_job(content: bytes, file: str) -> Document:
    """The one Job of a file. Raises: InvalidInput, when it is not valid, or not one Job."""
    loaded = load(content, file)
    problems = list(loaded.diagnostics) if not loaded.ok else []
    for document in loaded.documents:
        problems += check(document)[1]
    jobs = [document for document in loaded.documents if document.kind == "Job"]
    notes = Notes(file=file)
    if not problems and (len(jobs) != 1 or len(loaded.documents) != 1):
        notes.refuse(
            "NotExported", f"The file has {counted(len(loaded.documents), 'document')}; one Job is exported at a time."
        )
    if problems or notes.errors:
        raise InvalidInput([*problems, *notes.errors])
    return jobs[0]


def shape_of(job: JobText, mapped: Mapped) -> Shape:
    """Nodes and GPUs of each, from `gpus`, `parallelism` and `elastic`.

    Groups of an elastic gang, and tensor groups that are part of a node, become the GPUs of a node; else nodes are whole.
    """
    gpus = int(job.take("gpus"))
    parallelism: Mapping[str, int] = job.spec.get("parallelism", {})
    elastic = job.spec.get("elastic")
    sizes = {name: size for name, size in parallelism.items() if size > 1}
    if elastic is not None and elastic.get("dimension", "data") == "data":
        each = gpus // parallelism.get("data", 1)
        if each <= mapped.gpus_per_node:
            job.take("elastic")
            job.take("parallelism")
            return Shape(elastic["min"], elastic["max"], each)
    tensor = sizes.get("tensor", 1)
    if set(sizes) == {"tensor", "data"} and tensor < mapped.gpus_per_node and "topology" not in job.spec:
        job.take("parallelism")
        return Shape(sizes["data"], sizes["data"], tensor)
    if gpus <= mapped.gpus_per_node:
        return Shape(1, 1, gpus)
    if gpus % mapped.gpus_per_node:
        nodes = -(-gpus // mapped.gpus_per_node)
        return Shape(nodes, nodes, 0)
    return Shape(gpus // mapped.gpus_per_node, gpus // mapped.gpus_per_node, mapped.gpus_per_node)


def tasks_of(array: Mapping[str, Any]) -> list[dict[str, str]]:
    """The parameters of each task of an array with `values` or `matrix`; as text."""
    if "values" in array:
        return [{name: str(value) for name, value in one.items()} for one in array["values"]]
    matrix = array["matrix"]
    return [
        {name: str(value) for name, value in zip(matrix, chosen, strict=True)} for chosen in product(*matrix.values())
    ]


def inverse(names: Mapping[str, str]) -> dict[str, str]:
    """Their name by ours; of several, the first in order."""
    found: dict[str, str] = {}
    for theirs in sorted(names):
        found.setdefault(names[theirs], theirs)
    return found
