"""`audit verify|exceptions|export`, `report`: can the record be proven, and what does it look like?"""

from __future__ import annotations

import os
from pathlib import Path

import click

from reconciler.cli.nothing import warn_if_cut
from reconciler.cli.record import record_output
from reconciler.cli.root import fetch_option
from reconciler.cli.show import newest, now, opened, print_json, width
from reconciler.cli.times import between, bound, commit_beginning, generation_range, moment, not_to_come, progress
from reconciler.errors import AuditFailed, UsageError
from reconciler.model.counting import counted
from reconciler.model.units import Instant
from reconciler.render.audit import AuditLine, Fault, verdict_page
from reconciler.render.history import Row, as_csv, instant_cell
from reconciler.render.names import one_line, when
from reconciler.render.page import html_page
from reconciler.render.table import table
from reconciler.runtime.audit.ends import remember_verified
from reconciler.runtime.audit.exceptions import exceptions as exceptions_of
from reconciler.runtime.audit.export import exported, statements
from reconciler.runtime.audit.findings import CHECKS, Bounds, Verdict
from reconciler.runtime.audit.index import indexed
from reconciler.runtime.audit.picture import picture
from reconciler.runtime.audit.verify import verify as verify_record
from reconciler.store.signatures import Signer

_EXCEPTION_COLUMNS = ("generation", "at", "commit", "kind", "person", "told")


@click.group()
def audit() -> None:
    """Prove the record, or list what a person should look at."""


@audit.command()
@click.option("--since", default=None, help="From this generation or time on.")
@click.option("--until", default=None, help="Up to this generation or time.")
@click.option("--root", default=None, callback=commit_beginning, help="The id the first commit must have.")
@click.option(
    "--signers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="allowed_signers for the first commit, and while the record names none.",
)
@click.option(
    "--contains",
    multiple=True,
    callback=commit_beginning,
    help="A commit that must be in the branch: one you wrote down earlier.",
)
@click.option(
    "-j", "--jobs", type=click.IntRange(1, 64), default=os.cpu_count() or 1, help="Processes (default: one a core)."
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@fetch_option
@click.pass_obj
def verify(
    repo: Path, since: str | None, until: str | None, root: str, signers: Path | None, contains: tuple[str, ...],
    jobs: int, output: str, *, fetch: bool,
) -> None:  # fmt: skip
    """Verify chain, signatures, inputs, decisions and receipts. Exit 5 names the first bad generation."""
    clone = opened(repo, fetch=fetch)
    tip = clone.state_tip()
    (from_number, from_time), (to_number, to_time) = bound(since, now()), bound(until, now())
    bounds = Bounds(
        since=from_number, until=to_number, since_at=from_time, until_at=to_time, root=root, contains=contains,
    )  # fmt: skip
    with progress("verifying") as told:
        verdict = verify_record(
            clone.git,
            tip,
            signers=_listed(signers),
            bounds=bounds,
            branch=clone.state_branch,
            processes=jobs,
            progress=told,
        )
    first = verdict.first_bad
    if output == "json":
        print_json("Audit", _tree(verdict))
    else:
        click.echo(_page(verdict))
    if first is not None:
        look = f"git show {first.commit[:12]}; gangops replay {first.generation}"
        raise AuditFailed(
            f"the first bad generation is {first.generation} ({first.commit[:12]}): {first.told} [{first.code}]",
            generation=first.generation, code=first.code, remedy=_REMEDIES.get(first.code, look),
        )  # fmt: skip
    if verdict.from_root and until is None:
        remember_verified(clone.git, tip)


_REMEDIES = {
    "NoSigners": "--signers FILE, got from the operators; for everybody: merge it as cluster-state/trust/allowed_signers",
    "WrongPrincipal": "its line in allowed_signers has to begin with the address in [signing] identity of reconciler.toml",
}


def _listed(signers: Path | None) -> bytes:
    """The auditor's own list. An empty one would be no list, without anybody having said so."""
    content = signers.read_bytes() if signers is not None else b""
    if signers is not None and not any(line.strip() and not line.startswith(b"#") for line in content.splitlines()):
        raise UsageError(
            f"{signers} names no signers",
            code="NoSigners",
            remedy="One line each: `gangops@cluster ssh-ed25519 AAAA...`.",
        )
    return content


def _page(verdict: Verdict) -> str:
    faults = [
        Fault(generation=f.generation, commit=f.commit, check=f.check, code=f.code, told=f.told)
        for f in verdict.findings
    ]
    wrong = {check: sum(f.check == check for f in verdict.findings) for check in CHECKS}
    lines = [AuditLine(check=check, told=told, wrong=wrong[check]) for check, told in _told(verdict).items()]
    judged = verdict.judged
    end = f"Verified #{judged[0].generation}..#{judged[-1].generation}   root {verdict.root[:12]}{'' if verdict.root_pinned else ' (not pinned)'}"
    first = verdict.first_bad
    return verdict_page(
        lines,
        faults,
        verdict.notices,
        end if first is None else f"NOT verified: generation {first.generation} is the first bad one",
        width(),
    )


def _told(verdict: Verdict) -> dict[str, str]:
    judged = verdict.judged
    count, replayed = len(judged), sum(one.identical for one in judged)
    signers = sorted({f"{one.signer} ({one.fingerprint[:14]}…)" for one in judged if one.signer})
    versions = sorted({one.package for one in judged if one.package})
    asked = count - (1 if verdict.from_root else 0)
    return {
        "objects": "every object hashes to its id",
        "chain": f"{counted(count, 'commit')}, linear, no gap",
        "trailers": f"{count} of {count} equal to their summary",
        "signatures": f"{sum(bool(one.signer) for one in judged)} of {count} by {', '.join(signers) or 'nobody'}",
        "desired": f"{counted(asked, 'answer')} to the named commit",
        "inputs": f"{counted(asked, 'digest')} of what was decided from",
        "replay": f"{replayed} of {counted(asked, 'decision')} byte for byte identical (gangops {', '.join(versions)})",
        "judge": f"{counted(asked, 'decision keeps', 'decisions keep')} the invariants",
        "receipts": f"{counted(verdict.receipts, 'receipt')} of agents, none before its order",
    }


def _tree(verdict: Verdict) -> dict[str, object]:
    first = verdict.first_bad
    return {
        "verified": first is None,
        "root": verdict.root,
        "rootPinned": verdict.root_pinned,
        "generations": len(verdict.judged),
        "replayed": sum(one.identical for one in verdict.judged),
        "receipts": verdict.receipts,
        "firstBad": first.generation if first else None,
        "findings": [
            {"generation": f.generation, "commit": f.commit, "check": f.check, "code": f.code, "told": f.told}
            for f in verdict.findings
        ],
        "notices": verdict.notices,
    }


@audit.command()
@click.option("--since", default=None, help="From this time on.")
@click.option("--until", default=None, help="Up to this time.")
@record_output
@fetch_option
@click.pass_obj
def exceptions(repo: Path, since: str | None, until: str | None, output: str, *, fetch: bool) -> None:
    """What a person should look at, although none of it is forbidden."""
    begin, end = between(since, until, now())
    clone = opened(repo, fetch=fetch)
    warn_if_cut(clone)
    tip = clone.state_tip()
    with progress("reading the record") as told:
        index = indexed(clone.git, tip, told)
    found = list(exceptions_of(clone.git, index, begin, end))
    rows: list[Row] = [
        {
            "generation": e.generation,
            "at": instant_cell(e.at),
            "commit": e.commit,
            "kind": e.kind,
            "person": e.person,
            "told": one_line(e.told),
        }
        for e in found
    ]
    if output == "json":
        print_json("Exceptions", {"exceptions": rows})
    elif output == "csv":
        click.echo("\n".join(as_csv(_EXCEPTION_COLUMNS, rows)))
    elif not rows:
        click.echo("Nothing to look at.")
    else:
        cells = [[f"#{e.generation}", when(e.at), e.kind, e.person or "-", one_line(e.told)] for e in found]
        click.echo(table(["#", "WHEN", "KIND", "BY", "WHAT"], cells, width=width()))


@audit.command()
@click.argument("which", required=False, default="")
@click.option("-o", "--output", type=click.Choice(["intoto"]), default="intoto", help="in-toto statements, one a line.")
@click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An SSH key without passphrase: each statement stands in a DSSE envelope that it signs.",
)
@fetch_option
@click.pass_obj
def export(repo: Path, which: str, output: str, key: Path | None, *, fetch: bool) -> None:  # noqa: ARG001  the one form there is
    """Decisions for other tools: the newest, or WHICH (417, 400..417), as in-toto statements.

    Save them as NAME.intoto.jsonl. Signatures are SSH ones, in the namespace "in-toto".
    """
    clone = opened(repo, fetch=fetch)
    tip = clone.state_tip()
    first, last = generation_range(which)
    if not which:
        first = last = clone.generation().summary.generation
    signer = Signer(key=key) if key is not None else None
    for statement in statements(clone.git, tip, first, last):
        click.echo(exported(statement, signer).decode())
    if signer is None:
        click.echo("note: not signed; --key FILE puts each statement into a signed envelope", err=True)


@click.command()
@click.option(
    "--html", "file", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The file to write."
)
@click.option("--since", default="7d ago", show_default=True, help="From this time on.")
@click.option("--until", default=None, help="Up to this time (the newest generation).")
@click.option("--verify", "proving", is_flag=True, help="Verify the whole record, and seal the page with the verdict.")
@click.option("--signers", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="As of `audit verify`.")
@fetch_option
@click.pass_obj
def report(
    repo: Path, file: Path, since: str, until: str | None, signers: Path | None, *, proving: bool, fetch: bool
) -> None:
    """Write the record as one page: who held what, quotas, fragmentation, losses, decisions. No script, nothing loaded."""
    for time in (since, until or since):
        moment(time, now())  # what is no time is told before a long record is read
    clone, current, desired = newest(repo, fetch=fetch)
    with progress("reading the record") as told:
        index = indexed(clone.git, current.commit, told)
    last = Instant(index.commits["at"][-1])
    end = not_to_come(moment(until, now()), now(), last) if until is not None else last
    begin = max(moment(since, end), Instant(index.commits["at"][0]))
    seal, sealed = "Not verified when this page was made: `gangops audit verify` does.", None
    if proving:
        with progress("verifying") as told:
            verdict = verify_record(
                clone.git,
                current.commit,
                signers=_listed(signers),
                processes=os.cpu_count() or 1,
                progress=told,
            )
        seal, sealed = _seal(verdict), verdict.first_bad is None
    page = picture(clone.git, index, current, desired, since=begin, until=end, made=now(), seal=seal, sealed=sealed)
    file.write_text(html_page(page), encoding="utf-8")
    click.echo(f"{file}: generation {current.summary.generation}, {when(begin)} to {when(end)}")


def _seal(verdict: Verdict) -> str:
    first, judged = verdict.first_bad, verdict.judged
    if first is not None:
        return (
            f"The record is NOT true: generation {first.generation} is the first bad one ({first.code}: {first.told})."
        )
    told = _told(verdict)
    notes = "".join(f" Note: {notice}." for notice in verdict.notices)
    return f"Generations {judged[0].generation} to {judged[-1].generation} verified: {told['chain']}; {told['signatures']}; {told['replay']}; {told['receipts']}.{notes}"
