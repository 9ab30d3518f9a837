"""What documents may say, field by field, and the published schemas of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reconciler.documents.check import check_file
from reconciler.documents.desired import SourceFile, load_desired, source_file, validate_files
from reconciler.documents.layout import is_document
from reconciler.documents.loader import Tree, load
from reconciler.documents.scaffold import scaffold
from reconciler.documents.scalars import DecimalText
from reconciler.documents.schema import KINDS
from reconciler.documents.schema.files import schema_files
from reconciler.model.units import CommitId
from tests.documents.trees import EXAMPLES, ROOT, files_below, job

REFERENCE = [file for file in files_below(ROOT, "cluster-state", "policies") if is_document(file.path)]
OF_VERBS = {
    "plan.schema.json",
    "proposal.schema.json",
    "simulation.schema.json",
    "notification.schema.json",
    "decision-predicate.schema.json",
}  # what verbs print; see their own tests
NO_EXAMPLES = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the example documents are not beside this checkout")


def complaints(text: str) -> list[tuple[str, int, int, str]]:
    checked = check_file(text.encode(), "f.yaml")
    return [(d.code, d.place.line, d.place.column, d.place.path) for d in checked.diagnostics]


def test_a_job_wrong_in_five_ways_gets_five_diagnostics() -> None:
    text = job("timeLimit: 5x\ntopolgy: {}\nnice: 200\nsuspend: 'yes'").replace("queue: research", "queue: Research")
    assert complaints(text) == [
        ("BadName", 5, 10, "spec.queue"),
        ("OutOfRange", 9, 9, "spec.nice"),
        ("BadDuration", 7, 14, "spec.timeLimit"),
        ("WrongType", 10, 12, "spec.suspend"),
        ("UnknownField", 8, 3, "spec.topolgy"),
    ]


@pytest.mark.parametrize(
    ("body", "run", "code", "path", "remedy"),
    [
        ("gpu: 3", "", "UnknownField", "spec.gpu", 'Did you mean "gpus"?'),
        ("status: {}", "", "UnknownField", "spec.status", "Remove it"),
        ("checkpoint: {every: 30m}", "", "MissingField", "spec.checkpoint.dir", ""),
        ("checkpoint: {dir: ckpt}", "", "BadPath", "spec.checkpoint.dir", ""),
        ("checkpoint: {dir: /c, onPreempt: {signal: USR1}}", "", "BadSignal", "spec.checkpoint.onPreempt.signal", ""),
        (
            "topology: {required: {tensr: node}}",
            "",
            "UnknownValue",
            "spec.topology.required.tensr",
            'Did you mean "tensor"?',
        ),
        ("resources: {memoryPerGpu: 180GB}", "", "BadSize", "spec.resources.memoryPerGpu", ""),
        (
            "communication: {data: {bytesPerStep: 1GiB, overlap: 120%}}",
            "",
            "BadShare",
            "spec.communication.data.overlap",
            "",
        ),
        ('startBefore: "2026-12-05"', "", "BadTime", "spec.startBefore", ""),
        ("gpuType: -x", "", "BadName", "spec.gpuType", ""),
        ("restart: {onFailure: often}", "", "WrongType", "spec.restart.onFailure", ""),
        ("", "{command: [a], env: {A: 1}}", "WrongType", "spec.run.env.A", "Put it in quotes."),
        ("", "{command: [a], env: {A: 0.5}}", "WrongType", "spec.run.env.A", "Put it in quotes."),
        ("", "{command: [a], env: {A-B: x}}", "BadName", "spec.run.env.A-B", ""),
        ("", "{command: []}", "OutOfRange", "spec.run.command", ""),
        ("", "{command: [a], launch: perNod}", "UnknownValue", "spec.run.launch", 'Did you mean "perNode"?'),
        ("", "{session: false}", "UnknownValue", "spec.run.session", ""),
        ("", "{session: {idleTimeout: soon}}", "BadDuration", "spec.run.session", ""),
        ("", "{session: {idle: 30m}}", "UnknownField", "spec.run.session", ""),
        ("", "{session: {}}", "UnknownField", "spec.run.session", ""),
        ("", "{session: 30m}", "WrongType", "spec.run.session", ""),
        ("after: [nlp/wa]", "", "WrongType", "spec.after[0]", "Write after: [{job: nlp/wa}]."),
        ("after: nlp/wa", "", "WrongType", "spec.after", "Write after: [{job: nlp/wa}]."),
        ("after: ['*']", "", "WrongType", "spec.after[0]", "Write after: [{job: QUEUE/NAME}]."),
        ("after: [{job: a/b/c}]", "", "BadName", "spec.after[0].job", ""),
    ],
)
def test_each_kind_of_mistake_has_its_code_and_place(body: str, run: str, code: str, path: str, remedy: str) -> None:
    text = job(body, run=run or "{command: [a]}")
    (found,) = check_file(text.encode(), "f.yaml").diagnostics
    assert (found.code, found.place.path) == (code, path)
    assert found.place.line > 4
    assert remedy in found.remedy


def test_a_summary_never_repeats_what_someone_wrote() -> None:
    text = job("zebra: 1\ntopology: {required: {zebra: node}}\nowner: [zebra]").replace("name: x", "name: Zebra")
    checked = check_file(text.encode(), "f.yaml")
    assert len(checked.diagnostics) == 4
    assert not [d.summary for d in checked.diagnostics if "zebra" in d.summary.lower()]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("- 1\n", "NotADocument"),
        ("kind: Job\n", "UnknownVersion"),
        ("apiVersion: gangops/v2\nkind: Job\n", "UnknownVersion"),
        ("apiVersion: gangops/v1\nkind: Jbo\n", "UnknownKind"),
        ("apiVersion: gangops/v1\n", "UnknownKind"),
    ],
)
def test_what_is_no_document_of_ours_is_said_once(text: str, code: str) -> None:
    assert [d.code for d in check_file(text.encode(), "f.yaml").diagnostics] == [code]


@pytest.mark.parametrize(
    "body",
    [
        "roles: [{name: leader, workers: 1, gpusEach: 1}, {name: worker, workers: 2, gpusEach: 8}]",
        "parallelism: {tensor: 2, pipeline: 2, data: 2}\nelastic: {dimension: data, min: 1, max: 2}",
        "anyOf: [H100-SXM5-80GB, H200-SXM5-141GB]\ntopology: {spares: 1, railAligned: false}",
        "array: {matrix: {lr: [0.1, 0.01], seed: [1, 2, 3]}, maxParallel: 2, onTaskFailure: stop}",
        "array: {values: [{lr: 0.1}, {lr: '3e-4'}]}",
        "restart: {onFailure: unlimited, backoff: 1m, onNodeLoss: 0, fence: lease, lease: 5s}",
        "after: [{job: other/y, condition: Finished}, {job: z}]\nsuspend: true\nrerun: 2\nnice: -100",
        "timeLimit: unlimited\nhealth: {startupTimeout: 10m, heartbeatFile: hb, stallTimeout: 15m}",
        "nodeLabels: {room: a}\ntolerations: [dedicated=ci, degraded]\npreemption: {policy: never, minRuntime: 1h}",
    ],
)
def test_what_design_says_a_job_may_say_can_be_said(body: str) -> None:
    assert complaints(job(body, run="{script: 'exec x', ports: 2, launch: perNode, secretFiles: [/etc/s.env]}")) == []


# --- published schemas ----------------------------------------------------------------------------------------------


def test_the_checked_in_schemas_are_those_of_the_models() -> None:
    folder = ROOT / "schemas"
    found = {path.name: path.read_bytes() for path in folder.glob("*.schema.json") if path.name not in OF_VERBS}
    assert found == dict(schema_files()), "schemas/ is stale: run `gangops schema write`"


def test_every_schema_is_a_valid_schema_with_a_title_and_described_fields() -> None:
    assert len(schema_files()) == len(KINDS)
    for content in schema_files().values():
        schema = json.loads(content)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["title"] in KINDS
        objects = [schema, *schema["$defs"].values()]
        assert all(o["additionalProperties"] is False for o in objects)
        assert all("description" in field or "$ref" in field for o in objects for field in o["properties"].values())


def for_editors(tree: Tree) -> Any:
    """A tree as an editor's loader has it: decimals are numbers there."""
    if isinstance(tree, dict):
        return {key: for_editors(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [for_editors(value) for value in tree]
    return float(tree) if isinstance(tree, DecimalText) else tree


def schema_errors(files: list[SourceFile]) -> list[str]:
    found = []
    for file in files:
        for document in load(file.content, file.path).documents:
            schema = json.loads(schema_files()[f"{document.kind.lower()}.schema.json"])
            validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
            found += [
                f"{file.path}: {error.json_path}: {error.message}"
                for error in validator.iter_errors(for_editors(document.value))
            ]
    return found


def test_the_reference_cluster_is_valid_and_so_says_its_schema() -> None:
    assert len(REFERENCE) > 12
    assert [str(d) for d in validate_files(REFERENCE)] == []
    assert schema_errors(REFERENCE) == []


def test_the_scaffold_is_valid_and_so_says_its_schema() -> None:
    files = [SourceFile(path, path, content) for path, content in scaffold().items() if path.endswith(".yaml")]
    assert [str(d) for d in validate_files(files)] == []
    assert schema_errors(files) == []


def test_every_document_names_its_schema_by_a_path_that_exists() -> None:
    for file in REFERENCE:
        first = file.content.decode().splitlines()[0]
        named = first.partition("$schema=")[2]
        assert (ROOT / Path(file.path).parent / named).resolve().is_file(), file.path


@NO_EXAMPLES
def test_the_examples_load_without_error_and_so_says_their_schema() -> None:
    # One GPU index there is a bare number as key, which YAML loaders disagree on: text needs its quotes here.
    files = [
        source_file(f.path, f.content.replace(b"gpus: {5: {", b'gpus: {"5": {'))
        for f in files_below(EXAMPLES, "cluster-state", "policies")
    ]
    loaded = load_desired(files, CommitId("0" * 40))
    assert [str(d) for d in loaded.diagnostics if d.is_error] == []
    assert loaded.desired is not None
    assert sorted(loaded.desired.jobs) == ["nlp/llama7b-sft", "pretrain/pretrain-70b", "vision/notebook-1"]
    assert schema_errors(files) == []


@pytest.mark.parametrize(("bad", "path"), [("gpus: many", "$.spec.gpus"), ("timeLimit: 5x", "$.spec.timeLimit")])
def test_the_schema_alone_finds_common_mistakes(bad: str, path: str) -> None:
    schema = json.loads(schema_files()["job.schema.json"])
    (document,) = load(job(bad).replace("  gpus: 8\n", "" if "gpus" in bad else "  gpus: 8\n").encode(), "f").documents
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(document.value))
    assert [error.json_path for error in errors] == [path]
