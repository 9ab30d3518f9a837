"""`--now`: a signed request at the remote and the lasting change beside it, which a real reconciler then takes."""

from __future__ import annotations

import json

import pytest

from reconciler.cli.requesting import POLL_SECONDS
from reconciler.errors import ExitStatus
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.reasons import ReasonCode
from reconciler.model.request import Standing
from reconciler.store.signatures import Signer, make_key
from tests.cli.people import Person, codes, person_at
from tests.runtime.lab import Desk, Lab, jobs
from tests.store.world import git, text


def user(key: Signer) -> str:
    return (
        "apiVersion: gangops/v1\nkind: User\nmetadata: {name: ada}\n"
        f"spec: {{emails: [ada@example.org], sshKeys: ['{key.public_key()}']}}\n"
    )


@pytest.fixture
def ada(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Person:
    """Ada, whom the cluster knows by her key, with a job that runs. The verbs' clock is the cluster's."""
    monkeypatch.setattr("time.time_ns", lab.clock.now)
    key = make_key(lab.folder / "ada-key", "ada")
    lab.begin(**{"cluster-state/users/ada.yaml": user(key), **jobs("a", "b")})
    lab.desk("zero").settle()
    person = person_at(lab, monkeypatch)
    with (person.home / "gitconfig").open("a") as settings:
        settings.write(f"[gpg]\n format = ssh\n[user]\n signingKey = {key.key}.pub\n")
    return person


def takes_over(lab: Lab) -> Desk:
    """A reconciler that goes on from the record."""
    desk = lab.desk("one")
    desk.settle()
    return desk


def requests(lab: Lab) -> list[str]:
    return text(lab.remote.path, "for-each-ref", "--format=%(refname:short)", "refs/heads/request/").split()


def test_cancel_now_asks_at_once_and_proposes_the_lasting_change(ada: Person) -> None:
    told = ada.done("cancel", "a", "--now", "--reason", "loss is NaN", "--for", "2h", "--yes")
    (request,) = requests(ada.lab)
    assert f"Asked   {request}  cancel nlp/a until 2026-01-01 02:" in told.stdout
    assert ada.changed(ada.only_branch()) == ["D cluster-state/jobs/nlp/a.yaml"]
    assert text(ada.lab.remote.path, "ls-tree", "-r", "--name-only", request) == "request.yaml"
    assert text(ada.lab.remote.path, "log", "--format=%an %s", request) == "Ada Lovelace Cancel nlp/a"
    desk = takes_over(ada.lab)
    assert (desk.record("a").state, desk.record("a").outcome) == (JobState.FINISHED, Outcome.CANCELLED)
    why = desk.record("a").reason
    assert (why.code, why.number("by"), why.number("message")) == (ReasonCode.REQUESTED, "ada", "loss is NaN")
    assert desk.record("b").state is not JobState.FINISHED
    listed = ada.done("get", "requests").stdout
    assert [line.split()[:5] for line in listed.splitlines()[1:]] == [
        [request.removeprefix("request/"), "cancel", "nlp/a", "ada", "InForce"]
    ]
    status = ada.done("status").stdout
    assert (
        f"! Request {request.removeprefix('request/')} of ada is in force: cancel nlp/a, loss is NaN, until 2026"
        in status
    )
    # The branch is merged: the files alone count again, and say the same.
    git(ada.lab.remote.path, "update-ref", "refs/heads/main", ada.only_branch())
    desk.settle()
    assert desk.reconciler.last is not None
    (known,) = desk.reconciler.last.generation.observed.requests.values()
    assert known.standing is Standing.LANDED


def test_the_request_comes_before_the_plan_and_waits_for_the_answer(ada: Person) -> None:
    told = json.loads(ada.done("suspend", "b", "--now", "--yes", "-o", "json").stdout)
    assert [f"refs/heads/{told['request']}"] == [f"refs/heads/{name}" for name in requests(ada.lab)]
    assert (told["verb"], told["pushed"]) == ("suspend", True)
    assert takes_over(ada.lab).record("b").state is JobState.HELD


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        pytest.param(["cordon", "gpu-[001-002]", "--now", "-r", "XID 79"], "cordon gpu-001, gpu-002", id="cordon"),
        pytest.param(["drain", "gpu-001", "--now", "-r", "fans", "--for", "3h"], "drain gpu-001", id="drain"),
        pytest.param(["freeze", "nlp", "--now", "--for", "1h"], "freeze queue nlp", id="freeze a queue"),
        pytest.param(["freeze", "--all", "--now"], "freeze the cluster", id="freeze all"),
    ],
)
def test_what_is_asked_is_in_force_in_the_next_round(ada: Person, words: list[str], asks: str) -> None:
    ada.done(*words, "--yes")
    desk = takes_over(ada.lab)
    assert desk.reconciler.last is not None
    (request,) = desk.reconciler.last.generation.observed.requests.values()
    assert (request.asked, request.standing, request.by) == (asks, Standing.IN_FORCE, "ada")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(["cancel", "a", "--now", "--for", "25h"], "TooLong", id="longer than a day"),
        pytest.param(["cancel", "a", "--now", "--for", "soon"], "BadDuration", id="no duration"),
        pytest.param(["cancel", "a", "--for", "2h"], "NothingAsked", id="for without now"),
        pytest.param(["cancel", "a", "--now", "--key", "/nowhere"], "NoSigningKey", id="no such key"),
        pytest.param(["freeze", "--now"], "NothingAsked", id="freeze nothing"),
        pytest.param(["freeze", "nlp"], "NothingAsked", id="freeze for good"),
        pytest.param(["freeze", "nlpp", "--now"], "UnknownQueue", id="freeze a queue there is not"),
    ],
)
def test_what_could_never_be_let_in_is_told_here(ada: Person, words: list[str], code: str) -> None:
    assert codes(ada.run(*words, "--yes"))[0] == code
    assert requests(ada.lab) == []
    assert ada.branches() == []


def test_without_a_key_nothing_is_asked_and_the_remedy_is_told(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ada.home / "gitconfig"
    settings.write_text(settings.read_text().replace("signingKey", "signedOff"))
    found = ada.run("cancel", "a", "--now", "--yes")
    assert codes(found) == ("NoSigningKey", ExitStatus.USAGE)
    assert "sshKeys of your User" in getattr(found.exception, "remedy", "")
    assert requests(ada.lab) == []
    assert ada.branches() == []
    ada.done("cancel", "a", "--now", "--yes", "--key", str(ada.lab.folder / "ada-key"))
    assert len(requests(ada.lab)) == 1
    monkeypatch.setenv("GANGOPS_KEY", str(ada.lab.folder / "ada-key"))
    ada.done("suspend", "b", "--yes")
    assert len(requests(ada.lab)) == 1, "whose environment names a key asks for nothing at once by that"
    ada.done("cancel", "b", "--now", "--yes")
    assert len(requests(ada.lab)) == 2


def test_a_dry_run_asks_for_nothing(ada: Person) -> None:
    ada.done("cancel", "a", "--now", "--dry-run")
    assert requests(ada.lab) == []
    assert codes(ada.run("cancel", "a", "--now"))[0] == "NotConfirmed"
    assert requests(ada.lab) == []


def test_waiting_tells_a_refusal(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reconciler answers while the verb looks again: played here between two looks."""
    other = make_key(ada.lab.folder / "other", "ada")

    def pause(seconds: float) -> None:
        if seconds == POLL_SECONDS:  # git is waited for with the same sleep
            ada.lab.desk("one").round()

    monkeypatch.setattr("time.sleep", pause)

    found = ada.run("cancel", "a", "--now", "--yes", "--wait", "--key", str(other.key))
    assert codes(found) == ("RequestRefused", ExitStatus.INVALID)
    assert "not among the allowed signers" in str(found.exception)


@pytest.mark.parametrize(
    ("verb", "done"), [pytest.param("cordon", "cordoned", id="cordon"), pytest.param("drain", "drained", id="drain")]
)
def test_uncordon_names_the_request_that_keeps_the_node_and_how_it_ends(ada: Person, verb: str, done: str) -> None:
    ada.done(verb, "gpu-001", "--now", "-r", "XID 79", "--for", "2h", "--yes")
    (request,) = requests(ada.lab)
    (lasting,) = ada.branches()
    desk = takes_over(ada.lab)
    kept = f"gpu-001 is {done} by request {request.removeprefix('request/')} of ada (XID 79) until 2026-01-01 02:"
    remedy = (
        "whatever the files say. It ends then by itself; sooner, merge the lasting change "
        f"(`gangops {verb} gpu-001`), which ends it, and uncordon after that."
    )
    page = ada.done("uncordon", "gpu-001", "--yes").stdout
    assert page.startswith("nothing to change: gpu-001 is not cordoned in any file\n")
    assert kept in page
    assert remedy in page
    assert "request" not in ada.done("uncordon", "gpu-002", "--yes").stdout
    # What it says does end it.
    git(ada.lab.remote.path, "update-ref", "refs/heads/main", lasting)
    desk.settle()
    page = ada.done("uncordon", "gpu-001", "--yes").stdout
    assert "by request" not in page
    git(ada.lab.remote.path, "update-ref", "refs/heads/main", next(b for b in ada.branches() if b != lasting))
    desk.settle()
    free = json.loads(ada.done("get", "nodes", "-o", "json").stdout)["nodes"]
    assert [one["states"] for one in free] == [[], [], [], []]


def test_uncordon_of_a_node_that_a_file_and_a_request_keep_tells_of_the_request_beside_the_diff(ada: Person) -> None:
    ada.done("cordon", "gpu-001", "--now", "-r", "XID 79", "--yes")
    takes_over(ada.lab)
    ada.done("cordon", "gpu-002", "-r", "fan", "--yes")
    git(ada.lab.remote.path, "update-ref", "refs/heads/main", next(b for b in ada.branches() if "gpu-002" in b))
    told = json.loads(ada.done("uncordon", "gpu-[001-002]", "--dry-run", "-o", "json").stdout)
    (remark,) = told["remarks"]
    assert remark.startswith("gpu-001 is cordoned by request cordon-gpu-001-")
