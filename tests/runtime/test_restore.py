"""A forge is lost with the newest generations; the record goes on from a bare clone alone."""

from __future__ import annotations

import shutil

import pytest

from reconciler.errors import StoreError, UsageError
from reconciler.model.lifecycle import JobState
from reconciler.runtime.restore import restore_in
from reconciler.store.publish import PublishedMark
from tests.engines.fake import FakeCluster
from tests.runtime.lab import CLUSTER, Lab, jobs
from tests.store.world import STATE, git


@pytest.fixture
def lost(lab: Lab) -> tuple[Lab, FakeCluster]:
    """`sft` runs and was backed up; `late` was started after that; then the forge burnt down and the backup stands in
    its place."""
    cluster = FakeCluster(lab.clock)
    lab.begin(**jobs("sft"))
    desk = lab.desk(cluster=cluster)
    desk.settle()
    git(lab.folder, "clone", "-q", "--mirror", str(lab.remote.path), "backup.git")
    lab.desire(jobs("late"))
    desk.settle()
    assert desk.record("late").state is JobState.RUNNING
    shutil.rmtree(lab.remote.path)
    shutil.move(lab.folder / "backup.git", lab.remote.path)
    return lab, cluster


def restored(lab: Lab, name: str, epoch: int | None = None) -> tuple[int, int]:
    mirror = lab.mirror(name)
    summary, commit = restore_in(mirror, PublishedMark(folder=lab.folder / name), lab.writer, CLUSTER, epoch)
    assert commit == lab.tip
    return summary.epoch, summary.generation


def test_the_record_goes_on_in_the_next_epoch_and_nothing_new_is_decided(lost: tuple[Lab, FakeCluster]) -> None:
    lab, _ = lost
    before = lab.generation()
    assert restored(lab, "new") == (2, before.summary.generation + 1)
    after = lab.generation()
    assert after.allocation.jobs == before.allocation.jobs
    assert after.summary.decided_at == before.summary.decided_at
    assert lab.log()[0].only_trailer("Epoch") == "2"
    lab.check_chain()
    assert [r for r in lab.replayed() if not r.identical] == [], "the raised epoch can be recomputed"


def test_nodes_obey_the_raised_epoch_although_they_have_seen_later_generations(lost: tuple[Lab, FakeCluster]) -> None:
    """The job that runs goes on in its attempt; the one that only the lost generations knew is stopped."""
    lab, cluster = lost
    restored(lab, "new")
    desk = lab.desk("new", cluster)
    desk.settle()
    assert desk.summary.epoch == 2
    sft = desk.record("sft")
    assert (sft.state, sft.attempt) == (JobState.RUNNING, 1)
    assert len(cluster.running("nlp/sft")) == 1
    assert cluster.running("nlp/late") == {}


def test_a_reconciler_that_kept_its_folder_refuses_the_backup_until_it_is_restored(
    lost: tuple[Lab, FakeCluster],
) -> None:
    lab, cluster = lost
    with pytest.raises(StoreError) as refused:
        lab.desk("one", cluster).round()
    assert refused.value.code == "StateRewritten"
    assert "gangops init --restored" in refused.value.remedy
    restored(lab, "one")
    desk = lab.desk("one", cluster)
    desk.settle()
    assert desk.record("sft").state is JobState.RUNNING


def test_an_epoch_above_all_that_were_seen_can_be_given(lost: tuple[Lab, FakeCluster]) -> None:
    lab, _ = lost
    with pytest.raises(UsageError) as refused:
        restored(lab, "new", 1)
    assert refused.value.code == "EpochNotHigher"
    assert restored(lab, "new", 7)[0] == 7
    assert [r for r in lab.replayed() if not r.identical] == []


@pytest.mark.parametrize("code", ["NotOurCluster", "StateMissing"])
def test_what_is_no_backup_of_ours_is_refused(lost: tuple[Lab, FakeCluster], code: str) -> None:
    lab, _ = lost
    mirror, cluster = lab.mirror("new"), "other" if code == "NotOurCluster" else CLUSTER
    if code == "StateMissing":
        git(lab.remote.path, "update-ref", "-d", STATE)
    with pytest.raises(StoreError) as refused:
        restore_in(mirror, PublishedMark(folder=lab.folder / "new"), lab.writer, cluster)
    assert refused.value.code == code
