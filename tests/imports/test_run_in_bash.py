"""Scripts that we write, run by a real bash with stand-ins for Slurm: arguments, variables and quoting survive."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reconciler.imports.export import read_job
from reconciler.imports.gang import job_document
from reconciler.imports.layout import job_files
from reconciler.imports.sbatch.write import script_of
from tests.imports.scripts import imported

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], {k: os.environ.get(k) for k in sys.argv[1].split()}]))"
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for task in 0 1; do
  SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS=2 SLURM_NODEID=0 SLURM_NNODES=1 SLURM_GPUS_ON_NODE=2 "$@"
done
"""
WORDS = ["it's", 'a "b" c', "$HOME `x` \\ *", "", "two\nlines"]


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/bash\necho node1\necho node2\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def seen(script: str, path: Path, **env: str) -> list[Any]:
    done = subprocess.run(
        ["/bin/bash", "-c", script, "script"],
        env={"PATH": f"{path}:/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def exported(**spec: Any) -> str:
    job = job_document("x", {"queue": "q", "gpus": 2, **spec}, labels={}, annotations={})
    result = script_of(read_job(job_files([job], []), "x.yaml"))
    assert not result.errors
    return result.text


def test_an_exported_command_gets_its_arguments_and_the_variables_of_a_rank(slurm: Path) -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT A"
    command = [sys.executable, "-c", SHOW, names, *WORDS]
    found = seen(exported(run={"command": command, "env": {"A": "it's $5\n"}}), slurm)
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500", "A": "it's $5\n"}
    assert found == [
        [[names, *WORDS], {"RANK": "0", "LOCAL_RANK": "0", **common}],
        [[names, *WORDS], {"RANK": "1", "LOCAL_RANK": "1", **common}],
    ]


def test_an_exported_script_of_an_array_sees_its_task(slurm: Path) -> None:
    names = "GANGOPS_PARAM_LR GANGOPS_PARAM_MIX PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR"
    script = f"# a 'comment'\n{sys.executable} -c '{SHOW}' \\\n  \"{names}\"\n"
    text = exported(
        array={"matrix": {"lr": ["0.1", "0.3"], "mix": ["a b", "it's"]}}, run={"launch": "perNode", "script": script}
    )
    assert "#SBATCH --array=0-3\n" in text
    node = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "node1"}
    first, second = seen(text, slurm, SLURM_ARRAY_TASK_ID="3")
    assert first == second == [[names], {"GANGOPS_PARAM_LR": "0.3", "GANGOPS_PARAM_MIX": "it's", **node}]


def test_an_imported_script_sees_slurms_variables(slurm: Path) -> None:
    names = "SLURM_PROCID SLURM_NTASKS SLURM_NNODES SLURM_LOCALID SLURM_ARRAY_TASK_ID SLURM_JOB_NAME A"
    body = f"export A=1\ncd /\nsrun {sys.executable} -c '{SHOW}' \"{names}\""
    (job,) = imported("#SBATCH -J Sweep -N 2 --gpus-per-node=8 --ntasks-per-node=8 --array=4,6", body).jobs
    run = job["spec"]["run"]
    ranks = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "NODE_RANK": "1"}
    (found,) = seen(run["script"], slurm, GANGOPS_PARAM_TASK_ID="6", **ranks, **run.get("env", {}))
    assert found == [
        [names],
        {
            "SLURM_PROCID": "9",
            "SLURM_NTASKS": "16",
            "SLURM_NNODES": "2",
            "SLURM_LOCALID": "1",
            "SLURM_ARRAY_TASK_ID": "6",
            "SLURM_JOB_NAME": "sweep",
            "A": "1",
        },
    ]


def test_an_imported_role_starts_its_own_command(slurm: Path) -> None:
    body = f"srun --het-group=0 {sys.executable} -c '{SHOW}' A 'x y' &\nsrun --het-group=1 false &\nwait"
    (job,) = imported("#SBATCH -J a -G 1\n#SBATCH hetjob\n#SBATCH -J b -G 1", body).jobs
    assert seen(job["spec"]["run"]["script"], slurm, GANGOPS_ROLE="a") == [[["A", "x y"], {"A": None}]]
