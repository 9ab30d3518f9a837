"""Could this job ever start here, if the whole declared cluster were empty and healthy?

Necessary conditions only, by counting: what breaks one never starts. Of what passes, the planner has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reconciler.documents.check import Item
from reconciler.documents.convert import dimensions_of, gpu_types_of
from reconciler.documents.surroundings import Surroundings, nic_label
from reconciler.errors import Diagnostic
from reconciler.model.counting import counted


def lint_fit(item: Item, around: Surroundings) -> Iterator[Diagnostic]:
    """Why the job can never start, if no GPU type it allows has what it needs."""
    spec = item.model.spec
    types = gpu_types_of(spec) or around.gpu_types
    reasons = [_misfit(spec, gpu_type, around) for gpu_type in types]
    if reasons and all(reasons):
        detail, path = max(reasons, key=lambda r: r is not None and len(r[1])) or ("", ())
        yield item.problem(
            "NeverFits",
            "Job can never fit this cluster",
            detail,
            "spec",
            *path,
            remedy="Leave it out, or name another kind."
            if path[-1:] == ("nicKind",)
            else "Ask for fewer GPUs, or require a wider level.",
        )


def _misfit(spec: Any, gpu_type: str, around: Surroundings) -> tuple[str, tuple[str, ...]] | None:
    """Why the job does not fit the empty cluster with this type of GPU, and which field says so."""
    kind = spec.topology.nic_kind
    if kind is not None and nic_label(kind) not in around.nic_labels:
        return f"No node has a NIC of kind {kind}.", ("topology", "nicKind")
    least = spec.gpus
    if spec.elastic is not None:
        least = spec.gpus // getattr(spec.parallelism, spec.elastic.dimension) * spec.elastic.min
    for role in spec.roles or ():
        if role.gpus_each > around.largest.get((gpu_type, "node"), 0):
            return f"A {role.name} needs {counted(role.gpus_each, 'GPU')} in one node.", ("roles",)
    widths = {level: width for width, level in enumerate(around.levels)}
    required = dict(spec.topology.required)
    tensor = around.tensor_level(gpu_types_of(spec))[0]
    if spec.parallelism is not None and spec.parallelism.tensor > 1 and "tensor" not in spec.topology.preferred:
        required.setdefault("tensor", tensor)
    wants: list[tuple[str, int, tuple[str, ...]]]
    wants = [(required["job"], least, ("topology", "required", "job"))] if "job" in required else []
    inner: list[tuple[int, str]] = []
    for dimension in dimensions_of(spec, around):
        level = required.get(dimension.name)
        if level is not None:
            # Groups that are kept in a level no wider come along whole.
            group = dimension.size
            for size, narrower in inner:
                group *= size if widths[narrower] <= widths[level] else 1
            said = dimension.name in spec.topology.required
            where = ("topology", "required", dimension.name) if said else ("parallelism", dimension.name)
            wants.append((level, min(group, least) if spec.elastic else group, where))
            inner.append((dimension.size, level))
    for level, need, path in wants:
        most = around.largest.get((gpu_type, level), 0)
        if need > most:
            return f"It needs {need} {gpu_type} in one {level}; the largest has {most}.", path
    whole = around.largest.get((gpu_type, "cluster"), 0)
    return (f"It needs {least} {gpu_type}; the whole cluster has {whole}.", ("gpus",)) if least > whole else None
