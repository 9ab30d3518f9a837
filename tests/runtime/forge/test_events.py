"""What the payloads of a forge mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.errors import UsageError
from reconciler.runtime.forge.events import FinishedRun, MergeGroup, PullRequest, read_event
from tests.runtime.forge.conftest import payload


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("pull_request", PullRequest(repository="acme/cluster", number=12, base="b" * 40, head="a" * 40, fork=False)),
        ("pull_request_fork", PullRequest(repository="acme/cluster", number=13, base="b" * 40, head="f" * 40, fork=True)),
        ("workflow_run", FinishedRun(repository="acme/cluster", head="a" * 40, owner="acme", branch="sft", numbers=(12,))),
        ("workflow_run_fork", FinishedRun(repository="acme/cluster", head="f" * 40, owner="mallory", branch="sft", numbers=())),
        ("merge_group", MergeGroup(repository="acme/cluster", number=12, base="b" * 40, head="c" * 40)),
    ],
)  # fmt: skip
def test_recorded_payloads(name: str, event: object) -> None:
    assert read_event(payload(name)) == event


def test_a_fork_that_was_deleted_meanwhile(tmp_path: Path) -> None:
    tree = json.loads(payload("pull_request_fork").read_text())
    tree["pull_request"]["head"]["repo"] = None
    (tmp_path / "e.json").write_text(json.dumps(tree))
    found = read_event(tmp_path / "e.json")
    assert isinstance(found, PullRequest)
    assert found.fork


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("pull_request", "number", "12; rm -rf /"),
        ("pull_request", "number", True),
        ("pull_request", "head", {"sha": "HEAD"}),
        ("workflow_run", "head_sha", "--upload-pack=x"),
        ("workflow_run", "event", "push"),
        ("merge_group", "head_ref", "refs/heads/main"),
    ],
)
def test_what_is_not_as_a_forge_writes_it_is_refused(name: str, key: str, value: object, tmp_path: Path) -> None:
    tree = json.loads(payload(name).read_text())
    tree[name][key] = value
    (tmp_path / "e.json").write_text(json.dumps(tree))
    with pytest.raises(UsageError) as caught:
        read_event(tmp_path / "e.json")
    assert caught.value.code == "UnknownEvent"


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "\x00", '{"repository": {"full_name": "../x"}, "merge_group": {}}']
)
def test_what_is_no_payload(content: str, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(content)
    with pytest.raises(UsageError):
        read_event(tmp_path / "e.json")
    with pytest.raises(UsageError):
        read_event(payload("push"))
