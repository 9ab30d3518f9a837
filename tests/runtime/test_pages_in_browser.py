"""The pages in a real browser: silent, self-contained, reachable by keyboard, readable in both schemes and any width."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.model.units import Instant
from reconciler.render.page import html_page
from reconciler.runtime.audit.index import indexed
from reconciler.runtime.audit.picture import picture
from reconciler.runtime.generation import read_generation
from reconciler.runtime.live_render import rendered
from reconciler.runtime.reading import DesiredReader
from reconciler.store.runner import Git
from tests.generated import generate
from tests.runtime.browser import CONTRAST, PROGRAM, chromium
from tests.store.world import STATE, git

pytestmark = [pytest.mark.skipif(not PROGRAM, reason="needs chromium"), pytest.mark.timeout(300)]
REACHABLE = "a[href],summary,[tabindex='0']"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report, and the live pages of a cluster, a job and a node, as files."""
    folder = tmp_path_factory.mktemp("pages")
    generate(folder / "record.git", 60, 12)
    access = Git(folder=folder / "record.git", bare=True, protocols=frozenset())
    tip = git(folder / "record.git", "rev-parse", STATE).decode().strip()
    current = read_generation(access, tip)
    desired = DesiredReader(access).recorded(tip, current.summary.desired_commit, current.frozen).desired
    assert desired is not None
    index = indexed(access, tip)
    since, until = Instant(index.commits["at"][0]), Instant(index.commits["at"][-1])
    report = picture(access, index, current, desired, since=since, until=until, made=until, seal="x", sealed=True)
    job = next(key for key, record in current.allocation.jobs.items() if record.gpus_held)
    found = {
        "report": html_page(report),
        "live": rendered(folder / "record.git", tip, "", "", until),
        "job": rendered(folder / "record.git", tip, "job", job, until),
        "node": rendered(folder / "record.git", tip, "node", "gpu-003", until),
    }
    for name, text in found.items():
        assert text is not None
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in found}


@pytest.mark.parametrize("name", ["report", "live", "job", "node"])
async def test_a_page_is_silent_alone_and_readable(pages: dict[str, Path], name: str, tmp_path: Path) -> None:
    async with chromium(tmp_path) as tab:
        await tab.look(width=1280, dark=False)
        await tab.open(pages[name].as_uri())
        for dark in (False, True):
            for width in (420, 1280):
                await tab.look(width=width, dark=dark)
                assert await tab.value(CONTRAST) == []
                # Pictures and tables scroll in their own frames, never the page sideways.
                assert await tab.value("document.documentElement.scrollWidth - innerWidth") <= 0
        assert tab.said == []
        assert tab.asked == [pages[name].as_uri()]


@pytest.mark.parametrize("name", ["report", "node"])
async def test_everything_is_reached_with_the_keyboard_and_seen_to_be(
    pages: dict[str, Path], name: str, tmp_path: Path
) -> None:
    async with chromium(tmp_path) as tab:
        await tab.look(width=420, dark=False)
        await tab.open(pages[name].as_uri())
        await tab.value("document.querySelectorAll('details').forEach(one => one.open = true)")
        count = await tab.value(f'document.querySelectorAll("{REACHABLE}").length')
        assert count >= 3
        for number in range(count):
            await tab.press("Tab")
            at = f'[...document.querySelectorAll("{REACHABLE}")].indexOf(document.activeElement)'
            assert await tab.value(at) == number
            assert await tab.value("getComputedStyle(document.activeElement).outlineStyle") != "none"


async def test_enter_opens_a_table(pages: dict[str, Path], tmp_path: Path) -> None:
    async with chromium(tmp_path) as tab:
        await tab.look(width=1280, dark=False)
        await tab.open(pages["report"].as_uri())
        await tab.value("document.querySelector('summary').focus()")
        await tab.press("Enter")
        assert await tab.value("document.querySelector('details').open") is True
