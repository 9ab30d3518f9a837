"""Who makes an order come true on a node? The keeper: it looks at every attempt, asks `judge`, and does what follows.

Promises go to the journal before they are acted on or reported; facts about processes are read from the shims'
status files each time. Proving orders is `verify`'s, speaking to reconcilers `link`'s. `step` is called from one
thread; `accept`, `renew`, `statuses` and `watches` from others, under the same lock.
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
from reconciler.agent.admission import VisitRefused
from reconciler.agent.attempts import Action, Do, Seen, Stage, State, Wanted, judge
from reconciler.agent.conf import Conf
from reconciler.agent.folder import AttemptFolder, Facts, Shims, sweep
from reconciler.agent.household import Household, Resident
from reconciler.agent.idleness import Looked, attached_to, idle_since, look_again, used_by
from reconciler.agent.journal import Journal, JournalFull, Key, Record
from reconciler.agent.launch import bound_of, launched_ranks
from reconciler.agent.launching import Launchers
from reconciler.agent.limits import NotAllowed, account_of
from reconciler.agent.prepare import prepare
from reconciler.agent.say import Voice
from reconciler.agent.sight import Checkup, Lookout, Watch
from reconciler.agent.verify import NOTHING, Accepted, RefusedOrder, read_orders
from reconciler.agent.vitals import Bound
from reconciler.wire import AttemptOrder, AttemptStatus, NodeOrders

SECOND = 1_000_000_000
SAY_AGAIN = SECOND
"""A shim that has not noted a command after this long is told again."""


class Keeper:
    """Every attempt on this node. `changed` is called when something worth a report happened."""

    def __init__(self, conf: Conf, say: Voice, events: Path, changed: Callable[[], None]) -> None:
        self.conf = conf
        self.say = say
        self.events = events
        self.changed = changed
        self.lock = threading.RLock()
        self.boot = proc.boot_id()
        self.folder = conf.state_dir / "attempts"
        self.journal = Journal(conf.state_dir / "journal")
        self.orders: dict[Key, AttemptOrder] = {}
        self.preparing: dict[Key, Record] = {}
        self.prepared: dict[Key, str] = {}
        self.launchers = Launchers(conf, events, self.boot)
        self.household = Household(conf.state_dir / "holders")
        self.told: dict[tuple[Key, int, str], int] = {}
        self.deadlines: dict[Key, int | None] = {}
        self.leases: dict[Key, int] = {}
        self.shims: dict[Key, Shims] = {}
        self.checkup = Checkup(conf, self.is_ours, changed)
        self.looked: dict[Key, Looked] = {}
        self.idle: dict[Key, int] = {}
        self.lookout = Lookout(self.watches, self._poke)
        self._resume()

    def _resume(self) -> None:
        """Take up what the journal holds, and attempts it does not know (it may have been lost)."""
        if self.journal.torn:
            self.say(f"journal: dropped a torn tail of {self.journal.torn} bytes")
        held = self.journal.accepted
        if held != NOTHING:
            self._take(read_orders(held.file, self.conf.node))
        for path in sorted({status.parent for status in self.folder.glob("**/*.status")}):
            key = (path.parent.relative_to(self.folder).as_posix(), int(path.name))
            if key not in self.journal.records:
                facts = next(iter(AttemptFolder(path).shims().facts.values()))
                self._keep(self._record(key, facts["digest"], Stage.LAUNCHED, State.RUNNING, boot=facts["boot"]))
        for key, record in self.journal.records.items():
            if record.stage == Stage.LAUNCHED and record.boot == self.boot:
                alive = [
                    facts.get("pid", "-") for facts in self._folder(key).shims().facts.values() if "gone" not in facts
                ]
                self.say(f"{_name(key)}: adopted, {len(alive)} alive" + (f" (pid {', '.join(alive)})" if alive else ""))

    # --- from other threads --------------------------------------------------------------------------------------

    def accept(self, order: Accepted, orders: NodeOrders) -> None:
        """Hold a proven order from now on. Raises RefusedOrder(LocalStorageFull) when it cannot be written down."""
        with self.lock:
            if order == self.journal.accepted:
                return
            try:
                self.journal.accept(order)
            except JournalFull as err:
                raise RefusedOrder(err.message, code=err.code) from err
            self._take(orders)
        phases = ", ".join(f"{o.job}#{o.attempt} {o.phase}" for o in orders.attempts) or "nothing to do"
        self.say(f"generation {order.generation} ({order.commit[:8]}): {phases}")
        self._poke()

    def renew(self, sent: int, seconds: int) -> None:
        """A reconciler answered a report sent at boottime `sent`: leases run from then, so that theirs end later.

        An answer to an older report may come after that to a newer one; it shortens nothing.
        """
        with self.lock:
            for key, order in self.orders.items():
                if order.fence == "lease":
                    end = sent + min(seconds, order.leaseSeconds or seconds) * SECOND
                    self.leases[key] = max(end, self.leases.get(key, 0))
                    with contextlib.suppress(OSError):  # a lease that cannot be written ends, which is safe
                        if self._is_live(key):
                            self._folder(key).extend_lease(self.leases[key])
        self._poke()

    def lease_seconds(self) -> int:
        """The shortest lease that something here runs under, or soon will; 0 when nothing does."""
        with self.lock:
            over = (Stage.ENDED, Stage.REFUSED)
            orders = [order for key, order in self.orders.items() if self._stage(key) not in over]
            leased = [order.leaseSeconds for order in orders if order.fence == "lease"]
        return min(leased, default=0)

    def resident(self, job: str) -> Resident | None:
        """Who holds a job that is here, or that was."""
        with self.lock:
            return self.household.find(job)

    def rank_to_visit(self, job: str, attempt: int, rank: int) -> tuple[AttemptFolder, int]:
        """The folder of an attempt that runs here (0: the latest), and which of its launched ranks (-1: the first).

        A rank of a job that launches per node is found by the process that it belongs to. Raises VisitRefused(NotRunning).
        """
        with self.lock:
            running = [key for key in self.orders if key[0] == job and attempt in (0, key[1]) and self._is_live(key)]
            key = max(running, default=None)
            ranks = [launched.rank for launched in launched_ranks(self.orders[key])] if key else []
            every = [one.rank for one in self.orders[key].ranks] if key else []
            if key is not None and (rank < 0 or rank in every) and ranks:
                return self._folder(key), rank if rank in ranks else ranks[0]
        which = f"rank {rank} of {job}" if rank >= 0 else job
        raise VisitRefused(f"{which} does not run on {self.conf.node}", code="NotRunning")

    def statuses(self) -> list[AttemptStatus]:
        """Every attempt as it is reported now."""
        with self.lock:
            records = {**self.journal.records, **self.preparing}
            return [self._status(key, record) for key, record in sorted(records.items())]

    def bound(self) -> list[Bound]:
        """The living ranks of attempts that run, with what they were ordered to be bound to."""
        with self.lock:
            return [
                bound_of(order, rank, int(facts["pid"]))
                for key, order in self.orders.items()
                if self._is_live(key) and key in self.shims
                for rank in launched_ranks(order)
                if "pid" in (facts := self.shims[key].facts.get(rank.rank, {})) and "exit" not in facts
            ]

    def watches(self) -> dict[Key, Watch]:
        """Files to look at: those of attempts that run, and once more when they have ended."""
        with self.lock:
            found = {}
            for key, order in self.orders.items():
                over = self._stage(key) == Stage.ENDED
                if over or self._is_live(key):
                    marker = order.checkpoint.marker if order.checkpoint else ""
                    closely = order.phase == "checkpoint" and not over
                    found[key] = Watch(marker, order.run.heartbeatFile, closely, self._owner_of(order), over)
            return found

    def is_ours(self, pid: int) -> bool:
        """Whether a process descends from one of our shims; they reap orphans, so the chain never breaks."""
        shims = {int(facts["shim"]) for found in list(self.shims.values()) for facts in found.facts.values()}
        for _ in range(64):
            if pid in shims:
                return True
            pid = proc.parent_of(pid)
        return False

    # --- the step ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Look at every attempt once and do what follows; report when a state changed."""
        with self.lock:
            if self.journal.accepted == NOTHING:  # nobody has said yet what belongs here
                return
            self.journal.flush()
            moved = False
            for key in sorted({*self.orders, *self.journal.records, *self.preparing}):
                moved |= self._advance_safely(key)
            moved |= self._look_at_sessions()
            if moved:
                self.changed()

    def _look_at_sessions(self) -> bool:
        """Whether one of them fell idle, or is used again."""
        now, before = proc.boottime(), self.idle
        here = {k: o for k, o in self.orders.items() if o.run.session and self._is_live(k) and k in self.shims}
        facts = {key: self.shims[key].facts for key in here}
        self.looked = {
            key: look_again(self.looked.get(key), used_by(found), attached_to(found), now, time.time_ns())
            for key, found in facts.items()
        }
        idle = {key: idle_since(seen, here[key].run.idleSeconds, now) for key, seen in self.looked.items()}
        self.idle = {key: since for key, since in idle.items() if since is not None}
        return self.idle != before

    def patience(self) -> float:
        """Seconds until the next step is due without an event."""
        with self.lock:
            records = self.journal.records
            waiting = any(r.state == State.STOPPING for r in records.values())
            starting = any(r.stage == Stage.LAUNCHED and r.state == State.PREPARED for r in records.values())
        return 0.1 if waiting or starting or self.preparing else 1.0

    def shim_pids(self) -> set[int]:
        """Shims that live, for the caller to watch."""
        with self.lock:
            return {
                int(shims.facts[process.rank]["shim"])
                for shims in self.shims.values()
                for process in shims.seen
                if process.alive and not process.lost
            }

    def _advance_safely(self, key: Key) -> bool:
        """One attempt's full disk, lost folder or odd file must not stop the others."""
        try:
            return self._advance(key)
        except (OSError, ValueError, KeyError) as err:
            self.say(f"{_name(key)}: {err!r}")
            return False

    def _advance(self, key: Key) -> bool:
        self._settle_preparation(key)
        record = self.preparing.get(key) or self.journal.records.get(key)
        order = self.orders.get(key)
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
            self._pass_on_deadline(key, order)
        return self._note(key, order, verdict.state, verdict.code, verdict.reason)

    def _note(self, key: Key, order: AttemptOrder | None, state: State, code: int | None, reason: str) -> bool:
        """Write down a changed state; True when it changed."""
        before = self.preparing.get(key) or self.journal.records.get(key)
        if before and (before.state, before.exit_code, before.reason) == (state, code, reason):
            return False
        stage = before.stage if before else str(Stage.NEW)
        released = state in (State.EXITED, State.GONE)
        base = before or self._record(key, order.digest if order else "", Stage.NEW, state)
        held = self.journal.accepted
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
            self.preparing[key] = record
        else:
            self.preparing.pop(key, None)
            self._keep(record)
        exited = f", exit {code}" if code is not None else ""
        self.say(f"{_name(key)}: {state}{exited}" + (f" ({reason})" if reason else ""))
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
        if record.boot != self.boot:
            return Seen(stage, now, rebooted=True)
        shims = self._folder(key).shims()
        self.shims[key] = shims
        expected = len(launched_ranks(order)) if order else len(shims.facts)
        if order is None or order.phase not in ("prepare", "run"):
            launching, failed = not self._folder(key).cancel_launch(), ""
        else:
            launching, failed = (
                self.launchers.is_at_work(key, self._folder(key), expected)
                if expected > len(shims.facts)
                else (False, "")
            )
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
            self._tell(key, action.rank, f"signal {int(signal.Signals[order.checkpoint.signal])}")
        elif action.do is Do.TERM:
            self._tell(key, action.rank, "term")
        elif action.do is Do.SWEEP:
            sweep(self.shims[key].facts[action.rank])

    def _prepare(self, key: Key, order: AttemptOrder) -> None:
        self.preparing[key] = self._record(key, order.digest, Stage.PREPARING, State.PREPARING)
        self.say(f"{_name(key)}: preparing")

        def check() -> None:
            try:
                self.prepared[key] = prepare(order, self.conf, self.checkup.hook)
            except Exception as err:  # noqa: BLE001 - whatever it is, the attempt is not prepared, and others are
                self.prepared[key] = f"PrepareFailed: {err!r}"
            self._poke()

        threading.Thread(target=check, name="prepare", daemon=True).start()

    def _settle_preparation(self, key: Key) -> None:
        """Turn the outcome of a preparation into a promise. One that cannot be written down is a refusal."""
        reason = self.prepared.pop(key, None)
        record = self.preparing.get(key)
        if reason is None or record is None:
            return
        del self.preparing[key]
        stage = Stage.REFUSED if reason else Stage.PREPARED
        state = State.REFUSED if reason else State.PREPARED
        if not self._keep(self._record(key, record.digest, stage, state, reason=reason)) and not reason:
            full = "LocalStorageFull: the journal cannot be written"
            self._keep(self._record(key, record.digest, Stage.REFUSED, State.REFUSED, reason=full))
        self.say(f"{_name(key)}: {state}" + (f" ({reason})" if reason else ""))
        self.changed()

    def _launch(self, key: Key, order: AttemptOrder) -> None:
        record = self.journal.records[key]
        folder = self._folder(key)
        if order.fence == "lease" and self.leases.get(key, 0) <= proc.boottime():
            return  # nobody has answered within the lease: the reconciler may have given the work to others
        try:
            path = self.launchers.write_spec(order, folder, _on_boottime(order.deadline))
            folder.note_deadline(order.deadline)
            if order.fence == "lease":
                self._folder(key).extend_lease(self.leases[key])
        except (OSError, NotAllowed) as err:  # a full disk, or limits that were tightened since
            self._note(key, order, State.GONE, None, f"LaunchFailed: {err}")
            return
        if record.stage != Stage.LAUNCHED and not self._keep(
            replace(record, stage=str(Stage.LAUNCHED), boot=self.boot)
        ):
            self.journal.records[key] = record  # not written down: not launched, tried again next time
            return
        self.deadlines[key] = order.deadline
        self.launchers.start(key, path)

    def _begin_checkpoint(self, key: Key) -> None:
        """The marker counts from here: newer than last seen, or than now when its folder was never seen to answer."""
        sight = self.lookout.sights.get(key)
        baseline = sight.marker if sight else time.time_ns()
        self._keep(replace(self.journal.records[key], begun=proc.boottime(), baseline=baseline))

    def _pass_on_deadline(self, key: Key, order: AttemptOrder) -> None:
        """Once for each deadline, whichever agent did: when asked again, a wall clock that jumped would move it."""
        folder, seen = self._folder(key), self.shims[key].seen
        if self.deadlines.get(key, -1) == order.deadline or len(seen) < len(launched_ranks(order)):
            return
        if not folder.knows_deadline(order.deadline):
            end = _on_boottime(order.deadline)
            told = [folder.command(p.rank, f"deadline {end or '-'}") for p in seen if p.alive]
            if not all(told):
                return
            with contextlib.suppress(OSError):  # a full disk: the next agent tells them again
                folder.note_deadline(order.deadline)
        self.deadlines[key] = order.deadline

    def _tell(self, key: Key, rank: int, command: str) -> None:
        now, what = proc.boottime(), (key, rank, command.partition(" ")[0])
        if now - self.told.get(what, -SAY_AGAIN) >= SAY_AGAIN and self._folder(key).command(rank, command):
            self.told[what] = now
            if command != "term":  # that one is said as the state Stopping
                self.say(f"{_name(key)}: rank {rank} is asked for a checkpoint")

    def _after_release(self, key: Key) -> None:
        self.launchers.forget(key)
        self.deadlines.pop(key, None)
        self.leases.pop(key, None)
        self.told = {what: at for what, at in self.told.items() if what[0] != key}
        command = self.conf.hooks.after_release
        if command:
            about = {"GANGOPS_JOB": key[0], "GANGOPS_ATTEMPT": str(key[1])}
            threading.Thread(target=self.checkup.hook, args=("afterRelease", command, about), daemon=True).start()

    def _forget(self, key: Key) -> None:
        with contextlib.suppress(JournalFull):
            self.journal.forget(key)
            self.shims.pop(key, None)
            self._folder(key).remove()

    # --- small parts ---------------------------------------------------------------------------------------------

    def _take(self, orders: NodeOrders) -> None:
        self.orders = {(order.job, order.attempt): order for order in orders.attempts}
        for order in orders.attempts:
            self.household.note(order.job, Resident(self._owner_of(order), order.holders))

    def _folder(self, key: Key) -> AttemptFolder:
        return AttemptFolder(self.folder / key[0] / str(key[1]))

    def _stage(self, key: Key) -> Stage:
        record = self.journal.records.get(key)
        return Stage(record.stage) if record else Stage.NEW

    def _is_live(self, key: Key) -> bool:
        return self._stage(key) is Stage.LAUNCHED

    def _record(self, key: Key, digest: str, stage: Stage, state: State, *, boot: str = "", reason: str = "") -> Record:
        held = self.journal.accepted
        return Record(
            key[0],
            key[1],
            digest,
            str(stage),
            str(state),
            time.time_ns(),
            held.generation,
            held.commit,
            boot,
            reason=reason,
        )

    def _keep(self, record: Record) -> bool:
        """Write a record down; False when the disk is full, and then it is known until this agent ends."""
        try:
            self.journal.keep(record)
        except JournalFull as err:
            self.say(err.message)
            return False
        return True

    def _status(self, key: Key, record: Record) -> AttemptStatus:
        sight = self.lookout.sights.get(key)
        facts = self.shims[key].facts if key in self.shims else {}
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
            idle=self.idle.get(key),
        )

    def _owner_of(self, order: AttemptOrder) -> int | None:
        try:
            return account_of(order, self.conf.limits).uid
        except NotAllowed:  # limits that were tightened since: then nothing of it is read
            return -1

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


def _on_boottime(deadline: int | None) -> int | None:
    """A wall-clock instant on the clock that never jumps."""
    return None if deadline is None else proc.boottime() + deadline - time.time_ns()


def _name(key: Key) -> str:
    return f"{key[0]}#{key[1]}"
