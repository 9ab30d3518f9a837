"""How the verbs that look into a job are told where to come in, and as whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from reconciler.runtime.visiting import Door

_Command = TypeVar("_Command", bound=Callable[..., Any])


def door_options(command: _Command) -> _Command:
    """`--server`, `--ca`, `--key` and `--node`."""
    options = (
        click.option("--server", envvar="GANGOPS_SERVER", default=None, help="https://HOST:PORT of agents.visits."),
        click.option(
            "--ca",
            "authority",
            envvar="GANGOPS_CA",
            type=click.Path(path_type=Path),
            help="Certificate of the node CA.",
        ),
        click.option(
            "--key",
            envvar="GANGOPS_KEY",
            type=click.Path(path_type=Path),
            help="Your SSH key (default: git's signingKey, else ~/.ssh/id_ed25519).",
        ),
        click.option("--node", default="", help="Ask this node (default: where the job is, or was)."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def door_of(server: str | None, authority: Path | None, key: Path | None, repo: Path) -> Door:
    """Raises UsageError (NoDoor)."""
    from reconciler.runtime.visiting import door_of as found  # aiohttp is not for who only asks for help

    return found(server, authority, key, repo)
