"""Documents that are well-formed and contradict each other: each contradiction has its code, its place and a remedy."""

from __future__ import annotations

import pytest

from reconciler.documents.secrets import secret_kind
from reconciler.documents.similar import closest, listed
from reconciler.errors import Severity
from tests.documents.trees import (
    CLASSES,
    CONFIG,
    FABRIC,
    HELLO,
    PROFILE,
    QUEUES,
    RACKS,
    changed,
    codes,
    job,
    problems,
    starter,
    with_job,
)

GPU = "H100-SXM5-80GB"
QUEUE = "---\napiVersion: gangops/v1\nkind: Queue\nmetadata: {{name: {}}}\nspec: {}\n"


def test_the_starter_has_no_problem() -> None:
    assert [str(d) for d in problems(starter())] == []


# One row: the file, a text in it and what stands there instead; then code, line and path.
CLUSTER = [
    (CONFIG, "spec: {}", "spec: {agents: {lostAfter: 20s, unreachableAfter: 30s}}", "AgentTimes", 6, "spec.agents.lostAfter"),
    (CONFIG, "spec: {}", "spec: {agents: {reportInterval: 1m}}", "AgentTimes", 6, "spec.agents.unreachableAfter"),
    (CONFIG, "spec: {}", "spec: {scheduling: {jobsMayPass: never}}", "BackfillNeedsPassing", 6, "spec.scheduling.jobsMayPass"),
    (CONFIG, "my-cluster}", "my-cluster, labels: {gangops/x: a}}", "LabelReserved", 5, 'metadata.labels["gangops/x"]'),
    (FABRIC, "name: cluster,", "name: site,", "BadLevels", 7, "spec.levels"),
    (FABRIC, "name: rack,", "name: node,", "BadLevels", 7, "spec.levels"),
    (FABRIC, "{name: r02}", "{name: r01}", "DuplicateName", 15, "spec.spineGroups[0].racks[1].name"),
    (PROFILE, "gpus: [4, 5, 6, 7], nics", "gpus: [3, 5, 6, 7], nics", "GpuOverlap", 15, "spec.pcieSwitches[1].gpus[0]"),
    (PROFILE, "4, 5, 6, 7]}]", "4, 5, 6, 6]}]", "GpuOverlap", 12, "spec.nvlinkDomains[0].gpus[7]"),
    (PROFILE, "gpus: [4, 5, 6, 7], nics", "gpus: [4, 5, 6, 7, 63], nics", "GpuMissing", 6, "spec"),
    (PROFILE, "mlx5_2, mlx5_3]", "mlx5_2, mlx5_9]", "UnknownNic", 14, "spec.pcieSwitches[0].nics[3]"),
    (PROFILE, "sw1, numa: 1", "sw1, numa: 2", "UnknownNuma", 15, "spec.pcieSwitches[1].numa"),
    (PROFILE, '"56-111,', '"55-111,', "CpuOverlap", 11, "spec.numa[1].cpus"),
    (PROFILE, "name: mlx5_7", "name: mlx5_6", "DuplicateName", 24, "spec.nics[7].name"),
    (PROFILE, "  numa:", '  reserved: {cpus: "300"}\n  numa:', "UnknownCpu", 9, "spec.reserved.cpus"),
    (PROFILE, "  numa:", "  reserved: {memory: 2TiB}\n  numa:", "NothingLeft", 9, "spec.reserved.memory"),
    (RACKS, "profile: hgx-h100", "profile: hgx-h10", "UnknownProfile", 6, "spec.profile"),
    (RACKS, "rack: r01", "rack: r1", "UnknownRack", 6, "spec.rack"),
    (RACKS, "rack: r01", "rack: r01, fabric: net", "UnknownFabric", 6, "spec.fabric"),
    (RACKS, "rack: r01", "rack: r01, domains: {block: a}", "UnknownLevel", 6, "spec.domains.block"),
    (RACKS, '"gpu-[03-04]"', '"gpu-[02-04]"', "NodeNamedTwice", 11, "spec.nodes"),
    (RACKS, "metadata: {name: r02}", "metadata: {name: r01}", "DuplicateName", 10, "metadata.name"),
    (RACKS, "rack: r01", "rack: r01, overrides: {gpu-09: {dead: true}}", "UnknownNode", 6, "spec.overrides.gpu-09"),
    (RACKS, "rack: r01", 'rack: r01, overrides: {gpu-01: {gpus: {"8": {state: failed}}}}', "UnknownGpu", 6, "spec.overrides.gpu-01.gpus.8"),
    (PROFILE, "mlx5_2, mlx5_3]}", "mlx5_2, mlx5_3], sharedNics: [mlx5_7]}", "NicTwice", 14, "spec.pcieSwitches[0].sharedNics[0]"),
    (RACKS, "rack: r01", "rack: r01, overrides: {gpu-01: {nics: {eth0: {state: down}}}}", "UnknownNic", 6, "spec.overrides.gpu-01.nics.eth0"),
    (RACKS, "rack: r01", 'rack: r01, overrides: {gpu-01: {dead: true}, "gpu-0[1-2]": {}}', "NodeNamedTwice", 6, 'spec.overrides["gpu-0[1-2]"]'),
    (RACKS, "rack: r01", 'rack: r01, overrides: {"gpu-0[1-9]": {dead: true}}', "BadNodeList", 6, 'spec.overrides["gpu-0[1-9]"]'),
    (RACKS, "rack: r01", "rack: r01, labels: {gangops.io/x: a}", "LabelReserved", 6, 'spec.labels["gangops.io/x"]'),
    (QUEUES, "parent: root", "parent: rot", "UnknownQueue", 12, "spec.parent"),
    (QUEUES, "spec: {}", "spec: {parent: research}", "QueueCycle", 12, "spec.parent"),
    (QUEUES, "guaranteed: {H100", "guaranteed: {H200", "UnknownGpuType", 13, "spec.guaranteed.H200-SXM5-80GB"),
    (QUEUES, "80GB: 16}", "80GB: 16}\n  ceiling: {H100-SXM5-80GB: 8}", "GuaranteeOverCeiling", 13, f"spec.guaranteed.{GPU}"),
    (QUEUES, "80GB: 16}", "80GB: 64}", "GuaranteesExceedCapacity", 13, f"spec.guaranteed.{GPU}"),
    (QUEUES, "spec: {}", f"spec: {{guaranteed: {{{GPU}: 8}}}}", "GuaranteesExceedParent", 6, f"spec.guaranteed.{GPU}"),
    (QUEUES, "  # runAs: {user: svc-research}", "  runAs: {user: root}", "NonRootUser", 14, "spec.runAs.user"),
    (QUEUES, "80GB: 16}", "80GB: 16}\n  limits: {maxPriorityClass: urgnt}", "UnknownPriorityClass", 14, "spec.limits.maxPriorityClass"),
    (CLASSES, "spec: {value: 1000}", "spec: {value: 1000, default: true}", "MultipleDefaultClasses", 11, "spec.default"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "old", "new", "code", "line", "where"), CLUSTER, ids=[f"{r[3]}-{i}" for i, r in enumerate(CLUSTER)]
)
def test_a_contradiction_in_the_cluster_is_found_once_at_its_place(
    path: str, old: str, new: str, code: str, line: int, where: str
) -> None:
    found = [d for d in problems(changed(path, old, new)) if d.code == code]
    assert [(d.place.file, d.place.line, d.place.path) for d in found] == [(path, line, where)]
    assert found[0].is_error


# One row: fields of a job, GPUs, what it runs; then code and path.
RUN = "{command: [python3, a.py]}"
JOBS = [
    ("priorityClass: urgnt", 8, RUN, "UnknownPriorityClass", "spec.priorityClass"),
    ("gpuType: H100", 8, RUN, "UnknownGpuType", "spec.gpuType"),
    (f"anyOf: [{GPU}, A100]", 8, RUN, "UnknownGpuType", "spec.anyOf[1]"),
    (f"gpuType: {GPU}\nanyOf: [{GPU}]", 8, RUN, "ConflictingFields", "spec.anyOf"),
    ("parallelism: {tensor: 4, data: 4}", 8, RUN, "ParallelismProduct", "spec.parallelism"),
    ("roles: [{name: a, workers: 2, gpusEach: 8}]", 8, RUN, "RolesSum", "spec.roles"),
    ("rankOrder: [data, data]", 8, RUN, "DuplicateName", "spec.rankOrder"),
    ("elastic: {min: 1, max: 2}", 8, RUN, "ElasticRange", "spec.elastic"),
    ("parallelism: {tensor: 8}\nelastic: {min: 2, max: 4}", 8, RUN, "ElasticRange", "spec.elastic"),
    ("array: {count: 2, values: [{a: 1}]}", 8, RUN, "ArrayNeedsOne", "spec.array"),
    ("topology: {required: {job: rak}}", 8, RUN, "UnknownLevel", "spec.topology.required.job"),
    ("topology: {required: {job: rack}}", 24, RUN, "NeverFits", "spec.topology.required.job"),
    ("parallelism: {tensor: 16}", 16, RUN, "NeverFits", "spec.parallelism.tensor"),
    ("parallelism: {tensor: 8, pipeline: 4}\ntopology: {required: {pipeline: rack}}", 32, RUN, "NeverFits", "spec.topology.required.pipeline"),
    ("roles: [{name: a, workers: 1, gpusEach: 16}]", 16, RUN, "NeverFits", "spec.roles"),
    ("nice: 1", 64, RUN, "NeverFits", "spec.gpus"),
    ("topology: {nicKind: efa}", 8, RUN, "NeverFits", "spec.topology.nicKind"),
    ("nice: 1", 8, "{command: [a], script: b}", "RunNeedsOne", "spec.run"),
    ("nice: 1", 8, "{ports: 1}", "RunNeedsOne", "spec.run"),
    ("nice: 1", 8, "{command: [a], image: x, runtime: process}", "ConflictingFields", "spec.run.image"),
    ("nice: 1", 8, "{command: [a], runtime: podman}", "ConflictingFields", "spec.run.runtime"),
    ("nice: 1", 8, "{command: [a], launch: perNode, ranksPerNode: 8}", "ConflictingFields", "spec.run.ranksPerNode"),
    ("nice: 1", 8, "{command: [a], env: {WANDB_API_KEY: abcdef}}", "SecretInEnv", "spec.run.env.WANDB_API_KEY"),
    ("preemption: {policy: checkpoint}", 8, RUN, "CheckpointMissing", "spec.preemption.policy"),
    ("checkpoint: {dir: /c, completeMarker: a/../../b}", 8, RUN, "BadPath", "spec.checkpoint.completeMarker"),
    ("after: [{job: x}]", 8, RUN, "DependencyCycle", "spec.after"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "gpus", "run", "code", "where"), JOBS, ids=[f"{r[3]}-{i}" for i, r in enumerate(JOBS)]
)
def test_a_contradiction_in_a_job_is_the_only_error_and_at_its_place(
    body: str, gpus: int, run: str, code: str, where: str
) -> None:
    found = [d for d in problems(with_job(job(body, gpus=gpus, run=run))) if d.is_error]
    assert [(d.code, d.place.path) for d in found] == [(code, where)]


@pytest.mark.parametrize(
    ("body", "run", "code"),
    [
        ("checkpoint: {dir: /c, every: 5h}\ntimeLimit: 1d", RUN, "CheckpointSparse"),
        ("checkpoint: {dir: /c, every: 1h}", RUN, "CheckpointSparse"),
        ("after: [{job: nobody}]", RUN, "DependencyUnknown"),
        ("nice: 1", "{command: [a], ranksPerNode: 8}", "OlderSpelling"),
    ],
)
def test_what_is_unwise_is_a_warning(body: str, run: str, code: str) -> None:
    (found,) = problems(with_job(job(body, run=run)))
    assert (found.code, found.severity) == (code, Severity.WARNING)


def test_a_gpu_under_no_switch_is_a_warning() -> None:
    found = problems(changed(PROFILE, "gpus: [4, 5, 6, 7], nics", "gpus: [4, 5, 6], nics"))
    assert [(d.code, d.severity, d.place.path) for d in found] == [
        ("GpuMissing", Severity.WARNING, "spec.pcieSwitches")
    ]


def test_a_job_without_any_time_limit_is_warned_about() -> None:
    assert codes(changed(HELLO, "  timeLimit: 1h\n", "")) == ["NoTimeLimit"]
    assert codes(changed(HELLO, "1h", "unlimited")) == []


@pytest.mark.parametrize(
    ("limits", "body", "path"),
    [
        ("limits: {gpusPerJob: 4}", "", "spec.gpus"),
        ("limits: {timeLimit: 30m}", "", "spec.timeLimit"),
        ("limits: {timeLimit: 30m}", "timeLimit: unlimited", "spec.timeLimit"),
        ("limits: {maxPriorityClass: normal}", "priorityClass: urgent", "spec.priorityClass"),
    ],
)
def test_limits_of_a_queue_hold_for_its_jobs(limits: str, body: str, path: str) -> None:
    tree = changed(QUEUES, "80GB: 16}", "80GB: 16}\n  " + limits)
    tree["cluster-state/jobs/research/x.yaml"] = job(body or "nice: 1")
    found = [d for d in problems(tree) if d.place.file.endswith("x.yaml")]
    assert [(d.code, d.place.path) for d in found] == [("QueueLimitExceeded", path)]


@pytest.mark.parametrize(("source", "fine"), [("/fs/a", True), ("/fs", True), ("/fs2", False), ("/fs/../etc", False)])
def test_mounts_stay_below_the_roots_of_the_queue_or_its_parent(source: str, fine: bool) -> None:
    tree = changed(QUEUES, "spec: {}", "spec: {mountRoots: [/fs]}")
    tree["cluster-state/jobs/research/x.yaml"] = job(
        run=f"{{command: [a], mounts: [{{source: {source}, target: /d}}]}}"
    )
    assert codes(tree) == ([] if fine else ["MountOutsideRoots"])


@pytest.mark.parametrize(("file", "fine"), [("/s/a", True), ("/s2", False), ("/s/../etc/shadow", False)])
def test_secrets_stay_below_the_roots_of_the_queue_or_its_parent(file: str, fine: bool) -> None:
    tree = changed(QUEUES, "spec: {}", "spec: {secretRoots: [/s]}")
    tree["cluster-state/jobs/research/x.yaml"] = job(run=f"{{command: [a], secretFiles: [{file}]}}")
    assert codes(tree) == ([] if fine else ["SecretOutsideRoots"])


@pytest.mark.parametrize(("image", "found"), [("", []), (", image: x", ["ConflictingFields"])])
def test_bubblewrap_is_no_container(image: str, found: list[str]) -> None:
    tree = changed(QUEUES, "spec: {}", "spec: {}")
    tree["cluster-state/jobs/research/x.yaml"] = job(run=f"{{command: [a], runtime: bubblewrap{image}}}")
    assert codes(tree) == found


def test_a_cycle_of_jobs_is_reported_at_each_of_them_and_named_from_its_first() -> None:
    tree = starter()
    for name, target in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")):
        tree[f"cluster-state/jobs/research/{name}.yaml"] = job(f"after: [{{job: {target}}}]", name=name)
    found = problems(tree)
    assert [d.place.file[-6:] for d in found] == ["a.yaml", "b.yaml", "c.yaml"]
    assert {d.detail for d in found} == {"The chain research/a -> research/b -> research/c -> research/a never starts."}


def test_windows_over_unknown_nodes_and_queues() -> None:
    tree = starter()
    tree["cluster-state/maintenance/w.yaml"] = (
        'apiVersion: gangops/v1\nkind: Reservation\nmetadata: {name: w}\nspec:\n  nodes: "gpu-[04-05]"\n'
        '  from: "2030-01-01T00:00:00Z"\n  to: "2030-01-02T00:00:00Z"\n  reason: r\n  queues: [reserch]\n'
    )
    found = problems(tree)
    assert [(d.code, d.place.line) for d in found] == [("MaintenanceUnknownNode", 5), ("UnknownQueue", 9)]
    assert "gpu-05" in found[0].detail
    assert "gpu-04" not in found[0].detail.replace("gpu-05", "")
    assert found[1].remedy == 'Did you mean "research"? Or add it under cluster-state/queues/.'


def test_a_queue_like_no_other_is_to_be_added() -> None:
    found = problems(changed(QUEUES, "parent: root", "parent: zzz"))
    assert [d.remedy for d in found if d.code == "UnknownQueue"] == ["Add it under cluster-state/queues/."]


@pytest.mark.parametrize(
    ("path", "text", "code"),
    [
        ("cluster-state/jobs/vision/x.yaml", job(), "WrongFolder"),
        ("cluster-state/jobs/x.yaml", job(), "WrongFolder"),
        ("cluster-state/jobs/research/deep/x.yaml", job(), "WrongFolder"),
        ("cluster-state/queues/x.yaml", job(), "WrongFolder"),
        ("cluster-state/somewhere/x.yaml", job(), "WrongFolder"),
        ("cluster-state/jobs/research/y.yaml", job(), "WrongFileName"),
        ("cluster-state/jobs/research/x.yml", job(), "WrongFileName"),
        ("cluster-state/jobs/research/x.yaml", job() + "---\n" + job(name="z"), "SeveralJobs"),
        ("cluster-state/jobs/research/x.yaml", QUEUE.format("q", "{parent: root}")[4:], "WrongFolder"),
        ("policies/q.yaml", QUEUE.format("q", "{parent: root}")[4:], "WrongFolder"),
        ("cluster-state/jobs/research/x.yaml", "# nothing\n", "EmptyFile"),
    ],
)
def test_documents_have_a_place(path: str, text: str, code: str) -> None:
    assert code in codes({**starter(), path: text})


def test_files_that_are_no_documents_are_left_alone() -> None:
    tree = {
        **starter(),
        "README.md": "x",
        "cluster-state/trust/x.yaml": "{",
        "other/x.yaml": "{",
        "cluster-state/a.txt": "{",
    }
    assert codes(tree) == []


def test_a_broken_document_does_not_make_its_users_wrong_too() -> None:
    assert codes(changed(QUEUES, "parent: root", "parnt: root")) == ["UnknownField"]
    assert codes(changed(PROFILE, "gpuType:", "gpuTyp:")) == ["UnknownField"]
    assert codes(changed(FABRIC, "latency: 3us", "latency: 3")) == ["WrongType"]
    assert codes(changed(CLASSES, "default: true", "defaul: true")) == ["UnknownField"]
    assert codes(changed(CONFIG, "spec: {}", "spec: {a: 1}")) == ["UnknownField"]


def test_a_repository_without_configuration_says_so() -> None:
    tree = starter()
    del tree[CONFIG]
    assert codes(tree) == ["MissingClusterConfig"]


# --- secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567"),
        ("X", "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7"),
        ("X", "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1"),
        ("X", "sk-" + "proj-aB3dE5gH7jK9mN1pQ3sT5vW7"),
        ("X", "AKIA" + "ABCDEFGHIJKLMNOP"),
        ("X", "postgres://app:hunter2@db/x"),
        ("X", "Zm9vYmFyYmF6cXV4Zm9vYmFyMTIzNDU2Nzg5MGFiY2Rl"),
        ("db_password", "hunter2"),
        ("AUTH_TOKEN", "x"),
    ],
)
def test_what_looks_like_a_secret_is_found_and_never_repeated(name: str, value: str) -> None:
    assert secret_kind(name, value) is not None
    (found,) = problems(with_job(job(run=f'{{command: [a], env: {{{name}: "{value}"}}}}')))
    assert found.code == "SecretInEnv"
    assert value not in str(found) or value == "x"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_DEBUG", "WARN"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1"),
        ("MAX_TOKENS", "4096"),
        ("HF_TOKEN", "$HF_TOKEN_FROM_FILE"),
        ("TOKEN", ""),
        ("SSH_KEY", "/etc/keys/id"),
        ("URL", "https://example.org/a/very/long/path/that/goes/on/and/on/for/ever"),
        ("CONFIG", "conf/llama-7b-instruct-v2-long-context-length-32k"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
    ],
)
def test_ordinary_values_are_no_secrets(name: str, value: str) -> None:
    assert secret_kind(name, value) is None


def test_guesses_are_the_same_whatever_the_order() -> None:
    assert closest("reserch", {"research", "vision", "nlp"}) == "research"
    assert closest("ab", ["ac", "aa"]) == closest("ab", ["aa", "ac"])
    assert closest("zebra", ["nlp"]) is None
    assert listed(["b", "a"]) == "a, b"
    assert listed([]) == "none"
    assert listed(map(str, range(10, 20)), 2) == "10, 11 and 8 more"
