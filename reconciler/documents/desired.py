"""What do people want, as of one commit? All files of the desired tree as one `Desired`, and all that is wrong with them.

One bad file does not stop the cluster. A job whose file is invalid goes on in its last valid form, or is `invalid` when
there never was one. An invalid file that defines the cluster is replaced by its last valid form and blocks admissions.
The forms that had to be used are returned, so that a replay finds them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from reconciler.documents.cache import ParseCache
from reconciler.documents.check import CheckedFile, Item
from reconciler.documents.convert import gangs_of, job_of
from reconciler.documents.judged import (
    Cluster,
    Judged,
    SourceFile,
    Tree,
    as_wish,
    check_source,
    cluster_of,
    counts,
    judge,
    only_job,
    read_files,
    source_file,
    validate_files,
    verdict_of,
)
from reconciler.documents.layout import is_document, is_job, is_optional
from reconciler.documents.lint import lint_cluster
from reconciler.documents.lint_jobs import lint_job
from reconciler.documents.loader import FILE_LIMITS, Limits, bulk
from reconciler.errors import Diagnostic, sorted_by_place
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.units import CommitId, JobKey

__all__ = ["LoadedDesired", "SourceFile", "load_desired", "source_file", "validate_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDesired:
    """`desired` is None when not even an older form says what the cluster is.

    `frozen` has the last valid content of each file that stands in for an invalid one; it belongs into the record.
    `cluster` and `items` are the documents that `desired` was made of: what policies and authority look at.
    """

    desired: Desired | None
    diagnostics: tuple[Diagnostic, ...]
    frozen: Mapping[str, bytes]
    cluster: Cluster | None = field(default=None, compare=False)
    items: Mapping[JobKey, Item] = field(default_factory=dict, compare=False)


def load_desired(
    files: Sequence[SourceFile],
    commit: CommitId,
    *,
    frozen: Mapping[str, bytes] | None = None,
    last_valid: Mapping[str, bytes] | None = None,
    cache: ParseCache | None = None,
    limits: Limits = FILE_LIMITS,
) -> LoadedDesired:
    """The desired state of a commit, in numbered steps.

    `last_valid` has the files of the tree before, `frozen` those that stood in for invalid files then; both are only
    looked at for files that are invalid now. Given the same files, and as `frozen` what an earlier call returned, the
    result is the same without `last_valid`.
    """
    with bulk():
        # 1. Every file by itself, 2. all of them together.
        tree = read_files(files, cache or ParseCache(), limits)
        judged = judge(tree)
        older = _Older(_given(last_valid), _given(frozen), tree.cache)
        # 3. The cluster: as it is, or in the form it last made sense in.
        settled = _settle_cluster(tree, judged, older)
        if settled.cluster is None:
            return LoadedDesired(desired=None, diagnostics=sorted_by_place(judged.diagnostics), frozen=settled.used)
        # 4. The jobs, against that cluster.
        knotted = frozenset(d.place.file for d in judged.diagnostics if d.code == "DependencyCycle")
        jobs = _settle_jobs(tree, settled.cluster, older, knotted)
    return LoadedDesired(
        desired=_assembled(settled.cluster.desired, settled.blocked, jobs, commit),
        diagnostics=sorted_by_place(map(as_wish, judged.diagnostics)),
        frozen=dict(sorted((settled.used | jobs.used).items())),
        cluster=settled.cluster,
        items={key: jobs.items[key] for key in sorted(jobs.items)},
    )


def _given(files: Mapping[str, bytes] | None) -> Mapping[str, bytes]:
    """Not `files or {}`: asking a tree in git for its size means reading it."""
    return {} if files is None else files


# --- 3. the cluster -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Older:
    """Earlier content of files, newest first."""

    last_valid: Mapping[str, bytes]
    frozen: Mapping[str, bytes]
    cache: ParseCache

    def forms(self, path: str) -> Iterable[CheckedFile]:
        """Those earlier forms of a file that are valid by themselves."""
        for content in (self.last_valid.get(path), self.frozen.get(path)):
            if content is not None:
                checked = check_source(source_file(path, content), self.cache, set())
                if not checked.first_error:
                    yield checked

    def cluster_paths(self) -> list[str]:
        return sorted(p for p in {*self.last_valid, *self.frozen} if is_document(p) and not is_job(p))


@dataclass(frozen=True, slots=True)
class _Settled:
    cluster: Cluster | None
    blocked: str
    used: dict[str, bytes]


def _settle_cluster(tree: Tree, judged: Judged, older: _Older) -> _Settled:
    if not judged.cluster_errors:
        return _Settled(judged.cluster, "", {})
    blocked = next(path for path in sorted(judged.cluster_errors, key=lambda p: (is_optional(p), p)))
    # First only the files that are wrong, then everything that defines the cluster as it was.
    mixed = _mixed_forms(tree, judged.cluster_errors, older)
    for forms in (mixed, {path: next(iter(older.forms(path)), None) for path in older.cluster_paths()}):
        sound = {path: form for path, form in forms.items() if form is not None}
        cluster = cluster_of(item for form in sound.values() for item in form.items)
        if len(sound) == len(forms) and _is_whole(cluster):
            return _Settled(cluster, blocked, _contents(tree, sound))
    return _Settled(None, blocked, {})


def _mixed_forms(tree: Tree, wrong: frozenset[str], older: _Older) -> dict[str, CheckedFile | None]:
    forms: dict[str, CheckedFile | None] = {}
    for path in sorted({p for p in tree.checked if not is_job(p)} | wrong):
        form = next(iter(older.forms(path)), None) if path in wrong else tree.checked[path]
        if form is not None or not is_optional(path):
            forms[path] = form
    return forms


def _is_whole(cluster: Cluster) -> bool:
    has_config = bool(cluster.documents.of("ClusterConfig"))
    return has_config and not any(map(counts, lint_cluster(cluster.documents)))


def _contents(tree: Tree, forms: Mapping[str, CheckedFile]) -> dict[str, bytes]:
    """The content of those forms that are not what the tree has now."""
    found = {}
    for path, form in forms.items():
        if form is not tree.checked.get(path) and form.items:
            found[path] = form.items[0].content
    return found


# --- 4. the jobs ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Jobs:
    jobs: dict[JobKey, Job] = field(default_factory=dict)
    arrays: dict[JobKey, Job] = field(default_factory=dict)
    items: dict[JobKey, Item] = field(default_factory=dict)
    frozen: set[JobKey] = field(default_factory=set)
    invalid: dict[JobKey, str] = field(default_factory=dict)
    used: dict[str, bytes] = field(default_factory=dict)

    def add(self, key: JobKey, item: Item, job: Job, gangs: Iterable[Job]) -> None:
        """Take what a document says, and the gangs it asks for."""
        self.items[key] = item
        if job.array is not None:
            self.arrays[key] = job
        for gang in gangs:
            self.jobs[gang.key] = gang


def _settle_jobs(tree: Tree, cluster: Cluster, older: _Older, knotted: frozenset[str]) -> _Jobs:
    """`knotted` are the files of jobs that wait for each other in a circle."""
    found = _Jobs()
    for path, key in tree.jobs.items():
        if key is None:
            continue
        checked = tree.checked[path]
        code = checked.first_error or ("DependencyCycle" if path in knotted else "")
        item = only_job(checked) if not code else None
        if item is not None:
            verdict = verdict_of(item, tree.files[path].oid, cluster.around, tree.cache)
            if verdict.job is not None:
                found.add(key, item, verdict.job, verdict.gangs)
                continue
            code = next(d.code for d in verdict.diagnostics if counts(d))
        _freeze(found, key, path, code or "EmptyFile", cluster, older)
    return found


def _freeze(found: _Jobs, key: JobKey, path: str, code: str, cluster: Cluster, older: _Older) -> None:
    """Put the last valid form of an invalid job in its place, or say that there is none."""
    for form in older.forms(path):
        item = only_job(form)
        if item is not None and not any(
            d.is_error and d.code not in _INHERITED for d in lint_job(item, cluster.around)
        ):
            job = job_of(item, cluster.around)
            found.add(key, item, job, gangs_of(job, item.model.spec))
            found.frozen.add(key)
            found.used[path] = item.content
            return
    found.invalid[key] = code


_INHERITED: Final = frozenset(
    {
        "NeverFits", "UnknownQueue", "UnknownPriorityClass", "NoDefaultClass", "UnknownGpuType", "QueueLimitExceeded",
        "MountOutsideRoots", "SecretOutsideRoots",
    }
)  # fmt: skip
"""What a change of the cluster may do to a job that was valid before: no reason to forget it. A job whose queue is gone
runs on, charged to nobody; the planner admits no new one."""


def _assembled(cluster: Desired, blocked: str, jobs: _Jobs, commit: CommitId) -> Desired:
    return replace(
        cluster,
        commit=commit,
        jobs={key: jobs.jobs[key] for key in sorted(jobs.jobs)},
        arrays={key: jobs.arrays[key] for key in sorted(jobs.arrays)},
        frozen=frozenset(jobs.frozen),
        invalid=dict(sorted(jobs.invalid.items())),
        blocked=blocked,
    )
