"""Requests in the whole loop: what is asked for is done at once and ends by itself; what may not be is refused, on record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.documents.request_file import wish_bytes
from reconciler.model.lifecycle import Cause, JobState, Outcome
from reconciler.model.reasons import ReasonCode
from reconciler.model.request import Refusal, Request, Standing
from reconciler.model.units import HOUR, Instant, NodeName, QueueName
from reconciler.runtime.audit.answers import Question, answers, explained
from reconciler.runtime.audit.exceptions import exceptions
from reconciler.runtime.audit.history import asked_by, by_path
from reconciler.runtime.audit.index import indexed
from reconciler.runtime.audit.verify import verify
from reconciler.store.runner import Git
from reconciler.store.signatures import allowed_signers_line
from tests.runtime.asking import QUEUES, TREE, People, stranger
from tests.runtime.lab import Desk, Lab, job_file, job_text, jobs
from tests.runtime.tampering import Change, Rewriter, replacing
from tests.runtime.test_policies import merged


@pytest.fixture
def people(lab: Lab) -> People:
    return People(lab)


def begun(people: People, *names: str, **files: str) -> Desk:
    people.lab.begin(**{**people.files, **jobs(*names), **files})
    desk = people.lab.desk()
    desk.settle()
    return desk


def land(people: People, changes: dict[str, str | None]) -> None:
    """A change that kim's pull request brought to main."""
    people.lab.desire(changes)
    merged(people.lab, "Change (#7)\n", author="kim")


def known(desk: Desk, name: str) -> Request:
    assert desk.reconciler.last is not None
    return desk.reconciler.last.generation.observed.requests[name]


def check_record(lab: Lab) -> None:
    assert [(one.generation, one.differs, one.why) for one in lab.replayed() if not one.identical] == []
    lab.check_chain()


# --- what is asked for is done ---


def test_a_cancelled_job_leaves_through_its_checkpoint_and_stays_ended(people: People) -> None:
    desk = begun(people, "a", "b")
    people.push("cancel-a", people.wish())
    desk.round()
    stopping = desk.record("a")
    assert (stopping.state, stopping.cause, stopping.reason.code) == (
        JobState.STOPPING, Cause.CANCELLED, ReasonCode.REQUESTED,
    )  # fmt: skip
    assert (stopping.reason.number("by"), stopping.reason.number("message")) == ("kim", "loss is NaN")
    desk.settle()
    ended = desk.record("a")
    assert (ended.state, ended.outcome, ended.attempt) == (JobState.FINISHED, Outcome.CANCELLED, 1)
    assert desk.record("b").state is JobState.RUNNING
    request = known(desk, "cancel-a")
    assert (request.standing, request.by, request.target) == (Standing.IN_FORCE, "kim", "nlp/a")
    (subject, body) = next(
        (meta.subject, meta.message) for meta in people.lab.log() if "Request cancel-a" in meta.message
    )
    assert subject == "Stop nlp/a"
    assert "Request cancel-a of kim is in force: cancel nlp/a, loss is NaN" in body
    check_record(people.lab)


def test_the_lasting_change_ends_the_request_and_its_revert_resumes_the_job(people: People) -> None:
    desk = begun(people, "a")
    people.push("cancel-a", people.wish())
    desk.settle()
    land(people, {job_file("a"): None})
    desk.settle()
    assert known(desk, "cancel-a").standing is Standing.LANDED
    assert "nlp/a" not in people.lab.generation().allocation.jobs
    land(people, dict(jobs("a")))
    desk.settle()
    back = desk.record("a")
    assert (back.state, back.attempt) == (JobState.RUNNING, 2)
    check_record(people.lab)


def test_a_request_ends_by_itself_and_the_files_count_again(people: People) -> None:
    desk = begun(people, "a")
    people.push("cancel-a", people.wish(hours=1))
    desk.settle()
    people.lab.clock.advance(HOUR)
    desk.settle()
    assert known(desk, "cancel-a").standing is Standing.EXPIRED
    assert (desk.record("a").state, desk.record("a").attempt) == (JobState.RUNNING, 2)
    assert people.refs() == []
    check_record(people.lab)


def test_a_job_that_waits_is_cancelled_and_suspended_too(people: People) -> None:
    desk = begun(
        people, **{job_file("a"): job_text("a", 32), job_file("b"): job_text("b"), job_file("c"): job_text("c")}
    )
    assert desk.record("b").state is JobState.PENDING
    people.push("cancel-b", people.wish(job="nlp/b"))
    people.push("suspend-c", people.wish("suspend", job="nlp/c"))
    desk.settle()
    assert (desk.record("b").state, desk.record("b").outcome) == (JobState.FINISHED, Outcome.CANCELLED)
    held = desk.record("c")
    assert (held.state, held.reason.code, held.reason.number("request")) == (
        JobState.HELD, ReasonCode.REQUESTED, "suspend-c",
    )  # fmt: skip
    check_record(people.lab)


def test_a_suspended_job_waits_until_the_file_says_so_itself(people: People) -> None:
    desk = begun(people, "a")
    people.push("suspend-a", people.wish("suspend"))
    desk.settle()
    assert desk.record("a").reason.code is ReasonCode.REQUESTED
    land(people, {job_file("a"): job_text("a", more="  suspend: true\n")})
    desk.settle()
    assert (known(desk, "suspend-a").standing, desk.record("a").reason.code) == (Standing.LANDED, ReasonCode.SUSPENDED)
    land(people, {job_file("a"): job_text("a")})
    desk.settle()
    assert (desk.record("a").state, desk.record("a").attempt) == (JobState.RUNNING, 2)
    check_record(people.lab)


def test_a_cordoned_node_takes_nothing_new_and_a_drained_one_is_left(people: People) -> None:
    desk = begun(people, "a")
    (node,) = desk.record("a").placement.nodes  # type: ignore[union-attr]  # it runs
    people.push("cordon-node", people.wish("cordon", nodes=(node,)), "pat")
    desk.settle()
    assert desk.record("a").state is JobState.RUNNING
    people.push("drain-node", people.wish("drain", nodes=(node,)), "pat")
    desk.round()
    assert desk.record("a").cause is Cause.MAINTENANCE
    assert desk.record("a").reason.number("window") == "request drain-node"
    desk.settle()
    moved = desk.record("a")
    assert moved.state is JobState.RUNNING
    assert moved.placement is not None
    assert node not in moved.placement.nodes
    check_record(people.lab)


@pytest.mark.parametrize(("queue", "by"), [("nlp", "lea"), ("", "pat")], ids=["a queue", "the cluster"])
def test_nothing_of_what_is_frozen_starts_and_what_runs_goes_on(people: People, queue: str, by: str) -> None:
    desk = begun(people, "a")
    people.push("freeze", people.wish("freeze", hours=1, queue=QueueName(queue)), by)
    desk.settle()
    land(people, dict(jobs("b")))
    desk.settle()
    assert desk.record("a").state is JobState.RUNNING
    assert (desk.record("b").state, desk.record("b").reason.code) == (JobState.HELD, ReasonCode.FROZEN)
    people.lab.clock.advance(HOUR)
    desk.settle()
    assert desk.record("b").state is JobState.RUNNING
    check_record(people.lab)


def test_an_array_is_cancelled_with_all_its_tasks_and_no_task_alone(people: People) -> None:
    text = job_text("s", 4, more="  array: {count: 6, maxParallel: 2}\n")
    desk = begun(people, **{job_file("s"): text})
    people.push("one", people.wish(job="nlp/s.3"))
    people.push("all", people.wish(job="nlp/s"))
    desk.settle()
    assert known(desk, "one").refusal is Refusal.UNKNOWN_TARGET
    assert {(r.state, r.outcome) for r in people.lab.generation().allocation.jobs.values()} == {
        (JobState.FINISHED, Outcome.CANCELLED)
    }
    people.lab.clock.advance(2 * HOUR)
    desk.settle()
    running = [r for r in people.lab.generation().allocation.jobs.values() if r.state is JobState.RUNNING]
    assert len(running) == 2
    check_record(people.lab)


def test_single_tasks_are_cancelled_until_the_file_says_so_itself(people: People) -> None:
    text = job_text("s", 4, more="  array: {count: 4}\n")
    desk = begun(people, **{job_file("s"): text})
    people.push("some", people.wish(job="nlp/s", tasks="1,3"))
    desk.settle()
    assert known(desk, "some").asked == "cancel nlp/s.1,3"
    assert [desk.record(f"s.{i}").state is JobState.RUNNING for i in range(4)] == [True, False, True, False]
    assert [desk.record(f"s.{i}").outcome for i in (1, 3)] == [Outcome.CANCELLED] * 2
    land(people, {job_file("s"): text.replace("count: 4", 'count: 4, cancelled: "1"')})
    desk.settle()
    assert known(desk, "some").standing is Standing.IN_FORCE, "task 3 is asked for by the request alone"
    land(people, {job_file("s"): text.replace("count: 4", 'count: 4, cancelled: "1,3"')})
    desk.settle()
    assert known(desk, "some").standing is Standing.LANDED
    assert [desk.record(f"s.{i}").state is JobState.RUNNING for i in range(4)] == [True, False, True, False]
    check_record(people.lab)


@pytest.mark.parametrize(
    ("ask", "tasks", "refusal"),
    [
        ("cancel", "4", Refusal.UNKNOWN_TARGET),
        ("suspend", "1", Refusal.UNKNOWN_TARGET),
        ("cancel", "1-1", Refusal.NOT_A_REQUEST),
        ("cancel", "3,1", Refusal.NOT_A_REQUEST),
        ("cancel", "all", Refusal.NOT_A_REQUEST),
    ],
    ids=["a task that is not there", "no task is suspended", "another spelling", "not rising", "no list"],
)
def test_tasks_that_cannot_be_meant_are_refused(people: People, ask: str, tasks: str, refusal: Refusal) -> None:
    desk = begun(people, **{job_file("s"): job_text("s", 4, more="  array: {count: 4}\n")})
    people.push("x", people.wish(ask, "nlp/s", tasks=tasks))
    desk.settle()
    assert known(desk, "x").refusal is refusal
    assert desk.reconciler.last is not None
    assert {r.state for r in desk.reconciler.last.generation.allocation.jobs.values()} == {JobState.RUNNING}


def test_the_record_alone_goes_on_with_a_request(people: People) -> None:
    """Another reconciler, or the same one after a crash, needs neither the ref nor the memory of the first."""
    desk = begun(people, "a")
    people.push("cancel-a", people.wish())
    desk.settle()
    folder = people.lab.remote.path / "refs" / "heads" / "request"
    (folder / "cancel-a").unlink()
    again = people.lab.desk("two", desk.engine.cluster)
    assert again.settle() == []
    assert again.record("a").outcome is Outcome.CANCELLED
    check_record(people.lab)


# --- what may not be is refused ---

Ask = Callable[[People], object]
REFUSED: list[tuple[str, Ask, Refusal]] = [
    ("no signature", lambda p: p.plant("x", {"request.yaml": content(p)}, None), Refusal.NOT_SIGNED),
    ("a stranger's key", lambda p: p.push("x", p.wish(), key=stranger(p.lab.folder)), Refusal.FORGED),
    ("another's signature", lambda p: p.plant("x", {"request.yaml": content(p)}, None, of=p.push("y", p.wish())),
     Refusal.FORGED),
    ("no authority over the queue", lambda p: p.push("x", p.wish(), "eve"), Refusal.NO_AUTHORITY),
    ("a member who freezes the queue", lambda p: p.push("x", p.wish("freeze", queue=QueueName("nlp"))),
     Refusal.NO_AUTHORITY),
    ("an admin who freezes the cluster", lambda p: p.push("x", p.wish("freeze"), "lea"), Refusal.NO_AUTHORITY),
    ("a member who drains a node", lambda p: p.push("x", p.wish("drain", nodes=(NodeName("gpu-001"),))),
     Refusal.NO_AUTHORITY),
    ("over already", lambda p: p.push("x", p.wish(hours=-1)), Refusal.EXPIRED),
    ("longer than a day", lambda p: p.push("x", p.wish(hours=25)), Refusal.TOO_LONG),
    ("what resumes", lambda p: p.push("x", p.wish("resume"), "pat"), Refusal.NOT_REDUCING),
    ("what raises", lambda p: p.push("x", p.wish("prioritize"), "pat"), Refusal.NOT_REDUCING),
    ("another cluster's", lambda p: p.push("x", p.wish(cluster="prod")), Refusal.OTHER_CLUSTER),
    ("a job there is not", lambda p: p.push("x", p.wish(job="nlp/z")), Refusal.UNKNOWN_TARGET),
    ("a node there is not", lambda p: p.push("x", p.wish("cordon", nodes=(NodeName("gpu-999"),)), "pat"),
     Refusal.UNKNOWN_TARGET),
    ("nodes beside a job", lambda p: p.push("x", p.wish(nodes=(NodeName("gpu-001"),)), "pat"), Refusal.UNKNOWN_TARGET),
    ("two files", lambda p: p.plant("x", {"request.yaml": content(p), "more": b""}, p.keys["kim"]),
     Refusal.NOT_A_REQUEST),
    ("a history", lambda p: p.plant("x", {"request.yaml": content(p)}, p.keys["kim"], parent=p.lab.remote.tip("main") or ""),
     Refusal.NOT_A_REQUEST),
    ("unreadable", lambda p: p.plant("x", {"request.yaml": b"a: &b [*b]\n"}, p.keys["kim"]), Refusal.NOT_A_REQUEST),
    ("unknown fields", lambda p: p.plant("x", {"request.yaml": content(p) + b"  priority: 9\n"}, p.keys["kim"]),
     Refusal.NOT_A_REQUEST),
    ("another's name", lambda p: p.plant("x", {"request.yaml": content(p, "y")}, p.keys["kim"]), Refusal.NOT_A_REQUEST),
]  # fmt: skip


def content(people: People, name: str = "x") -> bytes:
    return wish_bytes(name, people.wish())


@pytest.mark.parametrize(("ask", "refusal"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_may_not_be_is_refused_on_record(people: People, ask: Ask, refusal: Refusal) -> None:
    desk = begun(people, "a")
    before = desk.record("a")
    ask(people)
    stolen = "y" in people.refs()  # the signature is that of a good request, which is in force
    desk.settle()
    assert (desk.record("a") == before) is not stolen
    request = known(desk, "x")
    assert (request.standing, request.refusal) == (Standing.REFUSED, refusal)
    assert request.told
    assert "x" not in people.refs()
    assert [fields["refused"] for event, fields in desk.told if event == "request" and "refused" in fields] == [
        refusal.value
    ]
    assert any(
        f"Request x{' of ' + request.by if request.by else ''} is refused" in m.message for m in people.lab.log()
    )
    assert desk.settle() == []
    check_record(people.lab)


def test_a_revoked_key_asks_for_nothing(people: People) -> None:
    desk = begun(people, "a", **{"cluster-state/trust/revoked": people.keys["kim"].public_key() + "\n"})
    people.push("x", people.wish())
    desk.settle()
    assert known(desk, "x").refusal is Refusal.FORGED
    assert desk.record("a").state is JobState.RUNNING


def test_a_request_in_force_cannot_be_moved_or_taken_back(people: People) -> None:
    desk = begun(people, "a", "b")
    people.push("x", people.wish())
    desk.settle()
    people.push("x", replace(people.wish(job="nlp/b"), expires=Instant(people.lab.clock.now() + 1)))
    desk.settle()
    assert known(desk, "x").job == "nlp/a"
    assert desk.record("b").state is JobState.RUNNING


def test_a_key_brought_along_in_the_same_push_does_not_help(people: People, tmp_path: Path) -> None:
    """Authority comes from the desired tree that counts: a change of it that is withheld does not."""
    desk = begun(people, "a")
    opened = QUEUES.replace('["@acme/nlp"]', '["@acme/nlp", "@eve-gh"]')
    people.lab.desire({TREE: opened})
    merged(people.lab, "Let me in (#9)\n", author="eve")
    people.push("x", people.wish(), "eve")
    desk.settle()
    assert known(desk, "x").refusal is Refusal.NO_AUTHORITY
    assert desk.record("a").state is JobState.RUNNING


def test_what_is_over_is_forgotten_after_a_week(people: People) -> None:
    desk = begun(people, "a")
    people.push("x", people.wish(), "eve")
    desk.settle()
    people.lab.clock.advance(8 * 24 * HOUR)
    land(people, dict(jobs("b")))
    desk.settle()
    assert desk.reconciler.last is not None
    assert desk.reconciler.last.generation.observed.requests == {}
    check_record(people.lab)


# --- what the auditor sees ---


def audited(lab: Lab) -> list[str]:
    signers = allowed_signers_line("gangops@lab", lab.writer.signer.public_key())
    access = Git(folder=lab.remote.path, bare=True, protocols=frozenset({"file"}))
    found = verify(access, lab.tip, signers=signers.encode())
    assert len(found.judged) == len(lab.log())
    return [f"{one.check} {one.code} {one.told}" for one in found.findings]


def begun_with_trust(people: People) -> Desk:
    signers = allowed_signers_line("gangops@lab", people.lab.writer.signer.public_key())
    return begun(people, "a", "b", **{"cluster-state/trust/allowed_signers": signers})


def test_the_audit_checks_signatures_again_and_lists_requests(people: People) -> None:
    desk = begun_with_trust(people)
    people.push("cancel-a", people.wish(hours=1))
    people.push("over", people.wish(job="nlp/b"), "eve")
    desk.settle()
    people.lab.clock.advance(HOUR)
    desk.settle()
    assert audited(people.lab) == []
    access = Git(folder=people.lab.remote.path, bare=True, protocols=frozenset({"file"}))
    listed = [
        (one.kind, one.person, one.told) for one in exceptions(access, indexed(access, people.lab.tip))
        if one.kind.startswith("Request")
    ]  # fmt: skip
    assert listed == [
        ("Request", "kim@acme.org", "Request cancel-a of kim is in force: cancel nlp/a, loss is NaN"),
        ("RequestRefused", "eve@acme.org",
         ("Request over of eve is refused (NoAuthority: eve may not; who may: @acme/nlp, lea@acme.org, @acme/platform): "
          "cancel nlp/b, loss is NaN")),
    ]  # fmt: skip


def test_history_tells_who_asked_for_it_at_once(people: People) -> None:
    desk = begun(people, "a")
    people.push("cancel-a", people.wish())
    desk.settle()
    access = Git(folder=people.lab.remote.path, bare=True, protocols=frozenset({"file"}))
    walked = list(asked_by(access, by_path(access, people.lab.tip, "nlp/a"), "nlp/a"))
    stop = next(entry for entry in walked if entry.action == "stop")
    assert (stop.person, stop.code) == ("kim", "Requested")
    assert stop.why.startswith("cancelled by kim until 2026-01-01T")
    assert stop.why.endswith("(request cancel-a): loss is NaN")
    assert {entry.person for entry in walked if entry.action == "place"} == {"t@t"}
    listed = explained(access, list(answers(indexed(access, people.lab.tip), Question(job="nlp/a"))))
    assert [entry.person for entry in listed if entry.action == "stop"] == ["kim"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b"by: kim", b"by: pat", id="another signer"),
        pytest.param(b"loss is NaN", b"I said so", id="another file than was signed"),
        pytest.param(b"\njob: nlp/a\n", b"\njob: nlp/b\n", id="another job than the file says"),
    ],
)
def test_a_request_written_into_the_record_is_found_out(people: People, old: bytes, new: bytes) -> None:
    """Whoever holds the record's key may write that somebody asked; the person's own signature he cannot make."""
    desk = begun_with_trust(people)
    people.push("cancel-a", people.wish())
    desk.settle()
    at = next(i for i, meta in enumerate(reversed(people.lab.log())) if "Request cancel-a" in meta.message)
    Rewriter(people.lab).rewrite(at, Change(files=replacing("requests/cancel-a.yaml", old, new)))
    assert any("RequestForged" in one for one in audited(people.lab))
