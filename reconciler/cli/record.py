"""`history` and `replay`: the auditor's first two questions."""

from __future__ import annotations

from pathlib import Path

import click

from reconciler.cli.root import fetch_option, output_option
from reconciler.cli.show import opened, print_json, width
from reconciler.documents.quantities import print_instant
from reconciler.documents.record import SUMMARY, job_path
from reconciler.errors import AuditFailed, NotFound
from reconciler.model.units import JobKey
from reconciler.render.table import table
from reconciler.runtime.replay import Replayed
from reconciler.runtime.replay import replay as replay_all
from reconciler.store.history import first_parent_log


@click.command()
@click.argument("job", required=False)
@click.option("-n", "--limit", type=int, default=30, help="At most this many generations (0: all).")
@output_option
@fetch_option
@click.pass_obj
def history(repo: Path, job: str | None, limit: int, output: str, *, fetch: bool) -> None:
    """Decisions, newest first; with JOB (queue/name) only those that changed it."""
    clone = opened(repo, fetch=fetch)
    path = job_path(JobKey(job)) if job else SUMMARY
    log = list(first_parent_log(clone.git, clone.state_tip(), paths=(path,), limit=limit or None))
    if job and not log:
        raise NotFound(f"no generation ever mentioned {job}", code="UnknownJob", remedy="jobs are named queue/name")
    rows = [
        (dict(meta.trailers).get("Generation", "?"), meta.committed_at, meta.id, meta.subject, _line(meta.message, job))
        for meta in log
    ]
    if output in {"json", "yaml"}:
        keys = ("generation", "at", "commit", "subject", "told")
        told = [dict(zip(keys, (r[0], print_instant(r[1]), r[2], r[3], r[4]), strict=True)) for r in rows]
        print_json("History", {"job": job, "generations": told})
        return
    cells = [[f"#{r[0]}", print_instant(r[1]), r[2][:7], r[4] or r[3]] for r in rows]
    click.echo(table(["#", "WHEN", "COMMIT", "WHAT"], cells, width=width()))


def _line(message: str, job: str | None) -> str:
    """The job's own line of a commit message, blanks folded."""
    if job is None:
        return ""
    for line in message.splitlines():
        words = line.split()
        if len(words) > 1 and words[1] == job:
            return " ".join(words)
    return ""


@click.command()
@click.argument("generation", required=False, type=int)
@click.option("--all", "everything", is_flag=True, help="Every generation, newest first.")
@output_option
@fetch_option
@click.pass_obj
def replay(repo: Path, generation: int | None, output: str, *, everything: bool, fetch: bool) -> None:
    """Recompute decisions from their commits and compare every byte. Exit 5 when one differs."""
    clone = opened(repo, fetch=fetch)
    done: list[Replayed] = []
    for result in replay_all(clone.git, clone.state_tip()):
        if generation is not None and result.generation != generation:
            continue
        done.append(result)
        if output == "table" and not result.identical:
            click.echo(_verdict(result))
        if generation is None and not everything:
            break
    if generation is not None and not done:
        raise NotFound(f"there is no generation {generation}", code="UnknownGeneration")
    _conclude(done, output)


def _verdict(result: Replayed) -> str:
    if result.other_version:
        return f"#{result.generation} {result.commit[:7]}  other decision version, not judged"
    told = result.why or "differs in " + ", ".join(result.differs[:5])
    return f"#{result.generation} {result.commit[:7]}  {told}"


def _conclude(done: list[Replayed], output: str) -> None:
    wrong = [r for r in done if not r.identical and not r.other_version]
    if output in {"json", "yaml"}:
        rows = [
            {
                "generation": r.generation,
                "commit": r.commit,
                "identical": r.identical,
                "otherVersion": r.other_version,
                "differs": list(r.differs),
                "why": r.why,
            }
            for r in done
        ]
        print_json("Replay", {"generations": rows})
    elif not wrong:
        skipped = sum(r.other_version for r in done)
        note = f"; {skipped} of another decision version were not judged" if skipped else ""
        click.echo(f"{len(done) - skipped} of {len(done)} decisions recomputed, byte for byte identical{note}")
    if wrong:
        first = min(wrong, key=lambda r: r.generation)
        raise AuditFailed(
            f"{len(wrong)} of {len(done)} decisions do not follow from their inputs; "
            f"the first is generation {first.generation}",
            generation=first.generation,
            remedy=f"git show {first.commit[:12]}",
        )
