"""What is wrong with a tree of documents, and what do its cluster's documents come to?

Every file by itself, then all of them together. Nothing is left out because something else is wrong; complaints that
would only repeat another one are. What is acted on in spite of errors is for `desired`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from reconciler.documents.cache import ParseCache, Verdict
from reconciler.documents.check import CheckedFile, Item, check, may_hold_decimals
from reconciler.documents.convert import gangs_of, job_of
from reconciler.documents.convert_cluster import (
    accounts_of,
    agent_rules_of,
    classes_of,
    inventory_of,
    quotas_of,
    repository_rules_of,
    scheduling_of,
    slurm_rules_of,
    windows_of,
)
from reconciler.documents.holders import addresses_of, admins_of, keys_of
from reconciler.documents.layout import CONFIG, is_document, is_job, key_of, lint_layout
from reconciler.documents.lint import Documents, documents_of, lint_cluster
from reconciler.documents.lint_jobs import lint_dependencies, lint_job
from reconciler.documents.loader import FILE_LIMITS, Limits, bulk, load
from reconciler.documents.surroundings import Surroundings, surroundings_of
from reconciler.errors import Diagnostic, Place, Severity, sorted_by_place
from reconciler.model.desired import Desired
from reconciler.model.units import CommitId, JobKey

if TYPE_CHECKING:
    from reconciler.documents.schema.cluster import ClusterSpec


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a tree: path from the root of the repository, git blob id, content."""

    path: str
    oid: str
    content: bytes


def source_file(path: str, content: bytes) -> SourceFile:
    """A file that is not in git yet, under an id of its own."""
    return SourceFile(path, f"sha256:{sha256(content).hexdigest()}", content)


def validate_files(files: Iterable[SourceFile], cache: ParseCache | None = None) -> tuple[Diagnostic, ...]:
    """Everything that is wrong with these files, by themselves and together, sorted by place."""
    with bulk():
        tree = read_files(files, cache or ParseCache())
        return sorted_by_place(judge(tree).diagnostics)


# --- 1. every file by itself ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tree:
    """`jobs` are the files of jobs by path, each with the job it names if it names one; `ghosts` the (kind, name) of
    documents that are there but not well-formed."""

    files: Mapping[str, SourceFile]
    checked: Mapping[str, CheckedFile]
    jobs: Mapping[str, JobKey | None]
    ghosts: frozenset[tuple[str, str]]
    cache: ParseCache


def read_files(files: Iterable[SourceFile], cache: ParseCache, limits: Limits = FILE_LIMITS) -> Tree:
    """The documents among these files, each checked by itself; paths in order."""
    by_path = {f.path: f for f in sorted(files, key=lambda f: f.path) if is_document(f.path)}
    ghosts: set[tuple[str, str]] = set()
    checked: dict[str, CheckedFile] = {}
    for path, file in by_path.items():
        same = cache.file(path, file.oid)
        checked[path] = same or cache.keep_file(path, file.oid, check_source(file, cache, ghosts, limits))
    jobs = {path: key_of(path) for path in by_path if is_job(path)}
    return Tree(by_path, checked, jobs, frozenset(ghosts), cache)


def check_source(
    file: SourceFile, cache: ParseCache, ghosts: set[tuple[str, str]], limits: Limits = FILE_LIMITS
) -> CheckedFile:
    """One file, read and checked, its place among folders included. Adds to `ghosts` what is there but not well-formed."""
    known = cache.items(file.oid, file.path, file.content)
    if known is not None:
        return CheckedFile(known, _misplaced(file, known, cache))
    loaded = load(file.content, file.path, limits)
    items: list[Item] = []
    diagnostics = list(loaded.diagnostics)
    for document in loaded.documents:
        item, found = check(document)
        diagnostics += found
        if item is None:
            ghosts.add((document.kind, document.name))
        else:
            items.append(item)
    if not diagnostics:
        has_decimals = may_hold_decimals(file.content)
        trees = [(d.kind, d.index, _plain(d.value) if has_decimals else d.value) for d in loaded.documents]
        cache.keep(file.oid, items, trees, file.content)
    return CheckedFile(tuple(items), (*diagnostics, *_misplaced(file, items, cache)))


def _misplaced(file: SourceFile, items: Sequence[Item], cache: ParseCache) -> tuple[Diagnostic, ...]:
    """What is wrong with where these documents are; not looked for again in a file that is in the right place."""
    place = (file.path, file.oid)
    if place in cache.placed:
        return ()
    found = tuple(lint_layout(file.path, items))
    if not found:
        if len(cache.placed) >= cache.limit:
            cache.placed.clear()
        cache.placed.add(place)
    return found


def _plain(tree: Any) -> Any:
    """The tree with `DecimalText` as text. Fields that take decimals take the same digits as text."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_plain(value) for value in tree]
    return str(tree) if isinstance(tree, str) else tree


# --- 2. all of them together ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """A tree, and all that is wrong in it."""

    diagnostics: tuple[Diagnostic, ...]
    cluster: Cluster
    cluster_errors: frozenset[str]
    """Files that define the cluster and have an error, of their own or beside others."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the cluster's documents come to; good enough to judge jobs by even when they have errors."""

    documents: Documents
    desired: Desired
    around: Surroundings


def judge(tree: Tree) -> Judged:
    """All that is wrong with the files of a tree, by themselves and together."""
    diagnostics = [d for checked in tree.checked.values() for d in checked.diagnostics]
    cluster, told = _cluster_in(tree)
    found = [*told, *_missing_config(tree, cluster.documents)]
    jobs: dict[JobKey, Item] = {}
    for path, key in tree.jobs.items():
        job = only_job(tree.checked[path])
        if job is not None:
            found += verdict_of(job, tree.files[path].oid, cluster.around, tree.cache).diagnostics
        if job is not None and key is not None:
            jobs[key] = job
    found += lint_dependencies(jobs)
    diagnostics += [d for d in found if not _is_echo(d, tree.ghosts)]
    errors = {d.place.file for d in diagnostics if counts(d) and not is_job(d.place.file)}
    return Judged(tuple(diagnostics), cluster, frozenset(errors))


def _cluster_in(tree: Tree) -> tuple[Cluster, tuple[Diagnostic, ...]]:
    """What a tree's documents say about the cluster, and all that is wrong with that: remembered for the same files."""
    paths = [path for path in tree.files if path not in tree.jobs]
    files = tuple((path, tree.files[path].oid) for path in paths)
    items = [item for path in paths for item in tree.checked[path].items]
    known: tuple[Desired, Surroundings, tuple[Diagnostic, ...]] | None = tree.cache.cluster(files)
    if known is None:
        made = cluster_of(items)
        known = made.desired, made.around, tuple(lint_cluster(made.documents))
        tree.cache.keep_cluster(files, known)
    desired, around, told = known
    return Cluster(documents_of(items), desired, around), told


def cluster_of(items: Iterable[Item]) -> Cluster:
    """What these documents say about the cluster; jobs among them are not looked at."""
    documents = documents_of(items)
    config = next((item.model.spec for item in documents.of("ClusterConfig")), None) or _defaults()
    inventory = inventory_of(
        documents.of("Fabric"), documents.of("NodeProfile"), documents.of("NodeSet"), config.engine
    )
    quotas = quotas_of(documents.of("Queue"), inventory)
    classes = classes_of(documents.of("PriorityClass"))
    scheduling = scheduling_of(config)
    around = surroundings_of(
        inventory,
        quotas,
        classes,
        documents.of("Queue"),
        [item.model.spec.gpu_type for item in documents.of("NodeProfile")],
        scheduling.default_time_limit,
    )
    desired = Desired(
        commit=CommitId(""),
        cluster=next((item.name for item in documents.of("ClusterConfig")), ""),
        scheduling=scheduling,
        agents=agent_rules_of(config),
        repository=repository_rules_of(config),
        slurm=slurm_rules_of(config),
        inventory=inventory,
        quotas=quotas,
        classes=classes,
        jobs={},
        windows=windows_of((*documents.of("Maintenance"), *documents.of("Reservation"))),
        accounts=accounts_of(documents.of("User")),
        keys=keys_of(documents),
        addresses=addresses_of(documents),
        admins=admins_of(documents, quotas),
    )
    return Cluster(documents, desired, around)


def _defaults() -> ClusterSpec:
    from reconciler.documents.schema.cluster import ClusterSpec

    return ClusterSpec()


def _missing_config(tree: Tree, documents: Documents) -> list[Diagnostic]:
    if documents.of("ClusterConfig") or CONFIG in tree.checked:
        return []
    return [
        Diagnostic(
            "MissingClusterConfig",
            "There is no ClusterConfig",
            "Every cluster repository has one, with defaults for all it says.",
            Place(CONFIG),
            "Add it, or run: gangops init.",
        )
    ]


def only_job(checked: CheckedFile) -> Item | None:
    """The job of a file, if it has one."""
    if len(checked.items) == 1 and checked.items[0].kind == "Job":
        return checked.items[0]
    return next((item for item in checked.items if item.kind == "Job"), None)


def verdict_of(item: Item, oid: str, around: Surroundings, cache: ParseCache) -> Verdict:
    """What a job comes to in these surroundings; remembered for as long as both stay the same."""
    known = cache.verdict(item.file, oid, around)
    if known is None:
        diagnostics = tuple(lint_job(item, around))
        job = None if any(map(counts, diagnostics)) else job_of(item, around)
        known = Verdict(job, diagnostics, gangs_of(job, item.model.spec) if job is not None else ())
        cache.keep_verdict(item.file, oid, known)
    return known


WISHES: Final = frozenset({"NeverFits", "MaintenanceUnknownNode", "GuaranteesExceedCapacity"})
"""Errors in a proposal; once merged they are warnings, for the rest still has a meaning. A job that cannot fit waits, and
a rack may be taken out before windows and guarantees follow."""


def counts(diagnostic: Diagnostic) -> bool:
    """Whether this is a reason not to act on a file."""
    return diagnostic.is_error and diagnostic.code not in WISHES


def as_wish(diagnostic: Diagnostic) -> Diagnostic:
    """The diagnostic as it is told of something merged."""
    return replace(diagnostic, severity=Severity.WARNING) if diagnostic.code in WISHES else diagnostic


_NAMED_BY: Final[Mapping[str, str]] = {
    "UnknownQueue": "Queue", "UnknownProfile": "NodeProfile", "UnknownFabric": "Fabric",
    "UnknownPriorityClass": "PriorityClass", "DependencyUnknown": "Job",
}  # fmt: skip
_MADE_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "UnknownRack": ("Fabric",), "UnknownLevel": ("Fabric",), "UnknownFabric": ("Fabric",), "UnknownGpuType": ("NodeProfile",),
    "MaintenanceUnknownNode": ("NodeSet",), "NeverFits": ("NodeSet", "NodeProfile", "Fabric"),
    "GuaranteesExceedCapacity": ("NodeSet", "NodeProfile"), "NoDefaultClass": ("PriorityClass",),
    "MissingClusterConfig": ("ClusterConfig",), "GuaranteesExceedParent": ("Queue",),
}  # fmt: skip


def _is_echo(diagnostic: Diagnostic, ghosts: frozenset[tuple[str, str]]) -> bool:
    """A complaint that only repeats that another document, which is there, is not well-formed."""
    named = _NAMED_BY.get(diagnostic.code)
    made_of = _MADE_OF.get(diagnostic.code, ())
    return any(
        (kind == named and f'"{name}"' in diagnostic.detail.replace("/", '"')) or kind in made_of
        for kind, name in ghosts
    )
