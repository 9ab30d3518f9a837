"""What is on this node? Of every attempt: what was ordered, what was promised of it, what its shims said last.

Orders and promises are the journal's; facts about processes are read from the shims' status files each time and kept
here until the next look. One thread changes it, others ask; whoever does either for more than one attempt or thing
holds `lock`. What follows from all this is for `runtime`.
"""

from __future__ import annotations

import threading
import time

from reconciler.agent import proc
from reconciler.agent.admission import VisitRefused
from reconciler.agent.attempts import Stage, State
from reconciler.agent.conf import Conf
from reconciler.agent.folder import AttemptFolder, Shims
from reconciler.agent.household import Household, Resident
from reconciler.agent.journal import Journal, JournalFull, Key, Record
from reconciler.agent.launch import bound_of, launched_ranks
from reconciler.agent.limits import NotAllowed, account_of
from reconciler.agent.say import Voice
from reconciler.agent.sight import Watch
from reconciler.agent.verify import NOTHING, read_orders
from reconciler.agent.vitals import Bound
from reconciler.wire import AttemptOrder, NodeOrders


class Roster:
    """Every attempt on this node, by job and number. `preparing` are those of which nothing is promised yet."""

    def __init__(self, conf: Conf, say: Voice) -> None:
        self.conf = conf
        self.say = say
        self.lock = threading.RLock()
        self.boot = proc.boot_id()
        self.folder = conf.state_dir / "attempts"
        self.journal = Journal(conf.state_dir / "journal")
        self.orders: dict[Key, AttemptOrder] = {}
        self.preparing: dict[Key, Record] = {}
        self.shims: dict[Key, Shims] = {}
        self._household = Household(conf.state_dir / "holders")
        self._resume()

    def _resume(self) -> None:
        """Take up what the journal holds, and attempts it does not know (it may have been lost)."""
        if self.journal.torn:
            self.say(f"journal: dropped a torn tail of {self.journal.torn} bytes")
        held = self.journal.accepted
        if held != NOTHING:
            self.take(read_orders(held.file, self.conf.node))
        for path in sorted({status.parent for status in self.folder.glob("**/*.status")}):
            key = (path.parent.relative_to(self.folder).as_posix(), int(path.name))
            if key not in self.journal.records:
                facts = next(iter(AttemptFolder(path).shims().facts.values()))
                self.keep(self.new_record(key, facts["digest"], Stage.LAUNCHED, State.RUNNING, boot=facts["boot"]))
        for key, record in self.journal.records.items():
            if record.stage == Stage.LAUNCHED and record.boot == self.boot:
                every = self.folder_of(key).shims().facts.values()
                alive = [facts.get("pid", "-") for facts in every if "gone" not in facts]
                pids = f" (pid {', '.join(alive)})" if alive else ""
                self.say(f"{name_of(key)}: adopted, {len(alive)} alive{pids}")

    # --- one attempt ---------------------------------------------------------------------------------------------

    def folder_of(self, key: Key) -> AttemptFolder:
        """Its files."""
        return AttemptFolder(self.folder / key[0] / str(key[1]))

    def stage_of(self, key: Key) -> Stage:
        """How far the node has come with it, as was promised."""
        record = self.journal.records.get(key)
        return Stage(record.stage) if record else Stage.NEW

    def is_live(self, key: Key) -> bool:
        """It was launched, and not everything of it was seen to be gone."""
        return self.stage_of(key) is Stage.LAUNCHED

    def record_of(self, key: Key) -> Record | None:
        """What is promised of it, or is being prepared."""
        return self.preparing.get(key) or self.journal.records.get(key)

    def new_record(
        self, key: Key, digest: str, stage: Stage, state: State, *, boot: str = "", reason: str = ""
    ) -> Record:
        """A record as of now and of the order held, not yet kept."""
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

    # --- changes -------------------------------------------------------------------------------------------------

    def take(self, orders: NodeOrders) -> None:
        """These are in force from now on, and no others."""
        self.orders = {(order.job, order.attempt): order for order in orders.attempts}
        for order in orders.attempts:
            self._household.note(order.job, Resident(self._owner_of(order), order.holders))

    def keep(self, record: Record) -> bool:
        """Write a record down; False when the disk is full, and then it is known until this agent ends."""
        try:
            self.journal.keep(record)
        except JournalFull as err:
            self.say(err.message)
            return False
        return True

    def look(self, key: Key) -> Shims:
        """What the shims of an attempt say now."""
        self.shims[key] = self.folder_of(key).shims()
        return self.shims[key]

    # --- asked from other threads --------------------------------------------------------------------------------

    def resident(self, job: str) -> Resident | None:
        """Who holds a job that is here, or that was."""
        with self.lock:
            return self._household.find(job)

    def rank_to_visit(self, job: str, attempt: int, rank: int) -> tuple[AttemptFolder, int]:
        """The folder of an attempt that runs here (0: the latest), and which of its launched ranks (-1: the first).

        A rank of a job that launches per node is found by the process that it belongs to. Raises VisitRefused(NotRunning).
        """
        with self.lock:
            running = [key for key in self.orders if key[0] == job and attempt in (0, key[1]) and self.is_live(key)]
            key = max(running, default=None)
            ranks = [launched.rank for launched in launched_ranks(self.orders[key])] if key else []
            every = [one.rank for one in self.orders[key].ranks] if key else []
            if key is not None and (rank < 0 or rank in every) and ranks:
                return self.folder_of(key), rank if rank in ranks else ranks[0]
        which = f"rank {rank} of {job}" if rank >= 0 else job
        raise VisitRefused(f"{which} does not run on {self.conf.node}", code="NotRunning")

    def bound(self) -> list[Bound]:
        """The living ranks of attempts that run, with what they were ordered to be bound to."""
        with self.lock:
            return [
                bound_of(order, rank, int(facts["pid"]))
                for key, order in self.orders.items()
                if self.is_live(key) and key in self.shims
                for rank in launched_ranks(order)
                if "pid" in (facts := self.shims[key].facts.get(rank.rank, {})) and "exit" not in facts
            ]

    def watches(self) -> dict[Key, Watch]:
        """Files to look at: those of attempts that run, and once more when they have ended."""
        with self.lock:
            found = {}
            for key, order in self.orders.items():
                over = self.stage_of(key) == Stage.ENDED
                if over or self.is_live(key):
                    marker = order.checkpoint.marker if order.checkpoint else ""
                    closely = order.phase == "checkpoint" and not over
                    found[key] = Watch(marker, order.run.heartbeatFile, closely, self._owner_of(order), over)
            return found

    def _owner_of(self, order: AttemptOrder) -> int | None:
        try:
            return account_of(order, self.conf.limits).uid
        except NotAllowed:  # limits that were tightened since: then nothing of it is read
            return -1

    def is_ours(self, pid: int) -> bool:
        """Whether a process descends from one of our shims; they reap orphans, so the chain never breaks."""
        shims = {int(facts["shim"]) for found in list(self.shims.values()) for facts in found.facts.values()}
        for _ in range(64):
            if pid in shims:
                return True
            pid = proc.parent_of(pid)
        return False

    def shim_pids(self) -> set[int]:
        """Shims that live, for the caller to watch."""
        with self.lock:
            return {
                int(shims.facts[process.rank]["shim"])
                for shims in self.shims.values()
                for process in shims.seen
                if process.alive and not process.lost
            }


def name_of(key: Key) -> str:
    """An attempt as it is named in the log."""
    return f"{key[0]}#{key[1]}"
