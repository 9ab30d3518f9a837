"""The policies we ship do what their examples say, and `gangops policy test` says so when they do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reconciler.cli.root import root
from reconciler.documents.examples import read_examples
from reconciler.errors import GangOpsError
from reconciler.runtime.authoring import check_folder
from reconciler.runtime.policing import files_below, run_examples
from tests.policy.house import policy_text, rule

ROOT = Path(__file__).parents[2]
FILE = "policies/house.examples.yaml"


def test_the_shipped_policies_do_what_their_examples_say() -> None:
    tests = run_examples(files_below(ROOT))
    assert [(t.name, t.differs) for t in tests.tried if t.differs] == []
    assert (tests.passed, tests.untried) == (True, ())
    assert len(tests.tried) >= 12


def test_the_reference_cluster_keeps_its_own_rules() -> None:
    assert [str(d) for d in check_folder(ROOT).diagnostics if d.is_error] == []


def folder(tmp_path: Path, examples: str) -> Path:
    (tmp_path / "policies").mkdir()
    text = policy_text(rule("object.spec.gpus == 8", reason="Eight"), rule("true", reason="Never"))
    (tmp_path / "policies" / "house.yaml").write_text(text)
    (tmp_path / FILE).write_text(examples)
    return tmp_path


def invoked(where: Path, *arguments: str) -> Result:
    return CliRunner().invoke(root, ["-C", str(where), "policy", "test", *arguments], standalone_mode=False)


RIGHT = "examples:\n  - {name: eight, document: {kind: Job}, expect: {}}\n  - {name: nine, document: {kind: Job, spec: {gpus: 9}}, expect: {Deny: [Eight]}}\n"


def test_what_comes_out_as_expected(tmp_path: Path) -> None:
    done = invoked(folder(tmp_path, RIGHT))
    assert (done.return_value, done.exception) == (0, None)
    assert "2 examples: all as expected" in done.stdout
    assert "no example expects Never of policy house to fail" in done.stderr


@pytest.mark.parametrize(
    ("example", "differs"),
    [
        ("{name: one, document: {kind: Job}, expect: {Deny: [Eight]}}", "expected Deny Eight, which was not found"),
        ("{name: one, document: {kind: Job, spec: {gpus: 9}}, expect: {}}", "found Deny Eight: no"),
        (
            "{name: one, document: {kind: Job, spec: {gpus: 9}}, expect: {Warn: [Eight]}}",
            "expected Warn Eight, which was not found",
        ),
    ],
)
def test_what_comes_out_otherwise(tmp_path: Path, example: str, differs: str) -> None:
    done = invoked(folder(tmp_path, f"examples:\n  - {example}\n"), "-o", "json")
    told = json.loads(done.stdout)
    assert (done.return_value, told["passed"], told["examples"][0]["line"]) == (1, False, 2)
    assert differs in told["examples"][0]["differs"]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("examples: []\n", ["OutOfRange"]),
        ("examples:\n  - {name: a, expect: {}}\n", ["MissingField"]),
        ("examples:\n  - {name: a, document: {kind: Job}, plan: {}, expect: {}}\n", ["MissingField"]),
        ("examples:\n  - {name: a, document: {kind: Jop}, expect: {}}\n", ["UnknownKind"]),
        ("examples:\n  - {name: a, document: {kind: Job, spec: {gpuz: 8}}, expect: {}}\n", ["UnknownField"]),
        ("examples:\n  - {name: a, document: {kind: Job}, expect: {Refuse: [A]}}\n", ["UnknownValue"]),
        ("- text\n", ["WrongType"]),
    ],
)
def test_examples_that_are_none_are_told_with_their_place(text: str, codes: list[str]) -> None:
    examples, problems = read_examples(text.encode(), FILE)
    assert examples == ()
    assert [d.code for d in problems] == codes
    assert all(d.place.file == FILE for d in problems)


def test_plans_are_filled_in() -> None:
    text = "examples:\n  - {name: a, plan: {preemptions: 2, lostGpuHours: 3, phi: {after: 0.25}}, expect: {}}\n"
    (example,), problems = read_examples(text.encode(), FILE)
    assert problems == ()
    assert example.plan == {"preemptions": 2, "lostGpuHours": 3, "phi": {"after": 0.25}}


def test_only_some_files(tmp_path: Path) -> None:
    where = folder(tmp_path, RIGHT)
    for name in (FILE, "policies/house.yaml"):
        assert len(run_examples(files_below(where), (name,)).tried) == 2
    with pytest.raises(GangOpsError) as refused:
        run_examples(files_below(where), ("policies/other.yaml",))
    assert refused.value.code == "PathNotFound"
