"""Every script of the corpus reads as Slurm reads it, and becomes a valid Job or is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reconciler.documents.loader import load
from reconciler.imports.export import read_job
from reconciler.imports.layout import job_files
from reconciler.imports.sbatch.jobs import job_from_script
from reconciler.imports.sbatch.parse import parse_sbatch
from reconciler.imports.sbatch.write import script_of
from tests.documents.trees import problems, with_job
from tests.imports.scripts import CORPUS, MAP, NO_CORPUS, SCRIPTS, assert_valid

pytestmark = pytest.mark.skipif(not SCRIPTS, reason=NO_CORPUS)
by_name = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
REFUSED = {"invalid_option", "mixed_gres_list", "seed_16gpu_slashes", "switches_zero"}


def test_the_corpus_is_all_there() -> None:
    assert len(list(CORPUS.glob("*.sbatch"))) >= 20


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path.parent == CORPUS], ids=lambda path: path.stem)
def test_script_reads_as_expected(script: Path) -> None:
    expected = _expected(script.with_name(f"{script.name}.expected.yaml"))
    found: dict[str, Any] = parse_sbatch(script.read_bytes()).neutral(script.name)
    codes = [error.partition(":")[0] for error in found.pop("errors")]
    assert codes == [error.partition(":")[0] for error in expected.pop("errors")]
    assert found == expected


@by_name
def test_script_becomes_a_job_that_our_schema_and_lint_accept(script: Path) -> None:
    result = job_from_script(parse_sbatch(script.read_bytes()), script.name, "research", MAP)
    assert bool(result.errors) == (script.stem in REFUSED)
    assert len(result.jobs) == (script.stem not in REFUSED)
    for job in result.jobs:
        assert_valid(job)
        name = job["metadata"]["name"]
        found = problems(with_job(job_files([job], []).decode(), name))
        # The cluster of the test has 32 GPUs.
        assert [d for d in found if d.is_error and d.code != "NeverFits"] == []


@by_name
def test_every_option_is_carried_over_or_noted_with_its_line(script: Path) -> None:
    read = parse_sbatch(script.read_bytes())
    result = job_from_script(read, script.name, "research", MAP)
    if read.problems:
        return
    lines = {note.place.line for note in result.notes}
    for name in (*read.neutral("")["informational"], *read.neutral("")["unsupported"]):  # type: ignore[misc]  # a tree
        said = next(component.said[name] for component in read.components if name in component.said)
        carried = {"comment", "mail-user", "network"}
        assert said.line in lines or name in carried, name


@by_name
def test_export_and_import_again_is_the_same_job(script: Path) -> None:
    result = job_from_script(parse_sbatch(script.read_bytes()), script.name, "research", MAP)
    for job in result.jobs:
        exported = script_of(read_job(job_files([job], []), "job.yaml"), MAP)
        assert not exported.errors
        again = job_from_script(parse_sbatch(exported.text.encode()), "again.sbatch", mapped=MAP)
        assert [str(error) for error in again.errors] == []
        assert again.jobs == (job,)


def _expected(path: Path) -> dict[str, Any]:
    loaded = load(path.read_bytes(), path.name)
    assert loaded.ok, loaded.diagnostics
    value = loaded.documents[0].value
    assert isinstance(value, dict)
    return value
