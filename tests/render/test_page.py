"""What the page makes of values: looks of queues, the verdict, the timeline as a table, jobs and spares as they stand."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from reconciler.model.units import HOUR, Instant, JobKey
from reconciler.render.heat import heat_map
from reconciler.render.names import shortened
from reconciler.render.page import html_page
from reconciler.render.page_values import Bar, JobShown, NodeShown, Page, QueueShown, Share
from reconciler.render.palette import LOOKS, OTHER, palette
from reconciler.render.pictures import timeline
from reconciler.render.spells import rack_uses, spells
from reconciler.render.verdict import concerns
from reconciler.runtime.audit.standing import jobs_shown, nodes_shown
from tests.planner.test_spares import gang, record_of, settled, spares_of
from tests.planner.worlds import job
from tests.render.test_arrays import cluster as array_cluster

T = Instant(0)
LONG = "a" * 29 + "-" + "b" * 30


def a_queue(name: str, **changes: int | None) -> QueueShown:
    made = QueueShown(name=name, held=0, guaranteed=None, ceiling=None, waiting=0, allocated=0, running=0, lost=0)
    return replace(made, **changes)  # type: ignore[arg-type]  # fields by name


def a_page(**changes: object) -> Page:
    made = Page(
        cluster="lab", generation=7, commit="c" * 40, made=T, since=T, until=Instant(24 * HOUR), declared=8, capacity=8, held=0,
        idle=8, stranded=0, phi=0, running=0, waiting=0, queues=(a_queue("nlp"),), jobs=(), more_jobs=0,
        nodes=(NodeShown(name="gpu-001", rack="r01", group="sg0", gpus=8, cells=("",) * 8),), bars=(), shares=(), samples=(),
        decisions=(), more_decisions=0, losses=(), more_losses=0, lost_seconds=0, drift=(), seal="", sealed=None,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]  # fields by name


def a_bar(job_name: str, begin: int, end: int, *, node: str = "gpu-001", state: str = "running", count: int = 8) -> Bar:
    return Bar(
        node=node, first=0, count=count, job=job_name, queue=job_name.partition("/")[0], state=state,
        since=Instant(begin * HOUR), until=Instant(end * HOUR), told="told",
    )  # fmt: skip


# --- looks ---


def test_every_queue_has_a_look_of_its_own_while_there_are_enough() -> None:
    looks = palette([a_queue(f"q{n:02}") for n in range(LOOKS)])
    assert [looks.of(f"q{n:02}") for n in range(LOOKS)] == list(range(LOOKS))
    assert looks.others == ()


def test_beyond_them_those_that_used_least_share_one_and_are_counted() -> None:
    queues = [a_queue(f"q{n:02}", allocated=n) for n in range(LOOKS + 3)]
    looks = palette(queues)
    assert looks.others == ("q00", "q01", "q02")
    assert {looks.of(name) for name in (*looks.others, "never heard of")} == {OTHER}
    assert len({looks.of(queue.name) for queue in queues}) == LOOKS + 1
    page = html_page(a_page(queues=tuple(queues)))
    assert "3 other queues</li>" in page
    assert "1 other queue</li>" in html_page(a_page(queues=tuple(queues[2:])))


def test_looks_are_told_apart_without_colour() -> None:
    page = html_page(a_page())
    rules = dict(re.findall(r"\.q(\d+) \.over,\.o\d+\{fill:url\(#(p\d+)\)\}", page))
    assert sorted(map(int, rules)) == list(range(1, LOOKS))  # the first is plain
    drawn = re.findall(r'<pattern id="(p\d+)"[^>]*>(.*?)</pattern>', page)
    assert {name for name, _ in drawn} == set(rules.values())
    assert len({inside for _, inside in drawn}) == len(drawn)


# --- the verdict ---

LOST = JobShown(name="nlp/a", state="Lost", mood="bad", gpus="8", priority="", where="", since="1m", why="")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"sealed": True}, []),
        ({"sealed": False}, [("bad", "The record is not true")]),
        ({"capacity": 7}, [("warn", "1 GPU out of work")]),
        ({"phi": 200_001}, [("warn", "Fragmentation is over its limit")]),
        ({"drift": (("gpu-001", "x", False),)}, []),
        ({"drift": (("gpu-001", "x", True),)}, [("warn", "1 difference from the declared hardware")]),
        ({"phi": 200_001, "jobs": (LOST, LOST)}, [("bad", "2 jobs lost a node"), ("warn", "Fragmentation is over its limit")]),
        ({"remarks": ("Request r is in force",)}, [("warn", "Request r is in force")]),
    ],
)  # fmt: skip
def test_what_wants_an_eye_worst_first(changes: dict[str, object], told: list[tuple[str, str]]) -> None:
    page = a_page(**changes)
    assert [(one.mood, one.told) for one in concerns(page)] == told
    shown = html_page(page)
    assert f'<ul class="verdict {told[0][0] if told else "good"}">' in shown
    assert ("Nothing wants a look" in shown) == (not told)
    assert all(f'href="#{one.section}"' in shown for one in concerns(page) if one.section)


def test_every_part_that_is_pointed_to_is_there() -> None:
    page = html_page(a_page(sealed=False, capacity=7, phi=300_000, drift=(("n", "x", True),), jobs=(LOST,)))
    wanted = set(re.findall(r'href="#([^"]+)"', page))
    assert wanted <= set(re.findall(r' id="([^"]+)"', page))
    assert {"timeline", "jobs", "seal", "drift", "fragmentation"} <= wanted


# --- the timeline ---


def test_a_gang_is_one_row_and_so_are_the_tasks_of_an_array_in_a_state() -> None:
    bars = [
        a_bar("nlp/a", 0, 4), a_bar("nlp/a", 0, 4, node="gpu-002"), a_bar("nlp/a", 4, 5, state="stopping"),
        a_bar("nlp/sweep.0", 1, 2, count=1), a_bar("nlp/sweep.1", 2, 6, count=1, node="gpu-002"),
    ]  # fmt: skip
    rows = [
        (one.job, one.state, one.gpus, one.tasks, one.where, one.since // HOUR, one.until // HOUR)
        for one in spells(bars)
    ]
    assert rows == [
        ("nlp/a", "stopping", 8, 0, "gpu-001", 4, 5),
        ("nlp/sweep", "running", 2, 2, "gpu-[001-002]", 1, 6),
        ("nlp/a", "running", 16, 0, "gpu-[001-002]", 0, 4),
    ]
    page = html_page(a_page(bars=tuple(bars)))
    assert "nlp/sweep, 2 tasks" in page
    assert "nlp/sweep.0" not in page


def test_what_a_rack_held_on_average() -> None:
    shares = [
        Share(rack="r01", since=T, until=Instant(6 * HOUR), parts=(("nlp", 500_000), ("bio", 500_000))),
        Share(rack="r01", since=Instant(6 * HOUR), until=Instant(12 * HOUR), parts=(("bio", 1_000_000),)),
    ]
    (use,) = rack_uses(shares, T, Instant(24 * HOUR))
    assert (use.held, use.parts) == (500_000, (("bio", 375_000), ("nlp", 125_000)))


@pytest.mark.parametrize("span", [20, 70, 90, 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400])
@pytest.mark.parametrize("begin", [0, 3, 41_877, 86_399])
def test_times_below_the_axis_do_not_collide_whatever_the_span(span: int, begin: int) -> None:
    since = Instant(begin * 10**9)
    page = a_page(since=since, until=Instant((begin + span) * 10**9), bars=(a_bar("nlp/a", 0, 1),))
    drawing = timeline(page, palette(()))
    ticks = re.findall(r'<text class="tick[^"]*" x="([\d.]+)" y="\d+">([^<]+)</text>', str(drawing.body))
    assert 1 <= len(ticks) <= 12
    ends = [(float(x) - len(text) * 3.2, float(x) + len(text) * 3.2) for x, text in ticks]
    assert all(end < begin for (_, end), (begin, _) in pairwise(ends))
    assert ends[0][0] >= 0
    assert ends[-1][1] <= drawing.width
    assert any("Jan" in text for _, text in ticks) or span > 300 * 86_400


def test_names_longer_than_their_column_keep_both_ends_and_are_whole_where_pointed_at() -> None:
    assert shortened("gpu-001", 7) == "gpu-001"
    assert shortened(LONG, 12) == "aaaaa…bbbbbb"
    node = NodeShown(name=LONG, rack="r01", group="", gpus=8, cells=("",) * 8)
    drawing = timeline(a_page(nodes=(node,), bars=(a_bar("nlp/a", 0, 1, node=LONG),)), palette(()))
    (label,) = re.findall(r'<text class="node" [^>]*>([^<]+)<title>', str(drawing.side))
    assert label.startswith("aaa")
    assert label.endswith("bbb")
    assert len(label) * 6.8 < drawing.side_width
    assert f"<title>{LONG}</title>" in drawing.side


# --- how it stands ---


def test_an_array_is_one_line_with_its_tasks_below() -> None:
    made = array_cluster()
    shown, more = jobs_shown(made.desired, made.allocation.jobs, made.now)
    assert more == 0
    # Three that run, one line for all that wait, and one each for what succeeded, failed and was cancelled.
    assert [(one.name, one.state, len(one.tasks)) for one in shown] == [
        ("nlp/sweep", "12 tasks", 3 + 1 + 3),
        ("nlp/zeta", "Running", 0),
    ]
    page = html_page(a_page(jobs=shown))
    assert page.count(">nlp/sweep.") == 0
    assert "Tasks of nlp/sweep" in page


def test_a_finished_job_is_not_among_those_now() -> None:
    made = settled(gang(2, spares=0), job("nlp/other", 8))
    assert [one.name for one in jobs_shown(made.desired, made.allocation.jobs, made.now)[0]] == [
        "nlp/gang",
        "nlp/other",
    ]
    made.end("nlp/other")
    made.settle()
    assert [one.name for one in jobs_shown(made.desired, made.allocation.jobs, made.now)[0]] == ["nlp/gang"]


def test_a_spare_is_neither_idle_nor_at_work() -> None:
    made = settled(gang(2, spares=1))
    (spare,) = spares_of(made)
    nodes = {one.name: one for one in nodes_shown(made.desired, made.allocation, made.observe())}
    assert nodes[spare].spares == frozenset(range(8))
    assert nodes[spare].cells == ("nlp",) * 8
    assert nodes[spare].held_by == ((JobKey("nlp/gang"), "0-7"),)
    assert sum(len(one.spares) for one in nodes.values()) == record_of(made).spares[0].mask.bit_count() == 8
    page = a_page(nodes=tuple(nodes.values()), spares=8)
    layers = [str(rack.drawing.body) for group in heat_map(page, palette(page.queues)) for rack in group.racks]
    assert sum(body.count('<g class="q0 spare">') for body in layers) == 1
    assert "spare, held for a repair" in html_page(page)
    assert "spare, held for a repair" not in html_page(a_page())
