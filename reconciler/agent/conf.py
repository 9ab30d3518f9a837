"""What does this node allow and trust, whatever git says? `agent.conf`, an INI file that root owns.

`KEYS` is its reference. Reading is all that happens here.
"""

from __future__ import annotations

import configparser
import os
import re
import signal
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from reconciler.agent.runtimes import RUNTIMES
from reconciler.agent.verify import Trust
from reconciler.errors import Diagnostic, InvalidInput, Place

KEYS = """\
agent.conf, an INI file (* must be given):
  [agent]     node*, cluster*, servers* (https URLs), stateDir*, address;
              runAs (self: jobs run as the agent's user, which is how it is
              with simulated hardware or an agent that is not root)
  [tls]       ca*, cert*, key* (PEM files, written by `agent enroll` and
              renewed by the agent, or those of `gangops ca issue`)
  [trust]     allowedSigners* (lines: PRINCIPAL namespaces="git" KEY),
              principal*, revoked
  [logs]      dir* (shared by all nodes), maxBytes, keep, bytesPerSecond
  [simulate]  gpus, type, profile (a JSON file, read when it changes)
  [limits]    lowestUid, users, mountRoots, secretRoots, signals, cpus and
              memoryGiB (of one attempt, at most; 0: all), runtimes (process,
              bubblewrap, podman, apptainer, enroot), registries (of images,
              such as nvcr.io/nvidia, and folders of image files)
  [images]    dir (where podman, apptainer and enroot keep images, a folder
              for each user), runDir (what a reboot ends, on a tmpfs),
              timeoutSeconds (to fetch an image)
  [hooks]     health, healthSeconds, beforePrepare, afterRelease,
              timeoutSeconds
  [cgroup]    root (a delegated cgroup v2 folder; none: process groups;
              else, for root on real hardware, what is mounted)
Relative paths start at the file's folder; lists use blanks or commas; a
comment starts with #."""

_REQUIRED = ("agent.node", "agent.cluster", "agent.servers", "agent.stateDir", "tls.ca", "tls.cert", "tls.key")
_REQUIRED_TRUST = ("trust.allowedSigners", "trust.principal", "logs.dir")
_DEFAULTS = {
    "agent.address": "",
    "agent.runAs": "",
    "trust.revoked": "",
    "logs.maxBytes": "67108864",
    "logs.keep": "3",
    "logs.bytesPerSecond": "1048576",
    "simulate.gpus": "0",
    "simulate.type": "",
    "simulate.profile": "",
    "limits.lowestUid": "1000",
    "limits.users": "",
    "limits.mountRoots": "/",
    "limits.secretRoots": "",
    "limits.runtimes": "process",
    "limits.registries": "",
    "limits.cpus": "0",
    "limits.memoryGiB": "0",
    "images.dir": "/var/lib/gangops/images",
    "images.runDir": "/run/gangops",
    "images.timeoutSeconds": "1800",
    "limits.signals": "SIGUSR1 SIGUSR2 SIGTERM SIGINT SIGHUP SIGCONT",
    "hooks.health": "",
    "hooks.healthSeconds": "60",
    "hooks.beforePrepare": "",
    "hooks.afterRelease": "",
    "hooks.timeoutSeconds": "60",
    "cgroup.root": "",
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Limits:
    """What an order may ask for at most on this node. `run_as_self`: jobs may run as the agent's own user.

    `cpus` and `memory` (bytes) are those of one attempt, 0 for no limit.
    """

    lowest_uid: int
    users: tuple[str, ...]
    mount_roots: tuple[str, ...]
    secret_roots: tuple[str, ...]
    runtimes: tuple[str, ...]
    signals: tuple[str, ...]
    run_as_self: bool
    registries: tuple[str, ...] = ()
    cpus: int = 0
    memory: int = 0


@dataclass(frozen=True)
class Hooks:
    """Commands of the site, each one program with its arguments; () for none. Times in seconds."""

    health: tuple[str, ...]
    health_seconds: int
    before_prepare: tuple[str, ...]
    after_release: tuple[str, ...]
    timeout_seconds: int


@dataclass(frozen=True)
class Simulation:
    """Pretended hardware. `profile` may change the rest while the agent runs."""

    gpus: int
    gpu_type: str
    profile: Path | None


@dataclass(frozen=True)
class Conf:
    """A checked agent.conf. `address` is where other nodes reach this one's ranks."""

    trust: Trust
    servers: tuple[str, ...]
    ca: Path
    cert: Path
    key: Path
    address: str
    state_dir: Path
    logs_dir: Path
    log_limits: Mapping[str, int]
    limits: Limits
    hooks: Hooks
    simulation: Simulation | None
    cgroup: str
    images_dir: Path
    run_dir: Path
    images_seconds: int

    @property
    def node(self) -> str:
        """This node's name, which its certificate carries too."""
        return self.trust.node


def read_conf(path: Path, *, root: bool | None = None) -> Conf:
    """Raises InvalidInput with every problem found. `root` says whether the agent runs as root (default: ask)."""
    as_root = os.geteuid() == 0 if root is None else root
    parser = configparser.ConfigParser(interpolation=None, strict=True, inline_comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys are camelCase
    try:
        with path.open(encoding="utf-8") as file:
            if as_root and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o022:
                raise InvalidInput([_problem(path, "", "others can write this file", f"chmod go-w {path}")])
            parser.read_file(file)
    except (OSError, UnicodeDecodeError, configparser.Error) as err:
        raise InvalidInput([_problem(path, "", _why_unreadable(err), "give a readable INI file")]) from err
    found = {
        _full(section, key): value.strip() for section in parser.sections() for key, value in parser[section].items()
    }
    problems = _check(path, found, as_root)
    if problems:
        raise InvalidInput(problems)
    return _conf_of(path.resolve().parent, {**_DEFAULTS, **found}, as_root)


def _why_unreadable(err: Exception) -> str:
    """In words, never with lines of the file: a secret may stand in it."""
    if isinstance(err, OSError):
        return f"{err.strerror}."
    if isinstance(err, configparser.MissingSectionHeaderError):
        return f"Line {err.lineno} stands before the first section, such as [agent]."
    if isinstance(err, configparser.ParsingError):
        return f"Line {err.errors[0][0]} is no `key = value`."
    if isinstance(err, (configparser.DuplicateOptionError, configparser.DuplicateSectionError)):
        what = err.option if isinstance(err, configparser.DuplicateOptionError) else f"[{err.section}]"
        return f"Line {err.lineno} says {what} a second time."
    return "It is no text in UTF-8."


def _full(section: str, key: str) -> str:
    """`simulate.gpus` in [agent] means the same as `gpus` in [simulate]."""
    return key if section == "agent" and "." in key else f"{section}.{key}"


def _problem(path: Path, key: str, detail: str, remedy: str) -> Diagnostic:
    return Diagnostic(
        "AgentConfInvalid", "Agent configuration is not usable", detail, Place(str(path), path=key), remedy
    )


def _check(path: Path, found: Mapping[str, str], as_root: bool) -> list[Diagnostic]:
    import difflib

    known = [*_REQUIRED, *_REQUIRED_TRUST, *_DEFAULTS]
    problems = []
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            problems.append(_problem(path, key, "no such key", f"Did you mean {near[0]}?" if near else "remove it"))
    problems += [
        _problem(path, key, "this key is missing", f"give {key}")
        for key in (*_REQUIRED, *_REQUIRED_TRUST)
        if not found.get(key)
    ]
    for key, default in _DEFAULTS.items():
        value = found.get(key, default)
        if default.isdigit() and not (value.isascii() and value.isdigit() and len(value) < 16):
            problems.append(_problem(path, key, f"{value!r} is not a number", "write a whole number"))
    if found.get("agent.node") and not _NAME.fullmatch(found["agent.node"]):
        problems.append(_problem(path, "agent.node", "not a node's name", "use a-z, 0-9 and -"))
    simulated = found.get("simulate.profile") or found.get("simulate.gpus", "0") != "0"
    if found.get("agent.runAs") == "self" and as_root and not simulated:
        remedy = "leave runAs out: jobs name their user"
        problems.append(_problem(path, "agent.runAs", "self would be root, on real hardware", remedy))
    elif found.get("agent.runAs", "") not in ("", "self"):
        problems.append(_problem(path, "agent.runAs", "only self is known", "write self, or leave it out"))
    for url in _list(found.get("agent.servers", "")):
        if urlsplit(url).scheme != "https" or not urlsplit(url).hostname:
            problems.append(_problem(path, "agent.servers", f"{url!r} is not an https URL", "write https://HOST:PORT"))
    for name in _list(found.get("limits.runtimes", "")):
        if name not in RUNTIMES:
            problems.append(
                _problem(path, "limits.runtimes", f"{name!r} is no runtime", f"one of {', '.join(RUNTIMES)}")
            )
    for name in _list(found.get("limits.signals", "")):
        if name not in signal.Signals.__members__:
            problems.append(_problem(path, "limits.signals", f"{name!r} is no signal", "write names such as SIGUSR1"))
    return problems


def _conf_of(base: Path, text: Mapping[str, str], as_root: bool) -> Conf:
    gpus, profile = int(text["simulate.gpus"]), text["simulate.profile"]
    simulation = None
    if gpus or profile:
        simulation = Simulation(gpus, text["simulate.type"], base / profile if profile else None)
    return Conf(
        trust=Trust(
            node=text["agent.node"],
            cluster=text["agent.cluster"],
            principal=text["trust.principal"],
            allowed_signers=base / text["trust.allowedSigners"],
            revoked=base / text["trust.revoked"] if text["trust.revoked"] else None,
        ),
        servers=_list(text["agent.servers"]),
        ca=base / text["tls.ca"],
        cert=base / text["tls.cert"],
        key=base / text["tls.key"],
        address=text["agent.address"],
        state_dir=base / text["agent.stateDir"],
        logs_dir=base / text["logs.dir"],
        log_limits={key: int(text[f"logs.{key}"]) for key in ("maxBytes", "keep", "bytesPerSecond")},
        limits=Limits(
            lowest_uid=int(text["limits.lowestUid"]),
            users=_list(text["limits.users"]),
            mount_roots=_list(text["limits.mountRoots"]),
            secret_roots=_list(text["limits.secretRoots"]),
            runtimes=_list(text["limits.runtimes"]),
            signals=_list(text["limits.signals"]),
            run_as_self=simulation is not None or not as_root,
            registries=_list(text["limits.registries"]),
            cpus=int(text["limits.cpus"]),
            memory=int(text["limits.memoryGiB"]) << 30,
        ),
        hooks=Hooks(
            health=tuple(text["hooks.health"].split()),
            health_seconds=max(1, int(text["hooks.healthSeconds"])),
            before_prepare=tuple(text["hooks.beforePrepare"].split()),
            after_release=tuple(text["hooks.afterRelease"].split()),
            timeout_seconds=max(1, int(text["hooks.timeoutSeconds"])),
        ),
        simulation=simulation,
        cgroup=text["cgroup.root"],
        images_dir=base / text["images.dir"],
        run_dir=base / text["images.runDir"],
        images_seconds=max(1, int(text["images.timeoutSeconds"])),
    )


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())
