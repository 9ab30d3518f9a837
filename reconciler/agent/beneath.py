"""How is a file opened that must lie beneath a folder, when others can change what lies there? Step by step.

Each step is taken from the folder already held and follows no link, so nothing that is swapped meanwhile leads out.
Shared by agent and shims, so it imports next to nothing.
"""

# Not pathlib: it would double what a shim imports, and there is one shim for each rank.
# ruff: noqa: PTH118

from __future__ import annotations

import errno
import os
from collections.abc import Sequence


def root_of(path: str, roots: Sequence[str]) -> tuple[str, str] | None:
    """The root an absolute path without `..` lies in, the longest if several, and the path from there; else None."""
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or "\0" in path:
        return None
    plain = [part for part in parts if part not in ("", ".")]
    for root in sorted(roots, key=len, reverse=True):
        above = [part for part in root.split("/") if part not in ("", ".")]
        if root.startswith("/") and plain[: len(above)] == above:
            return root, "/".join(plain[len(above) :])
    return None


def open_beneath(root: str, path: str, flags: int) -> int:
    """A descriptor of `path` from `root`, close-on-exec. The root itself may be a link: it is the site's.

    Raises OSError: ELOOP for a link on the way, and whatever opening raises.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise OSError(errno.ELOOP, "a path that leads up", path)
    held = os.open(root, os.O_PATH | os.O_CLOEXEC | (os.O_DIRECTORY if parts else 0))
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
            os.close(held)
            held = below
        if not parts:
            return os.open(f"/proc/self/fd/{held}", flags | os.O_CLOEXEC)
        return os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
    except NotADirectoryError as err:  # what O_DIRECTORY says of a link
        raise OSError(errno.ELOOP, "a link or no folder is on the way", os.path.join(root, path)) from err
    finally:
        os.close(held)


def is_beneath(root: str, path: str) -> bool:
    """Whether no link leads to it from the root or is it. Raises FileNotFoundError when there is nothing."""
    try:
        fd = open_beneath(root, path, os.O_PATH)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    try:
        return os.fstat(fd).st_mode & 0o170000 != 0o120000  # O_PATH with O_NOFOLLOW opens a link itself
    finally:
        os.close(fd)
