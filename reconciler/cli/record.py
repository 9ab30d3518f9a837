"""`history`, `usage`, `replay`, `gc`: what the record says of the past."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import click

from reconciler.cli.nothing import nothing_found, unknown_name, unknown_node_at, warn_if_cut
from reconciler.cli.root import fetch_option, output_option
from reconciler.cli.show import job_named, now, opened, print_json, width
from reconciler.cli.times import between, generation_range, moment, not_to_come, progress
from reconciler.errors import AuditFailed, NotFound, UsageError
from reconciler.model.counting import counted
from reconciler.model.units import Instant
from reconciler.render.history import (
    HISTORY_COLUMNS,
    HOLDING_COLUMNS,
    Row,
    as_csv,
    history_header,
    history_line,
    holdings_table,
    instant_cell,
    mask_cell,
    shown_row,
)
from reconciler.render.names import when
from reconciler.render.table import table
from reconciler.render.usage import (
    CSV_COLUMNS,
    TypeShare,
    UsageRow,
    UsageTotal,
    usage_csv_cells,
    usage_row_tree,
    usage_table,
    usage_total_tree,
)
from reconciler.runtime.audit.answers import Holding, Question, answers, explained, holders_at
from reconciler.runtime.audit.glance import masks
from reconciler.runtime.audit.history import DROPPED, Entry, asked_by, by_path
from reconciler.runtime.audit.index import Index, indexed
from reconciler.runtime.audit.scenes import labelled, scenes
from reconciler.runtime.audit.usage import GROUPS, PERIODS, Hours, Used
from reconciler.runtime.audit.usage import usage as usage_of
from reconciler.runtime.clone import Clone
from reconciler.runtime.replay import Replayed, replay_part
from reconciler.runtime.replay import replay as replay_all
from reconciler.store.branches import whole_log
from reconciler.store.walk import pack, write_commit_graph

_ALL = 10**12
record_output = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    help="How to print; JSON is versioned.",
)


@click.command()
@click.argument("job", required=False, default="")
@click.option("--node", default="", help="Who held this node; with --at, who held each of its GPUs then.")
@click.option("--gpu", type=click.IntRange(min=0), default=None, help="Only this GPU index of --node.")
@click.option("--queue", default="", help="Only jobs of this queue.")
@click.option("--user", default="", help="Only jobs this person asked for (address, or what is before its @).")
@click.option("--pr", default="", help="Only what came by this pull request.")
@click.option("--at", default=None, help='Who held what at this time, such as "2026-11-28T09:00Z".')
@click.option("--since", default=None, help="From this time on.")
@click.option("--until", default=None, help="Up to this time.")
@click.option("-n", "--limit", type=click.IntRange(min=0), default=30, help="At most this many lines (0: all).")
@record_output
@fetch_option
@click.pass_obj
def history(
    repo: Path, job: str, node: str, gpu: int | None, queue: str, user: str, pr: str, at: str | None, since: str | None,
    until: str | None, limit: int, output: str, *, fetch: bool,
) -> None:  # fmt: skip
    """What was decided, newest first; of JOB (its name alone will do), or narrowed by node, GPU, queue, person, request or time."""
    begin, end = between(since, until, now())
    if gpu is not None and not node:
        raise UsageError(
            "--gpu counts the GPUs of a node", code="GpuOfNoNode", remedy=f"gangops history --node NODE --gpu {gpu}"
        )
    if at is not None and (since is not None or until is not None):
        raise UsageError(
            "--at asks for one time, --since and --until for all in between",
            code="TwoTimes",
            remedy="Leave either out.",
        )
    when_asked = moment(at, now()) if at is not None else None
    clone = opened(repo, fetch=fetch)
    if job and "/" not in job:
        job = job_named(clone.generation(), job)
    question = Question(
        job=job, node=node, gpu=-1 if gpu is None else gpu, queue=queue, person=user, request=pr.removeprefix("#"),
        since=begin, until=end,
    )  # fmt: skip
    warn_if_cut(clone)
    if when_asked is not None:
        _print_holders(clone, when_asked, question, output)
        return
    if question == Question(since=question.since, until=question.until):
        _print_decisions(clone, question, limit, output)
        return
    alone = question == Question(job=job, since=question.since)
    rows = (
        _row(e)
        for e in islice(_by_path(clone, question) if job and alone else _indexed(clone, question, limit), limit or _ALL)
    )
    _print_history(clone, rows, question, output)


def _print_decisions(clone: Clone, question: Question, limit: int, output: str) -> None:
    """The log of decisions itself: no job, no node, only time was asked for."""
    log = whole_log(clone.git, clone.state_tip(), since=question.since)
    kept = (meta for meta in log if question.until is None or meta.committed_at <= question.until)
    rows: list[Row] = [
        {
            "generation": int(number) if (number := dict(meta.trailers).get("Generation", "")).isdecimal() else -1,
            "at": instant_cell(Instant(meta.committed_at)),
            "commit": meta.id,
            "subject": meta.subject,
            "_at": meta.committed_at,
        }
        for meta in islice(kept, limit or _ALL)
    ]
    if output == "json":
        print_json("History", {"asked": {}, "generations": [shown_row(row) for row in rows]})
    elif output == "csv":
        click.echo("\n".join(as_csv(("generation", "at", "commit", "subject"), rows)))
    elif not rows:
        raise NotFound("nothing was decided then", code="NothingFound", remedy="Widen --since and --until.")
    else:
        cells = [
            [f"#{row['generation']}", when(Instant(int(row["_at"]))), str(row["commit"])[:7], str(row["subject"])]
            for row in rows
        ]
        click.echo(table(["#", "WHEN", "COMMIT", "WHAT"], cells, width=width()))


def _by_path(clone: Clone, question: Question) -> Iterator[Entry]:
    tip = clone.state_tip()
    found = asked_by(clone.git, by_path(clone.git, tip, question.job, since=question.since), question.job)
    first = next(found, None)
    if first is None:
        raise nothing_found(clone, question)
    yield first
    yield from found


def _indexed(clone: Clone, question: Question, limit: int) -> Iterator[Entry]:
    tip = clone.state_tip()
    with progress("reading the record") as told:
        index = indexed(clone.git, tip, told)
    found = answers(index, question)
    while chunk := list(islice(found, min(limit or 500, 500))):
        yield from explained(clone.git, chunk)


def _print_history(clone: Clone, rows: Iterator[Row], question: Question, output: str) -> None:
    asked = {
        f.name: getattr(question, f.name) for f in fields(question) if getattr(question, f.name) not in {"", -1, None}
    }
    asked |= {name: instant_cell(asked[name]) for name in ("since", "until") if name in asked}
    if output == "json":
        print_json("History", {"asked": asked, "generations": [shown_row(row) for row in rows]})
    elif output == "csv":
        for line in as_csv(HISTORY_COLUMNS, rows):
            click.echo(line)
    else:
        first = next(rows, None)
        if first is None:
            raise nothing_found(clone, question)
        click.echo(history_header(width()))
        click.echo(history_line(first, width()))
        for row in rows:
            click.echo(history_line(row, width()))


def _row(entry: Entry) -> Row:
    return {
        "generation": entry.generation, "at": instant_cell(entry.at), "commit": entry.commit, "job": entry.job,
        "queue": entry.queue, "attempt": entry.attempt, "action": entry.action, "state": entry.state, "gpus": entry.gpus,
        "place": " ".join(f"{node}:{mask_cell(mask)}" for node, mask in masks(entry.place).items()), "cause": entry.cause,
        "reason": entry.code, "why": entry.why, "preemptor": entry.preemptor, "person": entry.person,
        "pullRequest": entry.request, "desiredCommit": entry.desired, "_at": entry.at,
    }  # fmt: skip


def _print_holders(clone: Clone, at: Instant, question: Question, output: str) -> None:
    tip = clone.state_tip()
    with progress("reading the record") as told:
        index = indexed(clone.git, tip, told)
    position = index.position_at(at)
    if position < 0:
        raise NotFound(
            f"the record begins at {when(Instant(index.commits['at'][0]))}", code="BeforeTheRecord",
            remedy="where it was begun anew, the branch before has the time before; a shallow clone lacks what is older: `git fetch --unshallow`",
        )  # fmt: skip
    not_to_come(at, now(), index.commits["at"][-1])
    found = holders_at(index, at, question)
    if not found and (wrong := _stranger(clone, index, position, question, at, output)) is not None:
        raise wrong
    reasons = explained(clone.git, [one.given for one in found])
    rows = [_holding(one, given) for one, given in zip(found, reasons, strict=True)]
    if output == "json":
        in_force = {"generation": index.commits["generation"][position], "commit": index.ids[position]}
        print_json(
            "Holders", {"at": instant_cell(at), "inForce": in_force, "holders": [shown_row(row) for row in rows]}
        )
    elif output == "csv":
        click.echo("\n".join(as_csv(HOLDING_COLUMNS, rows)))
    else:
        click.echo(
            f"{when(at)}: generation {index.commits['generation'][position]} ({index.ids[position][:7]}) was in force"
        )
        click.echo(holdings_table(rows, width()) if rows else "Nobody held a GPU there.")


def _stranger(
    clone: Clone, index: Index, position: int, question: Question, at: Instant, output: str
) -> NotFound | None:  # fmt: skip
    """The name that makes an answer empty: of a node that there was not then; for people also of any other."""
    if question.node and (found := unknown_node_at(clone, index, position, question.node, at)) is not None:
        return found
    return unknown_name(clone, replace(question, node="")) if output == "table" else None


def _holding(one: Holding, given: Entry) -> Row:
    return {
        "node": one.node, "gpus": mask_cell(one.mask), "job": one.job, "queue": one.queue, "attempt": one.attempt,
        "state": one.state, "generation": given.generation, "at": instant_cell(given.at), "commit": given.commit,
        "action": given.action, "person": given.person, "pullRequest": given.request, "why": given.why, "_at": given.at,
    }  # fmt: skip


@click.command()
@click.option("--by", default="queue", help=f"{', '.join(GROUPS)}, or label:NAME.")
@click.option("--period", type=click.Choice(PERIODS), default="all", help="A table for each of these (UTC).")
@click.option("--since", default=None, help="From this time on (the record's beginning).")
@click.option("--until", default=None, help="Up to this time (the newest generation).")
@click.option("-o", "--output", type=click.Choice(["table", "json", "csv", "markdown"]), default="table")
@fetch_option
@click.pass_obj
def usage(repo: Path, by: str, period: str, since: str | None, until: str | None, output: str, *, fetch: bool) -> None:
    """GPU-hours by queue, user, type, job, task or label, against quota; they add up to capacity times time."""
    label = by.removeprefix("label:") if by.startswith("label:") else ""
    if not label and by not in GROUPS:
        raise UsageError(
            f"usage cannot be grouped by {by!r}", code="UnknownGroup", remedy=f"one of {', '.join(GROUPS)}, label:NAME"
        )
    begin, end = between(since, until, now())
    clone = opened(repo, fetch=fetch)
    warn_if_cut(clone)
    tip = clone.state_tip()
    with progress("reading the record") as told:
        index = indexed(clone.git, tip, told)
    if end is not None:
        not_to_come(end, now(), index.commits["at"][-1])
    found = usage_of(
        index, scenes(clone.git, index), by=by, period=period, since=begin, until=end,
        key_of=labelled(clone.git, index, label) if label else None,
    )  # fmt: skip
    rows, totals = _usage_values(found)
    if output == "json":
        print_json(
            "Usage",
            {"by": by, "rows": [usage_row_tree(r) for r in rows], "totals": [usage_total_tree(t) for t in totals]},
        )
    elif output == "csv":
        click.echo("\n".join(as_csv(CSV_COLUMNS, map(usage_csv_cells, rows))))
    else:
        click.echo(usage_table(by.removeprefix("label:"), rows, totals, width(), markdown=output == "markdown"))


def _usage_values(found: Used) -> tuple[list[UsageRow], list[UsageTotal]]:
    def columns(hours: Hours) -> tuple[int, ...]:
        return tuple(getattr(hours, one.name) for one in fields(hours))

    rows = [
        UsageRow(
            period=r.period,
            key=r.key,
            gpu_type=r.gpu_type,
            hours=columns(r.hours),
            guaranteed=r.guaranteed,
            ceiling=r.ceiling,
        )
        for r in found.rows
    ]
    totals = [
        UsageTotal(
            period=t.period, until=t.until, capacity=t.capacity, hours=columns(t.hours), idle=t.idle,
            unavailable=t.unavailable, undeclared=t.undeclared,
            types=tuple(
                TypeShare(
                    gpu_type=k.gpu_type, capacity=k.capacity, allocated=k.allocated, reserved=k.reserved, idle=k.idle,
                    unavailable=k.unavailable,
                )
                for k in t.types
            ),
        )
        for t in found.totals
    ]  # fmt: skip
    return rows, totals


@click.command()
@click.option(
    "--pack/--no-pack", "packing", default=True, help="Also repack all objects (default); slow the first time."
)
@click.pass_obj
def gc(repo: Path, *, packing: bool) -> None:
    """Make a clone's history quick to walk: one pack, and a commit-graph with changed-path filters."""
    clone = opened(repo, fetch=False)
    if packing:
        pack(clone.git)
    write_commit_graph(clone.git)
    click.echo(
        "packed, and a commit-graph with changed-path filters written"
        if packing
        else "a commit-graph with changed-path filters written"
    )


@click.command()
@click.argument("which", required=False, default="")
@click.option("--all", "everything", is_flag=True, help="Every generation, newest first.")
@click.option("--job", default="", help="Also show what the decision came to for this job.")
@output_option
@fetch_option
@click.pass_obj
def replay(repo: Path, which: str, job: str, output: str, *, everything: bool, fetch: bool) -> None:
    """Recompute decisions from their commits and compare every byte: the newest, WHICH (417, or 400..417), or --all.

    Exit 5 when one differs. One of another decision version is not recomputed here; the command that does is printed.
    """
    if which and everything:
        raise UsageError("both --all and a generation are asked for", code="TwoRanges", remedy="Leave either out.")
    first, last = generation_range(which)
    clone = opened(repo, fetch=fetch)
    tip = clone.state_tip()
    if which:
        results = replay_part(clone.git, tip, first, last)
    else:
        results = replay_all(clone.git, tip) if everything else islice(replay_all(clone.git, tip), 1)
    done: list[Replayed] = []
    for result in results:
        done.append(result)
        if output in {"table", "wide"} and not result.identical:
            click.echo(_verdict(result))
    if which and not done:
        newest = clone.generation().summary.generation
        raise NotFound(
            f"there is no generation {which} with inputs to replay", code="UnknownGeneration",
            remedy=f"generation 0 has none; the newest here is {newest}, as `gangops history --limit 1` shows",
        )  # fmt: skip
    if job and output in {"table", "wide"}:
        for result in done:
            (told,) = explained(clone.git, [_asked(result, job)])
            click.echo(f"#{result.generation} {job}: {told.why if told.why != DROPPED else 'not in this generation'}")
    _conclude(done, output)


def _asked(result: Replayed, job: str) -> Entry:
    return Entry(
        generation=result.generation, at=Instant(0), commit=result.commit, job=job, action="", state="", gpus=0
    )


def _verdict(result: Replayed) -> str:
    name = f"#{result.generation} {result.commit[:7]}"
    if result.other_version:
        return f"{name}  other version, not made again here: {other_version_command(result)}"
    if result.cut_off:
        return f"{name}  not made again: this clone lacks the generation it stands on (git fetch --unshallow)"
    told = result.why or "differs in " + ", ".join(result.differs[:5])
    return "\n".join([f"{name}  {told}", *(f"    {line}" for line in result.fields)])


def other_version_command(result: Replayed) -> str:
    """The command that makes a decision of another version again."""
    return f"pipx run --spec gangops=={result.package} gangops replay {result.generation}"


def _conclude(done: list[Replayed], output: str) -> None:
    wrong = [r for r in done if r.wrong]
    if output in {"json", "yaml"}:
        rows = [
            {
                "generation": r.generation, "commit": r.commit, "identical": r.identical, "otherVersion": r.other_version, "cutOff": r.cut_off,
                "replayWith": other_version_command(r) if r.other_version else "", "differs": list(r.differs),
                "fields": list(r.fields), "why": r.why,
            }
            for r in done
        ]  # fmt: skip
        print_json("Replay", {"generations": rows})
    elif output == "name":
        click.echo("\n".join(json.dumps(r.generation) for r in done))
    elif not wrong:
        others, cut = sum(r.other_version for r in done), sum(r.cut_off for r in done)
        note = f"; {others} of another decision version were not judged" if others else ""
        note += f"; {cut} stands on what this clone lacks" if cut else ""
        told = f"{len(done) - others - cut} of {counted(len(done), 'decision')} recomputed"
        click.echo(f"{told}, byte for byte identical{note}")
    if wrong:
        first = min(wrong, key=lambda r: r.generation)
        raise AuditFailed(
            f"{len(wrong)} of {counted(len(done), 'decision')} cannot follow from the recorded inputs; the first is generation {first.generation}",
            generation=first.generation,
            remedy=f"git show {first.commit[:12]}",
        )
