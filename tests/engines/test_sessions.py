"""What the memory of reports keeps, drops and refuses; silence and leases to the nanosecond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.engines.applied import next_applied
from reconciler.engines.known import Hearing
from reconciler.engines.sessions import Sessions
from reconciler.errors import BrokenInvariant, EngineUnavailable
from reconciler.model.anomaly import Disk, Misbound, NodeVitals
from reconciler.model.observed import (
    AttemptReport,
    AttemptState,
    JobObservation,
    NodeCondition,
    NodeObservation,
    Observed,
)
from reconciler.model.units import SECOND, Bytes, Instant, JobKey, Nanoseconds, NodeName
from reconciler.wire import AttemptStatus, BadMessage, Refusal, Report, decode_report, encode
from tests.engines.builders import RULES, attempt_order, committed_of, desired_of
from tests.engines.fake import NEW_YEAR, FakeClock

N1 = NodeName("n1")
JOB = JobKey("nlp/sft")
LEASE = 5
DESIRED = desired_of(["n1", "n2", "n3"])


def report(sequence: int = 1, *, node: str = "n1", session: str = "s1", boot: str = "b1", **fields: Any) -> Report:
    return Report(
        node=node,
        bootId=boot,
        session=session,
        sequence=sequence,
        address="127.0.1.1",
        epoch=1,
        generation=1,
        commit="c",
        **fields,
    )


def status(state: str = "Running", *, attempt: int = 1, at: int = NEW_YEAR, **fields: Any) -> AttemptStatus:
    return AttemptStatus(job=JOB, attempt=attempt, state=state, at=at, generation=1, commit="c", **fields)


def listening(clock: FakeClock, observed: Observed | None = None) -> Sessions:
    sessions = Sessions(clock)
    sessions.begin(DESIRED, observed or Observed())
    return sessions


def seen(sessions: Sessions, clock: FakeClock, node: NodeName = N1) -> NodeObservation:
    return sessions.observe(DESIRED, clock.now()).nodes[node]


def states(node: NodeObservation) -> dict[int, tuple[str, str]]:
    return {a.attempt: (a.state.value, a.reason) for a in node.attempts}


def ready(node: str, **fields: Any) -> NodeObservation:
    return NodeObservation(
        node=NodeName(node),
        boot_id="b1",
        address="127.0.1.1",
        condition=NodeCondition.READY,
        condition_since=Instant(5),
        **fields,
    )


class TestOrderOfReports:
    @pytest.mark.parametrize(
        ("second", "hearing", "unhealthy"),
        [
            (report(4, unhealthy="late"), Hearing.STALE, ""),
            (report(5, unhealthy="repeated"), Hearing.SAME, ""),
            (report(6, unhealthy="disk"), Hearing.NEWS, "disk"),
            (report(6), Hearing.SAME, ""),
            (report(1, session="s2", unhealthy="new life"), Hearing.NEWS, "new life"),
        ],
        ids=[
            "older is stale",
            "repeated is ignored",
            "newer counts",
            "unchanged is no news",
            "a new session begins at 1",
        ],
    )
    def test_a_second_report(self, second: Report, hearing: Hearing, unhealthy: str) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        sessions.hear(report(5))
        seen(sessions, clock)
        assert sessions.hear(second) is hearing
        assert seen(sessions, clock).unhealthy == unhealthy

    def test_a_replaced_session_is_never_heard_again(self) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        sessions.hear(report(1, session="old"))
        sessions.hear(report(1, session="new"))
        assert sessions.hear(report(99, session="old", unhealthy="ghost")) is Hearing.STALE
        assert seen(sessions, clock).unhealthy == ""

    def test_a_stale_report_is_no_sign_of_life(self) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        sessions.hear(report(5))
        seen(sessions, clock)
        clock.advance(RULES.unreachable_after + 1)
        sessions.hear(report(4))
        assert seen(sessions, clock).condition is NodeCondition.UNREACHABLE

    def test_a_returning_node_wakes_the_loop_once_until_it_looks(self) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        assert [sessions.hear(report(n)) for n in (1, 2, 3)] == [Hearing.NEWS, Hearing.SAME, Hearing.SAME]


class TestReceipts:
    def test_a_receipt_keeps_its_first_instant_while_nothing_else_changes(self) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        sessions.hear(report(1, attempts=[status(at=NEW_YEAR - 9)]))
        sessions.hear(report(2, attempts=[status(at=NEW_YEAR - 3)]))
        assert seen(sessions, clock).attempts[0].at == NEW_YEAR - 9

    def test_instants_of_the_future_become_now_and_stay(self) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        sessions.hear(report(1, attempts=[status(at=NEW_YEAR + 10**15)]))
        first = seen(sessions, clock)
        assert first.attempts[0].at == clock.now()
        clock.advance(SECOND)
        sessions.hear(report(2, attempts=[status(at=NEW_YEAR + 10**15)]))
        assert seen(sessions, clock) == first

    def test_what_a_node_no_longer_reports_is_gone(self) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        sessions.hear(report(1, attempts=[status("Gone")]))
        sessions.hear(report(2))
        assert seen(sessions, clock).attempts == ()

    def test_hardware_said_once_stays_through_reports_without(self) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        gpus = [{"index": 1, "uuid": "GPU-1", "healthy": False, "reason": "Xid 79"}, {"index": 0, "uuid": "GPU-0"}]
        sessions.hear(report(1, hardware={"gpuType": "h100", "gpus": gpus}))
        sessions.hear(report(2))
        node = seen(sessions, clock)
        assert [(g.index, g.uuid, g.healthy, g.reason) for g in node.gpus] == [
            (0, "GPU-0", True, ""),
            (1, "GPU-1", False, "Xid 79"),
        ]
        assert node.gpu_type == "h100"

    def test_links_nics_and_numa_nodes_are_facts_and_what_is_not_said_is_unknown(self) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        gpu = {"index": 0, "uuid": "GPU-0", "nvlinks": 17, "pcieWidth": 8, "pcieMost": 16, "numa": 1, "memoryBytes": 80}
        nics = [{"name": "mlx5_1", "up": True, "switch": "tor-1"}, {"name": "mlx5_0", "up": False}]
        numa = [{"id": 0, "cpus": "0-3"}]
        hardware = {
            "gpuType": "h100",
            "gpus": [gpu, {"index": 1, "uuid": "GPU-1"}],
            "nics": nics,
            "numa": numa,
            "driver": "570",
        }
        assert sessions.hear(report(1, hardware=hardware)) is Hearing.NEWS
        node = seen(sessions, clock)
        assert [(g.nvlinks, g.pcie_width, g.pcie_most, g.numa, g.memory) for g in node.gpus] == [
            (17, 8, 16, 1, 80),
            (-1, 0, 0, -1, 0),
        ]
        assert [(n.name, n.up, n.switch, n.numa) for n in node.nics] == [
            ("mlx5_0", False, "", -1),
            ("mlx5_1", True, "tor-1", -1),
        ]
        assert [(n.id, n.cpus) for n in node.numa] == [(0, "0-3")]
        assert (node.driver, node.clique) == ("570", "")
        gpu["nvlinks"] = 18
        assert sessions.hear(report(2, hardware=hardware)) is Hearing.NEWS
        assert sessions.hear(report(3, hardware=hardware)) is Hearing.SAME

    def test_health_is_facts_too_and_xids_are_numbers_in_order(self) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        ill = {
            "index": 0, "uuid": "GPU-0", "xids": [79, 48, 79], "recovery": "Reset", "throttled": "power brake",
            "rowsPending": True, "pcieSpeed": 16000, "pcieFastest": 32000,
        }  # fmt: skip
        nic = {"name": "mlx5_0", "up": True, "pcieSpeed": 8000, "pcieFastest": 32000}
        sessions.hear(report(1, hardware={"gpus": [ill, {"index": 1, "uuid": "GPU-1"}], "nics": [nic]}))
        one, other = seen(sessions, clock).gpus
        assert (one.xids, one.recovery, one.throttled, one.rows_pending) == ((48, 79), "Reset", "power brake", True)
        assert (one.pcie_speed, one.pcie_fastest, one.is_usable) == (16000, 32000, False)
        assert (other.xids, other.recovery, other.throttled, other.rows_pending) == ((), "", "", False)
        assert other.is_usable
        assert [(n.pcie_speed, n.pcie_fastest) for n in seen(sessions, clock).nics] == [(8000, 32000)]

    @pytest.mark.parametrize(
        "hardware",
        [
            {"gpus": [], "nics": [{"name": "a", "up": True}, {"name": "a", "up": True}]},
            {"gpus": [{"index": 0, "xids": [-1]}]},
            {"gpus": [{"index": 0, "xids": list(range(65))}]},
            {"gpus": [{"index": 0, "rowsPending": "yes"}]},
            {"gpus": [], "nics": [{"name": "a", "up": 1}]},
            {"gpus": [{"index": 0, "nvlinks": -2}]},
            {"gpus": [], "numa": "0-3"},
        ],
        ids=[
            "a NIC twice",
            "a fault below zero",
            "faults without end",
            "pending is no truth",
            "up is no truth",
            "fewer than no links",
            "numa is no list",
        ],
    )
    def test_hardware_that_cannot_be_is_no_report(self, hardware: dict[str, Any]) -> None:
        with pytest.raises(BadMessage):
            listening(FakeClock()).hear(report(1, hardware=hardware))

    def test_refusals_are_news_and_kept(self) -> None:
        sessions = listening(FakeClock())
        sessions.hear(report(1))
        refusal = Refusal(commitId="c", code="BadSignature", detail="no\nkey", at=1)
        assert sessions.hear(report(2, refusals=[refusal])) is Hearing.NEWS
        assert sessions.refusals() == {N1: (replace(refusal, detail="no key"),)}
        assert sessions.hear(report(3, refusals=[replace(refusal, at=2)])) is Hearing.SAME
        sessions.hear(report(4))
        assert N1 in sessions.refusals()
        sessions.hear(replace(report(5), generation=2))
        assert sessions.refusals() == {}

    def test_why_a_node_refuses_is_a_fact_until_it_accepts_again(self) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        sessions.hear(report(1))
        assert seen(sessions, clock).refused == ""
        told = [
            ("a", "OlderOrder", "generation 5 is older than 7"),
            ("b", "OlderOrder", "generation 6 is older than 7"),  # the same trouble: no new fact
            ("c", "BadSignature", "no key"),
        ]
        found = []
        for number, (commit, code, detail) in enumerate(told, 2):
            sessions.hear(report(number, refusals=[Refusal(commitId=commit, code=code, detail=detail, at=number)]))
            found.append(seen(sessions, clock).refused)
        assert found == [
            "OlderOrder: generation 5 is older than 7",
            "OlderOrder: generation 5 is older than 7",
            "BadSignature: no key",
        ]
        sessions.hear(replace(report(5), generation=2))
        assert seen(sessions, clock).refused == ""


class TestReboot:
    RUNNING = AttemptReport(job=JOB, attempt=1, state=AttemptState.RUNNING, at=Instant(7))
    EXITED = AttemptReport(job=JOB, attempt=2, state=AttemptState.EXITED, at=Instant(7), exit_code=3)

    def rebooted(self, clock: FakeClock) -> Sessions:
        """A node committed with two attempts, that came back with another boot id while we were away."""
        sessions = listening(clock, Observed(nodes={N1: ready("n1", attempts=(self.RUNNING, self.EXITED))}))
        sessions.hear(report(1, boot="b2"))
        return sessions

    def test_running_attempts_are_gone_and_ended_ones_keep_their_receipt(self) -> None:
        clock = FakeClock()
        node = seen(self.rebooted(clock), clock)
        assert states(node) == {1: ("Gone", "Rebooted"), 2: ("Exited", "")}
        assert (node.boot_id, node.attempts[0].at, node.attempts[1]) == ("b2", clock.now(), self.EXITED)

    def test_the_receipts_stay_until_no_order_names_the_attempt(self) -> None:
        clock = FakeClock()
        sessions = self.rebooted(clock)
        first = seen(sessions, clock)
        both = [attempt_order(phase="run", attempt=1), attempt_order(phase="run", attempt=2, gpus=(3,))]
        sessions.apply(next_applied(committed_of(1, {"n1": both}), None))
        clock.advance(SECOND)
        sessions.hear(report(2, boot="b2"))
        assert seen(sessions, clock) == first
        sessions.apply(next_applied(committed_of(2, {"n1": both[1:]}), None))
        assert states(seen(sessions, clock)) == {2: ("Exited", "")}

    def test_a_node_that_reboots_without_end_fills_no_memory(self) -> None:
        clock = FakeClock()
        sessions = listening(clock)
        sessions.apply(next_applied(committed_of(1, {"n1": []}), None))
        for boot in range(9):
            attempts = [status(attempt=boot * 100 + n) for n in range(100)]
            sessions.hear(report(boot, boot=f"b{boot}", attempts=attempts))
        # Looked at from inside: observing would tidy up.
        assert len(sessions._known[N1].seen.attempts) == 100

    def test_what_the_new_boot_says_of_an_attempt_wins(self) -> None:
        clock = FakeClock()
        sessions = self.rebooted(clock)
        sessions.hear(report(2, boot="b2", attempts=[status("Prepared")]))
        assert states(seen(sessions, clock)) == {1: ("Prepared", ""), 2: ("Exited", "")}
        sessions.hear(report(3, boot="b2"))
        assert states(seen(sessions, clock)) == {2: ("Exited", "")}


class TestSilence:
    def silent(self, clock: FakeClock, *names: str) -> Sessions:
        """A cluster of which only the named nodes go on reporting; the clock is not moved."""
        sessions = listening(clock)
        for node in ("n1", "n2", "n3"):
            sessions.hear(report(1, node=node))
        sessions.observe(DESIRED, clock.now())
        return sessions

    def keep_alive(self, sessions: Sessions, sequence: int, *names: str) -> None:
        for name in names:
            sessions.hear(report(sequence, node=name))

    def test_after_our_link_was_down_the_rest_get_as_long_again(self) -> None:
        clock = FakeClock()
        sessions = self.silent(clock)
        clock.advance(RULES.lost_after + 1)
        with pytest.raises(EngineUnavailable):
            sessions.observe(DESIRED, clock.now())
        clock.advance(SECOND)
        self.keep_alive(sessions, 2, "n2", "n3")
        assert seen(sessions, clock).condition is NodeCondition.READY
        clock.advance(RULES.lost_after)
        self.keep_alive(sessions, 3, "n2", "n3")
        assert seen(sessions, clock).condition is NodeCondition.LOST

    def test_a_committed_loss_stands_until_the_node_is_heard(self) -> None:
        clock = FakeClock()
        lost = replace(ready("n1"), condition=NodeCondition.LOST, lease_expired=True)
        sessions = listening(clock, Observed(nodes={N1: lost}))
        for _ in range(2):
            assert seen(sessions, clock) == lost
            clock.advance(RULES.lost_after)
        sessions.hear(report(1))
        assert (seen(sessions, clock).condition, seen(sessions, clock).lease_expired) == (NodeCondition.READY, False)

    def test_two_of_four_is_not_more_than_half(self) -> None:
        clock = FakeClock()
        desired = desired_of(["n1", "n2", "n3", "n4"])
        sessions = Sessions(clock)
        sessions.begin(desired, Observed())
        self.keep_alive(sessions, 1, "n1", "n2", "n3", "n4")
        sessions.observe(desired, clock.now())
        clock.advance(RULES.lost_after + 1)
        self.keep_alive(sessions, 2, "n3", "n4")
        nodes = sessions.observe(desired, clock.now()).nodes
        assert [nodes[NodeName(n)].condition for n in ("n1", "n2", "n3")] == ["Lost", "Lost", "Ready"]

    def test_a_single_node_cluster_may_lose_its_node(self) -> None:
        clock = FakeClock()
        desired = desired_of(["n1"])
        sessions = Sessions(clock)
        sessions.begin(desired, Observed())
        sessions.hear(report(1))
        sessions.observe(desired, clock.now())
        clock.advance(RULES.lost_after + 1)
        assert sessions.observe(desired, clock.now()).nodes[N1].condition is NodeCondition.LOST

    def test_a_node_declared_dead_is_lost_at_once_and_no_vote_against_our_link(self) -> None:
        clock = FakeClock()
        sessions = self.silent(clock)
        dead = desired_of(["n1", "n2", "n3"], dead=("n1", "n2"))
        clock.advance(RULES.unreachable_after + 1)
        self.keep_alive(sessions, 2, "n3")
        nodes = sessions.observe(dead, clock.now()).nodes
        assert [(nodes[NodeName(n)].condition, nodes[NodeName(n)].confirmed_dead) for n in ("n1", "n3")] == [
            (NodeCondition.LOST, True),
            (NodeCondition.READY, False),
        ]

    def test_nodes_out_of_inventory_are_not_observed_but_heard_while_they_have_orders(self) -> None:
        clock = FakeClock()
        sessions = self.silent(clock)
        fewer = desired_of(["n2", "n3"])
        sessions.apply(next_applied(committed_of(1, {"n1": [attempt_order(phase="stop")]}), None))
        assert N1 in sessions.observe(fewer, clock.now()).nodes
        assert sessions.admits(N1)
        sessions.apply(next_applied(committed_of(2, {"n1": []}), None))
        assert N1 not in sessions.observe(fewer, clock.now()).nodes
        assert not sessions.admits(N1)


class TestLeases:
    def lost(self, sessions: Sessions, clock: FakeClock, after: int) -> NodeObservation:
        """n1 as it stands when it was silent for so long, the others being heard."""
        clock.advance(after)
        for name in ("n2", "n3"):
            sessions.hear(report(clock.monotonic(), node=name))
        return seen(sessions, clock)

    def test_a_lease_is_over_only_a_margin_after_the_last_answer(self) -> None:
        clock = FakeClock()
        rules = replace(RULES, unreachable_after=SECOND, lost_after=Nanoseconds(2 * SECOND))
        sessions = Sessions(clock)
        desired = desired_of(["n1"], rules=rules)
        sessions.begin(desired, Observed())
        sessions.hear(report(1))
        sessions.apply(next_applied(committed_of(1, {"n1": [attempt_order(lease=LEASE)]}), None))
        sessions.observe(desired, clock.now())
        clock.advance(SECOND)
        sessions.grant(N1, LEASE)
        expired = []
        for span in (LEASE * SECOND, rules.lease_margin, 1):
            clock.advance(span)
            node = sessions.observe(desired, clock.now()).nodes[N1]
            assert node.condition is NodeCondition.LOST
            expired.append(node.lease_expired)
        assert expired == [False, False, True]

    def test_an_earlier_reconciler_may_have_renewed_it_until_we_began(self) -> None:
        clock = FakeClock()
        nodes = {NodeName(n): ready(n) for n in ("n1", "n2", "n3")}
        sessions = listening(clock, Observed(nodes=nodes))
        lease = RULES.lost_after // SECOND + 60
        sessions.apply(next_applied(committed_of(1, {"n1": [attempt_order(lease=lease)]}), None))
        assert self.lost(sessions, clock, 0).condition is NodeCondition.READY
        first = self.lost(sessions, clock, RULES.lost_after + 1)
        assert (first.condition, first.lease_expired) == (NodeCondition.LOST, False)
        assert self.lost(sessions, clock, 60 * SECOND + RULES.lease_margin).lease_expired

    def test_nothing_is_known_of_leases_before_a_generation_is_applied(self) -> None:
        clock = FakeClock()
        nodes = {NodeName(n): ready(n) for n in ("n1", "n2", "n3")}
        sessions = listening(clock, Observed(nodes=nodes))
        assert not self.lost(sessions, clock, 100 * RULES.lost_after).lease_expired


class OnTwoNodes:
    def running(self, clock: FakeClock) -> Sessions:
        sessions = listening(clock)
        orders = {"n1": [attempt_order(phase="run")], "n2": [attempt_order(phase="run")], "n3": []}
        sessions.apply(next_applied(committed_of(1, orders), None))
        return sessions

    def checkpoint(self, sessions: Sessions, clock: FakeClock) -> JobObservation | None:
        return sessions.observe(DESIRED, clock.now()).jobs.get(JOB)


class TestCheckpoints(OnTwoNodes):
    def test_the_latest_of_all_nodes_counts_and_it_never_goes_back(self) -> None:
        clock = FakeClock()
        sessions = self.running(clock)
        sessions.hear(report(1, node="n1", attempts=[status(checkpoint=NEW_YEAR - 8)]))
        sessions.hear(report(1, node="n2", attempts=[status(checkpoint=NEW_YEAR - 5)]))
        expected = JobObservation(job=JOB, attempt=1, checkpoint=Instant(NEW_YEAR - 5))
        assert self.checkpoint(sessions, clock) == expected
        sessions.hear(report(2, node="n2", attempts=[status(checkpoint=NEW_YEAR - 9)]))
        assert self.checkpoint(sessions, clock) == expected

    def test_a_node_without_orders_for_the_job_has_no_say(self) -> None:
        clock = FakeClock()
        sessions = self.running(clock)
        sessions.hear(report(1, node="n3", attempts=[status(checkpoint=NEW_YEAR - 5)]))
        assert self.checkpoint(sessions, clock) is None

    def test_one_of_the_future_is_now_once_and_then_stays(self) -> None:
        clock = FakeClock()
        sessions = self.running(clock)
        sessions.hear(report(1, attempts=[status(checkpoint=NEW_YEAR + 10**15)]))
        first = self.checkpoint(sessions, clock)
        assert first is not None
        assert first.checkpoint == clock.now()
        clock.advance(SECOND)
        sessions.hear(report(2, attempts=[status(checkpoint=NEW_YEAR + 10**15)]))
        assert self.checkpoint(sessions, clock) == first


class TestDisuse(OnTwoNodes):
    def test_a_session_is_idle_since_the_last_node_was_used_and_not_while_any_is(self) -> None:
        clock = FakeClock()
        sessions = self.running(clock)
        sessions.hear(report(1, node="n1", attempts=[status(idle=NEW_YEAR - 8)]))
        assert self.checkpoint(sessions, clock) is None, "the other node has said nothing of it"
        sessions.hear(report(1, node="n2", attempts=[status(idle=NEW_YEAR - 5, checkpoint=NEW_YEAR - 9)]))
        both = JobObservation(job=JOB, attempt=1, checkpoint=Instant(NEW_YEAR - 9), idle_since=Instant(NEW_YEAR - 5))
        assert self.checkpoint(sessions, clock) == both
        sessions.hear(report(2, node="n2", attempts=[status(checkpoint=NEW_YEAR - 4)]))
        used = JobObservation(job=JOB, attempt=1, checkpoint=Instant(NEW_YEAR - 4))
        assert self.checkpoint(sessions, clock) == used

    def test_a_node_whose_clock_is_ahead_says_nothing_of_it(self) -> None:
        clock = FakeClock()
        sessions = self.running(clock)
        for node in ("n1", "n2"):
            sessions.hear(report(1, node=node, attempts=[status(idle=NEW_YEAR + 10**15)]))
        assert self.checkpoint(sessions, clock) is None


class TestLive:
    def test_the_newest_attempt_and_the_furthest_heartbeat(self) -> None:
        sessions = listening(FakeClock())
        sessions.hear(report(1, node="n1", attempts=[status(progress={"step": 3}, ranks=[{"rank": 0, "pid": 9}])]))
        sessions.hear(
            report(1, node="n2", attempts=[status(progress={"step": 4, "mfu": 0.4, "note": "a\nb", "x": []})])
        )
        sessions.hear(report(1, node="n3", attempts=[status("Gone", attempt=2, progress={"step": 99})]))
        live = sessions.live()[JOB]
        assert (live.attempt, live.progress) == (1, {"step": 4, "mfu": 0.4, "note": "a b"})
        assert live.ranks == {N1: ({"rank": 0, "pid": 9},), NodeName("n2"): ()}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
STATUS = st.builds(
    AttemptStatus,
    job=st.sampled_from([JOB, "", "../../etc", "nlp/sft\n"]) | st.text(max_size=4),
    attempt=st.integers(),
    state=st.sampled_from([*AttemptState, "Flying"]),
    at=st.integers(),
    generation=st.integers(),
    commit=st.text(max_size=4),
    exitCode=st.none() | st.integers(),
    reason=st.text(max_size=300),
    checkpoint=st.none() | st.integers(),
    progress=st.dictionaries(st.text(max_size=4), JSON, max_size=4),
    ranks=st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=2), max_size=2),
)
REPORT = st.builds(
    Report,
    node=st.just("n1"),
    bootId=st.text(max_size=4),
    session=st.text(max_size=3),
    sequence=st.integers(),
    address=st.text(max_size=5),
    epoch=st.integers(),
    generation=st.integers(),
    commit=st.text(max_size=4),
    hardware=st.dictionaries(st.sampled_from(["gpuType", "gpus", "nics", "numa", "clique", "x"]), JSON, max_size=4),
    attempts=st.lists(STATUS, max_size=3),
    refusals=st.lists(
        st.builds(Refusal, commitId=st.text(max_size=3), code=st.text(max_size=3), detail=st.text(), at=st.integers()),
        max_size=2,
    ),
    waitSeconds=st.integers(),
)


@given(st.lists(REPORT, max_size=3))
def test_whatever_a_node_says_is_a_fact_that_can_be_written_or_a_typed_error(reports: list[Report]) -> None:
    clock = FakeClock()
    sessions = listening(clock)
    for said in reports:
        try:
            sessions.hear(decode_report(encode(said)))
        except BadMessage:
            continue
    observed = sessions.observe(DESIRED, clock.now())
    sessions.live()
    for node in observed.nodes.values():
        texts = [node.address, node.unhealthy, node.boot_id, *(a.reason for a in node.attempts)]
        assert all(text.isprintable() and text.encode() is not None and len(text) <= 240 for text in texts)
        assert all(a.at <= clock.now() for a in node.attempts)


def test_two_commits_of_one_generation_are_our_own_bug() -> None:
    applied = next_applied(committed_of(1, {"n1": []}), None)
    with pytest.raises(BrokenInvariant):
        next_applied(committed_of(1, {"n1": []}, salt="other"), applied)


def test_what_nodes_tell_people_is_kept_beside_the_facts_and_is_no_news() -> None:
    clock = FakeClock()
    sessions = listening(clock)
    sessions.hear(report(1, vitals={"clock": clock.now() - 4 * SECOND}))
    before = seen(sessions, clock)
    told = {
        "clock": clock.now() - 3 * SECOND, "certificateEnds": 1_700_000_000,
        "disks": [{"path": "/fs", "free": 1, "size": 2}, {"path": "/odd"}, 7],
        "misbound": [{"job": JOB, "rank": 1, "pid": 2, "what": "cpus", "ordered": "0", "seen": "1\n2"}],
    }  # fmt: skip
    assert sessions.hear(report(2, vitals=told)) is Hearing.SAME
    assert seen(sessions, clock) == before
    assert sessions.vitals()[N1] == NodeVitals(
        node=N1, skew=-3 * SECOND, certificate_ends=Instant(1_700_000_000 * SECOND),
        disks=(Disk(path="/fs", free=Bytes(1), size=Bytes(2)),),
        misbound=(Misbound(job=JOB, rank=1, pid=2, what="cpus", ordered="0", seen="1 2"),),
    )  # fmt: skip
    sessions.hear(report(3, vitals={"clock": clock.now() - 9 * SECOND}))
    assert sessions.vitals()[N1].skew == -3 * SECOND, "a report that came late says nothing of the clock"
    for sequence in range(4, 9):
        sessions.hear(report(sequence, vitals={"clock": clock.now() - 9 * SECOND}))
    assert sessions.vitals()[N1].skew == -9 * SECOND, "five in a row do"
    clock.advance(31 * SECOND)
    seen(sessions, clock)
    assert sessions.vitals() == {}, "what a silent node said is old"


@pytest.mark.parametrize(
    "odd", [{"clock": "now"}, {"disks": 3}, {"certificateEnds": -1}, {"misbound": [None, {"rank": "x"}]}]
)
def test_odd_vitals_refuse_nothing(odd: dict[str, Any]) -> None:
    clock = FakeClock()
    sessions = listening(clock)
    assert sessions.hear(report(1, vitals=odd)) is Hearing.NEWS
    seen(sessions, clock)
    assert sessions.vitals()[N1].skew == 0
