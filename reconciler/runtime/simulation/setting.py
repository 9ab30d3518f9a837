"""On which cluster, and as which jobs of it? The cluster of a repository without its own jobs, and rows as jobs.

Inventory, queues, classes and rules are the repository's at one commit; its jobs, requests and policies are left out,
and so are maintenance and reservations, for a trace has no calendar. Each row becomes what a document with the same
queue, class, GPUs and types would be, with all its defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from reconciler.documents.cache import ParseCache
from reconciler.documents.canonical import to_yaml
from reconciler.documents.convert import job_of
from reconciler.documents.desired import source_file
from reconciler.documents.judged import check_source
from reconciler.documents.lint_jobs import lint_job
from reconciler.documents.quantities import print_duration
from reconciler.documents.similar import did_you_mean, listed
from reconciler.documents.surroundings import Surroundings
from reconciler.errors import Diagnostic, InvalidInput, Place
from reconciler.model.counting import counted
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.units import Digest, Instant, JobKey, Nanoseconds
from reconciler.render.names import one_line
from reconciler.runtime.simulation.trace import Row, Trace

BEGIN: Final = Instant(1_767_225_600 * 10**9)
"""When virtual time begins. Any instant would do: nothing that is decided depends on it."""
Limits = Callable[[Row], Nanoseconds | None]
"""The time limit of a row that says none itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cluster without jobs, and what its jobs' documents are judged against.

    `name` is what people called it, `commit` what that was, "" where it is no commit.
    """

    name: str
    desired: Desired
    around: Surroundings
    commit: str = ""

    @property
    def gpus(self) -> int:
        """GPUs that could be given out: not cordoned, dead or failed."""
        return sum(
            (node.shape.all_gpus & ~node.failed).bit_count()
            for node in self.desired.inventory.nodes
            if not node.cordoned and not node.dead
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A row as a job of the cluster. `refused`: why its file would not be merged, "" when it would."""

    row: Row
    job: Job
    refused: str = ""

    @property
    def key(self) -> JobKey:
        return self.job.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Stands:
    """What stands for names of the trace that the cluster does not have; "" for the only one that there is."""

    queue: str = ""
    gpu_type: str = ""


def setting_of(name: str, desired: Desired, around: Surroundings) -> Setting:
    """The cluster without all that people asked of it at that time."""
    rules = desired.scheduling
    if rules.defragment_action == "propose":  # a proposal moves nothing, and is looked for in every round
        rules = replace(rules, defragment_action="never")
    bare = replace(
        desired, scheduling=rules, jobs={}, arrays={}, frozen=frozenset(), invalid={}, policy={}, asked={}, windows=(),
        blocked="",
    )  # fmt: skip
    return Setting(name=name, desired=bare, around=around)


def submissions(trace: Trace, setting: Setting, stands: Stands, limits: Limits) -> tuple[Submission, ...]:
    """The rows as jobs, in their order. Raises InvalidInput for queues, types and classes that the cluster has not."""
    desired = setting.desired
    queues = _Names("queue", "Queue", "UnknownQueue", [*desired.quotas.queues], _leaves(desired), stands.queue)
    kinds = _Names("gpu_type", "GPU type", "UnknownGpuType", [*setting.around.gpu_types], [*setting.around.gpu_types],
                   stands.gpu_type)  # fmt: skip
    classes = _Names("priority", "Priority class", "UnknownPriorityClass", [*desired.classes], [], "")
    shapes: dict[tuple[str, str, int, tuple[str, ...]], tuple[Job, str]] = {}
    found: list[Submission] = []
    for number, row in enumerate(trace.rows):
        at = Place(trace.file, row.line, 1)
        queue = queues.known(row.queue, at)
        types = tuple(dict.fromkeys(kinds.known(kind, at) for kind in row.gpu_types))
        priority = classes.known(row.priority, at) if row.priority else ""
        if queues.problems or kinds.problems or classes.problems:
            continue
        shape = (queue, priority, row.gpus, types)
        if shape not in shapes:
            shapes[shape] = _shape(shape, setting.around)
        job, refused = shapes[shape]
        limit, too_long = _limit(row, limits(row), setting.around.queues[queue].time_limit)
        named = replace(job, name=f"{number:07}", digest=Digest(f"trace/{number:07}"), time_limit=limit)
        refused = refused or too_long
        found.append(Submission(row=row, job=named, refused=refused))
    if wrong := [*queues.problems.values(), *kinds.problems.values(), *classes.problems.values()]:
        raise InvalidInput(wrong)
    return tuple(found)


def stood_in(jobs: Iterable[Submission]) -> tuple[str, ...]:
    """What was put in place of what the trace says and the cluster does not have, or allow: a clause each."""
    queues: dict[str, int] = {}
    kinds: dict[str, int] = {}
    cut = 0
    for one in jobs:
        row, job = one.row, one.job
        if job.queue != row.queue:
            queues[job.queue] = queues.get(job.queue, 0) + 1
        other = " or ".join(kind for kind in job.gpu_types if kind not in row.gpu_types)
        if other:
            kinds[other] = kinds.get(other, 0) + 1
        cut += row.limit is None and job.time_limit is not None and job.time_limit < row.duration
    return (
        *(
            f"{counted(count, 'job')} of queues that the cluster does not have: in {name}"
            for name, count in queues.items()
        ),
        *(f"{counted(count, 'job')} of GPU types that it does not have: on {name}" for name, count in kinds.items()),
        *((f"{counted(cut, 'job')} ran longer than the time limit of their queue: cut short there",) if cut else ()),
    )


def _limit(row: Row, assumed: Nanoseconds | None, most: Nanoseconds | None) -> tuple[Nanoseconds | None, str]:
    """The time limit of a row, and why its file would be refused for it. One that is only assumed gives way to its
    queue's: there such a job is cut short."""
    if row.limit is None:
        return (assumed if most is None else min(assumed if assumed is not None else most, most)), ""
    if most is not None and row.limit > most:
        return row.limit, f"its time limit is {print_duration(row.limit)}; its queue allows {print_duration(most)}"
    return row.limit, ""


def _leaves(desired: Desired) -> list[str]:
    parents = {queue.parent for queue in desired.quotas.queues.values()}
    return [name for name in desired.quotas.queues if name not in parents]


class _Names:
    """Names of one kind that a trace may use. Each name that is none is told once, where it is met first."""

    def __init__(self, column: str, kind: str, code: str, known: Iterable[str], usual: list[str], given: str) -> None:
        self._column, self._kind, self._code = column, kind, code
        self._known = frozenset(known)
        self._other = given or (usual[0] if len(usual) == 1 else "")
        self._usual = usual
        self.problems: dict[str, Diagnostic] = {}
        if given and given not in self._known:
            option = f"--{column.replace('_', '-')}"
            detail = f'{option} names "{given}"; the cluster has: {listed(self._known)}.'
            self.problems[""] = Diagnostic(
                code,
                f"{kind} does not exist",
                detail,
                Place("command line", 0, 0, option),
                did_you_mean(given, self._known),
            )

    def known(self, name: str, at: Place) -> str:
        """The name, or the one that stands for those the cluster does not have."""
        if name in self._known:
            return name
        if not self._other and name not in self.problems:
            shown = f'"{one_line(name)}"' if name else "not said"
            detail = f"{self._column} is {shown}; the cluster has: {listed(self._known)}."
            option = {"queue": "--queue", "gpu_type": "--gpu-type"}.get(self._column)
            remedy = f"{option} NAME stands for names it does not have." if option else "Use one of these."
            place = replace(at, path=self._column)
            near = did_you_mean(name, self._known)
            self.problems[name] = Diagnostic(
                self._code, f"{self._kind} does not exist", detail, place, f"{near} {remedy}".strip()
            )
        return self._other or name


def _shape(shape: tuple[str, str, int, tuple[str, ...]], around: Surroundings) -> tuple[Job, str]:
    """The job that a document of this shape asks for, and why it would be refused, "" when it would not."""
    queue, priority, gpus, types = shape
    spec: dict[str, object] = {"queue": queue, "gpus": gpus, "run": {"command": ["true"]}}
    if types:
        spec |= {"gpuType": types[0]} if len(types) == 1 else {"anyOf": list(types)}
    if priority:
        spec["priorityClass"] = priority
    if around.queues[queue].time_limit is not None:  # what it may be at most is looked at row by row
        spec["timeLimit"] = "1s"
    tree = {"apiVersion": "gangops/v1", "kind": "Job", "metadata": {"name": "shape"}, "spec": spec}
    path = f"cluster-state/jobs/{queue}/shape.yaml"
    checked = check_source(source_file(path, to_yaml(tree)), ParseCache(), set())  # type: ignore[arg-type]  # a tree by construction
    if not checked.items:
        raise InvalidInput(checked.diagnostics)
    item = checked.items[0]
    errors = [d for d in lint_job(item, around) if d.is_error]
    made = job_of(item, around)
    plain = replace(made, run=replace(made.run, user="self", group=""))
    return plain, f"{errors[0].summary}: {errors[0].detail}" if errors else ""
