"""With which options is a gang handed to Slurm, so that it starts exactly at the decided nodes and GPUs or not at all?

Nodes that are asked for alike form one part; a gang whose nodes differ becomes a heterogeneous job, which Slurm starts
as a whole as well. Pure: orders in, options and script out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reconciler.documents.hostlist import fold
from reconciler.engines.slurm.gres import request_of
from reconciler.engines.slurm.naming import Tag
from reconciler.engines.slurm.script import Tasks, script_of, tasks_on
from reconciler.engines.slurm.seen import Partition, SlurmNode
from reconciler.model.desired import SlurmRules
from reconciler.model.units import SECOND, Instant, NodeName
from reconciler.wire import AttemptOrder

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What `sbatch` is given: its options, the script on its standard input, and where the gang's files lie."""

    options: tuple[str, ...]
    script: str
    folder: str


@dataclass(frozen=True, slots=True, order=True)
class _Part:
    """What is asked of each node of a part. `memory` in MiB, 0 for all of it."""

    gres: str
    tasks: int
    cpus: int
    memory: int
    whole: bool

    def options(self) -> list[str]:
        sizes = [f"--ntasks-per-node={self.tasks}", f"--cpus-per-task={self.cpus}", f"--mem={self.memory}M"]
        return [f"--gres={self.gres}", *sizes, *(["--exclusive"] if self.whole else [])]


def attempt_folder(rules: SlurmRules, job: str, attempt: int) -> str:
    """Where an attempt's logs and receipts lie, on the file system that all nodes share."""
    return f"{rules.folder}/{job}/{attempt}"


def submission_of(
    tag: Tag,
    orders: Mapping[NodeName, AttemptOrder],
    nodes: Mapping[NodeName, SlurmNode],
    rules: SlurmRules,
    partition: Partition | None,
    account: tuple[str, str] | None,
) -> Submission:
    """The gang as one submission; `orders` are all of its nodes', each of which is in `nodes`.

    `account` is the user and the group to submit as, None for our own.
    """
    order = next(iter(orders.values()))
    parts: dict[_Part, list[NodeName]] = {}
    for node in sorted(orders):
        parts.setdefault(_part(orders[node], nodes[node], rules), []).append(node)
    folder = attempt_folder(rules, order.job, order.attempt)
    options: list[str] = []
    tasks: list[Tasks] = []
    for number, (part, names) in enumerate(sorted(parts.items(), key=lambda item: item[1])):
        tasks.append(Tasks(nodes=len(names), each=part.tasks, cpus=part.cpus))
        if number:
            options.append(":")
        name = f"{tag.name}+{number}" if number else tag.name
        # Two submissions of one attempt never run at the same time. Parts of one job would wait for each other.
        options += [f"--job-name={name}", *([] if number else ["--dependency=singleton"])]
        options += _everywhere(tag, rules, partition, account)
        options += [f"--nodes={len(names)}", f"--nodelist={fold(names)}", *part.options()]
    return Submission(options=tuple(options), script=script_of(orders, folder, tasks), folder=folder)


def end_minutes(deadline: Instant, started: int, kill_seconds: int) -> int:
    """The time limit that ends a job by itself soon after its deadline, in whole minutes from its start."""
    return max(1, -(-(deadline // SECOND + kill_seconds - started) // 60))


def _everywhere(tag: Tag, rules: SlurmRules, partition: Partition | None, account: tuple[str, str] | None) -> list[str]:
    """What every part of the job says alike."""
    limit = partition.max_minutes if partition is not None else None
    options = [
        f"--comment={tag.comment()}",
        "--no-requeue",  # another try is another attempt, and git decides about it
        "--output=/dev/null",  # the script opens its own, in a folder that it makes
        "--chdir=/",
        f"--time={'UNLIMITED' if limit is None else limit}",
    ]
    if rules.partition:
        options.append(f"--partition={rules.partition}")
    if rules.account:
        options.append(f"--account={rules.account}")
    if account is not None:  # without a group of its own, the job would keep that of root
        options += [f"--uid={account[0]}", f"--gid={account[1]}"]
    return options


def _part(order: AttemptOrder, node: SlurmNode, rules: SlurmRules) -> _Part:
    mask = 0
    for rank in order.ranks:
        mask |= 1 << rank.gpu
    held, of = mask.bit_count(), max(1, node.gpus.count)
    whole = held == node.gpus.count
    # A whole node is asked for slot by slot too: a step cannot inherit "any eight" where each has its own type.
    pinned = rules.pin_gpus or whole
    cpus = order.cpusPerGpu or max(1, node.cpus // of)
    memory = order.memoryBytes // _MIB or (0 if whole else node.memory * held // of)
    return _Part(
        gres=request_of(node.gpus, mask, pinned=pinned),
        tasks=tasks_on(order),
        cpus=cpus * held if order.run.launch == "perNode" else cpus,
        memory=memory,
        whole=whole,
    )
