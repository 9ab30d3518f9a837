"""Which device files belong to which GPU, and which are the others'? What the NVIDIA driver shows below /proc.

Nothing is found on a machine without that driver; then nothing is given and nothing closed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Sequence
from pathlib import Path

_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps", "nvidia-caps-imex-channels")
"""What every CUDA program opens besides its GPUs."""
_FABRIC = ("infiniband", "gdrdrv")
_UUID = re.compile(r"^GPU UUID:\s*(\S+)", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)", re.MULTILINE)


def minors(root: Path = Path("/")) -> dict[str, int]:
    """The number N of /dev/nvidiaN of each GPU, by UUID. It need not be the GPU's index."""
    found: dict[str, int] = {}
    for path in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        try:
            text = path.read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        uuid, minor = _UUID.search(text), _MINOR.search(text)
        if uuid and minor:
            found[uuid[1]] = int(minor[1])
    return found


def files_of(uuids: Sequence[str], root: Path = Path("/")) -> tuple[str, ...]:
    """Device files a process with these GPUs opens, as far as they exist; () when one of its GPUs is not known."""
    known = minors(root)
    if not uuids or not all(uuid in known for uuid in uuids):
        return ()
    names = [*(f"nvidia{known[uuid]}" for uuid in uuids), *_SHARED, *_FABRIC]
    return tuple(f"/dev/{name}" for name in names if (root / "dev" / name).exists())


def others(uuids: Collection[str], root: Path = Path("/")) -> tuple[str, ...]:
    """`c MAJOR:MINOR` of every GPU's device file but these, for the devices controller."""
    found = []
    for uuid, minor in sorted(minors(root).items(), key=lambda known: known[1]):
        if uuid not in uuids:
            try:
                status = (root / "dev" / f"nvidia{minor}").stat()
            except OSError:
                continue
            if stat.S_ISCHR(status.st_mode):
                found.append(f"c {os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
    return tuple(found)
