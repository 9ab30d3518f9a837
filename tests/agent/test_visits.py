"""People look into jobs: a real server, a real agent, real keys; who does not hold the job is told no, twice over."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconciler.agent.admission import Challenges, VisitRefused, new_challenge, read_request, signer_among
from reconciler.agent.loglines import Printed
from reconciler.errors import NotFound
from reconciler.runtime import remote_logs
from reconciler.runtime.admitting import Doorkeeper
from reconciler.runtime.remote_logs import Wanted, remote_lines
from reconciler.runtime.visiting import NotAdmitted, sign, visit
from reconciler.wire import AttemptOrder, VisitRequest, encode

from .conftest import ROOT, Agents, StateRepo, make_key, running
from .house import JOB, HouseLab, holder
from .test_run import until

PRINTER = "import os, time; print('rank', os.environ['RANK'], 'is here', flush=True); time.sleep(60)"


@pytest.fixture
def lab(tmp_path: Path, agents: Agents, repo: StateRepo) -> Iterator[HouseLab]:
    made = HouseLab(tmp_path / "house", repo, agents)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()


def printing(order: AttemptOrder) -> AttemptOrder:
    return running(order, command=[sys.executable, "-c", PRINTER])


def texts(lines: Iterator[Printed]) -> list[str]:
    return [line.text for line in lines]


# --- the judgement ----------------------------------------------------------------------------------------------------

NOW = 1_764_547_200_000_000_000
ASKED = VisitRequest(kind="logs", cluster="c", node="n", job="nlp/a", challenge=new_challenge(NOW))


def test_a_request_signed_by_a_holder_names_the_user(tmp_path: Path) -> None:
    ada, bob = make_key(tmp_path, "ada"), make_key(tmp_path, "bob")
    content = encode(ASKED)
    holders = [holder("bob", bob), holder("ada", ada)]
    assert signer_among(content, sign(ada, content), holders) == "ada"
    assert read_request(content, sign(ada, content), NOW) == ASKED


@pytest.mark.parametrize(
    "case", ["another key", "other bytes", "another purpose", "nobody holds it", "a line with options"]
)
def test_anything_else_is_not(tmp_path: Path, case: str) -> None:
    ada, bob = make_key(tmp_path, "ada"), make_key(tmp_path, "bob")
    content, holders = encode(ASKED), [holder("ada", ada)]
    signature = sign(bob if case == "another key" else ada, content)
    if case == "other bytes":
        content = encode(replace(ASKED, kind="shell"))
    elif case == "another purpose":
        (tmp_path / "x").write_bytes(content)
        subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", str(ada), str(tmp_path / "x")], check=True)
        signature = (tmp_path / "x.sig").read_text()
    elif case == "nobody holds it":
        holders = []
    elif case == "a line with options":
        holders = [f"ada cert-authority {holder('ada', ada).partition(' ')[2]}"]
    with pytest.raises(VisitRefused) as caught:
        signer_among(content, signature, holders)
    assert caught.value.code == "NotHeld"


@pytest.mark.parametrize(
    ("changed", "later", "code"),
    [
        ({}, 121, "OldChallenge"),
        ({}, -121, "OldChallenge"),
        ({"challenge": "soon"}, 0, "OldChallenge"),
        ({"kind": "root"}, 0, "BadRequest"),
        ({"job": "nlp/../../etc"}, 0, "BadRequest"),
        ({"job": "/etc"}, 0, "BadRequest"),
        ({"argv": ["x" * 20_000]}, 0, "BadRequest"),
    ],
)
def test_requests_that_are_not_even_looked_at(
    tmp_path: Path, changed: dict[str, object], later: int, code: str
) -> None:
    content = encode(replace(ASKED, **changed))  # type: ignore[arg-type]  # fields by name
    with pytest.raises(VisitRefused) as caught:
        read_request(content, sign(make_key(tmp_path, "ada"), content), NOW + later * 10**9)
    assert caught.value.code == code


def test_a_challenge_is_good_once() -> None:
    challenges = Challenges()
    challenges.use("a")
    challenges.use("b")
    with pytest.raises(VisitRefused) as caught:
        challenges.use("a")
    assert caught.value.code == "OldChallenge"


# --- logs through the agent -------------------------------------------------------------------------------------------


def test_who_holds_the_job_reads_its_logs_through_the_agent(
    lab: HouseLab, agents: Agents, order: AttemptOrder, tmp_path: Path
) -> None:
    agents.start()
    lab.run(printing(order))
    until(
        lambda: all((tmp_path / f"logs/nlp/train/1/{rank}.log").stat().st_size for rank in (0, 1)), "both ranks print"
    )
    found = list(remote_lines(lab.door(), Wanted(job=JOB)))
    assert sorted((line.rank, line.text) for line in found) == [(0, "rank 0 is here"), (1, "rank 1 is here")]
    assert [line.at for line in found] == sorted(line.at for line in found)
    assert found[0].at > 1_764_000_000_000_000_000
    assert texts(remote_lines(lab.door(), Wanted(job=JOB, rank=1))) == ["rank 1 is here"]
    with pytest.raises(NotFound) as caught:
        list(remote_lines(lab.door(), Wanted(job=JOB, attempt=7)))
    assert caught.value.code == "LogsMissing"
    assert [fields["user"] for event, fields in lab.told if event == "visit"] == ["ada"] * 3
    assert lab.engine.visits()["logs"] == 3


def test_who_does_not_is_refused_by_the_server_and_it_is_counted_and_told(
    lab: HouseLab, agents: Agents, order: AttemptOrder
) -> None:
    agents.start()
    lab.run(printing(order))
    with pytest.raises(NotAdmitted) as caught:
        list(remote_lines(lab.door(lab.bob), Wanted(job=JOB)))
    assert caught.value.code == "NotHeld"
    assert lab.engine.visits() == {"NotHeld": 1}
    assert [(event, fields["code"]) for event, fields in lab.told] == [("visit-refused", "NotHeld")]


def test_a_server_that_lets_anybody_in_is_not_believed_by_the_node(
    lab: HouseLab, agents: Agents, order: AttemptOrder
) -> None:
    agents.start()
    lab.run(printing(order))
    lab.holders = [holder("ada", lab.ada), holder("bob", lab.bob)]  # the server's word alone; the orders say otherwise
    with pytest.raises(NotAdmitted) as caught:
        list(remote_lines(lab.door(lab.bob), Wanted(job=JOB)))
    assert caught.value.code == "NotHeld"
    assert lab.engine.visits() == {"logs": 1}, "the server had let him in"
    assert "a visit was refused" in agents.log()


def test_a_server_that_shows_a_request_twice_gets_one_visit_of_the_node(
    lab: HouseLab, agents: Agents, order: AttemptOrder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agents.start()
    lab.run(printing(order))
    challenge = new_challenge(time.time_ns())
    monkeypatch.setattr(Doorkeeper, "challenge", lambda *_: challenge)
    monkeypatch.setattr(Challenges, "use", lambda *_: None)  # the server's: the agent is another process
    until(lambda: (tmp_path / "logs/nlp/train/1/0.log").stat().st_size, "rank 0 prints")
    assert texts(remote_lines(lab.door(), Wanted(job=JOB, rank=0))) == ["rank 0 is here"]
    with pytest.raises(NotAdmitted) as caught:
        list(remote_lines(lab.door(), Wanted(job=JOB, rank=0)))
    assert caught.value.code == "OldChallenge"
    assert lab.engine.visits() == {"logs": 2}, "the server had let both in"


def test_logs_are_read_when_the_job_is_over_and_also_by_an_agent_started_since(
    lab: HouseLab, agents: Agents, order: AttemptOrder, tmp_path: Path
) -> None:
    first = agents.start()
    lab.run(printing(order))
    until(
        lambda: all((tmp_path / f"logs/nlp/train/1/{rank}.log").stat().st_size for rank in (0, 1)), "both ranks print"
    )
    lab.order(running(printing(order), "stop"))
    lab.wait_for("Gone")
    lab.order()
    first.terminate()
    first.wait()
    before = len(agents.log())
    agents.start()
    until(lambda: "linked to" in agents.log()[before:], "the new agent is there")
    assert sorted(texts(remote_lines(lab.door(), Wanted(job=JOB)))) == ["rank 0 is here", "rank 1 is here"]


def test_following_shows_what_comes_and_goes_on_when_the_agent_is_restarted(
    lab: HouseLab, agents: Agents, order: AttemptOrder, tmp_path: Path
) -> None:
    agent = agents.start()
    lab.run(printing(order))
    log = tmp_path / "logs/nlp/train/1/0.log"
    until(lambda: log.stat().st_size, "rank 0 prints")
    over = threading.Event()
    lines = remote_lines(lab.door(), Wanted(job=JOB, rank=0, following=True, over=over.is_set))
    assert next(lines).text == "rank 0 is here"

    def add(text: str) -> None:
        with log.open("a") as stream:
            stream.write(text)

    add("second\n")
    assert next(lines).text == "second"
    agent.kill()
    agent.wait()
    add("third\n")
    agents.start()
    assert next(lines).text == "third"
    again = tmp_path / "logs/nlp/train/2"
    again.mkdir()
    (again / "0.log").write_text("resumed\n")
    found = next(lines)
    assert (found.attempt, found.text) == (2, "resumed")
    over.set()
    assert list(itertools.islice(lines, 1)) == []


def test_an_agent_that_has_just_been_started_is_asked_again(
    lab: HouseLab, agents: Agents, order: AttemptOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.start()
    lab.run(printing(order))
    tries: list[str] = []

    @asynccontextmanager
    async def hasty(*args: Any, **fields: Any) -> AsyncIterator[object]:
        tries.append(fields["job"])
        if len(tries) == 1:
            raise NotAdmitted("this agent has just been started: ask again", code="JustStarted")
        async with visit(*args, **fields) as line:
            yield line

    monkeypatch.setattr(remote_logs, "visit", hasty)
    monkeypatch.setattr(remote_logs, "_AGAIN_SECONDS", 0)
    until(
        lambda: set(texts(remote_lines(lab.door(), Wanted(job=JOB)))) == {"rank 0 is here", "rank 1 is here"}, "lines"
    )
    assert len(tries) > 1


def test_a_job_that_nobody_knows(lab: HouseLab, agents: Agents) -> None:
    agents.start()
    lab.order()
    with pytest.raises(NotAdmitted) as caught:
        list(remote_lines(lab.door(), Wanted(job="nlp/other")))
    assert caught.value.code == "UnknownJob"


def test_a_node_that_does_not_come_is_said_to_be_silent(
    lab: HouseLab, order: AttemptOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.engines.visits.MEETING_SECONDS", 0.3)
    lab.order(order)
    with pytest.raises(NotAdmitted) as caught:
        list(remote_lines(lab.door(), Wanted(job=JOB)))
    assert caught.value.code == "NodeSilent"


def test_the_verb_asks_an_agent_where_no_folder_is_mounted(
    lab: HouseLab, agents: Agents, order: AttemptOrder, tmp_path: Path
) -> None:
    agents.start()
    lab.run(printing(order))
    until(lambda: (tmp_path / "logs/nlp/train/1/1.log").stat().st_size, "rank 1 prints")
    door = lab.door()

    def logs(key: Path) -> subprocess.CompletedProcess[str]:
        named = ["--server", door.server, "--ca", str(door.authority), "--key", str(key), "--dir", "/not/mounted"]
        command = [sys.executable, "-m", "reconciler.cli", "logs", JOB, "--rank", "1", *named]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    done = logs(lab.ada)
    assert (done.returncode, done.stdout) == (0, "rank 1 is here\n"), done.stderr
    done = logs(lab.bob)
    assert (done.returncode, done.stdout) == (4, "")
    assert "NotHeld" in done.stderr
