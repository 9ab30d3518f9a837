"""May this node do what it is ordered to, and can it? Asked before "prepared" is said; the answer is a reason or "".

Limits are root's, from agent.conf, and hold whatever git says. Reasons start with a CamelCase code. Nothing is
changed here except that the folder for logs is made and ports are tried.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import signal
import socket
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from reconciler.agent.beneath import is_beneath, root_of
from reconciler.agent.conf import Conf, Limits
from reconciler.agent.images import image_of, is_allowed
from reconciler.agent.runtimes import RUNTIMES, Runtime
from reconciler.wire import AttemptOrder

_JOB = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)+[a-z0-9][-a-z0-9.]{0,80}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_SCRIPT = 120 * 1024
"""A script is one argument of its shell, and Linux takes 128 KiB for one."""


@dataclass(frozen=True)
class Account:
    """Who a rank runs as. `uid` None: as the agent itself."""

    name: str
    home: str
    shell: str
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()


class NotAllowed(Exception):
    """A reason to refuse, as a sentence that starts with its code."""


def refusal(order: AttemptOrder, conf: Conf) -> str:
    """Why this node will not prepare the attempt, as `Code: sentence`; "" when it will."""
    try:
        _check_shape(order)
        account = account_of(order, conf.limits)
        _check_size(order, conf.limits)
        _check_run(order, conf.limits)
        _check_files(order, conf.limits)
        _check_checkpoint(order, conf.limits)
        make_log_folder(order, conf, account)
        _check_ports(order, conf.address)
    except NotAllowed as err:
        return str(err)
    return ""


def _check_shape(order: AttemptOrder) -> None:
    """What no reconciler of ours writes, but a path or a signal would be made of."""
    if not _JOB.fullmatch(order.job) or order.attempt < 0:
        raise NotAllowed("BadOrder: the job's name cannot be used in a path")
    ranks = [r.rank for r in order.ranks]
    if (
        not ranks
        or len(set(ranks)) != len(ranks)
        or order.killSeconds < 0
        or order.run.launch not in ("perGpu", "perNode")
    ):
        raise NotAllowed("BadOrder: ranks are missing or twice, or the launch is unknown")


def account_of(order: AttemptOrder, limits: Limits) -> Account:
    """The user the attempt runs as. Raises NotAllowed(UserNotAllowed)."""
    mine = pwd.getpwuid(os.geteuid())
    name = order.run.user
    if name in ("", "self"):
        if not limits.run_as_self:
            raise NotAllowed("UserNotAllowed: the job names no user, and this agent is root on real hardware")
        return Account(mine.pw_name, mine.pw_dir, mine.pw_shell)
    try:
        user = pwd.getpwnam(name)
        gid = grp.getgrnam(order.run.group).gr_gid if order.run.group else user.pw_gid
    except KeyError:
        raise NotAllowed(f"UserNotAllowed: there is no user {name!r} or no such group here") from None
    if limits.users and name not in limits.users:
        raise NotAllowed(f"UserNotAllowed: {name} is not among limits.users of this node")
    if os.geteuid() != 0:
        if user.pw_uid != os.geteuid():
            raise NotAllowed(f"UserNotAllowed: this agent runs as {mine.pw_name} and cannot become {name}")
        return Account(user.pw_name, user.pw_dir, user.pw_shell)
    groups = os.getgrouplist(name, user.pw_gid)
    if user.pw_uid < max(1, limits.lowest_uid):
        raise NotAllowed(f"UserNotAllowed: uid {user.pw_uid} of {name} is below {limits.lowest_uid}")
    if gid not in groups or gid == 0:
        raise NotAllowed(f"UserNotAllowed: {name} is not in group {order.run.group!r}")
    return Account(user.pw_name, user.pw_dir, user.pw_shell, user.pw_uid, gid, tuple(groups))


def _check_size(order: AttemptOrder, limits: Limits) -> None:
    cpus = order.cpusPerGpu * len(order.ranks)
    if 0 < limits.cpus < cpus:
        raise NotAllowed(f"CpusNotAllowed: {cpus} CPUs are asked for; limits.cpus of this node is {limits.cpus}")
    if 0 < limits.memory < order.memoryBytes:
        asked, most = -(-order.memoryBytes >> 30), limits.memory >> 30
        raise NotAllowed(f"MemoryNotAllowed: {asked} GiB are asked for; limits.memoryGiB of this node is {most}")


def _check_run(order: AttemptOrder, limits: Limits) -> None:
    run = order.run
    runtime = RUNTIMES.get(run.runtime)
    if runtime is None or run.runtime not in limits.runtimes:
        raise NotAllowed(
            f"RuntimeNotAllowed: runtime {run.runtime} is not among limits.runtimes of this node: {' '.join(limits.runtimes)}"
        )
    if runtime.program and shutil.which(runtime.program) is None:
        raise NotAllowed(f"RuntimeMissing: there is no {runtime.program} on this node")
    if not (run.command or run.script or run.session):
        raise NotAllowed("BadOrder: there is nothing to run")
    if len(run.script) > _MAX_SCRIPT:
        raise NotAllowed(f"ScriptTooLong: {len(run.script)} bytes; put it into a file and run that")
    if not all(_VARIABLE.fullmatch(name) for name in run.env) or any("\0" in value for value in run.env.values()):
        raise NotAllowed("BadOrder: a variable of the environment has no usable name or value")
    if run.runtime == "enroot" and any("\n" in value for value in run.env.values()):
        raise NotAllowed("EnvNotPossible: enroot takes no value of several lines")
    if runtime.has_images:
        _check_image(run.image, runtime, limits)
    elif run.workingDir and not Path(run.workingDir).is_dir():
        raise NotAllowed(f"FolderMissing: there is no {run.workingDir} on this node")


def _check_image(text: str, runtime: Runtime, limits: Limits) -> None:
    image = image_of(text)
    if image is None:
        raise NotAllowed(f"ImageNotAllowed: {text!r} is no image's name")
    if not is_allowed(image, limits.registries):
        raise NotAllowed(
            f"ImageNotAllowed: {image.file or image.reference} is outside of limits.registries of this node"
        )
    if image.file:
        where = root_of(image.file, limits.registries)
        if not runtime.keeps:
            raise NotAllowed(f"ImageNotAllowed: {runtime.name} starts images of registries, not files")
        if where is not None:
            _check_beneath("Image", image.file, where)
        if not Path(image.file).is_file():
            raise NotAllowed(f"ImageMissing: {image.file} is no file on this node")


def _check_files(order: AttemptOrder, limits: Limits) -> None:
    """What is read or mounted lies beneath its roots, and no link leads there."""
    run, runtime = order.run, RUNTIMES[order.run.runtime]
    for mount in run.mounts:
        source, target = str(mount.get("source", "")), str(mount.get("target", mount.get("source", "")))
        if not runtime.has_images and target != source:
            raise NotAllowed(f"MountNotAllowed: without a container, {source} cannot be seen elsewhere")
        if (
            not target.startswith("/")
            or any(c in source + target for c in runtime.separators)
            or not target.isprintable()
        ):
            raise NotAllowed(f"MountNotAllowed: {runtime.name} cannot mount {source} at {target}")
        where = _root_of(source, limits.mount_roots, "Mount", "limits.mountRoots")
        if runtime.program:  # else nothing is mounted: the job sees what is there
            _check_beneath("Mount", source, where)
    for secret in run.secretFiles:
        _check_beneath("Secret", secret, _root_of(secret, limits.secret_roots, "Secret", "limits.secretRoots"))
        if not Path(secret).is_file():
            raise NotAllowed(f"SecretMissing: {secret} is no file")
    if run.heartbeatFile and root_of(run.heartbeatFile, limits.mount_roots) is None:
        raise NotAllowed(f"HeartbeatNotAllowed: {run.heartbeatFile} is outside of limits.mountRoots")


def _root_of(path: str, roots: tuple[str, ...], what: str, key: str) -> tuple[str, str]:
    where = root_of(path, roots)
    if where is None:
        raise NotAllowed(f"{what}NotAllowed: {path} is outside of {key}")
    return where


def _check_beneath(what: str, path: str, where: tuple[str, str]) -> None:
    try:
        if not is_beneath(*where):
            raise NotAllowed(f"{what}NotAllowed: a link leads to {path}, which has to lie in {where[0]} itself")
    except FileNotFoundError:
        raise NotAllowed(f"{what}Missing: there is no {path} on this node") from None


def _check_checkpoint(order: AttemptOrder, limits: Limits) -> None:
    if order.checkpoint is None:
        return
    name = order.checkpoint.signal
    if name and (name not in limits.signals or name not in signal.Signals.__members__):
        raise NotAllowed(f"SignalNotAllowed: {name} is not among limits.signals of this node")
    if order.checkpoint.dir and not is_below(order.checkpoint.dir, limits.mount_roots):
        raise NotAllowed(f"MountNotAllowed: {order.checkpoint.dir} is outside of limits.mountRoots")


def is_below(path: str, roots: tuple[str, ...]) -> bool:
    """Whether an absolute path without `..` lies in one of the folders."""
    pure = PurePosixPath(path)
    return pure.is_absolute() and ".." not in pure.parts and any(pure.is_relative_to(root) for root in roots)


def log_folder(order: AttemptOrder, conf: Conf) -> Path:
    """`{logs.dir}/{queue}/{job}/{attempt}`."""
    return conf.logs_dir / order.job / str(order.attempt)


def make_log_folder(order: AttemptOrder, conf: Conf, account: Account) -> None:
    """Only the attempt's own folder belongs to the user: the path to it cannot be bent. Raises NotAllowed."""
    folder = log_folder(order, conf)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if account.uid is not None and account.gid is not None:
            os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    except OSError as err:
        raise NotAllowed(f"LogFolderUnusable: {folder}: {err.strerror}") from err


def _check_ports(order: AttemptOrder, address: str) -> None:
    """Try the ports this node's ranks will bind: the rendezvous on the leader's node, the job's own everywhere."""
    wanted = [(order.leaderAddress or address, order.port)] if order.nodeRank == 0 and order.port else []
    wanted += [(address, port) for port in order.ports]
    for host, port in wanted:
        if reason := _busy(host, port):
            raise NotAllowed(f"PortInUse: port {port} at {host or 'this node'}: {reason}")


def _busy(host: str, port: int) -> str:
    try:
        family, kind, _, _, where = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT does not count as busy
            probe.bind(where)
            probe.listen(1)
    except (OSError, OverflowError) as err:
        return str(err)
    return ""
