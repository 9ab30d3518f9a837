"""`test`: scenario files as unit tests for a cluster's rules."""

from __future__ import annotations

import json
from pathlib import Path

import click

from reconciler.errors import ExitStatus
from reconciler.runtime.scenario.report import closing_line, result_lines, results_tree
from reconciler.runtime.scenario.run import Verdict, run_files, scenario_files


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def test(paths: tuple[Path, ...], output: str) -> int:
    """Decide each scenario (format gang-scenario/1) of the files and folders, and say what differs.

    Exit 1 when one fails or cannot be read. The format is described in tests/scenarios/README.md.
    """
    results = []
    for result in run_files(scenario_files(paths)):
        results.append(result)
        if output == "text":
            click.echo(result_lines(result))
    if output == "json":
        click.echo(json.dumps(results_tree(results), indent=1, ensure_ascii=False))
    else:
        click.echo(closing_line(results))
    return ExitStatus.OK if all(result.verdict is Verdict.PASSED for result in results) else ExitStatus.ERROR
