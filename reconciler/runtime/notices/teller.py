"""All hooks as the loop sees them: what it says of its commits, and nothing it has to wait for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import stamina

from reconciler.model.units import CommitId
from reconciler.runtime.generation import NextGeneration
from reconciler.runtime.notices.courier import Courier, Desk, Tip
from reconciler.runtime.notices.derive import Story
from reconciler.runtime.notices.events import Moment
from reconciler.runtime.notices.hooks import Hook
from reconciler.runtime.notices.outbox import Outbox
from reconciler.runtime.reading import DesiredReader


class Teller:
    """All couriers, as the loop sees them. None of its methods waits for anybody but this machine's disk."""

    def __init__(self, folder: Path, hooks: Sequence[Hook], reader: DesiredReader, desk: Desk) -> None:
        self._story = Story(desk.git, reader)
        self._desk = desk
        stamina.instrumentation.set_on_retry_hooks(())  # what came of a notice is reported once, by us
        self.couriers = [Courier(hook, Outbox(folder / hook.name), self._story, desk) for hook in hooks]

    def expects(self, generation: int, commit: str) -> None:
        """This commit is about to be pushed. Without room on the disk it goes on, and says so."""
        for courier in self.couriers:
            try:
                courier.outbox.expect(generation, CommitId(commit))
            except OSError as err:
                told = {"hook": courier.hook.name, "commit": commit[:12], "why": err.strerror or str(err)}
                self._desk.report("notification-failed", told)

    def lost(self, generation: int, commit: str) -> None:
        """That commit did not become the record."""
        for courier in self.couriers:
            courier.outbox.withdraw(generation, CommitId(commit))

    def published(self, made: NextGeneration, commit: str) -> None:
        """That commit is the record now."""
        self._story.remember(
            Moment(
                commit=CommitId(commit), allocation=made.allocation, observed=made.inputs.observed,
                desired=made.inputs.desired,
            )
        )  # fmt: skip
        self.reached(made.summary.generation, commit)

    def reached(self, generation: int, commit: str) -> None:
        """The record was found here."""
        for courier in self.couriers:
            courier.reached(Tip(generation=generation, commit=CommitId(commit)))

    def tell(self) -> bool:
        """Tell all hooks what is due, here and now. False when something is left for later."""
        left = [courier.hook.name for courier in self.couriers if not courier.tell()]
        return not left

    def start(self) -> None:
        """Tell from now on, beside the loop."""
        for courier in self.couriers:
            courier.start()

    def stop(self) -> None:
        """Begin nothing more. Nothing is lost by it."""
        for courier in self.couriers:
            courier.stop()
