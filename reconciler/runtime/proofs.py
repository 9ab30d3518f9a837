"""What proves to a node that its orders are those of a signed commit, for all nodes of one generation.

All nodes ask at once when a generation concerns them all: the tree objects above their files are read together.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

from reconciler.model.units import NodeName
from reconciler.runtime.generation import Generation
from reconciler.store.objects import folders_of
from reconciler.store.runner import Git
from reconciler.wire import Proof


class Proofs:
    """Call it with a node. Raises StoreError when the commit is not at hand, KeyError for a node without orders.

    May be called from several threads: git is asked once.
    """

    def __init__(self, git: Git, generation: Generation) -> None:
        self._git = git
        self._commit = generation.commit
        self._files = generation.node_files
        self.paths = {node_of(path): path for path in generation.node_files}
        self._lock = Lock()
        self._read: tuple[bytes, Mapping[str, bytes]] | None = None

    def __call__(self, node: NodeName) -> Proof:
        """The signed commit, the trees down to the node's folder, the file."""
        path = self.paths[node]
        commit, trees = self._above()
        above = [trees[folder] for folder in _folders(path)]
        return Proof(commitId=self._commit, commit=commit, trees=above, path=path, file=self._files[path])

    def _above(self) -> tuple[bytes, Mapping[str, bytes]]:
        with self._lock:
            if self._read is None:
                folders = sorted({folder for path in self._files for folder in _folders(path)})
                self._read = folders_of(self._git, self._commit, folders)
            return self._read


def _folders(path: str) -> list[str]:
    """The folders a file lies in, from the root down."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]


def node_of(path: str) -> NodeName:
    """The node whose orders lie at this path."""
    return NodeName(path.rpartition("/")[2].removesuffix(".json"))
