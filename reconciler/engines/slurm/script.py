"""What does Slurm run for a gang? A batch script that starts every rank through one `srun` and writes its own receipt.

The script holds a lock on the attempt's folder while it lives, and every rank shares another: if a controller lost the
job and it is submitted again while any of it still runs, the second waits, so that no attempt ever runs twice at once.
Its receipt says how the gang ended, for a reconciler that was away so long that Slurm has forgotten the job. Pure:
text from orders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final

from reconciler.model.units import NodeName
from reconciler.wire import AttemptOrder, RankOrder

LOCK_SECONDS: Final = 600
BEGUN: Final = "begun"
ENDED: Final = "ended"
LOCK: Final = "lock"
RANKS: Final = "ranks"
_FAILED: Final = "failed"

_HEAD: Final = """\
#!/bin/bash
# GangOps: {job}, attempt {attempt}. Written by the reconciler; the record of it is in git.
folder={folder}
mkdir -p "$folder" && exec >>"$folder/slurm.log" 2>&1
exec 9>>"$folder/lock" 8>>"$folder/ranks"
for held in 9 8; do
    flock --wait {lock_seconds} --conflict-exit-code 75 $held
    [ $? != 75 ] || {{ echo "an earlier submission of this attempt still runs"; exit 75; }}
done
exec 8>&-
if [ -s "$folder/{ended}" ]; then # nobody looks at the queue and submits at once: this one came too late
    echo "this attempt has ended already: job $SLURM_JOB_ID does nothing"
    exit "$(sed 's/^exit=//; s/ .*//' "$folder/{ended}")"
fi
resume={resume}
[ ! -e "$folder/{begun}" ] || resume=1
rm -f "$folder/{failed}"
echo "job=$SLURM_JOB_ID host=$SLURMD_NODENAME at=$(date +%s)" >"$folder/{begun}"
HOME=$(getent passwd "$(id -u)" | cut -d: -f6) USER=$(id -un)
export HOME USER LOGNAME=$USER LANG=C.UTF-8 GANGOPS_RESUME=$resume GANGOPS_LOGS=$folder
"""

_TAIL: Final = """\
trap : TERM
srun {srun} 9>&- &
launched=$!
until wait "$launched"; code=$?; ! kill -0 "$launched" 2>/dev/null; do :; done
[ ! -s "$folder/{failed}" ] || code=$(cat "$folder/{failed}")
echo "exit=$code job=$SLURM_JOB_ID" >"$folder/{ended}.new" && mv "$folder/{ended}.new" "$folder/{ended}"
exit "$code"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """What one part of a job starts: so many nodes, processes on each, CPUs for each."""

    nodes: int
    each: int
    cpus: int


def script_of(orders: Mapping[NodeName, AttemptOrder], folder: str, parts: Sequence[Tasks]) -> str:
    """The whole batch script of a gang; `parts` are those of a heterogeneous job in order, or the one of a plain job."""
    order = next(iter(orders.values()))
    head = _HEAD.format(
        job=order.job,
        attempt=order.attempt,
        folder=quote(folder),
        lock_seconds=LOCK_SECONDS,
        resume=int(order.resume),
        begun=BEGUN,
        ended=ENDED,
        failed=_FAILED,
    )
    exports = [f"export {name}={quote(value)}" for name, value in _environment(order).items()]
    task = f"export GANGOPS_TASK={quote(_task(orders))}"
    return (
        head
        + "\n".join([*exports, task])
        + "\n"
        + _TAIL.format(srun=" ".join(_srun(parts)), ended=ENDED, failed=_FAILED)
    )


def ranks_on(order: AttemptOrder) -> list[RankOrder]:
    """The ranks of a node as they are numbered on it."""
    return sorted(order.ranks, key=lambda rank: (rank.localRank, rank.rank))


def launched(gang: Mapping[NodeName, AttemptOrder]) -> list[int]:
    """The ranks that have a process, and so a log, of their own."""
    return [rank.rank for order in gang.values() for rank in ranks_on(order)[: tasks_on(order)]]


def log_name(rank: int) -> str:
    """The log of a rank, in the folder of its attempt."""
    return f"{rank}.log"


def tasks_on(order: AttemptOrder) -> int:
    """Processes that are launched on the node."""
    return 1 if order.run.launch == "perNode" else len(order.ranks)


def _srun(parts: Sequence[Tasks]) -> list[str]:
    """One step over all parts. What Slurm should start is said for each: of what a script inherits, versions differ."""
    words: list[str] = []
    for number, part in enumerate(parts):
        words += [":"] if number else []
        words += ["--kill-on-bad-exit=1", "--wait=0", "--mpi=none", "--export=ALL"]
        words += [f"--het-group={number}"] if len(parts) > 1 else []
        words += [f"--nodes={part.nodes}", f"--ntasks={part.nodes * part.each}", f"--ntasks-per-node={part.each}"]
        words += [f"--cpus-per-task={part.cpus}", "bash", "-c", """'eval "$GANGOPS_TASK"'""", "task"]
    return words


def _environment(order: AttemptOrder) -> dict[str, str]:
    """What all ranks share: the job's own, and ours above it."""
    env = {
        **order.run.env,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "MASTER_ADDR": order.leaderAddress,
        "MASTER_PORT": str(order.port),
        "WORLD_SIZE": str(order.worldSize),
        "GANGOPS_JOB": order.job,
        "GANGOPS_ATTEMPT": str(order.attempt),
    }
    if order.checkpoint:
        env["GANGOPS_CHECKPOINT_DIR"] = order.checkpoint.dir
        env["GANGOPS_CHECKPOINT_MARKER"] = order.checkpoint.marker
        env["GANGOPS_CHECKPOINT_SIGNAL"] = order.checkpoint.signal
    if order.taskIndex is not None:
        env["GANGOPS_TASK_INDEX"] = str(order.taskIndex)
    env |= {f"GANGOPS_PARAM_{name.upper()}": value for name, value in order.parameters.items()}
    return env | {f"GANGOPS_PORT_{number}": str(port) for number, port in enumerate(order.ports)}


def _task(orders: Mapping[NodeName, AttemptOrder]) -> str:
    """What each process runs: it finds its rank by node and local number, then runs the job's command."""
    order = next(iter(orders.values()))
    per_node = order.run.launch == "perNode"
    cases = [_case(node, found) for node, found in sorted(orders.items())]
    lines = [
        'case "$SLURMD_NODENAME" in',
        *cases,
        '*) echo "no rank belongs on $SLURMD_NODENAME" >&2; exit 70 ;;',
        "esac",
    ]
    lines += ['exec 8>>"$GANGOPS_LOGS/ranks"', "flock --shared 8"]
    signal = order.checkpoint.signal.removeprefix("SIG") if order.checkpoint else ""
    lines += ["unset GANGOPS_TASK", "rank=${ranks[$SLURM_LOCALID]}", f"trap : TERM INT {signal}".rstrip()]
    if order.checkpoint and signal and order.checkpoint.to != "all":
        # Slurm signals all ranks alike: those that are not meant do not die of it.
        lines.append(f"[ \"$rank\" = 0 ] || trap '' {signal}")
    # The log says that this rank is up: from here on it can be signalled.
    lines.append('exec >>"$GANGOPS_LOGS/$rank.log" 2>&1')
    lines += ['[ -z "$order" ] || [ "$CUDA_VISIBLE_DEVICES" != "$found" ] || export CUDA_VISIBLE_DEVICES=$order']
    lines += ["export NODE_RANK=$node_rank GANGOPS_GPU=${gpus[$SLURM_LOCALID]}"]
    if per_node:
        lines.append(
            f"export PET_NNODES={order.nodeCount} PET_NPROC_PER_NODE=${{#gpus[@]}} PET_NODE_RANK=$node_rank"
            " PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT PET_MAX_RESTARTS=0"
        )
    if not per_node or all(len(found.ranks) == 1 for found in orders.values()):
        lines.append("export RANK=$rank LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=${#gpus[@]}")
    lines.append(
        f"cd {quote(order.run.workingDir)} || exit 71" if order.run.workingDir else 'cd "$HOME" 2>/dev/null || cd /'
    )
    # Of a gang that fails, the first status counts: the others are those of ranks that were ended for it.
    tail = [
        "code=$?",
        f'[ "$code" = 0 ] || (set -C; echo "$code" >"$GANGOPS_LOGS/{_FAILED}") 2>/dev/null',
        'exit "$code"',
    ]
    return "\n".join([*lines, "exec 2>/dev/null  # bash would tell of every signal", f"{_command(order)} 2>&1", *tail])


def _case(node: NodeName, order: AttemptOrder) -> str:
    ranks = ranks_on(order)
    gpus = [rank.gpu for rank in ranks]
    nics = ",".join(dict.fromkeys(rank.nic for rank in ranks if rank.nic))
    told = ",".join(map(str, gpus))
    found = ",".join(map(str, sorted(gpus)))
    hca = f" NCCL_IB_HCA=${{NCCL_IB_HCA:-={nics}}}; export NCCL_IB_HCA" if nics else ""
    return (
        (
            f"{node}) ranks=({' '.join(str(rank.rank) for rank in ranks)}) gpus=({' '.join(map(str, gpus))})"
            f" node_rank={order.nodeRank} found={found} order={told if told != found else ''};{hca} ;;"
        )
        .replace("; ;;", " ;;")
        .replace(";;;", ";;")
    )


def _command(order: AttemptOrder) -> str:
    run = order.run
    if run.command:
        return " ".join(quote(word) for word in run.command)
    if run.script:
        return f"/bin/bash -c {quote(run.script)} script"
    return "/bin/sleep infinity"
