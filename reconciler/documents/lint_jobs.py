"""Does a Job make sense, by itself and in this cluster? And do jobs depend on each other in a way that can end?

`lint_job` needs only the job and its `Surroundings`, so its answer can be kept while both stay the same. Whether its
sizes agree is for `lint_shape`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from posixpath import normpath
from typing import Final

from reconciler.documents.check import Item, at_most
from reconciler.documents.convert import (
    dependency_key,
    launch_of,
    runtime_of,
)
from reconciler.documents.lint import reserved_labels
from reconciler.documents.lint_fit import lint_fit
from reconciler.documents.lint_shape import lint_shape
from reconciler.documents.quantities import print_duration
from reconciler.documents.references import cycles_of, unknown_class, unknown_gpu_type, unknown_queue
from reconciler.documents.secrets import secret_kind
from reconciler.documents.similar import did_you_mean, listed
from reconciler.documents.surroundings import Surroundings
from reconciler.errors import Diagnostic, Severity
from reconciler.model.counting import counted
from reconciler.model.job import Launch
from reconciler.model.units import HOUR, JobKey

_SPARSE: Final = 4 * HOUR


def lint_job(item: Item, around: Surroundings) -> list[Diagnostic]:
    """All that is wrong with one job, unsorted. NeverFits is among the errors: loading treats it as a wish."""
    found = at_most(
        chain(
            _names(item, around),
            lint_shape(item, around),
            _run(item, around),
            _behaviour(item, around),
            _limits(item, around),
            reserved_labels(item),
        )
    )
    return found if any(d.is_error for d in found) else [*found, *lint_fit(item, around)]


def _names(item: Item, around: Surroundings) -> Iterator[Diagnostic]:
    spec = item.model.spec
    if spec.queue not in around.queues:
        yield unknown_queue(item, spec.queue, around.queues, "spec", "queue")
    if spec.priority_class is not None and spec.priority_class not in around.classes:
        yield unknown_class(item, spec.priority_class, around.classes, "spec", "priorityClass")
    if spec.priority_class is None and around.default_class is None:
        yield item.problem(
            "NoDefaultClass",
            "Job names no priority class and none is the default",
            f"There are {listed(around.classes)}.",
            "spec",
            remedy="Add priorityClass, or `default: true` to one of the classes.",
        )
    if spec.gpu_type is not None and spec.gpu_type not in around.gpu_types:
        yield unknown_gpu_type(item, spec.gpu_type, around.gpu_types, "spec", "gpuType")
    for position, gpu_type in enumerate(spec.any_of or ()):
        if gpu_type not in around.gpu_types:
            yield unknown_gpu_type(item, gpu_type, around.gpu_types, "spec", "anyOf", position)
    if spec.gpu_type is not None and spec.any_of is not None:
        yield item.problem(
            "ConflictingFields",
            "Fields exclude each other",
            "gpuType and anyOf both say which GPUs.",
            "spec",
            "anyOf",
            remedy="Keep one of the two.",
            of_key=True,
        )


# --- what runs ------------------------------------------------------------------------------------------------------


def _run(item: Item, around: Surroundings) -> Iterator[Diagnostic]:
    run = item.model.spec.run
    given = [name for name in ("command", "script", "session") if getattr(run, name) is not None]
    if len(given) != 1:
        yield item.problem(
            "RunNeedsOne",
            "Job needs exactly one thing to run",
            f"Found {listed(given)}.",
            "spec",
            "run",
            remedy="Give one of command, script and session.",
        )
    runtime = runtime_of(run)
    bare = runtime in {"process", "bubblewrap"}
    if bare != (run.image is None):
        detail = f"runtime {runtime} starts {'no containers' if bare else 'containers'}."
        yield item.problem(
            "ConflictingFields",
            "Fields exclude each other",
            detail,
            "spec",
            "run",
            "image" if run.image else "runtime",
            remedy="Remove image, or choose a container runtime."
            if run.image
            else "Add an image, or use runtime: process.",
        )
    if run.ranks_per_node is not None:
        yield item.problem(
            "OlderSpelling",
            "Field has a newer spelling",
            "launch says the same and cannot contradict the placement.",
            "spec",
            "run",
            "ranksPerNode",
            remedy=f"Write launch: {launch_of(run)}.",
            severity=Severity.WARNING,
            of_key=True,
        )
        if run.launch is not None and (run.launch == Launch.PER_NODE) != (run.ranks_per_node == 1):
            yield item.problem(
                "ConflictingFields",
                "Fields exclude each other",
                f"launch: {run.launch} starts another number of processes.",
                "spec",
                "run",
                "ranksPerNode",
                remedy="Remove ranksPerNode.",
            )
    for name, value in run.env.items():
        kind = secret_kind(name, value)
        if kind is not None:
            yield item.problem(
                "SecretInEnv",
                "Environment holds what looks like a secret",
                f"The value of {name} looks like {kind}; everyone who reads the repository reads it, for ever.",
                "spec",
                "run",
                "env",
                name,
                of_key=True,
                remedy="Revoke it, put it in a file on the nodes and name that under run.secretFiles.",
            )
    yield from _outside(item, around)


def _outside(item: Item, around: Surroundings) -> Iterator[Diagnostic]:
    """Mounts and secrets that lie where the queue has none of them."""
    spec = item.model.spec
    rules = around.queues.get(spec.queue)
    for position, mount in enumerate(spec.run.mounts):
        if rules and not _below(mount.source, rules.mount_roots):
            yield item.problem(
                "MountOutsideRoots",
                "Mount is outside what the queue allows",
                f"Allowed are folders below {', '.join(rules.mount_roots)}.",
                "spec",
                "run",
                "mounts",
                position,
                "source",
            )
    for position, secret in enumerate(spec.run.secret_files):
        if rules and not _below(secret, rules.secret_roots):
            yield item.problem(
                "SecretOutsideRoots",
                "Secret file is outside what the queue allows",
                f"Allowed are files below {', '.join(rules.secret_roots)}.",
                "spec",
                "run",
                "secretFiles",
                position,
            )


def _below(path: str, roots: tuple[str, ...]) -> bool:
    """Whether it lies in one of the folders; without any, a queue leaves it to the nodes."""
    plain = normpath(path)
    return not roots or any(plain == root or plain.startswith(root.rstrip("/") + "/") for root in map(normpath, roots))


# --- behaviour ------------------------------------------------------------------------------------------------------


def _behaviour(item: Item, around: Surroundings) -> Iterator[Diagnostic]:
    spec = item.model.spec
    checkpoint = spec.checkpoint
    if spec.preemption.policy == "checkpoint" and checkpoint is None:
        yield item.problem(
            "CheckpointMissing",
            "Job is to be stopped through a checkpoint it does not have",
            "preemption.policy is checkpoint, and there is no checkpoint.",
            "spec",
            "preemption",
            "policy",
            remedy="Add checkpoint, or use policy: requeue.",
        )
    if checkpoint is not None and ".." in checkpoint.complete_marker.split("/"):
        yield item.problem(
            "BadPath",
            "Path leaves its folder",
            "The marker lies below checkpoint.dir.",
            "spec",
            "checkpoint",
            "completeMarker",
        )
    limit = spec.time_limit if spec.time_limit is not None else around.default_time_limit
    if checkpoint is not None:
        unused = limit is not None and 0 <= limit <= checkpoint.every
        if unused or checkpoint.every > _SPARSE:
            why = (
                "It ends before its first checkpoint." if unused else "That much work is lost with every interruption."
            )
            yield item.problem(
                "CheckpointSparse",
                "Checkpoints are far apart",
                f"One every {print_duration(checkpoint.every)}. {why}",
                "spec",
                "checkpoint",
                "every",
                remedy="Save more often.",
                severity=Severity.WARNING,
            )
    if limit is None:
        yield item.problem(
            "NoTimeLimit",
            "Job has no time limit",
            "Nothing can be planned behind it, and it delays its own start.",
            "spec",
            remedy="Add timeLimit; write unlimited if that is meant.",
            severity=Severity.WARNING,
        )


def _limits(item: Item, around: Surroundings) -> Iterator[Diagnostic]:
    spec = item.model.spec
    rules = around.queues.get(spec.queue)
    if rules is None:
        return
    if rules.gpus_per_job is not None and spec.gpus > rules.gpus_per_job:
        yield _over(item, f"{counted(spec.gpus, 'GPU')}; its queue allows {rules.gpus_per_job} a job.", "gpus")
    limit = spec.time_limit if spec.time_limit is not None else around.default_time_limit
    if rules.time_limit is not None and (limit is None or limit < 0 or limit > rules.time_limit):
        told = print_duration(limit) if limit is not None and limit >= 0 else "No limit"
        yield _over(item, f"{told}; its queue allows {print_duration(rules.time_limit)}.", "timeLimit")
    named = around.classes.get(spec.priority_class)
    if rules.max_priority is not None and named is not None and named.value > rules.max_priority:
        yield _over(
            item, f"{named.name} is above {rules.max_priority_class}, the highest of its queue.", "priorityClass"
        )


def _over(item: Item, detail: str, field: str) -> Diagnostic:
    return item.problem(
        "QueueLimitExceeded",
        "Job asks for more than its queue allows",
        detail,
        "spec",
        field,
        remedy="Ask for less, or have the queue's limits raised.",
    )


# --- dependencies ---------------------------------------------------------------------------------------------------


def lint_dependencies(jobs: Mapping[JobKey, Item]) -> list[Diagnostic]:
    """Cycles and strangers in `after`, over all jobs."""
    waiting = {key: item for key, item in jobs.items() if item.waits}
    edges: dict[str, list[str]] = {
        key: [dependency_key(d.job, item.model.spec.queue) for d in item.model.spec.after]
        for key, item in waiting.items()
    }
    found = []
    for key, item in waiting.items():
        for position, target in enumerate(edges[key]):
            if target not in jobs:
                found.append(
                    item.problem(
                        "DependencyUnknown",
                        "Job to wait for does not exist",
                        f'There is no "{target}" now; it waits until there is.',
                        "spec",
                        "after",
                        position,
                        "job",
                        remedy=did_you_mean(target, jobs),
                        severity=Severity.WARNING,
                    )
                )
    for cycle in cycles_of(edges) if edges else ():
        for name in cycle:
            item = waiting[JobKey(name)]
            found.append(
                item.problem(
                    "DependencyCycle",
                    "Jobs wait for each other",
                    f"The chain {' -> '.join((*cycle, cycle[0]))} never starts.",
                    "spec",
                    "after",
                    remedy="Remove one of the dependencies.",
                )
            )
    return found
