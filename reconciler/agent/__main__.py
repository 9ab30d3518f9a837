"""`python -m reconciler.agent run --conf FILE`: the node agent. It ends on SIGTERM and leaves every rank running.

`check --conf FILE` only reads the configuration; `zipapp TARGET` writes the agent as one file.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from reconciler.errors import ExitStatus, GangOpsError

if TYPE_CHECKING:
    from reconciler.agent.identity import Renewal
    from reconciler.agent.link import Link
    from reconciler.agent.runtime import Keeper


def main(arguments: list[str] | None = None) -> int:
    """Exit status of the agent's command line."""
    parser = argparse.ArgumentParser(prog="gangops-agent", description="The GangOps node agent.")
    asked = sys.argv[1:] if arguments is None else arguments
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (("run", "run until SIGTERM; ranks outlive it"), ("check", "only read the configuration")):
        shown = verbs.add_parser(
            verb, help=text, epilog=_keys(asked), formatter_class=argparse.RawDescriptionHelpFormatter
        )
        shown.add_argument("--conf", type=Path, required=True, help="agent.conf, written by nobody but its owner")
    enrolling = verbs.add_parser("enroll", help="get this node's certificate for a token of `gangops ca token`")
    enrolling.add_argument("--conf", type=Path, required=True, help="agent.conf; ca, cert and key of [tls] are written")
    enrolling.add_argument("--token", required=True, help="the token, or - to read it from standard input")
    enrolling.add_argument("--at", required=True, metavar="URL", help="https://HOST:PORT of agents.enroll")
    knocking = verbs.add_parser("pam", help="answer pam_exec: may PAM_USER come in by ssh, and in which job's bounds")
    knocking.add_argument("--conf", type=Path, required=True, help="agent.conf")
    verbs.add_parser("zipapp", help="write the agent as one file").add_argument("target", type=Path)
    verbs.add_parser("shim").add_argument("spec")
    chosen = parser.parse_args(asked)
    try:
        if chosen.verb == "zipapp":
            from reconciler.agent.zipapp import build_zipapp

            build_zipapp(chosen.target)
            return 0
        if chosen.verb == "shim":
            from reconciler.agent import shim

            return shim.main([chosen.spec])
        if chosen.verb == "pam":
            from reconciler.agent import pam

            return pam.main(chosen.conf)
        if chosen.verb == "enroll":
            return _enroll(chosen.conf, chosen.token, chosen.at)
        return _run(chosen.conf, only_check=chosen.verb == "check")
    except GangOpsError as err:
        print(err, file=sys.stderr)  # noqa: T201 - the command line's output
        return int(err.exit_status)


def _enroll(path: Path, token: str, at: str) -> int:
    from reconciler.agent.conf import read_conf
    from reconciler.agent.identity import enroll, lifetime_of

    conf = read_conf(path)
    enroll(conf, sys.stdin.readline() if token == "-" else token, at)  # noqa: S105 - a sign, no secret
    days = -((int(time.time()) - lifetime_of(conf.cert)[1]) // 86400)  # one that has begun counts
    print(f"{conf.cert}  {conf.node}, good for {days} days; the agent renews it by itself")  # noqa: T201 - output
    return int(ExitStatus.OK)


def _keys(asked: list[str]) -> str:
    """The reference of agent.conf, for who asks for help; what launches shims is spared the import."""
    if not {"-h", "--help"} & set(asked):
        return ""
    from reconciler.agent.conf import KEYS

    return KEYS


def _run(path: Path, *, only_check: bool) -> int:
    from reconciler.agent.conf import read_conf

    conf = read_conf(path)
    if only_check:
        return int(ExitStatus.OK)
    from reconciler.agent.cgroups import said_of
    from reconciler.agent.identity import Renewal, settle
    from reconciler.agent.link import Link, state_folder
    from reconciler.agent.runtime import Keeper
    from reconciler.agent.say import Voice
    from reconciler.agent.visits import Visits
    from reconciler.agent.vitals import Vitals

    say = Voice(conf.node)
    folder = state_folder(conf.state_dir)
    with (folder / "lock").open("w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GangOpsError(f"another agent runs with {folder}", code="AlreadyRunning") from None
        events = folder / "events"
        with contextlib.suppress(FileExistsError):
            os.mkfifo(events, 0o600)
        # Read and write: shims come and go, and the FIFO must never report end of file.
        heard = os.open(events, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        link = Link(conf, say)
        keeper = Keeper(conf, say, events, link.changed)
        link.keeper = keeper
        link.vitals = Vitals(conf, keeper.roster.bound)
        link.visits = Visits(keeper.roster, conf.trust.cluster, say)
        settle(conf)
        renewal = Renewal(conf, say, link.redial)
        say(f"started (pid {os.getpid()}), generation {keeper.roster.journal.accepted.generation} held")
        say(f"cgroups: {said_of(keeper.launchers.hierarchies)}")
        link.vitals.start()
        _loop(keeper, link, renewal, heard)
        say("stopped; ranks run on")
    return int(ExitStatus.OK)


def _loop(keeper: Keeper, link: Link, renewal: Renewal, heard: int) -> None:
    ended: list[int] = []
    wake_in, wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_out)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda number, _: ended.append(number))
    # An agent without one of its threads would look alive and be of no use: end, and be started again.
    threading.excepthook = lambda failed: _give_up(keeper, failed)
    for thread in (keeper.checkup, keeper.lookout, link, renewal):
        thread.start()
    watched: dict[int, int] = {}
    while not ended:
        keeper.step()
        _watch_shims(keeper.roster.shim_pids(), watched)
        ready, _, _ = select.select([heard, wake_in, *watched.values()], [], [], keeper.patience())
        for fd in {heard, wake_in} & set(ready):
            with contextlib.suppress(BlockingIOError):
                os.read(fd, 65536)


def _give_up(keeper: Keeper, failed: threading.ExceptHookArgs) -> None:
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    keeper.say(f"thread {failed.thread.name if failed.thread else ''} failed; ending, ranks run on")
    os._exit(int(ExitStatus.ERROR))


def _watch_shims(living: set[int], watched: dict[int, int]) -> None:
    """Keep a pidfd for each living shim: one that dies without a word wakes us at once."""
    for pid in set(watched) - living:
        os.close(watched.pop(pid))
    for pid in living - set(watched):
        with contextlib.suppress(OSError):  # gone already, or a kernel without pidfds: the clock will notice
            watched[pid] = os.pidfd_open(pid)


if __name__ == "__main__":
    sys.exit(main())
