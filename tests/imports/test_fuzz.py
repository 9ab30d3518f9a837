"""Whatever is handed in: an answer in bounded time, never an exception, and never an invalid Job."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.imports.kubernetes.jobs import jobs_from_manifest
from reconciler.imports.sbatch.jobs import job_from_script
from reconciler.imports.sbatch.options import OPTIONS
from reconciler.imports.sbatch.parse import parse_sbatch
from reconciler.render.hardware import summary
from tests.imports.scripts import MAP, assert_valid
from tests.imports.test_kubernetes import KUEUE, MANIFEST, RACK, batch, jobset, pod, pytorch, replicated, volcano

FULL = pod(
    8,
    "a",
    annotations={f"{KUEUE}/podset-slice-required-topology": RACK, f"{KUEUE}/podset-slice-size": "2"},
    container={
        "args": ["b"],
        "env": [{"name": "A", "value": "1"}],
        "resources": {"limits": {"nvidia.com/gpu": 8, "cpu": "4", "memory": "8Gi"}},
        "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "s"}, {"name": "w", "mountPath": "/dev/shm"}],
    },
    volumes=[{"name": "v", "hostPath": {"path": "/h"}}, {"name": "w", "emptyDir": {"sizeLimit": "1Gi"}}],
    nodeSelector={"disk": "ssd"},
    tolerations=[{"key": "k", "value": "v"}],
    terminationGracePeriodSeconds=30,
)
WHOLE = [
    pytorch(
        master=FULL, worker=FULL, runPolicy={"backoffLimit": 1}, elasticPolicy={"minReplicas": 1, "maxReplicas": 4}
    ),
    batch(FULL, parallelism=4, completions=8, completionMode="Indexed", activeDeadlineSeconds=9, suspend=True),
    jobset(replicated("w", 2, FULL, parallelism=2, completions=2), spec={"failurePolicy": {"maxRestarts": 1}}),
    volcano(
        {"name": "w", "replicas": 4, "template": FULL},
        minAvailable=2,
        networkTopology={"mode": "hard", "highestTierAllowed": 1},
    ),
    {"apiVersion": "v1", "kind": "List", "items": [batch(FULL)]},
]

values = st.one_of(
    st.sampled_from(["", "0", "1", "8", "16", "2-4", "gpu:8", "h100:8", "1@10", "B:USR1@9", "1:00", "0-3%2", "a,b", "1G", "afterok:1"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=12),
)  # fmt: skip
directive = st.builds("#SBATCH --{}={}".format, st.sampled_from(sorted(OPTIONS)), values)
shell = st.sampled_from(
    ["srun ./x", "srun -N1 --het-group=0 ./y &", "export A='b", "cat <<EOF", "EOF", "wait", 'echo "$SLURM_JOB_ID', "a | b \\", "#SBATCH hetjob", "// SBATCH -N 2", "# SBATCH", "'"]
)  # fmt: skip
scripts = st.lists(st.one_of(directive, shell, st.text(max_size=20)), max_size=12).map(
    lambda rows: "\n".join(["#!/bin/bash", "#SBATCH -G 8", *rows]).encode("utf-8", "replace")
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.binary(max_size=200), scripts))
def test_scripts(content: bytes) -> None:
    script = parse_sbatch(content)
    result = job_from_script(script, "x", "research", MAP)
    assert bool(result.jobs) != bool(result.errors)
    assert script.neutral("x")["status"] == ("error" if script.problems else "ok")
    assert summary({**script.neutral("x"), "warnings": []}, width=80).startswith("sbatch: ")
    for job in result.jobs:
        assert_valid(job)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, len(MANIFEST) - 1), st.text(max_size=8), st.integers(0, 12))
def test_manifests(at: int, text: str, cut: int) -> None:
    content = (MANIFEST[:at] + text + MANIFEST[at + cut :]).encode("utf-8", "replace")
    result = jobs_from_manifest(content, "m.yaml", None, MAP)
    for job in result.jobs:
        assert_valid(job)


odd = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**12), st.text(max_size=6),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=1)), max_size=3),
    st.dictionaries(st.text(max_size=6), st.one_of(st.integers(), st.text(max_size=3)), max_size=3),
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(WHOLE), st.randoms(use_true_random=False), odd)
def test_manifests_with_a_value_of_another_kind(manifest: dict[str, Any], chance: random.Random, value: object) -> None:
    tree = copy.deepcopy(manifest)
    places = list(_places(tree))
    for parent, key in chance.sample(places, chance.randint(1, 2)):
        parent[key] = value
    result = jobs_from_manifest(json.dumps(tree).encode(), "m.yaml", "q", MAP)
    assert bool(result.jobs) != bool(result.errors)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each (collection, key) of a tree."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key])


MIB = 1 << 20


@pytest.mark.parametrize(
    "content",
    [
        b"#!/bin/bash\n" + b"#SBATCH -N 2\n" * (MIB // 14),
        b"#!/bin/bash\n" + b"#SBATCH hetjob\n" * (MIB // 16),
        b"#!/bin/bash\n#SBATCH -G 1 --job-name=" + b"a" * (MIB - 100),
        b"#!/bin/bash\n#SBATCH --" + b"-" * (MIB - 100),
        b"#!/bin/bash\n#SBATCH -G 1\n" + b"'\n" * 32_000,
        b"#!/bin/bash\n#SBATCH -G 1\n" + b"cat <<A\n" * 8_000,
        b"#!/bin/bash\n#SBATCH -G 1\nsrun " + b"-a " * 20_000,
        b"#!/bin/bash\n#SBATCH -G 1\n" + b"A=1 " * 16_000 + b"srun x",
        b"#!/bin/bash\n#SBATCH -d " + b"afterok:1," * 50_000,
        b"#!/bin/bash\n#SBATCH --array=" + b"0-9999," * 50_000,
        b"#!/bin/bash\n#SBATCH -w n[" + b"1-2," * 50_000 + b"3]",
        b"//" * (MIB // 2),
    ],
    ids=range(12),
)
def test_large_scripts_take_bounded_time(content: bytes) -> None:
    started = time.process_time()
    job_from_script(parse_sbatch(content), "x", "research", MAP)
    assert time.process_time() - started < 2
