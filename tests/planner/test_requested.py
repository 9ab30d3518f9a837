"""Requests laid over what is desired: what each makes of it, who counts, and that the judge sees what they forbid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from reconciler.model.job import SUBMITTER
from reconciler.model.observed import Person, Proof, Provenance
from reconciler.model.request import Ask, Request, Standing
from reconciler.model.units import HOUR, CommitId, Digest, Instant, JobKey, NodeName, QueueName
from reconciler.planner.requested import as_requested
from reconciler.planner.verify import Breach
from tests.planner.test_verify import NEW, OLD, Pair, a_start
from tests.planner.worlds import START, job, world

NOW = Instant(START + HOUR)


def asks(ask: Ask, name: str = "r", **fields: object) -> Request:
    said: dict[str, object] = {
        "id": name, "commit": CommitId("c" * 40), "ask": ask, "standing": Standing.IN_FORCE, "seen": Instant(START),
        "expires": Instant(NOW + 1), "by": "kim", **fields,
    }  # fmt: skip
    return Request(**said)  # type: ignore[arg-type]  # fields by name


def over(*requests: Request) -> dict[str, Request]:
    return {request.id: request for request in requests}


DESIRED = world(jobs=[job("nlp/a"), job("nlp/b"), job("vision/c")])


def test_without_a_request_in_force_it_is_the_very_same() -> None:
    requests = over(
        asks(Ask.FREEZE, "landed", standing=Standing.LANDED), asks(Ask.FREEZE, "refused", standing=Standing.REFUSED),
        asks(Ask.FREEZE, "over", expires=NOW),
    )  # fmt: skip
    assert as_requested(DESIRED, requests, NOW) is DESIRED


def test_a_cordon_closes_nodes_and_keeps_the_reason_a_file_gives() -> None:
    first = replace(DESIRED.inventory.nodes[0], cordoned="DC-1")
    desired = replace(DESIRED, inventory=replace(DESIRED.inventory, nodes=(first, *DESIRED.inventory.nodes[1:])))
    nodes = (NodeName("gpu-001"), NodeName("gpu-002"))
    found = as_requested(desired, over(asks(Ask.CORDON, nodes=nodes, reason="XID 79")), NOW)
    assert {node.name: node.cordoned for node in found.inventory.nodes if node.cordoned} == {
        "gpu-001": "DC-1", "gpu-002": "request r by kim: XID 79",
    }  # fmt: skip


def test_a_drain_is_a_window_from_when_it_was_seen_until_it_is_over() -> None:
    (window,) = as_requested(DESIRED, over(asks(Ask.DRAIN, nodes=(NodeName("gpu-001"),))), NOW).windows
    assert (window.node, window.begins, window.ends, window.drain) == ("gpu-001", START, NOW + 1, "checkpoint")
    assert (window.by, window.message) == ("kim", "no reason given")


@pytest.mark.parametrize(
    ("queue", "blocked", "asked"),
    [("nlp", "", ["nlp/a", "nlp/b"]), ("root", "", ["nlp/a", "nlp/b", "vision/c"]),
     ("", "request r", ["nlp/a", "nlp/b", "vision/c"])],
    ids=["a queue", "the queue around it", "the cluster"],
)  # fmt: skip
def test_a_freeze_is_of_all_below(queue: str, blocked: str, asked: list[str]) -> None:
    found = as_requested(DESIRED, over(asks(Ask.FREEZE, queue=QueueName(queue))), NOW)
    assert (sorted(found.asked), found.blocked) == (asked, blocked)


def test_what_says_most_about_a_job_counts_whatever_came_first() -> None:
    requests = over(
        asks(Ask.FREEZE, "a", queue=QueueName("nlp")), asks(Ask.SUSPEND, "b", job=JobKey("nlp/a")),
        asks(Ask.CANCEL, "c", job=JobKey("nlp/a"), seen=Instant(START + 1)), asks(Ask.CANCEL, "d", job=JobKey("nlp/z")),
    )  # fmt: skip
    found = as_requested(DESIRED, requests, NOW)
    assert {key: request.id for key, request in found.asked.items()} == {"nlp/a": "c", "nlp/b": "a"}


@pytest.mark.parametrize(
    ("tasks", "keys"),
    [("", ["nlp/s"]), ("2", ["nlp/s.2"]), ("0,2-4", ["nlp/s.0", "nlp/s.2", "nlp/s.3", "nlp/s.4"])],
)
def test_a_request_names_the_job_or_some_of_its_tasks(tasks: str, keys: list[str]) -> None:
    assert list(asks(Ask.CANCEL, job=JobKey("nlp/s"), tasks=tasks).keys) == keys


def test_single_tasks_are_cancelled_and_what_is_said_of_the_array_counts_for_the_rest() -> None:
    desired = replace(DESIRED, jobs={JobKey(f"nlp/s.{i}"): job(f"nlp/s.{i}") for i in range(3)})
    desired = replace(desired, arrays={JobKey("nlp/s"): job("nlp/s")})
    requests = over(
        asks(Ask.CANCEL, "some", job=JobKey("nlp/s"), tasks="1-2,7"), asks(Ask.SUSPEND, "all", job=JobKey("nlp/s")),
    )  # fmt: skip
    found = as_requested(desired, requests, NOW)
    about = {key: found.request_about(key) for key in desired.jobs}
    assert {key: request.id for key, request in about.items() if request} == {
        "nlp/s.0": "all", "nlp/s.1": "some", "nlp/s.2": "some",
    }  # fmt: skip


# --- the judge ---


def brought(key: JobKey, user: str = "kim", vouched: Proof = Proof.SIGNATURE) -> Provenance:
    person = Person(user=user)
    return Provenance(job=key, digest=Digest("d"), file="f", commit=CommitId("c" * 40), author=person,
                      submitter=person, vouched=vouched)  # fmt: skip


def of_kim(pair: Pair, vouched: Proof = Proof.SIGNATURE) -> Pair:
    provenance = {key: brought(key, vouched=vouched) for key in (NEW, OLD)}
    return replace(pair, observed=replace(pair.observed, provenance=provenance))


def limited(pair: Pair, **limits: int) -> Pair:
    def changed(name: str) -> Pair:
        queues = dict(pair.desired.quotas.queues)
        queues[QueueName(name)] = replace(queues[QueueName(name)], **limits)  # type: ignore[arg-type]  # fields by name
        return pair.declared(lambda d: replace(d, quotas=replace(d.quotas, queues=queues)))

    return changed("nlp")


def as_submitter(pair: Pair, **accounts: str) -> Pair:
    run = replace(pair.desired.jobs[NEW].run, user=SUBMITTER)
    return pair.asked(NEW, run=run).declared(lambda d: replace(d, accounts=accounts))


def asked_over(pair: Pair, request: Request) -> Pair:
    return pair.declared(lambda d: as_requested(d, over(request), NOW))


JUDGED: list[tuple[str, Callable[[], Pair], list[Breach]]] = [
    ("a cancelled job starts", lambda: asked_over(a_start(), asks(Ask.CANCEL, job=NEW)), [Breach.NOT_WANTED]),
    ("a suspended job starts", lambda: asked_over(a_start(), asks(Ask.SUSPEND, job=NEW)), [Breach.NOT_WANTED]),
    ("a job of a frozen queue starts", lambda: asked_over(a_start(), asks(Ask.FREEZE, queue=QueueName("nlp"))),
     [Breach.ADMISSIONS_FROZEN]),
    ("another queue is frozen", lambda: asked_over(a_start(), asks(Ask.FREEZE, queue=QueueName("vision"))), []),
    ("more GPUs than a person may hold", lambda: of_kim(limited(a_start(), per_user_gpus=23)), [Breach.USER_LIMIT]),
    ("as many as a person may hold", lambda: of_kim(limited(a_start(), per_user_gpus=24)), []),
    ("more jobs than a person may have", lambda: of_kim(limited(a_start(), per_user_jobs=1)), [Breach.USER_LIMIT]),
    ("as the submitter without an account", lambda: of_kim(as_submitter(a_start(), ben="uben")), [Breach.NO_ACCOUNT]),
    ("as a submitter whom nobody vouches for", lambda: of_kim(as_submitter(a_start(), kim="ukim"), Proof.NONE),
     [Breach.NO_ACCOUNT]),
    ("as the submitter", lambda: of_kim(as_submitter(a_start(), kim="ukim")), []),
]  # fmt: skip


@pytest.mark.parametrize(("pair", "found"), [row[1:] for row in JUDGED], ids=[row[0] for row in JUDGED])
def test_the_judge_sees_it(pair: Callable[[], Pair], found: list[Breach]) -> None:
    assert pair().judged() == found
