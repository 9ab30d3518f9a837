"""A person's clone of the cluster repository: where its branches are, and the newest generation in it.

Reads objects only. Nothing is checked out, no hook or filter of the clone runs, and its working tree is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reconciler.errors import GangOpsError, NotFound, StoreError
from reconciler.runtime.generation import Generation, read_generation
from reconciler.runtime.used import Folders, git_of, is_ours
from reconciler.store.branches import in_order
from reconciler.store.objects import find_commit
from reconciler.store.person import as_person
from reconciler.store.runner import Git
from reconciler.store.trees import is_partial

_PROTOCOLS = frozenset({"https", "ssh", "file"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """`git` reads in it; `desired` and `state` are branch names. `is_partial`: what `partial` answers, where it is known."""

    git: Git
    folder: Path
    is_partial: bool | None = None
    desired: str = "main"
    state: str = "allocations"

    def refresh(self) -> str:
        """Fetch both branches from origin; "" when done, else why what is shown may be old."""
        try:
            self.fetch()
        except GangOpsError as err:
            why = err.message.splitlines()[0][:160] if err.message else err.code
            return f"could not fetch: {why} ({err.code})\nwhat follows is what this clone has; `git fetch origin` tries again"
        return ""

    def fetch(self, *, state: bool = True) -> None:
        """Fetch both branches from origin (without `state`, the desired one), logged in as the caller; nothing where
        there is no origin.

        Raises: Unreachable; StoreError (SourceMissing), when the desired branch is not there.
        """
        if not self.url:
            return
        names = (self.desired, *(self._record_specs() if state else ()))
        specs = [f"+refs/heads/{name}:refs/remotes/origin/{name}" for name in names]
        as_person(self.git).run(
            "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "origin", *specs,
            network=True,
        )  # fmt: skip

    @property
    def url(self) -> str:
        """The address of origin; "" where there is none."""
        return self.git.run("config", "--get", "remote.origin.url", accept=(0, 1)).stdout.decode().strip()

    def desired_tip(self) -> str:
        """The newest desired commit here: origin's, never a branch somebody works on. Raises NotFound (DesiredMissing)."""
        found = self.find_desired()
        if found is not None:
            return found
        raise NotFound(f"this clone has no branch {self.desired}", code="DesiredMissing", remedy="git fetch origin")

    def find_desired(self) -> str | None:
        """The newest desired commit here; None when the branch is not."""
        tips = (find_commit(self.git, f"{folder}{self.desired}") for folder in ("refs/remotes/origin/", "refs/heads/"))
        return next((tip for tip in tips if tip is not None), None)

    @property
    def partial(self) -> bool:
        """It was made without the contents of files: what a verb needs is fetched in one request for each tree."""
        return self.is_partial if self.is_partial is not None else is_partial(self.git)

    def _record_specs(self) -> list[str]:
        """The branches of the record: all of them, of which a shallow clone wants the newest alone."""
        if self.git.run("rev-parse", "--is-shallow-repository").stdout.strip() != b"true":
            return [f"{self.state}*"]
        told = as_person(self.git).run(
            "ls-remote", "--quiet", "--refs", "origin", f"refs/heads/{self.state}*", network=True
        ).stdout  # fmt: skip
        rows = (line.partition("\t")[2] for line in told.decode("utf-8", "replace").splitlines())
        return in_order((ref.removeprefix("refs/heads/") for ref in rows), self.state)[-1:]

    def find_state(self) -> str | None:
        """The newest state commit here, in the newest branch of the record; None when there is no state branch."""
        return self._newest_state()[1]

    @property
    def state_branch(self) -> str:
        """The name of the newest branch of the record here; "" when there is none."""
        return self._newest_state()[0]

    def _newest_state(self) -> tuple[str, str | None]:
        folders = ("refs/remotes/origin/", "refs/heads/")
        patterns = [f"{folder}{self.state}*" for folder in folders]
        told = self.git.run("for-each-ref", "--format=%(objecttype) %(objectname) %(refname)", *patterns).stdout
        rows = [line.split(" ", 2) for line in told.decode().splitlines()]
        commits = {ref: oid for kind, oid, ref in rows if kind == "commit"}
        for folder in folders:
            names = in_order((ref.removeprefix(folder) for ref in commits if ref.startswith(folder)), self.state)
            if names:
                return names[-1], commits[f"{folder}{names[-1]}"]
        return "", None

    def state_tip(self) -> str:
        """The newest state commit here. Raises NotFound (StateMissing)."""
        found = self.find_state()
        if found is not None:
            return found
        raise NotFound(
            f"this clone has no branch {self.state}",
            code="StateMissing",
            remedy="`git fetch origin` gets it; where there is no record yet, `gangops init --state` begins one, once",
        )

    def generation(self) -> Generation:
        """The newest generation here. Raises NotFound (StateMissing), StoreError (BadRecord)."""
        return read_generation(self.git, self.state_tip())


def open_clone(folder: Path) -> Clone:
    """Raises NotFound (NotAClone) when no git repository is there."""
    bare = (folder / "HEAD").is_file() and (folder / "objects").is_dir()
    if bare and is_ours(folder, Folders.of_user()):
        return Clone(git=git_of(folder), folder=folder)
    git = Git(folder=folder.resolve(), bare=bare, protocols=_PROTOCOLS)
    try:
        git.run("rev-parse", "--git-dir")
    except StoreError as err:
        raise NotFound(
            f"{folder.absolute()} is not inside a git clone",
            code="NotAClone",
            remedy="run this in a clone of the cluster repository, name one with -C, or `gangops use URL` once",
        ) from err
    # What a clone without contents lacks is fetched as it is read, which takes the login of who reads.
    partial = is_partial(git)
    return Clone(git=as_person(git) if partial else git, folder=folder, is_partial=partial)
