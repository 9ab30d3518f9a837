"""`gangops inspect`: the kind is found out, the page fits 80 columns, JSON is the neutral format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reconciler.cli.inspect import inspect
from reconciler.cli.root import VERBS
from reconciler.discovery.detect import kind_of
from reconciler.discovery.parsed import MAX_BYTES, MAX_LINES, Kind, Status
from reconciler.discovery.reading import read
from reconciler.errors import ExitStatus, NotFound
from tests.discovery.samples import SAMPLES


def _run(*arguments: str, given: str | bytes = "") -> Result:
    return CliRunner().invoke(inspect, arguments, input=given, standalone_mode=False)


@pytest.mark.parametrize("kind", list(Kind))
def test_each_kind_is_recognised(kind: Kind) -> None:
    assert kind_of(SAMPLES[kind]) is kind


@pytest.mark.parametrize(
    "text", ["hello world\n", "GPU\n", "<html><body/></html>\n", "a = b\n", "Dear all, it fails.\n"]
)
def test_other_text_is_not_guessed_at(text: str) -> None:
    assert read(text.encode()).status is Status.ERROR


@pytest.mark.parametrize("kind", list(Kind))
def test_the_page_fits_80_columns_and_names_the_kind(kind: Kind) -> None:
    done = _run("-", given=SAMPLES[kind])
    assert done.return_value == ExitStatus.OK
    lines = done.output.splitlines()
    assert lines[0] == f"{kind}: ok"
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80


def test_json_is_the_neutral_format(tmp_path: Path) -> None:
    file = tmp_path / "lldp.json"
    file.write_text(SAMPLES[Kind.LLDP])
    done = _run(str(file), "-o", "json")
    assert json.loads(done.output) == {
        "file": "lldp.json",
        "format": "lldpctl-json/v1",
        "status": "ok",
        "neighbors": {"eth0": {"switch": "leaf1", "port": "swp1"}, "eth1": {"switch": "leaf2", "port": "swp2"}},
        "warnings": [],
        "errors": [],
    }


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (b"", "EMPTY"),
        (b" \n", "EMPTY"),
        (b"\xff\xfe\x00", "NOT_TEXT"),
        (b"a\0b", "NOT_TEXT"),
        (b"hello", "UNKNOWN_KIND"),
        (b"a" * (MAX_BYTES + 1), "TOO_LARGE"),
        (b"\n" * (MAX_LINES + 1), "TOO_LARGE"),
    ],
    ids=lambda value: value[:8] if isinstance(value, bytes) else value,
)
def test_what_cannot_be_read_exits_with_4(given: bytes, code: str) -> None:
    done = _run("-", "-o", "json", given=given)
    assert done.return_value == ExitStatus.INVALID
    found = json.loads(done.output)
    assert (found["status"], found["format"]) == ("error", None)
    assert [error.partition(":")[0] for error in found["errors"]] == [code]


def test_a_kind_that_is_given_is_taken() -> None:
    done = _run("-", "--kind", "numactl-hardware", "-o", "json", given=SAMPLES[Kind.LLDP])
    assert json.loads(done.output)["format"] == "numactl-hardware/v1"
    assert done.return_value == ExitStatus.INVALID


def test_partial_is_no_failure() -> None:
    done = _run("-", given=SAMPLES[Kind.NUMACTL].replace("node 1 free: 0 MB\n", ""))
    assert done.return_value == ExitStatus.OK
    assert "numactl-hardware: partial" in done.output
    assert "NO_FREE: no free memory for node 1" in done.output


def test_dos_line_ends_change_no_value() -> None:
    plain = read(SAMPLES[Kind.NVIDIA_TOPO].encode())
    dos = read(SAMPLES[Kind.NVIDIA_TOPO].replace("\n", "\r\n").encode())
    assert dos.content == plain.content
    assert [w.code for w in dos.warnings] == ["CRLF"]


@pytest.mark.parametrize("kind", list(Kind))
def test_no_cut_text_reads_as_whole(kind: Kind) -> None:
    text = SAMPLES[kind]
    whole = read(text.encode(), kind)
    for end in range(len(text) - 1):
        if not text[:end].endswith("\n"):  # between two lines of a configuration nothing shows that more was there
            cut = read(text[:end].encode(), kind)
            assert cut.status is not Status.OK or cut.content == whole.content, text[:end]


SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=train --nodes=2 --gpus-per-node=h100:8
#SBATCH --time=2:00:00 --mail-type=END
##SBATCH --exclusive
srun ./train
"""


def test_an_sbatch_script_is_told_by_its_first_line_and_shown() -> None:
    done = _run("-", given=SCRIPT)
    assert done.return_value == ExitStatus.OK
    lines = done.output.splitlines()
    assert lines[0] == "sbatch: ok"
    assert max(map(len, lines)) <= 80
    assert "train  2      -      16 (8 a node) h100  7200   -" in [line.strip() for line in lines]
    assert "mail-type" in done.output


def test_an_sbatch_script_as_json_is_what_the_importer_reads() -> None:
    found = json.loads(_run("-", "-o", "json", given=SCRIPT).output)
    assert (found["file"], found["format"], found["status"]) == ("-", "sbatch/v1", "ok")
    assert found["components"][0]["gpus"] == {"per_node": 8, "total": 16, "type": "h100"}
    assert (found["warnings"], found["errors"]) == ([], [])


def test_an_sbatch_script_that_sbatch_would_refuse_exits_with_4() -> None:
    done = _run("-", "-o", "json", given=SCRIPT.replace("--nodes", "--nods"))
    assert done.return_value == ExitStatus.INVALID
    found = json.loads(done.output)
    assert [error.partition(":")[0] for error in found["errors"]] == ["UNKNOWN_OPTION"]


def test_directives_without_a_first_line_are_a_script_that_sbatch_refuses() -> None:
    done = _run("-", "-o", "json", given="# my job\n#SBATCH -N 2\nsrun ./train\n")
    found = json.loads(done.output)
    assert (found["format"], found["status"]) == ("sbatch/v1", "error")
    assert [error.partition(":")[0] for error in found["errors"]] == ["NO_SHEBANG"]


def test_foreign_escape_sequences_do_not_reach_the_terminal() -> None:
    done = _run("-", given=SAMPLES[Kind.LLDP].replace("leaf1", "leaf\\u001b[2J1"))
    assert "\x1b" not in done.output


def test_a_file_that_is_not_there() -> None:
    done = _run("/nowhere/at/all")
    assert isinstance(done.exception, NotFound)


def test_the_verb_is_registered() -> None:
    assert VERBS["inspect"][0] == "reconciler.cli.inspect:inspect"
