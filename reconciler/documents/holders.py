"""Who holds a job, and may look into it while it runs? Its author, its owner, and the admins of its queue.

People are User documents, known by their keys; what they may change is the business of `policy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from reconciler.documents.lint import Documents
from reconciler.model.desired import Desired
from reconciler.model.observed import Observed
from reconciler.model.queue import QuotaTree
from reconciler.model.units import JobKey, QueueName, document_of

_DEEP: Final = 64  # queues inside each other; lint allows fewer


def keys_of(documents: Documents) -> dict[str, tuple[str, ...]]:
    """`ALGORITHM KEY` of every key of every User, without the comments."""
    return {
        item.name: tuple(" ".join(key.split()[:2]) for key in item.model.spec.ssh_keys) for item in documents.of("User")
    }


def addresses_of(documents: Documents) -> dict[str, str]:
    """The User of each e-mail address, in small letters."""
    return {email.lower(): item.name for item in documents.of("User") for email in item.model.spec.emails}


def admins_of(documents: Documents, quotas: QuotaTree) -> dict[QueueName, tuple[str, ...]]:
    """The Users among the admins of each queue and of the queues around it, sorted."""
    queues = documents.named("Queue")
    found: dict[QueueName, tuple[str, ...]] = {}
    for name in quotas.queues:
        path: list[QueueName] = []
        at = name
        while at in quotas.queues and len(path) < _DEEP:
            path.append(at)
            at = quotas.queues[at].parent or QueueName("")
        said = [queues[queue].model.spec.admins for queue in path if queue in queues]
        wanted = {word.lower() for admins in said for word in (*admins.github, *admins.users)}
        found[name] = tuple(sorted(i.name for i in documents.of("User") if wanted & _called(i.model.spec)))
    return found


def _called(spec: Any) -> set[str]:
    """Every way in which a list of members may name somebody."""
    login = [f"@{spec.github}"] if spec.github else []
    return {word.lower() for word in (*login, *spec.teams, *spec.emails)}


def holders_of(key: JobKey, desired: Desired, observed: Observed) -> list[str] | None:
    """`USER ALGORITHM KEY` of everyone who holds the job; None when it has no file any more."""
    job, brought = desired.jobs.get(key), observed.provenance.get(document_of(key))
    if job is None:
        return None
    if not desired.keys:
        return []
    users = {
        desired.addresses.get(job.owner.lower(), ""),
        *desired.admins.get(job.queue, ()),
        brought.author.user if brought else "",
    }
    return [f"{user} {line}" for user in sorted(users) for line in desired.keys.get(user, ())]


def holders_told(key: JobKey, desired: Desired, observed: Observed) -> tuple[str, str] | None:
    """Who holds a job, as `holders_of` looks at it, in words; and what lets in somebody who is not among them.

    None when it has no file any more: then its last orders say who holds it.
    """
    job, brought = desired.job_of(key), observed.provenance.get(document_of(key))
    if job is None:
        return None
    author, address = "its author is not recorded", ""
    if brought is not None and brought.author.user:
        author = f"its author {_with_keys(brought.author.user, desired)}"
    elif brought is not None:
        address = brought.author.email
        author = f"its author {address or brought.author.login or 'unknown'}, who had no User when commit {brought.commit[:7]} was merged"
    told = [author]
    if job.owner:
        user = desired.addresses.get(job.owner.lower(), "")
        told.append(
            f"its owner {job.owner} ({f'User {_with_keys(user, desired)}' if user else 'the address of no User'})"
        )
    admins = [_with_keys(user, desired) for user in desired.admins.get(job.queue, ())]
    told.append(f"admins of queue {job.queue}: {', '.join(admins) or 'no User'}")
    remedy = (
        "Sign with a key of one of them (--key), or merge `owner: ADDRESS` of a User with a key under spec of its file."
    )
    if address and not (known := desired.addresses.get(address.lower(), "")):
        remedy = f"Merge a User with {address} and a key, then `owner: {address}` under spec of its file; it runs on."
    elif address:
        remedy = f"{address} is User {_with_keys(known, desired)} now: merge `owner: {address}` under spec of its file; it runs on."
    return "; ".join(told), remedy


def _with_keys(user: str, desired: Desired) -> str:
    return user if desired.keys.get(user) else f"{user} (without a key)"


def still_holding(before: Iterable[str], keys: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Those of earlier holders whose keys are theirs still."""
    return [line for line in before if line.partition(" ")[2] in keys.get(line.partition(" ")[0], ())]
