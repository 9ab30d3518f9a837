"""The one comment of a pull request, against a forge on this machine: made, brought up to date, or honestly not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from reconciler.cli.root import root
from reconciler.errors import ExitStatus, StoreError, Unreachable, UsageError
from reconciler.render.plan import Row, Step
from reconciler.render.plan.machine import plan_from_json, plan_text_json
from reconciler.runtime.forge.api import Api, ForgeRefused
from reconciler.runtime.forge.comment import comment, comment_body, shown_by, shown_in
from reconciler.runtime.forge.events import FinishedRun, PullRequest, read_event
from reconciler.runtime.forge.recheck import material_changes
from tests.runtime.forge.conftest import payload, priced
from tests.runtime.forge.stand_in import BOT, Forge

PLAN = priced("vision/sweep-11")


def event(name: str = "workflow_run") -> FinishedRun | PullRequest:
    found = read_event(payload(name))
    assert isinstance(found, FinishedRun | PullRequest)
    return found


def test_the_first_comment_is_created_and_the_next_updates_it(api: Api, forge: Forge) -> None:
    assert comment(api, event(), PLAN).what == "created"
    assert comment(api, event(), PLAN).what == "unchanged"
    assert comment(api, event(), priced("vision/sweep-12")).what == "updated"
    assert len(forge.comments) == 1
    assert "`vision/sweep-12`" in forge.own[0]
    assert forge.own[0].startswith("<!-- gangops:plan:h100-east:v1 -->\n")
    assert [method for method, _ in forge.asked if method != "GET"] == ["POST", "PATCH"]


def test_our_comment_is_found_on_the_third_page_and_nobody_else_s_is_taken_for_it(api: Api, forge: Forge) -> None:
    forge.add(comment_body(PLAN), "mallory")
    for number in range(230):
        forge.add(f"remark {number}", "ada")
    forge.add(comment_body(PLAN), BOT)
    assert comment(api, event(), priced("vision/sweep-12")).what == "updated"
    assert "sweep-11" in forge.comments[0]["body"]
    assert "sweep-12" in forge.comments[-1]["body"]
    assert sum("/comments?" in path for _, path in forge.asked) == 3


def test_another_cluster_has_a_comment_of_its_own(api: Api, forge: Forge) -> None:
    comment(api, event(), PLAN)
    west = replace(PLAN, basis=replace(PLAN.basis, cluster="h100-west"))
    assert comment(api, event(), west).what == "created"
    assert len(forge.own) == 2


def test_g27_a_fork_is_found_by_owner_branch_and_head_and_the_artefact_has_no_say(api: Api, forge: Forge) -> None:
    hostile = replace(PLAN, rows=(replace(PLAN.rows[0], job="@everyone <img src=x onerror=alert(1)> PR 999"),))
    assert comment(api, event("workflow_run_fork"), hostile).what == "created"
    assert ("POST", "/repos/acme/cluster/issues/13/comments") in forge.asked
    visible = forge.own[0].rpartition("<!-- gangops:shown:")[0]
    assert "<img" not in visible
    assert "@everyone" not in visible


def test_a_head_that_moved_on_is_left_to_its_own_run(api: Api, forge: Forge) -> None:
    forge.pulls[12]["head"]["sha"] = "e" * 40
    assert comment(api, event(), PLAN).what == "skipped"
    forge.pulls[13]["state"] = "closed"
    assert comment(api, event("workflow_run_fork"), PLAN).what == "skipped"
    assert forge.comments == []


def test_g27_without_the_permission_it_is_a_notice_and_no_failure(api: Api, forge: Forge) -> None:
    forge.may_write = False
    done = comment(api, event("pull_request"), PLAN)
    assert done.what == "skipped"
    assert "403" in done.why


def test_a_comment_that_is_too_long_for_this_forge_is_told_in_brief(api: Api, forge: Forge) -> None:
    forge.longest = 20_000
    many = priced(*(f"vision/sweep-{number}" for number in range(4000)))
    assert comment(api, event(), many).what == "created"
    assert len(forge.own[0]) <= 20_000
    assert "left out" in forge.own[0]
    forge.longest = 10
    with pytest.raises(ForgeRefused) as caught:
        comment(api, event(), priced("vision/other"))
    assert caught.value.code == "Unprocessable"


@pytest.mark.parametrize(
    ("script", "waited"),
    [
        ([(429, {"retry-after": "7"})], [7]),
        ([(403, {"retry-after": "5"}), (403, {"retry-after": "6"})], [5, 6]),
        ([(502, {}), (503, {})], [2, 2]),
        ([(403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1"})], [1]),
    ],
)
def test_a_forge_that_asks_to_wait_is_waited_for(
    script: list[tuple[int, dict[str, str]]], waited: list[int], api: Api, forge: Forge, waits: list[float]
) -> None:
    forge.script = list(script)
    assert comment(api, event(), PLAN).what == "created"
    assert waits == waited


@pytest.mark.parametrize("answer", [(429, {"retry-after": "3600"}), (403, {"x-ratelimit-remaining": "0"}), (500, {})])
def test_a_forge_that_cannot_be_had_is_unreachable(answer: tuple[int, dict[str, str]], api: Api, forge: Forge) -> None:
    forge.script = [answer] * 9
    with pytest.raises(Unreachable):
        comment(api, event(), PLAN)
    assert forge.comments == []


def test_the_token_follows_no_redirection(api: Api, forge: Forge) -> None:
    forge.script = [(302, {"location": f"{forge.base}/elsewhere"})]
    with pytest.raises(ForgeRefused):
        comment(api, event(), PLAN)
    assert len(forge.asked) == 1


@pytest.mark.parametrize("base", ["http://ghe.example.org", "file:///etc/passwd", "https://x:y@ghe.example.org", ""])
def test_the_address_has_to_be_safe_for_a_token(base: str) -> None:
    with pytest.raises(UsageError):
        Api(base=base, token="t")


# --- the artefact ---


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "Other"},
        {"formatVersion": "2.0"},
        {"rows": [{"step": "preempt"}]},
        {"rows": "x"},
        {"surprise": 1},
        {"unchanged": "3"},
    ],
)
def test_an_artefact_of_another_shape_is_refused(change: dict[str, object]) -> None:
    tree = {**json.loads(plan_text_json(PLAN)), **change}
    with pytest.raises(StoreError) as caught:
        plan_from_json(json.dumps(tree).encode())
    assert caught.value.code == "BadArtifact"


@pytest.mark.parametrize("raw", [b"", b"\xff", b"[" * 100_000, b"null", b"x" * (17 << 20)])
def test_an_artefact_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(StoreError):
        plan_from_json(raw)


def test_the_verb_takes_base_and_token_from_the_environment(forge: Forge, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan_text_json(PLAN))
    environment = {
        "GITHUB_API_URL": forge.base,
        "GITHUB_TOKEN": "s3cret",
        "GITHUB_EVENT_PATH": str(payload("workflow_run")),
    }
    done = CliRunner().invoke(
        root, ["forge", "comment", "--artifact", str(file)], env=environment, standalone_mode=False
    )
    assert (done.return_value, done.stdout) == (ExitStatus.OK, "comment created\n")
    assert set(forge.tokens) == {"Bearer s3cret"}
    forge.may_write = False
    file.write_text(plan_text_json(priced("a/b")))
    done = CliRunner().invoke(
        root, ["forge", "comment", "--artifact", str(file)], env=environment, standalone_mode=False
    )
    assert done.return_value == ExitStatus.OK
    assert done.stdout.startswith("::notice title=No comment::")


def test_a_link_in_the_artefact_s_place_is_not_followed(forge: Forge, tmp_path: Path) -> None:
    (tmp_path / "plan.json").symlink_to("/etc/passwd")
    environment = {"GITHUB_API_URL": forge.base, "GITHUB_TOKEN": "t", "GITHUB_EVENT_PATH": str(payload("workflow_run"))}
    done = CliRunner().invoke(root, ["forge", "comment", "--artifact", str(tmp_path / "plan.json")], env=environment)
    assert isinstance(done.exception, UsageError)


# --- before the merge ---


def test_what_was_shown_can_be_told_from_the_comment(api: Api, forge: Forge) -> None:
    comment(api, event(), PLAN)
    shown = shown_in(api, "acme/cluster", 12, "h100-east")
    assert shown.found
    assert shown.victims == {"vision/sweep-11"}
    assert shown.lost_gpu_seconds == 3600
    assert not shown_in(api, "acme/cluster", 12, "h100-west").found
    assert not shown_by("<!-- gangops:shown:!!! -->").found


def test_only_a_material_change_stops_a_merge() -> None:
    shown = shown_by(comment_body(priced("v/a", "v/b", lost=36_000)))
    assert material_changes(shown, priced("v/a", lost=36_000)) == ()
    assert material_changes(shown, replace(priced("v/a"), basis=replace(PLAN.basis, state="e" * 40))) == ()
    assert material_changes(shown, priced("v/a", "v/b", lost=39_000)) == ()
    assert material_changes(shown, priced("v/a", "v/b", lost=40_000)) == (
        "22.2 GPU-h of work would be lost; 20.0 GPU-h were shown",
    )
    assert material_changes(shown, priced("v/a", "v/c", lost=36_000)) == (
        "v/c would pay for it, which no preview has shown",
    )
    waits = Row(step=Step.WAIT, job="v/d", gpus=8, priority_class="low", reason="Capacity", why="")
    assert material_changes(shown, replace(priced("v/a", lost=36_000), rows=(waits,), lost_gpu_seconds=0)) == ()
