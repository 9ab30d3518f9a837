"""Who makes an order come true on a node? The keeper: it looks at every attempt, asks `judge`, and does what follows.

Promises go to the journal before they are acted on or reported. What is known of the attempts is `roster`'s, proving
orders `verify`'s, speaking to reconcilers `link`'s. `step` is called from one thread; `accept` and `statuses` from
others, under the roster's lock.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from reconciler.agent import proc
from reconciler.agent.attempts import Action, Do, Seen, Stage, State, Wanted, judge
from reconciler.agent.conf import Conf
from reconciler.agent.folder import Facts, sweep
from reconciler.agent.idleness import Sessions
from reconciler.agent.journal import JournalFull, Key, Record
from reconciler.agent.launch import launched_ranks
from reconciler.agent.launching import Launchers
from reconciler.agent.leases import Leases
from reconciler.agent.limits import NotAllowed
from reconciler.agent.prepare import prepare
from reconciler.agent.roster import Roster, name_of
from reconciler.agent.say import Voice
from reconciler.agent.sight import Checkup, Lookout
from reconciler.agent.telling import Told
from reconciler.agent.verify import NOTHING, Accepted, RefusedOrder
from reconciler.wire import AttemptOrder, AttemptStatus, NodeOrders


class Keeper:
    """Does what follows for every attempt on this node. `changed` is called when something worth a report happened."""

    def __init__(self, conf: Conf, say: Voice, events: Path, changed: Callable[[], None]) -> None:
        self.conf = conf
        self.say = say
        self.events = events
        self.changed = changed
        self.roster = Roster(conf, say)
        self.leases = Leases(self.roster, self._poke)
        self.launchers = Launchers(conf, events, self.roster.boot)
        self.checkup = Checkup(conf, self.roster.is_ours, changed)
        self.lookout = Lookout(self.roster.watches, self._poke)
        self._prepared: dict[Key, str] = {}
        self._told = Told()
        self._sessions = Sessions()

    # --- from other threads --------------------------------------------------------------------------------------

    def accept(self, order: Accepted, orders: NodeOrders) -> None:
        """Hold a proven order from now on. Raises RefusedOrder(LocalStorageFull) when it cannot be written down."""
        with self.roster.lock:
            if order == self.roster.journal.accepted:
                return
            try:
                self.roster.journal.accept(order)
            except JournalFull as err:
                raise RefusedOrder(err.message, code=err.code) from err
            self.roster.take(orders)
        phases = ", ".join(f"{o.job}#{o.attempt} {o.phase}" for o in orders.attempts) or "nothing to do"
        self.say(f"generation {order.generation} ({order.commit[:8]}): {phases}")
        self._poke()

    def statuses(self) -> list[AttemptStatus]:
        """Every attempt as it is reported now."""
        with self.roster.lock:
            records = {**self.roster.journal.records, **self.roster.preparing}
            return [self._status(key, record) for key, record in sorted(records.items())]

    # --- the step ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Look at every attempt once and do what follows; report when a state changed."""
        with self.roster.lock:
            if self.roster.journal.accepted == NOTHING:  # nobody has said yet what belongs here
                return
            self.roster.journal.flush()
            moved = False
            for key in sorted({*self.roster.orders, *self.roster.journal.records, *self.roster.preparing}):
                moved |= self._advance_safely(key)
            moved |= self._sessions.look(self._running_sessions())
            if moved:
                self.changed()

    def _running_sessions(self) -> dict[Key, tuple[int, dict[int, Facts]]]:
        shims = self.roster.shims
        return {
            key: (order.run.idleSeconds, shims[key].facts)
            for key, order in self.roster.orders.items()
            if order.run.session and self.roster.is_live(key) and key in shims
        }

    def patience(self) -> float:
        """Seconds until the next step is due without an event."""
        with self.roster.lock:
            records = self.roster.journal.records
            waiting = any(r.state == State.STOPPING for r in records.values())
            starting = any(r.stage == Stage.LAUNCHED and r.state == State.PREPARED for r in records.values())
        return 0.1 if waiting or starting or self.roster.preparing else 1.0

    def _advance_safely(self, key: Key) -> bool:
        """One attempt's full disk, lost folder or odd file must not stop the others."""
        try:
            return self._advance(key)
        except (OSError, ValueError, KeyError) as err:
            self.say(f"{name_of(key)}: {err!r}")
            return False

    def _advance(self, key: Key) -> bool:
        self._settle_preparation(key)
        record = self.roster.record_of(key)
        order = self.roster.orders.get(key)
        if order and record and record.digest != order.digest:
            order = None  # another incarnation under the same number: first end what is here
        seen = self._look(key, order, record)
        verdict = judge(_wanted(order), seen)
        for action in verdict.actions:
            self._act(key, action, order)
        if any(action.do is Do.FORGET for action in verdict.actions):
            self._poke()  # another incarnation may have waited for this
            return True
        if order and seen.stage is Stage.LAUNCHED and not seen.rebooted:
            folder, shims = self.roster.folder_of(key), self.roster.shims[key]
            self._told.pass_on_deadline(key, folder, shims, len(launched_ranks(order)), order.deadline)
        return self._note(key, order, verdict.state, verdict.code, verdict.reason)

    def _note(self, key: Key, order: AttemptOrder | None, state: State, code: int | None, reason: str) -> bool:
        """Write down a changed state; True when it changed."""
        before = self.roster.record_of(key)
        if before and (before.state, before.exit_code, before.reason) == (state, code, reason):
            return False
        stage = before.stage if before else str(Stage.NEW)
        released = state in (State.EXITED, State.GONE)
        base = before or self.roster.new_record(key, order.digest if order else "", Stage.NEW, state)
        held = self.roster.journal.accepted
        record = replace(
            base,
            stage=str(Stage.ENDED) if released else stage,
            state=str(state),
            at=time.time_ns(),
            generation=held.generation,
            commit=held.commit,
            exit_code=code,
            reason=reason,
        )
        if state is State.PREPARING:
            self.roster.preparing[key] = record
        else:
            self.roster.preparing.pop(key, None)
            self.roster.keep(record)
        exited = f", exit {code}" if code is not None else ""
        self.say(f"{name_of(key)}: {state}{exited}" + (f" ({reason})" if reason else ""))
        if released and stage == Stage.LAUNCHED:
            self._after_release(key)
        return True

    # --- looking -------------------------------------------------------------------------------------------------

    def _look(self, key: Key, order: AttemptOrder | None, record: Record | None) -> Seen:
        now = proc.boottime()
        if record is None:
            return Seen(Stage.NEW, now)
        stage = Stage(record.stage)
        if stage is not Stage.LAUNCHED:
            ended = State(record.state) if stage is Stage.ENDED else None
            return Seen(stage, now, ended=ended, code=record.exit_code, reason=record.reason)
        if record.boot != self.roster.boot:
            return Seen(stage, now, rebooted=True)
        folder, shims = self.roster.folder_of(key), self.roster.look(key)
        expected = len(launched_ranks(order)) if order else len(shims.facts)
        if order is None or order.phase not in ("prepare", "run"):
            launching, failed = not folder.cancel_launch(), ""
        elif expected > len(shims.facts):
            launching, failed = self.launchers.is_at_work(key, folder, expected)
        else:
            launching, failed = False, ""
        sight = self.lookout.sights.get(key)
        return Seen(
            stage,
            now,
            expected=expected,
            launched=shims.seen,
            launching=launching,
            launch_failed=failed,
            begun=record.begun,
            baseline=record.baseline,
            marker=sight.marker if sight else None,
        )

    # --- acting --------------------------------------------------------------------------------------------------

    def _act(self, key: Key, action: Action, order: AttemptOrder | None) -> None:
        if action.do is Do.FORGET:
            self._forget(key)
        elif action.do is Do.PREPARE and order:
            self._prepare(key, order)
        elif action.do is Do.LAUNCH and order:
            self._launch(key, order)
        elif action.do is Do.BEGIN_CHECKPOINT:
            self._begin_checkpoint(key)
        elif action.do is Do.SIGNAL and order and order.checkpoint:
            command = f"signal {int(signal.Signals[order.checkpoint.signal])}"
            if self._told.tell(key, self.roster.folder_of(key), action.rank, command):
                self.say(f"{name_of(key)}: rank {action.rank} is asked for a checkpoint")
        elif action.do is Do.TERM:  # said as the state Stopping
            self._told.tell(key, self.roster.folder_of(key), action.rank, "term")
        elif action.do is Do.SWEEP:
            sweep(self.roster.shims[key].facts[action.rank])

    def _prepare(self, key: Key, order: AttemptOrder) -> None:
        self.roster.preparing[key] = self.roster.new_record(key, order.digest, Stage.PREPARING, State.PREPARING)
        self.say(f"{name_of(key)}: preparing")

        def check() -> None:
            try:
                self._prepared[key] = prepare(order, self.conf, self.checkup.hook)
            except Exception as err:  # noqa: BLE001 - whatever it is, the attempt is not prepared, and others are
                self._prepared[key] = f"PrepareFailed: {err!r}"
            self._poke()

        threading.Thread(target=check, name="prepare", daemon=True).start()

    def _settle_preparation(self, key: Key) -> None:
        """Turn the outcome of a preparation into a promise. One that cannot be written down is a refusal."""
        reason = self._prepared.pop(key, None)
        record = self.roster.preparing.get(key)
        if reason is None or record is None:
            return
        del self.roster.preparing[key]
        stage = Stage.REFUSED if reason else Stage.PREPARED
        state = State.REFUSED if reason else State.PREPARED
        if not self.roster.keep(self.roster.new_record(key, record.digest, stage, state, reason=reason)) and not reason:
            full = "LocalStorageFull: the journal cannot be written"
            self.roster.keep(self.roster.new_record(key, record.digest, Stage.REFUSED, State.REFUSED, reason=full))
        self.say(f"{name_of(key)}: {state}" + (f" ({reason})" if reason else ""))
        self.changed()

    def _launch(self, key: Key, order: AttemptOrder) -> None:
        record = self.roster.journal.records[key]
        folder = self.roster.folder_of(key)
        if self.leases.is_over(key, order):
            return  # nobody has answered within the lease: the reconciler may have given the work to others
        try:
            path = self.launchers.write_spec(order, folder, proc.on_boottime(order.deadline))
            folder.note_deadline(order.deadline)
            self.leases.write(key, order)
        except (OSError, NotAllowed) as err:  # a full disk, or limits that were tightened since
            self._note(key, order, State.GONE, None, f"LaunchFailed: {err}")
            return
        if record.stage != Stage.LAUNCHED and not self.roster.keep(
            replace(record, stage=str(Stage.LAUNCHED), boot=self.roster.boot)
        ):
            self.roster.journal.records[key] = record  # not written down: not launched, tried again next time
            return
        self._told.knows_deadline(key, order.deadline)
        self.launchers.start(key, path)

    def _begin_checkpoint(self, key: Key) -> None:
        """The marker counts from here: newer than last seen, or than now when its folder was never seen to answer."""
        sight = self.lookout.sights.get(key)
        baseline = sight.marker if sight else time.time_ns()
        self.roster.keep(replace(self.roster.journal.records[key], begun=proc.boottime(), baseline=baseline))

    def _after_release(self, key: Key) -> None:
        self.launchers.forget(key)
        self._told.forget(key)
        self.leases.forget(key)
        command = self.conf.hooks.after_release
        if command:
            about = {"GANGOPS_JOB": key[0], "GANGOPS_ATTEMPT": str(key[1])}
            threading.Thread(target=self.checkup.hook, args=("afterRelease", command, about), daemon=True).start()

    def _forget(self, key: Key) -> None:
        with contextlib.suppress(JournalFull):
            self.roster.journal.forget(key)
            self.roster.shims.pop(key, None)
            self.roster.folder_of(key).remove()

    # --- small parts ---------------------------------------------------------------------------------------------

    def _status(self, key: Key, record: Record) -> AttemptStatus:
        sight = self.lookout.sights.get(key)
        facts = self.roster.shims[key].facts if key in self.roster.shims else {}
        ranks = [_rank_seen(rank, found) for rank, found in sorted(facts.items()) if "pid" in found]
        return AttemptStatus(
            job=record.job,
            attempt=record.attempt,
            state=record.state,
            at=record.at,
            generation=record.generation,
            commit=record.commit,
            exitCode=record.exit_code,
            reason=record.reason,
            checkpoint=sight.marker if sight else None,
            progress=sight.progress if sight else {},
            ranks=ranks,
            idle=self._sessions.idle.get(key),
        )

    def _poke(self) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(self.events, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(fd, b".")
            os.close(fd)


def _rank_seen(rank: int, facts: Facts) -> dict[str, int | None]:
    """One launched process as it is reported; what it used is known once it ended."""
    numbers: dict[str, int | None] = {name: int(facts[name]) for name in ("cpuMs", "peakBytes") if name in facts}
    return {
        "rank": rank,
        "pid": int(facts["pid"]),
        "exitCode": int(facts["exit"]) if "exit" in facts else None,
        **numbers,
    }


def _wanted(order: AttemptOrder | None) -> Wanted | None:
    if order is None:
        return None
    checkpoint = order.checkpoint
    if checkpoint is None or not checkpoint.signal:
        return Wanted(order.phase, checkpoint.graceSeconds if checkpoint else 0)
    ranks = [rank.rank for rank in launched_ranks(order)]
    asked = [rank for rank in ranks if checkpoint.to == "all" or rank == 0]
    return Wanted(order.phase, checkpoint.graceSeconds, tuple(asked))
