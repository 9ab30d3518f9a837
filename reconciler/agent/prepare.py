"""Can this node start an attempt, and is everything there for it? What happens before "prepared" is said.

The site's hook, the node's limits, the folders, the image: whatever takes long is done here, once, so that all ranks of
a gang start together. Programs of runtimes run as the job's user, with an environment of ours.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reconciler.agent.cgroups import Hierarchy, find_hierarchies
from reconciler.agent.conf import Conf
from reconciler.agent.devices import files_of, others
from reconciler.agent.images import Image, image_of
from reconciler.agent.launch import Site, binds_of, image_file
from reconciler.agent.limits import Account, NotAllowed, account_of, refusal
from reconciler.agent.runtimes import ENROOT_RC, RUNTIMES, Runtime, enroot_rc, kept_in
from reconciler.wire import AttemptOrder

Hook = Callable[[str, tuple[str, ...], Mapping[str, str]], str]
_FOLDER_SECONDS = 60


def prepare(order: AttemptOrder, conf: Conf, hook: Hook) -> str:
    """Why the attempt cannot be prepared, as `Code: sentence`; "" when it is."""
    about = {"GANGOPS_JOB": order.job, "GANGOPS_ATTEMPT": str(order.attempt)}
    if failed := hook("beforePrepare", conf.hooks.before_prepare, about):
        return f"HookFailed: {failed}"
    if reason := refusal(order, conf):
        return reason
    try:
        runtime, account = RUNTIMES[order.run.runtime], account_of(order, conf.limits)
        _check_devices(order, conf)
        if runtime.program:
            _make_folders(order, account)
        if runtime.has_images:
            home = user_folders(conf, account)
            _make_user_folders(home)
            image = image_of(order.run.image)
            if image and not image.file:
                _fetch(runtime, image, home, conf.images_seconds)
    except NotAllowed as err:
        return str(err)
    return ""


def _check_devices(order: AttemptOrder, conf: Conf) -> None:
    """A sandbox with a /dev of its own is given its GPUs by their files. Raises NotAllowed."""
    is_real = conf.simulation is None
    if order.run.runtime == "bubblewrap" and is_real and not files_of([rank.uuid for rank in order.ranks]):
        raise NotAllowed("DevicesUnknown: the driver does not say which device files the attempt's GPUs have")


@dataclass(frozen=True)
class UserFolders:
    """Where what a runtime keeps for a user lies: nobody else can put an image there. `run` ends with the boot."""

    account: Account
    kept: str
    run: str


def user_folders(conf: Conf, account: Account) -> UserFolders:
    """The folders of a user; they need not be there yet."""
    own = str(os.geteuid() if account.uid is None else account.uid)
    return UserFolders(account, str(conf.images_dir / own), str(conf.run_dir / own))


def hierarchies_of(conf: Conf) -> list[Hierarchy]:
    """The cgroups this agent puts ranks into. Pretended hardware limits nothing of the machine it is pretended on."""
    may_make = os.geteuid() == 0 and conf.simulation is None
    return find_hierarchies(conf.cgroup, Path("/proc/mounts").read_text(encoding="utf-8"), may_make=may_make)


def site_of(
    order: AttemptOrder, account: Account, conf: Conf, events: Path, boot: str, hierarchies: Sequence[Hierarchy]
) -> Site:
    """What launching an attempt needs to know of this node."""
    uuids = [rank.uuid for rank in order.ranks]
    is_real = conf.simulation is None
    devices = files_of(uuids) if is_real else ()
    home = user_folders(conf, account)
    return Site(
        events=events,
        boot=boot,
        log_limits=conf.log_limits,
        hierarchies=hierarchies,
        secret_roots=conf.limits.secret_roots,
        images=home.kept,
        run=home.run,
        devices=devices,
        foreign=others(uuids) if devices else (),  # who does not know its own GPUs must close none
        has_gpus=is_real,
    )


def _make_folders(order: AttemptOrder, account: Account) -> None:
    """What is mounted must be there: the folder for checkpoints is made, by the user and nobody else."""
    for bind in binds_of(order):
        if not bind.read_only and not os.path.lexists(bind.source):
            _run(["mkdir", "-p", "--", bind.source], account, {}, _FOLDER_SECONDS, "FolderUnusable")


def _make_user_folders(home: UserFolders) -> None:
    try:
        for folder in (Path(home.kept), Path(home.run)):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            if home.account.uid is not None and home.account.gid is not None:
                os.chown(folder, home.account.uid, home.account.gid, follow_symlinks=False)
    except OSError as err:
        raise NotAllowed(f"ImageFolderUnusable: {err.filename}: {err.strerror}") from err
    made = [f"{home.kept}/{part}" for part in ("cache", "data", "temp")] + [f"{home.run}/enroot"]
    script = 'rc=$1; printf "%s" "$2" > "$rc.$$" && mv "$rc.$$" "$rc" && shift 2 && mkdir -p -m 700 -- "$@"'
    command = ["sh", "-c", script, "sh", enroot_rc(home.kept), ENROOT_RC, *made]
    _run(command, home.account, {}, _FOLDER_SECONDS, "ImageFolderUnusable")


def _fetch(runtime: Runtime, image: Image, home: UserFolders, seconds: int) -> None:
    """Get the image. One named by digest that is here stays as it is; a tag may mean another image by now."""
    target = Path(image_file(image, home.kept, runtime.keeps))
    kept, code = kept_in(home.kept, home.run), "ImageUnavailable"
    if image.digest and _is_here(runtime, image, target, home.account, kept):
        return
    fresh = target.with_name(f"{target.stem}.{threading.get_native_id()}.new{runtime.keeps}")  # others may fetch too
    assert runtime.fetch is not None
    _run(runtime.fetch(image, str(fresh)), home.account, kept, seconds, code)
    if runtime.keeps:
        _run(["mv", "-f", "--", str(fresh), str(target)], home.account, {}, _FOLDER_SECONDS, code)


def _is_here(runtime: Runtime, image: Image, target: Path, account: Account, kept: Mapping[str, str]) -> bool:
    if runtime.known is None:
        return target.is_file()
    try:
        _run(runtime.known(image), account, kept, _FOLDER_SECONDS, "ImageUnavailable")
    except NotAllowed:
        return False
    return True


def _run(command: list[str], account: Account, more: Mapping[str, str], seconds: int, code: str) -> None:
    """Run a program as the user. Raises NotAllowed with the last thing it said."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": account.home, "USER": account.name, "LANG": "C.UTF-8"}
    try:
        done = subprocess.run(
            command,
            env={**env, **more},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            user=account.uid,
            group=account.gid,
            extra_groups=None if account.uid is None else list(account.groups),
            umask=0o022,
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise NotAllowed(f"{code}: {err}") from err
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        raise NotAllowed(f"{code}: {command[0]}: {said[-1][:200] if said else f'exit status {done.returncode}'}")
