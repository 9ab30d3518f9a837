"""What is there to see right now? The newest generation as rows, read again only when there is a newer one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reconciler.errors import InvalidInput
from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.units import Instant, JobKey
from reconciler.render.arrays import array_head, by_array, task_table
from reconciler.render.view import Rows, headline, job_page, job_rows, node_rows, queue_rows
from reconciler.runtime.clone import Clone
from reconciler.runtime.generation import Generation
from reconciler.runtime.reading import DesiredReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look. `warning` is "" unless what is shown may be old; the first cell of each row names it."""

    headline: str
    jobs: Rows
    nodes: Rows
    queues: Rows
    warning: str = ""


class Looking:
    """Looks at a person's clone. Not safe for several threads: one look at a time."""

    def __init__(self, clone: Clone, *, fetch: bool, now: Callable[[], Instant]) -> None:
        self._clone, self._fetch, self._now = clone, fetch, now
        self._reader = DesiredReader(clone.git)
        self._last: tuple[Generation, Desired] | None = None

    def look(self) -> Seen:
        """How it stands now. Raises NotFound (StateMissing), StoreError, InvalidInput."""
        warning = self._clone.refresh() if self._fetch else ""
        generation, desired = self._newest()
        jobs, now = generation.allocation.jobs, self._now()
        return Seen(
            headline=headline(generation.summary, generation.allocation.metrics, now),
            jobs=job_rows(desired, jobs, now, wide=False),
            nodes=node_rows(desired, generation.observed, generation.allocation.holders()),
            queues=queue_rows(desired, jobs),
            warning=warning,
        )

    def job(self, name: str) -> str:
        """Everything about one job of the last look, of an array its tasks; "" when it is there no more."""
        if self._last is None:
            return ""
        generation, desired = self._last
        if JobKey(name) not in generation.allocation.jobs:
            tasks = by_array(generation.allocation.jobs).get(JobKey(name), [])
            return _array(JobKey(name), tasks, desired, self._now()) if tasks else ""
        return job_page(
            generation.allocation.jobs[JobKey(name)], desired.jobs.get(JobKey(name)), desired, self._now(), ()
        )

    def _newest(self) -> tuple[Generation, Desired]:
        tip = self._clone.state_tip()
        if self._last is None or self._last[0].commit != tip:
            generation = self._clone.generation()
            read = self._reader.recorded(tip, generation.summary.desired_commit, generation.frozen)
            if read.desired is None:
                raise InvalidInput(read.diagnostics)
            self._last = generation, read.desired
        return self._last


_PAGE = 66
"""Columns of a page over an ordinary terminal."""


def _array(array: JobKey, tasks: list[JobRecord], desired: Desired, now: Instant) -> str:
    return f"{array_head(array, tasks, desired)}\n\n{task_table(tasks, desired, now, _PAGE)}"
