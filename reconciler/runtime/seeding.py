"""What did queues use before the record began? Read once, from a file that an import wrote, into generation 0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from reconciler.errors import Diagnostic, InvalidInput, NotFound, Place, UsageError
from reconciler.model.allocation import Usage
from reconciler.model.desired import Desired
from reconciler.model.units import GpuType, QueueName

_MOST: Final = 1 << 50
_MILLI: Final = 1000


def seeded_usage(file: Path, desired: Desired) -> tuple[Usage, ...]:
    """The accounts to begin with, by queue and type. Raises: NotFound, UsageError, InvalidInput (UnknownQueue, ...)."""
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        said = tree["gpuSeconds"]
        rows = [(str(q), str(kind), count) for q, kinds in said.items() for kind, count in kinds.items()]
    except OSError as err:
        raise NotFound(f"{file}: {err.strerror}", code="FileNotReadable", remedy="Name a readable file.") from err
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise UsageError(
            f"{file} is no file of past use",
            code="NotUsage",
            remedy="`gangops import slurm-cluster` writes one: GPU-seconds by queue and GPU type.",
        ) from err
    if problems := list(_problems(file, rows, desired)):
        raise InvalidInput(problems)
    return tuple(
        Usage(queue=QueueName(queue), gpu_type=GpuType(kind), acc=count * _MILLI) for queue, kind, count in sorted(rows)
    )


def _problems(file: Path, rows: list[tuple[str, str, object]], desired: Desired) -> Iterator[Diagnostic]:
    queues = {str(name) for name in desired.quotas.queues}
    types = {str(node.shape.gpu_type) for node in desired.inventory.nodes}
    for queue, kind, count in rows:
        place = Place(str(file), path=f"gpuSeconds.{queue}.{kind}")
        if queue not in queues:
            yield Diagnostic(
                "UnknownQueue", "Queue does not exist", f'No document of kind Queue is named "{queue}".', place,
                "Leave its line out, or add the queue.",
            )  # fmt: skip
        if kind not in types:
            yield Diagnostic(
                "UnknownGpuType", "GPU type does not exist", f'No node has GPUs of type "{kind}".', place,
                f"Known are: {', '.join(sorted(types))}.",
            )  # fmt: skip
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST:
            yield Diagnostic(
                "OutOfRange", "Past use is no number of GPU-seconds", f"{count!r} stands there.", place,
                "Write a whole number from 0.",
            )  # fmt: skip
