"""The loop against a real bare remote: what is committed, what never is, and what every fault leaves behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.errors import GangOpsError, InvalidInput, StoreError, Unreachable
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import Cause, JobState, Outcome
from reconciler.model.observed import Observed
from reconciler.model.units import DAY, MINUTE, SECOND, Instant
from reconciler.planner import still
from reconciler.planner.decide import attempt
from reconciler.planner.veto import Attempt
from reconciler.ports import Committed
from reconciler.runtime.generation import read_generation
from reconciler.runtime.guards import ACKNOWLEDGE
from reconciler.runtime.reading import DesiredReader
from reconciler.store.history import is_ancestor
from reconciler.store.mirror import Fetched
from reconciler.store.publish import PublishedMark
from reconciler.wire import Refusal
from tests.engines.fake import FakeCluster
from tests.runtime.lab import BASE, CONFIG, Desk, Lab, job_file, job_text, jobs
from tests.store.world import MAIN, STATE, Repository, git, new_repository


def pushes(desk: Desk, result: str) -> float:
    return desk.reconciler.metrics.registry.get_sample_value("gangops_push_total", {"result": result}) or 0


def refused(desk: Desk) -> GangOpsError:
    """The error of a round that could not be done; nothing of it was applied."""
    applied = desk.engine.applied_generation
    with pytest.raises(GangOpsError) as caught:
        desk.round()
    assert desk.engine.applied_generation == applied
    assert not desk.reconciler.condition.ready
    assert desk.reconciler.condition.reason == caught.value.code
    return caught.value


def held(desk: Desk) -> GangOpsError:
    """Why the newest desired commit is not acted on; the last one decided on still is."""
    done = desk.round()
    assert done.held is not None
    assert not desk.reconciler.condition.ready
    assert desk.reconciler.condition.reason == done.held.code
    assert desk.reconciler.condition.remedy == done.held.remedy
    return done.held


def running(lab: Lab, *names: str, gpus: int = 8) -> Desk:
    """A reconciler whose jobs all run."""
    lab.begin(**jobs(*names, gpus=gpus))
    desk = lab.desk()
    desk.settle()
    assert [desk.record(name).state for name in names] == [JobState.RUNNING] * len(names)
    return desk


# --- from a file to running ranks ---


def test_a_submitted_job_is_placed_prepared_started_and_runs(lab: Lab) -> None:
    lab.begin()
    desk = lab.desk()
    assert desk.settle() == []
    desired = lab.desire(jobs("sft", gpus=16))

    assert desk.settle() == [1, 2, 3]

    subjects = [meta.subject for meta in reversed(lab.log())]
    assert subjects == ["Begin the record", "Place nlp/sft", "Start nlp/sft", "nlp/sft runs"]
    assert desk.record("sft").state is JobState.RUNNING
    assert desk.summary.desired_commit == desired
    assert sorted(desk.engine.cluster.running("nlp/sft")) == ["gpu-001", "gpu-002"]  # in one rack
    assert all(result.identical for result in lab.replayed())
    lab.check_chain()


def test_no_engine_is_told_anything_before_its_commit_is_at_the_remote(lab: Lab) -> None:
    lab.begin(**jobs("sft"))
    desk = lab.desk()
    told = desk.engine.apply
    tips = []

    def apply(committed: Committed) -> None:
        tips.append((committed.commit, lab.tip))
        told(committed)

    desk.engine.apply = apply  # type: ignore[method-assign]  # a witness in front of the real one
    desk.settle()
    assert len(tips) == 4
    assert all(commit == tip for commit, tip in tips)


def test_a_generation_reads_back_as_the_one_that_was_committed(lab: Lab) -> None:
    desk = running(lab, "sft", "eval")
    assert desk.reconciler.last is not None
    kept = desk.reconciler.last.generation
    again = read_generation(desk.mirror.git, lab.tip)
    assert again == kept
    assert list(again.allocation.jobs) == list(kept.allocation.jobs)
    assert list(again.observed.nodes) == list(kept.observed.nodes)


def test_a_restarted_reconciler_continues_and_does_nothing_twice(lab: Lab) -> None:
    before = running(lab, "sft")
    generation = before.summary.generation
    after = lab.desk(cluster=before.engine.cluster)  # the same state folder
    assert after.settle() == []
    assert after.summary.generation == generation
    assert after.record("sft").attempt == 1
    assert before.engine.cluster.running("nlp/sft")


def test_ranks_that_end_free_their_gpus_for_who_waits(lab: Lab) -> None:
    desk = running(lab, "sft", gpus=32)
    lab.desire(jobs("next", gpus=32))
    desk.settle()
    assert desk.record("next").state is JobState.PENDING
    desk.engine.cluster.finish("nlp/sft")
    desk.settle()
    assert desk.record("sft").outcome is Outcome.SUCCEEDED
    assert desk.record("next").state is JobState.RUNNING
    lab.check_chain()
    assert all(result.identical for result in lab.replayed())


# --- nothing to say, nothing said (g09, g10) ---


def test_a_hundred_rounds_without_a_change_commit_and_push_nothing(lab: Lab) -> None:
    desk = running(lab, "sft")
    tip, pushed = lab.tip, pushes(desk, "ok")
    lab.clock.advance(10 * MINUTE)  # what was seen settles into one last commit
    desk.settle()
    settled = lab.tip
    for number in range(100):
        assert desk.round(poll=number % 10 == 0).committed is None
    assert lab.tip == settled
    assert pushes(desk, "ok") - pushed == (settled != tip)


def test_rounds_in_which_nothing_happens_are_not_decided_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deciding takes long in a large cluster; the same answer is given from memory until something may turn."""
    desk = running(lab, "sft")
    lab.clock.advance(10 * MINUTE)  # what was seen settles into one last commit
    desk.settle()
    decided: list[Instant] = []

    def counted(*given: object) -> Attempt:
        assert isinstance(given[3], int)
        decided.append(Instant(given[3]))
        return attempt(*given)  # type: ignore[arg-type]  # what it was given

    monkeypatch.setattr(still, "attempt", counted)
    for _ in range(30):
        lab.clock.advance(SECOND)
        assert desk.round(poll=False).committed is None
    assert len(decided) <= 1  # the first answer of these may be the first that is remembered
    lab.desire(jobs("more"))
    assert desk.round().committed is not None
    assert len(decided) <= 2
    lab.check_chain()


def test_a_desired_commit_that_changes_nothing_is_no_generation(lab: Lab) -> None:
    desk = running(lab, "sft")
    tip = lab.tip
    lab.desire({"README.md": "hello"})
    lab.desire({job_file("sft"): job_text("sft", 8) + "# a comment\n"})
    assert desk.settle() == []
    assert lab.tip == tip


def test_one_change_is_one_story_however_long_the_loop_goes_on(lab: Lab) -> None:
    desk = running(lab, "sft")
    lab.desire(jobs("eval"))
    assert len(desk.settle()) == 3
    tip = lab.tip
    for _ in range(20):
        lab.clock.advance(15 * SECOND)  # its own commits arrive with every poll
        assert desk.round().committed is None
    assert lab.tip == tip


def test_the_remote_is_asked_once_a_poll_interval(lab: Lab) -> None:
    desk = running(lab, "sft")
    asked: list[int] = []
    fetch = desk.mirror.fetch

    def counted() -> Fetched:
        asked.append(1)
        return fetch()

    desk.mirror.fetch = counted  # type: ignore[method-assign]  # a counter
    desk.round(poll=False)
    del asked[:]
    for _ in range(30):
        desk.round(poll=False)  # a second each; the interval is 2 s
    assert len(asked) == 15


def test_receipts_alone_wait_before_they_are_recorded(lab: Lab) -> None:
    desk = running(lab, "sft")
    generation = desk.summary.generation
    desk.engine.cluster.checkpoint("nlp/sft")
    assert desk.round().committed is None
    lab.clock.advance(5 * MINUTE)
    made = desk.round().committed
    assert made is not None
    assert lab.log()[0].subject == "Record what was observed"
    assert desk.summary.generation == generation + 1
    assert desk.settle() == []
    assert all(result.identical for result in lab.replayed())


def test_the_wall_clock_may_go_back(lab: Lab) -> None:
    desk = running(lab, "sft")
    decided = desk.summary.decided_at
    lab.clock.jump(-3600 * SECOND)
    lab.desire(jobs("eval"))
    desk.settle()
    assert desk.record("eval").state is JobState.RUNNING
    assert desk.summary.decided_at == decided
    assert all(result.identical for result in lab.replayed())


@pytest.fixture
def small_disk(lab: Lab) -> Iterator[Path]:
    """The folder of reconciler `one`, on a disk of its own that holds little more than a clone."""
    folder = lab.folder / "one"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small disk can only be mounted by root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
def test_g24_a_disk_that_fills_up_while_a_decision_is_written_applies_nothing_and_heals(
    lab: Lab, small_disk: Path
) -> None:
    desk = running(lab, "sft")
    generation, at = desk.summary.generation, lab.tip
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 512):
            pass
    lab.desire(jobs("eval"))
    for _ in range(2):
        assert refused(desk).code == "LocalStorageFull"
    assert lab.tip == at
    assert not desk.engine.cluster.running("nlp/eval")
    assert desk.engine.cluster.running("nlp/sft")
    filler.unlink()
    lab.clock.advance(MINUTE)
    after = lab.desk("one", desk.engine.cluster)  # and so does one that was started anew
    assert after.settle() == [generation + 1, generation + 2, generation + 3]
    assert after.record("eval").state is JobState.RUNNING
    git(after.mirror.folder, "fsck", "--strict", "--no-dangling")
    lab.check_chain()


# --- one remote under two names (g11) ---


def test_g11_two_spellings_of_one_remote_are_one_record(lab: Lab) -> None:
    """Each of two reconcilers knows the repository by another address; no change of either undoes the other's."""
    lab.begin()
    cluster = FakeCluster(lab.clock)
    one = lab.desk("one", cluster)
    link = lab.folder / "the-same.git"
    link.symlink_to(lab.remote.path)
    there = replace(lab, remote=Repository(link))
    other = there.desk("two", cluster)
    assert one.mirror.branches.record.url != other.mirror.branches.record.url
    for number in range(10):
        lab.desire(jobs(f"j{number}", gpus=2))
        first, second = (one, other) if number % 2 else (other, one)
        first.round()
        second.round()
        first.settle()
    lab.check_chain()
    held = [set(lab.allocation_at(meta.id).jobs) for meta in reversed(lab.log())]
    assert all(before <= after for before, after in itertools.pairwise(held)), "a commit undid another's jobs"
    assert {one.record(f"j{n}").state for n in range(10)} == {JobState.RUNNING}


def test_g11_a_second_reconciler_of_another_cluster_does_not_start(lab: Lab) -> None:
    lab.begin(**jobs("sft"))
    desk = lab.desk()
    desk.reconciler._cluster_id = "another"
    assert refused(desk).code == "NotOurCluster"
    assert lab.numbers() == [0]


# --- the desired branch (g01, g02, g04) ---


def test_g01_a_rewritten_branch_is_followed_and_the_old_tip_stays_reachable(lab: Lab) -> None:
    desk = running(lab, "sft")
    old, generation = desk.summary.desired_commit, desk.summary.generation
    new = lab.desire(jobs("eval"), anew=True)
    assert not is_ancestor(lab.remote.git, old, new)

    desk.settle()

    assert desk.summary.desired_commit == new
    assert desk.summary.generation > generation
    assert ("desired-rewritten", {"old": old[:12], "new": new[:12]}) in desk.told
    assert is_ancestor(lab.remote.git, old, lab.tip)
    assert [r.generation for r in lab.replayed() if not r.identical] == []


def test_g01_where_rewrites_need_an_acknowledgement_the_loop_stalls(lab: Lab) -> None:
    strict = CONFIG.replace("spec: {}", "spec: {repository: {rewritesNeedAcknowledgement: true}}")
    lab.begin(**{"cluster-state/cluster.yaml": strict}, **jobs("sft"))
    desk = lab.desk()
    desk.settle()
    old, tip = desk.summary.desired_commit, lab.tip
    lab.desire(jobs("eval"), anew=True)

    error = held(desk)

    assert error.code == "RewriteRefused"
    assert desk.reconciler.condition.stalled
    assert old in error.remedy
    assert lab.tip == tip
    lab.desire(message=f"Start over\n\nAcknowledge-Rewrite: {old}\n")
    desk.settle()
    assert desk.record("eval").state is JobState.RUNNING


def test_g02_a_deleted_branch_stops_nothing_and_its_return_is_no_event(lab: Lab) -> None:
    desk = running(lab, "sft")
    tip, desired = lab.tip, lab.remote.tip(MAIN)
    assert desired is not None
    git(lab.remote.path, "update-ref", "-d", MAIN)
    for _ in range(2):
        assert held(desk).code == "SourceMissing"
        assert desk.reconciler.condition.stalled
    assert desk.engine.cluster.running("nlp/sft")
    assert lab.tip == tip

    git(lab.remote.path, "update-ref", MAIN, desired)

    assert desk.settle() == []
    assert desk.reconciler.condition.ready
    assert lab.tip == tip


def test_g04_a_missing_folder_is_never_an_empty_one(lab: Lab) -> None:
    desk = running(lab, "sft")
    tip = lab.tip
    lab.remote.commit({"workloads/sft.yaml": b"kind: Job\n"}, parent=lab.remote.tip(MAIN))
    error = held(desk)
    assert error.code == "PathNotFound"
    assert desk.reconciler.condition.stalled
    assert lab.tip == tip
    assert desk.engine.cluster.running("nlp/sft")


def test_while_the_newest_commit_waits_the_last_one_is_still_decided_on(lab: Lab) -> None:
    """Jobs that end free their GPUs for who waits, though nobody has answered for the commit that lost a folder."""
    desk = running(lab, "sft", gpus=32)
    decided = lab.desire(jobs("next", gpus=32))
    desk.settle()
    lab.remote.commit({"workloads/sft.yaml": b"kind: Job\n"}, parent=lab.remote.tip(MAIN))
    assert held(desk).code == "PathNotFound"
    desk.engine.cluster.finish("nlp/sft")
    desk.settle()
    assert desk.record("next").state is JobState.RUNNING
    assert desk.summary.desired_commit == decided
    assert desk.reconciler.condition.reason == "PathNotFound"
    assert [r for r in lab.replayed() if not r.identical] == []
    lab.check_chain()


def test_with_a_record_of_its_own_work_goes_on_while_the_forge_is_away(lab: Lab) -> None:
    lab.record = new_repository(lab.folder / "record.git")
    desk = running(lab, "sft", gpus=32)
    lab.desire(jobs("next", gpus=32))
    desk.settle()
    away = lab.remote.path.with_suffix(".away")
    lab.remote.path.rename(away)
    assert held(desk).code == "RemoteUnreachable"
    assert not desk.reconciler.condition.stalled
    desk.engine.cluster.finish("nlp/sft")
    desk.settle()
    assert desk.record("next").state is JobState.RUNNING
    away.rename(lab.remote.path)
    assert desk.settle() == []
    assert desk.reconciler.condition.ready


def test_nothing_was_ever_decided_on_and_nothing_can_be(lab: Lab) -> None:
    lab.begin(**{"cluster-state/cluster.yaml": "kind: ClusterConfig\n"})
    lab.remote.commit({"workloads/x.yaml": b"kind: Job\n"}, parent=lab.remote.tip(MAIN))
    assert refused(lab.desk()).code == "PathNotFound"


# --- mass removal (g03) ---


def test_g03_removing_most_jobs_waits_for_an_acknowledgement_of_their_number(lab: Lab) -> None:
    desk = running(lab, "a", "b", "c", "d", gpus=4)
    tip = lab.tip
    lab.desire({job_file(name): None for name in ("a", "b", "c")})

    error = held(desk)

    assert error.code == "MassRemovalRefused"
    assert desk.reconciler.condition.stalled
    assert "3 of 4" in error.message
    assert "30 %" in error.message
    assert lab.tip == tip
    lab.desire(message=f"Yes\n\n{ACKNOWLEDGE}: 2\n")
    assert held(desk).code == "MassRemovalRefused"
    lab.desire(message=f"Yes\n\n{ACKNOWLEDGE}: 3\n")
    desk.settle()
    assert list(lab.generation().allocation.jobs) == ["nlp/d"]
    assert not desk.engine.cluster.running("nlp/a")
    assert desk.record("d").state is JobState.RUNNING
    lab.desire({"README.md": "later"})  # what was acted on needs no second word
    assert desk.settle() == []


def test_g03_nodes_in_use_are_guarded_too(lab: Lab) -> None:
    desk = running(lab, "sft", gpus=32)
    smaller = BASE["cluster-state/inventory/nodes.yaml"].split("---")[0]
    lab.desire({"cluster-state/inventory/nodes.yaml": smaller})
    error = held(desk)
    assert error.code == "MassRemovalRefused"
    assert "2 of 4 nodes" in error.message


def test_a_file_that_comes_back_is_another_attempt(lab: Lab) -> None:
    """Nodes keep receipts by job and attempt: a number that comes twice would be taken for the old attempt."""
    desk = running(lab, "sft")
    lab.desire({job_file("sft"): None})
    desk.settle()
    lab.desire(jobs("sft"))
    desk.settle()
    assert (desk.record("sft").state, desk.record("sft").attempt) == (JobState.RUNNING, 2)
    assert [r for r in lab.replayed() if not r.identical] == []


def test_one_job_of_two_is_no_mass(lab: Lab) -> None:
    desk = running(lab, "a", "b")
    lab.desire({job_file("a"): None})
    desk.settle()
    assert list(lab.generation().allocation.jobs) == ["nlp/b"]
    assert not desk.engine.cluster.running("nlp/a")


# --- pushing (g06, g07) ---


def test_g06_who_loses_the_race_decides_again_from_the_other_s_generation(lab: Lab) -> None:
    one = running(lab, "sft")
    two = lab.desk("two", one.engine.cluster)
    two.settle()
    one.engine.cluster.finish("nlp/sft")
    observe, winners = one.engine.observe, []

    def observe_slowly(desired: Desired, now: Instant) -> Observed:
        """The other one decides and pushes while this one is still looking."""
        one.engine.observe = observe  # type: ignore[method-assign]  # once is enough
        seen = observe(desired, now)
        winners.append(two.round())
        return seen

    one.engine.observe = observe_slowly  # type: ignore[method-assign]  # a race made certain
    result = one.round()

    assert winners[0].committed is not None
    assert pushes(one, "lost_race") == 1
    assert "lost-race" in one.events()
    assert result.committed is None  # the other said it all
    assert result.generation.commit == lab.tip == winners[0].generation.commit
    assert one.engine.applied_generation == winners[0].generation.summary.generation
    lab.check_chain()


def test_g07_a_rule_of_the_remote_needs_a_person_and_nothing_is_applied(lab: Lab) -> None:
    desk = running(lab, "sft")
    tip, applied = lab.tip, len(desk.engine.calls)
    lab.remote.hook("pre-receive", "echo 'GH006 Protected branch update failed' >&2; exit 1")
    lab.desire(jobs("eval"))

    error = refused(desk)

    assert error.code == "PushRejected"
    assert "GH006" in error.message
    assert desk.reconciler.condition.stalled
    assert lab.tip == tip
    assert not [call for call in desk.engine.calls[applied:] if call.startswith("apply")]
    assert not desk.engine.cluster.running("nlp/eval")
    lab.remote.hook("pre-receive", "exit 0")
    desk.settle()
    assert desk.record("eval").state is JobState.RUNNING
    lab.check_chain()


def test_an_unreachable_remote_degrades_and_running_work_goes_on(lab: Lab) -> None:
    desk = running(lab, "sft")
    away = lab.remote.path.with_suffix(".away")
    lab.remote.path.rename(away)
    error = refused(desk)
    assert isinstance(error, Unreachable)
    assert not desk.reconciler.condition.stalled
    assert "degraded" in desk.events()
    assert desk.engine.cluster.running("nlp/sft")
    away.rename(lab.remote.path)
    assert desk.settle() == []
    assert desk.reconciler.condition.ready


# --- the state branch ---


def test_a_rewound_state_branch_is_refused(lab: Lab) -> None:
    desk = running(lab, "sft")
    tip, older = lab.tip, lab.log()[1].id
    git(lab.remote.path, "update-ref", STATE, older)
    assert refused(desk).code == "StateRewritten"
    assert desk.reconciler.condition.stalled
    fresh = lab.desk(cluster=desk.engine.cluster)
    with pytest.raises(StoreError) as caught:
        fresh.round()
    assert caught.value.code == "StateRewritten"  # remembered outside the process
    assert "start" not in fresh.engine.calls
    git(lab.remote.path, "update-ref", STATE, tip)
    assert desk.settle() == []


def test_a_deleted_state_branch_is_refused_even_with_a_lost_clone(lab: Lab) -> None:
    desk = running(lab, "sft")
    git(lab.remote.path, "update-ref", "-d", STATE)
    assert refused(desk).code == "StateMissing"
    shutil.rmtree(desk.mirror.folder)
    fresh = lab.desk()
    with pytest.raises(StoreError) as caught:
        fresh.round()
    assert caught.value.code == "StateMissing"


def test_the_record_of_another_cluster_is_refused(lab: Lab) -> None:
    running(lab, "sft")
    other = lab.desk("other")
    other.reconciler._cluster_id = "elsewhere"  # as its settings would say
    assert refused(other).code == "NotOurCluster"
    assert PublishedMark(folder=lab.folder / "other").read() is None


# --- files that are wrong ---


def test_an_invalid_job_goes_on_in_its_last_valid_form_and_others_are_not_held_up(lab: Lab) -> None:
    desk = running(lab, "sft")
    lab.desire({job_file("sft"): "kind: Job\nmetadata: {name: sft}\nspec: {gpus: many}\n", **jobs("eval")})
    desk.settle()

    assert desk.record("sft").state is JobState.RUNNING
    assert desk.record("eval").state is JobState.RUNNING
    condition = desk.reconciler.condition
    assert (condition.ready, condition.reason) == (True, "InvalidDocuments")
    frozen = lab.generation().frozen
    assert list(frozen) == [job_file("sft")]
    assert frozen[job_file("sft")].decode() == job_text("sft")

    lab.desire({job_file("eval"): None})  # still invalid, another commit
    desk.settle()
    assert desk.record("sft").state is JobState.RUNNING
    assert list(lab.generation().frozen) == [job_file("sft")]
    desk.engine.cluster.finish("nlp/sft")
    desk.settle()
    assert desk.record("sft").outcome is Outcome.SUCCEEDED
    assert [r for r in lab.replayed() if not r.identical] == []

    lab.desire(jobs("sft", "more"))
    desk.settle()
    assert desk.reconciler.condition.reason == "Applied"
    assert lab.generation().frozen == {}
    assert [r for r in lab.replayed() if not r.identical] == []


def test_a_symlink_in_place_of_a_job_is_invalid_and_not_gone(lab: Lab) -> None:
    desk = running(lab, "sft")
    files: dict[str | bytes, bytes | tuple[str, bytes | str]] = {p: c.encode() for p, c in lab.files.items()}
    files[job_file("sft")] = ("120000", b"/etc/passwd")
    lab.remote.commit(files, parent=lab.remote.tip(MAIN))
    desk.settle()
    assert desk.record("sft").state is JobState.RUNNING
    last = desk.reconciler.last
    assert last is not None
    assert [d.code for d in last.desired.diagnostics] == ["SymlinkRefused"]
    desk.engine.cluster.finish("nlp/sft")
    desk.settle()
    assert [r for r in lab.replayed() if not r.identical] == []


def test_a_job_that_was_never_readable_says_what_was_refused(lab: Lab) -> None:
    desk = running(lab, "sft")
    files: dict[str | bytes, bytes | tuple[str, bytes | str]] = {p: c.encode() for p, c in lab.files.items()}
    files[job_file("link")] = ("120000", b"/etc/passwd")
    files[job_file("huge")] = b"# " + b"x" * (2 << 20)
    lab.remote.commit(files, parent=lab.remote.tip(MAIN))
    desk.settle()
    assert [desk.record(name).reason.number("problem") for name in ("link", "huge")] == [
        "SymlinkRefused",
        "FileTooLarge",
    ]
    assert [r for r in lab.replayed() if not r.identical] == []


def test_an_invalid_cluster_file_admits_nothing_and_stops_nothing(lab: Lab) -> None:
    desk = running(lab, "sft")
    lab.desire({"cluster-state/queues/tree.yaml": "kind: Queue\n", **jobs("eval")})
    desk.settle()
    assert desk.record("sft").state is JobState.RUNNING
    assert desk.record("eval").state is not JobState.RUNNING
    assert desk.reconciler.condition.reason == "InvalidDocuments"
    lab.desire({"cluster-state/queues/tree.yaml": BASE["cluster-state/queues/tree.yaml"]})
    desk.settle()
    assert desk.record("eval").state is JobState.RUNNING
    assert [r for r in lab.replayed() if not r.identical] == []


def test_a_cluster_without_any_valid_form_stalls_with_every_problem(lab: Lab) -> None:
    lab.begin(**{"cluster-state/cluster.yaml": "kind: ClusterConfig\n"})
    desk = lab.desk()
    error = refused(desk)
    assert isinstance(error, InvalidInput)
    assert error.diagnostics
    assert "start" not in desk.engine.calls


# --- what nodes do ---


def test_a_lost_node_moves_its_gang_and_every_decision_is_replayed(lab: Lab) -> None:
    lab.begin(**{job_file("sft"): job_text("sft", 8, more="  restart: {fence: lease, lease: 5s}\n")})
    desk = lab.desk()
    desk.settle()
    (node,) = desk.engine.cluster.running("nlp/sft")
    desk.engine.cluster.power_off(node)
    for _ in range(12):
        lab.clock.advance(MINUTE)
        desk.settle()
    record = desk.record("sft")
    assert (record.state, record.attempt) == (JobState.RUNNING, 2)
    assert [n for n, key in desk.engine.cluster.running("nlp/sft").items() if key[1] == 2] != [node]
    assert [r for r in lab.replayed() if not r.identical] == []
    lab.check_chain()


def test_a_reason_from_a_node_cannot_break_the_record(lab: Lab) -> None:
    lab.begin(**jobs("sft", gpus=32))
    desk = lab.desk()
    desk.engine.cluster.declare(_desired(desk))
    desk.engine.cluster.refuse("gpu-001", "no\nGeneration: 99\n\n\x1b[31mEpoch: 7")
    desk.round()
    desk.round()
    assert desk.record("sft").cause is Cause.START_FAILED
    assert "no Generation: 99" in lab.log()[0].message
    assert lab.numbers() == [0, 1, 2]
    assert [r for r in lab.replayed() if not r.identical] == []


def test_orders_that_a_node_refuses_are_told_once_and_stand_in_the_record(lab: Lab) -> None:
    desk = running(lab, "sft")
    before = desk.summary.generation
    for commit in ("a" * 40, "b" * 40):  # the commit that records it is refused like the first
        desk.engine.cluster.distrust(
            "gpu-001", Refusal(commitId=commit, code="BadSignature", detail=f"{commit[:3]} has no key", at=1)
        )
        lab.clock.advance(MINUTE)
        desk.settle()
    assert desk.summary.generation == before + 1
    assert recorded(desk) == {"gpu-001": "BadSignature: aaa has no key"}
    told = [(event, dict(fields)) for event, fields in desk.told if event in {"node-refuses", "node-accepts"}]
    assert told == [("node-refuses", {"node": "gpu-001", "reason": "BadSignature: aaa has no key"})]
    assert [r for r in lab.replayed() if not r.identical] == []
    desk.engine.cluster.distrust("gpu-001")
    desk.engine.cluster.nodes["gpu-001"].accepted = (1, before + 1, "c" * 40)
    lab.clock.advance(MINUTE)
    desk.settle()
    assert recorded(desk) == {}
    assert [event for event in desk.events() if event.startswith("node-")] == ["node-refuses", "node-accepts"]


def recorded(desk: Desk) -> dict[str, str]:
    assert desk.reconciler.last is not None
    nodes = desk.reconciler.last.generation.observed.nodes
    return {name: seen.refused for name, seen in nodes.items() if seen.refused}


def _desired(desk: Desk) -> Desired:
    found = DesiredReader(desk.mirror.git).read(desk.mirror.fetch().desired, None).desired
    assert found is not None
    return found


def test_the_clone_is_tended_once_a_day_and_a_failure_only_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.begin(**jobs("sft"))
    desk = lab.desk()
    desk.settle()
    graph = desk.mirror.folder / "objects/info/commit-graph"
    desk.reconciler.maintain()
    assert not graph.exists()
    lab.clock.advance(DAY)
    desk.reconciler.maintain()
    assert graph.exists()

    def fails() -> None:
        raise StoreError("no space", code="LocalStorageFull")

    monkeypatch.setattr(desk.mirror, "maintain", fails)
    desk.reconciler.maintain()
    assert "maintenance-failed" not in desk.events()
    lab.clock.advance(DAY)
    desk.reconciler.maintain()
    assert ("maintenance-failed", {"reason": "LocalStorageFull", "message": "no space"}) in desk.told
