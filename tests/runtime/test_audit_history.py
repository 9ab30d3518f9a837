"""Who had what, how much was used, what to look at: asked of a record with an eviction, a lost node and a merge."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.model.units import MINUTE, SECOND, Instant
from reconciler.render import page as page_module
from reconciler.render.heat import heat_map
from reconciler.render.page import html_page
from reconciler.render.page_values import NodeShown, Page, QueueShown, Sample, Share
from reconciler.render.palette import LOOKS, palette
from reconciler.runtime.audit.answers import Question, answers, explained, holders_at
from reconciler.runtime.audit.exceptions import exceptions
from reconciler.runtime.audit.glance import job_glance, masks
from reconciler.runtime.audit.history import Entry, asked_by, by_path
from reconciler.runtime.audit.index import Index, gpus_in, index_file, indexed
from reconciler.runtime.audit.picture import picture
from reconciler.runtime.audit.reel import frames
from reconciler.runtime.audit.scenes import labelled, scenes
from reconciler.runtime.audit.usage import Hours, usage
from reconciler.runtime.generation import read_generation
from reconciler.runtime.reading import DesiredReader
from reconciler.store.runner import Git
from reconciler.store.statecommit import Writer
from reconciler.store.walk import first_parents, write_commit_graph
from tests.runtime.lab import NODES, PROFILE, Lab, job_file, job_text
from tests.store.world import STATE, git, new_repository

HOUR = 3600 * SECOND
WITH_TEAM = job_text("sft", 16).replace("metadata: {name: sft}", "metadata: {name: sft, labels: {team: red}}")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Path:
    """sft runs and is lost with its node; big comes by a pull request, runs beside it; four GPUs more for tiny."""
    folder = tmp_path_factory.mktemp("kept")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.begin(**{job_file("sft"): WITH_TEAM})
    desk = lab.desk()
    desk.settle()
    lab.clock.advance(20 * MINUTE)
    lab.desire(
        {job_file("big"): job_text("big", 12)}, message="Train the big one (#88)\n\nReviewed-by: Eve <eve@lab>\n"
    )
    desk.settle()
    lab.clock.advance(10 * MINUTE)
    desk.engine.cluster.checkpoint("nlp/sft")
    lab.clock.advance(10 * MINUTE)
    desk.engine.cluster.finish("nlp/sft", 1, node="gpu-001")
    desk.settle()
    lab.clock.advance(10 * MINUTE)
    lab.desire({job_file("big"): None})
    desk.settle()
    return folder / "remote.git"


@pytest.fixture
def access(kept: Path) -> Git:
    index_file(Git(folder=kept, bare=True, protocols=frozenset())).unlink(missing_ok=True)
    return Git(folder=kept, bare=True, protocols=frozenset())


@pytest.fixture
def tip(kept: Path) -> str:
    return git(kept, "rev-parse", STATE).decode().strip()


@pytest.fixture
def index(access: Git, tip: str) -> Index:
    return indexed(access, tip)


def plain(index: Index) -> object:
    """An index without the order in which texts were numbered."""
    words = {
        "trigger",
        "desired",
        "job",
        "queue",
        "state",
        "phase",
        "code",
        "cause",
        "outcome",
        "place",
        "reserved",
        "preemptor",
        "person",
        "request",
        "asked",
    }
    tables = ({**index.commits}, {**index.events})
    return (
        index.ids,
        [{n: [index.texts[v] for v in c] if n in words else list(c) for n, c in table.items()} for table in tables],
        index.origins,
        index.left,
    )


def told(entries: list[Entry]) -> list[tuple[str, str, int]]:
    return [(entry.job, entry.action, entry.gpus) for entry in reversed(entries)]


# --- history ---


def test_a_job_by_its_path_and_by_the_index_are_the_same_story(access: Git, tip: str, index: Index) -> None:
    walked = list(asked_by(access, by_path(access, tip, "nlp/big"), "nlp/big"))
    assert told(walked)[:4] == [
        ("nlp/big", "place", 12),
        ("nlp/big", "start", 12),
        ("nlp/big", "running", 12),
        ("nlp/big", "stop", 12),
    ]
    assert {(entry.person, entry.request) for entry in walked[-3:]} == {("t@t", "88")}
    asked = explained(access, list(answers(index, Question(job="nlp/big"))))
    assert [replace(entry, asked="", person="", request="") for entry in asked] == [
        replace(entry, asked="", person="", request="") for entry in walked
    ]


@pytest.mark.parametrize("graph", [False, True])
def test_a_commit_graph_changes_nothing_but_the_time(access: Git, tip: str, kept: Path, graph: bool) -> None:
    plain = list(by_path(access, tip, "nlp/sft"))
    if graph:
        write_commit_graph(access)
        assert list((kept / "objects/info").glob("commit-graph*"))
    assert list(by_path(access, tip, "nlp/sft")) == plain
    assert plain[-1].action == "place"


def test_a_job_since_a_time_still_knows_what_was_before(access: Git, tip: str) -> None:
    whole = list(by_path(access, tip, "nlp/sft"))
    assert list(by_path(access, tip, "nlp/sft", since=whole[1].at)) == [e for e in whole if e.at >= whole[1].at]


@pytest.mark.parametrize(
    ("question", "jobs"),
    [
        (Question(request="88"), {"nlp/big"}),
        (Question(person="t@t"), {"nlp/sft", "nlp/big"}),
        (Question(person="t"), {"nlp/sft", "nlp/big"}),
        (Question(node="gpu-003"), {"nlp/big"}),
        (Question(node="gpu-003", gpu=7), {"nlp/big"}),
        (Question(node="gpu-00"), set()),
        (Question(queue="nlp"), {"nlp/sft", "nlp/big"}),
        (Question(queue="nl"), set()),
        (Question(queue="nlp", request="88", until=Instant(0)), set()),
    ],
)
def test_questions_to_the_index(index: Index, question: Question, jobs: set[str]) -> None:
    assert {entry.job for entry in answers(index, question)} == jobs


def test_who_held_a_gpu_and_which_decision_gave_it(index: Index) -> None:
    running = next(e for e in answers(index, Question(job="nlp/big")) if e.action == "running")
    placed = next(e for e in answers(index, Question(job="nlp/big")) if e.action == "place")
    holders = holders_at(index, Instant(running.at + SECOND))
    assert [(h.node, h.mask.bit_count(), h.job) for h in holders] == [
        ("gpu-001", 8, "nlp/sft"), ("gpu-002", 8, "nlp/sft"), ("gpu-003", 8, "nlp/big"), ("gpu-004", 4, "nlp/big"),
    ]  # fmt: skip
    assert {h.given.generation for h in holders if h.job == "nlp/big"} == {placed.generation}
    assert holders[2].given.request == "88"
    assert holders_at(index, Instant(running.at + SECOND), Question(node="gpu-004", gpu=7)) == []
    assert holders_at(index, Instant(5)) == []


# --- the index is a cache ---


def test_extending_the_index_equals_making_it_anew(access: Git, tip: str, index: Index) -> None:
    links = first_parents(access, tip)
    for cut in (1, len(links) // 2, len(links) - 1):
        index_file(access).unlink(missing_ok=True)
        assert indexed(access, links[cut - 1].id).tip == links[cut - 1].id
        assert plain(indexed(access, tip)) == plain(index)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-7], lambda b: b[:200] + b"x" + b[201:], lambda _: b"", lambda b: b"other" + b]
)
def test_a_damaged_index_is_made_anew(access: Git, tip: str, index: Index, damage: object) -> None:
    file = index_file(access)
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]  # a row of the table
    assert indexed(access, tip) == index


def test_an_index_of_a_branch_that_was_set_back_is_made_anew(access: Git, tip: str, index: Index) -> None:
    older = index.ids[3]
    assert indexed(access, older).ids == index.ids[:4]


def test_a_glance_says_what_the_loader_says(access: Git, tip: str) -> None:
    whole = read_generation(access, tip)
    for frame in frames(access, first_parents(access, tip)):
        assert frame.generation == read_generation(access, frame.meta.id)
        for key, record in frame.generation.allocation.jobs.items():
            seen = job_glance(frame.files[f"allocation/jobs/{key}.yaml"])
            assert (seen.state, seen.attempt, seen.code, seen.lost, seen.started) == (
                record.state, record.attempt, record.reason.code, record.lost_work, record.started or 0,
            )  # fmt: skip
            assert masks(seen.place) == (record.placement.masks if record.placement else {})
            assert gpus_in(seen.place) == (len(record.placement.ranks) if record.placement else 0)
    assert whole.commit == tip


# --- usage ---


@pytest.mark.parametrize("period", ["all", "day", "week", "month"])
@pytest.mark.parametrize("by", ["queue", "user", "type", "job", "total"])
def test_usage_adds_up_exactly_to_capacity_times_time(access: Git, index: Index, by: str, period: str) -> None:
    used = usage(index, scenes(access, index), by=by, period=period)
    span = index.commits["at"][-1] - index.commits["at"][0]
    assert sum(total.capacity for total in used.totals) == 32 * span
    for total in used.totals:
        assert total.capacity == total.hours.allocated + total.hours.reserved + total.idle + total.unavailable
        assert min(total.idle, total.unavailable, total.undeclared) >= 0
        assert total.hours.allocated == sum(row.hours.allocated for row in used.rows if row.period == total.period)


def test_usage_equals_what_the_record_says_generation_by_generation(access: Git, index: Index, tip: str) -> None:
    expected = 0
    links = first_parents(access, tip)
    generations = [read_generation(access, link.id) for link in links]
    for now, then in zip(generations[1:], generations, strict=False):
        held = sum(record.gpus_held for record in then.allocation.jobs.values())
        expected += held * (now.summary.decided_at - then.summary.decided_at)
    (total,) = usage(index, scenes(access, index)).totals
    assert total.hours.allocated == expected


def test_parts_of_a_time_add_up_to_the_whole(access: Git, index: Index) -> None:
    world = scenes(access, index)
    first, last = Instant(index.commits["at"][0]), Instant(index.commits["at"][-1])
    middle = Instant((first + last) // 2 + 1)
    whole = Hours()
    for since, until in ((first, middle), (middle, last)):
        (total,) = usage(index, world, since=since, until=until).totals
        whole.add(total.hours)
    assert whole == usage(index, world).totals[0].hours


def test_what_a_failure_threw_away_is_counted_from_the_last_checkpoint(access: Git, index: Index) -> None:
    rows = {row.key: row for row in usage(index, scenes(access, index), by="job").rows}
    lost = rows["nlp/sft"].hours.lost_failed // SECOND
    assert 16 * 600 <= lost <= 16 * 610
    assert rows["nlp/sft"].hours.running > rows["nlp/sft"].hours.lost_failed
    assert rows["nlp/big"].hours.lost_failed == 0


def test_idle_and_unavailable_of_each_gpu_type(lab: Lab) -> None:
    """Four nodes of eight: two of each type; one L40S node is cordoned after an hour, one H100 node is held from then on."""
    profile = PROFILE.replace("name: small", "name: inference").replace("H100", "L40S")
    mixed = NODES.replace("profile: small, rack: r02", "profile: inference, rack: r02")
    lab.begin(**{"cluster-state/inventory/inference.yaml": profile, "cluster-state/inventory/nodes.yaml": mixed})
    desk = lab.desk()
    lab.clock.advance(MINUTE)
    desk.settle()
    seen = desk.summary.decided_at
    lab.clock.advance(HOUR)
    lab.desire(
        {
            job_file("a"): job_text("a", 8, more="  gpuType: H100\n"),
            "cluster-state/inventory/nodes.yaml": mixed.replace(
                "inference, rack: r02}", "inference, rack: r02, overrides: {gpu-004: {cordoned: fan}}}"
            ),
        }
    )
    desk.settle()
    lab.clock.advance(HOUR)
    lab.desire({job_file("a"): None})
    desk.settle()
    access = lab.remote.git
    index = indexed(access, lab.tip)
    placed = next(
        index.commits["at"][index.events["commit"][e]]
        for e in range(len(index.events["commit"]))
        if index.text("place", e)
    )
    end = index.commits["at"][-1]
    (total,) = usage(index, scenes(access, index), since=seen, until=Instant(end)).totals
    types = {one.gpu_type: one for one in total.types}
    assert {kind: one.capacity for kind, one in types.items()} == dict.fromkeys(("H100", "L40S"), 16 * (end - seen))
    assert (types["H100"].unavailable, types["L40S"].allocated) == (0, 0)
    assert types["L40S"].unavailable == 8 * (end - placed)
    assert types["L40S"].idle == 16 * (end - seen) - 8 * (end - placed)
    for one in total.types:
        assert one.capacity == one.allocated + one.reserved + one.idle + one.unavailable
    assert total.hours.allocated == types["H100"].allocated > 0


def test_usage_by_label(access: Git, index: Index) -> None:
    used = usage(index, scenes(access, index), by="label:team", key_of=labelled(access, index, "team"))
    by_job = {row.key: row.hours.allocated for row in usage(index, scenes(access, index), by="job").rows}
    assert {row.key: row.hours.allocated for row in used.rows} == {"red": by_job["nlp/sft"], "": by_job["nlp/big"]}


# --- exceptions and the page ---


def test_what_a_person_should_look_at(access: Git, index: Index) -> None:
    found = [(one.kind, one.person) for one in exceptions(access, index)]
    assert ("NoPullRequest", "t@t") in found  # the removal of big
    assert not any(one.kind == "NoPullRequest" and "#88" in one.told for one in exceptions(access, index))
    assert any(one.kind == "Unsigned" and "#88" in one.told for one in exceptions(access, index))


def written(access: Git, index: Index, tip: str) -> str:
    current = read_generation(access, tip)
    desired = DesiredReader(access).recorded(tip, current.summary.desired_commit, current.frozen).desired
    assert desired is not None
    since, until = Instant(index.commits["at"][0]), Instant(index.commits["at"][-1])
    page = picture(access, index, current, desired, since=since, until=until, made=until, seal='<b>"&', sealed=False)
    text = html_page(page)
    assert html_page(page) == text
    return text


def test_the_page_loads_nothing_and_escapes_what_it_is_given(access: Git, index: Index, tip: str) -> None:
    text = written(access, index, tip)
    assert '<b>"&' not in text
    assert "&lt;b&gt;" in text
    assert "<script" not in text
    assert " style=" not in text  # the policy forbids it
    assert "http://" not in text
    assert "https://" not in text
    assert "nlp/big attempt 1, running: 8 GPUs of gpu-003" in text
    assert text.count("<section") == text.count("</section>") == 9


def a_thousand_nodes_and_a_month() -> Page:
    queues = tuple(f"team-{n}" for n in range(12))
    shown = tuple(
        QueueShown(
            name=name, held=600, guaranteed=500, ceiling=1000, waiting=3, allocated=10**18, running=10**18, lost=0
        )
        for name in queues
    )
    nodes = tuple(
        NodeShown(
            name=f"gpu-{n:04}",
            rack=f"r{n // 10:03}",
            group=f"sg{n // 250}",
            gpus=8,
            cells=tuple(queues[(n + i) % 12] for i in range(8)),
        )
        for n in range(1000)
    )
    slices = [(Instant(n * 12 * HOUR), Instant((n + 1) * 12 * HOUR)) for n in range(60)]
    shares = tuple(
        Share(rack=f"r{r:03}", since=begin, until=end, parts=tuple((name, 80_000) for name in queues))
        for r in range(100)
        for begin, end in slices
    )
    return Page(
        cluster="big", generation=9, commit="c" * 40, made=Instant(0), since=Instant(0), until=slices[-1][1], declared=8000, capacity=8000,
        held=7200, idle=800, stranded=100, phi=125_000, running=500, waiting=36, queues=shown, jobs=(), more_jobs=0, nodes=nodes, bars=(), shares=shares,
        samples=tuple(Sample(at=Instant(n * HOUR), phi=n * 1000, idle=100_000) for n in range(600)), decisions=(), more_decisions=0,
        losses=(), more_losses=0, lost_seconds=0, drift=(), seal="", sealed=True,
    )  # fmt: skip


_BOX = re.compile(r"M([\d.]+) ([\d.]+)h([\d.]+)v")


@pytest.mark.parametrize("nodes", [24, 90, 300, 1000, 1300])
def test_no_gpu_is_drawn_over_another_nor_left_out(nodes: int) -> None:
    page = a_thousand_nodes_and_a_month()
    page = replace(page, nodes=(page.nodes * 2)[:nodes])
    drawn = 0
    for group in heat_map(page, palette(page.queues)):
        for rack in group.racks:
            layers = re.findall(r'class="cell" d="([^"]+)"', str(rack.drawing.body))
            boxes = [tuple(map(float, box)) for layer in layers for box in _BOX.findall(layer)]
            assert len(boxes) == len(set(boxes)) == rack.gpus
            assert max(x + wide for x, _, wide in boxes) <= rack.drawing.width
            assert max(y + wide for _, y, wide in boxes) <= rack.drawing.height
            drawn += len(boxes)
    assert drawn == nodes * 8


def test_a_thousand_nodes_and_a_month_are_one_small_file() -> None:
    assert len(html_page(a_thousand_nodes_and_a_month()).encode()) < 3_000_000


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
@pytest.mark.parametrize("width", [480, 1280])
def test_a_browser_has_nothing_to_complain_of(access: Git, index: Index, tip: str, tmp_path: Path, width: int) -> None:
    file = tmp_path / "page.html"
    file.write_text(written(access, index, tip))
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--window-size={width},900",
        f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert "Who held which GPU" in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []


# --- what people must be able to read ---

_VARIABLE = re.compile(r"--([a-z0-9]+):(#[0-9a-f]{3,6})")


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str) -> None:
    style = (Path(page_module.__file__).parent / "templates" / "page.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    colours = dict(_VARIABLE.findall(light))
    if scheme == "dark":
        colours |= dict(_VARIABLE.findall(dark.split("*{", 1)[0]))
    for text in ("fg", "muted", "accent", "good", "bad", "warn"):
        for ground in ("bg", "card"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for number in range(LOOKS + 1):
        assert contrast(colours[f"q{number}"], "#fff") >= 4.5, number
    for mood in ("good", "bad", "warn"):
        assert contrast(colours[mood], colours[f"{mood}bg"]) >= 4.5, mood
