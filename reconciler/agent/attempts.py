"""What follows for one attempt from its order and what is seen of it? A table of rules, first match wins; pure.

`judge` neither reads nor acts: `runtime` looks, asks here, and does what is answered. Nothing else remembers how
far a stop has come, so an agent killed at any line goes on from what it sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

SECOND = 1_000_000_000
KILL_PATIENCE = 10 * SECOND
"""How long a killed process may take to disappear before its GPUs are called stuck."""


class State(str, Enum):
    """What is reported of an attempt: the values of model.observed.AttemptState."""

    PREPARING = "Preparing"
    PREPARED = "Prepared"
    RUNNING = "Running"
    STOPPING = "Stopping"
    EXITED = "Exited"
    GONE = "Gone"
    REFUSED = "Refused"
    KILL_FAILED = "KillFailed"

    def __str__(self) -> str:
        return self.value


class Stage(str, Enum):
    """How far the node has come with an attempt, as its journal knows. Prepared and launched were promised."""

    NEW = "new"
    PREPARING = "preparing"
    PREPARED = "prepared"
    REFUSED = "refused"
    LAUNCHED = "launched"
    ENDED = "ended"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class LaunchedSeen:
    """One launched process. `alive`: something of it is left. `lost`: its shim is gone and left no exit status.

    `code` and `ended_at` (ns) are of its main process. `cause` is why it was ended: order, deadline, lease, shim, "".
    `killed_at` is the boottime of the first SIGKILL.
    """

    rank: int
    started: bool = False
    alive: bool = True
    lost: bool = False
    code: int | None = None
    ended_at: int = 0
    cause: str = ""
    error: str = ""
    signalled: bool = False
    terminating: bool = False
    killed_at: int | None = None


@dataclass(frozen=True)
class Seen:
    """Everything seen of an attempt at one moment. `now`, `begun` are boottime ns; `marker`, `baseline` mtimes in ns.

    `expected` is the number of processes; `launched` those that have a shim. `launching`: a launcher still works.
    `rebooted`: it was launched in an earlier boot. `launch_failed`: the launcher ended without starting them all.
    """

    stage: Stage
    now: int
    expected: int = 0
    launched: tuple[LaunchedSeen, ...] = ()
    launching: bool = False
    launch_failed: str = ""
    rebooted: bool = False
    begun: int | None = None
    baseline: int | None = None
    marker: int | None = None
    ended: State | None = None
    code: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Wanted:
    """What is ordered: a phase, and how to stop. `signals` names the local ranks that are asked for a checkpoint."""

    phase: str
    grace_seconds: int = 0
    signals: tuple[int, ...] = ()


class Do(str, Enum):
    """What to do next. All of them are safe to repeat."""

    PREPARE = "prepare"
    LAUNCH = "launch"
    BEGIN_CHECKPOINT = "begin checkpoint"
    SIGNAL = "signal"
    TERM = "term"
    SWEEP = "sweep"
    FORGET = "forget"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Action:
    """One thing to do, to one launched process when `rank` is given."""

    do: Do
    rank: int = -1


@dataclass(frozen=True)
class Verdict:
    """What to report, and what to do. `code` is the first failing rank's exit code, 0 when all ended well."""

    state: State
    actions: tuple[Action, ...] = ()
    code: int | None = None
    reason: str = ""


def judge(wanted: Wanted | None, seen: Seen) -> Verdict:
    """What follows; `wanted` is None when no accepted order names the attempt, which means: stop it."""
    phase = wanted.phase if wanted else "stop"
    if seen.stage in (Stage.ENDED, Stage.REFUSED):  # final for this attempt, whatever is ordered now
        state = State.REFUSED if seen.stage is Stage.REFUSED else seen.ended or State.GONE
        return Verdict(state, () if wanted else (Action(Do.FORGET),), seen.code, seen.reason)
    if seen.rebooted:  # nothing from before is left, and nothing of it is adopted
        return Verdict(State.GONE, reason="Rebooted")
    if seen.stage in (Stage.NEW, Stage.PREPARING):
        return _unprepared(phase, seen)
    if seen.stage is Stage.PREPARED:
        return _prepared(phase)
    if phase in ("prepare", "run"):
        return _going(seen)
    return _ending(wanted or Wanted("stop"), seen)


def _unprepared(phase: str, seen: Seen) -> Verdict:
    if phase == "prepare":
        return Verdict(State.PREPARING, (Action(Do.PREPARE),) if seen.stage is Stage.NEW else ())
    if phase == "run":  # we never said "prepared": whoever did was an agent whose journal is lost
        return Verdict(State.GONE, reason="NeverPrepared")
    return Verdict(State.GONE)


def _prepared(phase: str) -> Verdict:
    if phase == "prepare":
        return Verdict(State.PREPARED)
    if phase == "run":
        return Verdict(State.PREPARED, (Action(Do.LAUNCH),))
    return Verdict(State.GONE)


def _going(seen: Seen) -> Verdict:
    """Ordered to run, launched: start, run, exit; the first failure ends the rest."""
    alive = [p for p in seen.launched if p.alive]
    failed = bool(seen.launch_failed) or any(p.code or p.lost or p.error or p.cause for p in seen.launched)
    missing = seen.expected - len(seen.launched)
    if missing and not seen.launching and not failed:  # an agent died while launching; shims that are there stay
        return Verdict(State.PREPARED, (Action(Do.LAUNCH),))
    if not alive and not seen.launching and (failed or not missing):
        return _over(seen, ended_by_itself=True)
    if failed:
        return _stopping(seen)
    if not missing and all(p.started for p in seen.launched):
        return Verdict(State.RUNNING)
    return Verdict(State.PREPARED)


def _ending(wanted: Wanted, seen: Seen) -> Verdict:
    """Ordered to checkpoint or to stop, launched."""
    if seen.launching:
        return Verdict(State.STOPPING)
    if not any(p.alive for p in seen.launched):
        return _over(seen, ended_by_itself=False)
    failed = any(p.code or p.lost or p.cause for p in seen.launched)
    if wanted.phase != "checkpoint" or failed:
        return _stopping(seen)
    if seen.begun is None:
        return Verdict(State.STOPPING, (Action(Do.BEGIN_CHECKPOINT),))
    saved = seen.marker is not None and (seen.baseline is None or seen.marker > seen.baseline)
    if saved or seen.now >= seen.begun + wanted.grace_seconds * SECOND:
        return _stopping(seen)
    asked = [p.rank for p in seen.launched if p.rank in wanted.signals and p.alive and not p.signalled]
    return Verdict(State.STOPPING, tuple(Action(Do.SIGNAL, rank) for rank in asked))


def _stopping(seen: Seen) -> Verdict:
    """TERM what was not told yet; its shim kills after killSeconds by itself. What survives a kill is said so."""
    actions = [Action(Do.TERM, p.rank) for p in seen.launched if p.alive and not p.terminating and not p.lost]
    actions += [Action(Do.SWEEP, p.rank) for p in seen.launched if p.alive and p.lost]
    stuck = [p for p in seen.launched if p.alive and p.killed_at is not None and seen.now > p.killed_at + KILL_PATIENCE]
    if stuck:
        ranks = ", ".join(str(p.rank) for p in stuck)
        return Verdict(State.KILL_FAILED, tuple(actions), reason=f"KillFailed: rank {ranks} survives SIGKILL")
    return Verdict(State.STOPPING, tuple(actions))


def _over(seen: Seen, *, ended_by_itself: bool) -> Verdict:
    """No process is left. The exit code is that of the process that failed first."""
    bad = sorted((p.ended_at, p.rank, p) for p in seen.launched if p.code or p.lost or p.error)
    first = bad[0][2] if bad else None
    code = (first.code or 137) if first else (0 if seen.launched else None)
    for cause, name in _ENDED_ALONE.items():
        if any(p.cause == cause for p in seen.launched):
            return Verdict(State.GONE, code=code, reason=name)
    failure = seen.launch_failed or (first.error if first else "")
    if failure:
        code = (code or 126) if seen.launched else None
    reason = f"LaunchFailed: {failure}" if failure else "ShimLost" if first and first.lost else ""
    by_itself = ended_by_itself and bool(seen.launched)
    return Verdict(State.EXITED if by_itself else State.GONE, code=code, reason=reason)


_ENDED_ALONE = {"lease": "LeaseExpired", "deadline": "DeadlinePassed", "shim": "NodeShutdown"}
"""Why a shim ended its process without being told by its agent, the strongest reason first."""
