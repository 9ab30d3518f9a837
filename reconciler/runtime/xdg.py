"""Where does a user keep what is theirs? As the XDG Base Directory Specification has it: a path that is not absolute is
as good as none.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """The folder of what can be made again."""
    return _home("XDG_CACHE_HOME", ".cache")


def config_home() -> Path:
    """The folder of settings."""
    return _home("XDG_CONFIG_HOME", ".config")


def _home(variable: str, otherwise: str) -> Path:
    said = os.environ.get(variable, "")
    if os.path.isabs(said):  # noqa: PTH117  "" is no path
        return Path(said)
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  who has no home is no error
    return (home if home.is_absolute() else Path("/")) / otherwise
