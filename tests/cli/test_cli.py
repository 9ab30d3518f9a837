"""The command line as a shell sees it: what it costs, what it prints where, and the status it ends with."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from reconciler.agent import conf
from reconciler.cli.root import VERBS, root
from reconciler.errors import (
    AuditFailed,
    BrokenInvariant,
    Diagnostic,
    EngineUnavailable,
    ExitStatus,
    Fenced,
    GangOpsError,
    InvalidInput,
    NotFound,
    Place,
    StoreError,
    Unreachable,
    UsageError,
)

ROOT = Path(__file__).parents[2]
HEAVY = ("pydantic", "git", "networkx", "aiohttp", "ruamel", "ClusterShell", "cryptography", "jinja2")
# `main` as the installed command calls it, with a verb that does what the test wants; and with Ctrl-C as at a terminal,
# for whoever starts these tests in the background has it ignored.
WITH_VERB = """
import click, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import reconciler.cli as cli
from reconciler.cli import root as r
from reconciler.errors import *
@click.command()
def verb():
    {body}
r.root.get_command = lambda ctx, name: verb
sys.argv = ["gangops", "verb"]
cli.main()
"""


def run(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`gangops` in a process of its own, with nobody's git settings."""
    environment = {
        "PATH": os.environ["PATH"], "HOME": os.devnull, "PYTHONPATH": str(ROOT), "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder or ROOT, env=environment, capture_output=True, text=True, check=False
    )


def main_with(body: str) -> subprocess.CompletedProcess[str]:
    return run("-c", WITH_VERB.format(body=body))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["-h"]])
def test_help_costs_nothing(arguments: list[str]) -> None:
    script = (
        "import sys, reconciler.cli as cli\n"
        f"sys.argv = ['gangops', *{arguments!r}]\n"
        "try:\n    cli.main()\n"
        "except SystemExit as end:\n    status = end.code\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print('loaded:', loaded, 'status:', int(status or 0), file=sys.stderr)"
    )
    done = run("-c", script)
    assert done.stderr == "loaded: [] status: 0\n"
    assert done.stdout


def test_help_lists_every_verb_in_eighty_columns() -> None:
    done = run("-m", "reconciler.cli", "--help")
    assert done.returncode == 0
    assert [verb for verb in VERBS if f"\n  {verb} " not in done.stdout] == []
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "demo"])
def test_every_verb_is_there_and_helps(verb: str) -> None:
    done = CliRunner().invoke(root, [verb, "--help"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Usage:")


@pytest.mark.parametrize(
    "arguments", [["statsu"], ["status", "--colour"], ["plan", "-o", "xml"], ["explain", "job"], ["get", "pods"]]
)
def test_what_makes_no_sense_ends_with_64(arguments: list[str]) -> None:
    done = run("-m", "reconciler.cli", *arguments)
    assert done.returncode == ExitStatus.USAGE
    assert done.stdout == ""
    assert "Error:" in done.stderr
    assert "Traceback" not in done.stderr


ERRORS: list[tuple[GangOpsError, str, ExitStatus]] = [
    (GangOpsError("x"), "GangOpsError('x')", ExitStatus.ERROR),
    (UsageError("x"), "UsageError('x')", ExitStatus.USAGE),
    (NotFound("x"), "NotFound('x')", ExitStatus.NOT_FOUND),
    (AuditFailed("x", generation=7), "AuditFailed('x', generation=7)", ExitStatus.AUDIT_FAILED),
    (Fenced("x"), "Fenced('x')", ExitStatus.LOST_RACE),
    (StoreError("x", code="PushRejected"), "StoreError('x', code='PushRejected')", ExitStatus.ERROR),
    (Unreachable("x"), "Unreachable('x')", ExitStatus.UNREACHABLE),
    (EngineUnavailable("x"), "EngineUnavailable('x')", ExitStatus.UNREACHABLE),
    (BrokenInvariant("x"), "BrokenInvariant('x')", ExitStatus.ERROR),
]


@pytest.mark.parametrize(("error", "made", "status"), ERRORS, ids=[type(e).__name__ for e, _, _ in ERRORS])
def test_each_error_has_its_one_status_and_its_code_on_stderr(
    error: GangOpsError, made: str, status: ExitStatus
) -> None:
    done = main_with(f"raise {made}")
    assert done.returncode == status
    assert done.stderr == f"error[{error.code}]: x\n"
    assert done.stdout == ""


def test_a_remedy_is_told_below_the_error() -> None:
    done = main_with("raise NotFound('x', remedy='look there')")
    assert done.stderr == "error[NotFound]: x\n  look there\n"


def test_all_problems_of_an_invalid_input_are_told() -> None:
    problem = Diagnostic("UnknownQueue", "Queue does not exist", "Job asks.", Place("a.yaml", 7, 10), "Add it.")
    made = "Diagnostic('UnknownQueue', 'Queue does not exist', 'Job asks.', Place('a.yaml', 7, 10), 'Add it.')"
    done = main_with(f"raise InvalidInput([Diagnostic('X', 'Y', 'Z', Place('b.yaml')), {made}])")
    assert done.returncode == ExitStatus.INVALID
    assert done.stderr == f"{InvalidInput([problem])}\n\nerror[X]: Y\n  b.yaml\n  Z\n"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("return 2", 2),
        ("return None", 0),
        ("raise click.exceptions.Exit(3)", 3),
        ("raise KeyboardInterrupt", 130),
        ("raise click.Abort", 130),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(30)", 130),
    ],
)
def test_how_a_verb_ends_is_how_the_command_ends(body: str, status: int) -> None:
    done = main_with(body)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_ctrl_c_from_outside_ends_with_130() -> None:
    script = WITH_VERB.format(body="print('ready', flush=True); import time; time.sleep(300)")
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.INTERRUPTED
    assert "Traceback" not in told


def test_a_reader_that_goes_away_is_no_error() -> None:
    script = WITH_VERB.format(body="[click.echo('x' * 1000) for _ in range(1000)]")
    done = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "$1" | head -n 1 >/dev/null; echo ${{PIPESTATUS[0]}}', "-", script],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "0\n"
    assert done.stderr == ""


def test_outside_a_clone_each_reading_verb_says_so(tmp_path: Path) -> None:
    for verb in (["status"], ["get", "jobs"], ["plan"], ["history"], ["replay"], ["describe", "a/b"]):
        done = run("-m", "reconciler.cli", *verb, folder=tmp_path)
        assert done.returncode == ExitStatus.NOT_FOUND, (verb, done.stderr)
        assert done.stderr.startswith("error[NotAClone]"), (verb, done.stderr)


def test_verbs_are_commands() -> None:
    context = click.Context(root)
    assert root.get_command(context, "nope") is None
    assert isinstance(root.get_command(context, "doctor"), click.Command)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("open('/nope/x')", "error[OperatingSystem]: /nope/x: No such file or directory\n  Check the path"),
        ("raise OSError(28, 'No space left on device')", "error[OperatingSystem]: No space left on device\n"),
        ("print('x' * 100000); sys.stdout = open('/dev/full', 'w'); print('y')", "error[OperatingSystem]: No space"),
        ("raise TypeError('odd')", "error[Bug]: TypeError: odd (<string>:"),
    ],
)
def test_what_nobody_expected_is_told_without_a_traceback(body: str, told: str) -> None:
    done = main_with(body)
    assert done.returncode == ExitStatus.ERROR
    assert done.stderr.startswith(told)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if "error[Bug]" in done.stderr:
        Path(done.stderr.rstrip().rpartition(" ")[2]).unlink()


def test_the_traceback_of_a_bug_is_kept_in_a_file() -> None:
    done = main_with("raise TypeError('odd')")
    kept = Path(done.stderr.rstrip().rpartition(" ")[2])
    assert "in verb" in kept.read_text()
    kept.unlink()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(closed: str) -> None:
    script = WITH_VERB.format(body="click.echo('x'); click.echo('y', err=True); sys.stdin.read()")
    done = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "$1" {closed}', "-", script],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("arguments", [["reconciler.cli", "agent", "run"], ["reconciler.agent", "run"]])
def test_the_agent_s_help_names_every_key_of_its_file(arguments: list[str]) -> None:
    done = run("-m", *arguments, "--help")
    assert done.returncode == 0, done.stderr
    keys = {key.partition(".")[2] for key in (*conf._REQUIRED, *conf._REQUIRED_TRUST, *conf._DEFAULTS)}
    words = set(re.findall(r"\w+", done.stdout))
    assert keys - words == set()
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_every_value_of_an_event_can_be_logged(capsys: pytest.CaptureFixture[str]) -> None:
    from reconciler.cli.operate import _event, _json_event

    _event("withheld", {"who": ["ada", "grace"], "remedy": "", "since": None, "lacks": 0})
    _json_event("notification-late", {"hook": "webhook", "notice": "Failed"})
    plain, tree = capsys.readouterr().err.splitlines()
    assert plain.split(None, 1)[1] == "withheld       who ['ada', 'grace']  lacks 0"
    assert json.loads(tree).items() >= {"event": "notification-late", "notice": "Failed"}.items()


@pytest.mark.parametrize("columns", [40, 80])
def test_an_error_is_broken_between_words_at_the_edge_of_a_terminal_only(columns: int) -> None:
    script = "import sys; sys.argv[1:] = ['explain', 'code', 'Zzzz']; from reconciler.cli import main; main()"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    run = [sys.executable, "-c", script]
    with open(ours, "rb", buffering=0) as shown:  # noqa: PTH123  a descriptor
        subprocess.run(run, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=theirs, check=False)
        os.write(theirs, b"\0")  # what was printed ends here
        os.close(theirs)
        text = b""
        while not text.endswith(b"\0"):
            text += shown.read(4096)
    lines = text.decode().strip("\0").splitlines()
    assert lines[0] == "error[UnknownCode]: Zzzz is not a reason"[:columns] or columns == 80
    assert max(map(len, lines)) <= columns
    assert all(line.startswith("  ") for line in lines[1:])
    piped = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False).stderr
    assert len(piped.splitlines()) == 2
    assert " ".join(text.decode().strip("\0").split()) == " ".join(piped.split())
