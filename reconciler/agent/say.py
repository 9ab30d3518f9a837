"""What does a person see of an agent? One calm line an event, on stderr."""

from __future__ import annotations

import sys
import time


class Voice:
    """Speaks for one node. A line that was just said is not said again."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._last = ""

    def __call__(self, line: str) -> None:
        if line == self._last:
            return
        self._last = line
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        print(f"{now} gangops-agent[{self.node}]: {line}", file=sys.stderr, flush=True)  # noqa: T201 - its only output
