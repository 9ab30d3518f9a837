"""What each runtime is told to start, which images a node takes, and real ranks under stand-ins and real bubblewrap.

The stand-ins do what the real programs do with what they are told, and note how they were called.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconciler.agent import proc
from reconciler.agent.conf import Conf, read_conf
from reconciler.agent.devices import files_of, others
from reconciler.agent.images import image_of, is_allowed
from reconciler.agent.launch import Site, start_of
from reconciler.agent.limits import Account, refusal
from reconciler.agent.prepare import prepare
from reconciler.wire import AttemptOrder

from .conftest import Agents, Hub, StateRepo, running
from .test_run import started, until

USER = Account("jane", "/home/jane", "/bin/bash", 1001, 1001)
IMAGE = "nvcr.io/nvidia/pytorch:25.01-py3"
SITE = Site(
    events=Path("/e"),
    boot="b",
    log_limits={},
    images="/images/1001",
    run="/run/gangops/1001",
    devices=("/dev/nvidia3", "/dev/nvidiactl", "/dev/infiniband"),
    has_gpus=True,
)

STAND_IN = """#!{python}
import json, os, pathlib, signal, subprocess, sys
me, args, here = pathlib.Path(sys.argv[0]).name, sys.argv[1:], pathlib.Path({folder!r})
with (here / "calls").open("a") as calls:
    calls.write(json.dumps({{"me": me, "args": args, "env": dict(os.environ)}}) + "\\n")
if args[0] in ("pull", "import"):
    if (here / "offline").exists():
        sys.exit("no route to the registry")
    for file in (a for a in args if a.endswith((".sif", ".sqsh"))):
        pathlib.Path(file).write_text("image")
    sys.exit()
if args[:2] == ["image", "exists"]:
    sys.exit(0 if (here / "pulled").exists() else 1)
env, command, at = {{}}, [], 1
for name, value in os.environ.items():
    if name.startswith("APPTAINERENV_"):
        env[name.removeprefix("APPTAINERENV_")] = value
while at < len(args) and args[at].startswith("--"):
    option, _, value = args[at].partition("=")
    if not _ and option in ("--env", "--mount"):
        at, value = at + 1, args[at + 1]
    if option == "--env":
        name, told, text = value.partition("=")
        env[name] = text if told else os.environ[name]
    at += 1
signal.signal(signal.SIGUSR1, lambda *_: (here / "wrapper-heard").touch())  # as programs in Go catch every signal
child = subprocess.Popen(args[at + 1 :], env={{"PATH": "/usr/bin:/bin", **env}})
while True:
    try:
        sys.exit(child.wait())
    except InterruptedError:
        pass
"""


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """podman, apptainer and enroot as one recording program, first in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir(mode=0o755)
    text = STAND_IN.format(python=sys.executable, folder=str(folder))
    for name in ("podman", "apptainer", "enroot"):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def calls(folder: Path, program: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    return [call for call in found if call["me"] == program]


@pytest.fixture
def conf(agents: Agents) -> Conf:
    limits = "[limits]\nruntimes = process bubblewrap podman apptainer enroot\nregistries = nvcr.io/nvidia\n"
    agents.conf.write_text(f"{agents.conf.read_text()}{limits}[images]\ndir = images\nrunDir = run\n")
    return read_conf(agents.conf)


# --- images ---


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("acme/train:7", "docker.io/acme/train:7"),
        ("docker.io/ubuntu:22.04", "docker.io/library/ubuntu:22.04"),
        ("index.docker.io/acme/train", "docker.io/acme/train:latest"),
        ("nvcr.io/nvidia/pytorch:25.01-py3", IMAGE),
        ("nvcr.io#nvidia/pytorch:25.01-py3", IMAGE),
        ("docker://nvcr.io/nvidia/pytorch:25.01-py3", IMAGE),
        ("localhost:5000/a/b:1", "localhost:5000/a/b:1"),
        (f"nvcr.io/a/b:1@sha256:{'a' * 64}", f"nvcr.io/a/b@sha256:{'a' * 64}"),
    ],
)
def test_an_image_is_known_by_its_full_name(text: str, reference: str) -> None:
    image = image_of(text)
    assert image
    assert image.reference == reference


@pytest.mark.parametrize(
    "text",
    ["", "-v", "--privileged", "a b", "nvcr.io/../x", "Nvcr.io/X", "a//b", "a:b:c", "x@sha256:12", "/i/../x", "a\n"],
)
def test_what_is_no_image_is_none(text: str) -> None:
    assert image_of(text) is None


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("nvcr.io/nvidia/pytorch:1", True),
        ("nvcr.io/nvidia", True),
        ("nvcr.io/nvidia-evil/x", False),
        ("nvcr.io.evil.org/nvidia/x", False),
        ("evil.org/nvcr.io/nvidia/x", False),
        ("nvidia/pytorch", False),
        ("/fs/images/a.sqsh", True),
        ("/fs/images2/a.sqsh", False),
        ("/fs/images", False),
    ],
)
def test_images_come_from_the_registries_of_the_node_alone(text: str, allowed: bool) -> None:
    image = image_of(text)
    assert image
    assert is_allowed(image, ("nvcr.io/nvidia/", "/fs/images")) is allowed


def test_a_node_that_names_no_registry_takes_no_image() -> None:
    image = image_of(IMAGE)
    assert image
    assert not is_allowed(image, ())


# --- what is started ---


def start(order: AttemptOrder, runtime: str, **changes: Any) -> tuple[str, dict[str, str]]:
    """The command of rank 1 as one text, and the environment of the program that starts it."""
    given = {"image": IMAGE, "workingDir": "", "command": ["python", "train.py"], **changes}
    placed = running(order, runtime=runtime, **given)
    found = start_of(placed, placed.ranks[1], USER, SITE)
    return " ".join([Path(found.argv[0]).name, *found.argv[1:]]), dict(found.env)


def test_a_process_is_started_as_it_is(order: AttemptOrder) -> None:
    command, env = start(order, "process", image="")
    assert command == "python train.py"
    assert env["RANK"] == "1"


def test_podman_gets_the_attempts_gpus_by_cdi_and_nothing_of_the_jobs_environment(order: AttemptOrder) -> None:
    command, env = start(order, "podman", env={"LD_PRELOAD": "/fs/evil.so", "CONTAINERS_CONF": "/fs/x", "MINE": "a b"})
    words = command.split()
    assert words[:2] == ["podman", "run"]
    assert {"--device=nvidia.com/gpu=GPU-0", "--device=nvidia.com/gpu=GPU-1", "--device=/dev/infiniband"} <= set(words)
    assert not [word for word in words if word.startswith("--device=/dev/nvidia")]
    assert {"--userns=keep-id", "--cap-drop=all", "--security-opt=no-new-privileges", "--pull=never"} <= set(words)
    assert "--cgroups=disabled" in words
    assert not [word for word in words if word.startswith("--pid")], "podman refuses both"
    assert "--env=LD_PRELOAD=/fs/evil.so" in words
    assert {"LD_PRELOAD", "CONTAINERS_CONF", "MINE", "RANK"} & set(env) == set()
    assert command.endswith(f"{IMAGE} python train.py")
    assert "--env=PATH" not in command, "the image knows its own"


def test_apptainer_gets_the_environment_by_its_own_names(order: AttemptOrder) -> None:
    command, env = start(order, "apptainer", env={"LD_PRELOAD": "/fs/evil.so", "PATH": "/mine"})
    assert command.startswith("apptainer exec --userns --contain --cleanenv ")
    assert " --nv " in command
    assert command.endswith(".sif python train.py")
    assert (env["APPTAINERENV_LD_PRELOAD"], env["APPTAINERENV_RANK"], env["APPTAINERENV_PATH"]) == (
        "/fs/evil.so",
        "1",
        "/mine",
    )
    assert "LD_PRELOAD" not in env
    assert env["PATH"] != "/mine"


def test_enroot_is_told_which_gpus_to_show_and_where_to_start(order: AttemptOrder) -> None:
    command, env = start(order, "enroot", workingDir="/workspace", env={"BASH_ENV": "/fs/evil"})
    assert "--env NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1" in command
    assert "--env GANGOPS_CWD=/workspace" in command
    assert "--rc=/images/1001/rc" in command
    assert command.endswith(".sqsh python train.py")
    assert "BASH_ENV" not in env


def test_bubblewrap_sees_its_own_gpus_and_writes_to_its_mounts_alone(order: AttemptOrder) -> None:
    mounts = [{"source": "/fs/in", "target": "/fs/in", "readOnly": True}, {"source": "/fs/out", "target": "/fs/out"}]
    command, env = start(order, "bubblewrap", image="", mounts=mounts, env={"LD_PRELOAD": "/fs/evil.so"})
    assert "--ro-bind / / --dev /dev" in command
    assert "--dev-bind /dev/nvidia3 /dev/nvidia3" in command
    assert "--ro-bind /fs/in /fs/in --bind /fs/out /fs/out" in command
    assert "--setenv LD_PRELOAD /fs/evil.so" in command
    assert "LD_PRELOAD" not in env


@pytest.mark.parametrize("runtime", ["podman", "apptainer", "enroot", "bubblewrap"])
def test_where_a_job_saves_and_what_it_is_told_is_there_in_every_runtime(runtime: str, order: AttemptOrder) -> None:
    placed = replace(order, topoFile="/etc/nccl/hgx.xml")
    assert order.checkpoint
    found, _ = start(placed, runtime, image=IMAGE if runtime != "bubblewrap" else "")
    assert order.checkpoint.dir in found
    assert "/etc/nccl/hgx.xml" in found
    within = [{"source": order.run.workingDir, "target": order.run.workingDir}]
    again, _ = start(order, runtime, image=IMAGE if runtime != "bubblewrap" else "", mounts=within)
    assert f"{order.checkpoint.dir}:" not in again, "a mount has it already"


def test_pretended_gpus_are_not_passed_on(order: AttemptOrder) -> None:
    for runtime in ("podman", "apptainer", "enroot"):
        placed = running(order, runtime=runtime, image=IMAGE)
        found = start_of(placed, placed.ranks[0], USER, replace(SITE, devices=(), has_gpus=False))
        words = " ".join(found.argv)
        assert (
            "nvidia.com/gpu" in words,
            "--nv" in words,
            "GPU-0,GPU-1" in words.replace("CUDA_VISIBLE_DEVICES=GPU-0,GPU-1", ""),
        ) == (
            False,
            False,
            False,
        )


def test_device_files_are_found_by_uuid_and_not_by_index(tmp_path: Path) -> None:
    gpus = {"GPU-a": 1, "GPU-b": 0}
    for number, (uuid, minor) in enumerate(gpus.items()):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    assert files_of(["GPU-a"], tmp_path) == ("/dev/nvidia1", "/dev/nvidiactl")
    assert files_of(["GPU-a", "GPU-unknown"], tmp_path) == ()
    assert others(["GPU-a"], tmp_path) == (), "a plain file is no device"
    if os.geteuid() == 0:
        (tmp_path / "dev/nvidia0").unlink()
        os.mknod(tmp_path / "dev/nvidia0", 0o20666, os.makedev(195, 0))
        assert others(["GPU-a"], tmp_path) == ("c 195:0",)
        assert others(["GPU-a", "GPU-b"], tmp_path) == ()


# --- what is refused, and what is fetched ---


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"runtime": "podman", "image": "evil.org/x"}, "ImageNotAllowed"),
        ({"runtime": "podman", "image": "--privileged"}, "ImageNotAllowed"),
        ({"runtime": "podman", "image": "/fs/x.sif"}, "ImageNotAllowed"),
        ({"runtime": "apptainer", "image": "IMAGES/none.sif"}, "ImageMissing"),
        ({"runtime": "apptainer", "image": "IMAGES/link.sif"}, "ImageNotAllowed"),
        ({"runtime": "apptainer", "image": "IMAGES/real.sif"}, ""),
        ({"runtime": "podman", "mounts": [{"source": "ROOT/link", "target": "/x"}]}, "MountNotAllowed"),
        ({"runtime": "podman", "mounts": [{"source": "ROOT/link/below", "target": "/x"}]}, "MountNotAllowed"),
        ({"runtime": "podman", "mounts": [{"source": "/etc", "target": "/x"}]}, "MountNotAllowed"),
        ({"runtime": "podman", "mounts": [{"source": "ROOT/real", "target": "/x:rw,exec"}]}, "MountNotAllowed"),
        ({"runtime": "apptainer", "mounts": [{"source": "ROOT/real", "target": "/x,/y"}]}, "MountNotAllowed"),
        ({"runtime": "podman", "mounts": [{"source": "ROOT/none", "target": "/x"}]}, "MountMissing"),
        ({"runtime": "podman", "mounts": [{"source": "ROOT/real", "target": "/x"}]}, ""),
        (
            {"runtime": "bubblewrap", "image": "", "mounts": [{"source": "ROOT/real", "target": "/x"}]},
            "MountNotAllowed",
        ),
        ({"runtime": "podman", "env": {"A=B --privileged": "x"}}, "BadOrder"),
        ({"runtime": "enroot", "env": {"A": "x\nB=y"}}, "EnvNotPossible"),
        ({"runtime": "docker"}, "RuntimeNotAllowed"),
    ],
)
def test_what_a_container_may_not_have_is_refused_by_name(
    changes: dict[str, Any], code: str, conf: Conf, order: AttemptOrder, stand_ins: Path, tmp_path: Path
) -> None:
    (tmp_path / "root/real").mkdir(parents=True)
    (tmp_path / "root/link").symlink_to("/etc")
    (tmp_path / "images").mkdir()
    (tmp_path / "images/real.sif").touch()
    (tmp_path / "images/link.sif").symlink_to("/etc/passwd")
    text = json.dumps(changes).replace("ROOT", str(tmp_path / "root")).replace("IMAGES", str(tmp_path / "images"))
    limits = replace(
        conf.limits,
        mount_roots=(str(tmp_path / "root"), str(tmp_path / "ckpt")),
        registries=("nvcr.io/nvidia", str(tmp_path / "images")),
    )
    asked = running(order, "prepare", **{"image": IMAGE, **json.loads(text)})
    assert refusal(asked, replace(conf, limits=limits)).partition(":")[0] == code


def test_a_runtime_that_is_not_installed_is_said_so(
    conf: Conf, order: AttemptOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusal(running(order, "prepare", runtime="podman", image=IMAGE), conf).startswith(
        "RuntimeMissing: there is no podman"
    )


@pytest.mark.parametrize(("runtime", "file"), [("apptainer", ".sif"), ("enroot", ".sqsh")])
def test_an_image_is_fetched_before_prepared_is_said(
    runtime: str, file: str, conf: Conf, order: AttemptOrder, stand_ins: Path, tmp_path: Path
) -> None:
    pinned = f"nvcr.io/nvidia/pytorch@sha256:{'b' * 64}"
    for image, fetched in ((IMAGE, [1, 2]), (pinned, [3, 3])):  # what a tag means may change, a digest may not
        for number in fetched:
            assert prepare(running(order, "prepare", runtime=runtime, image=image), conf, lambda *_: "") == ""
            assert len(calls(stand_ins, runtime)) == number
    images = tmp_path / "images" / str(os.geteuid())
    assert len([path for path in images.iterdir() if path.suffix == file]) == 2
    assert images.stat().st_mode & 0o777 == 0o700
    (stand_ins / "offline").touch()
    reason = prepare(running(order, "prepare", runtime=runtime, image=IMAGE), conf, lambda *_: "")
    assert reason == f"ImageUnavailable: {runtime}: no route to the registry"


def test_podman_keeps_its_images_itself(conf: Conf, order: AttemptOrder, stand_ins: Path) -> None:
    pinned = f"nvcr.io/nvidia/pytorch@sha256:{'b' * 64}"
    assert prepare(running(order, "prepare", runtime="podman", image=pinned), conf, lambda *_: "") == ""
    (stand_ins / "pulled").touch()
    assert prepare(running(order, "prepare", runtime="podman", image=pinned), conf, lambda *_: "") == ""
    assert [call["args"][0] for call in calls(stand_ins, "podman")] == ["image", "pull", "image"]


def test_bubblewrap_does_not_start_without_its_gpus(conf: Conf, order: AttemptOrder) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    asked = running(order, "prepare", runtime="bubblewrap")
    assert prepare(asked, conf, lambda *_: "") == ""
    assert prepare(asked, replace(conf, simulation=None), lambda *_: "").startswith("DevicesUnknown: ")


# --- real ranks ---

SAVES = """
trap 'echo 100 > "$GANGOPS_CHECKPOINT_MARKER.new" && mv "$GANGOPS_CHECKPOINT_MARKER.new" "$GANGOPS_CHECKPOINT_MARKER"' USR1
echo "rank $RANK sees $TOKEN as $MINE" && touch "$GANGOPS_CHECKPOINT_DIR/ready-$RANK"
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("runtime", ["podman", "apptainer", "enroot"])
def test_a_gang_in_containers_runs_saves_and_is_gone(
    runtime: str,
    conf: Conf,
    agents: Agents,
    hub: Hub,
    repo: StateRepo,
    order: AttemptOrder,
    stand_ins: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/token").write_text("# for the registry\nTOKEN=hush\n")
    limits = agents.conf.read_text().replace("[limits]\n", f"[limits]\nsecretRoots = {tmp_path}/secrets\n")
    agents.conf.write_text(limits)
    secret = [str(tmp_path / "secrets/token")]
    order = running(
        order,
        runtime=runtime,
        image=IMAGE,
        command=[],
        script=SAVES,
        env={"MINE": "me"},
        secretFiles=secret,
        workingDir="",
    )
    started(agents, hub, repo, order)
    until(lambda: (tmp_path / "ckpt" / "ready-0").exists() and (tmp_path / "ckpt" / "ready-1").exists(), "ranks ready")
    inside = [pid for facts in agents.facts().values() for pid in proc.children_of(int(facts["pid"]))]
    assert len(inside) == 2
    hub.offer(repo.orders(3, running(order, "checkpoint")), 3)
    assert hub.wait_state("Gone").exitCode in (128 + signal.SIGTERM, 0)
    assert (tmp_path / "ckpt" / "latest").read_text() == "100\n", "what is inside was asked to save"
    assert not (stand_ins / "wrapper-heard").exists(), "and not what started it"
    assert not [pid for pid in inside if proc.start_time(pid)]
    assert (tmp_path / "logs/nlp/train/1/1.log").read_text() == "rank 1 sees hush as me\n"
    starts = [call for call in calls(stand_ins, runtime) if call["args"][0] in ("run", "exec", "start")]
    assert len(starts) == 2
    assert not [word for call in starts for word in call["args"] if "hush" in word], "a command line is public"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user can get to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


PROBE = """
touch /var/tmp/gangops-probe 2>/dev/null && echo wrote the node
test -e /dev/kmsg && echo kernel log
echo inside > "$OUT/result" && echo wrote its mount
grep -E '^(NoNewPrivs|CapEff)' /proc/self/status; id -un; echo "$TOKEN $LD_PRELOAD"
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_real_bubblewrap_shows_the_node_and_lets_nothing_be_changed(
    conf: Conf, agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, shared: Path
) -> None:
    trial = subprocess.run(["bwrap", "--ro-bind", "/", "/", "true"], check=False, user="nobody", capture_output=True)
    if trial.returncode != 0:
        pytest.skip("users may not make namespaces here")
    out, secrets = shared / "out", shared / "secrets"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    secrets.mkdir(mode=0o700)
    (secrets / "token").write_text("TOKEN=hush\n")
    text = agents.conf.read_text().replace("dir = logs", f"dir = {shared}/logs")
    agents.conf.write_text(text.replace("[limits]\n", f"[limits]\nsecretRoots = {secrets}\n"))
    order = replace(
        running(
            order,
            "prepare",
            runtime="bubblewrap",
            user="nobody",
            command=[],
            script=PROBE,
            workingDir="/",
            env={"OUT": str(out), "LD_PRELOAD": ""},
            mounts=[{"source": str(out), "target": str(out)}],
            secretFiles=[str(secrets / "token")],
        ),
        checkpoint=None,
    )
    agents.start()
    hub.offer(repo.orders(1, order), 1)
    assert hub.wait_state("Prepared").reason == ""
    hub.offer(repo.orders(2, running(order, "run")), 2)
    assert hub.wait_state("Exited").exitCode == 0
    log = (shared / "logs/nlp/train/1/0.log").read_text().splitlines()
    assert log == ["wrote its mount", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "nobody", "hush "]
    assert (out / "result").read_text() == "inside\n"
    assert not Path("/var/tmp/gangops-probe").exists()
