"""`doctor`: what this machine has of what GangOps needs, a line each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click


@click.command()
def doctor() -> int:
    """Check this machine; each line says what was found and, where something is missing, the remedy."""
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
