"""Every verb, asked nonsense and in the wrong place: a typed error with a remedy and its exit status, never a traceback."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from reconciler.cli.root import root
from reconciler.errors import ExitStatus, GangOpsError, InvalidInput
from tests.store.world import git


def _verbs(command: click.Command, path: tuple[str, ...], context: click.Context) -> Iterator[tuple[str, ...]]:
    """The words of each verb, groups resolved."""
    if not isinstance(command, click.Group):
        yield path
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _verbs(found, (*path, name), click.Context(found, info_name=name, parent=context))


VERBS = list(_verbs(root, (), click.Context(root, info_name="gangops")))
ACTS = {"demo", "discover", "doctor", "shadow"}
"""Verbs that look at this machine or start something, wherever they stand."""


def _command(words: tuple[str, ...]) -> click.Command:
    found: click.Command = root
    context = click.Context(root)
    for word in words:
        assert isinstance(found, click.Group)
        below = found.get_command(context, word)
        assert below is not None
        found = below
    return found


def _nonsense(words: tuple[str, ...]) -> list[str]:
    """What the verb cannot do without, as nonsense."""
    given = []
    for one in _command(words).params:
        if one.required:
            word = one.type.choices[0] if isinstance(one.type, click.Choice) else "nonsense"
            given += [word] if isinstance(one, click.Argument) else [one.opts[0], word]
    return given


def gangops(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(root, ["-C", str(folder), *arguments])


def check_told(done: Result) -> None:
    """It went well, click spoke of usage, or one of our errors says what to do next, without a word of Python."""
    if done.exception is None or isinstance(done.exception, SystemExit):
        return
    assert isinstance(done.exception, GangOpsError), repr(done.exception)
    err = done.exception
    told = [d.remedy for d in err.diagnostics] if isinstance(err, InvalidInput) else [err.remedy]
    assert all(told), f"{err.code}: {err.message}"
    assert re.fullmatch(r"[A-Z][A-Za-z]+", err.code)
    assert not re.search(r"Errno|Traceback|Error\(|None\b|\bfatal:", err.message), err.message


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting and no cluster in use from outside the test."""
    for name in [name for name in os.environ if name.startswith(("GANGOPS_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_each_verb_has_help_of_eighty_columns_and_refuses_unknown_options(words: tuple[str, ...]) -> None:
    helped = gangops(Path(), *words, "--help")
    assert helped.exit_code == 0
    assert max(map(len, helped.stdout.splitlines())) <= 80
    refused = gangops(Path(), *words, "--no-such-option")
    assert isinstance(refused.exception, SystemExit)
    assert "No such option '--no-such-option'" in refused.stderr


@pytest.mark.parametrize("words", [w for w in VERBS if w[0] not in ACTS], ids=" ".join)
@pytest.mark.parametrize("place", ["nowhere", "empty", "bare"])
def test_each_verb_says_what_to_do_where_there_is_no_cluster(words: tuple[str, ...], place: str) -> None:
    if place != "nowhere":
        git(Path(), "init", "-q", *(["--bare"] if place == "bare" else []), ".")
    done = gangops(Path(), *words, *_nonsense(words))
    check_told(done)
    if place == "nowhere" and isinstance(done.exception, GangOpsError) and done.exception.code == "NotAClone":
        assert str(Path.cwd()) in done.exception.message
        assert "gangops use URL" in done.exception.remedy


def test_a_bare_repository_gets_no_files_of_a_new_cluster(tmp_path: Path) -> None:
    git(Path(), "init", "-q", "--bare", ".")
    done = gangops(Path(), "init")
    assert isinstance(done.exception, GangOpsError)
    assert (done.exception.code, done.exception.exit_status) == ("NoWorkTree", ExitStatus.USAGE)
    assert done.exception.remedy.startswith(f"git clone {Path.cwd()} ")
    assert not Path("cluster-state").exists()


ASKED: dict[str, tuple[str, ExitStatus, str]] = {
    "history --at nonsense": ("BadTime", ExitStatus.USAGE, '"2h ago"'),
    "history --gpu 3": ("GpuOfNoNode", ExitStatus.USAGE, "gangops history --node NODE --gpu 3"),
    "history --queue nope": ("NoJobsInQueue", ExitStatus.NOT_FOUND, "gangops get queues"),
    "history --at 2001-01-01": ("BeforeTheRecord", ExitStatus.NOT_FOUND, "the branch before"),
    "usage --since 2001-01-01 --until 2001-01-02": ("EmptyPeriod", ExitStatus.USAGE, "it goes from 20"),
    "replay 99": ("UnknownGeneration", ExitStatus.NOT_FOUND, "gangops history --limit 1"),
    "audit verify --since 99": ("UnknownGeneration", ExitStatus.NOT_FOUND, "gangops audit verify"),
    "audit export 99": ("UnknownGeneration", ExitStatus.NOT_FOUND, "gangops history --limit 1"),
    "plan --head nonsense": ("UnknownRevision", ExitStatus.NOT_FOUND, "git fetch origin"),
    "plan --at nonsense": ("BadTime", ExitStatus.USAGE, "2026-11-28"),
    "plan --check zzzz": ("BadDigest", ExitStatus.USAGE, "last line"),
    "validate cluster-state --rev main": ("Usage", ExitStatus.USAGE, "gangops validate --rev main"),
    "cancel nlp/sft --now": ("NoSigningKey", ExitStatus.USAGE, "git config --global gpg.format ssh\n"),
    "freeze nlp": ("NothingAsked", ExitStatus.USAGE, "gangops freeze nlp --now --for 2h --reason WHY"),
    "suspend nlp/sft --now --for 48h": ("TooLong", ExitStatus.USAGE, "pull request"),
    "cordon gpu-999 --reason x": ("UnknownNode", ExitStatus.NOT_FOUND, "gangops get nodes"),
    "logs nlp/sft --dir /nonsense": ("LogsMissing", ExitStatus.NOT_FOUND, "GANGOPS_LOGS"),
    "use nonsense": ("UnsafeUrl", ExitStatus.USAGE, "https://git.example.org/"),
    "use file:///nonsense": ("RemoteUnreachable", ExitStatus.UNREACHABLE, "git ls-remote"),
    "test nonsense": ("PathNotFound", ExitStatus.NOT_FOUND, "*.yaml"),
    "reconcile --settings /etc/hostname": ("SettingsInvalid", ExitStatus.USAGE, 'clusterId = "my-cluster"'),
    "forge preview --event nonsense": ("UnknownEvent", ExitStatus.USAGE, "$GITHUB_EVENT_PATH"),
    "check approval --event nonsense": ("BadEvent", ExitStatus.USAGE, "$GITHUB_EVENT_PATH"),
    "ca init /proc/nonsense --cluster x": ("NotWritable", ExitStatus.USAGE, "ls -ld"),
}


@pytest.mark.parametrize("asked", ASKED)
def test_nonsense_is_told_with_the_next_step(clone: Path, asked: str) -> None:
    code, status, remedy = ASKED[asked]
    done = gangops(clone, *asked.split())
    check_told(done)
    assert isinstance(done.exception, GangOpsError), done.output
    assert (done.exception.code, done.exception.exit_status) == (code, status)
    assert remedy in done.exception.remedy


def test_while_the_forge_is_away_reading_goes_on_and_says_so(clone: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--mirror", str(clone.parent / "remote.git"), "away.git")
    git(tmp_path, "clone", "-q", str(tmp_path / "away.git"), "mine")
    mine = tmp_path / "mine"
    (tmp_path / "away.git").rename(tmp_path / "gone.git")
    read = gangops(mine, "status")
    assert read.exit_code == 0
    assert "nlp/sft" in read.stdout
    first, second = read.stderr.splitlines()
    assert first.startswith("warning: could not fetch: ")
    assert first.endswith("(RemoteUnreachable)")
    assert second == "what follows is what this clone has; `git fetch origin` tries again"
    written = gangops(mine, "suspend", "nlp/sft", "--yes")
    check_told(written)
    assert isinstance(written.exception, GangOpsError)
    assert written.exception.exit_status is ExitStatus.UNREACHABLE
    assert len(written.exception.message.splitlines()) == 1
