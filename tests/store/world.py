"""Real git, isolated from whoever runs the tests: bare remotes, trees made by plumbing, keys of our own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reconciler.store.mirror import Branches, Mirror, Remote
from reconciler.store.runner import Git
from reconciler.store.statecommit import Message, Writer, build, build_on

LOCAL = frozenset({"file"})
STATE = "refs/heads/allocations"
MAIN = "refs/heads/main"
NOW = 1_767_225_600_123_456_789  # 2026-01-01T00:00:00.123456789Z

File = bytes | tuple[str, bytes | str]  # content; or mode with content, or mode with object id


def git(folder: Path, *arguments: str, stdin: bytes = b"", status: int = 0) -> bytes:
    """Plain git, run independently of the code under test."""
    done = subprocess.run(["git", *arguments], cwd=folder, input=stdin, capture_output=True, check=False)
    assert done.returncode == status, done.stderr.decode()
    return done.stdout


def text(folder: Path, *arguments: str) -> str:
    """Like `git`, as stripped text."""
    return git(folder, *arguments).decode().strip()


@dataclass
class Repository:
    """A bare repository that commits can be planted in, whatever their modes and names."""

    path: Path

    @property
    def url(self) -> str:
        return str(self.path)

    @property
    def git(self) -> Git:
        return Git(folder=self.path, bare=True, protocols=LOCAL)

    def commit(self, files: Mapping[str | bytes, File], *, ref: str = MAIN, parent: str | None = None) -> str:
        """A commit with exactly these files, made the tip of `ref` by force."""
        stream = [b"commit refs/heads/planted\ncommitter T <t@t> 1000 +0000\ndata 1\nx"]
        stream += [f"from {parent}\n".encode()] if parent else []
        stream += [b"deleteall\n"]
        for name, file in files.items():
            raw = name if isinstance(name, bytes) else name.encode()
            mode, content = file if isinstance(file, tuple) else ("100644", file)
            if isinstance(content, str):
                stream.append(f"M {mode} {content} ".encode() + raw + b"\n")
            else:
                stream.append(
                    f"M {mode} inline ".encode() + raw + f"\ndata {len(content)}\n".encode() + content + b"\n"
                )
        git(self.path, "fast-import", "--quiet", "--force", "--date-format=raw", stdin=b"".join(stream))
        made = text(self.path, "rev-parse", "refs/heads/planted")
        git(self.path, "update-ref", "-d", "refs/heads/planted")
        git(self.path, "update-ref", ref, made)
        return made

    def tip(self, ref: str = STATE) -> str | None:
        """The tip of a ref, or None."""
        done = subprocess.run(
            ["git", "rev-parse", "--verify", "-q", ref], cwd=self.path, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() or None

    def hook(self, name: str, script: str) -> None:
        """A hook of the server."""
        path = self.path / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


@dataclass
class Desk:
    """One reconciler's place of work: its clone, its key, and short ways to build state commits."""

    mirror: Mirror
    writer: Writer

    def first(self, desired: str, **trailers: str) -> str:
        """The first state commit of a branch."""
        files = {"allocation/summary.yaml": b"generation: 0\n"}
        return build(
            self.mirror.git, files, parent=None, desired=desired, message=message(0, **trailers), at=NOW,
            writer=self.writer,
        )  # fmt: skip

    def next(
        self, parent: str, desired: str, generation: int, changes: Mapping[str, bytes | None] | None = None
    ) -> str:
        """A state commit on top of `parent`."""
        files = changes or {"allocation/summary.yaml": f"generation: {generation}\n".encode()}
        return build_on(
            self.mirror.git, files, parent=parent, desired=desired, message=message(generation), at=NOW,
            writer=self.writer,
        )  # fmt: skip


def message(generation: int, **more: str) -> Message:
    """The message of a state commit with its trailers."""
    trailers = {"Generation": str(generation), "Epoch": "1", "Cluster-Id": "lab", **more}
    return Message(subject=f"Generation {generation}", body="nlp/llama: placed", trailers=trailers)


def new_repository(path: Path) -> Repository:
    """A bare repository at `path`."""
    path.mkdir(parents=True)
    git(path, "init", "-q", "--bare", "-b", "main", "--template=")
    return Repository(path)


def new_mirror(folder: Path, remote: Repository, patience: float = 30) -> Mirror:
    """A mirror of one remote, opened."""
    place = Remote(url=remote.url)
    mirror = Mirror(folder, Branches(source=place, record=place), protocols=LOCAL, patience=patience)
    mirror.open()
    return mirror
