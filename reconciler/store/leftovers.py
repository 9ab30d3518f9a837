"""Does a git process still work in this clone? Only when none does is a lock file a leftover of a crash.

Removing what is left over is the mirror's part.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from reconciler.store.runner import NETWORK_SECONDS as LONGEST_COMMAND_SECONDS


def git_at_work(folder: Path) -> bool:
    """Whether a git process runs in this clone; judged by its arguments, environment and working directory.

    Where the system does not tell (no /proc), a clone with a lock younger than our longest command counts as busy.
    """
    if not Path("/proc/self/cmdline").exists():
        newest = max((path.stat().st_mtime for path in folder.rglob("*.lock")), default=0.0)
        return time.time() - newest < LONGEST_COMMAND_SECONDS
    return any(_works_in(entry, os.fsencode(folder)) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _works_in(entry: Path, folder: bytes) -> bool:
    try:
        if not (entry / "comm").read_text().startswith("git"):
            return False
        if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        said = (entry / "cmdline").read_bytes().split(b"\0") + (entry / "environ").read_bytes().split(b"\0")
        where = os.fsencode((entry / "cwd").readlink())
    except OSError:
        return False
    named = {folder, b"--git-dir=" + folder, b"GIT_DIR=" + folder}
    return bool(named & set(said)) or where == folder or where.startswith(folder + b"/")
