"""Scripts and manifests for the tests of imports, and what they come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from reconciler.documents.loader import load
from reconciler.errors import Diagnostic
from reconciler.imports.layout import job_files
from reconciler.imports.mapping import Mapped
from reconciler.imports.notes import Imported
from reconciler.imports.sbatch.jobs import job_from_script
from reconciler.imports.sbatch.parse import Component, Script, parse_sbatch

ROOT = Path(__file__).parents[2]
CORPUS = ROOT.parent / "shared" / "corpus" / "hardware" / "sbatch"
EXAMPLE = ROOT.parent / "shared" / "examples" / "imports" / "train.sbatch"
SCRIPTS = [*(sorted(CORPUS.glob("*.sbatch")) if CORPUS.is_dir() else []), *([EXAMPLE] if EXAMPLE.exists() else [])]
NO_CORPUS = "the corpus is not beside the repository"

TYPE = "H100-SXM5-80GB"
MAP = Mapped(
    gpu_types=dict.fromkeys(("a100", "h100", "h200"), TYPE),
    classes={"high": "urgent", "regular": "normal"},
    checkpoint_dir="/fs/ckpt/{queue}/{name}",
)
GPUS = "#SBATCH -A research --nodes=2 --gpus-per-node=8"


def text_of(directives: str, body: str = "srun ./train") -> str:
    return f"#!/bin/bash\n{directives}\n{body}\n"


def parsed(directives: str, body: str = "srun ./train") -> Script:
    return parse_sbatch(text_of(directives, body).encode())


def component(directives: str) -> Component:
    """The only component of a script that is right."""
    script = parsed(directives)
    assert not script.problems, script.problems
    (found,) = script.components
    return found


def imported(
    directives: str, body: str = "srun ./train", mapped: Mapped = MAP, *, queue: str | None = "research"
) -> Imported:
    return job_from_script(parsed(directives, body), "job.sbatch", queue, mapped)


def spec(directives: str, body: str = "srun ./train", mapped: Mapped = MAP) -> dict[str, Any]:
    """The spec of the only Job of a script that can be one."""
    result = imported(directives, body, mapped)
    assert not result.errors, result.errors
    (job,) = result.jobs
    assert_valid(job)
    found: dict[str, Any] = job["spec"]
    return found


def run(directives: str, body: str) -> dict[str, Any]:
    found: dict[str, Any] = spec(directives, body)["run"]
    return found


def notes(result: Imported) -> list[tuple[str, int, str]]:
    """(code, line, option or path) of each note, by line."""
    return sorted(((n.code, n.place.line, n.place.path) for n in result.notes), key=lambda n: (n[1], n[2], n[0]))


def refusals(diagnostics: tuple[Diagnostic, ...]) -> list[str]:
    return [d.code for d in diagnostics]


def assert_valid(job: dict[str, Any]) -> None:
    """The Job, as it is written, is valid for people who only have the JSON schema, and reads back as it is."""
    loaded = load(job_files([job], ["a comment"]), "job.yaml")
    assert loaded.ok, loaded.diagnostics
    assert loaded.documents[0].value == job
    jsonschema.validate(loaded.documents[0].value, json.loads((ROOT / "schemas" / "job.schema.json").read_text()))
