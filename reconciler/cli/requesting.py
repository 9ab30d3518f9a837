"""`--now` of the verbs that reduce, and `freeze`: asked of the reconciler at once, signed, and over by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from reconciler.cli import completing
from reconciler.cli.propose import Wishes, confirm, desk_at, proposing, reason_option
from reconciler.cli.show import now, print_json
from reconciler.documents.quantities import parse_duration
from reconciler.errors import ExitStatus, GangOpsError, NotFound, UsageError
from reconciler.model.units import Nanoseconds

if TYPE_CHECKING:
    from reconciler.model.request import Request
    from reconciler.runtime.clone import Clone
    from reconciler.runtime.proposals.desk import Desk
    from reconciler.runtime.proposals.requesting import Asking, Prepared

POLL_SECONDS = 0.5
_NOW = click.option(
    "--now", "at_once", is_flag=True, help="Ask for it at once too, in a request signed with your SSH key."
)
_KEY = click.option(
    "--key", envvar="GANGOPS_KEY", type=click.Path(path_type=Path),
    help="With --now: your SSH key (default: git's signingKey, else ~/.ssh/id_ed25519).",
)  # fmt: skip


def at_once(span: str = "24h") -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a verb `--now`, `--key` and, unless it has one, `--for`; it receives them as `now_as`, a maker of what is asked.

    `span` is how long a request lasts when nothing is said; "" leaves `--for` to the verb.
    """

    def wrapped(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def called(*args: Any, at_once: bool, key: Path | None, lasts: str = "", **kwargs: Any) -> int:
            said = click.get_current_context().get_parameter_source("key")
            if not at_once and (said is ParameterSource.COMMANDLINE or lasts):
                raise UsageError("--for and --key go with --now", code="NothingAsked", remedy="say --now as well")

            def now_as(verb: str, reason: str, said: str = "", **about: Any) -> Asking | None:
                return _asking(verb, reason, said or lasts or span, key, about) if at_once else None

            return command(*args, now_as=now_as, **kwargs)

        lasting = click.option(
            "--for", "lasts", default="", help=f"With --now: until then, 24h at most (default: {span})."
        )
        options = (_NOW, lasting, _KEY) if span else (_NOW, _KEY)
        for option in reversed(options):
            called = option(called)
        return called

    return wrapped


def _asking(verb: str, reason: str, span: str, key: Path | None, about: dict[str, Any]) -> Asking:
    from reconciler.model.request import Ask
    from reconciler.runtime.proposals.requesting import Asking

    try:
        lasts = Nanoseconds(parse_duration(span))
    except ValueError as err:
        raise UsageError(f"--for: {err}", code="BadDuration", remedy="such as --for 2h") from err
    return Asking(ask=Ask(verb), span=lasts, reason=reason, key=key, **about)


def ask(clone: Clone, desk: Desk, asking: Asking, wishes: Wishes) -> str:
    """Push the request, once it is agreed to; its branch, "" for a dry run. With `--wait`, the reconciler's answer too.

    Raises what `push_request` does; GangOpsError (RequestRefused); NotFound (TimedOut).
    """
    from reconciler.runtime.proposals.requesting import check_key, prepare, push_request

    prepared = prepare(desk, asking, now())
    if wishes.dry_run:
        if wishes.output == "table":
            click.echo(f"Would ask   {_title(prepared)}")
        return ""
    check_key(clone, asking.key)
    confirm(wishes, f"{_title(prepared)}: ask for it now?")
    push_request(clone, prepared, asking.key)
    if wishes.output == "table":
        click.echo(f"Asked   {prepared.branch}  {_title(prepared)}")
    if wishes.wait:
        answered(clone, prepared.name, wishes.timeout)
    return prepared.branch


def _title(prepared: Prepared) -> str:
    from reconciler.render.names import when

    return f"{prepared.title} until {when(prepared.wish.expires)}"


def answered(clone: Clone, name: str, timeout: float) -> Request:
    """Wait until the record says something of a request. Raises: GangOpsError (RequestRefused); NotFound (TimedOut)."""
    from reconciler.render.story import request_line
    from reconciler.runtime.proposals.requesting import answer_to

    begun = time.monotonic()
    while True:
        clone.refresh()
        found = answer_to(clone, name)
        if found is not None and found.refusal is not None:
            raise _RequestRefused(
                f"request {name} was refused: {found.told}",
                code="RequestRefused",
                remedy=f"{found.refusal.value}: gangops get requests",
            )
        if found is not None:
            click.echo(request_line(found), err=True)
            return found
        if time.monotonic() - begun > timeout:
            raise NotFound(f"nobody answered request {name}", code="TimedOut", remedy="gangops get requests")
        time.sleep(POLL_SECONDS)


class _RequestRefused(GangOpsError):
    exit_status = ExitStatus.INVALID


@click.command()
@click.argument("queue", required=False, default="", shell_complete=completing.queues)
@click.option("--all", "whole", is_flag=True, help="The whole cluster.")
@at_once("4h")
@reason_option
@proposing
@click.pass_obj
def freeze(
    repo: Path, queue: str, why: str, *, whole: bool, now_as: Callable[..., Asking | None], wishes: Wishes
) -> int:  # fmt: skip
    """Ask that nothing of QUEUE, or of the whole cluster (--all), starts for a while; what runs goes on.

    There is no lasting form of it in a file: it takes --now, ends by itself, and cannot be taken back before, so
    keep --for short. A queue that shall start nothing for good has a ceiling of 0 (`gangops quota set`).
    """
    if bool(queue) == whole:
        raise UsageError("freeze what?", code="NothingAsked", remedy="name one QUEUE, or --all")
    asking = now_as("freeze", why, queue=queue)
    if asking is None:
        raise UsageError(
            "a freeze is only ever asked for", code="NothingAsked",
            remedy=f"gangops freeze {queue or '--all'} --now --for 2h --reason WHY",
        )  # fmt: skip
    clone, desk = desk_at(repo, dry_run=wishes.dry_run)
    branch = ask(clone, desk, asking, wishes)
    if wishes.output == "json":
        print_json("Request", {"verb": "freeze", "queue": queue, "request": branch})
    elif wishes.output == "name" and branch:
        click.echo(branch)
    return ExitStatus.OK
