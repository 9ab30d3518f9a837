"""What proves to a node that its orders are those of a signed commit, for all nodes of one generation.

The tree objects above a node's file are the same for every node of its rack: they are read once a rack.
"""

from __future__ import annotations

from reconciler.model.units import NodeName
from reconciler.runtime.generation import Generation
from reconciler.store.objects import path_proof
from reconciler.store.runner import Git
from reconciler.wire import Proof


class Proofs:
    """Call it with a node. Raises StoreError when the commit is not at hand, KeyError for a node without orders.

    May be called from several threads: at worst a rack is read twice.
    """

    def __init__(self, git: Git, generation: Generation) -> None:
        self._git = git
        self._commit = generation.commit
        self._files = generation.node_files
        self.paths = {node_of(path): path for path in generation.node_files}
        self._above: dict[str, tuple[bytes, tuple[bytes, ...]]] = {}

    def __call__(self, node: NodeName) -> Proof:
        """The signed commit, the trees down to the node's folder, the file."""
        path = self.paths[node]
        folder = path.rpartition("/")[0]
        above = self._above.get(folder)
        if above is None:
            raw, trees, _ = path_proof(self._git, self._commit, path)
            above = self._above[folder] = raw, trees
        return Proof(commitId=self._commit, commit=above[0], trees=list(above[1]), path=path, file=self._files[path])


def node_of(path: str) -> NodeName:
    """The node whose orders lie at this path."""
    return NodeName(path.rpartition("/")[2].removesuffix(".json"))
