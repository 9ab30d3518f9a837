"""What was shown before the merge and what is decided after it: g12 and g13 of the gitops faults, on real git."""

from __future__ import annotations

import pytest

from reconciler.errors import ExitStatus
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.observed import Shown
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import SECOND, CommitId, GpuSeconds, JobKey
from reconciler.policy.previewed import shown_in
from reconciler.render.plan import Plan
from reconciler.render.plan.forms import printed
from reconciler.runtime.clone import open_clone
from reconciler.runtime.preview import preview
from tests.runtime.lab import CONFIG, Desk, Lab, job_file, job_text, jobs
from tests.runtime.test_policies import merged
from tests.runtime.test_preview import gangops
from tests.store.world import MAIN, git

B, C, D = JobKey("nlp/b"), JobKey("nlp/c"), JobKey("nlp/d")
STRICT = CONFIG.replace("{}", "{repository: {victimsMustMatchPreview: true}}")
URGENT = "  priorityClass: production\n"


def pulled(lab: Lab, changes: dict[str, str]) -> tuple[str, Plan, str]:
    """A pull request against the tip: its head, its plan, and the trailers of that plan."""
    base = lab.remote.tip(MAIN)
    files: dict[str | bytes, bytes | tuple[str, bytes | str]] = {
        path: text.encode() for path, text in {**lab.files, **changes}.items()
    }
    head = lab.remote.commit(files, ref="refs/heads/pull", parent=base)
    plan = preview(open_clone(lab.remote.path), head, lab.clock.now(), base=base)
    return head, plan, printed(plan, "trailers")


def merge(lab: Lab, changes: dict[str, str], trailers: str, **how: str) -> str:
    lab.desire(changes)
    return merged(lab, f"Merge it (#12)\n\n{trailers}\n", **how)  # type: ignore[arg-type]  # keywords of `merged`


def full(lab: Lab, config: str = CONFIG) -> Desk:
    """c and d hold the whole cluster, and have run for ten minutes."""
    lab.begin(**{"cluster-state/cluster.yaml": config, **jobs("c", "d", gpus=16)})
    desk = lab.desk()
    desk.settle()
    lab.clock.advance(600 * SECOND)
    assert (desk.record("c").state, desk.record("d").state) == (JobState.RUNNING, JobState.RUNNING)
    return desk


def surprised(lab: Lab, config: str) -> tuple[Desk, JobKey, JobKey, Plan, str]:
    """g13: the preview of b evicts one of c and d; until it is merged that one ends, and only the other is left."""
    desk = full(lab, config)
    change = {job_file("b"): job_text("b", 16, more=URGENT)}
    _, plan, trailers = pulled(lab, change)
    (shown,) = (JobKey(row.job) for row in plan.victims)
    other = D if shown == C else C
    desk.engine.cluster.finish(shown)
    lab.desire({job_file("z"): job_text("z", 16, more=URGENT)})
    desk.settle()
    assert desk.record("z").state is JobState.RUNNING
    commit = merge(lab, change, trailers)
    return desk, shown, other, plan, commit


def name(job: JobKey) -> str:
    return job.partition("/")[2]


# --- g13 ---


def test_g13_nobody_is_evicted_whom_no_reviewer_saw_where_that_is_the_policy(lab: Lab) -> None:
    desk, shown, other, plan, commit = surprised(lab, STRICT)
    desk.settle()
    assert desk.record(name(other)).state is JobState.RUNNING
    held = desk.record("b")
    assert (held.state, held.reason.code) == (JobState.HELD, ReasonCode.POLICY_PLAN)
    assert held.reason.number("rule") == "PlanDiffersFromPreview"
    told = str(held.reason.number("message"))
    assert other in told
    assert shown not in told
    assert plan.basis.digest[:12] in told
    condition = desk.reconciler.condition
    assert (condition.ready, condition.stalled, condition.reason) == (False, True, "PlanDiffersFromPreview")
    assert other in condition.message
    ((_, fields),) = [row for row in desk.told if row[0] == "PlanDiffersFromPreview"]
    assert (fields["job"], fields["held"]) == (B, True)
    assert lab.generation().observed.provenance[B].preview == Shown(
        digest=plan.basis.digest, generation=plan.basis.generation, state=CommitId(plan.basis.state),
        victims=(shown,), lost=GpuSeconds(plan.lost_gpu_seconds),
    )  # fmt: skip
    # The new plan is looked at, and the merge of that says so.
    again = preview(open_clone(lab.remote.path), MAIN.removeprefix("refs/heads/"), lab.clock.now())
    lab.desire()
    merged(lab, f"Go on (#13)\n\nAcknowledge-Change: {commit[:12]}\nPreview-Digest: sha256:{again.basis.digest}\n"
                f"Preview-State: {again.basis.generation} {again.basis.state}\nPreview-Victims: {other}\nPreview-Lost: 9600\n")  # fmt: skip
    desk.round()
    assert (desk.record(name(other)).state, desk.record(name(other)).cause) == (JobState.STOPPING, Cause.PREEMPTED)
    desk.settle()
    assert desk.record("b").state is JobState.RUNNING
    assert desk.reconciler.condition.ready
    assert all(done.identical for done in lab.replayed())
    lab.check_chain()


def test_g13_without_that_policy_it_goes_on_and_the_commit_has_both_digests(lab: Lab) -> None:
    desk, _, other, plan, _ = surprised(lab, CONFIG)
    desk.round()
    assert desk.record(name(other)).state is JobState.STOPPING
    summary = desk.summary
    assert summary.previews == (plan.basis.digest,)
    (found,) = summary.differs
    assert (found.job, found.preview, found.unseen) == (B, plan.basis.digest, (other,))
    message = lab.log()[0].message
    assert f"Answers to preview sha256:{plan.basis.digest}" in message
    assert f"nlp/b differs from its preview: would make {other} pay" in message
    assert summary.inputs_digest in message
    assert ("PlanDiffersFromPreview", False) in [(event, fields.get("held")) for event, fields in desk.told]
    desk.settle()
    assert desk.record("b").state is JobState.RUNNING
    assert desk.reconciler.condition.reason == "Applied"
    assert all(done.identical for done in lab.replayed())


def test_a_preview_that_holds_is_linked_and_nothing_is_said_to_differ(lab: Lab) -> None:
    desk = full(lab, STRICT)
    change = {job_file("b"): job_text("b", 16, more=URGENT)}
    _, plan, trailers = pulled(lab, change)
    merge(lab, change, trailers)
    desk.round()
    assert [desk.record(name(JobKey(row.job))).state for row in plan.victims] == [JobState.STOPPING]
    assert (desk.summary.previews, desk.summary.differs) == ((plan.basis.digest,), ())
    desk.settle()
    assert desk.record("b").state is JobState.RUNNING
    assert desk.summary.previews == ()


@pytest.mark.parametrize(
    ("trailers", "committer"),
    [
        pytest.param(lambda told: told, "kim <kim@acme.org>", id="told past the forge"),
        pytest.param(lambda told: "", "GitHub <noreply@github.com>", id="no preview told"),
        pytest.param(lambda told: told.replace("sha256:", "md5:"), "GitHub <noreply@github.com>", id="no digest"),
        pytest.param(lambda told: f"{told}\nPreview-Victims: nlp/x", "GitHub <noreply@github.com>", id="told twice"),
    ],
)  # fmt: skip
def test_what_nothing_stands_behind_shows_nobody(lab: Lab, trailers: object, committer: str) -> None:
    assert callable(trailers)
    desk = full(lab, STRICT)
    change = {job_file("b"): job_text("b", 16, more=URGENT)}
    _, _, told = pulled(lab, change)
    merge(lab, change, trailers(told), committer=committer)
    desk.settle()
    assert desk.record("b").reason.number("rule") == "PlanDiffersFromPreview"
    assert (desk.record("c").state, desk.record("d").state) == (JobState.RUNNING, JobState.RUNNING)


def test_only_who_would_surprise_somebody_is_held(lab: Lab) -> None:
    """Both need a victim; the one whose preview named its victims starts, though it comes later in the pass."""
    desk = full(lab, STRICT)
    change = {job_file("b"): job_text("b", 16, more=URGENT + "  nice: 50\n")}
    _, _, told = pulled(lab, change)
    told = told.replace("Preview-Victims: nlp/c", "Preview-Victims: nlp/c, nlp/d").replace(
        "Preview-Victims: nlp/d", "Preview-Victims: nlp/c, nlp/d"
    )
    lab.desire({job_file("a"): job_text("a", 16, more=URGENT)})
    merged(lab, "First, and nobody looked (#11)\n")
    merge(lab, change, told.replace("nlp/c, nlp/c", "nlp/c"))
    desk.settle()
    assert desk.record("a").reason.number("rule") == "PlanDiffersFromPreview"
    assert desk.record("b").state is JobState.RUNNING


# --- g12 ---


def test_g12_the_base_moved_after_the_preview_was_made(lab: Lab) -> None:
    lab.begin(**jobs("a", "c", gpus=16))
    lab.desire({job_file("a"): job_text("a", 16, more="  suspend: true\n")})
    desk = lab.desk()
    desk.settle()
    lab.clock.advance(600 * SECOND)
    # Pull request 12 raises a; at generation 2 a finds free nodes.
    change = {job_file("a"): job_text("a", 16, more=URGENT)}
    base = lab.remote.tip(MAIN)
    assert base is not None
    head, plan, trailers = pulled(lab, change)
    assert plan.victims == ()
    assert "Preview-Victims: none" in trailers
    text = printed(plan, "markdown")
    for named in (base[:10], head[:10], f"state #{plan.basis.generation}", plan.basis.digest[:16]):
        assert named in text
    # Another is merged and takes them.
    lab.desire(jobs("d", gpus=16))
    desk.settle()
    sides = ("--base", MAIN.removeprefix("refs/heads/"), "--head", head, "--check", plan.basis.digest)
    assert gangops(lab.remote.path, *sides).return_value == ExitStatus.LOST_RACE
    # It is merged all the same.
    merge(lab, change, trailers)
    desk.round()
    (found,) = desk.summary.differs
    assert (found.job, found.preview) == (JobKey("nlp/a"), plan.basis.digest)
    assert len(found.unseen) == 1
    assert "did not show" in found.told
    assert desk.summary.previews == (plan.basis.digest,)
    assert "differs from its preview" in git(lab.remote.path, "log", "-1", "--format=%B", lab.tip).decode()
    assert all(done.identical for done in lab.replayed())


# --- the trailers ---


@pytest.mark.parametrize(
    "broken",
    [
        {"Preview-Digest": "sha256:beef"},
        {"Preview-State": "7"},
        {"Preview-Victims": "nlp/a, ; rm"},
        {"Preview-Lost": "-1"},
        {"Preview-Lost": "9" * 40},
    ],
)
def test_a_preview_told_in_part_is_none(broken: dict[str, str]) -> None:
    whole = {
        "Preview-Digest": f"sha256:{'ab' * 32}", "Preview-State": f"7 {'cd' * 20}", "Preview-Victims": "vision/c, nlp/a",
        "Preview-Lost": "7800",
    }  # fmt: skip
    assert shown_in(whole.items()) == Shown(
        digest="ab" * 32, generation=7, state=CommitId("cd" * 20), victims=(JobKey("nlp/a"), JobKey("vision/c")),
        lost=GpuSeconds(7800),
    )  # fmt: skip
    assert shown_in({**whole, **broken}.items()) is None
    for left_out in whole:
        assert shown_in((key, value) for key, value in whole.items() if key != left_out) is None
