"""What a fault of a node does to the gangs on it: the loop on real git, over nodes that fail on command.

A pretended node fails its test when a GPU is ordered to two attempts at once, or when it is handed an older generation.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.observed import NodeCondition
from reconciler.model.units import MINUTE, SECOND, NodeName
from tests.engines.fake import FakeNode
from tests.runtime.lab import Desk, Lab, job_file, job_text, jobs


def idle(lab: Lab) -> Desk:
    lab.begin()
    desk = lab.desk()
    desk.settle()
    return desk


def running(lab: Lab, name: str = "sft", gpus: int = 16, more: str = "") -> tuple[Desk, list[str]]:
    """A gang that runs, and its nodes."""
    lab.begin(**{job_file(name): job_text(name, gpus, more=more)})
    desk = lab.desk()
    desk.settle()
    assert desk.record(name).state is JobState.RUNNING
    return desk, sorted(desk.engine.cluster.running(f"nlp/{name}"))


def attempts(desk: Desk, name: str = "sft") -> set[int]:
    """Attempts of which any rank is alive anywhere, heard or not."""
    return {key[1] for key in desk.engine.cluster.running(f"nlp/{name}").values()}


def condition(lab: Lab, node: str) -> NodeCondition:
    return lab.generation().observed.nodes[NodeName(node)].condition


def until(desk: Desk, reached: Callable[[], bool], *, step: int = 10 * SECOND, most: int = 120) -> None:
    for _ in range(most):
        if reached():
            return
        desk.lab.clock.advance(step)
        desk.round()
    raise AssertionError(f"not reached; {desk.lab.log()[0].subject}")


@pytest.mark.parametrize("fault", ["refuses", "hangs"])
def test_a_partial_start_starts_nobody_and_the_gang_goes_elsewhere(lab: Lab, fault: str) -> None:
    desk = idle(lab)
    lab.desire(jobs("sft", gpus=16))
    bad = "gpu-001"
    if fault == "refuses":
        desk.engine.cluster.refuse(bad, "PortInUse")
    else:
        desk.engine.cluster.hang(bad)
    alive: list[set[str]] = []

    def runs() -> bool:
        nodes = desk.engine.cluster.nodes.items()
        alive.append({name for name, node in nodes for at in node.attempts.values() if at.state == "Running"})
        return desk.record("sft").state is JobState.RUNNING

    desk.round()
    placement = desk.record("sft").placement
    assert placement is not None
    assert bad in placement.nodes
    until(desk, lambda: runs() or desk.record("sft").cause is Cause.START_FAILED)
    if fault == "hangs":  # what it may have prepared is let go of only once it says so
        desk.round()
        assert desk.record("sft").state is JobState.STOPPING
        desk.engine.cluster.unhang(bad)
    until(desk, runs)
    assert {len(nodes) for nodes in alive} <= {0, 2}, "some ranks ran without the others"
    assert not any(bad in nodes for nodes in alive)
    assert desk.record("sft").attempt == 2
    assert [avoid.node for avoid in desk.record("sft").avoid] == [bad]
    lab.check_chain()


def test_an_agent_silent_for_less_than_the_limit_costs_nothing(lab: Lab) -> None:
    desk, (node, _) = running(lab)
    at = lab.tip
    desk.engine.cluster.lose(node)
    lab.clock.advance(28 * SECOND)
    desk.round()
    desk.engine.cluster.restore(node)
    desk.round()
    assert lab.tip == at
    assert attempts(desk) == {1}


def test_a_silent_node_is_cordoned_its_ranks_run_on_and_nothing_starts_elsewhere_before_it_is_fenced(lab: Lab) -> None:
    desk, (node, other) = running(lab)
    desk.engine.cluster.lose(node)
    until(desk, lambda: condition(lab, node) is NodeCondition.UNREACHABLE)
    assert desk.record("sft").state is JobState.RUNNING
    lab.desire(jobs("next"))
    desk.settle()
    assert node not in desk.engine.cluster.running("nlp/next")  # cordoned
    until(desk, lambda: condition(lab, node) is NodeCondition.LOST)
    for _ in range(30):
        lab.clock.advance(MINUTE)
        desk.round()
        assert attempts(desk) == {1}, "a second attempt beside ranks that may be alive"
    assert node in desk.engine.cluster.running("nlp/sft")
    assert desk.record("sft").state is JobState.LOST
    # The machine was rebooted: no rank of it can be alive.
    desk.engine.cluster.reboot(node)
    until(desk, lambda: desk.record("sft").state is JobState.RUNNING)
    assert attempts(desk) == {2}
    assert other
    lab.check_chain()


def test_a_node_that_was_only_cut_off_goes_on_with_the_same_ranks(lab: Lab) -> None:
    desk, (node, _) = running(lab)
    before = desk.engine.cluster.running("nlp/sft")
    desk.engine.cluster.lose(node)
    until(desk, lambda: condition(lab, node) is NodeCondition.LOST)
    desk.engine.cluster.restore(node)
    until(desk, lambda: desk.record("sft").state is JobState.RUNNING)
    assert desk.record("sft").attempt == 1
    assert desk.engine.cluster.running("nlp/sft") == before


def test_a_reboot_ends_the_attempt_and_adopts_nothing(lab: Lab) -> None:
    desk, (node, other) = running(lab)
    desk.engine.cluster.power_off(node)
    lab.clock.advance(5 * SECOND)
    desk.engine.cluster.reboot(node)
    desk.round()
    assert desk.record("sft").state is not JobState.RUNNING
    until(desk, lambda: desk.record("sft").state is JobState.RUNNING)
    assert attempts(desk) == {2}
    assert other
    lab.check_chain()


def test_one_rank_that_crashes_stops_the_gang_which_backs_off_and_is_counted(lab: Lab) -> None:
    desk, (node, other) = running(lab)
    desk.engine.cluster.finish("nlp/sft", 1, node=node)
    desk.round()
    assert desk.record("sft").cause is Cause.RANK_FAILED
    until(desk, lambda: not desk.engine.cluster.running("nlp/sft"), step=SECOND)
    desk.settle()
    assert desk.record("sft").failures == 1
    retry = desk.record("sft").retry_at
    assert retry is not None
    assert retry > lab.clock.now()
    until(desk, lambda: desk.record("sft").state is JobState.RUNNING, step=SECOND)
    assert lab.clock.now() >= retry
    assert attempts(desk) == {2}
    assert other


def production(name: str, gpus: int) -> dict[str, str]:
    return {job_file(name): job_text(name, gpus, more="  priorityClass: production\n")}


def old_enough_to_be_evicted(lab: Lab, desk: Desk) -> None:
    lab.clock.advance(60 * MINUTE)
    desk.settle()


def test_a_victim_that_ignores_its_signal_is_gone_before_the_preemptor_prepares(lab: Lab) -> None:
    desk, nodes = running(lab, gpus=32)
    old_enough_to_be_evicted(lab, desk)
    for node in nodes:
        desk.engine.cluster.hang(node)
    lab.desire(production("urgent", 32))

    def prepared() -> set[str]:
        return {n for n, node in desk.engine.cluster.nodes.items() if ("nlp/urgent", 1) in node.attempts}

    until(desk, lambda: desk.record("sft").state is JobState.STOPPING)
    for _ in range(5):
        desk.round()
        assert prepared() == set()
    for node in nodes[1:]:
        desk.engine.cluster.unhang(node)
    desk.settle()
    assert prepared() == set(), "one node still has ranks of the victim"
    desk.engine.cluster.unhang(nodes[0])
    until(desk, lambda: desk.record("urgent").state is JobState.RUNNING, step=SECOND)
    assert prepared() == set(nodes)
    lab.check_chain()


def test_what_cannot_be_killed_keeps_its_gpus_and_its_node_takes_nothing_new(lab: Lab) -> None:
    desk, (node,) = running(lab, gpus=4)
    lab.desire({job_file("sft"): None})
    desk.engine.cluster.hang(node)
    desk.round()
    stuck: FakeNode = desk.engine.cluster.nodes[node]
    assert stuck.attempts[("nlp/sft", 1)].state == "Stopping"
    desk.engine.cluster.kill_fails(node, "nlp/sft")
    desk.settle()
    for _ in range(10):
        lab.clock.advance(MINUTE)
        desk.round()
    assert desk.record("sft").placement is not None, "GPUs of a process that lives were let go of"
    lab.desire(jobs("one", "two", "three"))
    desk.settle()
    lab.desire(jobs("four", gpus=4))  # as much as is free on it
    desk.settle()
    taken = {n for name in ("one", "two", "three", "four") for n in desk.engine.cluster.running(f"nlp/{name}")}
    assert taken == set(desk.engine.cluster.nodes) - {node}
    assert desk.record("four").state is JobState.PENDING
    assert lab.generation().observed.nodes[NodeName(node)].unhealthy.startswith("KillFailed: ranks of nlp/sft")
    lab.check_chain()


def test_a_gpu_that_fails_under_a_gang_is_given_to_nobody(lab: Lab) -> None:
    desk, (node,) = running(lab, gpus=8)
    desk.engine.cluster.break_gpu(node, 3)
    desk.engine.cluster.finish("nlp/sft", 1)
    until(desk, lambda: desk.record("sft").state is JobState.RUNNING and desk.record("sft").attempt == 2)
    assert node not in desk.engine.cluster.running("nlp/sft")
    report = lab.generation().observed.nodes[NodeName(node)]
    assert [(g.index, g.reason) for g in report.gpus if not g.healthy] == [(3, "Xid 79")]
    lab.desire(jobs("part", gpus=7))
    lab.desire(jobs("fills", "whole", gpus=8))
    desk.settle()
    allocation = lab.generation().allocation
    assert all(not mask & 1 << 3 for mask in allocation.holders().get(NodeName(node), {}).values())


@pytest.mark.parametrize("jump", [-3600, 3600, -86400 * 400, 86400 * 400])
def test_a_clock_that_jumps_judges_no_node_and_recorded_time_never_goes_back(lab: Lab, jump: int) -> None:
    desk, nodes = running(lab)
    decided = desk.summary.decided_at
    lab.clock.jump(jump * SECOND)
    lab.desire(jobs("then"))
    desk.settle()
    assert desk.record("then").state is JobState.RUNNING
    lab.clock.jump(-jump * SECOND)
    lab.desire(jobs("eval"))
    desk.settle()
    assert {condition(lab, node) for node in desk.engine.cluster.nodes} == {NodeCondition.READY}
    assert attempts(desk) == {1}
    assert sorted(desk.engine.cluster.running("nlp/sft")) == nodes
    told = [lab.allocation_at(meta.id).decided_at for meta in reversed(lab.log())]
    assert told == sorted(told)
    assert told[-1] >= decided
    assert desk.record("eval").state is JobState.RUNNING
