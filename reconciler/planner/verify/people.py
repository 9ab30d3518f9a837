"""Does nobody get more than one person may have, and does nobody's work run under an account that is not known?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from reconciler.model.allocation import JobRecord
from reconciler.model.job import SUBMITTER
from reconciler.model.observed import Proof
from reconciler.model.units import JobKey, document_of
from reconciler.planner.verify.case import Breach, Case, Violation


def accounts_known(case: Case) -> Iterator[Violation]:
    """What starts as its submitter starts as one whose account is known and who stands behind it."""
    for before, after in case.started:
        job = case.desired.jobs.get(after.job)
        fresh = before is None or before.attempt != after.attempt
        if job is None or job.run.user != SUBMITTER or not (fresh and after.state.holds_gpus):
            continue
        brought = case.observed.provenance.get(document_of(after.job))
        user = brought.submitter.user if brought is not None and brought.submitter is not None else ""
        if brought is None or brought.vouched is Proof.NONE or user not in case.desired.accounts:
            yield Violation(code=Breach.NO_ACCOUNT, job=after.job)


def within_user_limits(case: Case) -> Iterator[Violation]:
    """No start or promise takes a person past a limit, or further past it."""
    if not any(limits for _, limits in _scopes(case)) or not case.started:
        return
    then, now = _held(case, case.previous.jobs.values()), _held(case, case.next.jobs.values())
    grown = {_person(case, after.job): after.job for _, after in case.started}
    for scope, limits in _scopes(case):
        for what, most in limits:
            for person, job in grown.items():
                had, has = then[scope, what, person], now[scope, what, person]
                if has > most and has > had:
                    told = f"{person} would hold {has} of at most {most} {what} in {scope}"
                    yield Violation(code=Breach.USER_LIMIT, job=job, detail=told)


def _scopes(case: Case) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    for queue in case.desired.quotas.queues.values():
        said = [("gpus", queue.per_user_gpus), ("jobs", queue.per_user_jobs)]
        yield f"queue {queue.name}", [(what, most) for what, most in said if most is not None]
    for priority in case.desired.classes.values():
        most = priority.per_user_gpus
        yield f"class {priority.name}", [("gpus", most)] if most is not None else []


def _held(case: Case, records: Iterable[JobRecord]) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for record in records:
        job = case.desired.jobs.get(record.job)
        promised = len(record.promise.placement.ranks) if record.promise is not None else 0
        gpus = max(record.gpus_held, promised)
        if job is None or not gpus:
            continue
        person = _person(case, record.job)
        scopes = [f"queue {name}" for name in case.desired.quotas.path(job.queue)] + [f"class {job.priority_class}"]
        for scope in scopes:
            found[scope, "gpus", person] += gpus
            found[scope, "jobs", person] += 1
    return found


def _person(case: Case, key: JobKey) -> str:
    brought = case.observed.provenance.get(document_of(key))
    if brought is None:
        return ""
    who = brought.submitter or brought.author
    return f"{who.user or who.login or who.email}/{brought.vouched is Proof.NONE}"
