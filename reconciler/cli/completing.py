"""`completion`, and what it offers: verbs, and the jobs, nodes and queues of the cluster's newest known commit.

Asks nobody and reads names alone, so that a key press is answered at once; on any trouble it offers nothing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from reconciler.errors import GangOpsError

if TYPE_CHECKING:
    from reconciler.runtime.proposals.desk import Desk

VARIABLE = "_GANGOPS_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    r"""Print what makes SHELL complete verbs, options, jobs, nodes and queues.

    \b
    bash:  gangops completion bash > ~/.local/share/bash-completion/completions/gangops
    zsh:   gangops completion zsh > "${fpath[1]}/_gangops"
    fish:  gangops completion fish > ~/.config/fish/completions/gangops.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "gangops", VARIABLE).source())


def jobs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Jobs by queue/name, or by the name alone while no queue was begun."""
    with contextlib.suppress(GangOpsError, OSError):
        keys: list[str] = [*_desk(ctx).jobs]
        names = keys if "/" in incomplete else [*keys, *(key.partition("/")[2] for key in keys)]
        return _offered(names, incomplete)
    return []


def nodes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Declared nodes."""
    with contextlib.suppress(GangOpsError, OSError):
        sets = _desk(ctx).documents("NodeSet")
        return _offered([node for found in sets for node in found.spec.nodes], incomplete)
    return []


def jobs_and_nodes(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Both, for verbs that take either."""
    return [*jobs(ctx, parameter, incomplete), *nodes(ctx, parameter, incomplete)]


def queues(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Declared queues."""
    with contextlib.suppress(GangOpsError, OSError):
        return _offered([found.name for found in _desk(ctx).documents("Queue")], incomplete)
    return []


def classes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Declared priority classes."""
    with contextlib.suppress(GangOpsError, OSError):
        return _offered([found.name for found in _desk(ctx).documents("PriorityClass")], incomplete)
    return []


def _offered(names: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(set(names)) if name.startswith(incomplete)]


def _desk(ctx: click.Context) -> Desk:
    """The clone that the words before name, as it is here."""
    from reconciler.cli.root import repository
    from reconciler.runtime.clone import open_clone
    from reconciler.runtime.proposals.desk import Desk

    top = ctx.find_root()
    named = top.params.get("repo")
    verb = ctx.command.name or ""
    return Desk(open_clone(named if isinstance(named, Path) else repository(verb)))
