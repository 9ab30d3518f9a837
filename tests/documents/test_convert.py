"""Documents to frozen values: defaults, inventory, quotas, identity."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.documents.cpulist import parse_cpus, print_cpus
from reconciler.documents.desired import load_desired
from reconciler.model.desired import Desired
from reconciler.model.inventory import GpuSlot
from reconciler.model.job import Job, Launch, OnPreempt
from reconciler.model.units import DAY, HOUR, MINUTE, SECOND, CommitId, JobKey, NodeName, QueueName
from tests.documents.trees import CONFIG, FABRIC, PROFILE, QUEUES, RACKS, changed, job, sources, starter, with_job

GIB = 1 << 30


def desired(tree: dict[str, str]) -> Desired:
    loaded = load_desired(sources(tree), CommitId("c"))
    assert [str(d) for d in loaded.diagnostics if d.is_error] == []
    assert loaded.desired is not None
    return loaded.desired


def converted(body: str = "", *, gpus: int = 8, run: str = "{command: [python3, a.py]}") -> Job:
    found = desired(with_job(job(body, gpus=gpus, run=run))).job_of(JobKey("research/x"))
    assert found is not None
    return found


# --- defaults of jobs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "dimensions", "required", "preferred"),
    [
        (1, [], [], []),
        (4, [("tensor", 4)], [("tensor", "nvlinkDomain")], []),
        (8, [("tensor", 8)], [("tensor", "nvlinkDomain")], []),
        (12, [("tensor", 4), ("data", 3)], [("tensor", "nvlinkDomain")], [("job", "rack")]),
        (16, [("tensor", 8), ("data", 2)], [("tensor", "nvlinkDomain")], [("job", "rack")]),
        (9, [("data", 9)], [], [("job", "rack")]),
    ],
)
def test_a_job_that_only_says_gpus_gets_the_largest_tensor_group_that_fits_nvlink(
    gpus: int, dimensions: list[tuple[str, int]], required: list[tuple[str, str]], preferred: list[tuple[str, str]]
) -> None:
    found = converted(gpus=gpus)
    assert [(d.name, d.size) for d in found.dimensions] == dimensions
    assert [(r.group, r.level) for r in found.required] == required
    assert [(p.group, p.level) for p in found.preferred] == preferred


def test_without_nvlink_a_tensor_group_goes_inside_a_node() -> None:
    tree = changed(PROFILE, "  nvlinkDomains: [{id: 0, gpus: [0, 1, 2, 3, 4, 5, 6, 7]}]\n", "")
    tree["cluster-state/jobs/research/x.yaml"] = job(gpus=16)
    found = desired(tree)
    assert found.inventory.nodes[0].shape.nvlink == tuple(1 << gpu for gpu in range(8))
    assert [(d.name, d.size) for d in found.jobs[JobKey("research/x")].dimensions] == [("tensor", 8), ("data", 2)]
    assert [(r.group, r.level) for r in found.jobs[JobKey("research/x")].required] == [("tensor", "node")]


def test_parallelism_and_topology_as_said_and_ranks_in_the_order_said() -> None:
    found = converted(
        "parallelism: {tensor: 4, pipeline: 2, data: 2}\nrankOrder: [pipeline]\n"
        "topology: {preferred: {tensor: nvlinkDomain}, required: {job: rack}}\n"
        "communication: {data: {bytesPerStep: 1000, overlap: 0.7}}",
        gpus=16,
    )
    assert [(d.name, d.size, d.bytes_per_step) for d in found.dimensions] == [
        ("pipeline", 2, 0), ("tensor", 4, 0), ("data", 2, 300),
    ]  # fmt: skip
    assert [(r.group, r.level) for r in found.required] == [("job", "rack")]
    assert [(p.group, p.level) for p in found.preferred] == [("tensor", "nvlinkDomain")]


def test_a_wider_required_level_still_prefers_the_rack() -> None:
    found = converted("topology: {required: {job: spineGroup}}", gpus=16)
    assert [(p.group, p.level) for p in found.preferred] == [("job", "rack")]


def test_defaults_of_behaviour() -> None:
    found = converted("checkpoint: {dir: /c}")
    assert found.priority_class == "normal"
    assert found.on_preempt is OnPreempt.CHECKPOINT
    assert found.checkpoint is not None
    assert (found.checkpoint.signal, found.checkpoint.signal_to, found.checkpoint.grace) == (
        "SIGUSR1",
        "leader",
        5 * MINUTE,
    )
    assert (found.checkpoint.marker, found.checkpoint.every) == ("LATEST", 30 * MINUTE)
    assert (found.restart.on_failure, found.restart.on_node_loss) == (3, -1)
    assert (found.restart.fence, found.restart.lease) == ("confirm", 30 * SECOND)
    assert (found.run.runtime, found.run.user) == ("process", "self")
    assert converted().on_preempt is OnPreempt.REQUEUE


@pytest.mark.parametrize(
    ("run", "launch"),
    [
        ("{command: [torchrun, t.py]}", Launch.PER_NODE),
        ("{command: [/opt/bin/torchrun, t.py]}", Launch.PER_NODE),
        ("{command: [python3, torchrun]}", Launch.PER_GPU),
        ("{command: [torchrun, t.py], launch: perGpu}", Launch.PER_GPU),
        ("{command: [mpi], ranksPerNode: 1}", Launch.PER_NODE),
        ("{command: [mpi], ranksPerNode: 8}", Launch.PER_GPU),
        ("{session: true}", Launch.PER_NODE),
        ("{script: x}", Launch.PER_GPU),
    ],
)
def test_torchrun_and_sessions_are_launched_once_a_node(run: str, launch: Launch) -> None:
    assert converted(run=run).run.launch is launch


def test_how_long_a_session_may_be_idle_is_not_what_runs() -> None:
    plain, timed = converted(run="{session: true}"), converted(run="{session: {idleTimeout: 1h30m}}")
    assert (plain.run.session, plain.run.idle_timeout) == (True, None)
    assert (timed.run.session, timed.run.idle_timeout) == (True, 5400 * 10**9)
    assert plain.digest == timed.digest


def test_an_image_chooses_a_container_runtime() -> None:
    assert converted(run="{command: [a], image: 'x@sha256:1'}").run.runtime == "enroot"


def test_time_limits_come_from_the_job_then_the_cluster() -> None:
    tree = changed(CONFIG, "spec: {}", "spec: {scheduling: {defaultTimeLimit: 1d}}")
    jobs = {"a": "timeLimit: 2h", "b": "timeLimit: unlimited", "c": ""}
    for name, body in jobs.items():
        tree[f"cluster-state/jobs/research/{name}.yaml"] = job(body or "nice: 0", name=name).replace(
            "  timeLimit: 1h\n", ""
        )
    found = desired(tree).jobs
    assert [found[JobKey(f"research/{name}")].time_limit for name in jobs] == [2 * HOUR, None, DAY]


def test_arrays_elastic_gangs_and_roles() -> None:
    array = converted(
        "array: {matrix: {lr: [0.10, 1], mix: [a, b]}, maxParallel: 3, onTaskFailure: stop}", gpus=1
    ).array
    assert array is not None
    assert array.tasks == (
        {"lr": "0.10", "mix": "a"},
        {"lr": "0.10", "mix": "b"},
        {"lr": "1", "mix": "a"},
        {"lr": "1", "mix": "b"},
    )
    assert (array.max_parallel, array.stop_on_failure) == (3, True)
    elastic = converted("parallelism: {tensor: 8, data: 2}\nelastic: {min: 1, max: 2}", gpus=16).elastic
    assert elastic is not None
    assert (elastic.dimension, elastic.least, elastic.most) == ("data", 1, 2)
    roles = converted("roles: [{name: a, workers: 1, gpusEach: 1}, {name: b, workers: 2, gpusEach: 4}]", gpus=9)
    assert [(r.name, r.workers, r.gpus_each) for r in roles.roles] == [("a", 1, 1), ("b", 2, 4)]
    assert [(d.name, d.size) for d in roles.dimensions] == [("data", 9)]


def test_a_dependency_without_a_queue_is_in_the_same_one() -> None:
    found = converted("after: [{job: hello}, {job: vision/y, condition: Started}]")
    assert [(d.job, d.condition) for d in found.after] == [("research/hello", "Succeeded"), ("vision/y", "Started")]


# --- identity -------------------------------------------------------------------------------------------------------


BASE = "checkpoint: {dir: /c}\nresources: {memoryPerGpu: 64GiB}"


@pytest.mark.parametrize(
    ("body", "same"),
    [
        ("checkpoint: {dir: /c, every: 5m}\nresources: {memoryPerGpu: 64GiB}", True),
        (BASE.replace("64GiB", "65536Mi"), True),
        (BASE + "\npriorityClass: urgent\nnice: 5\ntimeLimit: 3h\nsuspend: true", True),
        (BASE + "\npreemption: {policy: never}\nrestart: {onFailure: 9}", True),
        (BASE + "\nparallelism: {data: 1, tensor: 8}", False),
        (BASE.replace("/c", "/d"), False),
        (BASE.replace("64GiB", "32GiB"), False),
        (BASE + "\nrerun: 1", False),
        (BASE + "\ngpuType: H100-SXM5-80GB", False),
        (BASE + "\narray: {count: 2}", False),
    ],
)
def test_only_what_runs_makes_another_incarnation(body: str, same: bool) -> None:
    assert (converted(body).digest == converted(BASE).digest) is same


def test_a_default_said_aloud_changes_no_digest_and_the_command_does() -> None:
    quiet, aloud = "{command: [torchrun, a]}", "{command: [torchrun, a], launch: perNode, ports: 0, env: {}}"
    assert converted(run=quiet).digest == converted(run=aloud).digest
    assert converted(run=quiet).digest != converted(run="{command: [torchrun, b]}").digest


def test_the_digest_is_this_one_on_every_machine() -> None:
    assert converted().digest == "26a900341be373ff7994c31e3486775d490802561f713309426d864a89f7532a"


def test_a_queue_that_changes_its_account_replaces_no_job() -> None:
    tree = changed(QUEUES, "  # runAs: {user: svc-research}", "  runAs: {user: svc-research}")
    before, after = desired(starter()).jobs[JobKey("research/hello")], desired(tree).jobs[JobKey("research/hello")]
    assert after.run.user == "svc-research"
    assert before == replace(after, run=replace(after.run, user="self"))


# --- inventory ------------------------------------------------------------------------------------------------------


def test_cpu_lists_are_exact_both_ways() -> None:
    assert parse_cpus("0-3,8,2") == (0, 1, 2, 3, 8)
    assert print_cpus((8, 0, 1, 2, 3)) == "0-3,8"
    assert print_cpus(()) == ""
    for text in ("", "3-1", "a", "1,,2", "0-99999", "-1", "9000"):
        with pytest.raises(ValueError, match="CPU"):
            parse_cpus(text)


def test_a_node_is_its_profile_at_its_place() -> None:
    tree = changed(PROFILE, "  numa:", '  reserved: {cpus: "0,56", memory: 64GiB}\n  numa:')
    found = desired(tree).inventory
    assert [node.name for node in found.nodes] == ["gpu-01", "gpu-02", "gpu-03", "gpu-04"]
    assert [level.name for level in found.levels] == ["nvlinkDomain", "node", "rack", "spineGroup", "cluster"]
    assert found.above_node == ("spineGroup", "rack")
    node = found.nodes[2]
    assert (node.path, node.rack) == (("sg0", "r02"), "r02")
    assert node.shape.gpus[5] == GpuSlot(
        index=5, numa=1, nic="mlx5_5", rail=5, near=("mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7")
    )
    assert node.shape.nvlink == (0xFF,)
    assert [(n.cpus, n.cpu_count, n.memory) for n in node.shape.numa] == [
        ("1-55,112-167", 111, 992 * GIB), ("57-111,168-223", 111, 992 * GIB),
    ]  # fmt: skip
    oversubscribed = next(level for level in found.levels if level.name == "spineGroup")
    assert (oversubscribed.latency, oversubscribed.bandwidth, oversubscribed.oversubscription) == (
        5000,
        400 * 10**9,
        2000,
    )


def test_a_profile_says_names_of_its_gpus_a_topology_file_and_nics_that_nobody_owns() -> None:
    tree = changed(
        PROFILE, "  numa:", "  gpuModels: [NVIDIA H100 96GB HBM3]\n  ncclTopoFile: /etc/nccl/hgx.xml\n  numa:"
    )
    owned, shared = "nics: [mlx5_4, mlx5_5, mlx5_6, mlx5_7]", "sharedNics: [mlx5_8, mlx5_9]"
    assert owned in tree[PROFILE]
    tree[PROFILE] = tree[PROFILE].replace(owned, shared)
    shape = desired(tree).inventory.nodes[0].shape
    assert shape.models == ("H100-80GB-HBM3", "H100-96GB-HBM3")
    assert [shape.goes_by(name) for name in ("H100-SXM5-80GB", "H100-80GB-HBM3", "H100-PCIe")] == [True, True, False]
    assert shape.topo_file == "/etc/nccl/hgx.xml"
    assert shape.gpus[5] == GpuSlot(index=5, numa=1, nic="", rail=-1, near=("mlx5_8", "mlx5_9"))


def test_overrides_say_what_differs_about_one_node() -> None:
    overrides = (
        '{gpu-01: {gpus: {"5": {state: failed, reason: XID 79}, "1": {state: ok}}, nics: {mlx5_2: {state: down}}, '
        "cordoned: PSU, taints: [{key: k, effect: NoSchedule}], labels: {room: b}}, "
        '"gpu-0[2]": {cordoned: PSU, dead: true}}'
    )
    tree = changed(RACKS, "rack: r01}", f"rack: r01, labels: {{room: a}}, overrides: {overrides}}}")
    first, second, third, _ = desired(tree).inventory.nodes
    nics = {"gangops.io/nic-roce": "true"}
    assert (first.failed, first.cordoned, first.dead, first.labels) == (1 << 5, "PSU", False, {"room": "b"} | nics)
    assert first.shape.gpus[2] == GpuSlot(index=2, numa=0, nic="", rail=-1, near=("mlx5_0", "mlx5_1", "mlx5_3"))
    assert [(t.key, t.value, t.effect) for t in first.taints] == [("k", "", "NoSchedule")]
    assert (second.failed, second.cordoned, second.dead, second.labels) == (0, "PSU", True, {"room": "a"} | nics)
    assert (third.cordoned, third.dead) == ("", False)
    assert third.shape.gpus[2].nic == "mlx5_2"


def test_a_kind_of_nic_is_asked_for_as_a_label_that_such_nodes_have() -> None:
    asked = converted("topology: {nicKind: infiniband}\nnodeLabels: {room: a}").node_labels
    assert asked == {"room": "a", "gangops.io/nic-infiniband": "true"}
    first, *_ = desired(
        changed(PROFILE, "name: mlx5_7, rail: 7", "name: mlx5_7, rail: 7, kind: infiniband")
    ).inventory.nodes
    assert first.labels == {"gangops.io/nic-roce": "true", "gangops.io/nic-infiniband": "true"}


def test_a_level_of_ones_own_is_filled_in_by_the_node_set() -> None:
    tree = changed(FABRIC, "    - {name: nvlinkDomain, latency: 0.7us, bandwidth: 450GBps}\n", "")
    tree[FABRIC] = tree[FABRIC].replace(
        "    - {name: rack,", "    - {name: nvlinkDomain, latency: 0.7us, bandwidth: 900GBps}\n    - {name: rack,"
    )
    tree[RACKS] = (
        tree[RACKS]
        .replace("rack: r01}", "rack: r01, domains: {nvlinkDomain: b1}}")
        .replace("rack: r02}", "rack: r02, domains: {nvlinkDomain: b2}}")
    )
    tree["cluster-state/jobs/research/x.yaml"] = job(gpus=16)
    found = desired(tree)
    assert found.inventory.above_node == ("spineGroup", "rack", "nvlinkDomain")
    assert found.inventory.nodes[0].path == ("sg0", "r01", "b1")
    wide = found.jobs[JobKey("research/x")]
    assert [(d.name, d.size) for d in wide.dimensions] == [("tensor", 16)], "two nodes share one NVLink domain"


def test_windows_come_one_a_node() -> None:
    tree = starter()
    head = "apiVersion: gangops/v1\nkind: {}\nmetadata: {{name: {}}}\n"
    times = 'from: "2030-01-01T00:00:00+00:00", to: "2030-01-01T01:00:00+01:00"'
    tree["cluster-state/maintenance/m.yaml"] = (
        head.format("Maintenance", "m")
        + f'spec: {{nodes: "gpu-0[1-2]", {times.replace("+01:00", "+00:00")}, reason: r, drain: kill}}\n---\n'
        + head.format("Reservation", "r")
        + 'spec: {nodes: "gpu-03", from: "2029-01-01T00:00:00Z", to: "2029-01-02T00:00:00Z", reason: r, queues: [research]}\n'
    )
    found = desired(tree).windows
    assert [(w.name, w.node, w.drain, w.members) for w in found] == [
        ("r", "gpu-03", "wait", ("research",)), ("m", "gpu-01", "kill", ()), ("m", "gpu-02", "kill", ()),
    ]  # fmt: skip
    assert found[1].ends - found[1].begins == HOUR
    assert NodeName("gpu-03") == found[0].node


# --- quotas ---------------------------------------------------------------------------------------------------------


def test_guarantees_left_out_are_filled_in_and_accounts_inherited() -> None:
    tree = changed(QUEUES, "spec: {}", "spec: {runAs: {user: svc, group: all}}")
    tree[QUEUES] += (
        "---\napiVersion: gangops/v1\nkind: Queue\nmetadata: {name: a}\nspec: {parent: research, lend: false, guaranteed: {H100-SXM5-80GB: 8}}\n"
    )
    tree[QUEUES] += (
        "---\napiVersion: gangops/v1\nkind: Queue\nmetadata: {name: leaf}\nspec: {parent: root, ceiling: {H100-SXM5-80GB: 4}}\n"
    )
    queues = desired(tree).quotas.queues
    gpu = "H100-SXM5-80GB"
    assert list(queues) == ["a", "leaf", "research", "root"]
    assert queues[QueueName("root")].guaranteed == {gpu: 32}, "the root is guaranteed all there is"
    assert queues[QueueName("leaf")].guaranteed == {}
    assert queues[QueueName("leaf")].ceiling == {gpu: 4}
    assert queues[QueueName("leaf")].lend is None
    assert queues[QueueName("a")].lend == {gpu: 0}
    assert (queues[QueueName("a")].run_as, queues[QueueName("a")].run_as_group) == ("svc", "all")


def test_rules_of_the_cluster_have_the_defaults_of_the_rule_book_and_can_be_said() -> None:
    base = desired(starter())
    assert base.scheduling.cooldown == 10 * MINUTE
    assert base.scheduling.hold_max_share_ppm == 250_000
    assert base.agents.mass_loss_ppm == 500_000
    said = desired(
        changed(
            CONFIG, "spec: {}",
            "spec: {scheduling: {backfill: {mode: none}, defragment: {threshold: 0.25}, victimOrder: [fewestJobs]},"
            " agents: {lostAfter: 1m, gangStartTimeout: 9s, massLoss: {maxShare: 10%}},"
            " repository: {publishInterval: 1m, state: {url: here, mirrorTo: there}, observed: {coalesce: 1s}}}",
        )
    )  # fmt: skip
    assert (said.scheduling.backfill, said.scheduling.defragment_threshold_ppm) == ("none", 250_000)
    assert (said.scheduling.victim_order, said.scheduling.gang_start_timeout) == (("fewestJobs",), 9 * SECOND)
    assert (said.agents.lost_after, said.agents.mass_loss_ppm) == (MINUTE, 100_000)
    assert (said.repository.publish_interval, said.repository.observed_coalesce) == (MINUTE, SECOND)
    assert (said.repository.state_url, said.repository.state_mirror) == ("here", "there")


def test_a_cluster_without_classes_has_one() -> None:
    tree = starter()
    del tree["cluster-state/priorities/classes.yaml"]
    found = desired(tree)
    assert list(found.classes) == ["default"]
    assert found.jobs[JobKey("research/hello")].priority_class == "default"
