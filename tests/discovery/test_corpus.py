"""Every captured file of the hardware corpus reads as its expected values say.

The corpus is not part of the repository: it is read where it lies, beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from reconciler.cli.inspect import inspect
from reconciler.errors import ExitStatus

_ROOT = Path(__file__).resolve().parents[2]
_CORPUS = _ROOT.parent / "shared" / "corpus" / "hardware"
_FOLDERS = ("topo", "numactl", "nccl_xml", "slurm", "other", "sbatch", "hostile")
_INPUTS = 110
_CASES = sorted(path for folder in _FOLDERS for path in (_CORPUS / folder).glob("*.expected.yaml"))

_ABSENT = pytest.param(None, marks=pytest.mark.skip(reason=f"the hardware corpus is not at {_CORPUS}"), id="corpus")

# Where we are stricter or milder, and the corpus says that is fine (its PROVENANCE.tsv).
_STATUS_MAY_BE = {"crlf_ok.txt": "ok"}


@pytest.mark.parametrize("expected_file", _CASES or [_ABSENT], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_reads_as_expected(expected_file: Path) -> None:
    expected = _expected(expected_file)
    file = expected_file.with_name(expected["file"])
    kind = expected["format"].removesuffix("/v1")
    done = CliRunner().invoke(inspect, [str(file), "--kind", kind, "-o", "json"], standalone_mode=False)
    assert done.return_value == (ExitStatus.INVALID if expected["status"] == "error" else ExitStatus.OK)
    found: dict[str, Any] = json.loads(done.output)
    assert found.pop("file") == expected.pop("file")
    assert found.pop("format") == expected.pop("format")
    assert found.pop("status") == _STATUS_MAY_BE.get(file.name, expected.pop("status"))
    for severity in ("warnings", "errors"):
        wanted = {_code(remark) for remark in expected.pop(severity, ())}
        assert {_code(remark) for remark in found.pop(severity)} == wanted
    expected.pop("compare", None)  # a word to the reader of hostlists.txt: as sets
    if partial := expected.pop("partial", None):
        found = {key: found[key] for key in partial}
        expected = partial
    assert _comparable(found) == _comparable(expected)


@pytest.mark.skipif(not _CASES, reason=f"the hardware corpus is not at {_CORPUS}")
def test_every_input_of_the_corpus_is_among_the_cases() -> None:
    assert len(_CASES) >= _INPUTS
    assert set(_CASES) == set(_CORPUS.rglob("*.expected.yaml"))


@pytest.mark.parametrize(
    "expected_file",
    [case for case in _CASES if case.parent.name != "hostile"] or [_ABSENT],
    ids=lambda path: path.name,
)
def test_kind_is_detected(expected_file: Path) -> None:
    expected = _expected(expected_file)
    file = expected_file.with_name(expected["file"])
    done = CliRunner().invoke(inspect, [str(file), "-o", "json"], standalone_mode=False)
    assert json.loads(done.output)["format"] == expected["format"]


def _expected(file: Path) -> dict[str, Any]:
    # The pure parser: bus ids in flow sequences (`[0000:43:00.0]`) are more than libyaml takes.
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load(file)
    return loaded


def _code(remark: str) -> str:
    return remark.partition(":")[0]


def _comparable(value: Any, key: str = "") -> Any:
    """Host lists are sets; everything else is compared as it is."""
    if isinstance(value, dict):
        return {name: _comparable(inner, name) for name, inner in value.items()}
    if key in {"hosts", "nodes", "names"} and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return set(value)
    return [_comparable(inner) for inner in value] if isinstance(value, list) else value
