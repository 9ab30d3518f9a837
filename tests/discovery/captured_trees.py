"""Captured machines, each kept as one text file: `path = content`, `path -> target of a link`, then tools' outputs."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "captured"


def unpack(name: str, into: Path) -> Path:
    """The captured tree as a folder that `gangops discover --root` reads."""
    output: Path | None = None
    for line in (FOLDER / f"{name}.tree").read_text().split("\n"):
        if line.startswith("== "):
            output = into / line[3:]
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text("")
        elif output is not None:
            with output.open("a") as file:
                file.write(f"{line}\n")
        elif " = " in line and not line.startswith("#"):
            path, _, content = line.partition(" = ")
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).write_text(f"{content}\n")
        elif " -> " in line:
            path, _, target = line.partition(" -> ")
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).symlink_to(target)
    return into
