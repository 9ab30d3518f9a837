"""How does a task of Slurm come by the variables that GangOps gives each rank? The lines an exported script has.

Kept beside each other: what `write` adds, `run` knows and takes away again.
"""

from __future__ import annotations

from typing import Final

RENDEZVOUS: Final = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500'
_PER_GPU: Final = "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS NODE_RANK=$SLURM_NODEID"
_PER_NODE: Final = (
    "export NODE_RANK=$SLURM_NODEID PET_NODE_RANK=$SLURM_NODEID PET_NNODES=$SLURM_NNODES "
    "PET_NPROC_PER_NODE=$SLURM_GPUS_ON_NODE PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT"
)
WRAPPERS: Final = {
    launch: f"bash -c '{exports}; exec \"$@\"' rank "
    for launch, exports in (("perGpu", _PER_GPU), ("perNode", _PER_NODE))
}
"""What stands between `srun` and the command, by launch."""


def unwrapped(command: str) -> str:
    """The command behind such a wrapper; any other command as it is."""
    for wrapper in WRAPPERS.values():
        command = command.removeprefix(wrapper)
    return command
