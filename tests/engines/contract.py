"""What every engine promises, as tests: subclass `EngineContract` and give it a `world` fixture.

`AgentContract` adds what only makes sense where nodes speak for themselves: journals, leases, boots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import pytest

from reconciler.errors import EngineUnavailable
from reconciler.model.desired import Desired
from reconciler.model.observed import AttemptState, NodeCondition, NodeObservation, Observed
from reconciler.model.units import SECOND, Instant, JobKey, Nanoseconds, NodeName
from reconciler.ports import Committed, Engine
from reconciler.wire import AttemptOrder
from tests.engines.builders import RULES, attempt_order, committed_of, desired_of
from tests.engines.fake import FakeClock, FakeNode
from tests.engines.slurm_cluster import until

NODES = ["n1", "n2", "n3"]
JOB = JobKey("nlp/sft")


class World(Protocol):
    """An engine over three nodes that a test moves by hand. `sync` lets the named nodes be heard, all by default, and
    returns when what was applied has been done."""

    engine: Engine
    clock: FakeClock
    names: list[str]

    def sync(self, *names: str) -> None: ...

    def desired(self) -> Desired: ...

    def order(self, *, phase: str = "prepare", attempt: int = 1) -> AttemptOrder:
        """An attempt of `JOB` on two GPUs that writes a checkpoint when it is asked to."""
        ...

    def cut(self, *names: str) -> None:
        """Nothing is heard of these nodes any more; what runs on them goes on."""

    def mend(self, *names: str) -> None:
        """They can be heard again."""

    def ail(self, name: str, reason: str) -> None:
        """The node says that it is not well, in these words."""

    def beat(self, progress: Mapping[str, object]) -> None:
        """The running attempt on the first node writes a heartbeat."""


class AgentWorld(World, Protocol):
    """A world whose nodes have an agent each."""

    nodes: dict[str, FakeNode]


class AgentNodes:
    """What a test does to nodes that have an agent, for worlds that have `clock` and `nodes`."""

    clock: FakeClock
    nodes: dict[str, FakeNode]

    @property
    def names(self) -> list[str]:
        return NODES

    def desired(self) -> Desired:
        return desired_of(NODES)

    def order(self, *, phase: str = "prepare", attempt: int = 1) -> AttemptOrder:
        return attempt_order(phase=phase, attempt=attempt)

    def cut(self, *names: str) -> None:
        for name in names:
            self.nodes[name].reachable = False

    def mend(self, *names: str) -> None:
        for name in names:
            self.nodes[name].reachable = True

    def ail(self, name: str, reason: str) -> None:
        self.nodes[name].unhealthy = reason

    def beat(self, progress: Mapping[str, object]) -> None:
        node = self.nodes["n1"]
        node.attempts[JOB, 1] = replace(node.attempts[JOB, 1], progress=dict(progress))


def generation(world: World, number: int, *attempts: AttemptOrder, epoch: int = 1) -> Committed:
    """A generation in which the first node has these attempts and the other nodes have none."""
    first, *others = world.names
    return committed_of(number, {first: list(attempts), **{name: [] for name in others}}, epoch=epoch)


def begin(world: World, *, observed: Observed | None = None) -> Desired:
    wanted = world.desired()
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
    seen = world.engine.observe(desired, world.clock.now()).nodes[NodeName(world.names[0])]
    receipt = seen.attempt(JOB, attempt)
    return receipt.state if receipt else None


def run_attempt(world: World, desired: Desired) -> None:
    for number, phase in enumerate(("prepare", "run"), 1):
        world.engine.apply(generation(world, number, world.order(phase=phase)))
        world.sync()
    world.sync()
    assert state_of(world, desired) is AttemptState.RUNNING


class EngineContract:
    """The tests. Every engine's own tests say what is special about it."""

    def test_a_gang_is_prepared_runs_checkpoints_and_is_forgotten(self, world: World) -> None:
        began, desired = world.clock.now(), begin(world)
        for number, (phase, expected) in enumerate(
            [("prepare", AttemptState.PREPARED), ("run", AttemptState.RUNNING), ("checkpoint", AttemptState.GONE)], 1
        ):
            world.engine.apply(generation(world, number, world.order(phase=phase)))
            world.sync()
            world.sync()
            assert state_of(world, desired) is expected
        stopped_at = world.clock.now()
        saved = world.engine.observe(desired, stopped_at).jobs[JOB].checkpoint
        assert saved is not None
        assert began <= saved <= stopped_at
        world.engine.apply(generation(world, 4))
        world.sync()
        world.sync()
        assert state_of(world, desired) is None

    def test_applying_the_same_generation_again_changes_nothing(self, world: World) -> None:
        desired = begin(world)
        committed = generation(world, 1, world.order())
        world.engine.apply(committed)
        world.sync()
        world.sync()
        before = world.engine.observe(desired, world.clock.now())
        world.clock.advance(SECOND)
        world.engine.apply(committed)
        world.sync()
        assert world.engine.observe(desired, world.clock.now()) == before

    def test_an_older_generation_is_ignored(self, world: World) -> None:
        desired = begin(world)
        world.engine.apply(generation(world, 2, world.order()))
        world.sync()
        world.engine.apply(generation(world, 1, world.order(attempt=9)))
        world.sync()
        assert (state_of(world, desired, 1), state_of(world, desired, 9)) == (AttemptState.PREPARED, None)

    def test_a_raised_epoch_wins_over_a_higher_generation(self, world: World) -> None:
        desired = begin(world)
        world.engine.apply(generation(world, 7, world.order()))
        world.sync()
        world.engine.apply(generation(world, 3, world.order(attempt=2), epoch=2))
        world.sync()
        world.sync()
        assert state_of(world, desired, 2) is AttemptState.PREPARED

    def test_equal_worlds_give_equal_values_however_late_one_looks(self, world: World) -> None:
        desired = begin(world)
        world.engine.apply(generation(world, 1, world.order()))
        world.sync()
        world.sync()
        first = world.engine.observe(desired, world.clock.now())
        for _ in range(3):
            world.clock.advance(10 * SECOND)
            world.sync()
            assert world.engine.observe(desired, world.clock.now()) == first

    def test_the_committed_observation_stands_until_a_node_speaks(self, world: World) -> None:
        world.cut(*world.names)
        committed = Observed(nodes={NodeName(n): ready(n) for n in world.names})
        desired = begin(world, observed=committed)
        world.clock.advance(RULES.unreachable_after)
        assert world.engine.observe(desired, world.clock.now()) == committed

    def test_a_restart_that_hears_nobody_judges_nobody(self, world: World) -> None:
        world.cut(*world.names)
        desired = begin(world, observed=Observed(nodes={NodeName(n): ready(n) for n in world.names}))
        for _ in range(3):
            world.clock.advance(RULES.lost_after)
            with pytest.raises(EngineUnavailable) as caught:
                world.engine.observe(desired, world.clock.now())
            assert caught.value.code == "OwnLinkSuspected"

    def test_a_silent_node_becomes_unreachable_then_lost_and_comes_back_anew(self, world: World) -> None:
        desired = begin(world)
        first, *others = world.names
        world.sync()
        world.engine.observe(desired, world.clock.now())
        world.cut(first)
        seen: list[tuple[NodeCondition, Instant]] = []
        for span in (RULES.unreachable_after, Nanoseconds(1), RULES.lost_after - RULES.unreachable_after):
            world.clock.advance(span)
            world.sync(*others)
            node = world.engine.observe(desired, world.clock.now()).nodes[NodeName(first)]
            seen.append((node.condition, node.condition_since))
        assert [condition for condition, _ in seen] == ["Ready", "Unreachable", "Lost"]
        assert seen[2][1] == world.clock.now()
        world.mend(first)
        world.clock.advance(SECOND)
        world.sync()
        back = world.engine.observe(desired, world.clock.now()).nodes[NodeName(first)]
        assert (back.condition, back.condition_since) == (NodeCondition.READY, world.clock.now())

    def test_most_nodes_silent_at_once_is_our_own_link(self, world: World) -> None:
        desired = begin(world)
        world.sync()
        world.engine.observe(desired, world.clock.now())
        world.cut(*world.names[:2])
        world.clock.advance(RULES.lost_after + 1)
        world.sync(world.names[2])
        with pytest.raises(EngineUnavailable) as caught:
            world.engine.observe(desired, world.clock.now())
        assert caught.value.code == "OwnLinkSuspected"

    def test_waiting_ends_with_news_or_a_wake_and_else_with_the_time(self, world: World) -> None:
        begin(world)
        world.sync()
        assert world.engine.wait(Nanoseconds(SECOND)) is True

        def silent() -> bool:
            world.sync()
            return not world.engine.wait(Nanoseconds(SECOND // 20))

        until(silent, "what was told before is no news")  # a real cluster may have some of its own meanwhile
        world.ail(world.names[1], "disk is full")
        world.sync()
        assert world.engine.wait(Nanoseconds(60 * SECOND)) is True
        world.engine.wake()
        assert world.engine.wait(Nanoseconds(60 * SECOND)) is True

    def test_progress_is_seen_live_and_is_no_fact(self, world: World) -> None:
        desired = begin(world)
        run_attempt(world, desired)
        before = world.engine.observe(desired, world.clock.now())
        world.beat({"step": 12, "mfu": 0.41})
        world.sync()
        assert world.engine.live()[JOB].progress == {"step": 12, "mfu": 0.41}
        assert world.engine.observe(desired, world.clock.now()) == before

    def test_stopping_twice_is_stopping_once(self, world: World) -> None:
        begin(world)
        world.engine.stop()
        world.engine.stop()


class AgentContract(EngineContract):
    """What engines over agents promise besides."""

    def test_an_older_generation_reaches_no_node(self, world: AgentWorld) -> None:
        begin(world)
        newer = generation(world, 2, attempt_order(phase="prepare"))
        world.engine.apply(newer)
        world.engine.apply(generation(world, 1, attempt_order(phase="prepare", attempt=9)))
        world.sync()
        assert world.nodes["n1"].accepted == (1, 2, newer.commit)

    def test_a_raised_epoch_is_taken_by_nodes_that_have_a_higher_generation(self, world: AgentWorld) -> None:
        begin(world)
        world.engine.apply(generation(world, 7, attempt_order()))
        world.sync()
        restored = generation(world, 3, epoch=2)
        world.engine.apply(restored)
        world.sync()
        assert world.nodes["n1"].accepted == (2, 3, restored.commit)

    def test_a_node_that_obeys_a_newer_generation_is_told_nothing(self, world: AgentWorld) -> None:
        begin(world)
        world.nodes["n1"].accepted = (1, 9, "f" * 40)
        world.engine.apply(generation(world, 8, attempt_order(lease=5)))
        world.sync()
        assert world.nodes["n1"].accepted == (1, 9, "f" * 40)

    def test_a_node_whose_lease_was_judged_over_gets_nothing_until_it_was_observed_again(
        self, world: AgentWorld
    ) -> None:
        desired = begin(world)
        prepare = generation(world, 1, attempt_order(lease=5))
        world.engine.apply(prepare)
        world.sync()
        world.engine.observe(desired, world.clock.now())
        world.nodes["n1"].reachable = False
        world.clock.advance(RULES.lost_after + 1)
        world.sync("n2", "n3")
        assert world.engine.observe(desired, world.clock.now()).nodes[NodeName("n1")].lease_expired
        run = generation(world, 2, attempt_order(phase="run", lease=5))
        world.engine.apply(run)
        world.nodes["n1"].reachable = True
        world.sync("n1")
        assert world.nodes["n1"].accepted == (1, 1, prepare.commit)
        assert state_of(world, desired) is AttemptState.PREPARED
        world.sync("n1")
        assert world.nodes["n1"].accepted == (1, 2, run.commit)

    def test_a_reboot_ends_the_attempts_of_the_earlier_boot(self, world: AgentWorld) -> None:
        desired = begin(world)
        for number, phase in enumerate(("prepare", "run"), 1):
            world.engine.apply(generation(world, number, attempt_order(phase=phase)))
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
