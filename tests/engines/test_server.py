"""The server as nodes meet it: real TLS on loopback, real long polls, hostile callers."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.engines import server
from reconciler.engines.agents import AgentEngine
from reconciler.engines.certificates import issue_node, make_ca
from reconciler.errors import EngineUnavailable, UsageError
from reconciler.model.observed import NodeCondition, NodeObservation, Observed
from reconciler.model.units import DAY, SECOND, Instant, Nanoseconds, NodeName
from reconciler.wire import MAX_MESSAGE, Answer, Refusal, encode
from tests.engines.builders import RULES, attempt_order, committed_of, desired_of
from tests.engines.calls import ISSUED, LONG, TlsWorld, client_context
from tests.engines.fake import FakeClock, FakeNode

PATIENT = replace(RULES, report_interval=Nanoseconds(60 * SECOND))
"""With these rules, and with `server.LONGEST_HOLD` as long, only the agent's own waitSeconds limits how long a call is held."""
SOON = 40
"""Seconds within which an answer that is due comes even on a busy machine, and in which none comes that is not."""


@pytest.fixture(autouse=True)
def long_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that who is answered was answered for a reason, however slow this machine is."""
    for name in ("LONGEST_HOLD", "_STANDBY_SECONDS"):
        monkeypatch.setattr(server, name, 60.0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TlsWorld]:
    world = TlsWorld(tmp_path, ["n1", "n2"])
    world.engine.start(desired_of(["n1", "n2"], rules=PATIENT), Observed())
    yield world
    world.close()


class Held:
    """A call in a thread of its own: `answer` blocks until it is over, `seconds` says how long it took."""

    def __init__(self, call: Callable[[], Answer]) -> None:
        self._call = call
        self._found: list[Answer] = []
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        self._found.append(self._call())
        self.seconds = time.monotonic() - began

    def answer(self) -> Answer:
        self._thread.join(timeout=90)
        assert self._found, "the call is still held"
        return self._found[0]


def held(world: TlsWorld, node: FakeNode, seconds: int = 60) -> Held:
    """A call of the node that is being held, or will be any moment: the server has heard its news already."""
    node.unhealthy += "x"
    report = replace(node.report(), waitSeconds=seconds)
    connection = world.new_caller(client_context(world.credentials[node.name], world.authority))

    def call() -> Answer:
        try:
            return connection.sync(report)
        finally:
            connection.close()

    started = Held(call)
    assert world.engine.wait(Nanoseconds(60 * SECOND))
    return started


def ready(node: str) -> NodeObservation:
    return NodeObservation(
        node=NodeName(node),
        boot_id=f"boot-{node}-1",
        address="127.0.1.1",
        condition=NodeCondition.READY,
        condition_since=Instant(5),
    )


class TestIdentity:
    def test_a_node_may_speak_of_itself_alone(self, world: TlsWorld) -> None:
        status, answer = world.caller("n1").post(encode(world.nodes["n2"].report()))
        assert (status, answer["code"]) == (403, "NotYourNode")
        assert world.engine.rejected() == {"NotYourNode": 1}
        assert world.engine.observe(desired_of(["n1", "n2"]), world.clock.now()).nodes == {}

    def test_a_node_of_no_inventory_is_refused(self, world: TlsWorld, tmp_path: Path) -> None:
        stranger = issue_node(world.ca, NodeName("n9"), tmp_path / "n9", ISSUED, LONG)
        caller = world.new_caller(client_context(stranger, world.authority))
        status, answer = caller.post(encode(FakeNode(name="n9", clock=world.clock).report()))
        caller.close()
        assert (status, answer["code"]) == (403, "UnknownNode")

    def test_a_certificate_that_expires_on_an_open_connection_ends_it(self, world: TlsWorld) -> None:
        world.exchange(world.nodes["n1"])
        world.clock.jump(LONG + DAY)
        status, answer = world.caller("n1").post(encode(world.nodes["n1"].report()))
        assert (status, answer["code"]) == (403, "CertificateExpired")

    def test_a_certificate_with_two_names_is_nobody(self, world: TlsWorld, tmp_path: Path) -> None:
        other = trustme.CA()
        bundle = tmp_path / "bundle.pem"
        other.cert_pem.write_to_path(bundle)
        engine = AgentEngine(replace(world.settings, node_ca=bundle), world.clock)
        engine.start(desired_of(["n1", "n2"]), Observed())
        context = ssl.create_default_context(cafile=str(world.authority))
        other.issue_cert("n1", "n2").configure_cert(context)
        world.engine.stop()
        world.engine = engine
        caller = world.new_caller(context)
        status, answer = caller.post(encode(world.nodes["n1"].report()))
        caller.close()
        assert (status, answer["code"]) == (403, "NoIdentity")

    def test_other_cas_and_server_certificates_and_nobody_are_refused_by_tls(
        self, world: TlsWorld, tmp_path: Path
    ) -> None:
        make_ca(tmp_path / "other", "other", ISSUED)
        foreign = issue_node(tmp_path / "other", NodeName("n1"), tmp_path / "foreign", ISSUED, LONG)
        server = replace(foreign, certificate=world.settings.certificate, key=world.settings.key)
        nameless = ssl.create_default_context(cafile=str(world.authority))
        for context in (client_context(foreign, world.authority), client_context(server, world.authority), nameless):
            caller = world.new_caller(context)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                caller.post(encode(world.nodes["n1"].report()))
            caller.close()

    def test_tls_1_3_is_spoken_and_1_2_is_refused(self, world: TlsWorld) -> None:
        context = client_context(world.credentials["n1"], world.authority)
        plain = socket.create_connection(world.engine.address, timeout=10)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            assert secured.version() == "TLSv1.3"
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        plain = socket.create_connection(world.engine.address, timeout=10)
        with plain, pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(plain, server_hostname="127.0.0.1")


class TestBadCalls:
    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            (b"", 400, "BadMessage"),
            (b"{", 400, "BadMessage"),
            (b"[]", 400, "BadMessage"),
            (b"\xff\xfe", 400, "BadMessage"),
            (b"[" * 100_000, 400, "BadMessage"),
            (b'{"node":"n1","sequence":' + b"9" * 5000 + b"}", 400, "BadMessage"),
            (gzip.compress(encode(FakeNode(name="n1", clock=FakeClock()).report())), 400, "BadMessage"),
            (b" " * (MAX_MESSAGE + 1), 413, "TooLarge"),
        ],
        ids=["empty", "cut off", "no object", "no text", "deep", "huge number", "compressed", "too large"],
    )
    def test_a_bad_body_gets_a_typed_error(self, world: TlsWorld, body: bytes, status: int, code: str) -> None:
        caller = world.new_caller(client_context(world.credentials["n1"], world.authority))
        found, answer = caller.post(body, **{"Content-Encoding": "gzip"} if body[:1] == b"\x1f" else {})
        caller.close()
        assert (found, answer["code"]) == (status, code)
        assert world.engine.rejected() == {code: 1}

    @settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(changes=st.data())
    def test_no_report_whatever_makes_the_server_fail(self, world: TlsWorld, changes: st.DataObject) -> None:
        node = world.nodes["n1"]
        node.restart_agent()  # else one huge sequence number would make every later report stale
        tree = json.loads(encode(node.report()))
        tree["attempts"] = [
            {"job": "nlp/sft", "attempt": 1, "state": "Running", "at": 1, "generation": 1, "commit": ""}
        ]
        where = tree["attempts"][0] if changes.draw(st.booleans()) else tree
        junk = st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.lists(st.none()), st.just({"gpus": [1]}))
        where[changes.draw(st.sampled_from(sorted(where)))] = changes.draw(junk)
        if isinstance(tree["waitSeconds"], int | float) and tree["waitSeconds"] > 0:
            tree["waitSeconds"] = 0  # a call that is held for long is another test's
        status, _ = world.caller("n1").raw(json.dumps(tree).encode())
        assert status in (200, 400, 403, 409)

    def test_other_paths_and_methods_do_not_exist(self, world: TlsWorld) -> None:
        assert world.caller("n1").raw(b"{}", "/metrics")[0] == 404

    def test_a_stale_report_is_told_so(self, world: TlsWorld) -> None:
        node = world.nodes["n1"]
        early = node.report()
        world.exchange(node)
        status, answer = world.caller("n1").post(encode(early))
        assert (status, answer["code"]) == (409, "StaleReport")


class TestHolding:
    def test_a_held_call_is_answered_by_the_apply(self, world: TlsWorld) -> None:
        call = held(world, world.nodes["n1"])
        committed = committed_of(1, {"n1": [attempt_order()], "n2": []})
        world.engine.apply(committed)
        answer = call.answer()
        assert answer.proof is not None
        assert (answer.generation, answer.proof.file) == (1, committed.orders[NodeName("n1")])
        assert call.seconds < SOON

    def test_an_apply_that_does_not_concern_a_node_leaves_it_waiting(self, world: TlsWorld) -> None:
        world.engine.apply(committed_of(1, {"n1": [], "n2": []}))
        world.sync()
        assert world.engine.wait(Nanoseconds(60 * SECOND)), "what follows is news of the call alone"
        call = held(world, world.nodes["n2"], seconds=5)  # in which the next line comes also on a busy machine
        world.engine.apply(committed_of(2, {"n1": [attempt_order()], "n2": []}))
        assert (call.answer().proof, call.answer().generation) == (None, 2)
        assert call.seconds >= 4.9

    def test_a_newer_call_of_the_node_ends_the_older(self, world: TlsWorld) -> None:
        node = world.nodes["n1"]
        older = held(world, node)
        newer = held(world, node)
        assert older.answer().proof is None
        assert older.seconds < SOON
        world.engine.apply(committed_of(1, {"n1": [attempt_order()]}))
        assert newer.answer().proof is not None

    def test_stopping_answers_held_calls(self, world: TlsWorld) -> None:
        call = held(world, world.nodes["n1"])
        world.engine.stop()
        assert call.answer().proof is None
        assert call.seconds < SOON

    def test_orders_missed_before_are_handed_out_at_once(self, world: TlsWorld) -> None:
        world.engine.apply(committed_of(1, {"n1": [attempt_order()]}))
        assert held(world, world.nodes["n1"]).answer().proof is not None

    def test_a_lost_copy_is_sent_again(self, world: TlsWorld) -> None:
        node = world.nodes["n1"]
        world.engine.apply(committed_of(1, {"n1": [attempt_order()]}))
        world.exchange(node)
        assert world.exchange(node).proof is None
        node.file = b""
        assert world.exchange(node, waitSeconds=60).proof is not None

    def test_an_order_that_was_refused_is_offered_again_only_after_the_hold(self, world: TlsWorld) -> None:
        committed = committed_of(1, {"n1": [attempt_order()]})
        world.engine.apply(committed)
        node = world.nodes["n1"]
        node.refusals = [Refusal(commitId=committed.commit, code="BadSignature", detail="", at=1)]
        for refusals in (node.refusals, []):  # an agent says it once
            node.refusals = refusals
            call = held(world, node, seconds=1)
            assert call.answer().proof is not None
            assert call.seconds >= 0.9

    def test_a_proof_that_git_does_not_give_is_no_error_of_the_node(self, world: TlsWorld) -> None:
        world.engine.apply(committed_of(1, {"n1": [attempt_order(lease=5)]}, unavailable=True))
        answer = world.exchange(world.nodes["n1"])
        assert (answer.proof, answer.leaseSeconds) == (None, 5)
        world.engine.apply(committed_of(2, {"n1": [attempt_order(lease=5)]}))
        assert world.exchange(world.nodes["n1"]).proof is not None


class TestLeases:
    @pytest.mark.parametrize(("leases", "expected"), [((None,), 0), ((5,), 5), ((5, None, 9), 9)])
    def test_an_answer_renews_the_longest_lease(
        self, world: TlsWorld, leases: tuple[int | None, ...], expected: int
    ) -> None:
        orders = [attempt_order(f"nlp/j{i}", gpus=(i,), lease=lease) for i, lease in enumerate(leases)]
        world.engine.apply(committed_of(1, {"n1": orders}))
        assert world.exchange(world.nodes["n1"]).leaseSeconds == expected
        assert world.exchange(world.nodes["n1"]).leaseSeconds == expected

    def test_a_superseded_reconciler_renews_nothing(self, world: TlsWorld) -> None:
        world.engine.apply(committed_of(1, {"n1": [attempt_order(lease=5)]}))
        world.nodes["n1"].accepted = (1, 2, "f" * 40)
        assert world.exchange(world.nodes["n1"]).leaseSeconds == 0

    def test_no_lease_is_renewed_for_a_node_that_was_judged_gone(self, world: TlsWorld) -> None:
        desired = desired_of(["n1", "n2"], rules=PATIENT)
        world.engine.apply(committed_of(1, {"n1": [attempt_order(lease=5)], "n2": []}))
        world.sync()
        world.engine.observe(desired, world.clock.now())
        world.clock.advance(RULES.lost_after + 1)
        world.sync("n2")
        assert world.engine.observe(desired, world.clock.now()).nodes[NodeName("n1")].lease_expired
        assert world.exchange(world.nodes["n1"]).leaseSeconds == 0
        world.engine.observe(desired, world.clock.now())
        assert world.exchange(world.nodes["n1"]).leaseSeconds == 5

    def test_no_call_is_held_longer_than_a_third_of_the_lease(self, world: TlsWorld) -> None:
        orders = [attempt_order(lease=1), attempt_order("nlp/slow", gpus=(4,), lease=600)]
        world.engine.apply(committed_of(1, {"n1": orders}))
        world.exchange(world.nodes["n1"])
        call = held(world, world.nodes["n1"])
        assert call.answer().leaseSeconds == 600
        assert call.seconds < SOON


class TestStandby:
    @pytest.fixture
    def four(self, tmp_path: Path) -> Iterator[TlsWorld]:
        """Another reconciler has committed that all four nodes are well."""
        names = ["n1", "n2", "n3", "n4"]
        world = TlsWorld(tmp_path, names)
        world.engine.start(desired_of(names, rules=PATIENT), Observed())
        world.engine.follow(Observed(nodes={NodeName(name): ready(name) for name in names}))
        world.engine.apply(committed_of(1, {name: [attempt_order(lease=60)] for name in names}))
        yield world
        world.close()

    def test_who_stands_by_hands_out_nothing_and_sends_callers_away(self, four: TlsWorld) -> None:
        assert not four.engine.leads()
        status, told = four.caller("n1").post(encode(four.nodes["n1"].report()))
        assert (status, told["code"]) == (503, "Standby")
        assert four.engine.rejected() == {"Standby": 1}

    def test_half_of_the_nodes_are_not_enough_and_one_more_is(self, four: TlsWorld) -> None:
        calls = [held(four, four.nodes[name]) for name in ("n1", "n2")]
        assert not four.engine.leads()
        answer = four.exchange(four.nodes["n3"])
        assert four.engine.leads()
        assert answer.proof is not None
        for call in calls:
            assert call.answer().proof is not None, "who waited gets its orders as soon as we lead"

    def test_who_led_sends_its_callers_to_the_one_that_committed(self, world: TlsWorld) -> None:
        world.sync()
        assert world.engine.wait(Nanoseconds(60 * SECOND)), "what follows is news of the call alone"
        report = replace(world.nodes["n1"].report(), unhealthy="x", waitSeconds=60)
        connection = world.new_caller(client_context(world.credentials["n1"], world.authority))
        found: list[int] = []
        waiting = threading.Thread(target=lambda: found.append(connection.post(encode(report))[0]))
        waiting.start()
        assert world.engine.wait(Nanoseconds(60 * SECOND))
        world.engine.follow(Observed(nodes={NodeName(name): ready(name) for name in ("n1", "n2")}))
        waiting.join(timeout=SOON)
        connection.close()
        assert found == [503]

    def test_no_lease_is_renewed_while_our_own_link_is_suspected(self, tmp_path: Path) -> None:
        names = ["n1", "n2", "n3"]
        world = TlsWorld(tmp_path, names)
        desired = desired_of(names, rules=PATIENT)
        world.engine.start(desired, Observed())
        world.engine.apply(committed_of(1, {name: [attempt_order(lease=60)] for name in names}))
        world.sync()
        world.engine.observe(desired, world.clock.now())
        world.clock.advance(RULES.unreachable_after + 1)
        try:
            assert world.exchange(world.nodes["n1"]).leaseSeconds == 0, "two of three may be led by another by now"
            assert world.exchange(world.nodes["n2"]).leaseSeconds == 60
        finally:
            world.close()


class TestStarting:
    def test_an_address_in_use_is_a_typed_error(self, world: TlsWorld) -> None:
        second = AgentEngine(replace(world.settings, port=world.engine.address[1]), world.clock)
        with pytest.raises(EngineUnavailable) as caught:
            second.start(desired_of(["n1"]), Observed())
        assert caught.value.code == "ListenFailed"

    @pytest.mark.parametrize("broken", ["certificate", "key", "node_ca"])
    def test_a_broken_file_is_a_typed_error(self, world: TlsWorld, tmp_path: Path, broken: str) -> None:
        for content in (None, b"no pem"):
            path = tmp_path / "broken.pem"
            if content is not None:
                path.write_bytes(content)
            with_broken = {
                "certificate": replace(world.settings, certificate=path),
                "key": replace(world.settings, key=path),
                "node_ca": replace(world.settings, node_ca=path),
            }
            engine = AgentEngine(with_broken[broken], world.clock)
            with pytest.raises(UsageError) as caught:
                engine.start(desired_of(["n1"]), Observed())
            assert caught.value.code == "BadCertificate"

    def test_a_wake_from_another_thread_ends_a_wait(self, world: TlsWorld) -> None:
        found: list[bool] = []
        waiting = threading.Thread(target=lambda: found.append(world.engine.wait(Nanoseconds(60 * SECOND))))
        waiting.start()
        world.engine.wake()
        waiting.join(timeout=45)
        assert found == [True]
