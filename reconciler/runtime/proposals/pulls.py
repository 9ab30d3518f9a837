"""How does a pushed branch become a pull request? By `gh` where it is installed, else by a link to open.

`gh` is the person's own and logged in as them; what it says is shown, never obeyed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from reconciler.errors import GangOpsError
from reconciler.render.names import one_line
from reconciler.store.failures import redact, shown

_SECONDS = 60
_SCP_LIKE = re.compile(r"(?:[^@:/]+@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*):(?!/)(?P<path>.+)")
_PATH = re.compile(r"[A-Za-z0-9_.~-]+(?:/[A-Za-z0-9_.~-]+)+")
_TRAILER = re.compile(r"[A-Za-z][A-Za-z0-9-]*: \S.*")
_URL = re.compile(r"https://\S+")
_BAD = frozenset({"FAILURE", "ERROR", "TIMED_OUT", "CANCELLED", "ACTION_REQUIRED", "STARTUP_FAILURE"})
_GOOD = frozenset({"SUCCESS", "NEUTRAL", "SKIPPED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Forge:
    """Where a repository is on the web: `host`, and `path` such as `acme/cluster`."""

    host: str
    path: str

    @property
    def is_gitlab(self) -> bool:
        """By its name: what else would tell without asking it?"""
        return "gitlab" in self.host

    def link(self, base: str, branch: str) -> str:
        """The page that opens a pull request for a branch."""
        if self.is_gitlab:
            asked = urlencode({"merge_request[source_branch]": branch, "merge_request[target_branch]": base})
            return f"https://{self.host}/{self.path}/-/merge_requests/new?{asked}"
        return f"https://{self.host}/{self.path}/compare/{quote(base)}...{quote(branch, safe='/')}?expand=1"


def forge_of(url: str) -> Forge | None:
    """The forge of a remote address; None for a path, or what names no repository on one."""
    if "://" in url:
        parts = urlsplit(url)
        host, path = parts.hostname or "", parts.path
        if parts.scheme == "https" and parts.port:
            host = f"{host}:{parts.port}"
    else:
        match = _SCP_LIKE.fullmatch(url)
        host, path = (match["host"], match["path"]) if match is not None else ("", "")
    path = path.strip("/").removesuffix(".git")
    return Forge(host=host, path=path) if host and _PATH.fullmatch(path) else None


def with_trailers(body: str, rows: Iterable[tuple[str, str]]) -> str:
    """A commit's text with these trailers, in one paragraph with those it has already: only the last one counts."""
    told = "\n".join(f"{key}: {value}" for key, value in rows)
    text = body.strip()
    last = text.rpartition("\n\n")[2]
    goes_on = bool(text) and all(_TRAILER.fullmatch(line) for line in last.splitlines())
    return f"{text}{chr(10) if goes_on else chr(10) * 2}{told}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a pull request stands. `pending` and `failed` name checks; `blocked`: a failed one keeps it from merging."""

    state: str
    checks: int
    pending: tuple[str, ...]
    failed: tuple[str, ...]
    blocked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gh:
    """The program `gh`, asked about one repository."""

    program: str
    forge: Forge

    @property
    def _repository(self) -> str:
        return f"{self.forge.host}/{self.forge.path}"

    def open(self, base: str, branch: str, title: str, body: str) -> str:
        """The address of a new pull request. Raises GangOpsError (PullRequestFailed)."""
        told = self._run(
            "pr", "create", "--repo", self._repository, "--base", base, "--head", branch, "--title", title,
            "--body", body,
        )  # fmt: skip
        found = _URL.findall(told)
        if not found:
            raise _failed("gh named no pull request", told)
        return str(found[-1])

    def merge_when_ready(self, pull: str, body: str) -> None:
        """Turn on auto-merge, by a way of merging that the repository allows; `body` is what its commit says beside its
        title, where that way makes one; "": what the forge says.

        Raises GangOpsError (PullRequestFailed).
        """
        allowed = self._json(
            "repo", "view", self._repository, "--json", "mergeCommitAllowed,squashMergeAllowed,rebaseMergeAllowed"
        )
        ways = (
            ("mergeCommitAllowed", "--merge"),
            ("squashMergeAllowed", "--squash"),
            ("rebaseMergeAllowed", "--rebase"),
        )
        way = next((flag for field, flag in ways if allowed.get(field)), "--merge")
        self._run("pr", "merge", pull, "--auto", way, *(("--body", body) if body and way != "--rebase" else ()))

    def standing(self, pull: str) -> Standing:
        """How the pull request stands. Raises GangOpsError (PullRequestFailed)."""
        said = self._json("pr", "view", pull, "--json", "state,mergeStateStatus,statusCheckRollup")
        pending, failed = [], []
        checks = [one for one in said.get("statusCheckRollup") or () if isinstance(one, dict)]
        for check in checks:
            name = one_line(str(check.get("name") or check.get("context") or "a check"))  # anybody's words
            outcome = str(check.get("conclusion") or check.get("state") or "")
            if outcome in _BAD:
                failed.append(name)
            elif outcome not in _GOOD:
                pending.append(name)
        return Standing(
            state=str(said.get("state", "")), checks=len(checks), pending=tuple(pending), failed=tuple(failed),
            blocked=bool(failed) and said.get("mergeStateStatus") not in {"CLEAN", "UNSTABLE", "HAS_HOOKS"},
        )  # fmt: skip

    def _json(self, *arguments: str) -> dict[str, Any]:
        told = self._run(*arguments)
        try:
            found = json.loads(told)
        except ValueError as err:
            raise _failed(f"gh {' '.join(arguments[:2])} answered no JSON", told) from err
        return found if isinstance(found, dict) else {}

    def _run(self, *arguments: str) -> str:
        environment = {**os.environ, "GH_PROMPT_DISABLED": "1", "NO_COLOR": "1"}
        try:
            done = subprocess.run(
                [self.program, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as err:
            raise _failed(f"gh {' '.join(arguments[:2])} did not end well", str(err)) from err
        if done.returncode:
            raise _failed(f"gh {' '.join(arguments[:2])} failed", done.stderr)
        return done.stdout


def gh_for(forge: Forge | None) -> Gh | None:
    """The `gh` on PATH; None where there is none, or no forge that it knows."""
    program = shutil.which("gh")
    if program is None or forge is None or forge.is_gitlab:
        return None
    return Gh(program=program, forge=forge)


def body_of(body: str, verb: str, plan: Sequence[str]) -> str:
    """The description of a pull request: why, and what the plan came to when it was proposed."""
    told = [body.strip(), *plan, f"Proposed with `gangops {verb}`."]
    return "\n\n".join(part for part in told if part)


def _failed(what: str, told: str) -> GangOpsError:
    words = shown(redact(told))
    return GangOpsError(
        f"{what}: {words}" if words else what, code="PullRequestFailed",
        remedy="The branch is pushed: open the pull request by the link. `gh auth status` tells more.",
    )  # fmt: skip
