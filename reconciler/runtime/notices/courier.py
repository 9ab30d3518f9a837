"""How does what was decided reach those who want to know, without the loop ever waiting for it?

One thread for each hook, and one outbox for each: a hook that hangs holds up nobody else. Notices of one hook go out
one after the other in the order of decisions, so that of one job is never told out of order. At least once: a notice
is settled after it was taken, and one that was taken before a crash is told again with the same id.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import stamina

from reconciler.errors import GangOpsError
from reconciler.model.units import CommitId
from reconciler.ports import Clock
from reconciler.runtime.notices.derive import Story
from reconciler.runtime.notices.events import Moment, Notice
from reconciler.runtime.notices.hooks import KEPT, Hook, HookRefused, HookUnavailable
from reconciler.runtime.notices.outbox import Entry, Outbox
from reconciler.store.history import is_ancestor
from reconciler.store.runner import Git

Report = Callable[[str, Mapping[str, object]], None]
_STOP_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often a notice is tried in a row, the shortest and longest wait between, and when all is tried again, in
    seconds. A new decision is a reason to try again as well."""

    tries: int = 5
    first: float = 0.5
    longest: float = 15.0
    later: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """The newest state commit that is known to be the record."""

    generation: int
    commit: CommitId


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What every courier needs of the reconciler around it. `count` is called with a hook's name and what came of it."""

    git: Git
    clock: Clock
    report: Report
    count: Callable[[str, str], None]
    patience: Patience = Patience()


class Courier:
    """One hook, its outbox, and the thread that empties it."""

    def __init__(self, hook: Hook, outbox: Outbox, story: Story, desk: Desk) -> None:
        self.hook = hook
        self.outbox = outbox
        self._story = story
        self._desk = desk
        self._news = threading.Event()
        self._stopping = False
        self._telling = threading.Lock()
        self._tip: Tip | None = None
        self._thread: threading.Thread | None = None

    def tell(self) -> bool:
        """Tell everything that is due, oldest first. False when something is left to be tried again later."""
        with self._telling:
            tip = self._tip
            if tip is None:
                return True
            for entry in self.outbox.entries():
                if self._is_of_the_record(entry, tip):
                    if self._stopping or not self._tell_of(entry):
                        return False
                elif entry.generation <= tip.generation:  # another commit took its place
                    self.outbox.withdraw(entry.generation, entry.commit)
            return True

    def _is_of_the_record(self, entry: Entry, tip: Tip) -> bool:
        if entry.generation > tip.generation:
            return False  # it is being pushed, or nobody knows yet
        return entry.commit == tip.commit or is_ancestor(self._desk.git, entry.commit, tip.commit)

    def _tell_of(self, entry: Entry) -> bool:
        try:
            moment, notices = self._story.notices(entry.commit)
        except GangOpsError as err:
            self._said("notification-failed", err, commit=entry.commit[:12])
            return False
        done = self.outbox.settled(entry)
        for number, notice in enumerate(notices):
            if number < done or not self.hook.wants(notice):
                continue
            assert moment is not None
            if self._stopping or not self._send(notice, moment):
                return False
            self.outbox.settle(entry, number + 1)
        self.outbox.withdraw(entry.generation, entry.commit)
        return True

    def _send(self, notice: Notice, moment: Moment) -> bool:
        """Try some times. True when it is settled: taken, refused, or too old to be tried again."""
        patience = self._desk.patience
        try:
            for attempt in stamina.retry_context(
                on=HookUnavailable, attempts=patience.tries, timeout=None, wait_initial=patience.first,
                wait_max=patience.longest,
            ):  # fmt: skip
                with attempt:
                    self.hook.send(notice, moment)
        except HookRefused as err:
            self._said("notification-refused", err, notice)
            return True
        except GangOpsError as err:
            late = self._desk.clock.now() - notice.at >= KEPT
            self._said("notification-dropped" if late else "notification-late", err, notice)
            return late
        self._desk.count(self.hook.name, "told")
        return True

    def _said(self, event: str, err: GangOpsError, notice: Notice | None = None, **more: object) -> None:
        self._desk.count(self.hook.name, event.partition("-")[2])
        about = (
            {"notice": notice.kind, "about": notice.job or notice.node, "id": notice.id} if notice is not None else {}
        )
        self._desk.report(event, {"hook": self.hook.name, **about, **more, "why": err.message, "remedy": err.remedy})

    # -- for ever

    def reached(self, tip: Tip) -> None:
        """The record is known to be here now."""
        self._tip = tip
        self._news.set()

    def start(self) -> None:
        """Tell from now on, in a thread of our own."""
        self._thread = threading.Thread(target=self._run, name=f"gangops-{self.hook.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more; what is not told stays in the outbox. Waits a moment for what is under way."""
        self._stopping = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        all_told = True
        while not self._stopping:
            self._news.wait(None if all_told else self._desk.patience.later)
            self._news.clear()
            try:
                all_told = self.tell()
            except Exception as err:  # noqa: BLE001  a bug or a full disk here must not end the telling for good
                all_told = False
                self._said("notification-failed", GangOpsError(f"{type(err).__name__}: {err}"))
