"""Paths as git prints them in lines: whatever bytes a name has, it is read back."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from reconciler.store.walk import unquoted
from tests.store.world import git, new_repository

NAME = st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name and b"/" not in name)


def test_every_name_comes_back(tmp_path: Path) -> None:
    """Every byte a name can have, as real git prints it."""
    repository = new_repository(tmp_path / "remote.git")
    names = [bytes([byte]) + b" x" for byte in range(1, 256) if byte != ord("/")]
    names += [b'"', b'a"b', b"\\", b"\\\\101", b"a\\nb", "für alle.md".encode()]
    blob = git(repository.path, "hash-object", "-w", "--stdin", stdin=b"x").strip()
    rows = b"".join(b"100644 blob " + blob + b"\t" + name + b"\0" for name in names)
    tree = git(repository.path, "mktree", "-z", stdin=rows).decode().strip()
    told = repository.git.run("ls-tree", "--name-only", tree).stdout.split(b"\n")[:-1]
    assert sorted(map(unquoted, told)) == sorted(names)


@given(NAME)
def test_what_is_not_quoted_is_left_alone(name: bytes) -> None:
    plain = b"a" + name
    assert unquoted(plain) == plain
