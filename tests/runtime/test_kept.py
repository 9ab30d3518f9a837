"""What one process leaves to the next: the same plan from a cache, and nothing believed that does not belong to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from reconciler.documents.cache import ParseCache
from reconciler.documents.check import Later
from reconciler.documents.kept import again, kept
from reconciler.errors import NotFound
from reconciler.model.allocation import Allocation
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import JobKey
from reconciler.policy.verdicts import Memory
from reconciler.runtime import kept_verdicts, reading
from reconciler.runtime import preview as previews
from reconciler.runtime.beside import Beside, both
from reconciler.runtime.clone import open_clone
from reconciler.runtime.kept_verdicts import recall_verdicts
from reconciler.runtime.preview import part_of, preview
from reconciler.runtime.reading import DesiredReader, ReadDesired
from tests.documents import strategies as some
from tests.policy.house import policy_text, rule
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.runtime.test_policies import ASKS, POLICY, PRODUCTION, USERS, merged
from tests.store.world import MAIN

KEY = JobKey("nlp/a")


# --- values as bytes ---


@given(some.allocations(), some.observed())
def test_a_value_comes_back_equal(allocation: Allocation, observed: object) -> None:
    assert again(kept((allocation, observed))) == (allocation, observed)


@given(some.allocations())
def test_a_part_and_what_it_differs_from_are_the_whole(one: Allocation) -> None:
    first = next(iter(one.jobs), None)
    other = replace(one, generation=one.generation + 1, jobs={k: v for k, v in one.jobs.items() if k != first})
    for whole, known in ((one, other), (other, one), (one, one)):
        part = part_of(whole, known)
        again_whole = part.whole(known)
        assert (again_whole, list(again_whole.jobs)) == (whole, list(whole.jobs))
        assert set(part.records) == whole.jobs.keys() - known.jobs.keys()


# --- two processes ---


def test_both_results_come_from_two_processes() -> None:
    """In a process of its own: where another test left a thread behind, there would be no copy."""
    program = (
        "import os, json; from reconciler.runtime.beside import both; "
        "there, here = both(lambda: (os.getpid(), {'a': 1}), os.getpid); print(json.dumps([there, here, os.getpid()]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    there, here, own = json.loads(done.stdout)
    assert here == own
    assert there[1] == {"a": 1}
    assert (there[0] != here) == (len(os.sched_getaffinity(0)) > 1)


def test_without_need_or_beside_other_threads_there_is_no_copy() -> None:
    assert both(os.getpid, os.getpid, worth=False) == (os.getpid(), os.getpid())
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert both(os.getpid, os.getpid) == (os.getpid(), os.getpid())
    finally:
        done.set()
        thread.join()


def test_an_error_is_raised_as_without_a_copy(capfd: pytest.CaptureFixture[str]) -> None:
    def missing() -> None:
        raise NotFound("gone", code="PathNotFound")

    with pytest.raises(NotFound, match="gone"):
        both(missing, lambda: 1)
    with pytest.raises(ZeroDivisionError):
        both(lambda: 1, lambda: 1 // 0)
    assert capfd.readouterr().err == ""


def test_a_copy_that_dies_is_made_up_for() -> None:
    parent = os.getpid()
    assert both(lambda: os._exit(3) if os.getpid() != parent else "here", lambda: 1) == ("here", 1)


ASKED_TWICE = """
import json, os
from reconciler.runtime.beside import Beside
seen = []
def work(word):
    seen.append(word)
    return os.getpid(), list(seen)
with Beside(work) as copy:
    copy.ask("a")
    first = copy.answer()
    copy.ask("b")
    print(json.dumps([os.getpid(), first, copy.answer(), seen]))
"""


def test_a_copy_that_is_asked_again_remembers_what_it_did() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED_TWICE], capture_output=True, text=True, check=True, timeout=60)
    own, (first, one), (second, both_words), here = json.loads(done.stdout)
    assert (one, both_words) == (["a"], ["a", "b"])
    assert first == second
    assert (first != own) == (here == []) == (len(os.sched_getaffinity(0)) > 1)


def test_a_copy_that_dies_at_the_second_question_is_made_up_for() -> None:
    parent = os.getpid()

    def work(word: str) -> str:
        if word == "b" and os.getpid() != parent:
            os._exit(3)
        return word.upper()

    with Beside(work) as copy:
        for word in "abc":
            copy.ask(word)
            assert copy.answer() == word.upper()


def test_no_copy_is_left_when_an_error_ends_the_work() -> None:
    begun: list[int] = []

    def failing() -> None:
        with Beside[None, bool](lambda _: threading.Event().wait()) as copy:
            if copy._copy is not None:
                copy.ask(None)
                begun.append(copy._copy.pid)
            raise NotFound("gone", code="PathNotFound")

    with pytest.raises(NotFound):
        failing()
    assert [pid for pid in begun if Path(f"/proc/{pid}").exists()] == []


KILLED = """
import os, signal, sys
from reconciler.runtime.beside import Beside
def work(_):
    print(os.getpid(), flush=True)
    os.kill(owner, signal.SIGKILL)
    signal.pause()
owner = os.getpid()
with Beside(work) as copy:
    if copy._copy is None:
        sys.exit("no copy")
    copy.ask(None)
    signal.pause()
"""


def test_a_copy_ends_with_the_process_it_is_of_even_one_that_is_killed(tmp_path: Path) -> None:
    """Its standard output is open for as long as either of them is there."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor: there is no copy")
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, cwd=tmp_path, text=True,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}) as child:  # fmt: skip
        assert child.stdout is not None
        copy = int(child.stdout.readline())
        try:
            rest, _ = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.kill(copy, signal.SIGKILL)
            raise
    assert (child.returncode, rest) == (-signal.SIGKILL, "")


# --- verdicts ---


def begun(lab: Lab) -> Path:
    """Two jobs, one of which a policy holds; and a cache that a first reader filled."""
    lab.begin(**{POLICY: ASKS, **USERS, **jobs("b")})
    desk = lab.desk()
    desk.settle()
    lab.desire({job_file("a"): PRODUCTION})
    merged(lab, "Add a (#7)\n")
    desk.settle()
    assert desk.record("a").reason.code is ReasonCode.APPROVAL
    folder = lab.folder / "cache"
    folder.mkdir(mode=0o700)
    return folder / "documents.cache"


def read(lab: Lab, cache: Path, *, save: bool = True) -> tuple[ReadDesired, DesiredReader]:
    current = lab.generation()
    reader = DesiredReader(lab.remote.git, cache)
    tip = lab.remote.tip(MAIN)
    assert tip is not None
    found = reader.read(tip, current)
    assert found.verdicts is not None
    list(found.verdicts.holds(current.observed.provenance))
    if save:
        reader.save()
    return found, reader


def held(found: ReadDesired, lab: Lab) -> list[str]:
    assert found.verdicts is not None
    return list(found.verdicts.holds(lab.generation().observed.provenance))


def test_the_next_process_makes_no_model_of_a_job_and_comes_to_the_same(lab: Lab) -> None:
    cache = begun(lab)
    first, _ = read(lab, cache)
    second, _ = read(lab, cache)
    assert (second.desired, second.diagnostics, held(second, lab)) == (first.desired, first.diagnostics, [KEY])
    item = second.items[KEY]
    assert isinstance(item.read, Later)
    assert item.read._model is None
    assert item.model.spec.gpus == 8
    assert item.model is item.model


def test_another_policy_another_approval_or_another_file_is_looked_at_anew(lab: Lab) -> None:
    cache = begun(lab)
    read(lab, cache)
    desk = lab.desk("two")
    lab.desire({POLICY: policy_text(rule("object.spec.gpus != 8", reason="Not8"))})
    desk.settle()
    assert held(read(lab, cache)[0], lab) == ["nlp/a", "nlp/b"]
    lab.desire({POLICY: ASKS})
    desk.settle()
    assert held(read(lab, cache)[0], lab) == ["nlp/a"]
    lab.desire({job_file("a"): PRODUCTION + "  nice: 1\n"})
    merged(lab, "Again (#8)\n\nApproved-by: @ana-gh\n")
    desk.settle()
    assert held(read(lab, cache)[0], lab) == []
    lab.desire({job_file("b"): job_text("b", more="  priorityClass: production\n")})
    desk.settle()
    assert held(read(lab, cache)[0], lab) == ["nlp/b"]


@pytest.mark.parametrize("how", ["damaged", "cut", "by other code", "writable by others", "in a folder of others"])
def test_what_cannot_be_trusted_is_not_read(lab: Lab, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = begun(lab)
    read(lab, cache)
    file = cache.with_name("verdicts.cache")
    content = file.read_bytes()
    memory = Memory()
    recall_verdicts(file, ParseCache(), memory)
    assert KEY in memory.recalled  # it is there, and would be read
    if how == "damaged":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif how == "cut":
        file.write_bytes(content[:-10])
    elif how == "by other code":
        monkeypatch.setattr(kept_verdicts, "_code", lambda: b"\0" * 32)
    elif how == "writable by others":
        file.chmod(0o666)
    else:
        file.parent.chmod(0o777)
    memory = Memory()
    recall_verdicts(file, ParseCache(), memory)
    assert memory.recalled == {}
    assert held(read(lab, cache, save=False)[0], lab) == [KEY]


def test_two_processes_plan_as_one_does(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies asked in halves, the side without the change in a copy: which process worked it out cannot be seen."""
    begun(lab)
    base = lab.remote.tip(MAIN)
    more = "  priorityClass: production\n"
    head = lab.desire({POLICY: policy_text(rule("object.spec.gpus != 8", reason="Not8")), **jobs("d", "e", gpus=16),
                       job_file("c"): job_text("c", more=more)})  # fmt: skip
    clone, now = open_clone(lab.remote.path), lab.clock.now()
    monkeypatch.setattr(previews, "_LARGE", 10**9)
    one = preview(clone, head, now, base=base)
    monkeypatch.setattr(previews, "_LARGE", 1)
    assert preview(clone, head, now, base=base) == one
    assert {f.file for f in one.findings if f.code == "Not8"} >= {job_file("c")}


def test_two_processes_read_a_tree_as_one_does(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {job_file("x"): "x: [\n", job_file("y"): job_text("y").replace("gpus: 8", "gpus: many")}
    lab.begin(**jobs("a", "b", "c", "d"), **broken)
    commit = lab.generation().summary.desired_commit
    one = DesiredReader(lab.remote.git).read(commit, None)
    monkeypatch.setattr(reading, "_MANY", 2)
    two = DesiredReader(lab.remote.git).read(commit, None)
    assert (two.desired, two.diagnostics, two.read) == (one.desired, one.diagnostics, one.read)
    assert [d.place.file for d in two.diagnostics if d.is_error] == [job_file("x"), job_file("y")]
