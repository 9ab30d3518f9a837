"""Tokens, certificates and their end: real agents' code against a real engine, the CA's folder between them."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509

from reconciler.agent import identity
from reconciler.agent.client import LinkDown
from reconciler.agent.conf import Conf, read_conf
from reconciler.agent.identity import NotEnrolled, Renewal, enroll, is_due, renew, settle
from reconciler.agent.say import Voice
from reconciler.cli.root import root as command_line
from reconciler.engines.agents import AgentEngine
from reconciler.engines.certificates import RequestRefused, issue_node, sign_request
from reconciler.engines.enrolment import TokenRefused, make_tokens, revoke
from reconciler.engines.enrolment import enroll as redeem
from reconciler.errors import GangOpsError, UsageError
from reconciler.model.observed import Observed
from reconciler.model.units import DAY, MINUTE, Nanoseconds, NodeName
from reconciler.wire import AUTHORITY_PATH, ENROLL_PATH, RENEW_PATH, Application, encode
from tests.engines.builders import desired_of
from tests.engines.calls import ISSUED, TlsWorld, client_context

N1, N2 = NodeName("n1"), NodeName("n2")
LIFE = Nanoseconds(15 * MINUTE)


class World(TlsWorld):
    """A `TlsWorld` whose engine enrols and renews."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ["n1", "n2"])
        self.clock.jump(Nanoseconds(time.time_ns() - self.clock.now()))  # what it signs is judged by real TLS
        self.settings = replace(self.settings, authority=self.ca, gate=("127.0.0.1", 0))
        self.engine = AgentEngine(self.settings, self.clock)
        self.engine.start(desired_of(["n1", "n2"]), Observed())

    @property
    def door(self) -> str:
        assert self.engine.gate_address
        return f"https://127.0.0.1:{self.engine.gate_address[1]}"

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.engine.address[1]}"

    def token(self, node: NodeName = N1, life: Nanoseconds = LIFE) -> str:
        (token,) = make_tokens(self.ca, [node], life, self.clock.now())
        return token.text

    def conf(self, folder: Path, node: str = "n1") -> Conf:
        """An agent.conf of a node that has no certificate yet."""
        folder.mkdir(exist_ok=True)
        path = folder / "agent.conf"
        path.write_text(
            f"[agent]\nnode = {node}\ncluster = test\nservers = {self.server}\nstateDir = state\n"
            "[tls]\nca = tls/ca.crt\ncert = tls/node.crt\nkey = tls/node.key\n"
            "[trust]\nallowedSigners = signers\nprincipal = p\n[logs]\ndir = logs\n[simulate]\ngpus = 1\n"
        )
        path.chmod(0o600)
        return read_conf(path)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.close()


def request(folder: Path, name: str = "n1", *, kind: str = "ec", alternative: str = "") -> bytes:
    """A signing request by openssl, as anybody could make it."""
    folder.mkdir(exist_ok=True)
    key = {"ec": "EC -pkeyopt ec_paramgen_curve:P-256", "rsa": "RSA", "p384": "EC -pkeyopt ec_paramgen_curve:P-384"}
    made = ["openssl", "genpkey", "-algorithm", *key[kind].split(), "-out", str(folder / "k")]
    subprocess.run(made, check=True, capture_output=True)
    more = ["-addext", f"subjectAltName={alternative}"] if alternative else []
    command = [
        "openssl",
        "req",
        "-new",
        "-key",
        str(folder / "k"),
        "-subj",
        f"/CN={name}",
        *more,
        "-config",
        "/dev/null",
    ]
    return subprocess.run(command, check=True, capture_output=True).stdout


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def call(world: World, conf: Conf) -> tuple[int, dict[str, object]]:
    """One report with the certificate the node has now."""
    context = ssl.create_default_context(cafile=str(conf.ca))
    context.load_cert_chain(conf.cert, conf.key)
    caller = world.new_caller(context)
    try:
        return caller.post(encode(world.nodes[conf.node].report()))
    finally:
        caller.close()


# --- a node without a certificate gets one ---


def test_a_token_gives_a_certificate_for_its_node_and_the_key_stays_there(world: World, tmp_path: Path) -> None:
    conf = world.conf(tmp_path / "node")
    enroll(conf, world.token() + "\n", world.door)
    certificate = read(conf.cert)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("n1")]
    assert conf.ca.read_bytes() == world.authority.read_bytes()
    assert conf.key.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in conf.key.parent.iterdir()) == ["ca.crt", "node.crt", "node.key"]
    assert not [
        path
        for path in world.ca.rglob("*")
        if path.is_file() and b"PRIVATE" in path.read_bytes() and path.name != "ca.key"
    ]
    assert call(world, conf)[0] == 200


def test_a_token_is_good_once(world: World, tmp_path: Path) -> None:
    token = world.token()
    first = world.conf(tmp_path / "first")
    enroll(first, token, world.door)
    with pytest.raises(LinkDown, match="TokenUsed"):
        enroll(world.conf(tmp_path / "thief"), token, world.door)
    assert world.engine.rejected() == {"TokenUsed": 1}
    assert not (tmp_path / "thief/tls/node.crt").exists()


def test_the_same_request_may_come_again_when_its_answer_was_lost(world: World, tmp_path: Path) -> None:
    token, asked = world.token(), request(tmp_path / "r")
    assert redeem(world.ca, token, asked, world.clock.now())[0] == N1
    assert redeem(world.ca, token, asked, world.clock.now())[0] == N1
    with pytest.raises(TokenRefused) as caught:
        redeem(world.ca, token, request(tmp_path / "other"), world.clock.now())
    assert caught.value.code == "TokenUsed"


def test_of_many_who_race_with_one_token_one_gets_a_certificate(world: World, tmp_path: Path) -> None:
    token = world.token()
    requests = [request(tmp_path / f"r{number}") for number in range(6)]
    outcomes: list[str] = []
    start = threading.Barrier(len(requests))

    def race(asked: bytes) -> None:
        start.wait()
        try:
            redeem(world.ca, token, asked, world.clock.now())
            outcomes.append("ok")
        except TokenRefused as err:
            outcomes.append(err.code)

    racing = [threading.Thread(target=race, args=(asked,)) for asked in requests]
    for thread in racing:
        thread.start()
    for thread in racing:
        thread.join()
    assert sorted(outcomes) == ["TokenUsed"] * 5 + ["ok"]


REFUSED: dict[str, tuple[Callable[[World], str], str]] = {
    "nonsense": (lambda _: "n1:abc:def", "BadToken"),
    "none": (lambda _: "", "BadToken"),
    "a path": (lambda w: f"n1:../{next((w.ca / 'tokens').iterdir()).name}:x", "BadToken"),
    "of another node, renamed": (lambda w: w.token(N2).replace("n2:", "n1:"), "BadToken"),
    "of another node": (lambda w: w.token(N2), "NotYourNode"),
    "replaced by a newer one": (lambda w: (w.token(), w.token())[0], "BadToken"),
    "taken back": (lambda w: (w.token(), revoke(w.ca, ["n1"], w.clock.now()))[0], "BadToken"),
}


@pytest.mark.parametrize(("given", "code"), REFUSED.values(), ids=REFUSED)
def test_a_token_that_gives_nothing(given: Callable[[World], str], code: str, world: World, tmp_path: Path) -> None:
    world.token(N2)
    text = given(world)
    context = ssl.create_default_context(cafile=str(world.authority))
    caller = world.new_caller(context)
    caller.close()
    assert world.engine.gate_address
    door = type(caller)(world.engine.gate_address, context)
    status, answer = door.post(encode(Application(request(tmp_path / "r").decode(), token=text)), ENROLL_PATH)
    door.close()
    assert (status, answer["code"]) == (403, code)
    assert world.engine.rejected() == {code: 1}
    assert list((world.ca / "issued").read_text().split()[1::3]).count("n1") == 1, "the one TlsWorld made"


def test_a_token_ends_with_its_time(world: World, tmp_path: Path) -> None:
    token = world.token()
    world.clock.jump(LIFE)
    with pytest.raises(LinkDown, match="TokenExpired"):
        enroll(world.conf(tmp_path / "node"), token, world.door)


@pytest.mark.parametrize("life", [0, -1, DAY + 1])
def test_no_token_lives_for_long(life: int, world: World) -> None:
    with pytest.raises(UsageError) as caught:
        world.token(life=Nanoseconds(life))
    assert caught.value.code == "BadLifetime"


def test_an_agent_shows_its_token_to_no_other_server(world: World, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    far = World(tmp_path / "far")
    try:
        with pytest.raises(NotEnrolled) as caught:
            enroll(world.conf(tmp_path / "node"), world.token(), far.door)
        assert caught.value.code == "UntrustedServer"
        assert far.engine.rejected() == {}, "it was asked for its CA and nothing else"
        assert not (tmp_path / "node/tls").exists(), "and no key was made for it"
    finally:
        far.close()


def test_a_token_of_another_node_is_not_used_by_mistake(world: World, tmp_path: Path) -> None:
    with pytest.raises(NotEnrolled, match="the token is for n2"):
        enroll(world.conf(tmp_path / "node"), world.token(N2), world.door)


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda folder: request(folder, "n2"), "NotYourNode"),
        (lambda folder: request(folder, alternative="DNS:n1,DNS:n2"), "NotYourNode"),
        (lambda folder: request(folder, alternative="IP:10.0.0.1"), "NotYourNode"),
        (lambda folder: request(folder, kind="rsa"), "BadRequest"),
        (lambda folder: request(folder, kind="p384"), "BadRequest"),
        (lambda _: b"junk", "BadRequest"),
        (lambda folder: request(folder).replace(b"A", b"B", 40), "BadRequest"),
    ],
    ids=["another name", "a second name", "an address", "RSA", "another curve", "junk", "changed"],
)
def test_a_request_that_is_not_granted(made: Callable[[Path], bytes], code: str, world: World, tmp_path: Path) -> None:
    with pytest.raises(RequestRefused) as caught:
        sign_request(world.ca, N1, made(tmp_path / "r"), world.clock.now())
    assert caught.value.code == code


def test_without_the_setting_there_is_no_door(tmp_path: Path) -> None:
    world = TlsWorld(tmp_path, ["n1"])
    world.engine.start(desired_of(["n1"]), Observed())
    try:
        assert world.engine.gate_address is None
        for path in (ENROLL_PATH, AUTHORITY_PATH):
            assert world.caller("n1").raw(b"{}", path)[0] == 404
        assert world.caller("n1").post(encode(Application("x")), RENEW_PATH)[1]["code"] == "NoAuthority"
    finally:
        world.close()


def test_the_door_hands_out_certificates_and_hears_no_reports(world: World) -> None:
    assert world.engine.gate_address
    caller = world.new_caller(client_context(world.credentials["n1"], world.authority))
    door = type(caller)(world.engine.gate_address, ssl.create_default_context(cafile=str(world.authority)))
    assert door.raw(encode(world.nodes["n1"].report()), "/v1/sync")[0] == 404
    assert door.raw(b"x" * 20_000, ENROLL_PATH)[0] == 413
    door.close()
    caller.close()


# --- the next one, in time ---


def enrolled(world: World, folder: Path) -> Conf:
    conf = world.conf(folder)
    enroll(conf, world.token(), world.door)
    return conf


def test_a_certificate_is_renewed_with_a_new_key_after_two_thirds_of_its_life(world: World, tmp_path: Path) -> None:
    conf = enrolled(world, tmp_path / "node")
    begins, ends = identity.lifetime_of(conf.cert)
    assert ends - begins == 30 * 86400 + 300
    assert not is_due(conf.cert, begins + (ends - begins) * 0.66)
    assert is_due(conf.cert, begins + (ends - begins) * 0.67)
    before, key = read(conf.cert), conf.key.read_bytes()
    renew(conf, world.server)
    assert read(conf.cert).serial_number != before.serial_number
    assert conf.key.read_bytes() != key
    assert call(world, conf)[0] == 200


def test_an_agent_renews_by_itself_and_tries_the_next_server(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = replace(enrolled(world, tmp_path / "node"), servers=("https://127.0.0.1:1", world.server))
    told: list[str] = []
    renewal = Renewal(conf, Voice("n1"), lambda: told.append("renewed"))
    assert (renewal.look(), told) == (False, []), "it is early"
    monkeypatch.setattr(identity, "RENEW_AFTER", -1000)
    assert (renewal.look(), told) == (True, ["renewed"])


def test_a_real_agent_renews_and_goes_on_with_the_new_certificate(world: World, tmp_path: Path) -> None:
    conf = world.conf(tmp_path / "node")
    made = issue_node(
        world.ca, N1, tmp_path / "old", world.clock.now(), Nanoseconds(2 * MINUTE)
    )  # backdated: due at once
    conf.key.parent.mkdir()
    for source, target in ((made.certificate, conf.cert), (made.key, conf.key), (made.authority, conf.ca)):
        shutil.copy(source, target)
    old = read(conf.cert).serial_number
    command = [sys.executable, "-m", "reconciler.agent", "run", "--conf", str(tmp_path / "node/agent.conf")]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as agent:
        try:
            ends = time.monotonic() + 90
            while "linked to" not in (tmp_path / "log").read_text().partition("certificate renewed")[2]:
                assert time.monotonic() < ends, (tmp_path / "log").read_text()
                time.sleep(0.05)
        finally:
            agent.kill()
    assert read(conf.cert).serial_number != old
    assert world.engine.rejected() == {}
    assert call(world, conf)[0] == 200


def test_nobody_renews_for_another_node(world: World, tmp_path: Path) -> None:
    asked = encode(Application(request(tmp_path / "r", "n2").decode()))
    status, answer = world.caller("n1").post(asked, RENEW_PATH)
    assert (status, answer["code"]) == (403, "NotYourNode")
    assert world.engine.rejected() == {"NotYourNode": 1}


def test_an_agent_killed_between_certificate_and_key_goes_on(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = enrolled(world, tmp_path / "node")
    real = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if self.name == "node.key.next":
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        renew(conf, world.server)
    monkeypatch.setattr(Path, "replace", real)
    with pytest.raises(ssl.SSLError):
        call(world, conf)
    settle(conf)
    assert call(world, conf)[0] == 200
    (conf.key.parent / "node.key.next").write_text("left behind before any certificate came")
    settle(conf)
    assert call(world, conf)[0] == 200


def test_the_servers_certificate_is_replaced_while_it_serves(tmp_path: Path) -> None:
    from reconciler.engines.certificates import issue_server

    world = TlsWorld(tmp_path, ["n1"])

    def again() -> None:
        issue_server(world.ca, ["127.0.0.1"], tmp_path / "server", ISSUED, Nanoseconds(3650 * DAY))

    world.engine = AgentEngine(replace(world.settings, renew=again), world.clock)
    world.engine.start(desired_of(["n1"]), Observed())

    def serial() -> int:
        text = ssl.get_server_certificate(world.engine.address, ca_certs=None)
        return x509.load_pem_x509_certificate(text.encode()).serial_number

    def observed_after(days: int) -> int:
        world.clock.advance(days * DAY)
        world.engine.observe(desired_of(["n1"]), world.clock.now())
        return serial()

    try:
        first = serial()
        assert observed_after(19) == first
        assert observed_after(2) != first
    finally:
        world.close()


# --- the end of one ---


def test_a_revoked_certificate_is_refused_at_once_on_an_open_connection_too(world: World, tmp_path: Path) -> None:
    conf = enrolled(world, tmp_path / "node")
    assert call(world, conf)[0] == 200
    assert world.caller("n1").post(encode(world.nodes["n1"].report()))[0] == 200
    assert revoke(world.ca, ["n1"], world.clock.now()) == {"n1": 2}
    for status, answer in (call(world, conf), world.caller("n1").post(encode(world.nodes["n1"].report()))):
        assert (status, answer["code"]) == (403, "CertificateRevoked")
    with pytest.raises(LinkDown, match="CertificateRevoked"):
        renew(conf, world.server)
    assert world.engine.rejected() == {"CertificateRevoked": 3}
    assert world.caller("n2").post(encode(world.nodes["n2"].report()))[0] == 200
    enroll(conf, world.token(), world.door)
    assert call(world, conf)[0] == 200, "a new token brings it back"


def test_a_list_that_cannot_be_read_lets_nobody_in(world: World) -> None:
    (world.ca / "revoked").write_text("not a number n1\n")
    status, answer = world.caller("n1").post(encode(world.nodes["n1"].report()))
    assert (status, answer["code"]) == (503, "RevocationsUnreadable")
    (world.ca / "revoked").unlink()
    assert world.caller("n1").post(encode(world.nodes["n1"].report()))[0] == 200


def test_what_has_expired_needs_no_revoking_and_nothing_is_listed_twice(world: World) -> None:
    issue_node(world.ca, N1, world.ca.parent / "short", ISSUED, Nanoseconds(MINUTE))
    assert revoke(world.ca, ["n1", "n9"], world.clock.now()) == {"n1": 1, "n9": 0}
    revoke(world.ca, ["n1"], world.clock.now())
    assert len((world.ca / "revoked").read_text().splitlines()) == 1


# --- as people type it ---


def test_a_whole_hostlist_and_a_nodeset_get_a_token_each(world: World, tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "cluster-state", tmp_path / "repo" / "cluster-state")
    runner = CliRunner()
    done = runner.invoke(
        command_line, ["ca", "token", str(world.ca), "gpu-[001-003]", "--ttl", "5m"], standalone_mode=False
    )
    rows = [line.split() for line in done.output.splitlines()]
    assert [row[0] for row in rows] == ["gpu-001", "gpu-002", "gpu-003"]
    assert [row[1].split(":")[0] for row in rows] == ["gpu-001", "gpu-002", "gpu-003"]
    assert len({row[1].split(":")[1] for row in rows}) == 3
    (tmp_path / "repo/cluster-state/inventory/mine.yaml").write_text(
        'apiVersion: gangops/v1\nkind: NodeSet\nmetadata: {name: mine}\nspec: {nodes: "x[1-2]", profile: p, rack: r}\n'
    )
    done = runner.invoke(
        command_line, ["-C", str(tmp_path / "repo"), "ca", "token", str(world.ca), "mine"], standalone_mode=False
    )
    assert [line.split()[0] for line in done.output.splitlines()] == ["x1", "x2"]
    done = runner.invoke(command_line, ["ca", "revoke", str(world.ca), "n[1-2]"], standalone_mode=False)
    assert done.output == "n1  1 revoked\nn2  1 revoked\n"


def test_enrolling_as_people_do_it(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from reconciler.agent.__main__ import main

    conf = world.conf(tmp_path / "node")
    arguments = ["enroll", "--conf", str(tmp_path / "node/agent.conf"), "--token", world.token(), "--at", world.door]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{conf.cert}  n1, good for 30 days; the agent renews it by itself\n"
    assert main(arguments) == 7, "used"
    assert "TokenUsed" in capsys.readouterr().err


def test_errors_say_what_to_do(world: World) -> None:
    runner = CliRunner()
    for arguments, code in ((["--ttl", "2d"], "BadLifetime"), (["--ttl", "soon"], "BadLifetime")):
        done = runner.invoke(command_line, ["ca", "token", str(world.ca), "n1", *arguments], standalone_mode=False)
        assert isinstance(done.exception, GangOpsError)
        assert (done.exception.code, bool(done.exception.remedy)) == (code, True)
