"""Which devices does Slurm's `gres.conf` declare, with which files and cores?"""

from __future__ import annotations

import re
from typing import Final

from reconciler.discovery.parsed import Kind, Notes, Parsed, listed, shortened
from reconciler.discovery.slurm_text import Line, Names, lines_of
from reconciler.documents.loader import Tree
from reconciler.model.counting import counted

_MOST_CORES: Final = 8192  # beyond the CPUs of any machine Linux runs on
_COUNT: Final = re.compile(r"([0-9]{1,15})([KMGTP]?)", re.IGNORECASE)
_CORES: Final = re.compile(r"\[?([0-9]{1,6}(?:-[0-9]{1,6})?(?:,[0-9]{1,6}(?:-[0-9]{1,6})?){0,8191})\]?")
_KEYS: Final = {
    "name", "nodename", "type", "file", "count", "cores", "cpus", "links", "flags", "autodetect"
}  # fmt: skip


def parse(text: str) -> Parsed:
    """One entry a line, device files expanded; the AutoDetect of a line of its own is the file's default."""
    notes = Notes()
    names = Names(notes)
    default: str | None = None
    old_key = False
    entries: list[Tree] = []
    for line in lines_of(text, notes):
        if list(line.values) == ["autodetect"]:
            default = line.values["autodetect"]
            continue
        if "cpus" in line.values and not old_key:
            old_key = True
            notes.warn("DEPRECATED_KEY", f"line {line.number}: CPUs is the old name of Cores")
        odd = [key for key in line.values if key not in _KEYS]
        if odd:
            notes.gap("UNKNOWN_KEY", f"line {line.number}: {listed(odd)} not understood")
        if not line.get("name") and not line.get("autodetect"):
            notes.fail("NO_NAME", f"line {line.number} has no Name")
            continue
        entries.append(_entry(line, names, notes))
    if not entries and default is None:
        notes.fail("NO_GRES", "no line such as Name=gpu File=/dev/nvidia[0-7]")
    content: dict[str, Tree] = {"autodetect_default": default, "entries": entries}
    return notes.parsed(Kind.SLURM_GRES, {} if notes.errors else content)


def _entry(line: Line, names: Names, notes: Notes) -> dict[str, Tree]:
    where = f"line {line.number}"
    files = names.of(line.get("file"), where)
    return {
        "name": line.get("name"),
        "nodes": [*names.of(line.get("nodename"), where)] or None,
        "type": line.get("type"),
        "files": [*files] or None,
        "count": _count(line, files, where, notes),
        "cores": _cores(line.get("cores", "cpus"), where, notes),
        "links": line.get("links"),
        "flags": line.get("flags"),
        "autodetect": line.get("autodetect"),
    }


def _count(line: Line, files: list[str], where: str, notes: Notes) -> int | None:
    """What Count says, which must be the number of files where there are any; else that number, or 1."""
    text = line.get("count")
    if text is None:
        return len(files) or (1 if line.get("name") else None)
    count = count_of(text)
    if count is None:
        notes.fail("BAD_COUNT", f"{where}: Count={shortened(text, 40)} is no number")
    elif files and count != len(files):
        notes.fail("COUNT_MISMATCH", f"{where}: Count={count}, but {counted(len(files), 'file')}")
    return count


def count_of(text: str) -> int | None:
    """A count with Slurm's suffix: 4K is 4096. None for what is none."""
    found = _COUNT.fullmatch(text)
    return int(found[1]) * 1024 ** " KMGTP".index(found[2].upper() or " ") if found else None


def _cores(text: str | None, where: str, notes: Notes) -> str | None:
    """Cores as the shortest rising list of ranges, without expanding any."""
    if text is None:
        return None
    found = _CORES.fullmatch(text)
    parts = [part.partition("-") for part in found[1].split(",")] if found else []
    ranges = sorted((int(low), int(high or low)) for low, _, high in parts)
    if not ranges or any(last < first for first, last in ranges):
        notes.gap("BAD_CORES", f"{where}: Cores={shortened(text, 40)} is no list of cores")
        return None
    runs = [list(ranges[0])]
    for first, last in ranges[1:]:
        if first <= runs[-1][1] + 1:
            runs[-1][1] = max(runs[-1][1], last)
        else:
            runs.append([first, last])
    shown = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    if runs[-1][1] >= _MOST_CORES:
        notes.warn("CORES_SUSPECT", f"{where}: {shortened(shown, 40)} exceeds any known node")
    return shown
