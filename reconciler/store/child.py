"""How is a child process run? Without a shell or terminal, within a time limit, and it dies as a whole.

What to run and what its words mean is left to `runner` (git) and `signatures` (ssh-keygen).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from reconciler.errors import StoreError


def program(name: str, *, package: str) -> str:
    """The absolute path of a program. Raises StoreError(GitMissing) naming the package to install."""
    found = shutil.which(name)
    if found is None:
        raise StoreError(f"{name} is not installed", code="GitMissing", remedy=f"Install the package {package}.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child process ended; `cut` when it printed more than it was allowed to."""

    status: int
    stdout: bytes
    stderr: str
    timed_out: bool = False
    cut: bool = False


def run_bounded(
    command: list[str], environment: Mapping[str, str], *, stdin: bytes, seconds: float, at_most: int | None = None
) -> Ended:
    """One child process in a session of its own, so that it has no terminal to ask on and dies as a whole.

    `at_most` bounds standard output in bytes, for commands that are given no standard input.
    Raises StoreError(GitFailed) when it cannot be started.
    """
    try:
        child = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as err:
        raise StoreError(f"{command[0]} could not be started: {err.strerror}") from err
    try:
        if at_most is None:
            stdout, stderr = child.communicate(stdin or None, timeout=seconds)
            return Ended(status=child.returncode, stdout=stdout, stderr=stderr.decode("utf-8", "replace"))
        return _read_at_most(child, at_most, seconds)
    except subprocess.TimeoutExpired:
        return Ended(status=-1, stdout=b"", stderr="", timed_out=True)
    finally:
        _end(child)


def _read_at_most(child: subprocess.Popen[bytes], at_most: int, seconds: float) -> Ended:
    """Reads standard output up to the limit; the clock and standard error are watched beside it."""
    assert child.stdout is not None
    assert child.stderr is not None
    stderr = child.stderr
    complaints: list[bytes] = []
    rang = threading.Event()

    def ring() -> None:
        rang.set()
        _kill_group(child.pid)

    listener = threading.Thread(target=lambda: complaints.append(stderr.read()), daemon=True)
    clock = threading.Timer(seconds, ring)
    listener.start()
    clock.start()
    stdout = child.stdout.read(at_most + 1)
    cut = len(stdout) > at_most
    if cut:
        _kill_group(child.pid)
    listener.join()
    status = child.wait()
    clock.cancel()
    clock.join()  # a thread that is still ending would keep the caller from making a copy of itself
    words = b"".join(complaints).decode("utf-8", "replace")
    whole = not cut and not rang.is_set()
    return Ended(status=status, stdout=stdout if whole else b"", stderr=words, timed_out=rang.is_set(), cut=cut)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Whatever happened, nothing of the child's session is left when it did not end by itself."""
    if child.poll() is None:
        _kill_group(child.pid)
        child.wait()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
