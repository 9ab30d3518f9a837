"""How does a machine travel to someone who has to look into it? As a folder of just the files that discovery reads.

Written by looking once and keeping what was asked for and what came back; nothing else of the machine is in it, and
no file of it is one that needs a secret kept (names of hosts, switches and interfaces are).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from reconciler.discovery.live.machine import look
from reconciler.discovery.live.source import TOOLS, Source
from reconciler.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept(Source):
    """A source that remembers its answers."""

    texts: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def text(self, path: str) -> str:
        found = self.texts[path] = Source.text(self, path)
        return found

    def names(self, path: str) -> list[str]:
        found = Source.names(self, path)
        self.folders.update(f"{path}/{name}" for name in found)
        return found

    def resolved(self, path: str) -> str:
        found = Source.resolved(self, path)
        if found and found != path:
            self.links[path] = found
        return found


def capture(source: Source, into: Path) -> int:
    """Write what discovery reads of the source into a new folder; how many files that are.

    Raises: UsageError (FolderNotEmpty), when something is there.
    """
    if into.exists() and any(into.iterdir()):
        raise UsageError(f"{into} is not empty", code="FolderNotEmpty", remedy="name a folder that does not exist yet")
    # Tools are asked even where the library would answer: that is all the other side can have.
    outputs = {tool: source.output(tool) for tool in TOOLS}
    (into / "outputs").mkdir(parents=True, exist_ok=True)
    for tool, text in outputs.items():
        (into / "outputs" / f"{tool}.txt").write_text(text)
    kept = _Kept(root=source.root, captured=source.captured)
    look(kept)
    for path, target in sorted(kept.links.items()):
        (into / target).mkdir(parents=True, exist_ok=True)
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        if not (into / path).exists():
            (into / path).symlink_to(os.path.relpath(into / target, (into / path).parent.resolve()))
    texts = {path: text for path, text in kept.texts.items() if text}
    for path, text in sorted(texts.items()):
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_text(f"{text}\n")
    for path in sorted(kept.folders):  # where only the name was asked for, the name is what has to be there
        if not (into / path).exists():
            (into / path).mkdir(parents=True)
    return len(outputs) + len(texts)
