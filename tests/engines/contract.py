"""What every engine promises, as tests: subclass `EngineContract` and give it a `world` fixture."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import pytest

from reconciler.errors import EngineUnavailable
from reconciler.model.desired import Desired
from reconciler.model.observed import AttemptState, NodeCondition, NodeObservation, Observed
from reconciler.model.units import SECOND, Instant, JobKey, Nanoseconds, NodeName
from reconciler.ports import Committed, Engine
from reconciler.wire import AttemptOrder, AttemptStatus
from tests.engines.builders import RULES, attempt_order, committed_of, desired_of
from tests.engines.fake import FakeClock, FakeNode

NODES = ["n1", "n2", "n3"]
JOB = JobKey("nlp/sft")


class World(Protocol):
    """An engine over nodes that a test moves by hand. `sync` lets the named nodes call in once, all by default."""

    engine: Engine
    clock: FakeClock
    nodes: dict[str, FakeNode]

    def sync(self, *names: str) -> None: ...


def generation(number: int, *attempts: AttemptOrder, epoch: int = 1) -> Committed:
    """A generation in which n1 has these attempts and the other nodes have none."""
    return committed_of(number, {"n1": list(attempts), "n2": [], "n3": []}, epoch=epoch)


def begin(world: World, *, desired: Desired | None = None, observed: Observed | None = None) -> Desired:
    wanted = desired or desired_of(NODES)
    world.engine.start(wanted, observed or Observed())
    return wanted


def ready(node: str, since: int = 5) -> NodeObservation:
    return NodeObservation(
        node=NodeName(node),
        boot_id=f"boot-{node}-1",
        address="127.0.1.1",
        condition=NodeCondition.READY,
        condition_since=Instant(since),
    )


def state_of(world: World, desired: Desired, attempt: int = 1) -> AttemptState | None:
    seen = world.engine.observe(desired, world.clock.now()).nodes[NodeName("n1")]
    receipt = seen.attempt(JOB, attempt)
    return receipt.state if receipt else None


class EngineContract:
    """The tests. Every engine's own tests say what is special about it."""

    def test_a_gang_is_prepared_runs_checkpoints_and_is_forgotten(self, world: World) -> None:
        desired = begin(world)
        for number, (phase, expected) in enumerate(
            [("prepare", AttemptState.PREPARED), ("run", AttemptState.RUNNING), ("checkpoint", AttemptState.GONE)], 1
        ):
            world.engine.apply(generation(number, attempt_order(phase=phase)))
            world.sync()
            world.sync()
            assert state_of(world, desired) is expected
        stopped_at = world.clock.now()
        assert world.engine.observe(desired, stopped_at).jobs[JOB].checkpoint == stopped_at
        world.engine.apply(generation(4))
        world.sync()
        world.sync()
        assert state_of(world, desired) is None

    def test_applying_the_same_generation_again_changes_nothing(self, world: World) -> None:
        desired = begin(world)
        committed = generation(1, attempt_order())
        world.engine.apply(committed)
        world.sync()
        world.sync()
        before = world.engine.observe(desired, world.clock.now())
        world.clock.advance(SECOND)
        world.engine.apply(committed)
        world.sync()
        assert world.engine.observe(desired, world.clock.now()) == before

    def test_an_older_generation_is_ignored(self, world: World) -> None:
        begin(world)
        newer = generation(2, attempt_order(phase="prepare"))
        world.engine.apply(newer)
        world.engine.apply(generation(1, attempt_order(phase="prepare", attempt=9)))
        world.sync()
        assert world.nodes["n1"].accepted == (1, 2, newer.commit)

    def test_a_raised_epoch_wins_over_a_higher_generation(self, world: World) -> None:
        begin(world)
        world.engine.apply(generation(7, attempt_order()))
        world.sync()
        restored = generation(3, epoch=2)
        world.engine.apply(restored)
        world.sync()
        assert world.nodes["n1"].accepted == (2, 3, restored.commit)

    def test_a_node_that_obeys_a_newer_generation_is_told_nothing(self, world: World) -> None:
        begin(world)
        world.nodes["n1"].accepted = (1, 9, "f" * 40)
        world.engine.apply(generation(8, attempt_order(lease=5)))
        world.sync()
        assert world.nodes["n1"].accepted == (1, 9, "f" * 40)

    def test_equal_worlds_give_equal_values_however_late_one_looks(self, world: World) -> None:
        desired = begin(world)
        world.engine.apply(generation(1, attempt_order()))
        world.sync()
        world.sync()
        first = world.engine.observe(desired, world.clock.now())
        for _ in range(3):
            world.clock.advance(10 * SECOND)
            world.sync()
            assert world.engine.observe(desired, world.clock.now()) == first

    def test_the_committed_observation_stands_until_a_node_speaks(self, world: World) -> None:
        for node in world.nodes.values():
            node.reachable = False
        committed = Observed(nodes={NodeName(n): ready(n) for n in NODES})
        desired = begin(world, observed=committed)
        world.clock.advance(RULES.unreachable_after)
        assert world.engine.observe(desired, world.clock.now()) == committed

    def test_a_restart_that_hears_nobody_judges_nobody(self, world: World) -> None:
        for node in world.nodes.values():
            node.reachable = False
        desired = begin(world, observed=Observed(nodes={NodeName(n): ready(n) for n in NODES}))
        for _ in range(3):
            world.clock.advance(RULES.lost_after)
            with pytest.raises(EngineUnavailable) as caught:
                world.engine.observe(desired, world.clock.now())
            assert caught.value.code == "OwnLinkSuspected"

    def test_a_silent_node_becomes_unreachable_then_lost_and_comes_back_anew(self, world: World) -> None:
        desired = begin(world)
        world.sync()
        world.engine.observe(desired, world.clock.now())
        world.nodes["n1"].reachable = False
        seen: list[tuple[NodeCondition, Instant]] = []
        for span in (RULES.unreachable_after, Nanoseconds(1), RULES.lost_after - RULES.unreachable_after):
            world.clock.advance(span)
            world.sync("n2", "n3")
            node = world.engine.observe(desired, world.clock.now()).nodes[NodeName("n1")]
            seen.append((node.condition, node.condition_since))
        assert [condition for condition, _ in seen] == ["Ready", "Unreachable", "Lost"]
        assert seen[2][1] == world.clock.now()
        world.nodes["n1"].reachable = True
        world.clock.advance(SECOND)
        world.sync()
        back = world.engine.observe(desired, world.clock.now()).nodes[NodeName("n1")]
        assert (back.condition, back.condition_since) == (NodeCondition.READY, world.clock.now())

    def test_a_node_whose_lease_was_judged_over_gets_nothing_until_it_was_observed_again(self, world: World) -> None:
        desired = begin(world)
        prepare = generation(1, attempt_order(lease=5))
        world.engine.apply(prepare)
        world.sync()
        world.engine.observe(desired, world.clock.now())
        world.nodes["n1"].reachable = False
        world.clock.advance(RULES.lost_after + 1)
        world.sync("n2", "n3")
        assert world.engine.observe(desired, world.clock.now()).nodes[NodeName("n1")].lease_expired
        run = generation(2, attempt_order(phase="run", lease=5))
        world.engine.apply(run)
        world.nodes["n1"].reachable = True
        world.sync("n1")
        assert world.nodes["n1"].accepted == (1, 1, prepare.commit)
        assert state_of(world, desired) is AttemptState.PREPARED
        world.sync("n1")
        assert world.nodes["n1"].accepted == (1, 2, run.commit)

    def test_most_nodes_silent_at_once_is_our_own_link(self, world: World) -> None:
        desired = begin(world)
        world.sync()
        world.engine.observe(desired, world.clock.now())
        for name in ("n1", "n2"):
            world.nodes[name].reachable = False
        world.clock.advance(RULES.lost_after + 1)
        world.sync("n3")
        with pytest.raises(EngineUnavailable) as caught:
            world.engine.observe(desired, world.clock.now())
        assert caught.value.code == "OwnLinkSuspected"

    def test_a_reboot_ends_the_attempts_of_the_earlier_boot(self, world: World) -> None:
        desired = begin(world)
        for number, phase in enumerate(("prepare", "run"), 1):
            world.engine.apply(generation(number, attempt_order(phase=phase)))
            world.sync()
        assert state_of(world, desired) is AttemptState.RUNNING
        node = world.nodes["n1"]
        node.reboot()
        node.hung = True
        node.orders.clear()
        world.sync()
        receipt = world.engine.observe(desired, world.clock.now()).nodes[NodeName("n1")].attempt(JOB, 1)
        assert receipt is not None
        assert (receipt.state, receipt.reason, receipt.at) == (AttemptState.GONE, "Rebooted", world.clock.now())

    def test_waiting_ends_with_news_or_a_wake_and_else_with_the_time(self, world: World) -> None:
        begin(world)
        world.sync()
        assert world.engine.wait(Nanoseconds(SECOND)) is True
        world.sync()
        assert world.engine.wait(Nanoseconds(SECOND // 20)) is False
        world.nodes["n2"].unhealthy = "disk is full"
        world.sync()
        assert world.engine.wait(Nanoseconds(60 * SECOND)) is True
        world.engine.wake()
        assert world.engine.wait(Nanoseconds(60 * SECOND)) is True

    def test_progress_is_seen_live_and_is_no_fact(self, world: World) -> None:
        desired = begin(world)
        for number, phase in enumerate(("prepare", "run"), 1):
            world.engine.apply(generation(number, attempt_order(phase=phase)))
            world.sync()
        world.sync()
        before = world.engine.observe(desired, world.clock.now())
        node = world.nodes["n1"]
        node.attempts[JOB, 1] = _with_progress(node, {"step": 12, "mfu": 0.41})
        world.sync()
        assert world.engine.live()[JOB].progress == {"step": 12, "mfu": 0.41}
        assert world.engine.observe(desired, world.clock.now()) == before

    def test_stopping_twice_is_stopping_once(self, world: World) -> None:
        begin(world)
        world.engine.stop()
        world.engine.stop()


def _with_progress(node: FakeNode, progress: dict[str, object]) -> AttemptStatus:
    return replace(node.attempts[JOB, 1], progress=progress)
