"""A state repository made by real git, a reconciler's side reduced to one handler, and agents as real processes."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from reconciler.agent import proc
from reconciler.agent.folder import sweep
from reconciler.agent.verify import Trust
from reconciler.wire import (
    Answer,
    AttemptOrder,
    AttemptStatus,
    CheckpointOrder,
    NodeOrders,
    Proof,
    RankOrder,
    Report,
    RunOrder,
    decode_report,
    encode,
)

ROOT = Path(__file__).parents[2]
NODE, RACK, CLUSTER, PRINCIPAL = "gpu-001", "r01", "test-cluster", "reconciler@test"
PATIENCE = 60
_GIT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "LC_ALL": "C",
    "GIT_AUTHOR_NAME": "gangops",
    "GIT_AUTHOR_EMAIL": "r@test",
    "GIT_COMMITTER_NAME": "gangops",
    "GIT_COMMITTER_EMAIL": "r@test",
    "GIT_AUTHOR_DATE": "1764547200 +0000",
    "GIT_COMMITTER_DATE": "1764547200 +0000",
}


def make_key(folder: Path, name: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name], check=True)
    return folder / name


class StateRepo:
    """Signed state commits by real git, and what proves an order of theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.key = make_key(folder, "signer")
        self.signers = folder / "allowed_signers"
        self.signers.write_text(f'{PRINCIPAL} namespaces="git" {self.key.with_suffix(".pub").read_text()}')
        self.git("init", "-q", "--bare", "state.git", at=folder)

    @property
    def trust(self) -> Trust:
        return Trust(NODE, CLUSTER, PRINCIPAL, self.signers)

    def git(self, *arguments: str, stdin: bytes = b"", at: Path | None = None) -> bytes:
        return subprocess.run(
            ["git", *arguments],
            cwd=at or self.folder / "state.git",
            env=_GIT,
            input=stdin,
            capture_output=True,
            check=True,
        ).stdout

    def tree(self, *entries: tuple[str, str, str]) -> str:
        listing = "".join(
            f"{mode} {'tree' if mode == '040000' else 'blob'} {oid}\t{name}\n" for mode, oid, name in entries
        )
        return self.git("mktree", stdin=listing.encode()).decode().strip()

    def message(self, generation: int, epoch: int = 1, cluster: str = CLUSTER) -> str:
        return f"state {generation}\n\nGeneration: {generation}\nEpoch: {epoch}\nCluster-Id: {cluster}\n"

    def proof(
        self,
        file: bytes,
        generation: int = 1,
        *,
        epoch: int = 1,
        message: str = "",
        node: str = NODE,
        path: tuple[str, ...] = ("allocation", "nodes", RACK),
        mode: str = "100644",
        key: Path | None = None,
    ) -> Proof:
        """A signed commit whose tree has the file at the path of a node's orders, and the proof of it."""
        blob = self.git("hash-object", "-w", "--stdin", stdin=file).decode().strip()
        other = self.git("hash-object", "-w", "--stdin", stdin=b"other\n").decode().strip()
        chain = [self.tree(("100644", other, "another.json"), (mode, blob, f"{node}.json"))]
        for name in reversed(path):
            chain.insert(0, self.tree(("100644", other, "README"), ("040000", chain[0], name)))
        text = message or self.message(generation, epoch)
        sign = ["-c", "gpg.format=ssh", "-c", f"user.signingkey={key or self.key}"]
        commit = self.git(*sign, "commit-tree", "-S", chain[0], "-F", "-", stdin=text.encode()).decode().strip()
        return Proof(
            commitId=commit,
            commit=self.git("cat-file", "commit", commit),
            trees=[self.git("cat-file", "tree", tree) for tree in chain],
            path="/".join((*path, f"{node}.json")),
            file=file,
        )

    def orders(self, generation: int, *attempts: AttemptOrder, epoch: int = 1) -> Proof:
        content = json.dumps(asdict(NodeOrders(node=NODE, attempts=list(attempts))), sort_keys=True).encode()
        return self.proof(content, generation, epoch=epoch)


@pytest.fixture
def repo(tmp_path: Path) -> StateRepo:
    return StateRepo(tmp_path / "state")


@pytest.fixture
def order(tmp_path: Path) -> AttemptOrder:
    """Two ranks on this node that run a script of two lines; everything else switched off."""
    return AttemptOrder(
        job="nlp/train",
        attempt=1,
        phase="prepare",
        digest="sha256:1",
        worldSize=2,
        nodeRank=0,
        nodeCount=1,
        leaderAddress="127.0.0.1",
        port=0,
        ports=[],
        resume=False,
        deadline=None,
        killSeconds=5,
        fence="confirm",
        leaseSeconds=0,
        cpusPerGpu=1,
        memoryBytes=0,
        run=RunOrder(
            runtime="process",
            launch="perGpu",
            command=["/bin/sleep", "300"],
            script="",
            session=False,
            image="",
            workingDir=str(tmp_path),
            env={},
            mounts=[],
            secretFiles=[],
            user="self",
            group="",
            heartbeatFile="",
        ),
        checkpoint=CheckpointOrder(
            dir=str(tmp_path / "ckpt"),
            marker=str(tmp_path / "ckpt" / "latest"),
            signal="SIGUSR1",
            to="leader",
            graceSeconds=90,  # beyond all patience: who waits for it has not seen the marker
        ),
        ranks=[
            RankOrder(rank=r, localRank=r, gpu=r, uuid=f"GPU-{r}", numa=0, cpus="", nic=f"mlx5_{r}", rail=r)
            for r in range(2)
        ],
    )


def running(order: AttemptOrder, phase: str = "run", **changes: Any) -> AttemptOrder:
    """The order in another phase, with fields of the order or of its run part changed."""
    run = {name: changes.pop(name) for name in list(changes) if name in RunOrder.__dataclass_fields__}
    return replace(order, phase=phase, run=replace(order.run, **run), **changes)


@dataclass
class Hub:
    """The reconciler's side: holds a report until there is a newer order, a newer report, or the time is over."""

    url: str = ""
    lease: int = 0
    proof: Proof | None = None
    generation: int = 0
    reports: list[Report] = field(default_factory=list)
    moved: threading.Condition = field(default_factory=threading.Condition)
    silent: bool = False
    over: bool = False

    def offer(self, proof: Proof, generation: int) -> None:
        with self.moved:
            self.proof, self.generation = proof, generation
            self.moved.notify_all()

    def answer(self, report: Report) -> Answer:
        with self.moved:
            self.reports.append(report)
            self.moved.notify_all()
            ends = time.monotonic() + report.waitSeconds
            while self.reports[-1] is report and not self._news(report) and time.monotonic() < ends and not self.over:
                self.moved.wait(ends - time.monotonic())
            return Answer(self.generation, self.lease, self.proof if self._news(report) else None)

    def close(self) -> None:
        """Let go of every call that is held: its thread would outlive the test."""
        with self.moved:
            self.over, self.silent = True, False
            self.moved.notify_all()

    def _news(self, report: Report) -> bool:
        refused = {refusal.commitId for r in self.reports for refusal in r.refusals}
        return self.proof is not None and self.proof.commitId not in {report.commit, *refused}

    def wait_for(self, seen: Callable[[Report], object], seconds: float = PATIENCE) -> Report:
        """The first report, old or new, of which `seen` is true."""
        with self.moved:
            ends, at = time.monotonic() + seconds, 0
            while True:
                for report in self.reports[at:]:
                    if seen(report):
                        return report
                at = len(self.reports)
                if not self.moved.wait(ends - time.monotonic()) and time.monotonic() >= ends:
                    raise AssertionError(f"never reported; last: {self.reports[-1:]}")

    def wait_state(self, state: str, seconds: float = PATIENCE, attempt: int = 1) -> AttemptStatus:
        def matching(report: Report) -> list[AttemptStatus]:
            return [a for a in report.attempts if a.state == state and a.attempt == attempt]

        return matching(self.wait_for(matching, seconds))[0]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    found = Hub()
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    client = ca.issue_cert(f"{NODE}.test", common_name=NODE)
    client.private_key_pem.write_to_path(tmp_path / "node.key")
    client.cert_chain_pems[0].write_to_path(tmp_path / "node.pem")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            while found.silent:
                time.sleep(0.05)
            body = encode(found.answer(decode_report(content)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Agents are killed in the middle of everything here."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    ca.issue_cert("127.0.0.1").configure_cert(context)
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    server = Server(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    found.url = f"https://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield found
    found.close()
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Agents:
    """Starts agents on one state folder; at the end kills them, and by recorded pid all that they left."""

    folder: Path
    conf: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        chosen = list(command) or [sys.executable, "-m", "reconciler.agent"]
        with (self.folder / "agent.log").open("ab") as log:
            agent = subprocess.Popen([*chosen, "run", "--conf", str(self.conf)], stderr=log, stdout=log, cwd=ROOT)
        self.started.append(agent)
        return agent

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def facts(self) -> dict[int, dict[str, str]]:
        """The status files of attempt 1, by rank."""
        found = {}
        for path in (self.folder / "agent" / "attempts").glob("**/*.status"):
            pairs = dict(line.split("=", 1) for line in path.read_text().splitlines())
            found[int(pairs["rank"])] = pairs
        return found

    def clean(self) -> None:
        for agent in self.started:
            agent.kill()
            agent.wait()
        for facts in self.facts().values():
            if proc.is_alive(int(facts["shim"]), int(facts["shimStart"])):
                os.kill(int(facts["shim"]), signal.SIGKILL)
            sweep(facts)


@pytest.fixture
def agents(tmp_path: Path, hub: Hub, repo: StateRepo) -> Iterator[Agents]:
    conf = tmp_path / "agent.conf"
    conf.write_text(
        f"""[agent]
node = {NODE}
cluster = {CLUSTER}
servers = {hub.url}
address = 127.0.0.1
stateDir = agent
[tls]
ca = ca.pem
cert = node.pem
key = node.key
[trust]
allowedSigners = {repo.signers}
principal = {PRINCIPAL}
[logs]
dir = logs
[simulate]
gpus = 8
type = H100-SXM5-80GB
"""
    )
    conf.chmod(0o600)
    found = Agents(tmp_path, conf)
    yield found
    found.clean()
