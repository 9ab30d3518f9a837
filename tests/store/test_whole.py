"""Files that are replaced as a whole, and what killed writers leave beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.store.whole import write_whole


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path: Path, dead: int) -> None:
    mine = ["documents.cache", f"documents.{os.getppid()}", "documents.bak", f"verdicts.{dead}"]
    for name in (*mine, f"documents.{dead}", f"documents.{2**70}"):
        (tmp_path / name).write_bytes(b"old")
    write_whole(tmp_path / "documents.cache", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(mine)
    assert (tmp_path / "documents.cache").read_bytes() == b"new"


KILLED = """
import os, signal
from pathlib import Path
from reconciler.store.whole import write_whole
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
Path.replace = kill
write_whole(Path(os.environ["FILE"]), b"half")
"""


def test_a_writer_that_is_killed_leaves_the_file_as_it_was_and_the_next_one_tidies_up(tmp_path: Path) -> None:
    file = tmp_path / "state.cache"
    write_whole(file, b"one")
    done = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "FILE": str(file)}, check=False)
    assert done.returncode == -9
    assert (len(list(tmp_path.iterdir())), file.read_bytes()) == (2, b"one")
    write_whole(file, b"two")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"two"]
