"""Slurm's command line, each call with a time limit: `squeue`, `sinfo`, `scontrol`, `sbatch`, `scancel`.

A client of Slurm waits a minute or more for a controller that is down; none of ours does. What a call prints is for
`reading`, what it may say for `submit`. Calls that only look have their own method, so that a shadow can be given
nothing else.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from reconciler.engines.slurm.reading import jobs_of, nodes_of, partitions_of, version_of
from reconciler.engines.slurm.seen import Partition, Sight
from reconciler.errors import EngineRefused, EngineUnavailable
from reconciler.model.units import SECOND, Nanoseconds
from reconciler.wire import BadMessage

DEFAULT_TIMEOUT: Final = Nanoseconds(10 * SECOND)
_MOST_OUTPUT: Final = 256 << 20
_PASSED_ON: Final = ("PATH", "SLURM_CONF", "HOME", "USER", "LD_LIBRARY_PATH", "SLURM_JWT")
# Slurm's own words for a controller that does not answer; everything else is an answer.
_AWAY: Final = (
    "Unable to contact slurm controller",
    "Connection refused",
    "Socket timed out",
    "Connection timed out",
    "Zero Bytes were transmitted",
    "Slurm backup controller in standby mode",
    "Unexpected message received",
    "Communication connection failure",
    "Resource temporarily unavailable",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One call that ended in time."""

    status: int
    out: str
    err: str


class Runner(Protocol):
    """Starts one command and waits for it. Raises: EngineUnavailable (SlurmMissing, SlurmTimedOut)."""

    def __call__(self, argv: Sequence[str], *, given: str = "", timeout: Nanoseconds = DEFAULT_TIMEOUT) -> Ended: ...


def run(argv: Sequence[str], *, given: str = "", timeout: Nanoseconds = DEFAULT_TIMEOUT) -> Ended:
    """`Runner` over real processes. Nothing of our environment reaches a job but where programs and Slurm are."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {"LC_ALL": "C.UTF-8"}
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as err:
        raise EngineUnavailable(
            f"{argv[0]} cannot be started: {err.strerror or err}",
            code="SlurmMissing",
            remedy="Install Slurm's client commands here, and put them on the PATH of the reconciler.",
        ) from err
    try:
        out, errors = child.communicate(given, timeout=timeout / SECOND)
    except subprocess.TimeoutExpired as err:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise EngineUnavailable(
            f"{argv[0]} has not answered within {timeout // SECOND} s",
            code="SlurmTimedOut",
            remedy="Is slurmctld running and reachable from here? `scontrol ping` says so.",
        ) from err
    return Ended(status=child.returncode, out=out[:_MOST_OUTPUT], err=errors[:4096])


class Reader:
    """The commands that only look. `version` is asked for once."""

    def __init__(self, runner: Runner = run, timeout: Nanoseconds = DEFAULT_TIMEOUT) -> None:
        self._runner = runner
        self._timeout = timeout
        self._version: tuple[int, int] | None = None

    @property
    def version(self) -> tuple[int, int]:
        """(22, 5), (24, 11), ... of the commands installed here. Raises: EngineUnavailable, BadMessage."""
        if self._version is None:
            self._version = version_of(self.ask("sinfo", "--version"))
        return self._version

    def look(self) -> Sight:
        """Nodes and jobs. The jobs are read after the nodes. Raises: EngineUnavailable."""
        try:
            nodes = nodes_of(self.ask(*self.nodes_argv))
            return Sight(nodes=nodes, jobs=jobs_of(self.ask("squeue", "--json", "-t", "all")))
        except BadMessage as err:
            raise EngineUnavailable(
                f"what Slurm printed cannot be read: {err.message}",
                code="SlurmUnreadable",
                remedy="Is this Slurm 22.05 or later, with its JSON plugin? `squeue --json` must print JSON.",
            ) from err

    @property
    def nodes_argv(self) -> tuple[str, ...]:
        """`scontrol` has no JSON before 23.02, and later `sinfo --json` no longer lists node by node."""
        return ("sinfo", "--json") if self.version < (23, 2) else ("scontrol", "show", "node", "--json")

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions. Raises: EngineUnavailable."""
        return partitions_of(self.ask("scontrol", "show", "partition", "-o"))

    def ask(self, *argv: str) -> str:
        """What one command prints. Raises: EngineUnavailable (also when it failed), since a look is never refused."""
        ended = self._runner(argv, timeout=self._timeout)
        if ended.status:
            raise _away(argv[0], ended)
        return ended.out


class Commands(Reader):
    """The commands that change something as well."""

    def submit(self, options: Sequence[str], script: str) -> int:
        """The number of the job. Raises: EngineRefused (SlurmRefused); EngineUnavailable, and then it may be in."""
        ended = self._runner(("sbatch", "--parsable", *options), given=script, timeout=self._timeout)
        number = ended.out.strip().partition(";")[0]
        if ended.status or not number.isdecimal():
            raise _failure("sbatch", ended)
        return int(number)

    def cancel(self, *jobs: int) -> None:
        """End these jobs; one that has ended already is no failure. Raises: EngineUnavailable."""
        self._tell("scancel", *map(str, jobs))

    def signal(self, name: str, job: int) -> None:
        """A signal to all ranks of a job, not to its script. Raises: EngineUnavailable."""
        self._tell("scancel", f"--signal={name.removeprefix('SIG')}", str(job))

    def update(self, job: int, **fields: str) -> None:
        """Change fields of a job. Raises: EngineUnavailable, EngineRefused."""
        ended = self._runner(
            ("scontrol", "update", f"JobId={job}", *(f"{key}={value}" for key, value in fields.items())),
            timeout=self._timeout,
        )
        if ended.status:
            raise _failure("scontrol", ended)

    def _tell(self, *argv: str) -> None:
        ended = self._runner(argv, timeout=self._timeout)
        if ended.status and any(words in ended.err for words in _AWAY):
            raise _away(argv[0], ended)


def _failure(command: str, ended: Ended) -> EngineUnavailable | EngineRefused:
    if any(words in ended.err for words in _AWAY):
        return _away(command, ended)
    return EngineRefused(_first_line(ended.err) or f"{command} ended with status {ended.status}", code="SlurmRefused")


def _away(command: str, ended: Ended) -> EngineUnavailable:
    return EngineUnavailable(
        f"{command}: {_first_line(ended.err) or f'ended with status {ended.status}'}",
        code="SlurmUnavailable",
        remedy="Is slurmctld running and reachable from here? `scontrol ping` says so.",
    )


def _first_line(text: str) -> str:
    """The line that says what was wrong: the last error, without Slurm's prefixes."""
    lines = [line.partition("error: ")[2] or line for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "Batch job submission failed" in line] or lines
    return told[-1].strip()[:200] if told else ""
