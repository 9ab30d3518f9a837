"""Where can a test kill us? At a few named lines between deciding and acting (promise 7, "nothing lost").

`GANGOPS_FAILPOINT=<name>` ends the process there as kill -9 would: no clean-up, no buffers written, exit status
137. Names: `before-commit` (nothing written), `after-commit` (the commit exists here alone), `after-push` (the
remote has it, its answer was not read), `after-push-response` (known to be published, not yet remembered).
Unset, it costs one look-up.
"""

from __future__ import annotations

import os
from typing import Literal

VARIABLE = "GANGOPS_FAILPOINT"
KILLED = 137
Failpoint = Literal["before-commit", "after-commit", "after-push", "after-push-response"]


def reach(name: Failpoint) -> None:
    """Ends the process when this is the failpoint asked for."""
    if os.environ.get(VARIABLE) == name:
        os._exit(KILLED)
