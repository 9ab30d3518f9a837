"""One live page from one commit: run as a process of its own, so that drawing never takes a turn from the loop.

`python -m reconciler.runtime.live_render CLONE COMMIT [job|node NAME]` prints the page; exit 3 when there is no such job
or node. What is asked for, and when, is for `live`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from reconciler.errors import ExitStatus, GangOpsError, StoreError
from reconciler.model.units import DAY, Instant, JobKey, NodeName
from reconciler.planner.requested import as_requested
from reconciler.render.page import html_page
from reconciler.runtime.audit.index import indexed
from reconciler.runtime.audit.picture import picture
from reconciler.runtime.generation import read_generation
from reconciler.runtime.live_detail import Shown, job_detail, node_detail
from reconciler.runtime.reading import DesiredReader
from reconciler.store.runner import Git

_SHOWN = 7 * DAY
_SEAL = "A live page proves nothing: `gangops audit verify` does."


def rendered(folder: Path, commit: str, kind: str, name: str, now: Instant) -> str | None:
    """The page of the cluster (`kind` ""), of a job or of a node, as of a state commit; None when there is none.

    Raises StoreError.
    """
    git = Git(folder=folder, bare=True, protocols=frozenset())
    current = read_generation(git, commit)
    read = DesiredReader(git).recorded(commit, current.summary.desired_commit, current.frozen)
    if read.desired is None:
        raise StoreError("the desired state of this generation cannot be read", code="BadRecord")
    desired = as_requested(read.desired, current.observed.requests, now)
    index = indexed(git, commit)
    shown = Shown(git, index, current, desired, now)
    if kind == "job":
        return job_detail(shown, JobKey(name))
    if kind == "node":
        return node_detail(shown, NodeName(name))
    first, last = index.commits["at"][0], index.commits["at"][-1]
    end = Instant(max(now, last))
    page = picture(
        git, index, current, desired, since=Instant(max(first, end - _SHOWN)), until=end, made=now, seal=_SEAL, sealed=None,
    )  # fmt: skip
    return html_page(page, live=True)


def main(folder: str, commit: str, kind: str = "", name: str = "") -> int:
    """Print the page on standard output."""
    os.nice(10)
    try:
        page = rendered(Path(folder), commit, kind, name, Instant(time.time_ns()))
    except GangOpsError as err:
        sys.stderr.write(f"{err.code}: {err.message}\n")
        return ExitStatus.ERROR
    if page is None:
        return ExitStatus.NOT_FOUND
    sys.stdout.buffer.write(page.encode())
    return ExitStatus.OK


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
