"""How exactly is a rank started: which command, in which environment, on which CPUs? The spec a launcher is handed.

Pure but for the agent's own PATH: what may be launched is `limits`' to say, what a runtime makes of it `runtimes`',
and launching is the shim's.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from reconciler.agent.beneath import root_of
from reconciler.agent.cgroups import Hierarchy, controls_of
from reconciler.agent.images import Image, image_of
from reconciler.agent.limits import Account, is_below
from reconciler.agent.runtimes import RUNTIMES, Bind, Start, Work
from reconciler.agent.vitals import Bound
from reconciler.wire import AttemptOrder, RankOrder

_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from reconciler.agent.shim import main; main(sys.argv[1:])"
)


def launcher_command(spec: Path) -> list[str]:
    """A new interpreter that has the launcher and nothing else, from the same zipapp or folder as this one."""
    import reconciler

    root = str(Path(str(reconciler.__file__)).parent.parent)
    return [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, root, str(spec)]


def launched_ranks(order: AttemptOrder) -> list[RankOrder]:
    """One for each process to launch: every rank, or the node's first when the job launches per node."""
    ranks = sorted(order.ranks, key=lambda r: (r.localRank, r.rank))
    return ranks[:1] if order.run.launch == "perNode" else ranks


def argv_of(order: AttemptOrder) -> list[str]:
    """The command. A script is given to bash as it is; a session only holds the GPUs."""
    run = order.run
    if run.command:
        return list(run.command)
    if run.script:
        return ["/bin/bash", "-c", run.script, "script"]
    return ["/bin/sleep", "infinity"]


def environment_of(order: AttemptOrder, rank: RankOrder, account: Account) -> dict[str, str]:
    """The whole environment of one process: nothing of the agent's own but PATH, and ours above the job's.

    Every GPU of the attempt on this node is visible, in the order of local ranks, so that LOCAL_RANK is the index
    of the rank's own device, as torchrun and everything written for it expects.
    """
    ranks = sorted(order.ranks, key=lambda r: (r.localRank, r.rank))
    env = {
        "PATH": os.environ.get("PATH", os.defpath) if account.uid is None else "/usr/local/bin:/usr/bin:/bin",
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
        "LANG": "C.UTF-8",
        **order.run.env,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(r.uuid or str(r.gpu) for r in ranks),
        "MASTER_ADDR": order.leaderAddress,
        "MASTER_PORT": str(order.port),
        "WORLD_SIZE": str(order.worldSize),
        "NODE_RANK": str(order.nodeRank),
        "GANGOPS_JOB": order.job,
        "GANGOPS_ATTEMPT": str(order.attempt),
        "GANGOPS_RESUME": "1" if order.resume else "0",
        "GANGOPS_GPU": rank.uuid or str(rank.gpu),
    }
    if order.run.launch == "perNode":
        env |= _torchrun(order, len(ranks))
    if order.run.launch != "perNode" or len(ranks) == 1:
        env |= {"RANK": str(rank.rank), "LOCAL_RANK": str(rank.localRank), "LOCAL_WORLD_SIZE": str(len(ranks))}
    if order.checkpoint:
        env["GANGOPS_CHECKPOINT_DIR"] = order.checkpoint.dir
        env["GANGOPS_CHECKPOINT_MARKER"] = order.checkpoint.marker
        env["GANGOPS_CHECKPOINT_SIGNAL"] = order.checkpoint.signal
    if order.taskIndex is not None:
        env["GANGOPS_TASK_INDEX"] = str(order.taskIndex)
    env |= {f"GANGOPS_PARAM_{name.upper()}": value for name, value in order.parameters.items()}
    env |= _near(ranks if order.run.launch == "perNode" else [rank])
    nics = _nics(ranks)
    if nics:
        env.setdefault("NCCL_IB_HCA", "=" + ",".join(nics))  # "=": these names exactly, not as prefixes
    if order.topoFile:
        env.setdefault("NCCL_TOPO_FILE", order.topoFile)
    return env | {f"GANGOPS_PORT_{i}": str(port) for i, port in enumerate(order.ports)}


def _near(ranks: Sequence[RankOrder]) -> dict[str, str]:
    """What is near the GPUs of one process's ranks. What is not known is left out; a rail is told only when all have one.

    NUMA nodes and rails are told in the order of local ranks, so that LOCAL_RANK is an index into them.
    """
    known = {
        "GANGOPS_NUMA": ",".join(str(r.numa) for r in ranks) if all(r.numa >= 0 for r in ranks) else "",
        "GANGOPS_CPUS": ",".join(dict.fromkeys(r.cpus for r in ranks if r.cpus)),
        "GANGOPS_NICS": ",".join(_nics(ranks)),
        "GANGOPS_RAIL": ",".join(str(r.rail) for r in ranks) if all(r.rail >= 0 for r in ranks) else "",
    }
    return {name: value for name, value in known.items() if value}


def _nics(ranks: Iterable[RankOrder]) -> list[str]:
    """The NIC of each rank; where several are equally near, all of them, for none is its own.

    None, when of some rank it is not known which are near: to name those of the others would keep it from its own.
    """
    found = [[r.nic] if r.nic else r.near for r in ranks]
    return list(dict.fromkeys(nic for near in found for nic in near)) if all(found) else []


def _torchrun(order: AttemptOrder, local_ranks: int) -> dict[str, str]:
    """What torchrun reads its options from. The gang is restarted as a whole, by us: it restarts nothing itself."""
    return {
        "PET_NNODES": str(order.nodeCount),
        "PET_NPROC_PER_NODE": str(local_ranks),
        "PET_NODE_RANK": str(order.nodeRank),
        "PET_MASTER_ADDR": order.leaderAddress,
        "PET_MASTER_PORT": str(order.port),
        "PET_MAX_RESTARTS": "0",
    }


@dataclass(frozen=True)
class Site:
    """What a spec needs to know of the node. `images` and `run` are the user's own folders; `devices` are the files of
    the attempt's GPUs and `foreign` (`c MAJOR:MINOR`) those of the others; `has_gpus` is false for pretended ones."""

    events: Path
    boot: str
    log_limits: Mapping[str, int]
    hierarchies: Sequence[Hierarchy] = ()
    secret_roots: Sequence[str] = ()
    images: str = ""
    run: str = ""
    devices: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    has_gpus: bool = False


def spec_of(
    order: AttemptOrder, account: Account, site: Site, *, folder: Path, logs: Path, deadline: int | None
) -> dict[str, Any]:
    """What the launcher reads. `deadline` in boottime ns; a lease is looked for in `folder/lease`."""
    return {
        "folder": str(folder),
        "events": str(site.events),
        "boot": site.boot,
        "digest": order.digest,
        "killSeconds": order.killSeconds,
        "deadline": deadline,
        "cgroups": list(site.hierarchies),
        "lease": str(folder / "lease") if order.fence == "lease" else "",
        "logs": dict(site.log_limits),
        "processes": [_process(order, rank, account, site, logs) for rank in launched_ranks(order)],
    }


def _process(order: AttemptOrder, rank: RankOrder, account: Account, site: Site, logs: Path) -> dict[str, Any]:
    start = start_of(order, rank, account, site)
    memory = order.memoryBytes // len(launched_ranks(order))
    return {
        "rank": rank.rank,
        "argv": list(start.argv),
        "env": dict(start.env),
        "cwd": start.cwd,
        "hidden": asdict(start.hidden),
        "wrappers": list(start.wrappers),
        "noNewPrivs": start.no_new_privs,
        "uid": account.uid,
        "gid": account.gid,
        "groups": list(account.groups),
        "cpus": _cpus_of(order, rank),
        "memoryNodes": _memory_nodes_of(order, rank),
        "memory": memory,
        "log": str(logs / f"{rank.rank}.log"),
        "secretFiles": [list(root_of(path, site.secret_roots) or ("/", path)) for path in order.run.secretFiles],
        "cgroup": f"{order.job}/{order.attempt}/{rank.rank}" if site.hierarchies else "",
        "controls": controls_of(memory, site.foreign),
    }


def start_of(order: AttemptOrder, rank: RankOrder, account: Account, site: Site) -> Start:
    """What is executed on the node for one process."""
    runtime, image = RUNTIMES[order.run.runtime], image_of(order.run.image)
    gpus = tuple(r.uuid or str(r.gpu) for r in sorted(order.ranks, key=lambda r: (r.localRank, r.rank)))
    home = account.home if Path(account.home).is_dir() else "/"
    start = runtime.start(
        Work(
            argv=tuple(argv_of(order)),
            env=environment_of(order, rank, account),
            cwd=order.run.workingDir or ("" if runtime.has_images else home),
            home=home,
            name=f"gangops-{order.job.replace('/', '-')}-{order.attempt}-{rank.rank}",
            given=frozenset(order.run.env),
            image=image,
            image_file=image_file(image, site.images, runtime.keeps) if image else "",
            folder=site.images if runtime.has_images else "",
            run_folder=site.run,
            binds=binds_of(order),
            gpus=gpus if site.has_gpus else (),
            devices=site.devices,
            as_root=account.uid is None and account.name == "root",
        )
    )
    # The program that was found when it was asked whether it is here, whatever the job calls its PATH.
    found = shutil.which(runtime.program) if runtime.program else None
    return replace(start, argv=(found, *start.argv[1:])) if found else start


def image_file(image: Image, folder: str, ending: str) -> str:
    """Where an image is on this node, for a runtime that starts files."""
    return image.file or f"{folder}/{image.key}{ending}"


def binds_of(order: AttemptOrder) -> tuple[Bind, ...]:
    """What a job sees of the node besides its mounts: where it saves, and what it is told of the topology."""
    found = [Bind(m["source"], m.get("target", m["source"]), bool(m.get("readOnly"))) for m in order.run.mounts]
    saves = order.checkpoint.dir if order.checkpoint else ""
    for path, read_only in ((saves, False), (order.topoFile, True)):
        if path and not any(bind.source == bind.target and is_below(path, (bind.target,)) for bind in found):
            found.append(Bind(path, path, read_only))
    return tuple(found)


def bound_of(order: AttemptOrder, rank: RankOrder, pid: int) -> Bound:
    """What a launched process was to be bound to, as `vitals` compares it."""
    return Bound(
        job=order.job,
        rank=rank.rank,
        pid=pid,
        cpus=_cpus_of(order, rank),
        memory_nodes=_memory_nodes_of(order, rank),
        memory=order.memoryBytes // len(launched_ranks(order)),
    )


def _memory_nodes_of(order: AttemptOrder, rank: RankOrder) -> list[int]:
    """NUMA nodes of the process's GPUs; none when one is not known: no binding is better than a wrong one."""
    ranks = order.ranks if order.run.launch == "perNode" else [rank]
    return sorted({r.numa for r in ranks}) if all(r.numa >= 0 for r in ranks) else []


def _cpus_of(order: AttemptOrder, rank: RankOrder) -> list[int]:
    ranks = order.ranks if order.run.launch == "perNode" else [rank]
    return sorted({cpu for r in ranks for cpu in cpu_list(r.cpus)})


def cpu_list(text: str) -> list[int]:
    """`0-3,8` as numbers; [] for what cannot be read, since no binding is better than a wrong one."""
    found: list[int] = []
    try:
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            found.extend(range(int(first), min(int(last or first), 65535) + 1))
    except ValueError:
        return []
    return found
