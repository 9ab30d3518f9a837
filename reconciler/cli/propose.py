"""What all verbs share that change what is desired: show the change and its plan, ask, push a branch, follow it.

Nothing is ever pushed to main. Off a terminal nothing is asked: without --yes the change is shown and refused.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reconciler.cli.show import cache_file, now, opened, print_json, this_second, width
from reconciler.cli.times import Span
from reconciler.errors import ExitStatus, GangOpsError, UsageError

if TYPE_CHECKING:
    from reconciler.runtime.clone import Clone
    from reconciler.runtime.proposals.change import Change
    from reconciler.runtime.proposals.desk import Desk
    from reconciler.runtime.proposals.proposal import Proposal
    from reconciler.runtime.proposals.requesting import Asking

_POLL_SECONDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options every such verb has."""

    yes: bool
    dry_run: bool
    pr: bool
    wait: bool
    timeout: float
    output: str
    request: str = ""


def proposing(command: Callable[..., int]) -> Callable[..., int]:
    """Give a verb the shared options; it receives them as `wishes`."""

    @wraps(command)
    def called(
        *args: Any, yes: bool, dry_run: bool, pr: bool, wait: bool, timeout: float, output: str, **kwargs: Any
    ) -> int:
        wishes = Wishes(yes=yes, dry_run=dry_run, pr=pr, wait=wait, timeout=timeout, output=output)
        return command(*args, wishes=wishes, **kwargs)

    for option in reversed(_OPTIONS):
        called = option(called)
    return called


_OPTIONS = (
    click.option("-y", "--yes", is_flag=True, help="Do not ask."),
    click.option("--dry-run", is_flag=True, help="Only show the change and its plan."),
    click.option("--pr", is_flag=True, help="Open a pull request with gh; without gh, print the link."),
    click.option("--wait", is_flag=True, help="Follow it until merged and, for a job that starts, until it runs; "
                 "with --pr, merge as soon as the checks pass."),
    click.option("--timeout", type=Span(), default="1h", help="How long to --wait at most: seconds, or such as 30m (default 1h)."),
    click.option("-o", "--output", type=click.Choice(["table", "json", "name"]), default="table",
                 help="How to print; JSON is versioned, `name` is the branch alone, with --dry-run the files that would change."),
)  # fmt: skip
reason_option = click.option(
    "-m", "--message", "--reason", "why", default="", help="Why: goes into the commit and the request."
)


def propose(repo: Path, wishes: Wishes, make: Callable[[Desk], Change], asking: Asking | None = None) -> int:
    """Make a change on the newest desired commit, and propose it as wished. The exit status.

    `asking`: the same is asked of the reconciler at once, before the plan of the lasting change is made.
    """
    from reconciler.runtime.proposals.proposal import push, refused

    clone, desk = desk_at(repo, dry_run=wishes.dry_run)
    change = make(desk)
    if not change.files:
        _tell_unchanged(change, wishes.output)
        return ExitStatus.OK
    if asking is not None:
        from reconciler.cli.requesting import ask

        request = ask(clone, desk, asking, wishes)
        if wishes.output == "table":
            click.echo()
        wishes = replace(wishes, yes=True, request=request)
    proposal = _looked_at(desk, change)
    if wishes.output == "table":
        _show(proposal)
    refusal = refused(proposal)
    if refusal is not None and not wishes.dry_run:
        raise refusal
    if wishes.dry_run:
        _result(wishes, proposal, commit="", pull="", link="")
        return refusal.exit_status if refusal is not None else ExitStatus.OK
    confirm(wishes, f"{proposal.change.title}: push it as a branch?")
    begun = time.monotonic()
    commit = push(clone, proposal)
    pull = _offered(clone, proposal, commit, wishes)
    if wishes.wait:
        _follow(clone, proposal, commit, pull, wishes.timeout, begun)
    return ExitStatus.OK


def desk_at(repo: Path, *, dry_run: bool = False) -> tuple[Clone, Desk]:
    """The clone a verb was pointed at, as new as its remote; with `dry_run` an old one will do."""
    from reconciler.runtime.clone import open_clone
    from reconciler.runtime.proposals.desk import Desk
    from reconciler.runtime.proposals.proposal import fetch

    if dry_run:
        clone = opened(repo, fetch=True)
    else:
        clone = open_clone(repo)
        fetch(clone)
    return clone, Desk(clone, states=cache_file("state.cache"))


def is_terminal() -> bool:
    """Somebody can be asked."""
    return sys.stdin.isatty()


def _looked_at(desk: Desk, change: Change) -> Proposal:
    from reconciler.documents.loader import bulk
    from reconciler.runtime.proposals.proposal import proposal_of
    from reconciler.runtime.reading import DesiredReader

    with bulk():  # looking for garbage costs a third of a plan's time
        reader = DesiredReader(desk.clone.git, cache_file("documents.cache"))
        return proposal_of(desk, change, this_second(), reader, states=cache_file("state.cache"))


def _show(proposal: Proposal) -> None:
    from reconciler.render.plan.text import plan_brief
    from reconciler.render.table import below

    click.echo(f"{proposal.diff}\n")
    click.echo(plan_brief(proposal.plan, width()) if proposal.plan is not None else proposal.no_plan)
    for remark in proposal.change.remarks:
        click.echo("\n".join(below(remark, width() or 80, "")))


def confirm(wishes: Wishes, question: str) -> None:
    """Somebody agrees, or had said so. Raises UsageError (NotConfirmed) off a terminal."""
    if wishes.yes:
        return
    if not is_terminal():
        raise UsageError(
            "nothing was pushed: there is no terminal to ask on",
            code="NotConfirmed",
            remedy="--yes pushes without asking, --dry-run only shows",
        )
    click.echo("", err=True)
    if not click.confirm(question, default=True, err=True):
        raise click.exceptions.Exit(ExitStatus.ERROR)


def _offered(clone: Clone, proposal: Proposal, commit: str, wishes: Wishes) -> Any:
    """Tell where the branch is, and open the pull request; what to ask about it later, or None."""
    from reconciler.render.plan import words
    from reconciler.render.plan.forms import trailers_of
    from reconciler.runtime.proposals.follow import Pull
    from reconciler.runtime.proposals.pulls import body_of, forge_of, gh_for, with_trailers

    forge = forge_of(clone.url)
    link = forge.link(clone.desired, proposal.branch) if forge is not None else ""
    gh = gh_for(forge) if wishes.pr else None
    if gh is None:
        _result(wishes, proposal, commit=commit, pull="", link=link)
        if wishes.pr:
            why = "gh is not installed, or does not know this forge"
            click.echo(f"{why}: {'open the request by the link' if link else 'the branch is pushed'}", err=True)
        return None
    change = proposal.change
    plan = proposal.plan
    told = [*words.over_ceilings(plan), words.total(plan)] if plan is not None else []
    try:
        pull = gh.open(clone.desired, proposal.branch, change.title, body_of(change.body, change.verb, told))
    except GangOpsError:
        _result(wishes, proposal, commit=commit, pull="", link=link)
        raise
    _result(wishes, proposal, commit=commit, pull=pull, link=link)
    if wishes.wait:
        try:
            # The merge then says what was shown to whoever agreed to it.
            gh.merge_when_ready(pull, with_trailers(change.body, trailers_of(plan)) if plan is not None else "")
        except GangOpsError as err:
            click.echo(f"warning: it will not merge by itself: {err.message}", err=True)
    return Pull(gh=gh, address=pull)


def _tell_unchanged(change: Change, output: str) -> None:
    if output == "json":
        from reconciler.render.proposal import Told, proposal_json

        print_json("Proposal", proposal_json(Told(verb=change.verb, changed=False, why=change.unchanged)))
    else:
        from reconciler.render.table import continued

        for line in f"nothing to change: {change.unchanged}".splitlines():
            click.echo("\n".join(continued(line, width(), 2)), err=output == "name")


def _result(wishes: Wishes, proposal: Proposal, *, commit: str, pull: str, link: str) -> None:
    change = proposal.change
    if wishes.output == "json":
        from reconciler.render.proposal import Told, proposal_json

        told = Told(
            verb=change.verb, changed=True, title=change.title, job=change.job, base=proposal.base, commit=commit,
            branch=proposal.branch, request=wishes.request, pushed=bool(commit), pull_request=pull, link=link,
            files=tuple(sorted(change.files)), remarks=change.remarks, plan=proposal.plan,
        )  # fmt: skip
        print_json("Proposal", proposal_json(told))
        return
    if not commit:
        if wishes.output == "name":
            click.echo("\n".join(sorted(change.files)))
        return
    if wishes.output == "name":
        click.echo(pull or proposal.branch)
        return
    click.echo(f"\nBranch  {proposal.branch}  {commit[:7]}")
    if pull:
        click.echo(f"Pull    {pull}")
    elif link:
        click.echo(f"Open    {link}")


def _follow(clone: Clone, proposal: Proposal, commit: str, pull: Any, timeout: float, begun: float) -> None:
    """A line for each stage, with the time of day and what it took; on stderr, where scripts read stdout."""
    from reconciler.render.names import span, when
    from reconciler.runtime.proposals.follow import follow

    def took() -> float:
        return time.monotonic() - begun

    def tell(stage: str, told: str) -> None:
        click.echo(f"{when(now())[11:]}  +{span(int(took() * 10**9)):<6} {stage:<8} {told}".rstrip(), err=True)

    tell("proposed", proposal.branch)
    stages = follow(
        clone, proposal.change, commit, pull, overdue=lambda: took() > timeout, pause=lambda: time.sleep(_POLL_SECONDS)
    )
    for event in stages:
        tell(event.stage, event.told)
