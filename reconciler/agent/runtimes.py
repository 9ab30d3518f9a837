"""How is a command started under each runtime: as it is, in a sandbox, in a container? One small interface, pure.

A `Runtime` turns `Work` (what a rank is) into a `Start` (what is executed on the node), and says how an image gets
onto the node. All of them share the node's network and IPC, for ranks of one node speak by shared memory, and all but
podman its process ids; the shim sees and ends what runs inside. What may run at all is `limits`' to say.

A container's environment never becomes that of the program that starts it: a job could tell that program to load or
to do anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from reconciler.agent.images import Image

CDI = "nvidia.com/gpu"
"""The kind that NVIDIA's toolkit names its CDI devices by."""
_HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OF_THE_HOST = ("PATH", "HOME", "SHELL")
"""What an image knows better than the node does."""


@dataclass(frozen=True)
class Bind:
    """A folder of the node as the work sees it."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Work:
    """What a rank is, whatever starts it. `given` are names the job itself sets in `env`. `image` is a reference or a
    file on this node, `folder` one of the user's for what a runtime has to keep, `run_folder` for what a reboot ends.

    `gpus` are UUIDs (or indices, where none is known) of this process's node share; `devices` the paths of their
    device files and of what all share; both empty with pretended hardware.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    home: str
    name: str
    given: frozenset[str] = frozenset()
    image: Image | None = None
    image_file: str = ""
    folder: str = ""
    run_folder: str = ""
    binds: tuple[Bind, ...] = ()
    gpus: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    as_root: bool = False


@dataclass(frozen=True)
class Hidden:
    """How names that are known only at the last moment get in: at this place of argv behind `option`, or by `prefix`."""

    at: int = 0
    option: str = ""
    prefix: str = ""


@dataclass(frozen=True)
class Start:
    """What is executed on the node. `wrappers` are programs in between, by the names the kernel has for them."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    hidden: Hidden = field(default_factory=Hidden)
    no_new_privs: bool = True
    wrappers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Runtime:
    """One way to start work. `program` must be on the node; `fetch` gives the command that gets an image there.

    `keeps` is the ending of the file an image is kept in, "" when the runtime has a store of its own.
    """

    name: str
    program: str
    start: Callable[[Work], Start]
    fetch: Callable[[Image, str], list[str]] | None = None
    known: Callable[[Image], list[str]] | None = None
    keeps: str = ""
    separators: str = ""

    @property
    def has_images(self) -> bool:
        """Whether it starts containers."""
        return self.fetch is not None


def _process(work: Work) -> Start:
    return Start(work.argv, work.env, work.cwd)


def _bubblewrap(work: Work) -> Start:
    """The node's own files, read-only, with a /dev of its own: no other GPU can be opened. Mounts alone are writable."""
    argv = ["bwrap", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"]
    argv += ["--bind", "/dev/shm", "/dev/shm", "--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108 - inside
    for device in work.devices:
        argv += ["--dev-bind", device, device]
    for bind in work.binds:
        argv += ["--ro-bind" if bind.read_only else "--bind", bind.source, bind.target]
    for name, value in work.env.items():
        argv += ["--setenv", name, value]
    argv += ["--chdir", work.cwd, "--", *work.argv]
    return Start(tuple(argv), _host(work), "/", wrappers=("bwrap",))


def _podman(work: Work) -> Start:
    """Rootless as the job's user. Its helpers map user ids, which they may not with no_new_privs: that is set inside.

    Without cgroups of its own it stays in the rank's, which podman does only with process ids of its own.
    """
    argv = [
        "podman",
        "run",
        "--rm",
        "--replace",
        "--pull=never",
        "--log-driver=none",
        "--cgroups=disabled",
        f"--name={work.name}",
    ]
    argv += ["--network=host", "--ipc=host", "--security-opt=no-new-privileges", "--cap-drop=all"]
    argv += ["--security-opt=label=disable", "--entrypoint="]
    argv += [] if work.as_root else ["--userns=keep-id"]
    argv += [f"--workdir={work.cwd}"] if work.cwd else []
    argv += [f"--volume={b.source}:{b.target}:{'ro' if b.read_only else 'rw'}" for b in work.binds]
    argv += [f"--device={CDI}={gpu}" for gpu in work.gpus]
    argv += [f"--device={device}" for device in work.devices if not device.startswith("/dev/nvidia")]
    argv += [f"--env={name}={value}" for name, value in _inside(work).items()]
    at = len(argv)
    argv += [_reference(work), *work.argv]
    wrappers = ("podman", "conmon", "crun", "runc", "catatonit")
    return Start(tuple(argv), _host(work), "/", Hidden(at, "--env"), no_new_privs=False, wrappers=wrappers)


def _apptainer(work: Work) -> Start:
    """`--nv` shows all GPUs of the node; where the devices controller does not close them, only CUDA is told which."""
    argv = ["apptainer", "exec", "--userns", "--contain", "--cleanenv", "--no-eval", "--writable-tmpfs"]
    argv += ["--bind=/dev/shm"]
    argv += ["--nv"] if work.gpus else []
    argv += [f"--bind={device}" for device in work.devices if not device.startswith("/dev/nvidia")]
    argv += [f"--bind={b.source}:{b.target}:{'ro' if b.read_only else 'rw'}" for b in work.binds]
    argv += [f"--pwd={work.cwd}"] if work.cwd else []
    argv += [work.image_file, *work.argv]
    told = {f"APPTAINERENV_{name}": value for name, value in _inside(work).items()}
    wrappers = ("apptainer", "starter", "starter-suid", "squashfuse", "squashfuse_ll", "fuse-overlayfs")
    return Start(tuple(argv), _host(work) | told, "/", Hidden(prefix="APPTAINERENV_"), wrappers=wrappers)


def _enroot(work: Work) -> Start:
    """From the squashed image, with changes kept in memory. The command is executed as it is: `rc` takes the place of
    the image's own entry point, and goes to the folder first, for which enroot has no option."""
    argv = ["enroot", "start", "--rw", f"--rc={enroot_rc(work.folder)}"]
    told = _inside(work) | {"GANGOPS_CWD": work.cwd or "/", "NVIDIA_VISIBLE_DEVICES": ",".join(work.gpus) or "void"}
    told |= {"MELLANOX_VISIBLE_DEVICES": "all"} if work.gpus else {}
    for bind in work.binds:
        argv += ["--mount", f"{bind.source}:{bind.target}:none:x-create=auto,rbind,{'ro' if bind.read_only else 'rw'}"]
    for name, value in told.items():
        argv += ["--env", f"{name}={value}"]
    at = len(argv)
    argv += [work.image_file, *work.argv]
    env = _host(work) | {"ENROOT_MOUNT_HOME": "no", "ENROOT_RESTRICT_DEV": "yes"}
    wrappers = ("enroot", "enroot-unshare", "enroot-switchro", "squashfuse", "fuse-overlayfs", "fuse-shim")
    return Start(tuple(argv), env, "/", Hidden(at, "--env"), wrappers=wrappers)


ENROOT_RC = 'cd "$GANGOPS_CWD" && exec "$@"\n'


def enroot_rc(folder: str) -> str:
    """Where `ENROOT_RC` lies in a user's folder."""
    return f"{folder}/rc"


def _inside(work: Work) -> dict[str, str]:
    return {n: value for n, value in work.env.items() if n not in _OF_THE_HOST or n in work.given}


def _host(work: Work) -> dict[str, str]:
    """The environment of a program on the node that starts the work: nothing in it is the job's to choose."""
    user = {name: work.env[name] for name in ("USER", "LOGNAME") if name in work.env and name not in work.given}
    kept = kept_in(work.folder, work.run_folder) if work.folder else {}
    return {"PATH": _HOST_PATH, "HOME": work.home, "LANG": "C.UTF-8", **user, **kept}


def kept_in(folder: str, run_folder: str) -> dict[str, str]:
    """Variables that tell each runtime where to keep its things, when it fetches and when it starts."""
    enroot = {f"ENROOT_{what}_PATH": f"{folder}/{what.lower()}" for what in ("CACHE", "DATA", "TEMP")}
    return {
        "XDG_RUNTIME_DIR": run_folder,
        "APPTAINER_CACHEDIR": f"{folder}/cache",
        "APPTAINER_TMPDIR": f"{folder}/temp",
        "ENROOT_RUNTIME_PATH": f"{run_folder}/enroot",
        **enroot,
    }


def _reference(work: Work) -> str:
    return work.image.reference if work.image else ""


RUNTIMES: Mapping[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        Runtime("process", "", _process),
        Runtime("bubblewrap", "bwrap", _bubblewrap),
        Runtime(
            "podman",
            "podman",
            _podman,
            fetch=lambda image, _: ["podman", "pull", "--quiet", image.reference],
            known=lambda image: ["podman", "image", "exists", image.reference],
            separators=":",
        ),
        Runtime(
            "apptainer",
            "apptainer",
            _apptainer,
            fetch=lambda image, file: ["apptainer", "pull", "--force", file, f"docker://{image.reference}"],
            keeps=".sif",
            separators=":,",
        ),
        Runtime(
            "enroot",
            "enroot",
            _enroot,
            fetch=lambda image, file: ["enroot", "import", "--output", file, f"docker://{image.for_enroot}"],
            keeps=".sqsh",
            separators=": \t",
        ),
    )
}
"""`separators` are characters that a path to be mounted cannot have."""
