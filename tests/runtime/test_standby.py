"""Two reconcilers on one remote: the nodes say who leads, the other follows. And one that is blind judges nobody."""

from __future__ import annotations

import pytest

from reconciler.errors import EngineUnavailable
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import NodeCondition
from reconciler.model.units import MINUTE, SECOND, NodeName
from reconciler.runtime.condition import STANDBY
from tests.engines.fake import FakeCluster
from tests.runtime.lab import Desk, Lab, jobs


def two(lab: Lab) -> tuple[Desk, Desk]:
    """One that leads, with two running jobs, and one beside it that no node calls."""
    lab.begin(**jobs("sft", gpus=16), **jobs("eval"))
    cluster = FakeCluster(lab.clock)
    one, other = lab.desk("one", cluster), lab.desk("two", cluster)
    other.engine.deaf = True
    one.settle()
    assert {one.record(name).state for name in ("sft", "eval")} == {JobState.RUNNING}
    return one, other


def fail(leader: Desk, standby: Desk) -> None:
    """The nodes leave the one and call the other."""
    leader.engine.deaf, standby.engine.deaf = True, False


def ranks(desk: Desk) -> dict[str, dict[str, tuple[str, int]]]:
    return {job: desk.engine.cluster.running(f"nlp/{job}") for job in ("sft", "eval")}


def test_a_standby_follows_every_generation_and_decides_none(lab: Lab) -> None:
    one, other = two(lab)
    at = lab.tip
    lab.desire(jobs("next"))
    for _ in range(3):
        assert other.round().committed is None
    assert lab.tip == at
    assert (other.reconciler.condition.reason, other.reconciler.condition.stalled) == (STANDBY, False)
    assert one.settle() == [4, 5, 6]
    other.round()
    assert other.summary.generation == 6
    assert other.engine.applied_generation == 6
    lab.check_chain()


@pytest.mark.parametrize("followed", [True, False])
def test_the_standby_takes_over_and_no_rank_notices(lab: Lab, followed: bool) -> None:
    """`followed`: whether the leader committed anything while the other stood by."""
    one, other = two(lab)
    if not followed:
        other.round()
    else:
        other.reconciler.round()
        lab.desire(jobs("third", gpus=4))
        one.settle()
        other.round()
    before = ranks(one)
    fail(one, other)
    lab.clock.advance(20 * SECOND)  # as long as agents wait for an answer
    lab.desire(jobs("next", gpus=4))
    number = lab.generation().summary.generation
    assert other.settle() == [number + 1, number + 2, number + 3]
    assert "leads" in list(other.events())
    assert other.record("next").state is JobState.RUNNING
    assert ranks(other) == before
    assert {seen.condition for seen in lab.generation().observed.nodes.values()} == {NodeCondition.READY}
    lab.check_chain()


def test_who_led_before_and_comes_back_stands_by(lab: Lab) -> None:
    one, other = two(lab)
    other.round()
    fail(one, other)
    lab.desire(jobs("next"))
    other.settle()
    before = ranks(other)
    for _ in range(20):
        lab.clock.advance(MINUTE)
        other.round()  # the nodes go on calling it
        assert one.round().committed is None
    assert one.reconciler.condition.reason == STANDBY
    assert ranks(one) == before
    assert {other.record(name).attempt for name in ("sft", "eval")} == {1}
    lab.check_chain()


def test_a_few_nodes_that_lost_the_leader_do_not_make_another(lab: Lab) -> None:
    """Two of four nodes call the standby: it has seen the leader commit, and half is not most."""
    one, other = two(lab)
    other.round()
    lab.desire(jobs("next"))
    one.settle()
    other.round()
    for node in ("gpu-003", "gpu-004"):
        other.engine.cluster.nodes[node].reachable = False
    other.engine.deaf = False
    at = lab.tip
    lab.desire(jobs("later"))
    for _ in range(3):
        assert other.round().committed is None
    assert lab.tip == at


def test_a_reconciler_that_restarts_blind_fails_nothing_over(lab: Lab) -> None:
    one, _ = two(lab)
    before, at = ranks(one), lab.tip
    blind = lab.desk("one", one.engine.cluster)
    blind.engine.deaf = True
    for _ in range(30):
        lab.clock.advance(MINUTE)
        assert blind.round().committed is None
    assert lab.tip == at
    assert blind.reconciler.condition.reason == STANDBY
    assert blind.reconciler.condition.remedy
    assert ranks(one) == before
    blind.engine.deaf = False
    blind.settle()
    assert {blind.record(name).attempt for name in ("sft", "eval")} == {1}


def test_a_reconciler_that_loses_its_own_link_fails_nothing_over(lab: Lab) -> None:
    one, _ = two(lab)
    before, at = ranks(one), lab.tip
    one.engine.deaf = True
    for _ in range(30):
        lab.clock.advance(MINUTE)
        with pytest.raises(EngineUnavailable) as caught:
            one.round()
        assert caught.value.code == "OwnLinkSuspected"
    assert one.reconciler.condition.reason == "OwnLinkSuspected"
    assert lab.tip == at
    one.engine.deaf = False
    assert one.settle() == []
    assert ranks(one) == before


def test_what_the_standby_heard_long_ago_is_older_than_the_record(lab: Lab) -> None:
    """A node that once called the standby is known to it as it was then; the leader's record wins."""
    one, other = two(lab)
    other.engine.deaf = False
    other.round()
    other.engine.deaf = True
    one.engine.cluster.break_gpu("gpu-004", 3)
    one.round()
    lab.clock.advance(MINUTE)
    one.round()
    assert [g.index for g in lab.generation().observed.nodes[NodeName("gpu-004")].gpus if not g.healthy] == [3]
    at = lab.tip
    for _ in range(3):
        assert other.round().committed is None
    assert lab.tip == at
    assert other.reconciler.condition.reason == STANDBY


def test_a_single_round_waits_for_the_nodes_and_ends_with_an_error_when_none_calls(lab: Lab) -> None:
    one, other = two(lab)
    began = lab.clock.monotonic()
    with pytest.raises(EngineUnavailable) as caught:
        other.reconciler.once()
    assert caught.value.code == STANDBY
    assert lab.clock.monotonic() - began == 30 * SECOND
    fail(one, other)
    lab.desire(jobs("next"))
    other.reconciler.wake()
    assert other.reconciler.once().committed is not None
