"""`doctor`: what this machine has of what GangOps needs, a line each; with --cluster, what is wrong with a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

from reconciler.cli.root import fetch_option, repository
from reconciler.errors import ExitStatus, UsageError


@click.command()
@click.option("--cluster", is_flag=True, help="Look at the cluster instead: what is wrong, why, and what mends it.")
@click.option("--live", default="", envvar="GANGOPS_STATUS", help="Address of the reconciler's status page, to ask it.")
@click.option(
    "--settings",
    "settings_file",
    type=click.Path(path_type=Path),
    default=Path("reconciler.toml"),
    envvar="GANGOPS_SETTINGS",
    help="Where the reconciler runs: look at its certificates and disk too, if the file is there.",
)
@click.option("--topo", multiple=True, metavar="NODE=FILE", help="Output of `nvidia-smi topo -m` of a node.")
@click.option(
    "--nccl-log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="What ranks printed with NCCL_DEBUG=INFO.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@fetch_option
@click.pass_obj
def doctor(
    repo: Path, live: str, settings_file: Path, topo: tuple[str, ...], logs: tuple[Path, ...], output: str, *,
    cluster: bool, fetch: bool,
) -> int:  # fmt: skip
    """Check this machine; each line says what was found and, where something is missing, the remedy.

    With --cluster, look at the newest generation in this clone, at the reconciler (--live), at its files (--settings),
    and at captured output (--topo, --nccl-log). Exit 1 when something is wrong.
    """
    if cluster:
        return _cluster(repo, live, settings_file, topo, logs, output, fetch=fetch)
    if topo or logs or output != "table":
        raise UsageError("this option looks at a cluster", code="BadOption", remedy="gangops doctor --cluster")
    checks: list[tuple[str, Callable[[], str], str]] = [
        ("python", _python, "install python3 3.11 or newer"),
        ("git", lambda: _version("git", "--version"), "apt-get install git"),
        ("ssh-keygen", lambda: _present("ssh-keygen"), "apt-get install openssh-client"),
        ("openssl", lambda: _version("openssl", "version"), "apt-get install openssl"),
        ("yaml parser", _yaml, "reinstall ruamel.yaml.clib"),
        ("cgroups", _cgroups, ""),
        ("runtimes", _runtimes, ""),
        ("user", lambda: "root" if os.geteuid() == 0 else "not root: agents run work as this user", ""),
        ("GPUs", lambda: _version("nvidia-smi", "-L") or "none seen; --simulate pretends them", ""),
    ]
    missing = 0
    for name, look, remedy in checks:
        found = look()
        bad = not found and bool(remedy)
        missing += bad
        click.echo(f"{'missing' if bad else 'ok':<8} {name:<12} {found or remedy}")
    return 1 if missing else 0


def _cluster(
    repo: Path, live: str, settings_file: Path, topo: tuple[str, ...], logs: tuple[Path, ...], output: str, *, fetch: bool
) -> int:  # fmt: skip
    from reconciler.cli.show import newest, now, print_json, width
    from reconciler.render.anomalies import anomalies_page, anomalies_tree
    from reconciler.runtime.anomalies import anomalies_of
    from reconciler.runtime.anomalies.gather import gather, read_captured
    from reconciler.runtime.settings import read_settings

    settings = read_settings(settings_file) if settings_file.exists() else None
    address = live or (settings.status if settings else "")
    captured = read_captured(topo, logs)
    clone, generation, desired = newest(repo if repo != Path() else repository("status"), fetch=fetch)
    found = anomalies_of(gather(clone, generation, desired, now(), address, settings, captured))
    looked = [f"generation {generation.summary.generation}"]
    looked += [address] if address else []
    looked += [str(settings_file)] if settings else []
    looked += [f"{count} {what}" for count, what in ((len(topo), "topologies"), (len(logs), "NCCL logs")) if count]
    if output == "json":
        print_json("Anomalies", {"looked": looked, "anomalies": anomalies_tree(found)})
    else:
        click.echo(anomalies_page(found, looked, width()))
    return ExitStatus.ERROR if found else ExitStatus.OK


def _python() -> str:
    return sys.version.split()[0] if sys.version_info >= (3, 11) else ""


def _present(program: str) -> str:
    return shutil.which(program) or ""


def _version(program: str, argument: str) -> str:
    if shutil.which(program) is None:
        return ""
    done = subprocess.run([program, argument], capture_output=True, text=True, timeout=20, check=False)
    return (done.stdout or done.stderr).splitlines()[0] if done.returncode == 0 else ""


def _yaml() -> str:
    from reconciler.documents import loader

    return f"libyaml events ({loader.__name__})"


def _cgroups() -> str:
    from reconciler.agent.cgroups import find_hierarchies, said_of

    mounts = Path("/proc/mounts")
    found = find_hierarchies("", mounts.read_text() if mounts.is_file() else "", may_make=True)
    return said_of(found) + ("" if os.geteuid() == 0 else "; for agents that are root")


def _runtimes() -> str:
    from reconciler.agent.runtimes import RUNTIMES

    return ", ".join(r.name for r in RUNTIMES.values() if not r.program or shutil.which(r.program))
