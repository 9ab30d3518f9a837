"""The group of all verbs, loaded lazily, and the options they share."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from reconciler import __version__
from reconciler.runtime.xdg import config_home

VERBS = {
    # author
    "init": ("reconciler.cli.author:init", "Start a cluster repository or its record, or restore it."),
    "validate": ("reconciler.cli.author:validate", "Report every problem in desired state, with its place."),
    "fmt": ("reconciler.cli.author:fmt", "Format documents; comments stay."),
    "schema": ("reconciler.cli.author:schema", "Write the JSON schemas that editors use."),
    "check": ("reconciler.cli.check:check", "Required checks of a pull request: approval."),
    "codeowners": ("reconciler.cli.check:codeowners", "CODEOWNERS for everything but the job folders."),
    "policy": ("reconciler.cli.policy:policy", "House rules in CEL: test them on their examples."),
    "test": ("reconciler.cli.test:test", "Scenario files as unit tests for a cluster's rules."),
    # change, by pull request
    "new": ("reconciler.cli.jobs:new", "Write a new job, asking for what was not said."),
    "submit": ("reconciler.cli.jobs:submit", "Propose a job, from its file or an sbatch script."),
    "prioritize": ("reconciler.cli.jobs:prioritize", "Propose another class or place in line for a job."),
    "suspend": ("reconciler.cli.jobs:suspend", "Propose that a job stops through its checkpoint, and waits."),
    "resume": ("reconciler.cli.jobs:resume", "Propose that a suspended job goes on."),
    "cancel": ("reconciler.cli.jobs:cancel", "Propose to end a job and remove its file."),
    "rerun": ("reconciler.cli.jobs:rerun", "Propose to run a finished job once more."),
    "tidy": ("reconciler.cli.jobs:tidy", "Propose to remove the files of jobs that ended long ago."),
    "cordon": ("reconciler.cli.nodes:cordon", "Propose that nodes take no new work."),
    "uncordon": ("reconciler.cli.nodes:uncordon", "Propose that nodes take work again."),
    "drain": ("reconciler.cli.nodes:drain", "Propose that work leaves nodes, and none comes."),
    "freeze": ("reconciler.cli.requesting:freeze", "Ask that nothing of a queue or the cluster starts for a while."),
    "quota": ("reconciler.cli.nodes:quota", "Propose another guarantee or ceiling for a queue."),
    "use": ("reconciler.cli.use:use", "Name the cluster repository that verbs work on from any folder."),
    # look
    "plan": ("reconciler.cli.plan:plan", "What would be decided, before it is merged."),
    "simulate": ("reconciler.cli.simulate:simulate", "Replay a trace of jobs against a cluster, in virtual time."),
    "status": ("reconciler.cli.view:status", "The cluster, its queues and jobs, in a page."),
    "top": ("reconciler.cli.top:top", "The cluster on a terminal, live; needs gangops[tui]."),
    "get": ("reconciler.cli.view:get", "List jobs, nodes, queues or requests."),
    "describe": ("reconciler.cli.describe:describe", "Everything known about one job or node."),
    "explain": ("reconciler.cli.view:explain", "Why a job is where it is, and what blocks it."),
    "inspect": ("reconciler.cli.inspect:inspect", "What a captured output says: nvidia-smi, numactl, Slurm and more."),
    "shell": ("reconciler.cli.shell:shell", "A terminal inside a running job."),
    "logs": ("reconciler.cli.logs:logs", "What a job's ranks printed."),
    "wait": ("reconciler.cli.watch:wait", "Wait until a job runs or is done."),
    "shadow": ("reconciler.cli.shadow:shadow", "What GangOps would do with a Slurm cluster, only looking."),
    "forge": ("reconciler.cli.forge:forge", "What checks and workflows of a forge call."),
    # the record
    "history": ("reconciler.cli.record:history", "Who had what, when, and which decision gave it."),
    "usage": ("reconciler.cli.record:usage", "GPU-hours by queue, user, label or type, against quota."),
    "audit": ("reconciler.cli.audit:audit", "Prove the record, or list what to look at."),
    "report": ("reconciler.cli.audit:report", "The record as one page: who held what, and is it true."),
    "gc": ("reconciler.cli.record:gc", "Make a clone's history quick to walk."),
    "rotate": ("reconciler.cli.rotate:rotate", "Go on with the record in the branch of another year."),
    "replay": ("reconciler.cli.record:replay", "Recompute decisions from their commits, byte for byte."),
    # hardware
    "discover": ("reconciler.cli.discover:discover", "This machine's hardware, as documents ready to commit."),
    "export": ("reconciler.cli.imports:export_group", "A job of ours as an sbatch script or a JobSet."),
    "import": ("reconciler.cli.imports:import_group", "Other systems' files as documents of ours."),
    "inventory": ("reconciler.cli.inventory:inventory", "Declared against observed: diff, adopt."),
    # operate
    "reconcile": ("reconciler.cli.operate:reconcile", "Run the loop: decide, commit, apply."),
    "agent": ("reconciler.cli.operate:agent", "The node side: run an agent."),
    "ca": ("reconciler.cli.operate:ca", "Certificates of nodes and servers."),
    "demo": ("reconciler.cli.demo:demo", "A whole GPU cluster on this machine, in about a minute."),
    "completion": ("reconciler.cli.completing:completion", "What makes your shell complete verbs, jobs and nodes."),
    "doctor": ("reconciler.cli.doctor:doctor", "What this machine lacks; --cluster: what is wrong, and what mends it."),
}


@contextmanager
def no_collections() -> Iterator[None]:
    """Modules stay until the end: looking through them for garbage, now and ever again, is a tenth of a short verb."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class LazyGroup(click.Group):
    """Imports a verb's module when the verb is used, so that `--help` costs nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name][0].partition(":")
        with no_collections():
            found = getattr(importlib.import_module(module), name)
        assert isinstance(found, click.Command)
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs without importing any; options as click has them."""
        verbs = [CompletionItem(name, help=told) for name, (_, told) in VERBS.items() if name.startswith(incomplete)]
        return verbs if verbs or not incomplete.startswith("-") else click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  click's
        with formatter.section("Verbs"):
            formatter.write_dl([(name, summary) for name, (_, summary) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(__version__, prog_name="gangops")
@click.option(
    "-C",
    "--repo",
    type=click.Path(path_type=Path),
    default=None,
    envvar="GANGOPS_REPO",
    help="A clone of the cluster repository (default: the one around you, else that of `gangops use`).",
)
@click.pass_context
def root(ctx: click.Context, repo: Path | None) -> None:
    """GitOps for GPU clusters: jobs and quotas are YAML in git; every decision is a signed commit."""
    ctx.obj = repo if repo is not None else repository(ctx.invoked_subcommand or "")


def repository(verb: str) -> Path:
    """The repository a verb works on when none is named: the one around you, else that of `gangops use`."""
    return _around() or _in_use(verb) or Path()


# Verbs that read or write files where one stands, or no repository at all.
_HERE = frozenset({
    "agent", "ca", "codeowners", "completion", "demo", "discover", "doctor", "fmt", "init", "inspect", "policy", "reconcile", "schema",
    "test", "use", "validate",
})  # fmt: skip


def _around() -> Path | None:
    """The folder one stands in, when that is inside a cluster repository, or is a bare clone."""
    here = Path.cwd()
    inside = any((folder / "cluster-state").is_dir() for folder in (here, *here.parents))
    return Path() if inside or ((here / "HEAD").is_file() and (here / "objects").is_dir()) else None


def _in_use(verb: str) -> Path | None:
    """The clone of `gangops use`, made again when the cache was emptied; read lazily, for most stand in a clone."""
    if verb in _HERE or not verb:
        return None
    mark = config_home() / "gangops" / "use"
    if not mark.is_file():
        return None
    from reconciler.runtime.used import Folders, used_clone

    return used_clone(Folders.of_user())


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml", "name"]),
    default="table",
    help="How to print; JSON and YAML are versioned, the table is not an API.",
)
fetch_option = click.option("--fetch/--no-fetch", default=True, help="Ask the remote first (default), or not.")
