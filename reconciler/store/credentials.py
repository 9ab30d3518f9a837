"""How does git get the token without anyone seeing it? Through a small program that reads a file.

The token stands in no argument, configuration, environment or message: git asks the askpass program, and that
reads the file at that moment, so that a renewed token works at the next attempt. Running git is left to `runner`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from reconciler.store.names import url_origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token in a file, offered to one server alone and read again at every attempt.

    Only the path travels: git asks the askpass program, and that reads the file. `username` is what the
    forge wants beside a token (any word will do for most).
    """

    token_file: Path
    askpass: Path
    origin: str
    username: str = "git"

    @classmethod
    def for_url(cls, url: str, *, token_file: Path, folder: Path, username: str = "git") -> Credentials:
        """Credentials for the server of `url`; writes the askpass program into `folder`."""
        return cls(token_file=token_file, askpass=write_askpass(folder), origin=url_origin(url), username=username)

    def secrets(self) -> tuple[str, ...]:
        """What must never be shown: the token as the file holds it now; empty when it cannot be read."""
        try:
            return tuple(line.strip() for line in self.token_file.read_text("utf-8", "replace").splitlines()[:1])
        except OSError:
            return ()


# `printf` and `read` are built into every sh: the token is never an argument of a process.
_ASKPASS = """#!/bin/sh
case "$1" in
  "Username for '$GANGOPS_ASKPASS_ORIGIN': ") printf '%s\\n' "$GANGOPS_ASKPASS_USER" ;;
  "Password for '"*"@${GANGOPS_ASKPASS_ORIGIN#*://}': ")
    IFS= read -r token < "$GANGOPS_ASKPASS_FILE" || [ -n "$token" ] || exit 1
    printf '%s\\n' "$token" ;;
  *) exit 1 ;;
esac
"""


def write_askpass(folder: Path) -> Path:
    """The program git asks for user name and token, written into `folder`; it holds no secret itself."""
    path = folder / "askpass"
    if not path.exists() or path.read_text() != _ASKPASS:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f"askpass.{os.getpid()}"
        fresh.write_text(_ASKPASS)
        fresh.chmod(0o700)
        fresh.replace(path)
    return path
