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

    _have_streams()
    if "_GANGOPS_COMPLETE" in os.environ:
        sys.exit(_complete(root))
    try:
        # Not root.main: click would turn a reader that went away into a failure.
        with root.make_context("gangops", sys.argv[1:]) as context:
            status = root.invoke(context)
        sys.stdout.flush()  # a full disk is told like any other error, not at interpreter exit
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
        # The reader went away (`| head`): nobody is left to tell.
        _drop_output()
        sys.exit(ExitStatus.OK)
    except GangOpsError as err:
        _tell(err)
        sys.exit(err.exit_status)
    except OSError as err:
        _tell(_of_this_machine(err))
        _drop_output()
        sys.exit(ExitStatus.ERROR)
    except Exception as err:  # noqa: BLE001  a person gets a place and a remedy, the traceback goes into a file
        _tell(_our_bug(err))
        sys.exit(ExitStatus.ERROR)
    sys.exit(status if isinstance(status, int) else ExitStatus.OK)


def _complete(root: click.Group) -> int:
    """Answer the shell, which asks for completions by this variable; nothing is ever printed but those."""
    from click.shell_completion import shell_complete

    return shell_complete(root, {}, "gangops", "_GANGOPS_COMPLETE", os.environ["_GANGOPS_COMPLETE"])


def _have_streams() -> None:
    """Closed standard streams become /dev/null: a verb run by a daemon may have none."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115  open until we end


def _drop_output() -> None:
    """Nothing more may be written to stdout, not even what is buffered, when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _of_this_machine(err: OSError) -> GangOpsError:
    """What the operating system refused, which no verb expected: the path and the reason are all there is to say."""
    names = [os.fsdecode(name) for name in (err.filename, err.filename2) if isinstance(name, str | bytes)]
    where = f"{' -> '.join(names)}: " if names else ""
    return GangOpsError(
        f"{where}{err.strerror or err}",
        code="OperatingSystem",
        remedy="Check the path, its permissions and free space.",
    )


def _our_bug(err: Exception) -> GangOpsError:
    """One line of what broke and where; the traceback goes into a file, since it may never happen again."""
    import tempfile
    import traceback

    frames = traceback.extract_tb(err.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""  # noqa: PTH119  pathlib may be what broke
    try:
        file, path = tempfile.mkstemp(prefix="gangops-bug-", suffix=".txt")
        os.write(file, "".join(traceback.format_exception(err)).encode("utf-8", "replace"))
        os.close(file)
    except OSError:
        path = "no file, the disk would not have it"
    return GangOpsError(
        f"{type(err).__name__}: {err}{where}",
        code="Bug",
        remedy=f"This is a defect of gangops. Please report it with its traceback, which is in {path}",
    )


def _tell(err: GangOpsError) -> None:
    if isinstance(err, InvalidInput):
        click.echo(_fitted(err.message), err=True)
        return
    click.echo(_fitted(f"error[{err.code}]: {err.message}"), err=True)
    if err.remedy:
        click.echo(_fitted(f"  {err.remedy}"), err=True)


def _fitted(text: str) -> str:
    """The text with its lines broken between words at the edge of the terminal; as it is off one, where tools read it."""
    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # no terminal, or no file at all
        return text
    from reconciler.render.table import continued

    return "\n".join(
        row for line in text.split("\n") for row in continued(line, width or 80, 0 if line[:1] == " " else 2)
    )
