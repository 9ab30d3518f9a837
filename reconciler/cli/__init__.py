"""The command line: options in, exit status out. Every verb is imported only when it is used.

Belongs here: words, options, and which renderer prints what. Does not belong here: anything a test of the product
would want to call without a terminal.
"""

from __future__ import annotations

import os
import sys

import click

from reconciler.errors import ExitStatus, GangOpsError, InvalidInput


def main() -> None:
    """Entry point of `gangops`: runs one verb and maps every error of ours to its one exit status."""
    from reconciler.cli.root import root

    try:
        # Not root.main: click would turn a reader that went away into a failure.
        with root.make_context("gangops", sys.argv[1:]) as context:
            status = root.invoke(context)
    except click.exceptions.Exit as err:
        sys.exit(err.exit_code)
    except click.exceptions.Abort:
        sys.exit(ExitStatus.INTERRUPTED)
    except click.ClickException as err:
        err.show()
        sys.exit(ExitStatus.USAGE)
    except KeyboardInterrupt:
        sys.exit(ExitStatus.INTERRUPTED)
    except BrokenPipeError:
        # The reader went away (`| head`): nobody is left to tell, and nothing may be written at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitStatus.OK)
    except GangOpsError as err:
        _tell(err)
        sys.exit(err.exit_status)
    sys.exit(status if isinstance(status, int) else ExitStatus.OK)


def _tell(err: GangOpsError) -> None:
    if isinstance(err, InvalidInput):
        click.echo(err.message, err=True)
        return
    click.echo(f"error[{err.code}]: {err.message}", err=True)
    if err.remedy:
        click.echo(f"  {err.remedy}", err=True)
