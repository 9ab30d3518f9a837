"""Do the sizes a Job says agree: its GPUs with its parallelism, roles and tasks, and its levels with the fabric's?

What it runs, and how it is to behave, is for `lint_jobs`; whether a cluster could ever hold it for `lint_fit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reconciler.documents.check import Item
from reconciler.documents.convert import task_count
from reconciler.documents.schema.job import DIMENSIONS
from reconciler.documents.similar import did_you_mean
from reconciler.documents.surroundings import Surroundings
from reconciler.documents.tasklist import MOST_TASKS, print_tasks
from reconciler.errors import Diagnostic
from reconciler.model.counting import counted


def lint_shape(item: Item, around: Surroundings) -> Iterator[Diagnostic]:
    """Problems of the sizes a job says, among themselves and with the levels of the fabric, unsorted."""
    spec = item.model.spec
    if spec.parallelism is not None:
        sizes = [(name, getattr(spec.parallelism, name)) for name in DIMENSIONS if getattr(spec.parallelism, name) > 1]
        product = 1
        for _, size in sizes:
            product *= size
        if product != spec.gpus:
            told = " x ".join(f"{name} {size}" for name, size in sizes) or "1"
            yield item.problem(
                "ParallelismProduct",
                "Product of parallelism is not the number of GPUs",
                f"{told} = {product}; gpus: {spec.gpus}.",
                "spec",
                "parallelism",
                remedy=f"Change one of them, or set gpus: {product}.",
            )
    if spec.roles is not None:
        total = sum(role.workers * role.gpus_each for role in spec.roles)
        if total != spec.gpus:
            yield item.problem(
                "RolesSum",
                "GPUs of the roles do not add up",
                f"The roles need {total}; gpus: {spec.gpus}.",
                "spec",
                "roles",
                remedy=f"Set gpus: {total}, or change the roles.",
            )
        names = [role.name for role in spec.roles]
        for position, name in enumerate(names):
            if name in names[:position]:
                yield item.problem(
                    "DuplicateName",
                    "Name is used twice",
                    f'There are two roles "{name}".',
                    "spec",
                    "roles",
                    position,
                    "name",
                )
    if len(set(spec.rank_order)) < len(spec.rank_order):
        yield item.problem("DuplicateName", "Name is used twice", "A dimension comes twice.", "spec", "rankOrder")
    yield from _elastic(item)
    yield from _array(item)
    yield from _levels(item, around)


def _elastic(item: Item) -> Iterator[Diagnostic]:
    spec = item.model.spec
    if spec.elastic is None:
        return
    if spec.parallelism is None:
        yield item.problem(
            "ElasticRange",
            "Elastic size is out of range",
            "An elastic gang has to say its parallelism.",
            "spec",
            "elastic",
            remedy="Add parallelism.",
        )
        return
    size = getattr(spec.parallelism, spec.elastic.dimension)
    if not spec.elastic.min <= size <= spec.elastic.max:
        yield item.problem(
            "ElasticRange",
            "Elastic size is out of range",
            f"{spec.elastic.dimension} is {size}; it may be {spec.elastic.min} to {spec.elastic.max}.",
            "spec",
            "elastic",
            remedy="Choose min and max around the size in parallelism.",
        )


def _array(item: Item) -> Iterator[Diagnostic]:
    array = item.model.spec.array
    if array is None:
        return
    if sum(said is not None for said in (array.count, array.values, array.matrix)) != 1:
        yield item.problem(
            "ArrayNeedsOne",
            "Array needs exactly one list of tasks",
            "Exactly one of count, values and matrix.",
            "spec",
            "array",
            remedy="Keep one of them.",
        )
    elif task_count(array) > MOST_TASKS:
        yield item.problem(
            "OutOfRange",
            "Value is out of range",
            f"{counted(task_count(array), 'task')}; at most {MOST_TASKS}.",
            "spec",
            "array",
        )
    else:
        yield from _unknown_tasks(item, task_count(array))
        yield from _same_variable(item)


def _same_variable(item: Item) -> Iterator[Diagnostic]:
    """Ranks see parameters in upper case, where `lr` and `LR` are one."""
    array = item.model.spec.array
    tasks: list[tuple[tuple[str | int, ...], Iterable[str]]] = [(("matrix",), array.matrix or ())]
    tasks += [(("values", position), task) for position, task in enumerate(array.values or ())]
    for place, named in tasks:
        seen: dict[str, str] = {}
        for name in named:
            other = seen.setdefault(name.upper(), name)
            if other != name:
                yield item.problem(
                    "DuplicateName",
                    "Name is used twice",
                    f'Ranks see "{other}" and "{name}" as $GANGOPS_PARAM_{name.upper()}.',
                    "spec",
                    "array",
                    *place,
                    name,
                    of_key=True,
                )


def _unknown_tasks(item: Item, count: int) -> Iterator[Diagnostic]:
    array = item.model.spec.array
    named: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [("cancelled", (), array.cancelled)]
    named += [("rerun", (position,), tasks) for position, tasks in enumerate(array.rerun)]
    for field, place, tasks in named:
        unknown = [index for index in tasks if index >= count]
        if unknown:
            yield item.problem(
                "UnknownTask",
                "Array has no such task",
                f"It has {counted(count, 'task')}, 0-{count - 1}; found {print_tasks(unknown)}.",
                "spec",
                "array",
                field,
                *place,
                remedy="Name tasks by their number, from 0.",
            )


def _levels(item: Item, around: Surroundings) -> Iterator[Diagnostic]:
    for field in ("required", "preferred"):
        for group, level in getattr(item.model.spec.topology, field).items():
            if level not in around.levels:
                yield item.problem(
                    "UnknownLevel",
                    "Level does not exist",
                    f'The fabric has {", ".join(around.levels)}; found "{level}".',
                    "spec",
                    "topology",
                    field,
                    group,
                    remedy=did_you_mean(level, around.levels),
                )
