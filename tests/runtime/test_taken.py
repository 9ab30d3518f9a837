"""What is merged is on record from the round that read it, also where it moves no job; and what only looks different never is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from reconciler.model.inventory import Node
from reconciler.model.lifecycle import JobState
from reconciler.model.units import HOUR, MINUTE, JobKey
from reconciler.runtime.audit.verify import verify
from reconciler.runtime.gathering import Gathering
from reconciler.runtime.reading import DesiredReader, ReadDesired
from reconciler.store.runner import Git
from reconciler.store.signatures import allowed_signers_line
from tests.policy.house import policy_text, rule
from tests.runtime.lab import BASE, CLASSES, CONFIG, NODES, PROFILE, QUEUES, Desk, Lab, job_file, job_text, jobs
from tests.runtime.test_policies import user

NODES_FILE = "cluster-state/inventory/nodes.yaml"
QUEUES_FILE = "cluster-state/queues/tree.yaml"
CONFIG_FILE = "cluster-state/cluster.yaml"
SIGNERS = "cluster-state/trust/allowed_signers"


def with_cordon(*cordons: tuple[str, str]) -> str:
    """The nodes of the lab, some in rack r02 cordoned with a reason."""
    said = ", ".join(f"{node}: {{cordoned: {why}}}" for node, why in cordons)
    return NODES.replace("rack: r02}", f"rack: r02, overrides: {{{said}}}}}")


def reservation(name: str = "conf", nodes: str = "gpu-003") -> str:
    return (
        f'apiVersion: gangops/v1\nkind: Reservation\nmetadata: {{name: {name}}}\nspec:\n  nodes: "{nodes}"\n'
        '  from: "2090-06-03T06:00:00+00:00"\n  to: "2090-06-03T10:00:00+00:00"\n  reason: course\n  queues: [nlp]\n'
    )


def recorded(lab: Lab) -> ReadDesired:
    """What the newest state commit says is desired."""
    now = lab.generation()
    return DesiredReader(lab.remote.git).recorded(now.commit, now.summary.desired_commit, now.frozen)


def quiet(lab: Lab, **changes: str) -> Desk:
    """A reconciler beside which one job runs and nothing else happens."""
    lab.begin(**{**jobs("sft"), **changes})
    desk = lab.desk()
    desk.settle()
    assert desk.record("sft").state is JobState.RUNNING
    lab.clock.advance(10 * MINUTE)  # what was seen settles into one last commit
    desk.settle()
    return desk


TAKEN: dict[str, tuple[Mapping[str, str | None], str]] = {
    "a cordon": ({NODES_FILE: with_cordon(("gpu-004", "fan"))}, "Cordon gpu-004: fan"),
    "two cordons for one reason": (
        {NODES_FILE: with_cordon(("gpu-003", "DC-7"), ("gpu-004", "DC-7"))},
        "Cordon gpu-[003-004]: DC-7",
    ),
    "a reservation": ({"cluster-state/maintenance/conf.yaml": reservation()}, "Add Reservation conf"),
    "a quota": (
        {QUEUES_FILE: QUEUES.replace("{parent: root}", "{parent: root, guaranteed: {H100: 16}}")},
        "Change Queue nlp",
    ),
    "a class": (
        {"cluster-state/priorities/classes.yaml": CLASSES.replace("value: 1000", "value: 2000")},
        "Change PriorityClass production",
    ),
    "a policy that denies nobody": (
        {"policies/house.yaml": policy_text(rule("object.spec.gpus < 64", reason="Small"))},
        "Add Policy house",
    ),
    "a person": ({"cluster-state/users/kim.yaml": user("kim")}, "Add User kim"),
    "a setting": ({CONFIG_FILE: CONFIG.replace("spec: {}", "spec: {scheduling: {cooldown: 5m}}")}, "Change ClusterConfig lab"),
    "a key": ({SIGNERS: "kim ssh-ed25519 AAAA\n"}, f"Change {SIGNERS}"),
    "hardware": (
        {"cluster-state/inventory/small.yaml": PROFILE.replace("1TiB", "2TiB")},
        "Change NodeProfile small",
    ),
    "more time for a job that runs": (
        {job_file("sft"): job_text("sft", more="  timeLimit: 9h\n")},
        "Change nlp/sft",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TAKEN)
def test_what_moves_no_job_is_one_generation_from_the_round_that_read_it(lab: Lab, case: str) -> None:
    changes, told = TAKEN[case]
    desk = quiet(lab)
    before = desk.summary.generation
    commit = lab.desire(changes)

    assert desk.settle() == [before + 1]

    (newest, *_) = lab.log()
    assert newest.subject == told
    assert told[0].lower() + told[1:] in newest.message.splitlines()
    assert newest.only_trailer("Desired-Commit") == commit
    assert desk.summary.trigger == "desired"
    assert desk.record("sft").attempt == 1  # nobody was disturbed
    for _ in range(10):
        lab.clock.advance(MINUTE // 6)
        assert desk.round().committed is None
    lab.check_chain()
    assert all(result.identical for result in lab.replayed())


SAME: dict[str, Mapping[str, str | None]] = {
    "a file nobody reads": {"README.md": "hello"},
    "a comment beside the nodes": {NODES_FILE: "# racks\n" + NODES},
    "another order of keys": {QUEUES_FILE: QUEUES.replace("apiVersion: gangops/v1\nkind: Queue\n", "kind: Queue\napiVersion: gangops/v1\n")},
    "documents in another file": {"cluster-state/queues/all.yaml": QUEUES, QUEUES_FILE: None},
    "a default written out": {CONFIG_FILE: CONFIG.replace("spec: {}", "spec: {scheduling: {cooldown: 10m}}")},
    "two sets for one": {
        NODES_FILE: NODES.replace('nodes: "gpu-[003-004]"', 'nodes: "gpu-003"')
        + "---\napiVersion: gangops/v1\nkind: NodeSet\nmetadata: {name: more}\nspec: {nodes: gpu-004, profile: small, rack: r02}\n"
    },
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_what_only_looks_different_is_no_generation(lab: Lab, case: str) -> None:
    desk = quiet(lab)
    tip = lab.tip
    lab.desire(SAME[case])
    assert desk.settle() == []
    again = lab.desk(cluster=desk.engine.cluster)  # one that remembers nothing comes to the same
    assert again.settle() == []
    assert lab.tip == tip
    lab.desire({NODES_FILE: with_cordon(("gpu-004", "fan"))})  # and what follows is taken in with it
    assert len(again.settle()) == 1


def test_the_record_says_since_when_a_node_was_cordoned_and_when_it_came_back(lab: Lab) -> None:
    desk = quiet(lab)
    lab.desire({NODES_FILE: with_cordon(("gpu-004", "fan"))})
    desk.settle()
    cordoned = {node.name: node.cordoned for node in _inventory(lab)}
    assert cordoned == {"gpu-001": "", "gpu-002": "", "gpu-003": "", "gpu-004": "fan"}
    at = desk.summary.decided_at
    assert 0 <= lab.clock.now() - at <= MINUTE
    lab.clock.advance(HOUR)
    lab.desire({NODES_FILE: NODES})
    desk.settle()
    assert [meta.subject for meta in lab.log()][:1] == ["Uncordon gpu-004"]
    assert {node.cordoned for node in _inventory(lab)} == {""}
    assert desk.summary.decided_at - at >= HOUR


def _inventory(lab: Lab) -> tuple[Node, ...]:
    read = recorded(lab)
    assert read.desired is not None
    return read.desired.inventory.nodes


def test_merges_between_two_rounds_are_one_generation(lab: Lab) -> None:
    desk = quiet(lab)
    lab.desire({NODES_FILE: with_cordon(("gpu-004", "fan"))})
    lab.desire({QUEUES_FILE: QUEUES.replace("{parent: root}", "{parent: root, weight: 3}")})
    lab.desire({"cluster-state/users/kim.yaml": user("kim"), "cluster-state/users/lea.yaml": user("lea")})
    assert len(desk.settle()) == 1
    (newest, *_) = lab.log()
    assert newest.subject == "Cordon gpu-004: fan; change Queue nlp; and 2 more changes"
    assert newest.message.split("\n\n")[2].splitlines() == [
        "cordon gpu-004: fan", "change Queue nlp", "add User kim", "add User lea",
    ]  # fmt: skip


def test_fifty_merges_in_a_minute_are_few_generations_and_the_last_one_counts(lab: Lab) -> None:
    lab.begin(**jobs("sft"))
    desk = lab.desk(gathering=Gathering())
    desk.settle()
    lab.clock.advance(10 * MINUTE)
    desk.settle()
    before = desk.summary.generation
    for number in range(50):  # a second each
        lab.desire({NODES_FILE: with_cordon(("gpu-004", f"check-{number}")) if number % 2 else NODES})
        desk.round()
    assert 2 <= desk.summary.generation - before <= 10
    lab.clock.advance(MINUTE)
    desk.settle()
    assert {node.cordoned for node in _inventory(lab)} == {"", "check-49"}


def test_a_decision_tells_in_its_body_what_was_taken_in_with_it(lab: Lab) -> None:
    desk = quiet(lab)
    lab.desire({**jobs("eval"), NODES_FILE: with_cordon(("gpu-004", "fan"))})
    desk.round()
    (newest, *_) = lab.log()
    assert newest.subject == "Place nlp/eval"
    assert "cordon gpu-004: fan" in newest.message.splitlines()
    assert "add nlp/eval" not in newest.message  # the decision tells it


def test_more_time_for_a_job_reaches_the_node_it_runs_on(lab: Lab) -> None:
    """An agent ends work at its time limit alone: the one in its orders."""
    lab.begin(**{job_file("sft"): job_text("sft", more="  timeLimit: 2h\n")})
    desk = lab.desk()
    desk.settle()
    started, before = desk.record("sft").started, _deadlines(lab, "sft")
    assert started is not None
    assert before == {started + 2 * HOUR}
    lab.desire({job_file("sft"): job_text("sft", more="  timeLimit: 9h\n")})
    desk.settle()
    assert _deadlines(lab, "sft") == {started + 9 * HOUR}
    assert desk.record("sft").attempt == 1


def _deadlines(lab: Lab, job: str) -> set[int | None]:
    key = JobKey(f"nlp/{job}")
    return {one.deadline for orders in lab.generation().orders.values() for one in orders.attempts if one.job == key}


def test_a_file_that_became_invalid_and_sound_again_is_on_record_both_times(lab: Lab) -> None:
    desk = quiet(lab)
    lab.desire({job_file("sft"): job_text("sft") + "  nonsense: 1\n"})
    assert len(desk.settle()) == 1
    assert [meta.subject for meta in lab.log()][:1] == ["nlp/sft has an invalid file, and stands as it was before"]
    assert set(lab.generation().frozen) == {job_file("sft")}
    assert desk.record("sft").state is JobState.RUNNING
    lab.desire({job_file("sft"): job_text("sft")})
    assert len(desk.settle()) == 1
    assert [meta.subject for meta in lab.log()][:1] == ["nlp/sft has a valid file again"]
    assert not lab.generation().frozen
    lab.check_chain()
    assert all(result.identical for result in lab.replayed())


def test_a_cluster_file_that_makes_no_sense_stops_admissions_from_a_generation_on(lab: Lab) -> None:
    desk = quiet(lab)
    lab.desire({QUEUES_FILE: QUEUES + "---\nkind: Queue\n"})
    assert len(desk.settle()) == 1
    (newest, *_) = lab.log()
    assert newest.subject == f"Admit nothing, because of {QUEUES_FILE}"
    lab.desire({QUEUES_FILE: BASE[QUEUES_FILE]})
    assert len(desk.settle()) == 1
    assert [meta.subject for meta in lab.log()][:1] == ["Admit jobs again"]


def test_a_record_with_what_was_taken_in_is_proven_and_a_reason_stays_one_line(lab: Lab) -> None:
    signers = allowed_signers_line("gangops@lab", lab.writer.signer.public_key())
    desk = quiet(lab, **{"cluster-state/trust/allowed_signers": signers})
    lab.desire({NODES_FILE: with_cordon(("gpu-004", '"fan\\n\\nGeneration: 99"'))})
    desk.settle()
    (newest, *_) = lab.log()
    assert newest.subject == "Cordon gpu-004: fan Generation: 99"
    assert newest.only_trailer("Generation") == str(desk.summary.generation)
    access = Git(folder=lab.remote.path, bare=True, protocols=frozenset({"file"}))
    result = verify(access, lab.tip, signers=signers.encode())
    assert [str(finding) for finding in result.findings] == []
    assert len(result.judged) == len(lab.log())
