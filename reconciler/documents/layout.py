"""Which documents belong in which folder, and which job does a path name? Ownership in the forge is by path.

Paths are relative to the root of the repository, with `/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from reconciler.documents.check import Item
from reconciler.documents.similar import listed
from reconciler.errors import Diagnostic, Place
from reconciler.model.units import JobKey, job_key

ROOT: Final = "cluster-state/"
POLICIES: Final = "policies/"
CONFIG: Final = "cluster-state/cluster.yaml"
JOBS: Final = "cluster-state/jobs/"

_FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster-state/fabric/": ("Fabric",),
    "cluster-state/inventory/": ("NodeProfile", "NodeSet"),
    "cluster-state/queues/": ("Queue",),
    "cluster-state/priorities/": ("PriorityClass",),
    JOBS: ("Job",),
    "cluster-state/maintenance/": ("Maintenance", "Reservation"),
    "cluster-state/users/": ("User",),
    POLICIES: ("Policy",),
}
_OPTIONAL: Final = ("cluster-state/maintenance/", "cluster-state/users/")
_UNREAD: Final = ("cluster-state/trust/",)
"""Read by others, in formats of their own."""
EXAMPLES: Final = ".examples.yaml"
"""Examples of policies: see `documents.examples`."""


def is_document(path: str) -> bool:
    """Whether we read this path at all: YAML below cluster-state/ or policies/."""
    return (
        path.startswith((ROOT, POLICIES))
        and path.endswith((".yaml", ".yml"))
        and not path.startswith(_UNREAD)
        and not path.endswith(EXAMPLES)
    )


def is_trust(path: str) -> bool:
    """Whether this is a file of keys or of what revokes them: its bytes count, not what we read in it."""
    return path.startswith(_UNREAD)


def is_job(path: str) -> bool:
    """Whether this is the file of a job, in the right place or not."""
    return path.startswith(JOBS)


def is_optional(path: str) -> bool:
    """Whether the cluster can be understood without this file when no valid form of it is known."""
    return path.startswith(_OPTIONAL)


def key_of(path: str) -> JobKey | None:
    """The job a path names: `cluster-state/jobs/QUEUE/NAME.yaml`; None when it names none."""
    parts = path.removeprefix(JOBS).removesuffix(".yaml").split("/")
    return job_key(parts[0], parts[1]) if is_job(path) and path.endswith(".yaml") and len(parts) == 2 else None


def path_of(key: JobKey) -> str:
    """Where the file of a job is."""
    return f"{JOBS}{key}.yaml"


def lint_layout(path: str, items: Sequence[Item]) -> Iterator[Diagnostic]:
    """All that is wrong with where these documents of one file are."""
    if path.endswith(".yml"):
        yield Diagnostic(
            "WrongFileName",
            "File has the wrong name",
            "Documents end in .yaml; this file would be overlooked by others.",
            Place(path),
            "Rename it to end in .yaml.",
        )
    folder = next((f for f in _FOLDERS if path.startswith(f)), None)
    kinds = ("ClusterConfig",) if path == CONFIG else _FOLDERS[folder] if folder else ()
    for item in items:
        if item.kind not in kinds:
            home = next((f for f, k in _FOLDERS.items() if item.kind in k), CONFIG)
            holds = f"This place holds {listed(kinds)}" if kinds else "No documents belong here"
            yield item.problem(
                "WrongFolder",
                "Document is in the wrong folder",
                f"{holds}; found {item.kind}.",
                "kind",
                remedy=f"Move it to {home if home == CONFIG else home + ('QUEUE/' if item.kind == 'Job' else '')}.",
            )
    if is_job(path):
        yield from _job_file(path, [item for item in items if item.kind == "Job"])


def _job_file(path: str, jobs: Sequence[Item]) -> Iterator[Diagnostic]:
    key = key_of(path)
    if key is None:
        for item in jobs[:1]:
            yield item.problem(
                "WrongFolder",
                "Document is in the wrong folder",
                "A job is at cluster-state/jobs/QUEUE/NAME.yaml.",
                "spec",
                "queue",
                remedy=f"Move it to {path_of(job_key(item.model.spec.queue, item.name))}.",
            )
        return
    queue, name = key.split("/")
    for item in jobs[:1]:
        if item.model.spec.queue != queue:
            yield item.problem(
                "WrongFolder",
                "Document is in the wrong folder",
                f'The folder is of queue "{queue}", the job names queue "{item.model.spec.queue}".',
                "spec",
                "queue",
                remedy=f"Move it to cluster-state/jobs/{item.model.spec.queue}/, or correct spec.queue.",
            )
        if item.name != name:
            yield item.problem(
                "WrongFileName",
                "File has the wrong name",
                f'The file says "{name}", the document "{item.name}".',
                "metadata",
                "name",
                remedy="Make them agree: a job is found by its path.",
            )
    for item in jobs[1:]:
        yield item.problem(
            "SeveralJobs",
            "File holds more than one job",
            "One job a file, so that each has an owner and a history.",
            "kind",
            remedy="Move it to a file of its own.",
        )
