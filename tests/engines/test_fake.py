"""The fake cluster does what a test's script says: the loop's tests stand on this."""

from __future__ import annotations

import pytest

from reconciler.model.observed import AttemptState, NodeCondition, Observed
from reconciler.model.units import SECOND, Instant, JobKey, Nanoseconds, NodeName
from reconciler.wire import AttemptOrder
from tests.engines.builders import RULES, attempt_order, committed_of, desired_of
from tests.engines.fake import FakeClock, FakeCluster, FakeEngine

NAMES = ["n1", "n2", "n3"]
N1 = NodeName("n1")
JOB = JobKey("nlp/sft")


class Script:
    """A fake engine, and the generations a test applies to n1 and n2 one after the other."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.desired = desired_of(NAMES)
        self.engine = FakeEngine(self.clock)
        self.cluster = self.engine.cluster
        self.engine.start(self.desired, Observed())
        self.number = 0

    def apply(self, *orders: AttemptOrder) -> None:
        self.number += 1
        self.engine.apply(committed_of(self.number, {"n1": list(orders), "n2": list(orders), "n3": []}))

    def run(self, *, lease: int | None = None) -> None:
        """The job runs on n1 and n2."""
        for phase in ("prepare", "run"):
            self.apply(attempt_order(phase=phase, lease=lease))

    def observed(self) -> Observed:
        return self.engine.observe(self.desired, self.clock.now())

    def receipts(self, attempt: int = 1) -> list[tuple[str, int | None, str]]:
        """State, exit code and reason of the attempt on n1 and n2."""
        nodes = self.observed().nodes
        found = [nodes[NodeName(n)].attempt(JOB, attempt) for n in ("n1", "n2")]
        return [(r.state.value, r.exit_code, r.reason) for r in found if r is not None]

    def states(self) -> list[str]:
        return [state for state, _, _ in self.receipts()]


@pytest.fixture
def script() -> Script:
    return Script()


def test_nodes_have_the_hardware_of_their_shape(script: Script) -> None:
    node = script.observed().nodes[N1]
    assert (node.gpu_type, len(node.gpus), node.gpus[7].uuid, node.address) == ("h100", 8, "GPU-n1-7", "127.0.1.1")
    script.cluster.break_gpu("n1", 3)
    assert [g.index for g in script.observed().nodes[N1].gpus if not g.healthy] == [3]


def test_a_job_ends_everywhere_or_on_one_node(script: Script) -> None:
    script.run()
    script.cluster.finish(JOB, 3, node="n2")
    assert script.receipts() == [("Running", None, ""), ("Exited", 3, "")]
    script.cluster.finish(JOB)
    assert script.receipts() == [("Exited", 0, ""), ("Exited", 3, "")]


def test_a_node_refuses_one_job_until_it_is_let(script: Script) -> None:
    script.cluster.refuse("n1", "PortInUse", job=JOB)
    script.apply(attempt_order())
    assert script.receipts() == [("Refused", None, "PortInUse"), ("Prepared", None, "")]
    script.cluster.refuse("n1", "")
    script.apply(attempt_order(attempt=2))
    assert script.receipts(attempt=2) == [("Prepared", None, "")] * 2


def test_a_hung_node_neither_prepares_nor_stops_until_it_wakes(script: Script) -> None:
    script.cluster.hang("n1")
    script.apply(attempt_order())
    assert script.states() == ["Preparing", "Prepared"]
    script.cluster.unhang("n1")
    assert script.states() == ["Prepared", "Prepared"]
    script.apply(attempt_order(phase="run"))
    script.cluster.hang("n1")
    script.apply(attempt_order(phase="stop"))
    assert script.states() == ["Stopping", "Gone"]


def test_what_cannot_be_killed_stays(script: Script) -> None:
    script.run()
    script.cluster.kill_fails("n1", JOB)
    script.apply(attempt_order(phase="stop"))
    assert script.states() == ["KillFailed", "Gone"]


def test_a_lost_node_keeps_its_ranks_for_the_length_of_their_lease(script: Script) -> None:
    script.run(lease=5)
    script.cluster.lose("n1")
    script.clock.advance(5 * SECOND)
    script.cluster.restore("n1")
    assert script.states() == ["Running", "Running"]
    script.cluster.lose("n1")
    script.clock.advance(RULES.lost_after + 1)
    node = script.observed().nodes[N1]
    assert (node.condition, node.lease_expired) == (NodeCondition.LOST, True)
    script.cluster.restore("n1")
    assert script.receipts() == [("Gone", None, "LeaseExpired"), ("Running", None, "")]


def test_leases_run_out_while_no_reconciler_answers(script: Script) -> None:
    script.run(lease=5)
    committed = script.observed()
    script.engine.stop()
    for down, expected in ((5 * SECOND, "Running"), (5 * SECOND + 1, "Gone")):
        script.clock.advance(down)
        script.engine = FakeEngine(script.clock, script.cluster)
        script.engine.start(script.desired, committed)
        assert script.states() == [expected, expected]
        script.engine.stop()


def test_ranks_without_a_lease_outlive_any_silence(script: Script) -> None:
    script.run()
    script.cluster.lose("n1")
    script.clock.advance(10 * RULES.lost_after)
    assert script.observed().nodes[N1].condition is NodeCondition.LOST
    script.cluster.restore("n1")
    assert script.states() == ["Running", "Running"]


def test_a_rebooted_machine_has_no_ranks(script: Script) -> None:
    script.run()
    script.cluster.power_off("n1")
    script.cluster.reboot("n1")
    node = script.observed().nodes[N1]
    assert node.boot_id == "boot-n1-2"
    assert script.states() == ["Gone", "Running"]


def test_delayed_reports_arrive_later_and_in_order(script: Script) -> None:
    script.cluster.delay("n1")
    script.run()
    assert script.states() == ["Running"]
    assert script.cluster.nodes["n1"].attempts[JOB, 1].state == AttemptState.RUNNING
    script.cluster.deliver("n1")
    assert script.states() == ["Running", "Running"]


def test_a_gpu_given_twice_fails_the_test(script: Script) -> None:
    script.run()
    with pytest.raises(AssertionError, match=r"n1.*GPUs \[1\]"):
        script.apply(attempt_order(phase="run"), attempt_order("vision/x", gpus=(1, 2)))


def test_checkpoints_and_heartbeats_are_seen(script: Script) -> None:
    script.run()
    script.clock.advance(SECOND)
    script.cluster.checkpoint(JOB)
    script.cluster.beat(JOB, step=7, mfu=0.4)
    assert script.observed().jobs[JOB].checkpoint == script.clock.now()
    assert script.engine.live()[JOB].progress == {"step": 7, "mfu": 0.4}


def test_waiting_moves_the_clock_only_when_there_is_no_news(script: Script) -> None:
    script.observed()
    script.engine.wait(Nanoseconds(0))
    began = script.clock.monotonic()
    assert script.engine.wait(Nanoseconds(5 * SECOND)) is False
    assert script.clock.monotonic() - began == 5 * SECOND
    script.cluster.nodes["n1"].unhealthy = "disk"
    assert script.engine.wait(Nanoseconds(5 * SECOND)) is True
    assert script.clock.monotonic() - began == 5 * SECOND


def test_the_cluster_outlives_its_engine(script: Script) -> None:
    script.run()
    committed = script.observed()
    script.engine.stop()
    second = FakeEngine(script.clock, script.cluster)
    second.start(script.desired, committed)
    second.apply(committed_of(script.number, {n: [attempt_order(phase="run")] if n != "n3" else [] for n in NAMES}))
    assert second.observe(script.desired, Instant(script.clock.now() + 1)) == committed
    assert second.calls == ["start", "apply 2", "observe"]


def test_fake_clocks_jump_and_advance() -> None:
    clock = FakeClock(now=100, monotonic=7)
    clock.advance(5)
    clock.jump(-50)
    assert (clock.now(), clock.monotonic()) == (55, 12)
    assert FakeEngine(clock, FakeCluster(clock)).applied_generation == -1
