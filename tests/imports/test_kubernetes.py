"""Kubernetes objects as Jobs, and Jobs as JobSets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reconciler.imports.export import read_job
from reconciler.imports.kubernetes.jobs import jobs_from_manifest
from reconciler.imports.kubernetes.write import jobset_of
from reconciler.imports.layout import job_files
from reconciler.imports.mapping import Mapped
from reconciler.imports.notes import Imported
from tests.imports.scripts import assert_valid, refusals

RACK = "cloud.provider.com/topology-rack"
KUEUE = "kueue.x-k8s.io"
MAP = Mapped(checkpoint_dir="/c/{name}", mounts={"claim": "/fs/claim"}, node_labels={"disk=ssd": {"disk": "ssd"}})


def pod(gpus: int = 8, *command: str, annotations: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "r.example/train@sha256:" + "0" * 64,
        "command": list(command) or ["torchrun", "train.py"],
        "resources": {"limits": {"nvidia.com/gpu": gpus} if gpus else {}},
    } | more.pop("container", {})
    metadata = {"metadata": {"annotations": annotations}} if annotations else {}
    return metadata | {"spec": {"containers": [container], **more}}


def workload(version: str, kind: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    labels = {f"{KUEUE}/queue-name": "research"} | metadata.pop("labels", {})
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x", "labels": labels, **metadata}, "spec": spec}


def pytorch(
    *, workers: int = 3, master: dict[str, Any] | None = None, worker: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    replicas = {
        "Master": {"replicas": 1, "restartPolicy": "OnFailure", "template": master or pod()},
        "Worker": {"replicas": workers, "restartPolicy": "OnFailure", "template": worker or pod()},
    }
    return workload("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": replicas, **spec})


def batch(template: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return workload("batch/v1", "Job", {"template": template or pod(), **spec})


def jobset(*jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return workload(
        "jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": list(jobs), **more.pop("spec", {})}, **more
    )


def replicated(name: str, replicas: int, template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"name": name, "replicas": replicas, "template": {"spec": {"template": template, **spec}}}


def volcano(*tasks: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return workload("batch.volcano.sh/v1alpha1", "Job", {"tasks": list(tasks), "schedulerName": "volcano", **spec})


def imported(manifest: dict[str, Any] | str, mapped: Mapped = MAP, queue: str | None = None) -> Imported:
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    return jobs_from_manifest(text.encode(), "m.yaml", queue, mapped)


def spec(manifest: dict[str, Any]) -> dict[str, Any]:
    """The spec of its only Job, without queue and run."""
    return {key: value for key, value in whole(manifest).items() if key not in {"queue", "run"}}


def whole(manifest: dict[str, Any]) -> dict[str, Any]:
    result = imported(manifest)
    assert not result.errors, result.errors
    (job,) = result.jobs
    assert_valid(job)
    found: dict[str, Any] = job["spec"]
    return found


def paths(result: Imported) -> set[str]:
    return {note.place.path for note in result.notes}


@pytest.mark.parametrize(
    ("manifest", "fields"),
    [
        (pytorch(), {"gpus": 32}),
        (pytorch(runPolicy={"activeDeadlineSeconds": 5400, "backoffLimit": 2}), {"gpus": 32, "timeLimit": "1h30m", "restart": {"onFailure": 2}}),
        (pytorch(elasticPolicy={"minReplicas": 2, "maxReplicas": 4}), {"gpus": 32, "parallelism": {"tensor": 8, "data": 4}, "elastic": {"dimension": "data", "min": 2, "max": 4}}),
        (pytorch(master=pod(1, "lead"), worker=pod(8, "work")), {"gpus": 25, "roles": [{"name": "master", "workers": 1, "gpusEach": 1}, {"name": "worker", "workers": 3, "gpusEach": 8}]}),
        (batch(), {"gpus": 8}),
        (batch(parallelism=4, completions=4, completionMode="Indexed", backoffLimit=0, activeDeadlineSeconds=60), {"gpus": 32, "timeLimit": "1m", "restart": {"onFailure": 0}}),
        (batch(parallelism=2, completions=10, completionMode="Indexed"), {"gpus": 8, "array": {"count": 10, "maxParallel": 2}}),
        (batch(pod(2), parallelism=4), {"gpus": 8, "parallelism": {"tensor": 2, "data": 4}}),
        (batch(pod(annotations={f"{KUEUE}/podset-required-topology": RACK}), parallelism=2), {"gpus": 16, "topology": {"required": {"job": "rack"}}}),
        (batch(pod(annotations={f"{KUEUE}/podset-preferred-topology": "x/topology-block"}), parallelism=2), {"gpus": 16, "topology": {"preferred": {"job": "spineGroup"}}}),
        (batch(pod(annotations={f"{KUEUE}/podset-slice-required-topology": RACK, f"{KUEUE}/podset-slice-size": "2"}), parallelism=8), {"gpus": 64, "parallelism": {"tensor": 8, "pipeline": 2, "data": 4}, "topology": {"required": {"pipeline": "rack"}}}),
        (batch(pod(1, annotations={f"{KUEUE}/podset-slice-required-topology": "kubernetes.io/hostname", f"{KUEUE}/podset-slice-size": "8"}), parallelism=16), {"gpus": 16, "parallelism": {"tensor": 8, "data": 2}, "topology": {"required": {"tensor": "node"}}}),
        (jobset(replicated("w", 2, pod(), parallelism=2, completions=2), spec={"failurePolicy": {"maxRestarts": 5}}), {"gpus": 32, "restart": {"onFailure": 5}}),
        (jobset(replicated("w", 4, pod(), parallelism=2), annotations={"alpha.jobset.sigs.k8s.io/exclusive-topology": RACK}), {"gpus": 64, "parallelism": {"tensor": 8, "pipeline": 2, "data": 4}, "topology": {"required": {"pipeline": "rack"}}}),
        (volcano({"name": "w", "replicas": 4, "template": pod()}, minAvailable=4, maxRetry=1), {"gpus": 32, "restart": {"onFailure": 1}}),
        (volcano({"name": "w", "replicas": 4, "template": pod()}, minAvailable=2), {"gpus": 32, "parallelism": {"tensor": 8, "data": 4}, "elastic": {"dimension": "data", "min": 2, "max": 4}}),
    ],
)  # fmt: skip
def test_gang(manifest: dict[str, Any], fields: dict[str, Any]) -> None:
    assert spec(manifest) == fields


def test_a_pod_in_full() -> None:
    container = {
        "args": ["--out", "$(OUT)/x", "$(UNKNOWN)", "$$(OUT)"],
        "workingDir": "/w",
        "env": [{"name": "OUT", "value": "/o"}],
        "resources": {"limits": {"nvidia.com/gpu": "4", "vpc.amazonaws.com/efa": 1}, "requests": {"cpu": "7500m", "memory": "10Gi"}},
        "volumeMounts": [
            {"name": "a", "mountPath": "/a", "subPath": "s", "readOnly": True},
            {"name": "b", "mountPath": "/b"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }  # fmt: skip
    found = whole(
        batch(
            pod(
                4,
                "python",
                "t.py",
                container=container,
                volumes=[
                    {"name": "a", "hostPath": {"path": "/host/a"}},
                    {"name": "b", "persistentVolumeClaim": {"claimName": "claim"}},
                    {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
                ],
                nodeSelector={"nvidia.com/gpu.product": "NVIDIA-H100", "disk": "ssd"},
                tolerations=[{"key": "gpu", "operator": "Exists"}, {"key": "team", "value": "a"}],
                terminationGracePeriodSeconds=120,
            )
        )
    )
    assert found == {
        "queue": "research",
        "gpus": 4,
        "gpuType": "NVIDIA-H100",
        "topology": {"nicKind": "efa"},
        "resources": {"cpusPerGpu": 2, "memoryPerGpu": "2560MiB", "sharedMemory": "2GiB"},
        "checkpoint": {"dir": "/c/x", "onPreempt": {"signal": "SIGTERM", "to": "all", "grace": "2m"}},
        "nodeLabels": {"disk": "ssd"},
        "tolerations": ["gpu", "team=a"],
        "run": {
            "launch": "perNode",
            "command": ["python", "t.py", "--out", "/o/x", "$(UNKNOWN)", "$(OUT)"],
            "image": "r.example/train@sha256:" + "0" * 64,
            "workingDir": "/w",
            "env": {"OUT": "/o"},
            "mounts": [
                {"source": "/host/a/s", "target": "/a", "readOnly": True},
                {"source": "/fs/claim", "target": "/b"},
            ],
        },
    }


def test_unlike_members_share_a_script_that_looks_at_the_role() -> None:
    lead = pod(8, "lead", "a b", container={"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "x y"}]})
    work = pod(8, "work", container={"env": [{"name": "A", "value": "1"}]})
    run = whole(pytorch(master=lead, worker=work))["run"]
    assert run["script"] == (
        "case \"$GANGOPS_ROLE\" in\nmaster) export B='x y'; exec lead 'a b' ;;\nworker) exec work ;;\nesac\n"
    )
    assert (run["env"], run["launch"]) == ({"A": "1"}, "perNode")


@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        (batch(pod(0)), "NoGpus"),
        (pytorch(master=pod(0)), "CannotBecomeJob"),
        (pytorch(master=pod(container={"image": "other"})), "CannotBecomeJob"),
        (batch(pod(container={"command": []})), "NoCommand"),
        (batch(parallelism=1, completions=20_000, completionMode="Indexed"), "CannotBecomeJob"),
        (workload("ray.io/v1", "RayJob", {}), "UnknownWorkload"),
        ({"a": 1}, "UnknownWorkload"),
    ],
)
def test_refusals(manifest: dict[str, Any], code: str) -> None:
    result = imported(manifest)
    assert (refusals(result.errors), result.jobs) == ([code], ())
    assert result.errors[0].place.line == 1


def test_queues_come_from_labels_policies_the_namespace_or_the_option() -> None:
    bare = batch()
    del bare["metadata"]["labels"]
    assert refusals(imported(bare).errors) == ["NoQueue"]
    assert imported(bare, queue="q").jobs[0]["spec"]["queue"] == "q"
    bare["metadata"]["namespace"] = "ml"
    assert imported(bare, Mapped(queues={"ml": "nlp"})).jobs[0]["spec"]["queue"] == "nlp"
    tasks = volcano({"name": "w", "template": pod()}, queue="batch", priorityClassName="high")
    del tasks["metadata"]["labels"]
    found = imported(tasks, Mapped(queues={"batch": "nlp"}, classes={"high": "urgent"})).jobs[0]["spec"]
    assert (found["queue"], found["priorityClass"]) == ("nlp", "urgent")


def test_kueue_holds_jobs_by_suspending_them_and_others_mean_it() -> None:
    held = batch(suspend=True)
    assert "suspend" not in spec(held)
    del held["metadata"]["labels"]
    assert imported(held, queue="q").jobs[0]["spec"]["suspend"] is True


MANIFEST = f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: x
  namespace: ml
  uid: 0-1
  labels: {{{KUEUE}/queue-name: research, app: demo}}
spec:
  ttlSecondsAfterFinished: 60
  template:
    spec:
      serviceAccountName: sa
      initContainers: [{{name: i, image: b}}]
      containers:
        - name: main
          image: r.example/x
          command: [python, t.py]
          env:
            - {{name: HF_TOKEN, value: hf_abcdefghijklmnopqrstuvwxyz}}
            - {{name: RANK, value: "0"}}
            - {{name: FROM, valueFrom: {{secretKeyRef: {{name: s, key: k}}}}}}
          resources: {{limits: {{nvidia.com/gpu: 8, example.com/fpga: 1}}}}
          volumeMounts: [{{name: data, mountPath: /d}}]
        - {{name: side, image: c}}
      volumes: [{{name: data, persistentVolumeClaim: {{claimName: other}}}}]
status: {{active: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: s}}
"""


def test_what_is_left_behind_is_noted_with_its_line() -> None:
    result = imported(MANIFEST)
    assert result.jobs[0]["metadata"] == {"name": "x", "labels": {"app": "demo"}}
    spec, container = "spec.template.spec", "spec.template.spec.containers[0]"
    assert [(note.place.line, note.place.path) for note in result.notes] == [
        (5, "metadata.namespace"),
        (9, "spec.ttlSecondsAfterFinished"),
        (12, f"{spec}.serviceAccountName"),
        (13, f"{spec}.initContainers"),
        (19, f"{container}.env[0]"),
        (20, f"{container}.env[1]"),
        (21, f"{container}.env[2]"),
        (22, f'{container}.resources.limits["example.com/fpga"]'),
        (23, f"{container}.volumeMounts[0]"),
        (24, f"{spec}.containers[1]"),
        (25, f"{spec}.volumes[0]"),
        (29, "kind"),
    ]
    assert "hf_abc" not in str(result)
    assert refusals(result.strict().errors) == ["NotCarriedOver"] * 12


def test_lists_are_opened_and_loose_yaml_is_refused() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [batch(), batch()]}
    assert len(imported(listed).jobs) == 2
    assert refusals(imported("kind: &a Job\nspec: *a\n").errors)[:1] == ["AnchorRefused"]
    assert refusals(imported("").errors) == ["EmptyFile"]


@pytest.mark.parametrize(
    "manifest",
    [
        pytorch(runPolicy={"activeDeadlineSeconds": 60, "backoffLimit": 3}),
        batch(pod(1), parallelism=3),
        batch(pod(2), parallelism=4),
        pytorch(master=pod(8, "lead"), worker=pod(8, "work")),
        batch(pod(annotations={f"{KUEUE}/podset-required-topology": RACK}, terminationGracePeriodSeconds=60, tolerations=[{"key": "a", "value": "b"}, {"key": "c"}]), parallelism=2),
        batch(pod(8, "sh", "-c", "echo $(date)", container={"env": [{"name": "A", "value": "$(B)"}]}), parallelism=2),
    ],
)  # fmt: skip
def test_round_trip(manifest: dict[str, Any]) -> None:
    (job,) = imported(manifest).jobs
    exported = jobset_of(read_job(job_files([job], []), "job.yaml"), MAP)
    assert not exported.errors
    again = imported(exported.text)
    assert [str(error) for error in again.errors] == []
    if "roles" in job["spec"]:  # each role now has its own variable, and the same script
        assert again.jobs[0]["spec"]["gpus"] == job["spec"]["gpus"]
    else:
        assert again.jobs == (job,)


@pytest.mark.parametrize(
    ("run", "more"),
    [("{command: [a]}", ""), ("{session: true, image: x}", ""), ("{command: [a], image: x}", "  array: {count: 2}\n")],
)
def test_what_is_no_jobset(run: str, more: str) -> None:
    text = (
        f"apiVersion: gangops/v1\nkind: Job\nmetadata: {{name: x}}\nspec:\n  queue: q\n  gpus: 8\n{more}  run: {run}\n"
    )
    exported = jobset_of(read_job(text.encode(), "x.yaml"))
    assert "NotExported" in refusals(exported.errors)
    assert not exported.text
