"""How soon does a merge run, does a cancel stop, and how many commits do fifty people at once cost?

Run: `./dev run python -m tests.benchmarks.bench_path [MERGES] [SECONDS_APART]` on a quiet machine (on a busy one, as
root, with `chrt -r 1` before it: then only disks are shared). Sixteen agents, one
reconciler, real git and real ranks, with the intervals nobody sets (2 s polls, 5 s cycles, 12 s between gathered
starts). Times are from the start of `git push`, or of the verb, to what the first rank of two nodes itself noted.
With the webhook the remote is asked only once a minute, so that nothing but the ring can have been the cause.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from reconciler.model.allocation import JobRecord
from reconciler.model.units import JobKey
from reconciler.runtime.demo.stage import Stage, free_port
from reconciler.store.history import first_parent_log
from reconciler.store.signatures import make_key

_PATIENCE = 120
_BURST, _BURST_SECONDS = 50, 60
_SCRIPT = """\
note() { date +%s.%N > $1.new; mv $1.new $1; }
note FOLDER/started.$NODE_RANK
trap 'note FOLDER/signalled.$NODE_RANK; exit 1' TERM USR1
sleep 3600 & wait
"""
_HOOK = """\
#!/bin/sh
while read -r _ _ ref; do
  body="{\\"ref\\": \\"$ref\\"}"
  sum=$(printf %s "$body" | openssl dgst -sha256 -hmac "$(cat SECRET)" -r | cut -d' ' -f1)
  curl -sS -m 5 -o /dev/null -H "X-Hub-Signature-256: sha256=$sum" -d "$body" http://ADDRESS/push || true
done
"""


def main(merges: int, apart: float) -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs; {merges} merges {apart:.0f} s apart")
    for rings in (False, True):
        name = "webhook" if rings else "polling"
        with tempfile.TemporaryDirectory(prefix="gangops-path-") as folder, Stage(Path(folder)) as stage:
            _begin(stage, rings=rings)
            begun, stopped = _merges(stage, name, merges, apart)
            _tell(f"{name}: merge -> first rank runs", begun)
            _tell(f"{name}: cancel --now -> ranks signalled", stopped)
            if rings:
                _burst(stage)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


def _begin(stage: Stage, *, rings: bool) -> None:
    stage.build()
    key = make_key(stage.folder / "ada", "ada")
    head = "apiVersion: gangops/v1\nkind: User\nmetadata: {name: ada}\n"
    spec = f"spec: {{emails: [ada@example.org], sshKeys: ['{key.public_key()}']}}\n"
    stage.write("cluster-state/users/ada.yaml", head + spec)
    config = stage.people / "cluster-state" / "cluster.yaml"
    text = config.read_text()
    for said, instead in (
        ("pollInterval: 1s, publishInterval: 0s", "pollInterval: 1m" if rings else "pollInterval: 2s"),
        ("    cycleInterval: 1s\n", ""),
        ("    reportInterval: 1s\n    unreachableAfter: 3s\n    lostAfter: 5s\n", ""),
    ):
        assert said in text, said
        text = text.replace(said, instead)
    config.write_text(text)
    stage.commit("Intervals nobody sets", branch="main")
    if rings:
        _connect(stage)
    stage.start_reconciler()
    stage.start_agents()
    stage.until("agents connect", _PATIENCE, lambda g: len(g.observed.nodes) == len(stage.nodes))


def _connect(stage: Stage) -> None:
    """The webhook: a hook of the remote, and a bell."""
    address, secret = f"127.0.0.1:{free_port()}", stage.folder / "bell.secret"
    secret.write_text(secrets.token_hex(32))
    with stage.settings_file.open("a") as file:
        file.write(f'\n[bell]\nlisten = "{address}"\nsecret = "{secret}"\n')
    hook = stage.remote / "hooks" / "post-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(_HOOK.replace("SECRET", str(secret)).replace("ADDRESS", address))
    hook.chmod(0o755)


def _merges(stage: Stage, name: str, merges: int, apart: float) -> tuple[list[float], list[float]]:
    begun, stopped = [], []
    for number in range(merges):
        again_at = time.monotonic() + apart
        job = f"{name}-{number}"
        folder = stage.folder / job
        folder.mkdir()
        stage.write(f"cluster-state/jobs/nlp/{job}.yaml", _job(job, 16, _SCRIPT.replace("FOLDER", str(folder))))
        begun.append(_first(folder, "started", 1, lambda: stage.commit("One job more", branch="main")))
        time.sleep(3)
        stopped.append(_first(folder, "signalled", 2, lambda job=job: _cancel(stage, f"nlp/{job}")))  # type: ignore[misc]  # mypy knows no type of a default
        stage.git("pull", "--quiet", "origin", "main")
        time.sleep(max(0.0, again_at - time.monotonic()))
    return begun, stopped


def _job(name: str, gpus: int, script: str) -> str:
    lines = "".join(f"      {line}\n" for line in script.splitlines())
    spec = f"spec:\n  queue: nlp\n  gpus: {gpus}\n  timeLimit: 1h\n  run:\n    launch: perNode\n    script: |\n{lines}"
    return f"apiVersion: gangops/v1\nkind: Job\nmetadata: {{name: {name}}}\n{spec}"


def _first(folder: Path, what: str, ranks: int, act: Callable[[], object]) -> float:
    """Seconds from the beginning of an act to what so many ranks noted: the first of them, or all."""
    begun, until = time.time(), time.monotonic() + _PATIENCE
    act()
    while len(found := [float(file.read_text()) for file in folder.glob(f"{what}.[0-9]")]) < ranks:
        assert time.monotonic() < until, f"{folder.name} was never {what}"
        time.sleep(0.02)
    return max(found) - begun


def _cancel(stage: Stage, job: str) -> None:
    who = {f"GIT_{one}_{what}": text for one in ("AUTHOR", "COMMITTER")
           for what, text in (("NAME", "Ada"), ("EMAIL", "ada@example.org"))}  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "HOME": str(stage.folder), "GIT_CONFIG_NOSYSTEM": "1", **who}
    words = ["-C", str(stage.people), "cancel", job, "--now", "--yes", "--key", str(stage.folder / "ada")]
    done = subprocess.run(
        [sys.executable, "-m", "reconciler.cli", *words],
        env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def _burst(stage: Stage) -> None:
    """Fifty merges in a minute, each a push of its own."""
    time.sleep(_BURST_SECONDS)  # what came before is over, and nothing is owed
    before, begun, pushed = stage.clone.generation().summary.generation, time.monotonic(), []
    names = [f"burst-{number:02}" for number in range(_BURST)]
    for number, name in enumerate(names):
        time.sleep(max(0.0, begun + number * _BURST_SECONDS / _BURST - time.monotonic()))
        stage.write(f"cluster-state/jobs/nlp/{name}.yaml", _job(name, 1, "sleep 3600\n"))
        stage.commit(f"Submit {name}", branch="main")
        pushed.append(time.monotonic() - begun)

    def all_are(placed: Callable[[JobRecord], bool]) -> float:
        stage.until("the burst", _PATIENCE, lambda g: all(
            (record := g.allocation.jobs.get(JobKey(f"nlp/{name}"))) is not None and placed(record) for name in names
        ))  # fmt: skip
        return time.monotonic() - begun

    placed = all_are(lambda record: record.placement is not None)
    tip = stage.clone.state_tip()
    commits = sum(int(m.only_trailer("Generation")) > before for m in first_parent_log(stage.clone.git, tip))
    running = all_are(lambda record: record.state.value == "Running")
    print(
        f"burst: {_BURST} merges in {pushed[-1]:.0f} s, all placed after {placed:.0f} s by {commits} state commits, "
        f"all running after {running:.0f} s"
    )


def _tell(what: str, seconds: Sequence[float]) -> None:
    cuts = statistics.quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 19
    print(
        f"{what}: p50 {statistics.median(seconds):.1f} s, p95 {cuts[18]:.1f} s, most {max(seconds):.1f} s", flush=True
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever ends it ends its cluster too
    if shutil.which("curl") is None or shutil.which("openssl") is None:
        sys.exit("needs curl and openssl")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, float(sys.argv[2]) if len(sys.argv) > 2 else 30.0)
