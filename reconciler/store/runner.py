"""How is git run? In one way only: fixed environment, no shell, a time limit, and errors with a meaning.

Nothing of the caller's environment or of anyone's git configuration reaches git, so that a clone prepared by
someone else cannot make it run a program, and two machines see the same output. The one exception is what a person
does in their own name (`person`). What the commands are is left to the other modules; what may be handed to them, to
`names`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from reconciler.errors import StoreError, Unreachable
from reconciler.store.child import program, run_bounded
from reconciler.store.credentials import Credentials
from reconciler.store.failures import failure_of, redact

DEFAULT_PROTOCOLS = frozenset({"https", "ssh"})
LOCAL_SECONDS = 120
NETWORK_SECONDS = 300

# What git's children (ssh, libcurl) need from outside. Never a GIT_* variable, never HOME.
_INHERITED = (
    "PATH", "TMPDIR", "SSH_AUTH_SOCK", "http_proxy", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH",
)  # fmt: skip

# Of the GIT_* variables, what says who somebody is and where their settings are.
_PERSONAL = re.compile(r"GIT_(?:AUTHOR|COMMITTER)_(?:NAME|EMAIL|DATE)|GIT_CONFIG_(?:GLOBAL|SYSTEM|NOSYSTEM)")
SSH_COMMAND = "core.sshcommand"

# Command scope, so these win over any file. Submodules are never used: what .gitmodules says must not stop a fetch.
_CONFIG: tuple[tuple[str, str], ...] = (
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("core.attributesFile", os.devnull),
    ("core.excludesFile", os.devnull),
    ("core.quotePath", "true"),
    ("core.gitProxy", ""),
    ("core.alternateRefsCommand", "false"),
    ("credential.helper", ""),
    ("credential.useHttpPath", "false"),
    ("log.showSignature", "false"),
    ("push.gpgSign", "false"),
    ("push.recurseSubmodules", "no"),
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("fetch.writeCommitGraph", "false"),
    ("transfer.fsckObjects", "true"),
    ("transfer.credentialsInUrl", "die"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("http.lowSpeedLimit", "1"),
    ("http.lowSpeedTime", "30"),
    ("safe.bareRepository", "explicit"),
    *((f"fetch.fsck.gitmodules{what}", "ignore") for what in ("Name", "Path", "Url", "Parse", "Update")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a git command left: exit status, standard output as bytes, redacted standard error."""

    status: int
    stdout: bytes
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """Git on one clone. Copies are cheap and share nothing, so threads may use the same one.

    `bare`: the folder is a bare clone of our own; else any folder inside a person's clone. `protocols` empty
    means that nothing this clone's configuration says can open a connection.
    """

    folder: Path
    bare: bool = False
    protocols: frozenset[str] = DEFAULT_PROTOCOLS
    credentials: Credentials | None = None
    ssh_options: tuple[str, ...] = ()
    config: tuple[tuple[str, str], ...] = field(default=())
    person: bool = False

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        accept: Collection[int] = (0,),
        network: bool = False,
        seconds: float | None = None,
        at_most: int | None = None,
    ) -> Finished:
        """The result of one git command; `at_most` bounds standard output in bytes.

        Raises: the error of `failures.failure_of` when the exit status is not accepted; Unreachable after the
        time limit of a network command; StoreError(GitFailed) after that of another;
        StoreError(OutputTooLarge) beyond `at_most`.
        """
        limit = seconds or (NETWORK_SECONDS if network else LOCAL_SECONDS)
        command = [git_program(), *self._where(), *arguments]
        finished = run_bounded(command, self.environment(), stdin=stdin, seconds=limit, at_most=at_most)
        told = redact(finished.stderr, self.credentials.secrets() if self.credentials else ())
        if finished.timed_out:
            make = Unreachable if network else StoreError
            raise make(f"git {arguments[0]} did not end within {limit:g} s", remedy="Check the server and the disk.")
        if finished.cut:
            raise StoreError(f"git {arguments[0]} printed more than {at_most} bytes", code="OutputTooLarge")
        if finished.status not in accept:
            raise failure_of(told)
        return Finished(status=finished.status, stdout=finished.stdout, stderr=told)

    def _where(self) -> tuple[str, ...]:
        return ("--git-dir", str(self.folder)) if self.bare else ("-C", str(self.folder))

    def environment(self) -> Mapping[str, str]:
        """The whole environment of git; the same for every command on this clone."""
        config = (*_CONFIG, *self.config)
        settings = {f"GIT_CONFIG_KEY_{i}": key for i, (key, _) in enumerate(config)}
        settings |= {f"GIT_CONFIG_VALUE_{i}": value for i, (_, value) in enumerate(config)}
        return {
            **self._callers(),
            **settings,
            "GIT_CONFIG_COUNT": str(len(config)),
            "GIT_ATTR_NOSYSTEM": "1",
            "LC_ALL": "C",
            "TZ": "UTC",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": ":".join(sorted(self.protocols)) or "none",
            "GIT_NO_LAZY_FETCH": "0" if self.protocols else "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_LFS_SKIP_SMUDGE": "1",
            **self._ssh(),
            **self._asking(),
        }

    def _callers(self) -> dict[str, str]:
        if self.person:
            return {name: value for name, value in os.environ.items() if _is_personal(name)}
        return {
            **{name: os.environ[name] for name in _INHERITED if name in os.environ},
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "HOME": os.devnull,  # or libcurl would offer the caller's .netrc
        }

    def _ssh(self) -> dict[str, str]:
        if self.person and (own := os.environ.get("GIT_SSH_COMMAND") or dict(self.config).get(SSH_COMMAND)):
            return {"GIT_SSH_COMMAND": own}
        command = shlex.join(("ssh", "-oBatchMode=yes", "-oConnectTimeout=15", *self.ssh_options))
        return {"GIT_SSH_COMMAND": command, "GIT_SSH_VARIANT": "ssh"}

    def _asking(self) -> Mapping[str, str]:
        if self.credentials is None or not self.credentials.origin:
            return {"GIT_ASKPASS": "false", "SSH_ASKPASS_REQUIRE": "never"}
        return {
            "GIT_ASKPASS": str(self.credentials.askpass),
            "SSH_ASKPASS_REQUIRE": "never",
            "GANGOPS_ASKPASS_ORIGIN": self.credentials.origin,
            "GANGOPS_ASKPASS_USER": self.credentials.username,
            "GANGOPS_ASKPASS_FILE": str(self.credentials.token_file),
        }


def _is_personal(name: str) -> bool:
    return not name.startswith("GIT_") or _PERSONAL.fullmatch(name) is not None


@cache
def git_program() -> str:
    """Where git is. Raises StoreError(GitMissing)."""
    return program("git", package="git")
