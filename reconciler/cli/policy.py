"""`policy`: house rules in CEL, and their examples."""

from __future__ import annotations

import json
from pathlib import Path

import click

from reconciler.errors import ExitStatus
from reconciler.runtime.policing import Tests, files_below, run_examples


@click.group()
def policy() -> None:
    """House rules in CEL over documents and plans (policies/)."""


@policy.command("test")
@click.argument("paths", nargs=-1)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@click.pass_obj
def policy_test(repo: Path, paths: tuple[str, ...], output: str) -> int:
    """Try policies on the examples beside them: policies/NAME.examples.yaml for policies/NAME.yaml.

    PATHS name files of examples or of policies; default all. Exit 1 when an example comes out otherwise than expected.
    policies/README.md shows the format.
    """
    tests = run_examples(files_below(repo), paths)
    if output == "json":
        click.echo(json.dumps(_tree(tests), indent=1, ensure_ascii=False))
    else:
        _print(tests)
    return ExitStatus.OK if tests.passed else ExitStatus.ERROR


def _print(tests: Tests) -> None:
    for diagnostic in tests.diagnostics:
        click.echo(f"{diagnostic}\n", err=True)
    for tried in tests.tried:
        click.echo(f"{'FAIL' if tried.differs else 'ok  '}  {tried.place.file}:{tried.place.line}  {tried.name}")
        for line in tried.differs:
            click.echo(f"        {line}")
    for name, rule in tests.untried:
        click.echo(f"note: no example expects {rule} of policy {name} to fail", err=True)
    failed = sum(bool(tried.differs) for tried in tests.tried)
    click.echo(f"{len(tests.tried)} examples: " + (f"{failed} failed" if failed else "all as expected"))


def _tree(tests: Tests) -> dict[str, object]:
    return {
        "formatVersion": "1.0",
        "kind": "PolicyTests",
        "passed": tests.passed,
        "examples": [
            {"name": t.name, "file": t.place.file, "line": t.place.line, "differs": list(t.differs)}
            for t in tests.tried
        ],
        "untried": [{"policy": name, "rule": rule} for name, rule in tests.untried],
        "diagnostics": [str(d) for d in tests.diagnostics],
    }
