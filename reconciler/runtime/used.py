"""Which cluster repository do verbs work on when nobody stands in one? The one named last by `gangops use`.

It is kept as a bare clone without file contents, which git fetches when they are read, in the user's cache folder: lost
at any time, and made again. What was named is remembered beside the user's settings. The clone is ours alone, so its
configuration is trusted and the user's own way to log in counts.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reconciler.errors import GangOpsError, NotFound, StoreError, UsageError
from reconciler.runtime.xdg import cache_home, config_home
from reconciler.store.names import checked_url
from reconciler.store.person import as_person
from reconciler.store.runner import DEFAULT_PROTOCOLS, Git
from reconciler.store.whole import write_whole

PROTOCOLS: Final = DEFAULT_PROTOCOLS | {"file"}
_BRANCHES: Final = ("main", "allocations")
_CURED_ANEW: Final = frozenset({"CloneBroken", "NotAClone", "CloneLocked"})
_ODD: Final = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where a user keeps what can be made again, and what cannot."""

    cache: Path
    settings: Path

    @classmethod
    def of_user(cls) -> Folders:
        """As the XDG variables say."""
        return cls(cache=cache_home() / "gangops", settings=config_home() / "gangops")

    @property
    def mark(self) -> Path:
        """The file that names the repository in use."""
        return self.settings / "use"

    def clone_of(self, url: str) -> Path:
        """Where the clone of an address is."""
        name = _ODD.sub("-", url.rstrip("/").removesuffix(".git").rpartition("/")[2]).strip("-")[:40] or "cluster"
        return self.cache / "clones" / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:12]}.git"


def use(folders: Folders, url: str) -> Path:
    """Make or renew the clone of an address, and remember it. The clone's folder.

    Raises: UsageError (UnsafeUrl, SecretInUrl, NotACluster); Unreachable.
    """
    checked_url(url, PROTOCOLS)
    folder = folders.clone_of(url)
    try:
        _cloned(folder, url)
    except StoreError as err:
        if err.code not in _CURED_ANEW:
            raise
        shutil.rmtree(folder, ignore_errors=True)
        _cloned(folder, url)
    folders.settings.mkdir(parents=True, exist_ok=True)
    write_whole(folders.mark, f"{url}\n".encode())
    return folder


def used(folders: Folders) -> str:
    """The address in use, or ""."""
    try:
        url = folders.mark.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
    return url if "\n" not in url else ""


def used_clone(folders: Folders) -> Path | None:
    """The clone in use, made again when the cache was emptied; None where nothing is in use.

    Raises: Unreachable, when it has to be made again and the remote is away.
    """
    url = used(folders)
    if not url:
        return None
    folder = folders.clone_of(url)
    if not (folder / "HEAD").is_file():
        _cloned(folder, checked_url(url, PROTOCOLS))
    return folder


def forget(folders: Folders) -> None:
    """Nothing is in use any more; the clone stays in the cache."""
    folders.mark.unlink(missing_ok=True)


def is_ours(folder: Path, folders: Folders) -> bool:
    """Whether a clone is one that `use` made."""
    return folder.resolve().parent == (folders.cache / "clones").resolve()


def git_of(folder: Path) -> Git:
    """Git on a clone that `use` made, logged in as its user when file contents have to be fetched."""
    return as_person(Git(folder=folder.resolve(), bare=True, protocols=PROTOCOLS))


def _cloned(folder: Path, url: str) -> None:
    """A clone that has the commits and trees of both branches. One that cannot be filled is not left behind."""
    there = (folder / "HEAD").is_file()
    try:
        if not there:
            _made(folder, url)
        git = git_of(folder)
        listed = git.run(
            "ls-remote", "--quiet", "--refs", "origin", *(f"refs/heads/{b}" for b in _BRANCHES), network=True
        )
        found = [line.partition("\t")[2] for line in listed.stdout.decode("utf-8", "replace").splitlines()]
        branches = [branch for branch in _BRANCHES if f"refs/heads/{branch}" in found]
        if _BRANCHES[0] not in branches:
            raise NotFound(
                f"there is no branch {_BRANCHES[0]} at this address", code="NotACluster",
                remedy="Name the repository with cluster-state/ in it.",
            )  # fmt: skip
        specs = [f"+refs/heads/{branch}:refs/remotes/origin/{branch}" for branch in branches]
        git.run(
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--filter=blob:none",
            "origin",
            *specs,
            network=True,
        )
        if git.run("ls-tree", "-d", f"refs/remotes/origin/{_BRANCHES[0]}", "cluster-state").stdout == b"":
            raise UsageError(
                "this repository has no folder cluster-state/", code="NotACluster",
                remedy="Name the cluster's repository, not that of your code.",
            )  # fmt: skip
    except GangOpsError:
        if not there:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _made(folder: Path, url: str) -> None:
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    git = Git(folder=folder, bare=True, protocols=PROTOCOLS)
    git.run("init", "--bare", "--quiet", "--template=", "--initial-branch=unused")
    git.run("symbolic-ref", "HEAD", f"refs/remotes/origin/{_BRANCHES[0]}")  # what HEAD means to a reader here
    for key, value in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.url", url),
        ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.partialCloneFilter", "blob:none"),
    ):
        git.run("config", key, value)
