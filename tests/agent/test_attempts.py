"""The table of an attempt's life: what is ordered and seen on the left, what is reported and done on the right."""

from __future__ import annotations

import pytest

from reconciler.agent.attempts import (
    KILL_PATIENCE,
    SECOND,
    Action,
    Do,
    LaunchedSeen,
    Seen,
    Stage,
    State,
    Verdict,
    Wanted,
    judge,
)
from reconciler.model.observed import DEADLINE_PASSED, ENDED_BY_NODE, AttemptState

PREPARE, RUN, STOP = Wanted("prepare"), Wanted("run"), Wanted("stop")
CHECKPOINT = Wanted("checkpoint", 60, (0,))
NOW = 1000 * SECOND


def rank(number: int = 0, **facts: object) -> LaunchedSeen:
    return LaunchedSeen(**{"rank": number, "started": True, **facts})  # type: ignore[arg-type]  # fields by name


def launched(*ranks: LaunchedSeen, **facts: object) -> Seen:
    return Seen(**{"stage": Stage.LAUNCHED, "now": NOW, "expected": len(ranks), "launched": ranks, **facts})  # type: ignore[arg-type]  # fields by name


def ended(number: int = 0, code: int | None = 0, **facts: object) -> LaunchedSeen:
    return rank(number, **{"alive": False, "code": code, **facts})


def do(*what: tuple[Do, int] | Do) -> tuple[Action, ...]:
    return tuple(Action(w) if isinstance(w, Do) else Action(*w) for w in what)


NEW, PREPARING, PREPARED = (Seen(stage, NOW) for stage in (Stage.NEW, Stage.PREPARING, Stage.PREPARED))
EXITED = Seen(Stage.ENDED, NOW, ended=State.EXITED, code=3, reason="r")
BEGUN = {"begun": NOW - 5 * SECOND, "baseline": 100}
CASES: list[tuple[str, Wanted | None, Seen, Verdict]] = [
    ("prepare begins", PREPARE, NEW, Verdict(State.PREPARING, do(Do.PREPARE))),
    ("preparing goes on", PREPARE, PREPARING, Verdict(State.PREPARING)),
    ("prepared waits", PREPARE, PREPARED, Verdict(State.PREPARED)),
    ("run without a promise is no run", RUN, NEW, Verdict(State.GONE, reason="NeverPrepared")),
    ("run without the whole promise is no run", RUN, PREPARING, Verdict(State.GONE, reason="NeverPrepared")),
    ("run launches", RUN, PREPARED, Verdict(State.PREPARED, do(Do.LAUNCH))),
    ("stop before prepare", STOP, NEW, Verdict(State.GONE)),
    ("stop while preparing", STOP, PREPARING, Verdict(State.GONE)),
    ("stop before run", STOP, PREPARED, Verdict(State.GONE)),
    ("checkpoint before run", CHECKPOINT, PREPARED, Verdict(State.GONE)),
    ("prepared, then forgotten by git", None, PREPARED, Verdict(State.GONE)),
    (
        "refused stays refused",
        RUN,
        Seen(Stage.REFUSED, NOW, reason="PortInUse: x"),
        Verdict(State.REFUSED, reason="PortInUse: x"),
    ),
    ("a final state stays", RUN, EXITED, Verdict(State.EXITED, (), 3, "r")),
    ("a final state is forgotten", None, EXITED, Verdict(State.EXITED, do(Do.FORGET), 3, "r")),
    ("a reboot ends all", RUN, launched(rebooted=True), Verdict(State.GONE, reason="Rebooted")),
    ("all started", RUN, launched(rank(0), rank(1)), Verdict(State.RUNNING)),
    ("one not started yet", RUN, launched(rank(0), rank(1, started=False)), Verdict(State.PREPARED)),
    ("still launching", RUN, launched(rank(0), expected=2, launching=True), Verdict(State.PREPARED)),
    ("a launch cut short is taken up", RUN, launched(rank(0), expected=2), Verdict(State.PREPARED, do(Do.LAUNCH))),
    ("a phase never goes back", PREPARE, launched(rank(0)), Verdict(State.RUNNING)),
    ("one ended well, one runs", RUN, launched(ended(0), rank(1)), Verdict(State.RUNNING)),
    ("all ended well", RUN, launched(ended(0), ended(1)), Verdict(State.EXITED, (), 0)),
    ("one failed, the other is ended", RUN, launched(ended(0, 7), rank(1)), Verdict(State.STOPPING, do((Do.TERM, 1)))),
    ("told once is enough", RUN, launched(ended(0, 7), rank(1, terminating=True)), Verdict(State.STOPPING)),
    (
        "the first failure counts, not its consequences",
        RUN,
        launched(ended(0, 143, ended_at=9, cause="order"), ended(1, 7, ended_at=5)),
        Verdict(State.EXITED, (), 7),
    ),
    ("failed but its children linger", RUN, launched(rank(0, code=7, terminating=True)), Verdict(State.STOPPING)),
    (
        "a shim was lost with its rank",
        RUN,
        launched(ended(0, lost=True, code=None)),
        Verdict(State.EXITED, (), 137, "ShimLost"),
    ),
    ("a shim was lost, not its rank", RUN, launched(rank(0, lost=True)), Verdict(State.STOPPING, do((Do.SWEEP, 0)))),
    (
        "it could not be executed",
        RUN,
        launched(ended(0, 127, error="No such file: x")),
        Verdict(State.EXITED, (), 127, "LaunchFailed: No such file: x"),
    ),
    (
        "nothing could be launched",
        RUN,
        launched(expected=2, launch_failed="no memory"),
        Verdict(State.GONE, (), None, "LaunchFailed: no memory"),
    ),
    (
        "half a gang is ended",
        RUN,
        launched(rank(0), expected=2, launch_failed="no memory"),
        Verdict(State.STOPPING, do((Do.TERM, 0))),
    ),
    (
        "half a gang never succeeds",
        RUN,
        launched(ended(0), expected=2, launch_failed="no memory"),
        Verdict(State.EXITED, (), 126, "LaunchFailed: no memory"),
    ),
    ("over the deadline", RUN, launched(ended(0, cause="deadline")), Verdict(State.GONE, (), 0, "DeadlinePassed")),
    ("the lease ended", RUN, launched(ended(0, 137, cause="lease")), Verdict(State.GONE, (), 137, "LeaseExpired")),
    ("the node shuts down", RUN, launched(ended(0, cause="shim")), Verdict(State.GONE, (), 0, "NodeShutdown")),
    (
        "one over its deadline ends the gang",
        RUN,
        launched(ended(0, cause="deadline"), rank(1)),
        Verdict(State.STOPPING, do((Do.TERM, 1))),
    ),
    ("stop", STOP, launched(rank(0), rank(1)), Verdict(State.STOPPING, do((Do.TERM, 0), (Do.TERM, 1)))),
    ("stop waits for what launches", STOP, launched(rank(0), launching=True), Verdict(State.STOPPING)),
    ("nobody ordered it", None, launched(rank(0)), Verdict(State.STOPPING, do((Do.TERM, 0)))),
    ("stopped", STOP, launched(ended(0, 143)), Verdict(State.GONE, (), 143)),
    ("stopped before any shim", STOP, launched(), Verdict(State.GONE)),
    (
        "a kill takes a moment",
        STOP,
        launched(rank(0, terminating=True, killed_at=NOW - KILL_PATIENCE)),
        Verdict(State.STOPPING),
    ),
    (
        "what survives a kill is said so",
        STOP,
        launched(rank(0, terminating=True, killed_at=NOW - KILL_PATIENCE - 1)),
        Verdict(State.KILL_FAILED, reason="KillFailed: rank 0 survives SIGKILL"),
    ),
    ("checkpoint begins", CHECKPOINT, launched(rank(0)), Verdict(State.STOPPING, do(Do.BEGIN_CHECKPOINT))),
    (
        "then the leader is asked",
        CHECKPOINT,
        launched(rank(0), rank(1), marker=100, **BEGUN),
        Verdict(State.STOPPING, do((Do.SIGNAL, 0))),
    ),
    (
        "and waited for",
        CHECKPOINT,
        launched(rank(0, signalled=True), rank(1), marker=100, **BEGUN),
        Verdict(State.STOPPING),
    ),
    (
        "a newer marker ends the wait",
        CHECKPOINT,
        launched(rank(0, signalled=True), rank(1), marker=101, **BEGUN),
        Verdict(State.STOPPING, do((Do.TERM, 0), (Do.TERM, 1))),
    ),
    (
        "the first marker ever too",
        CHECKPOINT,
        launched(rank(0, signalled=True), marker=1, begun=NOW, baseline=None),
        Verdict(State.STOPPING, do((Do.TERM, 0))),
    ),
    (
        "the grace ends",
        CHECKPOINT,
        launched(rank(0, signalled=True), begun=NOW - 60 * SECOND),
        Verdict(State.STOPPING, do((Do.TERM, 0))),
    ),
    (
        "no grace is left to a gang that failed",
        CHECKPOINT,
        launched(ended(0, 1), rank(1), **BEGUN),
        Verdict(State.STOPPING, do((Do.TERM, 1))),
    ),
    (
        "a stop overtakes a checkpoint",
        STOP,
        launched(rank(0, signalled=True), **BEGUN),
        Verdict(State.STOPPING, do((Do.TERM, 0))),
    ),
    ("it ended while saving", CHECKPOINT, launched(ended(0), **BEGUN), Verdict(State.GONE, (), 0)),
]


@pytest.mark.parametrize(("wanted", "seen", "verdict"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_follows(wanted: Wanted | None, seen: Seen, verdict: Verdict) -> None:
    assert judge(wanted, seen) == verdict


def test_states_are_those_of_the_model() -> None:
    assert {str(state) for state in State} == {str(state) for state in AttemptState}


def test_nothing_is_ever_released_while_a_process_is_left() -> None:
    """Promise 3: a GPU is free only after it was seen free, whatever is ordered and whatever went wrong."""
    released = (State.EXITED, State.GONE, State.REFUSED)
    for wanted in (PREPARE, RUN, CHECKPOINT, STOP, None):
        for facts in ({}, {"lost": True}, {"code": 1}, {"cause": "lease"}, {"error": "x"}, {"killed_at": 0}):
            for failed in ("", "no memory"):
                seen = launched(ended(0), rank(1, **facts), expected=3, launch_failed=failed)
                assert judge(wanted, seen).state not in released, (wanted, facts, failed)


def test_the_reconciler_knows_every_reason_with_which_ranks_end_although_nobody_said_so() -> None:
    causes = [judge(RUN, launched(ended(0, cause=cause))).reason for cause in ("lease", "deadline", "shim")]
    assert {*causes, judge(RUN, launched(rebooted=True)).reason} == ENDED_BY_NODE | {DEADLINE_PASSED}
