"""GangOps: a GitOps reconciler for GPU clusters.

What this package exports is supported; every other name may change between releases. It imports
nothing but the standard library, because the node agent, which runs as root on GPU nodes, is
part of it.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
