"""Scripts as Jobs: what is carried over, what is noted and where, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.errors import InvalidInput, Severity
from reconciler.imports.export import read_job
from reconciler.imports.layout import job_files
from reconciler.imports.mapping import Mapped, read_map
from reconciler.imports.sbatch.jobs import job_from_script
from reconciler.imports.sbatch.parse import parse_sbatch
from reconciler.imports.sbatch.write import script_of
from tests.imports.scripts import GPUS, MAP, assert_valid, imported, notes, refusals, run, spec, text_of


@pytest.mark.parametrize(
    ("directives", "fields"),
    [
        ("-N 4 --gres=gpu:h100:8", {"gpus": 32, "gpuType": "H100-SXM5-80GB"}),
        ("-G 12", {"gpus": 12}),
        ("-n 16 --ntasks-per-node=8 --gpus-per-node=8", {"gpus": 16}),
        ("-n 8 --gpus-per-task=1", {"gpus": 8}),
        ("-N 4 --gpus-per-node=2", {"gpus": 8, "parallelism": {"tensor": 2, "data": 4}}),
        ("-N 4 --gpus-per-node=1", {"gpus": 4}),
        ("-N 2-4 --gpus-per-node=1", {"gpus": 4, "parallelism": {"data": 4}, "elastic": {"dimension": "data", "min": 2, "max": 4}}),
        ("-G 8 --nice=-20 -H", {"gpus": 8, "nice": -20, "suspend": True}),
        ("-G 8 --nice=-2000", {"gpus": 8, "nice": -100}),
        ("-G 8 -n 8 -c 4 --mem-per-cpu=2G", {"gpus": 8, "resources": {"cpusPerGpu": 4, "memoryPerGpu": "8GiB"}}),
        ("-N 2 --gpus-per-node=8 --switches=1", {"gpus": 16, "topology": {"required": {"job": "rack"}}}),
        ("-N 2 --gpus-per-node=8 --switches=3", {"gpus": 16, "topology": {"preferred": {"job": "rack"}}}),
        ("-G 1 --network=roce_v2", {"gpus": 1, "topology": {"nicKind": "roce"}}),
        ("-G 1 --network=IB", {"gpus": 1, "topology": {"nicKind": "infiniband"}}),
        ("-G 1 --no-requeue", {"gpus": 1, "restart": {"onFailure": 0, "onNodeLoss": 0}}),
        ("-G 1 --time=UNLIMITED", {"gpus": 1, "timeLimit": "unlimited"}),
        ("-G 1 --array=0-3", {"gpus": 1, "array": {"count": 4}}),
        ("-G 1 --array=2,7%1", {"gpus": 1, "array": {"values": [{"task_id": "2"}, {"task_id": "7"}], "maxParallel": 1}}),
    ],
)  # fmt: skip
def test_fields(directives: str, fields: dict[str, Any]) -> None:
    found = spec(f"#SBATCH {directives}")
    assert {key: value for key, value in found.items() if key not in {"queue", "run"}} == fields


def test_the_map_file_says_what_names_are_called_here() -> None:
    mapped = read_map(
        b"queues: {team-a: nlp, big: vision}\npriorityClasses: {high: urgent}\ngpuTypes: {big: B200}\n"
        b"levels: {switches: pod}\nnodeLabels: {volta: {gpu: v100}}\njobs: {'7': nlp/first}\n"
        b"checkpointDir: /c/{queue}/{name}\nworkingDir: /home/a\n",
        "map.yaml",
    )
    result = imported(
        "#SBATCH -A team-a -p big -q high -N 2 --gpus-per-node=8 --switches=1 -C volta -d afterany:7 --signal=TERM@30",
        mapped=mapped,
        queue=None,
    )
    assert result.notes == ()
    (job,) = result.jobs
    assert_valid(job)
    assert job["spec"] == {
        "queue": "nlp",
        "priorityClass": "urgent",
        "gpus": 16,
        "gpuType": "B200",
        "topology": {"required": {"job": "pod"}},
        "checkpoint": {"dir": "/c/nlp/job", "onPreempt": {"signal": "SIGTERM", "to": "all", "grace": "30s"}},
        "after": [{"job": "nlp/first", "condition": "Finished"}],
        "nodeLabels": {"gpu": "v100"},
        "run": {"launch": "perNode", "command": ["./train"], "workingDir": "/home/a"},
    }


def test_a_map_file_is_checked_with_places() -> None:
    with pytest.raises(InvalidInput) as refused:
        read_map(b"queue: {a: b}\ngpusPerNode: many\nmounts: [a]\ncheckpointDir: here\n", "map.yaml")
    found = [(d.code, d.place.line) for d in refused.value.diagnostics]
    assert found == [("UnknownField", 1), ("WrongType", 2), ("WrongType", 3), ("WrongType", 4)]
    assert refused.value.diagnostics[0].remedy == 'Did you mean "queues"?'


def test_a_type_is_recognised_among_those_of_the_cluster() -> None:
    known = Mapped(known_types=("A100-SXM4-80GB", "H100-SXM5-80GB"))
    assert spec("#SBATCH -G h100:8", mapped=known)["gpuType"] == "H100-SXM5-80GB"
    assert spec("#SBATCH -G sxm:8", mapped=known)["gpuType"] == "sxm"


def test_what_is_left_behind_is_noted_with_its_line() -> None:
    result = imported(
        "#SBATCH -J My_Job\n#SBATCH -N 2 --gpus-per-node=4 --exclusive\n#SBATCH -o x.out\n#SBATCH --gpu-bind=none\n"
        "#SBATCH --begin=now+1hour\n#SBATCH -d afterok:9,singleton\n#SBATCH --signal=USR1\n#SBATCH --network=mn_all",
        "srun --cpu-bind=cores --label ./train",
        Mapped(),
    )
    assert notes(result) == [
        ("CarriedOverChanged", 2, "--job-name"),
        ("NotCarriedOver", 3, "--exclusive"),
        ("CarriedOverChanged", 3, "--nodes"),
        ("NotCarriedOver", 4, "--output"),
        ("NotCarriedOver", 5, "--gpu-bind"),
        ("NotCarriedOver", 6, "--begin"),
        ("NotCarriedOver", 7, "--dependency"),
        ("ValueAssumed", 8, "--signal"),
        ("NotCarriedOver", 9, "--network"),
        ("NotCarriedOver", 10, "srun --cpu-bind"),
    ]


def test_strict_makes_notes_errors_and_keeps_no_job() -> None:
    result = imported("#SBATCH -G 8 -o x").strict()
    assert (result.jobs, result.notes) == ((), ())
    assert [(e.code, e.severity) for e in result.errors] == [("NotCarriedOver", Severity.ERROR)]
    assert imported("#SBATCH -G 8").strict().jobs


@pytest.mark.parametrize(
    ("directives", "body", "code"),
    [
        ("#SBATCH -N 2", "srun ./x", "NoGpus"),
        ("# SBATCH -G 8", "srun ./x", "NoGpus"),
        ("#SBATCH -G 8", "", "NoCommand"),
        ("#SBATCH -G 8", "export A=1", "NoCommand"),
        ("#SBATCH --gpuz=8", "srun ./x", "ScriptRefused"),
        ("#SBATCH -G 8", "x" * 70_000, "CannotBecomeJob"),
    ],
)
def test_refusals(directives: str, body: str, code: str) -> None:
    result = imported(directives, body)
    assert (refusals(result.errors), result.jobs) == ([code], ())


def test_no_gpus_points_to_what_looked_like_a_directive() -> None:
    (error,) = imported("# SBATCH -G 8").errors
    assert "line 2 (space after hash)" in error.detail


@pytest.mark.parametrize("account", ["", "-A Team_A "])
def test_without_a_queue_it_is_refused(account: str) -> None:
    assert refusals(imported(f"#SBATCH {account}-G 8", queue=None).errors) == ["NoQueue"]


# --- what runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directives", "body", "found"),
    [
        ("#SBATCH -N 2 --gpus-per-node=8 --ntasks-per-node=8", "srun python t.py 'a b'", {"command": ["python", "t.py", "a b"]}),
        ("#SBATCH -N 2 --gpus-per-node=8", "srun -n 16 -l python t.py", {"command": ["python", "t.py"]}),
        ("#SBATCH -N 2 --gpus-per-node=8", "srun torchrun t.py", {"command": ["torchrun", "t.py"]}),
        ("#SBATCH -N 2 --gpus-per-node=8", "set -x\nexport A=1 B='x y'\nC=2 srun \\\n  -u \\\n  ./t \\\n  --z\nwait", {"launch": "perNode", "command": ["./t", "--z"], "env": {"A": "1", "B": "x y", "C": "2"}}),
        ("#SBATCH -G 1", "python t.py", {"command": ["python", "t.py"]}),
        ("#SBATCH -G 1 --export=ALL,A=1 -D /w", "srun ./t", {"command": ["./t"], "workingDir": "/w", "env": {"A": "1"}}),
        ("#SBATCH -G 1", "srun --container-image=nvcr.io#nvidia/pytorch:24.01 --container-mounts=/fs:/fs,/d:/data:ro ./t", {"command": ["./t"], "image": "nvcr.io/nvidia/pytorch:24.01", "mounts": [{"source": "/fs", "target": "/fs"}, {"source": "/d", "target": "/data", "readOnly": True}]}),
        ("#SBATCH -G 1", "srun ./t a\\\nb \"c \\\nd\" 'e\\\nf'", {"command": ["./t", "ab", "c d", "e\\\nf"]}),
        ("#SBATCH -G 1", "module load cuda\nsrun ./t > log", {"script": "module load cuda\n./t > log\n"}),
        ("#SBATCH -G 1", 'cd /w\nsrun ./t "$@"', {"script": 'cd /w\nexec ./t "$@"\n'}),
        ("#SBATCH -G 1", "cat > c <<EOF\nsrun x\nEOF\nsrun ./t", {"script": "cat > c <<EOF\nsrun x\nEOF\nexec ./t\n"}),
        ("#SBATCH -N 2 --gpus-per-node=8 --ntasks-per-node=8", "srun ./t --rank $SLURM_PROCID", {"script": 'export SLURM_PROCID="${RANK:-$NODE_RANK}"\nexec ./t --rank $SLURM_PROCID\n'}),
        ("#SBATCH -G 1 --array=3,5", "srun ./t $SLURM_ARRAY_TASK_ID", {"script": 'export SLURM_ARRAY_TASK_ID="$GANGOPS_PARAM_TASK_ID"\nexec ./t $SLURM_ARRAY_TASK_ID\n'}),
    ],
)  # fmt: skip
def test_run(directives: str, body: str, found: dict[str, Any]) -> None:
    assert run(directives, body) == found


def test_quoted_here_documents_and_joined_lines_stay_what_they_are() -> None:
    body = "cat > c <<'EOF'\nsrun x\nEOF\nif true; then\n  srun -l \\\n    ./t \\\n    --a 'b  c'\nfi\n: <<< srun"
    assert run("#SBATCH -G 1", body)["script"] == (
        "cat > c <<'EOF'\nsrun x\nEOF\nif true; then\n  ./t --a 'b  c'\nfi\n: <<< srun\n"
    )


def test_the_leader_is_asked_of_gangops() -> None:
    body = (
        "nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )\nhead=${nodes[0]}\n"
        'ip=$(srun -N1 -n1 -w "$head" hostname --ip-address)\n'
        "srun torchrun --rdzv_id $RANDOM --rdzv_endpoint $ip:29500 t.py"
    )
    result = imported(GPUS, body)
    assert result.jobs[0]["spec"]["run"]["script"] == (
        "nodes=( $MASTER_ADDR )\nhead=${nodes[0]}\nip=$MASTER_ADDR\n"
        "exec torchrun --rdzv_id $RANDOM --rdzv_endpoint $ip:29500 t.py\n"
    )
    assert [line for _, line, _ in notes(result)] == [3, 3, 5, 6]


def test_lines_that_cannot_work_are_noted_and_a_rendezvous_is_ours() -> None:
    result = imported(
        GPUS,
        "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
        "scontrol show job\nsrun ./a\nsrun ./b $SLURM_JOB_ID",
    )
    assert notes(result) == [
        ("BodyChanged", 3, "script"),
        ("BodyChanged", 4, "script"),
        ("BodyNeedsSlurm", 4, "script"),
        ("BodyNeedsSlurm", 4, "script"),
        ("BodyChanged", 6, "srun"),
    ]
    assert result.jobs[0]["spec"]["run"]["script"] == "scontrol show job\n./a\n./b $SLURM_JOB_ID\n"


@pytest.mark.parametrize("line", ["export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz"])  # fmt: skip
@pytest.mark.parametrize("rest", ["srun ./x", "cd /w\nsrun ./x"])
def test_a_secret_never_gets_into_the_job(line: str, rest: str) -> None:
    result = imported("#SBATCH -G 1", f"{line}\n{rest}")
    assert "hf_abc" not in str(result.jobs) + str(result.notes)
    assert "0123456789" not in str(result.jobs) + str(result.notes)
    assert ("NotCarriedOver", 3, "script") in notes(result)


# --- roles ----------------------------------------------------------------------------------------------------------

HET = "#SBATCH -J learner -N 2 --gpus-per-node=8 --ntasks-per-node=8\n#SBATCH hetjob\n#SBATCH -J actor -N 1 --gpus-per-node={} {}"
STEPS = "export A=1\nsrun --het-group=0 ./learn --x &\nsrun --het-group=1 ./act &\nwait"


def test_components_become_roles() -> None:
    found = spec(HET.format(4, "--ntasks-per-node=4"), STEPS)
    assert found == {
        "queue": "research",
        "gpus": 20,
        "roles": [{"name": "learner", "workers": 2, "gpusEach": 8}, {"name": "actor", "workers": 1, "gpusEach": 4}],
        "run": {
            "script": 'case "$GANGOPS_ROLE" in\nlearner) exec ./learn --x ;;\nactor) exec ./act ;;\nesac\n',
            "env": {"A": "1"},
        },
    }


@pytest.mark.parametrize(
    ("directives", "body", "code"),
    [
        (HET.format(8, "--ntasks-per-node=1"), STEPS, "CannotBecomeJob"),
        (HET.format("a100:8", "--ntasks-per-node=8").replace("node=8 ", "node=b200:8 ", 1), STEPS, "CannotBecomeJob"),
        (HET.format(4, "--ntasks-per-node=4"), STEPS + "\n./extra", "CannotBecomeJob"),
        (HET.format(4, "--ntasks-per-node=4"), "srun --het-group=0,1 ./both", "CannotBecomeJob"),
        (HET.format(4, "--ntasks-per-node=4"), "srun --het-group=0 ./one", "NoCommand"),
        ("#SBATCH -G 8\n#SBATCH hetjob\n#SBATCH -c 4", STEPS, "NoGpus"),
    ],
)
def test_components_that_cannot_be_one_gang(directives: str, body: str, code: str) -> None:
    result = imported(directives, body)
    assert (refusals(result.errors), result.jobs) == ([code], ())


def test_what_a_later_component_says_differently_is_noted() -> None:
    alike = imported(HET.format(8, "--ntasks-per-node=8 -t 60").replace("-N 2", "-t 60 -N 2"), STEPS)
    assert notes(alike) == []
    unlike = imported(HET.format(8, "--ntasks-per-node=8 -t 90 -o x").replace("-N 2", "-t 60 -N 2"), STEPS)
    assert notes(unlike) == [("NotCarriedOver", 4, "--output"), ("NotCarriedOver", 4, "--time")]
    assert unlike.jobs[0]["spec"]["timeLimit"] == "1h"


# --- and back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directives", "body"),
    [
        (HET.format(4, "--ntasks-per-node=4"), STEPS),
        ("#SBATCH -G 1 --array=2,7%1 --comment='a \"b\" #c'", "srun ./t $SLURM_ARRAY_TASK_ID '\"'"),
        ("#SBATCH -N 4 --gpus-per-node=2 --requeue", "cd /w\nsrun ./t | tee 'a b'"),
        ("#SBATCH -N 2-4 --gpus-per-node=8 --no-requeue -H --network=ib", "export A='it'\\''s'\nsrun torchrun t.py"),
        ("#SBATCH -G 12 --mail-user=a@b.c --nice=3", "srun ./t"),
        (
            "#SBATCH -N 2 --gpus-per-node=8 --ntasks-per-node=8",
            "srun --container-image=/i.sqsh --container-workdir=/w ./t",
        ),
        ("#SBATCH -G 1 --chdir=/w --time=1-2:03:04 --mem-per-gpu=10G --cpus-per-gpu=3", "srun ./t"),
    ],
)
def test_round_trip(directives: str, body: str) -> None:
    (job,) = imported(directives, body).jobs
    exported = script_of(read_job(job_files([job], []), "job.yaml"), MAP)
    again = job_from_script(parse_sbatch(exported.text.encode()), "x", mapped=MAP)
    named = job | {"metadata": job["metadata"] | {"name": again.jobs[0]["metadata"]["name"]}}
    assert again.jobs == (named,)


def test_export_notes_what_slurm_cannot_say() -> None:
    document = read_job(
        b"apiVersion: gangops/v1\nkind: Job\nmetadata: {name: x}\nspec:\n  queue: q\n  gpus: 16\n"
        b"  parallelism: {tensor: 8, data: 2}\n  topology: {required: {tensor: nvlinkDomain}}\n"
        b"  checkpoint: {dir: /c, every: 30m}\n  after: [{job: first}]\n"
        b"  array: {matrix: {lr: [0.1, 0.2]}}\n  run: {command: [a, b c]}\n",
        "x.yaml",
    )
    exported = script_of(document, Mapped(jobs={"12": "q/z"}))
    assert {note.place.path: note.code for note in exported.notes} == {
        "spec.parallelism": "NotCarriedOver",
        "spec.topology": "NotCarriedOver",
        "spec.checkpoint.dir": "NotCarriedOver",
        "spec.checkpoint.every": "NotCarriedOver",
        "spec.checkpoint.onPreempt": "CarriedOverChanged",
        "spec.after": "NotCarriedOver",
    }
    assert "#SBATCH --array=0-1\n" in exported.text
    assert "1) export GANGOPS_PARAM_LR=0.2 ;;\n" in exported.text
    assert exported.text.endswith("rank a 'b c'\n")


@pytest.mark.parametrize(
    ("array", "told"),
    [
        ("{count: 16, maxParallel: 4}", "0-15%4"),
        ('{count: 16, maxParallel: 4, cancelled: "3,7-9"}', "0-2,4-6,10-15%4"),
        ('{values: [{task_id: "3"}, {task_id: "5"}, {task_id: "6"}], cancelled: 1, rerun: ["0"]}', "3,6"),
        ('{matrix: {lr: [1, 2, 3]}, cancelled: "0"}', "1-2"),
    ],
)
def test_only_tasks_that_are_wanted_are_exported(array: str, told: str) -> None:
    text = f"""apiVersion: gangops/v1
kind: Job
metadata: {{name: x}}
spec:
  queue: q
  gpus: 1
  array: {array}
  run: {{command: [a]}}
"""
    exported = script_of(read_job(text.encode(), "x.yaml"), Mapped())
    assert f"#SBATCH --array={told}\n" in exported.text


@pytest.mark.parametrize("text", ["a: b\n", "", "apiVersion: gangops/v1\nkind: Queue\nmetadata: {name: x}\nspec: {}\n"])
def test_only_a_valid_job_is_exported(text: str) -> None:
    with pytest.raises(InvalidInput):
        read_job(text.encode(), "x.yaml")


def test_the_text_of_a_script_is_the_same_for_bash() -> None:
    body = "\n  echo 'a  b'\\\n  c\t\n\nsrun ./t $X\n\n"
    (job,) = imported("#SBATCH -G 1", body).jobs
    assert job["spec"]["run"]["script"] == "  echo 'a  b'\\\n  c\t\n\nexec ./t $X\n"
    assert text_of("", body).count("srun") == 1
