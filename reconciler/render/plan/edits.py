"""Which fields of a job a change edits, and their values where these may be shown.

What may be shown is a list of names: a field that is not on it says only that it changed. So no value of an
environment variable, argument or script is ever printed, whether somebody marked it secret or not; and neither is
anything that could stand in for it, such as a digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reconciler.documents.quantities import print_duration
from reconciler.documents.values import camel
from reconciler.model.job import Job
from reconciler.render.names import one_line
from reconciler.render.plan.model import Edit

_SHOWN = (
    "gpus", "priority_class", "nice", "suspend", "rerun", "owner", "spares", "mixed_types", "spread", "rail_aligned",
    "cpus_per_gpu", "max_per_day", "on_preempt",
)  # fmt: skip
_SPANS = ("time_limit", "start_timeout", "min_runtime", "stall_timeout")
_QUIET = ("checkpoint", "restart", "roles", "after", "node_labels", "tolerations", "labels", "start_before", "elastic",
          "array", "memory_per_gpu")  # fmt: skip
_RUN = ("runtime", "launch", "command", "script", "session", "image", "working_dir", "mounts", "secret_files", "ports",
        "user", "group", "heartbeat_file")  # fmt: skip


def edits_of(before: Job, after: Job) -> tuple[Edit, ...]:
    """Fields that differ, in the order a reader wants them."""
    if before == after:
        return ()
    return tuple(_edits(before, after))


def _edits(before: Job, after: Job) -> Iterator[Edit]:
    for name in _SHOWN:
        if getattr(before, name) != getattr(after, name):
            yield Edit(field=camel(name), before=_text(getattr(before, name)), after=_text(getattr(after, name)))
    for name in _SPANS:
        one, other = getattr(before, name), getattr(after, name)
        if one != other:
            yield Edit(
                field=camel(name),
                before="none" if one is None else print_duration(one),
                after="none" if other is None else print_duration(other),
            )
    yield from _lists(before, after)
    for name in _QUIET:
        if getattr(before, name) != getattr(after, name):
            yield Edit(field=camel(name))
    for name in _RUN:
        if getattr(before.run, name) != getattr(after.run, name):
            yield Edit(field=f"run.{camel(name)}")
    yield from _environment(before.run.env, after.run.env)


def _lists(before: Job, after: Job) -> Iterator[Edit]:
    if before.gpu_types != after.gpu_types:
        yield Edit(
            field="gpuType", before=_text(" or ".join(before.gpu_types)), after=_text(" or ".join(after.gpu_types))
        )
    if before.dimensions != after.dimensions:
        yield Edit(field="parallelism", before=_sizes(before), after=_sizes(after))
    for name in ("required", "preferred"):
        one, other = getattr(before, name), getattr(after, name)
        if one != other:
            told = [_text(" ".join(f"{rule.group}:{rule.level}" for rule in rules)) for rules in (one, other)]
            yield Edit(field=f"topology.{name}", before=told[0], after=told[1])


def _environment(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Edit]:
    """Names alone."""
    for name in sorted({*before, *after}):
        if name not in after:
            yield Edit(field=f"run.env.{one_line(name)}", after="(removed)")
        elif name not in before:
            yield Edit(field=f"run.env.{one_line(name)}", after="(added)")
        elif before[name] != after[name]:
            yield Edit(field=f"run.env.{one_line(name)}", after="(value changed)")


def _sizes(job: Job) -> str:
    return " ".join(f"{one.name}:{one.size}" for one in job.dimensions) or "none"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None or value == "" else one_line(str(value))[:80]
