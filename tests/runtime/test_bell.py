"""The forge's webhook: whose deliveries ring, what they ring for, and that a ring is soon a round of a real loop."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import re
import shutil
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from reconciler.errors import UsageError
from reconciler.model.lifecycle import JobState
from reconciler.runtime.bell import MOST_BYTES, Bell, BellServer, concerns, is_from_forge
from reconciler.runtime.settings import BellSetting
from tests.runtime.lab import CONFIG, Lab, jobs
from tests.store.world import git

KEY = b"0123456789abcdef"
PUSH = json.dumps({"ref": "refs/heads/main", "after": "c" * 40}).encode()
PATIENCE = 20
ROOT = Path(__file__).parents[2]


def github(body: bytes, key: bytes = KEY) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()}


GITLAB = {"X-Gitlab-Token": KEY.decode(), "X-Gitlab-Event": "Push Hook"}


@pytest.mark.parametrize(
    ("headers", "known"),
    [
        (github(PUSH), True),
        (github(PUSH, b"another secret of 16"), False),
        (github(PUSH + b" "), False),
        ({"X-Hub-Signature-256": github(PUSH)["X-Hub-Signature-256"].upper()}, False),
        ({"X-Hub-Signature-256": "sha256="}, False),
        ({"X-Hub-Signature": "sha1=" + hmac.new(KEY, PUSH, hashlib.sha1).hexdigest()}, False),
        (GITLAB, True),
        ({"X-Gitlab-Token": "0123456789abcdeF"}, False),
        ({"X-Gitlab-Token": "é"}, False),
        ({"X-Gitlab-Token": ""}, False),
        (GITLAB | github(PUSH, b"another secret of 16"), False),
        ({}, False),
    ],
    ids=["GitHub", "another secret", "another body", "upper case", "empty", "sha1 alone", "GitLab", "wrong token",
         "no ASCII", "empty token", "a wrong signature beside a token", "nothing"],
)  # fmt: skip
def test_who_knows_the_secret_is_the_forge(headers: dict[str, str], known: bool) -> None:
    assert is_from_forge(headers, PUSH, KEY) is known


@pytest.mark.parametrize(
    ("body", "rings"),
    [
        (PUSH, True),
        (b'{"ref": "refs/heads/request/cancel-a-1234567"}', True),
        (b'{"ref": "refs/heads/allocations"}', False),
        (b'{"ref": "refs/heads/gangops/submit-a"}', False),
        (b'{"ref": "refs/tags/main"}', False),
        (b'{"ref": "main", "ref_type": "branch"}', False),
        (b'{"zen": "Keep it logically awesome."}', False),
        (b'{"ref": ["refs/heads/main"]}', False),
        (b"[]", False),
        (b"payload=%7B%22ref%22", True),
        (b"\xff", True),
        (b"[" * 100_000, True),
    ],
    ids=["the desired branch", "a request", "our own record", "a proposal", "a tag", "a branch made", "a ping",
         "no text", "no object", "a form", "no UTF-8", "too deep"],
)  # fmt: skip
def test_only_what_decisions_read_rings(body: bytes, rings: bool) -> None:
    assert concerns(body, "main") is rings


@dataclass
class Forge:
    """Somebody who delivers to a bell that wakes `wakes`; `rung` is set with each ring, `rings` counts them."""

    secret: Path
    wakes: Callable[[], None] = lambda: None
    rung: threading.Event = field(default_factory=threading.Event)
    rings: int = 0
    results: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        bell = Bell(self.secret, "main", self._wake, lambda result: self.results.update([result]))
        self.server = BellServer(BellSetting(listen="127.0.0.1:0", secret=self.secret), bell)
        self.server.start()

    def _wake(self) -> None:
        self.rings += 1
        self.wakes()
        self.rung.set()

    def delivers(
        self, body: bytes = PUSH, headers: dict[str, str] | None = None, *, path: str = "/push", method: str = "POST"
    ) -> int:
        line = http.client.HTTPConnection(*self.server.address, timeout=PATIENCE)
        try:
            line.request(method, path, body, github(body) if headers is None else headers)
            answer = line.getresponse()
            answer.read()
            return answer.status
        finally:
            line.close()


@pytest.fixture
def forge(tmp_path: Path) -> Iterator[Forge]:
    secret = tmp_path / "bell.secret"
    secret.write_bytes(KEY + b"\n")
    made = Forge(secret)
    yield made
    made.server.stop()


def test_a_push_rings_and_what_is_not_signed_does_not(forge: Forge) -> None:
    assert forge.delivers(headers={}) == 401
    assert forge.delivers(headers=github(PUSH, b"another secret of 16")) == 401
    assert forge.delivers(b'{"zen": "x"}') == 200
    assert forge.delivers(b'{"ref": "refs/heads/allocations"}') == 200
    assert forge.rings == 0
    assert forge.delivers() == 202
    assert forge.rung.wait(PATIENCE)
    assert forge.delivers(headers=GITLAB) == 202
    assert forge.results == {"refused": 2, "ignored": 2, "rung": 2}


def test_a_burst_is_a_few_rings_and_the_last_push_is_not_missed(forge: Forge) -> None:
    for _ in range(30):
        assert forge.delivers() == 202
    forge.rung.clear()
    assert forge.delivers() == 202
    assert forge.rung.wait(PATIENCE), "what came last rings too"
    assert forge.rings < 30


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/push", 405), ("POST", "/", 404), ("POST", "/push/../healthz", 404)]
)
def test_there_is_nothing_else_behind_it(forge: Forge, method: str, path: str, status: int) -> None:
    assert forge.delivers(method=method, path=path) == status


def test_too_much_is_not_read(forge: Forge) -> None:
    assert forge.delivers(b"x" * (MOST_BYTES + 1)) == 413
    assert forge.rings == 0


def test_deliveries_that_never_end_leave_room_to_say_so(forge: Forge) -> None:
    """Who opens eight and sends nothing keeps others out for ten seconds at most, and nobody from the loop."""
    held = [socket.create_connection(forge.server.address) for _ in range(8)]
    try:
        for one in held:
            one.sendall(b"POST /push HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        statuses = {forge.delivers()}
        while 503 not in statuses and len(statuses) < 2:  # until all eight have been taken up
            statuses.add(forge.delivers())
        assert 503 in statuses
    finally:
        for one in held:
            one.close()


def test_connections_on_which_nothing_comes_are_closed_where_they_are_many(forge: Forge) -> None:
    """Each would be an open file of the reconciler, which has a thousand, for as long as a stranger likes."""
    held = [socket.create_connection(forge.server.address, timeout=PATIENCE) for _ in range(200)]
    try:
        for one in held:
            with contextlib.suppress(OSError):  # closed already
                one.sendall(b"POST /push HTT")
        for one in held[:136]:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b"", "closed from the other side, or this waits until it times out"
        assert forge.delivers() == 202
    finally:
        for one in held:
            one.close()


def test_a_changed_secret_counts_at_once_and_a_missing_one_lets_nobody_in(forge: Forge) -> None:
    forge.secret.write_text("another secret of 16\n")
    assert forge.delivers() == 401
    assert forge.delivers(headers=github(PUSH, b"another secret of 16")) == 202
    forge.secret.unlink()
    assert forge.delivers() == 503


def test_with_a_certificate_it_speaks_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(tmp_path / "bell.crt")
    made.private_key_pem.write_to_path(tmp_path / "bell.key")
    (tmp_path / "secret").write_bytes(KEY)
    rung = threading.Event()
    setting = BellSetting(
        listen="127.0.0.1:0", secret=tmp_path / "secret", certificate=tmp_path / "bell.crt", key=tmp_path / "bell.key"
    )
    server = BellServer(setting, Bell(setting.secret, "main", rung.set))
    server.start()
    try:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        line = http.client.HTTPSConnection(*server.address, timeout=PATIENCE, context=context)
        line.request("POST", "/push", PUSH, github(PUSH))
        assert line.getresponse().status == 202
        line.close()
        assert rung.wait(PATIENCE)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("listen", "secret", "code"),
    [("127.0.0.1", KEY, "SettingsInvalid"), ("127.0.0.1:0", b"short", "SecretMissing"), ("127.0.0.1:0", None, "SecretMissing")],
    ids=["no port", "a short secret", "no secret"],
)  # fmt: skip
def test_what_is_wrong_with_it_is_told_at_the_start(
    tmp_path: Path, listen: str, secret: bytes | None, code: str
) -> None:
    if secret is not None:
        (tmp_path / "secret").write_bytes(secret)
    setting = BellSetting(listen=listen, secret=tmp_path / "secret")
    with pytest.raises(UsageError) as caught:
        BellServer(setting, Bell(setting.secret, "main", lambda: None))
    assert caught.value.code == code


def test_an_address_in_use_is_told(forge: Forge) -> None:
    host, port = forge.server.address
    second = BellServer(
        BellSetting(listen=f"{host}:{port}", secret=forge.secret), Bell(forge.secret, "main", lambda: None)
    )
    with pytest.raises(UsageError) as caught:
        second.start()
    assert caught.value.code == "ListenFailed"


# --- with a loop behind it ---


def test_a_merge_that_rings_is_decided_on_long_before_the_poll(lab: Lab, forge: Forge) -> None:
    patient = CONFIG.replace("spec: {", "spec: {repository: {pollInterval: 1h}, ", 1)
    assert patient != CONFIG
    lab.begin(**{"cluster-state/cluster.yaml": patient}, **jobs("a"))
    desk = lab.desk()
    desk.settle()
    lab.desire(jobs("a", "b"))
    assert desk.round(poll=False).committed is None, "nobody looks at the remote for an hour"
    forge.wakes = desk.reconciler.wake
    assert forge.delivers() == 202
    assert forge.rung.wait(PATIENCE)
    assert desk.round(poll=False).committed is not None
    assert desk.record("b").state is not JobState.PENDING


def test_a_server_of_plain_git_rings_by_the_hook_of_the_page(lab: Lab, forge: Forge) -> None:
    for program in ("curl", "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    page = (ROOT / ".github/OPERATIONS.md").read_text()
    (hook,) = re.findall(r"```sh\n(read -r _ _ ref.*?)```", page, re.DOTALL)
    host, port = forge.server.address
    hook = hook.replace("https://gangops.example.org:7446", f"http://{host}:{port}")
    lab.begin(**jobs("a"))
    lab.remote.hook("post-receive", hook.replace("/etc/gangops/bell.secret", str(forge.secret)))
    work = lab.folder / "work"
    git(lab.folder, "clone", "-q", str(lab.remote.path), str(work))
    for branch, result in (("gangops/submit-a", "ignored"), ("main", "rung")):
        git(work, "-c", "user.name=T", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "x")
        git(work, "push", "-q", "origin", f"HEAD:refs/heads/{branch}")
        assert forge.results[result] == 1, forge.results


def test_a_ring_while_the_remote_is_being_looked_at_is_not_lost(lab: Lab) -> None:
    """The push it tells of may have come after the fetch had read the branch."""
    lab.begin(**jobs("a"))
    desk = lab.desk()
    desk.settle()
    fetch, mirror = desk.mirror.fetch, desk.mirror

    def rung_meanwhile() -> object:
        found = fetch()
        lab.desire(jobs("a", "b"))
        desk.reconciler.wake()
        return found

    mirror.fetch = rung_meanwhile  # type: ignore[method-assign, assignment]  # a push between the look and its end
    desk.round()
    mirror.fetch = fetch  # type: ignore[method-assign]  # as it was
    assert desk.round(poll=False).committed is not None, "a second later, with a poll interval of two"
