"""The verbs of a merge queue, against a repository and a forge on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reconciler.cli.root import root
from reconciler.errors import ExitStatus, UsageError
from reconciler.model.units import SECOND
from reconciler.runtime.forge.comment import comment_body
from tests.runtime.forge.conftest import payload, priced
from tests.runtime.forge.stand_in import BOT, Forge
from tests.runtime.lab import Lab, job_file, job_text

LOW, HIGH = "  priorityClass: research\n", "  priorityClass: production\n"


@pytest.fixture
def queued(lab: Lab, tmp_path: Path) -> Path:
    """A merge group whose change evicts nlp/low for nlp/high; the payload that announces it."""
    lab.begin()
    desk = lab.desk()
    lab.desire({job_file("low"): job_text("low", 32, more=LOW)})
    lab.clock.advance(600 * SECOND)
    desk.settle()
    base = lab.remote.tip("refs/heads/main")
    head = lab.desire({job_file("high"): job_text("high", 32, more=HIGH)})
    tree = json.loads(payload("merge_group").read_text())
    tree["merge_group"] |= {"base_sha": base, "head_sha": head}
    (tmp_path / "event.json").write_text(json.dumps(tree))
    return tmp_path / "event.json"


def run(lab: Lab, forge: Forge, event: Path, *arguments: str) -> Result:
    environment = {"GITHUB_API_URL": forge.base, "GITHUB_TOKEN": "t", "GITHUB_EVENT_PATH": str(event)}
    return CliRunner().invoke(
        root, ["-C", str(lab.remote.path), "forge", *arguments], env=environment, standalone_mode=False
    )


def shown(forge: Forge, *victims: str) -> None:
    body = comment_body(priced(*victims, lost=10**12))
    forge.add(body.replace("gangops:plan:h100-east", "gangops:plan:lab"), BOT)


def test_a_victim_that_was_shown_does_not_stop_the_queue(lab: Lab, forge: Forge, queued: Path) -> None:
    shown(forge, "nlp/low")
    done = run(lab, forge, queued, "recheck")
    assert done.exception is None
    assert done.return_value == ExitStatus.OK, done.stdout
    assert done.stdout.endswith("as reviewed\n")


@pytest.mark.parametrize("victims", [(), ("nlp/other",)])
def test_a_victim_nobody_saw_stops_it(victims: tuple[str, ...], lab: Lab, forge: Forge, queued: Path) -> None:
    if victims:
        shown(forge, *victims)
    done = run(lab, forge, queued, "recheck")
    assert done.return_value == ExitStatus.INVALID
    assert "::error title=Not as reviewed::nlp/low would pay for it, which no preview has shown" in done.stdout


def test_a_forge_that_is_away_is_a_warning_and_nothing_was_shown(lab: Lab, forge: Forge, queued: Path) -> None:
    shown(forge, "nlp/low")
    forge.script = [(403, {})]
    done = run(lab, forge, queued, "recheck")
    assert done.return_value == ExitStatus.INVALID
    assert "::warning title=Preview not found::" in done.stdout


@pytest.mark.parametrize("name", ["pull_request", "merge_group"])
def test_reviews_are_fetched_as_the_check_of_approval_reads_them(
    name: str, lab: Lab, forge: Forge, tmp_path: Path
) -> None:
    assert run(lab, forge, payload(name), "reviews", "--into", str(tmp_path / "r")).exception is None
    event = json.loads((tmp_path / "r/event.json").read_text())
    assert (event["pull_request"]["number"], event["pull_request"]["user"]["login"]) == (12, "ada")
    assert [r["user"]["login"] for r in json.loads((tmp_path / "r/reviews.json").read_text())] == ["grace"]


@pytest.mark.parametrize(
    ("verb", "name"), [("recheck", "pull_request"), ("preview", "workflow_run"), ("reviews", "workflow_run")]
)
def test_an_event_of_another_kind_is_refused(verb: str, name: str, lab: Lab, forge: Forge, tmp_path: Path) -> None:
    more = ("--into", str(tmp_path / "x")) if verb == "reviews" else ()
    done = run(lab, forge, payload(name), verb, *more)
    assert isinstance(done.exception, UsageError)
