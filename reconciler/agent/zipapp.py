"""How does the agent get onto a node? As one file that any Python from 3.10 on runs, with nothing installed."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

_SHEBANG = b"#!/usr/bin/env -S python3 -I -S\n"
_MAIN = "import sys\nfrom reconciler.agent.__main__ import main\nsys.exit(main())\n"
_SHARED = ("__init__.py", "errors.py", "wire.py")


def build_zipapp(target: Path) -> Path:
    """Write the agent to `target`, executable, replacing it at once; the same sources give the same bytes."""
    package = Path(__file__).parent.parent
    sources = [package / name for name in _SHARED] + sorted((package / "agent").glob("*.py"))
    fresh = target.with_name(target.name + ".new")
    with fresh.open("wb") as file:
        file.write(_SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_entry("__main__.py"), _MAIN)
            for source in sources:
                archive.writestr(_entry(f"reconciler/{source.relative_to(package).as_posix()}"), source.read_bytes())
        file.flush()
        os.fsync(file.fileno())
    fresh.chmod(0o755)
    # A running agent has read all it needs but the shim: it finds the new one, which speaks the same files.
    fresh.replace(target)
    return target


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry
