"""`reconcile`, `agent`, `ca`: the processes that run a cluster."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from reconciler.agent.conf import KEYS
from reconciler.documents.quantities import print_instant
from reconciler.errors import ExitStatus
from reconciler.model.units import NodeName
from reconciler.runtime.settings import read_settings

settings_option = click.option(
    "--settings",
    "settings_file",
    type=click.Path(path_type=Path),
    default=Path("reconciler.toml"),
    envvar="GANGOPS_SETTINGS",
    help="Local settings (default reconciler.toml).",
)


@click.command()
@settings_option
@click.option("--once", is_flag=True, help="One round, as soon as the nodes call, then end.")
@click.option("--watch", type=click.Path(path_type=Path, exists=True), help="Wake when this local git folder changes.")
@click.option("--json-log", is_flag=True, help="Events as JSON lines.")
def reconcile(settings_file: Path, watch: Path | None, *, once: bool, json_log: bool) -> int:
    """Run the loop: fetch, observe, decide, commit, and only then apply."""
    from reconciler.runtime.clock import SystemClock
    from reconciler.runtime.paces import Paces
    from reconciler.runtime.service import bell_server, engine_of, reconciler_of, status_server

    settings = read_settings(settings_file)
    report = _json_event if json_log else _event
    engine = engine_of(settings, report)
    reconciler = reconciler_of(settings, engine, report)
    if once:
        try:
            done = reconciler.once()
        finally:
            engine.stop()
        if reconciler.teller is not None:
            reconciler.teller.tell()
        click.echo(f"generation {done.generation.summary.generation} {'committed' if done.committed else 'unchanged'}")
        if done.held is not None:
            raise done.held
        return ExitStatus.OK
    stop = threading.Event()

    def end(_signal: int, _frame: object) -> None:
        stop.set()
        reconciler.wake()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    if watch is not None:
        threading.Thread(target=_watch, args=(watch, reconciler.wake, stop), daemon=True).start()
    paces = Paces(settings.folder / "paces.json")
    noting = threading.Thread(
        target=paces.watch, args=(engine.live, SystemClock(), stop), name="gangops-paces", daemon=True
    )
    status = status_server(settings, reconciler, engine, paces) if settings.status else None
    bell = bell_server(settings, reconciler)
    try:
        if bell is not None:
            bell.start()
        if status is not None:
            status.start()
            noting.start()
        if reconciler.teller is not None:
            reconciler.teller.start()
        reconciler.run(stop)
    finally:
        if reconciler.teller is not None:
            reconciler.teller.stop()
        if bell is not None:
            bell.stop()
        if status is not None:
            status.stop()
    return ExitStatus.OK


def _watch(folder: Path, wake: Callable[[], None], stop: threading.Event) -> None:
    from watchfiles import watch

    for _ in watch(folder, stop_event=stop, recursive=True, debounce=200, step=50):
        wake()


def _event(name: str, fields: Mapping[str, object]) -> None:
    told = "  ".join(f"{key} {value}" for key, value in fields.items() if value not in ("", None))
    click.echo(f"{print_instant(time.time_ns() // 10**9 * 10**9)}  {name:<14} {told}", err=True)


def _json_event(name: str, fields: Mapping[str, object]) -> None:
    click.echo(json.dumps({"at": print_instant(time.time_ns()), "event": name, **fields}), err=True)


@click.group()
def agent() -> None:
    """The node side: runs what signed state says, and nothing else."""


@agent.command("run", epilog="\b\n" + KEYS)
@click.option("--conf", type=click.Path(path_type=Path, exists=True), required=True, help="agent.conf, owned by root.")
def agent_run(conf: Path) -> int:
    """Run the agent of this node (the same as `python -m reconciler.agent run`)."""
    from reconciler.agent.__main__ import main

    return main(["run", "--conf", str(conf)])


@agent.command("enroll")
@click.option("--conf", type=click.Path(path_type=Path, exists=True), required=True, help="agent.conf of this node.")
@click.option("--token", required=True, help="The token of `gangops ca token`, or - to read it from standard input.")
@click.option("--at", required=True, metavar="URL", help="https://HOST:PORT of agents.enroll in reconciler.toml.")
def agent_enroll(conf: Path, token: str, at: str) -> int:
    """Get this node's certificate; its private key is made here and never leaves (as `python -m reconciler.agent`)."""
    from reconciler.agent.__main__ import main

    return main(["enroll", "--conf", str(conf), "--token", token, "--at", at])


@agent.command("zipapp")
@click.argument("target", type=click.Path(path_type=Path))
def agent_zipapp(target: Path) -> None:
    """Write the agent as one file that needs Python 3.10 and nothing else."""
    from reconciler.agent.zipapp import build_zipapp

    build_zipapp(target)
    click.echo(f"{target}  {target.stat().st_size // 1024} KiB")


@click.group()
def ca() -> None:
    """Certificates: who may speak for a node."""


@ca.command("init")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--cluster", required=True, help="Name of the cluster, for the certificate.")
def ca_init(folder: Path, cluster: str) -> None:
    """Make the node CA in FOLDER (private key mode 0600)."""
    from reconciler.engines.certificates import make_ca
    from reconciler.model.units import Instant

    click.echo(make_ca(folder, cluster, Instant(time.time_ns())))


@ca.command("issue")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("node")
@click.option("--into", type=click.Path(path_type=Path), required=True, help="Folder for the three PEM files.")
def ca_issue(folder: Path, node: str, into: Path) -> None:
    """Issue the certificate of NODE with the CA in FOLDER."""
    from reconciler.engines.certificates import issue_node
    from reconciler.model.units import Instant

    made = issue_node(folder, NodeName(node), into, Instant(time.time_ns()))
    click.echo(made.certificate)


@ca.command("token")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("nodes")
@click.option("--ttl", default="15m", show_default=True, help="How long the tokens are good, at most 24h.")
@click.pass_obj
def ca_token(repo: Path, folder: Path, nodes: str, ttl: str) -> None:
    """Print a token each, good once, for NODES: a hostlist such as gpu-[001-128], or a NodeSet of the repository.

    Give each node its own: `gangops agent enroll --token TOKEN` gets a certificate for exactly that name with it.
    """
    from reconciler.documents.quantities import parse_duration
    from reconciler.engines.enrolment import make_tokens
    from reconciler.errors import UsageError
    from reconciler.model.units import Instant, Nanoseconds

    try:
        lifetime = Nanoseconds(parse_duration(ttl))
    except ValueError as err:
        raise UsageError(f"--ttl {ttl}: {err}", code="BadLifetime", remedy="such as 15m") from err
    for token in make_tokens(folder, _named(repo, nodes), lifetime, Instant(time.time_ns())):
        click.echo(f"{token.node}  {token.text}")


@ca.command("revoke")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("nodes")
@click.pass_obj
def ca_revoke(repo: Path, folder: Path, nodes: str) -> None:
    """Refuse every certificate issued to NODES until now. It holds at once; the server is not restarted.

    A node that is to go on needs a new token.
    """
    from reconciler.engines.enrolment import revoke
    from reconciler.model.units import Instant

    for node, count in revoke(folder, _named(repo, nodes), Instant(time.time_ns())).items():
        click.echo(f"{node}  {count} revoked")


def _named(repo: Path, text: str) -> tuple[NodeName, ...]:
    """Nodes of a NodeSet in the repository's desired state, if it is one; else of a hostlist."""
    from reconciler.documents.hostlist import expand
    from reconciler.errors import UsageError
    from reconciler.runtime.authoring import node_set

    try:
        if members := node_set(repo, text):
            return members
        return tuple(NodeName(name) for name in expand(text))
    except ValueError as err:
        raise UsageError(
            f"{text!r} is no NodeSet here and no hostlist: {err}",
            code="BadName",
            remedy="such as gpu-007, 'gpu-[001-004,007]', or the name of a NodeSet",
        ) from err
