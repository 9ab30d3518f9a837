"""The pages of a running reconciler: read-only, drawn beside the loop, kept until the next generation."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.runtime.live import LivePages
from reconciler.runtime.live_render import main
from reconciler.runtime.status_server import LoopMetrics, StatusServer
from tests.runtime.lab import Desk, Lab, jobs
from tests.runtime.test_status_server import WELL


class Counting(LivePages):
    """Pages that count how often one was drawn."""

    drawn = 0

    async def _run(self, *words: str) -> tuple[int, bytes]:
        type(self).drawn += 1
        return await super()._run(*words)


class Shown:
    """A reconciler with its status server."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.desk: Desk = lab.desk()
        Counting.drawn = 0
        self.server = StatusServer(lambda: WELL, LoopMetrics(), pages=Counting(self.desk.mirror.folder, self.newest))
        self.server.start()

    def newest(self) -> str:
        last = self.desk.reconciler.last
        return str(last.generation.commit) if last else ""

    def get(self, path: str, *, method: str = "GET", tag: str = "") -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection(*self.server.address, timeout=60)
        connection.request(method, path, headers={"If-None-Match": tag} if tag else {})
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read().decode()
        connection.close()
        return found


@pytest.fixture
def shown(lab: Lab) -> Iterator[Shown]:
    lab.begin(**jobs("sft", gpus=12))
    found = Shown(lab)
    yield found
    found.server.stop()


def test_before_the_first_round_there_is_nothing_to_see(shown: Shown) -> None:
    status, _, body = shown.get("/")
    assert (status, body) == (503, "The reconciler has not made its first round yet; try again soon.\n")


def test_the_cluster_a_job_and_a_node_and_the_way_between_them(shown: Shown) -> None:
    shown.desk.settle()
    status, headers, page = shown.get("/")
    assert status == 200
    assert "Who held which GPU" in page
    assert '<a href="/jobs/nlp/sft">nlp/sft</a>' in page
    assert '<a href="/nodes/gpu-001">gpu-001</a>' in page
    status, _, page = shown.get("/jobs/nlp/sft")
    assert status == 200
    assert "<li>Running: all 12 ranks started</li>" in page
    assert re.findall(r'<a href="/nodes/[^"]+">([^<]+)</a></td><td class="by">([^<]+)</td><td class="by">([^<]+)<', page) == [
        ("gpu-001", "0-7", "its ranks"), ("gpu-002", "0-3", "its ranks"),
    ]  # fmt: skip
    assert '<h2 id="attempts">Attempts</h2>' in page
    assert re.findall(r"<td>(place|start|running)</td>", page) == ["running", "start", "place"]
    status, _, page = shown.get("/nodes/gpu-002")
    held = re.findall(
        r'<td class="n">(\d)</td>.*?<td class="name">(?:<a [^>]+>)?([^<]+)', page.partition("What was decided")[0]
    )
    assert held == [(str(gpu), "nlp/sft" if gpu < 4 else "idle") for gpu in range(8)]
    policy = headers["Content-Security-Policy"]
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[A-Za-z0-9+/=]+'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        policy,
    )
    assert (headers["X-Content-Type-Options"], headers["Content-Type"]) == ("nosniff", "text/html; charset=utf-8")
    assert "<script" not in page
    assert " style=" not in page


def test_a_page_is_drawn_once_a_generation(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    shown.desk.settle()
    _, headers, first = shown.get("/nodes/gpu-001")
    assert shown.get("/nodes/gpu-001")[2] == first
    assert Counting.drawn == 1
    status, _, body = shown.get("/nodes/gpu-001", tag=headers["ETag"])
    assert (status, body) == (304, "")
    monkeypatch.setattr("reconciler.runtime.live._OLD_ENOUGH", 0.0)
    shown.lab.desire(jobs("two", gpus=16))
    shown.desk.settle()
    assert shown.get("/nodes/gpu-001", tag=headers["ETag"])[0] == 200
    assert Counting.drawn == 2


def test_while_generations_follow_each_other_quickly_a_page_may_be_a_little_old(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.runtime.live._OLD_ENOUGH", 3600.0)
    shown.desk.settle()
    first = shown.get("/nodes/gpu-001")[2]
    shown.lab.desire(jobs("two", gpus=16))
    shown.desk.settle()
    assert shown.get("/nodes/gpu-001")[2] == first
    assert Counting.drawn == 1


@pytest.mark.parametrize(
    "path",
    ["/jobs/nlp/none", "/nodes/none", "/nodes/..%2f..%2fetc", "/nodes/%22%3E%3Cscript%3E", "/nodes/--help", "/jobs/a/b/c"],
)  # fmt: skip
def test_what_is_not_there(shown: Shown, path: str) -> None:
    shown.desk.settle()
    status, headers, body = shown.get(path)
    assert status == 404
    assert "<" not in body
    assert headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(shown: Shown, method: str) -> None:
    shown.desk.settle()
    assert shown.get("/", method=method)[0] == 405


def test_a_job_that_is_gone_still_has_its_history(shown: Shown) -> None:
    shown.desk.settle()
    shown.lab.desire(dict.fromkeys(jobs("sft")))
    shown.desk.settle()
    status, _, page = shown.get("/jobs/nlp/sft")
    assert status == 200
    assert "<td>place</td>" in page


def test_a_clone_that_cannot_be_read_is_said(shown: Shown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown.desk.settle()
    assert main(str(tmp_path / "nowhere"), shown.newest()) == 1
    assert capsys.readouterr().out == ""
