"""`gangops import sbatch|kubernetes` and `export`: what goes where, and with which exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reconciler.cli.root import root
from reconciler.documents.loader import load
from reconciler.errors import ExitStatus, InvalidInput, NotFound
from tests.documents.trees import starter
from tests.imports.scripts import text_of
from tests.imports.test_kubernetes import MANIFEST

SCRIPT = text_of("#SBATCH -J x -A research -N 2 --gpus-per-node=h100:8\n#SBATCH -o log\n#SBATCH -t 60")
SLASHES = "// !/bin/bash\n// SBATCH -A research -G 8\nsrun ./x\n"


def gangops(*words: str, stdin: str = "") -> Result:
    """One call, with the exit status as return value; errors of ours are raised."""
    result = CliRunner().invoke(root, words, input=stdin, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result


@pytest.fixture
def empty(tmp_path: Path) -> str:
    """A folder that is no cluster repository."""
    return str(tmp_path)


def test_a_job_goes_to_stdout_and_notes_to_stderr_and_into_comments(empty: str) -> None:
    done = gangops("-C", empty, "import", "sbatch", "-", stdin=SCRIPT)
    assert done.return_value == ExitStatus.OK
    (document,) = load(done.stdout.encode(), "x.yaml").documents
    assert isinstance(document.value, dict)
    assert document.value["spec"] == {
        "queue": "research",
        "gpus": 16,
        "gpuType": "h100",
        "timeLimit": "1h",
        "run": {"launch": "perNode", "command": ["./train"]},
    }
    assert "# - line 3, --output: " in done.stdout
    assert done.stderr.startswith("warning[NotCarriedOver]: Not carried over\n  -:3:1  --output\n")


def test_the_form_of_a_pasted_article_is_refused_with_the_corrected_script_and_repaired_on_request(empty: str) -> None:
    refused = gangops("-C", empty, "import", "sbatch", "-", stdin=SLASHES)
    assert refused.return_value == ExitStatus.INVALID
    assert refused.stdout == "#!/bin/bash\n#SBATCH -A research -G 8\nsrun ./x\n"
    assert "NoDirectives: line" in refused.stderr
    assert "--repair" in refused.stderr
    repaired = gangops("-C", empty, "import", "sbatch", "--repair", "-", stdin=SLASHES)
    assert repaired.return_value == ExitStatus.OK
    assert "gpus: 8" in repaired.stdout
    assert gangops("-C", empty, "import", "sbatch", "-", stdin=refused.stdout).stdout == repaired.stdout


def test_strict_refuses_and_prints_no_job(empty: str) -> None:
    done = gangops("-C", empty, "import", "sbatch", "--strict", "-", stdin=SCRIPT)
    assert (done.return_value, done.stdout) == (ExitStatus.INVALID, "")
    assert done.stderr.startswith("error[NotCarriedOver]")


def test_json_has_a_version_and_every_note(empty: str) -> None:
    done = gangops("-C", empty, "import", "sbatch", "-o", "json", "-", stdin=SCRIPT)
    printed = json.loads(done.stdout)
    assert (printed["formatVersion"], printed["kind"], printed["errors"]) == ("1.0", "Import", [])
    assert [job["metadata"]["name"] for job in printed["jobs"]] == ["x"]
    assert [(note["code"], note["line"], note["path"]) for note in printed["notes"]] == [
        ("NotCarriedOver", 3, "--output")
    ]
    refused = gangops("-C", empty, "import", "sbatch", "-o", "json", "-", stdin=SLASHES)
    assert refused.return_value == ExitStatus.INVALID
    assert json.loads(refused.stdout)["corrected"].startswith("#!/bin/bash\n#SBATCH")


def test_the_neutral_format_is_what_slurm_reads(empty: str) -> None:
    done = gangops("-C", empty, "import", "sbatch", "-o", "neutral", "-", stdin=SCRIPT)
    assert json.loads(done.stdout)["components"][0]["gpus"] == {"per_node": 8, "total": 16, "type": "h100"}
    refused = gangops("-C", empty, "import", "sbatch", "-o", "neutral", "-", stdin=SLASHES)
    assert refused.return_value == ExitStatus.INVALID
    assert json.loads(refused.stdout)["status"] == "error"


def test_beside_a_repository_its_types_are_known_and_its_rules_are_told(tmp_path: Path) -> None:
    for path, text in starter().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    done = gangops("-C", str(tmp_path), "import", "sbatch", "-", stdin=SCRIPT)
    assert "gpuType: H100-SXM5-80GB" in done.stdout
    assert "error[" not in done.stderr
    wrong = gangops("-C", str(tmp_path), "import", "sbatch", "--queue", "reserch", "-", stdin=SCRIPT)
    assert wrong.return_value == ExitStatus.OK
    assert "error[UnknownQueue]" in wrong.stderr
    assert 'Did you mean "research"?' in wrong.stderr
    strict = gangops(
        "-C",
        str(tmp_path),
        "import",
        "sbatch",
        "--queue",
        "q",
        "--strict",
        "-",
        stdin=SCRIPT.replace("#SBATCH -o log\n", ""),
    )
    assert (strict.return_value, strict.stdout) == (ExitStatus.INVALID, "")


def test_a_map_file_and_files_that_are_not_there(tmp_path: Path) -> None:
    mapping = tmp_path / "map.yaml"
    mapping.write_text("gpuTypes: {h100: B200}\n")
    script = tmp_path / "my job.sbatch"
    script.write_text(SCRIPT.replace("-J x ", ""))
    done = gangops("-C", str(tmp_path), "import", "sbatch", str(script), "--map", str(mapping))
    assert "gpuType: B200" in done.stdout
    assert "metadata: {name: my-job}" in done.stdout
    mapping.write_text("gpuTypes: 1\n")
    with pytest.raises(InvalidInput):
        gangops("-C", str(tmp_path), "import", "sbatch", str(script), "--map", str(mapping))
    with pytest.raises(NotFound):
        gangops("-C", str(tmp_path), "import", "sbatch", str(tmp_path / "none"))


def test_a_manifest_and_a_way_back(empty: str) -> None:
    done = gangops("-C", empty, "import", "kubernetes", "-", stdin=MANIFEST)
    assert done.return_value == ExitStatus.OK
    jobset = gangops("export", "jobset", "-", stdin=done.stdout)
    assert (jobset.return_value, jobset.stdout.splitlines()[1]) == (ExitStatus.OK, "kind: JobSet")
    script = gangops("export", "sbatch", "-", stdin=done.stdout)
    assert script.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=x\n")
    strict = gangops("export", "sbatch", "--strict", "-", stdin=done.stdout)
    assert (strict.return_value, strict.stdout) == (ExitStatus.INVALID, "")
    with pytest.raises(InvalidInput):
        gangops("export", "sbatch", "-", stdin="a: b\n")
