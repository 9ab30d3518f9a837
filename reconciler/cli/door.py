"""How the verbs that look into a job are told where to come in, and as whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reconciler.errors import GangOpsError
from reconciler.model.units import JobKey

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


@contextmanager
def refusals_explained(repo: Path, job: str) -> Iterator[None]:
    """Says of a refusal for not holding JOB who does, as the record of the clone at hand has it.

    The door itself does not: it does not know yet who asks. Raises NotAdmitted.
    """
    from reconciler.runtime.visiting import NotAdmitted

    try:
        yield
    except NotAdmitted as err:
        if err.code != "NotHeld" or (told := _holders(repo, job)) is None:
            raise
        raise NotAdmitted(f"{err.message}\n  {job}: {told[0]}", code=err.code, remedy=told[1]) from err


def _holders(repo: Path, job: str) -> tuple[str, str] | None:
    """Who holds the job and what lets others in; None where no clone knows."""
    from reconciler.cli.show import desired_at
    from reconciler.documents.holders import holders_told
    from reconciler.runtime.clone import open_clone

    try:
        clone = open_clone(repo)
        clone.refresh()
        generation = clone.generation()
        return holders_told(JobKey(job), desired_at(clone, generation), generation.observed)
    except GangOpsError:
        return None


def door_of(server: str | None, authority: Path | None, key: Path | None, repo: Path) -> Door:
    """Raises UsageError (NoDoor)."""
    from reconciler.runtime.visiting import door_of as found  # aiohttp is not for who only asks for help

    return found(server, authority, key, repo)
