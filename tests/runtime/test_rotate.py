"""A record that goes on in another year's branch: nothing is lost to who has both, and nothing is missed by who has one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from reconciler.cli.root import root
from reconciler.errors import Fenced, StoreError, UsageError
from reconciler.model.units import SECOND, JobKey
from reconciler.runtime.audit.answers import Question, answers
from reconciler.runtime.audit.findings import Verdict
from reconciler.runtime.audit.history import by_path
from reconciler.runtime.audit.index import indexed
from reconciler.runtime.audit.scenes import scenes
from reconciler.runtime.audit.usage import usage
from reconciler.runtime.audit.verify import verify
from reconciler.runtime.clone import open_clone
from reconciler.runtime.generation import read_generation
from reconciler.runtime.preview import preview
from reconciler.runtime.replay import replay
from reconciler.runtime.rotate import Rotated, rotate_in
from reconciler.store.branches import PREVIOUS, in_order, year_of
from reconciler.store.history import commit_meta
from reconciler.store.mirror import Branches, Fetched, Mirror, Remote
from reconciler.store.publish import PublishedMark
from reconciler.store.signatures import allowed_signers_line
from reconciler.store.walk import record_chain
from tests.runtime.lab import CLUSTER, Desk, Lab, jobs
from tests.store.world import LOCAL, MAIN, STATE, git

NEXT = "refs/heads/allocations-2027"


def begun(lab: Lab) -> Desk:
    """A reconciler over a record that names its signers, with one job running."""
    lab.begin(
        **jobs("sft"),
        **{"cluster-state/trust/allowed_signers": allowed_signers_line("gangops@lab", lab.writer.signer.public_key())},
    )
    desk = lab.desk()
    desk.settle()
    return desk


def rotated(lab: Lab, year: int = 2027) -> Rotated:
    return rotate_in(
        lab.mirror(f"by-hand-{year}"), PublishedMark(folder=lab.folder / "none"), lab.writer, CLUSTER, year
    )


def tip(lab: Lab, ref: str = NEXT) -> str:
    found = lab.remote.tip(ref)
    assert found is not None
    return found


def audited(lab: Lab, at: str) -> Verdict:
    return verify(
        lab.remote.git, at, signers=allowed_signers_line("gangops@lab", lab.writer.signer.public_key()).encode()
    )


@pytest.mark.parametrize(
    ("name", "year"),
    [("allocations", 0), ("allocations-2027", 2027), ("allocations-27", None), ("allocations-2027-x", None), ("other", None)],
)  # fmt: skip
def test_which_branches_are_of_the_record(name: str, year: int | None) -> None:
    assert year_of(name, "allocations") == year


def test_the_newest_branch_is_the_one_of_the_highest_year() -> None:
    assert in_order(["allocations-2028", "x", "allocations", "allocations-2027"], "allocations") == [
        "allocations", "allocations-2027", "allocations-2028",
    ]  # fmt: skip


def test_a_running_reconciler_goes_on_in_the_new_branch_and_disturbs_nothing(lab: Lab) -> None:
    desk = begun(lab)
    before, held = lab.generation(), desk.record("sft")
    done = rotated(lab)
    assert (done.old, done.new, done.generation) == ("allocations", "allocations-2027", before.summary.generation + 2)
    assert lab.remote.tip(STATE) == done.closing
    first = commit_meta(lab.remote.git, done.first)
    assert (first.parents, first.only_trailer(PREVIOUS)) == ((), done.closing)
    # The whole tree came along, accumulators included.
    carried = read_generation(lab.remote.git, done.first)
    assert carried.allocation.jobs == before.allocation.jobs
    assert (carried.summary.usage, carried.summary.usage_as_of) == (before.summary.usage, before.summary.usage_as_of)
    assert (carried.observed, carried.node_files) == (before.observed, before.node_files)

    lab.desire(jobs("two"))
    made = desk.settle()
    assert made[0] == done.generation + 1
    assert desk.record("sft") == held
    assert lab.remote.tip(STATE) == done.closing
    assert commit_meta(lab.remote.git, tip(lab)).only_trailer("Generation") == str(made[-1])


def test_the_whole_record_is_one_to_who_has_both_branches(lab: Lab) -> None:
    desk = begun(lab)
    lab.clock.advance(600 * SECOND)
    rotated(lab)
    lab.desire({**jobs("two"), "cluster-state/jobs/nlp/sft.yaml": None})
    last = desk.settle()[-1]
    access, newest = lab.remote.git, tip(lab)
    verdict = audited(lab, newest)
    assert (verdict.findings, verdict.notices) == ([], [])
    assert [one.generation for one in verdict.judged] == list(range(last + 1))
    assert [one.identical for one in verdict.judged[1:]] == [True] * last
    assert [one.generation for one in replay(access, newest) if one.identical] == list(range(last, 0, -1))
    # History by path tells what the index tells, and the two commits in between tell nothing of any job.
    index = indexed(access, newest)
    for job in ("nlp/sft", "nlp/two"):
        walked = [(one.generation, one.action) for one in by_path(access, newest, job)]
        assert walked == [(one.generation, one.action) for one in answers(index, Question(job=job))]
        assert {"place", "start", "running"} <= {action for _, action in walked}
    (total,) = usage(index, scenes(access, index)).totals
    assert total.capacity == 32 * (index.commits["at"][-1] - index.commits["at"][0])
    assert total.capacity == total.hours.allocated + total.hours.reserved + total.idle + total.unavailable


def seen(lab: Lab, branch: str) -> list[tuple[int, str]]:
    signers = allowed_signers_line("gangops@lab", lab.writer.signer.public_key()).encode()
    found = verify(lab.remote.git, tip(lab, f"refs/heads/{branch}"), signers=signers, branch=branch).findings
    return [(one.position, one.code) for one in found]


def test_a_closed_branch_that_goes_on_or_was_set_back_is_found(lab: Lab) -> None:
    begun(lab)
    done = rotated(lab)
    assert seen(lab, done.new) == []
    closing = commit_meta(lab.remote.git, done.closing)
    for end in (closing.parents[0], done.first):
        git(lab.remote.path, "update-ref", STATE, end)
        assert seen(lab, done.new) == [(done.generation - 1, "ClosedBranchMoved")]


def test_another_branch_than_the_one_that_was_named_is_found(lab: Lab) -> None:
    begun(lab)
    done = rotated(lab)
    git(lab.remote.path, "update-ref", "refs/heads/allocations-2028", done.first)
    assert seen(lab, "allocations-2028") == [(done.generation, "OtherBranch")]


def test_an_index_goes_on_over_the_change_of_branch(lab: Lab) -> None:
    desk = begun(lab)
    clone = lab.remote.git
    indexed(clone, tip(lab, STATE))
    rotated(lab)
    lab.desire(jobs("two"))
    desk.settle()
    went_on = indexed(clone, tip(lab))
    assert went_on.ids == [link.id for link in record_chain(clone, tip(lab))]
    assert len(went_on.ids) == went_on.commits["generation"][-1] + 1


def test_the_new_branch_alone_is_enough_to_run_and_says_what_it_does_not_prove(lab: Lab) -> None:
    begun(lab)
    done = rotated(lab)
    git(lab.remote.path, "update-ref", "-d", STATE)
    git(lab.remote.path, "gc", "--prune=now", "--quiet")
    other = lab.desk("fresh")
    lab.desire(jobs("two"))
    other.settle()
    assert other.record("two").state == "Running"
    assert STATE not in other.mirror.tracked()
    verdict = audited(lab, tip(lab))
    assert verdict.findings == []
    assert verdict.judged[0].generation == done.generation
    assert f"goes on from {done.closing[:12]} in the branch before" in verdict.notices[0]


def test_a_shallow_clone_runs_and_previews(lab: Lab) -> None:
    begun(lab)
    rotated(lab)
    head = lab.desire(jobs("two"))
    place = lab.folder / "shallow" / "git"
    place.parent.mkdir()
    git(lab.folder, "clone", "-q", "--bare", "--depth=1", "--no-single-branch", f"file://{lab.remote.path}", str(place))
    assert int(git(place, "rev-list", "--count", "--all")) < int(git(lab.remote.path, "rev-list", "--count", "--all"))
    plan = preview(open_clone(place), head, lab.clock.now())
    desk = lab.desk("shallow")
    assert desk.round().generation.allocation.jobs[JobKey("nlp/two")].placement is not None
    assert "nlp/two" in str(plan)


class Outrun(Mirror):
    """A clone whose owner is overtaken between its fetch and its push."""

    desk: Desk

    def fetch(self) -> Fetched:
        found = super().fetch()
        self.desk.round()
        return found


def test_who_published_first_wins(lab: Lab) -> None:
    desk = begun(lab)
    lab.desire(jobs("two"))
    place = Remote(url=lab.remote.url)
    mirror = Outrun(lab.folder / "outrun" / "git", Branches(source=place, record=place), protocols=LOCAL)
    mirror.open()
    mirror.desk = desk
    with pytest.raises(Fenced):
        rotate_in(mirror, PublishedMark(folder=lab.folder / "none"), lab.writer, CLUSTER, 2027)
    assert lab.remote.tip(NEXT) is None
    assert audited(lab, tip(lab, STATE)).findings == []


def test_a_decision_made_meanwhile_is_made_again_on_the_new_branch(lab: Lab) -> None:
    desk = begun(lab)
    lab.desire(jobs("two"))
    closing = rotated(lab).closing
    desk.round(poll=False)  # it has not heard of the new branch, and its push loses
    assert lab.remote.tip(STATE) == closing
    desk.settle()
    assert desk.record("two").state == "Running"
    assert audited(lab, tip(lab)).findings == []


@pytest.mark.parametrize("year", [2026, 2027, 26, 12345])
def test_a_year_comes_after_the_one_there_is(lab: Lab, year: int) -> None:
    begun(lab)
    rotated(lab, 2027)
    with pytest.raises(UsageError) as refused:
        rotate_in(lab.mirror("again"), PublishedMark(folder=lab.folder / "no"), lab.writer, CLUSTER, year)
    assert refused.value.code == "YearNotLater"


def test_year_after_year(lab: Lab) -> None:
    desk = begun(lab)
    for year in (2027, 2028):
        rotated(lab, year)
        lab.desire(jobs(f"of-{year}"))
        desk.settle()
    newest = tip(lab, "refs/heads/allocations-2028")
    verdict = audited(lab, newest)
    assert (verdict.findings, verdict.notices) == ([], [])
    assert len(verdict.judged) == verdict.judged[-1].generation + 1
    assert {one.action for one in by_path(lab.remote.git, newest, "nlp/sft")} == {"place", "start", "running"}


def test_a_new_branch_that_was_deleted_is_missed(lab: Lab) -> None:
    desk = begun(lab)
    rotated(lab)
    desk.settle()
    git(lab.remote.path, "update-ref", "-d", NEXT)
    for name in ("one", "never-seen"):
        with pytest.raises(StoreError) as refused:
            lab.desk(name).round()
        assert refused.value.code == "StateMissing"


def test_a_reconciler_that_lost_its_clone_finds_what_it_published_in_the_closed_branch(lab: Lab) -> None:
    desk = begun(lab)
    rotated(lab)
    shutil.rmtree(desk.mirror.folder)
    again = lab.desk("one")
    again.settle()
    assert again.mirror.state_ref == NEXT


def _orphan(lab: Lab, at: str, previous: str) -> str:
    """The first commit of a branch made anew, going on from another commit; signed by the record's own key."""
    raw = git(lab.remote.path, "cat-file", "commit", at).decode()
    head, _, message = raw.partition("\n\n")
    lines = head.split("\n")
    start = next(i for i, one in enumerate(lines) if one.startswith("gpgsig "))
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))
    lines[start:end] = []
    message = "".join(
        f"{PREVIOUS}: {previous}\n" if one.startswith(PREVIOUS) else f"{one}\n" for one in message.splitlines()
    )
    plain = "\n".join(lines) + "\n\n" + message
    signature = lab.writer.signer.sign(plain.encode()).rstrip("\n").replace("\n", "\n ")
    signed = "\n".join([*lines, f"gpgsig {signature}"]) + "\n\n" + message
    return git(lab.remote.path, "hash-object", "-t", "commit", "-w", "--stdin", stdin=signed.encode()).decode().strip()


def test_a_branch_that_goes_on_from_an_earlier_commit_is_found(lab: Lab) -> None:
    begun(lab)
    done = rotated(lab)
    earlier = commit_meta(lab.remote.git, done.closing).parents[0]
    found = {(one.generation, one.code) for one in audited(lab, _orphan(lab, done.first, earlier)).findings}
    assert {
        (done.generation, "NotClosed"),
        (done.generation, "WrongPrevious"),
        (done.generation, "GenerationGap"),
    } <= found


def test_a_commit_on_a_closed_branch_is_found(lab: Lab) -> None:
    desk = begun(lab)
    done = rotated(lab)
    lab.desire(jobs("two"))
    desk.settle()
    parent = commit_meta(lab.remote.git, tip(lab)).parents[0]
    raw = git(lab.remote.path, "cat-file", "commit", parent).decode()
    forged = raw.replace("\nauthor", f"\nparent {done.closing}\nauthor", 1) if "\nparent" not in raw else raw.replace(
        commit_meta(lab.remote.git, parent).parents[0], done.closing, 1
    )  # fmt: skip
    made = git(lab.remote.path, "hash-object", "-t", "commit", "-w", "--stdin", stdin=forged.encode()).decode().strip()
    assert "ClosedBranch" in {one.code for one in audited(lab, made).findings}


def test_the_verb(tmp_path: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.begin(**jobs("sft"))
    (tmp_path / "reconciler.toml").write_text(
        f'clusterId = "{CLUSTER}"\n[desired]\nurl = "{lab.remote.path}"\n[signing]\nkey = "{lab.writer.signer.key}"\n'
    )
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(root, ["rotate", "--year", "2027"], catch_exceptions=False)
    assert done.output.startswith("allocations is closed at ")
    assert done.output.rstrip().endswith("; the record goes on in allocations-2027, generation 2")
    git(lab.folder, "clone", "-q", str(lab.remote.path), "mine")
    assert open_clone(lab.folder / "mine").state_tip() == tip(lab)
    assert lab.remote.tip(MAIN) is not None
