"""What is wrong with the reconciler itself: it is silent or stalled, a broken file stops all starts, another one fights
it, its keys are about to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from reconciler.documents.quantities import print_instant
from reconciler.model.anomaly import Anomaly, AnomalyCode, Disk, Lifetime, Writing
from reconciler.model.counting import counted
from reconciler.model.units import DAY, HOUR, SECOND, Instant, Nanoseconds
from reconciler.runtime.anomalies.situation import Health, Situation

RECONCILER: Final = "reconciler"
WINDOW: Final = Nanoseconds(1 * HOUR)
"""Commits older than this say nothing of who writes now."""
TAKEOVERS: Final = 2
"""A takeover and the way back are an operator's evening; more changes of the writer in an hour are a fight."""
LOST_RACES: Final = 3
"""Lost pushes of one reconciler, of ten at least, before they are told."""
DISK_TOLD_PERCENT: Final = 10
DISK_GRAVE_PERCENT: Final = 3


def control_anomalies(at: Situation) -> Iterator[Anomaly]:
    """Silence, stalling, a file that stops all starts, two writers, and what is about to end or full."""
    yield from _health(at.health)
    yield from _blocked(at)
    yield from _fight(at.writings, at.health, at.now)
    yield from _endings(AnomalyCode.AUTHORITY_EXPIRES, at.lifetimes, at.now)
    yield from _endings(AnomalyCode.SIGNER_EXPIRES, at.signers, at.now)
    yield from full_disks(RECONCILER, at.disks)


def _health(health: Health) -> Iterator[Anomaly]:
    if not health.asked:
        return
    if health.away:
        yield Anomaly(code=AnomalyCode.RECONCILER_SILENT, on=RECONCILER, evidence=health.away)
    elif not health.ready:
        told = " ".join(filter(None, (f"{health.reason}: {health.message}".rstrip(": "), health.remedy)))
        yield Anomaly(code=AnomalyCode.RECONCILER_STALLED, on=RECONCILER, evidence=told)


def _blocked(at: Situation) -> Iterator[Anomaly]:
    """A freeze that somebody asked for is meant; a file is not."""
    file, commit = at.desired.blocked, at.desired.commit[:12]
    if file.startswith("cluster-state/"):
        told = f"as it is in {commit}, {file} does not count, and no job starts"
        yield Anomaly(code=AnomalyCode.STARTS_BLOCKED, on=file, evidence=told)


def _fight(writings: Sequence[Writing], health: Health, now: Instant) -> Iterator[Anomaly]:
    """Two names that take turns; or, where both have one name, pushes that another one won."""
    recent = [one for one in writings if one.at > now - WINDOW]
    turns = sum(one.writer != before.writer for one, before in pairwise(recent))
    if turns > TAKEOVERS:
        names = " and ".join(sorted({one.writer for one in recent}))
        told = f"the writer changed {counted(turns, 'time')} in {counted(len(recent), 'generation')} of the last hour: {names}"
        yield Anomaly(code=AnomalyCode.WRITERS_FIGHT, on=RECONCILER, evidence=told)
    lost, won = health.pushes.get("lost_race", 0), health.pushes.get("ok", 0)
    if lost >= LOST_RACES and lost * 10 > lost + won:
        told = f"{lost} of {lost + won} pushes since its start lost against another writer"
        yield Anomaly(code=AnomalyCode.WRITERS_FIGHT, on=RECONCILER, evidence=told)


def _endings(code: AnomalyCode, lifetimes: Sequence[Lifetime], now: Instant) -> Iterator[Anomaly]:
    for one in lifetimes:
        if one.ends - now < one.spare:
            yield Anomaly(code=code, on=one.name, evidence=ending(one.ends, now), grave=one.ends - now < 7 * DAY)


def ending(ends: Instant, now: Instant) -> str:
    """When something ends or ended, with the days until then."""
    at, days = print_instant(ends // SECOND * SECOND), abs(ends - now) // DAY
    return f"ended at {at}, {counted(days, 'day')} ago" if ends <= now else f"ends at {at}, in {counted(days, 'day')}"


def full_disks(on: str, disks: Sequence[Disk]) -> Iterator[Anomaly]:
    """The disks of a machine that have less than a tenth left."""
    for disk in disks:
        percent = disk.free * 100 // disk.size if disk.size else 100
        if percent < DISK_TOLD_PERCENT:
            told = f"{disk.path} has {disk.free >> 20} of {disk.size >> 20} MiB free, {percent} %"
            yield Anomaly(code=AnomalyCode.DISK_FULL, on=on, evidence=told, grave=percent < DISK_GRAVE_PERCENT)
