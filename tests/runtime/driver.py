"""A reconciler in a process of its own, so that it can be killed: `python -m tests.runtime.driver FOLDER`.

Does one round over the pretended nodes kept in FOLDER/nodes, and keeps them there again. A failpoint in the
environment ends it in the middle, as kill -9 would.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from reconciler.runtime.notices.hooks import Webhook
from reconciler.store.signatures import Signer
from reconciler.store.statecommit import Writer
from tests.engines.fake import FakeClock, FakeCluster
from tests.runtime.lab import Lab
from tests.store.world import Repository

HOOK = "GANGOPS_TEST_HOOK"
"""In the environment: the address of somebody who is to be told."""


def one_round(folder: Path) -> int:
    """The generation committed, 0 for none."""
    clock, cluster = load(folder)
    writer = Writer(identity="gangops <gangops@lab>", signer=Signer(key=folder / "signing"))
    lab = Lab(folder=folder, remote=Repository(folder / "remote.git"), writer=writer, clock=clock)
    hooks = [Webhook(url=url, secret=folder / "secret", now=clock.now)] if (url := os.environ.get(HOOK)) else []
    desk = lab.desk("one", cluster, hooks)
    done = desk.round()
    save(folder, clock, cluster)
    return done.generation.summary.generation if done.committed else 0


def save(folder: Path, clock: FakeClock, cluster: FakeCluster) -> None:
    (folder / "nodes").write_bytes(pickle.dumps((clock, cluster)))


def load(folder: Path) -> tuple[FakeClock, FakeCluster]:
    clock, cluster = pickle.loads((folder / "nodes").read_bytes())  # what `save` wrote a moment ago
    assert isinstance(clock, FakeClock)
    assert isinstance(cluster, FakeCluster)
    return clock, cluster


if __name__ == "__main__":
    print(one_round(Path(sys.argv[1])))
