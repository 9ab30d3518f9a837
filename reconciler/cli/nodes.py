"""`cordon`, `uncordon`, `drain`, `quota set`: what platform engineers change, by pull request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reconciler.cli import completing
from reconciler.cli.propose import Wishes, is_terminal, propose, proposing, reason_option
from reconciler.cli.requesting import at_once
from reconciler.cli.show import now
from reconciler.cli.times import moment
from reconciler.errors import UsageError
from reconciler.model.request import LONGEST
from reconciler.model.units import SECOND, Instant

if TYPE_CHECKING:
    from reconciler.runtime.proposals.requesting import Asking

nodes_argument = click.argument("nodes", nargs=-1, required=True, shell_complete=completing.nodes)
why_option = click.option("-r", "--reason", default="", help="Why: people and `gangops explain` read it.")


@click.command()
@nodes_argument
@at_once()
@why_option
@proposing
@click.pass_obj
def cordon(
    repo: Path, nodes: tuple[str, ...], reason: str, *, now_as: Callable[..., Asking | None], wishes: Wishes
) -> int:  # fmt: skip
    """Propose that NODES (names or hostlists) take no new work; what runs there goes on. With --now that counts at once."""
    from reconciler.runtime.proposals import nodes as editing

    why = _reason(reason)
    return propose(repo, wishes, lambda desk: editing.cordon(desk, nodes, why), now_as("cordon", why, nodes=nodes))


@click.command()
@nodes_argument
@proposing
@click.pass_obj
def uncordon(repo: Path, nodes: tuple[str, ...], *, wishes: Wishes) -> int:
    """Propose that NODES (names or hostlists) take work again: their cordons and drains go."""
    from reconciler.runtime.proposals import nodes as editing

    return propose(repo, wishes, lambda desk: editing.uncordon(desk, nodes, now()))


@click.command()
@nodes_argument
@why_option
@click.option("--for", "span", default="", help="They come back after this, such as 4h.")
@click.option("--until", default="", help='They come back then, such as "2026-12-03T10:00Z".')
@click.option("--how", type=click.Choice(["checkpoint", "wait", "kill"]), default="checkpoint", show_default=True,
              help="How jobs leave: saving their work, by ending, or at once.")  # fmt: skip
@at_once("")
@proposing
@click.pass_obj
def drain(
    repo: Path, nodes: tuple[str, ...], reason: str, span: str, until: str, how: str, *,
    now_as: Callable[..., Asking | None], wishes: Wishes,
) -> int:  # fmt: skip
    """Propose that what runs on NODES (names or hostlists) leaves, and nothing new starts there.

    Without an end they stay empty until `gangops uncordon`. With --now they are drained at once, by their checkpoints,
    until that end or for 24h at most; then the lasting change has to be merged.
    """
    from reconciler.runtime.proposals import nodes as editing

    why, at = _reason(reason), now()
    end = _end(span, until, at)
    lasts = f"{min(end - at, LONGEST) // SECOND}s" if end is not None and end > at else "24h"
    asking = now_as("drain", why, lasts, nodes=nodes)
    return propose(repo, wishes, lambda desk: editing.drain(desk, nodes, why, at, until=end, how=how), asking)


def _reason(said: str) -> str:
    if said.strip():
        return said
    if not is_terminal():
        raise UsageError("a reason is needed", code="ReasonMissing", remedy="such as --reason 'XID 79, DC-881'")
    asked: str = click.prompt("Reason", err=True)
    return asked


def _end(span: str, until: str, at: Instant) -> Instant | None:
    from reconciler.documents.quantities import parse_duration

    if span and until:
        raise UsageError("--for and --until are two ways to say one thing", code="BadTime", remedy="give one of them")
    try:
        return Instant(at + parse_duration(span)) if span else moment(until) if until else None
    except ValueError as err:
        raise UsageError(f"--for: {err}", code="BadDuration", remedy="such as --for 4h") from err


@click.group()
def quota() -> None:
    """What queues are guaranteed, and what they may hold."""


@quota.command("set")
@click.argument("queue", shell_complete=completing.queues)
@click.argument("counts", nargs=-1)
@click.option(
    "--guaranteed", multiple=True, metavar="TYPE=N", help="GPUs that are its own; the same as without a name."
)
@click.option("--ceiling", multiple=True, metavar="TYPE=N", help="GPUs it may hold at most, borrowed ones included.")
@reason_option
@proposing
@click.pass_obj
def quota_set(
    repo: Path, queue: str, counts: tuple[str, ...], guaranteed: tuple[str, ...], ceiling: tuple[str, ...], why: str, *,
    wishes: Wishes,
) -> int:  # fmt: skip
    """Propose another quota for QUEUE: TYPE=N is guaranteed; `none` for N takes the entry out."""
    from reconciler.runtime.proposals import queues

    own, most = queues.counts((*counts, *guaranteed)), queues.counts(ceiling)
    return propose(repo, wishes, lambda desk: queues.set_quota(desk, queue, own, most, why))
