"""One way to run git: nothing gets in from outside, nothing secret gets out, and failures have a meaning."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from reconciler.errors import StoreError, Unreachable, UsageError
from reconciler.store.child import run_bounded
from reconciler.store.credentials import Credentials, write_askpass
from reconciler.store.failures import failure_of, redact
from reconciler.store.names import checked_ref, checked_url, url_origin
from reconciler.store.runner import DEFAULT_PROTOCOLS, Git
from tests.store.world import LOCAL, Repository, git

SECRET = "S3CR3T-t0ken"


def test_nothing_of_the_callers_git_settings_arrives(
    remote: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.commit({"a": b"a"})
    (tmp_path / ".gitconfig").write_text("[user]\n\tname = from home\n")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'user.name=from environment'")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / ".gitconfig"))
    monkeypatch.setenv("GIT_TRACE", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    clone = remote.git
    assert clone.run("config", "--get", "user.name", accept=(1,)).status == 1
    assert clone.run("rev-parse", "main").stderr == ""
    inherited = {
        name: value for name, value in clone.environment().items() if name.startswith(("GIT_DIR", "GIT_TRACE", "XDG"))
    }
    assert inherited == {}
    assert clone.environment()["LC_ALL"] == "C"


def test_command_that_hangs_is_ended_with_all_its_children(remote: Repository, tmp_path: Path) -> None:
    marker = tmp_path / "child"
    script = f"sleep 600 & echo $! > {marker}; wait"
    started = time.monotonic()
    for seconds in (0.5, 5, 50):  # on a busy machine it has no child yet when the time is over
        ended = run_bounded(["/bin/sh", "-c", script], {"PATH": os.environ["PATH"]}, stdin=b"", seconds=seconds)
        assert ended.timed_out
        if marker.exists() and marker.read_text():
            break
    assert time.monotonic() - started < 300
    assert ends(int(marker.read_text()), within=60)


def ends(pid: int, *, within: float) -> bool:
    """A killed process is gone, or a zombie, a moment later."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_time_limit_of_network_and_of_local_commands_are_different_errors(remote: Repository) -> None:
    remote.hook("slow", "sleep 60")
    clone = Git(folder=remote.path, bare=True, protocols=LOCAL, config=(("alias.slow", f"!{remote.path}/hooks/slow"),))
    with pytest.raises(Unreachable) as unreachable:
        clone.run("slow", network=True, seconds=0.2)
    assert unreachable.value.code == "RemoteUnreachable"
    with pytest.raises(StoreError) as failed:
        clone.run("slow", seconds=0.2)
    assert failed.value.code == "GitFailed"
    assert not isinstance(failed.value, Unreachable)


def test_output_beyond_the_limit_is_cut_and_within_is_whole() -> None:
    environment = {"PATH": os.environ["PATH"]}
    endless = run_bounded(["/bin/sh", "-c", "yes"], environment, stdin=b"", seconds=60, at_most=1000)
    assert (endless.cut, endless.stdout) == (True, b"")
    short = run_bounded(
        ["/bin/sh", "-c", "echo ok; echo bad >&2; exit 3"], environment, stdin=b"", seconds=60, at_most=3
    )
    assert (short.cut, short.status, short.stdout, short.stderr) == (False, 3, b"ok\n", "bad\n")
    slow = run_bounded(["/bin/sh", "-c", "sleep 60"], environment, stdin=b"", seconds=0.2, at_most=3)
    assert slow.timed_out


def test_program_that_is_missing_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from reconciler.store.child import program

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreError) as caught:
        program("ssh-keygen", package="openssh-client")
    assert caught.value.code == "GitMissing"
    assert "openssh-client" in caught.value.remedy


@pytest.mark.parametrize(
    "url",
    [
        "https://git.example/org/repo.git",
        "https://bot@git.example:8443/org/repo",
        "ssh://git@git.example:22/org/repo",
        "git@git.example:org/repo.git",
        "https://[::1]/r".replace("::", "1:2:3:4:5:6:7:8"),
    ],
)
def test_usual_addresses_are_accepted(url: str) -> None:
    assert checked_url(url, DEFAULT_PROTOCOLS) == url


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ext::sh -c id", "UnsafeUrl"),
        ("ext::id", "UnsafeUrl"),
        ("--upload-pack=touch", "UnsafeUrl"),
        ("-oProxyCommand=id:x", "UnsafeUrl"),
        ("ssh://-oProxyCommand=id/x", "UnsafeUrl"),
        ("git@-oProxyCommand=id:x", "UnsafeUrl"),
        ("ssh://-l@host/x", "UnsafeUrl"),
        ("https://$HOST/x", "UnsafeUrl"),
        ("https://a b/x", "UnsafeUrl"),
        ("https://host/x\n--upload-pack=id", "UnsafeUrl"),
        ("http://git.example/x", "UnsafeUrl"),
        ("git://git.example/x", "UnsafeUrl"),
        ("file:///etc", "UnsafeUrl"),
        ("/etc", "UnsafeUrl"),
        ("https://host:port/x", "UnsafeUrl"),
        ("", "UnsafeUrl"),
        ("relative/path", "UnsafeUrl"),
        (f"https://bot:{SECRET}@git.example/x", "SecretInUrl"),
        (f"https://bot:{SECRET}@@git.example/x", "SecretInUrl"),
        (f"bot:{SECRET}@git.example:x", "SecretInUrl"),
    ],
)
def test_addresses_that_are_commands_options_or_secrets_are_refused(url: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_url(url, DEFAULT_PROTOCOLS)
    assert caught.value.code == code
    assert SECRET not in str(caught.value) + caught.value.remedy


@pytest.mark.parametrize("ref", ["main", "-x", "refs/heads/-x", "refs/heads/a..b", "refs/heads/a.lock", "refs/heads/a b", "refs/heads/a:b", "refs/heads/a^", "refs/heads/", "+refs/heads/a", "refs/heads/a/"])  # fmt: skip
def test_odd_branch_names_are_refused(ref: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_ref(ref)
    assert caught.value.code == "UnsafeRef"


def test_usual_branch_names_are_accepted() -> None:
    assert checked_ref("refs/heads/allocations/prod-1.x_y") == "refs/heads/allocations/prod-1.x_y"


@pytest.mark.parametrize(
    "text",
    [
        f"fatal: unable to access 'https://bot:{SECRET}@git.example/org/repo.git/': Could not resolve host",
        f"fatal: https://{SECRET}@git.example/x",
        f"fatal: https://a:b@{SECRET}@git.example/x",
        f"< Authorization: Basic {SECRET}",
        f"authorization: {SECRET}",
        f"GET /x?private_token={SECRET}&y=1",
        f"bot:{SECRET}@git.example:org/repo",
        "remote: token ghp_0123456789abcdefABCD0123 expired",
        "remote: github_pat_0123456789_abcdefABCD0123",
        "glpat-0123456789abcdefghij",
    ],
)
def test_secrets_of_any_known_shape_are_removed_from_text(text: str) -> None:
    shown = redact(text)
    assert "***" in shown
    assert not any(secret in shown for secret in (SECRET, "0123456789"))


def test_the_token_itself_is_removed_whatever_surrounds_it() -> None:
    assert redact(f"weird<{SECRET}>", (SECRET, "")) == "weird<***>"
    assert redact("remote: nothing to hide at host:path and a@b", ()) == "remote: nothing to hide at host:path and a@b"


@pytest.mark.parametrize(
    ("stderr", "code", "unreachable"),
    [
        ("fatal: unable to access 'https://h/': Could not resolve host: h", "RemoteUnreachable", True),
        ("fatal: unable to access 'https://h/': The requested URL returned error: 403", "AuthenticationFailed", True),
        ("fatal: unable to access 'https://h/': The requested URL returned error: 503", "RemoteUnreachable", True),
        ("fatal: Authentication failed for 'https://h/'", "AuthenticationFailed", True),
        ("fatal: could not read Username for 'https://h': terminal prompts disabled", "AuthenticationFailed", True),
        (
            "git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.",
            "AuthenticationFailed",
            True,
        ),
        ("Host key verification failed.\nfatal: Could not read from remote repository.", "AuthenticationFailed", True),
        ("fatal: '/x' does not appear to be a git repository\nfatal: Could not read", "RemoteUnreachable", True),
        ("send-pack: unexpected disconnect while reading sideband packet", "RemoteUnreachable", True),
        ("fatal: write error: No space left on device", "LocalStorageFull", False),
        ("remote: fatal: No space left on device\nerror: failed to push", "GitFailed", False),
        ("fatal: detected dubious ownership in repository at '/x'", "ForeignClone", False),
        ("fatal: couldn't find remote ref refs/heads/main", "SourceMissing", False),
        ("fatal: not a git repository: '/x'", "NotAClone", False),
        ("fatal: Unable to create '/x/packed-refs.lock': File exists.", "CloneLocked", False),
        (
            "error: object file objects/12/34 is empty\nfatal: loose object 1234 (stored in x) is corrupt",
            "CloneBroken",
            False,
        ),
        ("fatal: bad object 1234", "CloneBroken", False),
        ("fatal: unable to access '.git/config': Permission denied", "GitFailed", False),
        ("", "GitFailed", False),
    ],
)
def test_complaints_of_git_become_typed_errors(stderr: str, code: str, unreachable: bool) -> None:
    error = failure_of(stderr)
    assert (error.code, isinstance(error, Unreachable)) == (code, unreachable)
    assert error.remedy


def test_blocked_protocol_is_a_usage_error(remote: Repository) -> None:
    with pytest.raises(UsageError) as caught:
        Git(folder=remote.path, bare=True).run("ls-remote", remote.url, network=True)
    assert caught.value.code == "UnsafeUrl"


def test_message_of_an_error_is_plain_text_of_bounded_length() -> None:
    error = failure_of("\x1b[31mfatal\x1b[0m: é " + "x" * 9000)
    assert error.message.isascii()
    assert error.message.replace("\n", "").isprintable()
    assert len(error.message) <= 2000


# -- askpass


def ask(credentials: Credentials, prompt: str) -> tuple[int, str]:
    environment = dict(Git(folder=Path("/"), credentials=credentials).environment())
    assert environment["GIT_ASKPASS"] == str(credentials.askpass)
    ended = run_bounded([str(credentials.askpass), prompt], environment, stdin=b"", seconds=60)
    return ended.status, ended.stdout.decode()


@pytest.mark.parametrize("content", [SECRET, f"{SECRET}\n", f"{SECRET}\nsecond line\n"])
def test_askpass_reads_the_file_at_each_question_and_answers_one_server_alone(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    url = "https://git.example:8443/org/repo"
    credentials = Credentials.for_url(url, token_file=file, folder=tmp_path / "state", username="bot")
    assert ask(credentials, "Username for 'https://git.example:8443': ") == (0, "bot\n")
    assert ask(credentials, "Password for 'https://bot@git.example:8443': ") == (0, f"{SECRET}\n")
    for other in ("evil.example", "git.example", "git.example:8443.evil.example", "git.example:8443/x"):
        assert ask(credentials, f"Password for 'https://bot@{other}': ") == (1, "")
    file.write_text("renewed\n")
    assert ask(credentials, "Password for 'https://bot@git.example:8443': ") == (0, "renewed\n")
    file.unlink()
    assert ask(credentials, "Password for 'https://bot@git.example:8443': ")[0] != 0
    assert credentials.secrets() == ()


def test_askpass_and_environment_hold_no_secret(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    credentials = Credentials.for_url("https://h/x", token_file=tmp_path / "token", folder=tmp_path)
    assert SECRET not in credentials.askpass.read_text()
    assert SECRET not in str(Git(folder=tmp_path, credentials=credentials).environment())
    assert SECRET not in repr(credentials)
    assert credentials.askpass.stat().st_mode & 0o777 == 0o700
    assert write_askpass(tmp_path) == credentials.askpass
    assert [path.name for path in tmp_path.glob("askpass*")] == ["askpass"]


def test_origin_is_that_of_web_addresses_alone() -> None:
    assert url_origin("https://bot@git.example:8443/x") == "https://git.example:8443"
    assert url_origin("ssh://git@git.example/x") == ""
    assert url_origin("git@git.example:x") == ""


def test_git_itself_is_really_run(remote: Repository) -> None:
    assert remote.git.run("rev-parse", "--is-bare-repository").stdout == git(
        remote.path, "rev-parse", "--is-bare-repository"
    )
