"""A proposal is followed from the push to its ranks: each stage once, whoever merges it, whatever is away meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.errors import GangOpsError, NotFound
from reconciler.model.units import Instant
from reconciler.runtime.clone import Clone, open_clone
from reconciler.runtime.proposals import jobs as editing
from reconciler.runtime.proposals.change import Change
from reconciler.runtime.proposals.desk import Desk
from reconciler.runtime.proposals.follow import Pull, follow
from reconciler.runtime.proposals.proposal import proposal_of, push
from reconciler.runtime.proposals.pulls import Forge, gh_for
from reconciler.runtime.proposals.submit import submit
from reconciler.runtime.reading import DesiredReader
from tests.cli.people import Gh, gh_on_path, person_at
from tests.runtime.lab import Desk as Reconciling
from tests.runtime.lab import Lab, job_text, jobs
from tests.store.world import git, text

PULL = "https://forge.example/acme/cluster/pull/7"


class Scene:
    """A pushed change, and what happens while somebody waits: one step of `story` at every pause."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch, change: Callable[[Desk], Change]) -> None:
        self.lab = lab
        self.clone: Clone = open_clone(person_at(lab, monkeypatch).clone)
        self.clone.fetch()
        desk = Desk(self.clone)
        self.change = change(desk)
        proposal = proposal_of(desk, self.change, Instant(lab.clock.now()), DesiredReader(self.clone.git))
        self.commit = push(self.clone, proposal)
        self.branch = proposal.branch

    def merge(self) -> None:
        """As a forge does it: a merge commit."""
        path = self.lab.remote.path
        tree = text(path, "rev-parse", f"{self.branch}^{{tree}}")
        person = ("-c", "user.name=forge", "-c", "user.email=noreply@forge.example")
        made = text(
            path, *person, "commit-tree", "-m", "Merge pull request #7 from ada", "-p", "main", "-p", self.branch, tree
        )
        git(path, "update-ref", "refs/heads/main", made)

    def squash(self) -> None:
        """As one commit of the forge's own, on a main that moved."""
        for path, content in self.change.files.items():
            self.lab.desire({**jobs("other"), path: content.decode() if content is not None else None})

    def stages(self, *story: Callable[[], object], pull: Pull | None = None) -> list[tuple[str, str]]:
        """What is told while the story goes on; once it is over, so is the patience."""
        left: Iterator[Callable[[], object]] = iter(story)
        over = False

        def pause() -> None:
            nonlocal over
            step = next(left, None)
            over = step is None
            if step is not None:
                step()

        found = follow(self.clone, self.change, self.commit, pull, overdue=lambda: over, pause=pause)
        return [(event.stage.value, event.told) for event in found]


@pytest.fixture
def desk(lab: Lab) -> Reconciling:
    lab.begin(**jobs("sft", gpus=24))
    found = lab.desk()
    found.settle()
    return found


def fresh(gpus: int = 8) -> Callable[[Desk], Change]:
    return lambda desk: submit(desk, job_text("fresh", gpus).encode(), "fresh.yaml")


def test_merged_placed_and_started(lab: Lab, desk: Reconciling, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(lab, monkeypatch, fresh())
    stages = scene.stages(lambda: None, scene.merge, desk.round, desk.round, desk.round, desk.round)
    assert [stage for stage, _ in stages] == ["merged", "placed", "started"]
    assert stages[0][1] == f"main {text(lab.remote.path, 'rev-parse', '--short=7', 'main')}"
    assert stages[1][1].endswith("on gpu-004")


def test_a_squash_by_somebody_else_is_seen_by_its_files(
    lab: Lab, desk: Reconciling, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(lab, monkeypatch, fresh())
    stages = scene.stages(scene.squash, desk.settle)
    assert [stage for stage, _ in stages] == ["merged", "placed", "started"]


def test_a_job_that_waits_says_for_what_once(lab: Lab, desk: Reconciling, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(lab, monkeypatch, fresh(16))

    def end() -> None:
        desk.engine.cluster.finish("nlp/sft")
        desk.settle()

    stages = scene.stages(scene.merge, desk.settle, desk.round, desk.round, end)
    assert [stage for stage, _ in stages] == ["merged", "waits", "placed", "started"]
    assert stages[1][1].startswith("Pending: ")


def test_a_change_that_starts_nothing_is_done_when_it_is_merged(
    lab: Lab, desk: Reconciling, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(lab, monkeypatch, lambda desk: editing.suspend(desk, "sft"))
    assert [stage for stage, _ in scene.stages(scene.merge)] == ["merged"]


def test_patience_ends_with_how_far_it_came(lab: Lab, desk: Reconciling, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(lab, monkeypatch, fresh(16))
    with pytest.raises(NotFound) as ended:
        scene.stages(lambda: None)
    assert (ended.value.code, ended.value.message) == ("TimedOut", "the wait is over: not merged")
    with pytest.raises(NotFound) as ended:
        scene.stages(scene.merge, desk.settle)
    assert "waits Pending: " in ended.value.message


def test_a_remote_that_goes_away_is_told_once_and_waited_for(
    lab: Lab, desk: Reconciling, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(lab, monkeypatch, fresh())
    path, away = lab.remote.path, lab.folder / "away"
    stages = scene.stages(
        lambda: path.rename(away), lambda: None, lambda: None, lambda: away.rename(path), scene.merge, desk.settle
    )  # fmt: skip
    assert [stage for stage, _ in stages] == ["away", "merged", "placed", "started"]


# --- with a pull request ---


def answers(gh: Gh, *views: object) -> None:
    gh.answers({"pr view": list(views)})


def view(state: str = "OPEN", status: str = "BLOCKED", **checks: str) -> dict[str, object]:
    rollup = [
        {"name": name, "status": "COMPLETED" if outcome else "IN_PROGRESS", "conclusion": outcome}
        for name, outcome in checks.items()
    ]
    return {"state": state, "mergeStateStatus": status, "statusCheckRollup": rollup}


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gh:
    return gh_on_path(tmp_path / "gh", monkeypatch)


def pull() -> Pull:
    found = gh_for(Forge(host="forge.example", path="acme/cluster"))
    assert found is not None
    return Pull(gh=found, address=PULL)


def test_checked_comes_before_merged(lab: Lab, desk: Reconciling, monkeypatch: pytest.MonkeyPatch, gh: Gh) -> None:
    answers(gh, view(), view(plan=""), view(plan="SUCCESS", approval=""), view(plan="SUCCESS", approval="SKIPPED"))
    scene = Scene(lab, monkeypatch, fresh())
    stages = scene.stages(*[lambda: None] * 3, scene.merge, desk.settle, pull=pull())
    assert [stage for stage, _ in stages] == ["checked", "merged", "placed", "started"]
    assert stages[0][1] == "2 checks passed"
    assert len(gh.calls) == 5  # and once more, as it was merged


def test_a_gh_that_does_not_answer_is_told_once_and_git_goes_on(
    lab: Lab, desk: Reconciling, monkeypatch: pytest.MonkeyPatch, gh: Gh
) -> None:
    answers(gh, {"fails": "token expired"})
    scene = Scene(lab, monkeypatch, fresh())
    stages = scene.stages(lambda: None, lambda: None, scene.merge, desk.settle, pull=pull())
    assert [stage for stage, _ in stages] == ["away", "merged", "placed", "started"]
    assert "token expired" in stages[0][1]


@pytest.mark.parametrize(
    ("standing", "code", "told"),
    [
        (view(plan="FAILURE", approval="SUCCESS"), "ChecksFailed", "plan failed"),
        (view(**{"a\x1b[2J\nb": "FAILURE"}), "ChecksFailed", "a [2J b failed"),
        (view(state="CLOSED"), "PullRequestClosed", "was closed without a merge"),
    ],
)
def test_what_will_never_merge_ends_the_wait(
    lab: Lab, desk: Reconciling, monkeypatch: pytest.MonkeyPatch, gh: Gh, standing: object, code: str, told: str
) -> None:
    answers(gh, standing)
    scene = Scene(lab, monkeypatch, fresh())
    with pytest.raises(GangOpsError) as ended:
        scene.stages(lambda: None, pull=pull())
    assert ended.value.code == code
    assert told in ended.value.message


def test_a_failed_check_that_blocks_nothing_is_waited_past(
    lab: Lab, desk: Reconciling, monkeypatch: pytest.MonkeyPatch, gh: Gh
) -> None:
    answers(gh, view(status="UNSTABLE", lint="FAILURE", plan="SUCCESS"))
    scene = Scene(lab, monkeypatch, fresh())
    assert [stage for stage, _ in scene.stages(scene.merge, desk.settle, pull=pull())] == [
        "checked", "merged", "placed", "started",
    ]  # fmt: skip
