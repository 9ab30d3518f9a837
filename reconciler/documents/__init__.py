"""Documents: the boundary between people's YAML and the values the core works with.

Here belongs what reads, checks, converts and writes documents: the strict loader, the schema models,
conversion to values, lint across documents, the one writer of canonical bytes, edits that keep
comments, and the small notations (durations, sizes, host lists). ruamel.yaml, pydantic and
ClusterShell stop here. Not here: git, the network, the file system, and any decision.
"""
