"""Does anything on the page want a person's eye? What the page says first, worst first; nothing that is not on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reconciler.model.counting import counted
from reconciler.render.page_values import Page


@dataclass(frozen=True, slots=True)
class Concern:
    """One thing to look at: how bad (`bad` or `warn`), what, and the part of the page that tells more."""

    mood: str
    told: str
    section: str


def concerns(page: Page) -> tuple[Concern, ...]:
    """Everything that wants an eye; empty when all is well."""
    found = list(_concerns(page))
    return tuple(sorted(found, key=lambda one: one.mood != "bad"))


def _concerns(page: Page) -> Iterator[Concern]:
    if page.sealed is False:
        yield Concern("bad", "The record is not true", "seal")
    if broken := sum(job.mood == "bad" for job in page.jobs):
        yield Concern("bad", f"{counted(broken, 'job')} lost a node", "jobs")
    if repaired := sum(job.state == "Repairing" for job in page.jobs):
        yield Concern("warn", f"{counted(repaired, 'job')} under repair", "jobs")
    if out := page.declared - page.capacity:
        yield Concern("warn", f"{counted(out, 'GPU')} out of work", "drift" if page.drift else "now")
    elif grave := sum(one[2] for one in page.drift):
        yield Concern("warn", f"{counted(grave, 'difference')} from the declared hardware", "drift")
    if page.phi > page.threshold:
        yield Concern("warn", "Fragmentation is over its limit", "fragmentation")
    for remark in page.remarks:
        yield Concern("warn", remark, "")
