"""The pull request's comment after the merge: what really happened, beside what its preview had shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.model.units import HOUR, MINUTE
from reconciler.runtime.forge.comment import comment_body, shown_by
from reconciler.runtime.forge.happened import with_notice
from reconciler.runtime.forge.recheck import material_changes
from reconciler.runtime.notices.events import Moment, Notice
from reconciler.runtime.notices.pulls import PullRequests
from tests.engines.fake import NEW_YEAR
from tests.runtime.forge.stand_in import BOT, Forge
from tests.runtime.lab import CONFIG, Desk, Lab, job_file, job_text, jobs
from tests.runtime.test_previewed import URGENT, merge, name, pulled, surprised


@pytest.fixture
def hook(forge: Forge, tmp_path: Path) -> PullRequests:
    (tmp_path / "token").write_text("t0ken\n")
    return PullRequests(url=forge.base, repository="acme/cluster", token=tmp_path / "token", login=BOT)


def idle(lab: Lab) -> Desk:
    """An empty cluster whose nodes are in the record."""
    lab.begin()
    desk = lab.desk()
    for _ in range(2):
        lab.clock.advance(MINUTE)
        desk.round()
    return desk


def tell(lab: Lab, desk: Desk, hook: PullRequests) -> Desk:
    """All notices of the record so far, by a reconciler that has the hook: those of its own commits."""
    again = lab.desk(cluster=desk.engine.cluster, hooks=[hook])
    teller = again.reconciler.teller
    assert teller is not None
    for meta in reversed(lab.log()):
        teller.expects(int(meta.only_trailer("Generation")), meta.id)
    again.settle()
    assert teller.tell()
    return again


def happened(forge: Forge) -> str:
    (body,) = forge.own
    return body.partition("<!-- gangops:happened:")[2].partition("<!-- gangops:happened-end -->")[0]


def lines(forge: Forge) -> list[str]:
    return [line for line in happened(forge).splitlines() if line.startswith(("###", "|", "-")) and line != "---"]


def test_what_was_previewed_and_came_to_pass(lab: Lab, forge: Forge, hook: PullRequests) -> None:
    desk = idle(lab)
    change = jobs("b", gpus=16)
    _, plan, trailers = pulled(lab, change)
    forge.add(comment_body(plan), BOT)
    merge(lab, change, trailers)
    desk.settle()
    tell(lab, desk, hook)

    head, _, _, row, started = lines(forge)
    assert head == "### What happened — ✅ as previewed"
    assert row.startswith("| `nlp/b` | place `r01 gpu-[001-002]` | Running since 2026-01-01 00:0")
    assert "Started `nlp/b`" in started
    assert {path for _, path in forge.asked if "/issues/12/" in path}
    assert forge.tokens[-1] == "Bearer t0ken"
    assert shown_by(forge.own[0]) == shown_by(comment_body(plan))
    assert material_changes(shown_by(forge.own[0]), plan) == ()
    assert comment_body(plan).partition("\n")[2].strip() in forge.own[0]  # the preview as it was follows


def test_who_paid_without_having_been_named_is_told(lab: Lab, forge: Forge, hook: PullRequests) -> None:
    desk, _, other, plan, _ = surprised(lab, CONFIG)
    forge.add(comment_body(plan), BOT)
    desk.settle()
    again = tell(lab, desk, hook)
    assert again.record(name(other)).preemptor == "nlp/b"
    text = lines(forge)
    assert text[0] == "### What happened — ⚠️ not all as previewed"
    assert f"- ⚠️ `{other}` paid for it, which the preview had not named" in text
    assert any(f"Preempted `{other}`" in line for line in text)


def test_a_job_that_waited_although_it_was_to_start_is_told(lab: Lab, forge: Forge, hook: PullRequests) -> None:
    desk = idle(lab)
    change = {job_file("b"): job_text("b", 32, more="  timeLimit: 1h\n")}
    _, plan, trailers = pulled(lab, change)
    forge.add(comment_body(plan), BOT)
    lab.desire({job_file("first"): job_text("first", 32, more=f"{URGENT}  timeLimit: 5h\n")})  # merged meanwhile
    desk.settle()
    merge(lab, change, trailers)
    desk.settle()
    lab.clock.advance(5 * HOUR)
    desk.engine.cluster.finish("nlp/first")
    desk.settle()
    tell(lab, desk, hook)
    text = lines(forge)
    assert text[0] == "### What happened — ⚠️ not all as previewed"
    assert text[4] == "- ⚠️ `nlp/b` was to start at once, and started 5h after the merge"


def test_telling_again_changes_nothing(lab: Lab, forge: Forge, hook: PullRequests) -> None:
    desk = idle(lab)
    change = jobs("b", gpus=16)
    _, plan, trailers = pulled(lab, change)
    forge.add(comment_body(plan), BOT)
    merge(lab, change, trailers)
    desk.settle()
    again = tell(lab, desk, hook)
    before, asked = forge.own[0], len(forge.asked)
    tell(lab, again, hook)
    assert forge.own[0] == before
    assert all(method == "GET" for method, _ in forge.asked[asked:])


@pytest.mark.parametrize("author", ["mallory", None])
def test_only_the_comment_with_the_preview_is_written_to(
    lab: Lab, forge: Forge, hook: PullRequests, author: str | None
) -> None:
    desk = idle(lab)
    change = jobs("b", gpus=16)
    _, plan, trailers = pulled(lab, change)
    if author is not None:
        forge.add(comment_body(plan), author)
    before = [dict(one) for one in forge.comments]
    merge(lab, change, trailers)
    desk.settle()
    tell(lab, desk, hook)
    assert forge.comments == before
    assert all(method == "GET" for method, _ in forge.asked)


@pytest.fixture
def told(lab: Lab, forge: Forge) -> tuple[str, Notice, Moment]:
    """A comment, a notice of its job, and the state after it."""
    from reconciler.model.units import CommitId
    from reconciler.runtime.notices.derive import Story
    from reconciler.runtime.reading import DesiredReader

    desk = idle(lab)
    change = jobs("b", gpus=16)
    _, plan, trailers = pulled(lab, change)
    merge(lab, change, trailers)
    desk.settle()
    moment, (notice,) = Story(desk.mirror.git, DesiredReader(desk.mirror.git)).notices(CommitId(lab.tip))
    assert moment is not None
    return comment_body(plan), notice, moment


def test_the_comment_stays_short_however_much_happens(told: tuple[str, Notice, Moment]) -> None:
    body, notice, moment = told
    text = body
    for number in range(300):
        text = with_notice(text, "12", replace(notice, id=f"{number:032x}", told="@all " * 200), moment)
    assert len(text) - len(body) < 8_000
    assert text.count("gangops:happened-end") == 1
    assert "@all" not in text.partition("happened-end")[0].partition("-->")[2]  # nobody is mentioned
    assert text.startswith(body.partition("\n")[0])


@pytest.mark.parametrize("damage", ["", "AAAA", "e30=", "W10=", "=" * 9])
def test_a_damaged_memory_has_told_nothing(told: tuple[str, Notice, Moment], damage: str) -> None:
    body, notice, moment = told
    once = with_notice(body, "12", notice, moment)
    packed = once.partition("<!-- gangops:happened:")[2].partition(" -->")[0]
    assert with_notice(once.replace(packed, damage), "12", notice, moment) == once


@pytest.mark.parametrize(
    ("row", "unlike"),
    [
        ('["place", "r01 gpu-[001-002]", null]', ""),
        ('["place", "r02 gpu-[003-004]", null]', "`nlp/b` was to run on `r02 gpu-[003-004]`"),
        (f'["wait", "", {NEW_YEAR + 3 * HOUR}]', "`nlp/b` started 2h57m sooner than forecast"),
        (f'["wait", "", {NEW_YEAR - 3 * HOUR}]', "`nlp/b` started 3h2m later than forecast"),
    ],
)
def test_where_and_when_beside_the_preview(told: tuple[str, Notice, Moment], row: str, unlike: str) -> None:
    import base64
    import json

    body, notice, moment = told
    head, _, rest = body.partition("<!-- gangops:shown:")
    packed, _, foot = rest.partition(" -->")
    record = json.loads(base64.urlsafe_b64decode(packed))
    record["rows"]["nlp/b"] = json.loads(row)
    made = base64.urlsafe_b64encode(json.dumps(record).encode()).decode()
    text = with_notice(f"{head}<!-- gangops:shown:{made} -->{foot}", "12", notice, moment)
    section = text.partition("gangops:happened-end")[0]
    found = [line.removeprefix("- ⚠️ ") for line in section.splitlines() if line.startswith("- ⚠️ ")]
    assert [line[: len(unlike)] for line in found] == ([unlike] if unlike else [])
