"""How does a file that others read at any time change? As a whole: written beside itself, then put in its place.

What goes into such a file, and whether it is believed, is left to those who keep it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(file: Path, content: bytes) -> None:
    """Replace a file at once. What writers that were killed left beside it goes. Raises OSError."""
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(file)
    for left in file.parent.glob(f"{file.stem}.*"):
        process = left.suffix[1:]
        if left != file and process.isascii() and process.isdecimal() and not _lives(int(process)):
            with contextlib.suppress(OSError):
                left.unlink()


def _lives(process: int) -> bool:
    """Whether there is such a process. Another machine's, over a shared file system, is taken for dead: it only writes anew."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return process != os.getpid()
