"""Where do the facts come from: this machine, or a folder somebody captured from another one?

A capture is a folder with `sys/` as on the machine and `outputs/NAME.txt` with what each tool printed. Nothing of
the machine it is replayed on is looked at. Reading never fails: what is not there is empty.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SECONDS: Final = 20
"""How long a tool may take."""
_MOST: Final = 8 << 20  # bytes of one answer

TOOLS: Final = {
    "hostname": ("uname", "-n"),
    "nvidia-smi-gpus": (
        "nvidia-smi",
        "--query-gpu=index,uuid,name,memory.total,pci.bus_id,driver_version",
        "--format=csv,noheader,nounits",
    ),
    "nvidia-smi-topo": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-nvlink": ("nvidia-smi", "nvlink", "--status"),
    "nvidia-smi-query": ("nvidia-smi", "-q"),
    "lldpctl": ("lldpctl", "-f", "json0"),
}
"""What is asked, by the name its answer has in a capture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A machine to look at. `captured` tells that `root` is a capture and no program may be run."""

    root: Path = Path("/")
    captured: bool = False

    def text(self, path: str) -> str:
        """A small file below /sys, stripped; "" when it is not there or says nothing."""
        try:
            with (self.root / path).open("rb") as file:
                return file.read(1 << 16).decode("utf-8", "replace").strip()
        except (OSError, ValueError):
            return ""

    def number(self, path: str, unknown: int) -> int:
        """The whole number that a file holds, `unknown` when it holds anything else."""
        said = self.text(path)
        return int(said) if re.fullmatch(r"[0-9]{1,9}", said) else unknown

    def names(self, path: str) -> list[str]:
        """What a folder holds, sorted; [] when it is not there."""
        try:
            return sorted(entry.name for entry in (self.root / path).iterdir())
        except (OSError, ValueError):
            return []

    def resolved(self, path: str) -> str:
        """Where a path leads, from the root of the machine; "" when that is nowhere."""
        try:
            found, root = (self.root / path).resolve(), self.root.resolve()
            return str(found.relative_to(root)) if found.exists() and found.is_relative_to(root) else ""
        except (OSError, RuntimeError, ValueError):  # a link to itself, a name of no file system
            return ""

    def output(self, tool: str) -> str:
        """What one of `TOOLS` prints; "" when it is missing, fails or takes too long."""
        if self.captured:
            try:
                content = (self.root / "outputs" / f"{tool}.txt").read_bytes()[:_MOST]
            except OSError:
                return ""
            return content.decode("utf-8", "replace")
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
        try:
            done = subprocess.run(
                TOOLS[tool],
                capture_output=True,
                timeout=SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout[:_MOST].decode("utf-8", "replace") if done.returncode == 0 else ""
