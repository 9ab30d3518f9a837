"""Nothing outside of a root is opened, whatever is swapped meanwhile."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from reconciler.agent.beneath import open_beneath, root_of
from reconciler.agent.rank import secrets


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/fs/a/b", ("/fs", "a/b")),
        ("/fs", ("/fs", "")),
        ("/fs/deep/x", ("/fs/deep/", "x")),
        ("/fsx/a", None),
        ("/fs/../etc/shadow", None),
        ("fs/a", None),
        ("", None),
    ],
)
def test_the_root_a_path_lies_in(path: str, found: tuple[str, str] | None) -> None:
    assert root_of(path, ("/fs", "/fs/deep/", "relative")) == found


def test_everything_lies_in_slash() -> None:
    assert root_of("/a//b/./c", ("/",)) == ("/", "a/b/c")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("SECRET=outside\n")
    (tmp_path / "root/a/b").mkdir(parents=True)
    (tmp_path / "root/a/b/file").write_text("SECRET=inside\n")
    (tmp_path / "root/folder-link").symlink_to(tmp_path / "outside")
    (tmp_path / "root/a/file-link").symlink_to(tmp_path / "outside/file")
    (tmp_path / "root/a/inner-link").symlink_to("b")
    return tmp_path / "root"


def test_a_file_beneath_is_opened_and_the_root_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    for start in (root, tmp_path / "alias"):
        fd = open_beneath(str(start), "a/b/file", os.O_RDONLY)
        assert os.read(fd, 100) == b"SECRET=inside\n"
        os.close(fd)


@pytest.mark.parametrize("path", ["folder-link/file", "a/file-link", "a/inner-link/file", "a/../../outside/file", ".."])
def test_no_link_and_no_way_up_is_followed(path: str, root: Path) -> None:
    with pytest.raises(OSError) as caught:
        open_beneath(str(root), path, os.O_RDONLY)
    assert caught.value.errno == errno.ELOOP
    # Not how many: other threads of this process open and close theirs.
    left = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
    assert not [name for name in left if name.startswith(str(root.parent))], "no descriptor is left"


def test_what_is_not_there_is_said_so(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_beneath(str(root), "a/none/file", os.O_RDONLY)


def test_secrets_never_come_from_outside_while_links_are_swapped(root: Path, tmp_path: Path) -> None:
    """A user who owns a folder on the way turns it into a link and back, all the time."""
    ended = threading.Event()

    def swap() -> None:
        way, real, link = root / "a", root / "real", root / "link"
        link.symlink_to(tmp_path / "evil")
        (tmp_path / "evil/b").mkdir(parents=True)
        (tmp_path / "evil/b/file").write_text("SECRET=outside\n")
        while not ended.is_set():
            way.rename(real)
            link.rename(way)
            way.rename(link)
            real.rename(way)

    swapping = threading.Thread(target=swap)
    swapping.start()
    read = refused = 0
    try:
        while read < 200 or (refused < 20 and read < 20_000):
            try:
                assert secrets([[str(root), "a/b/file"]]) == {"SECRET": "inside"}
                read += 1
            except OSError:
                refused += 1
    finally:
        ended.set()
        swapping.join()
    assert refused, "the swapping was never met: this proved nothing"
