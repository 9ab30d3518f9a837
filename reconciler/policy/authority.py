"""Who may change what? Each changed path of a proposal, the authority it takes, and whether somebody had it.

Rules come from the base of the change: nobody makes himself an admin in the proposal that needs one. Members and admins
of a queue count for the queues inside it; platform owners are the admins of the outermost queues.

    a job                                      a member of its queue
    a class above the queue's, more than its limits     an admin of its queue
    cluster, fabric, inventory, queues, priorities, maintenance, users, trust, policies      a platform owner
    anything else in the repository            not ours to judge: CODEOWNERS does

Whether a second person has to look is for `approval`; how it is known who somebody is, for `runtime`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reconciler.documents.check import Item
from reconciler.documents.layout import JOBS, POLICIES, ROOT, key_of
from reconciler.documents.lint import Documents
from reconciler.documents.surroundings import QueueRules, Surroundings
from reconciler.model.counting import counted
from reconciler.model.observed import Person
from reconciler.model.queue import QuotaTree
from reconciler.model.units import ClassName, JobKey
from reconciler.policy.verdicts import answers_to, path_of_queue


class Need(StrEnum):
    """The authority a change takes."""

    QUEUE_MEMBER = "QueueMember"
    QUEUE_ADMIN = "QueueAdmin"
    PLATFORM_OWNER = "PlatformOwner"
    ELSEWHERE = "Elsewhere"


class Cause(StrEnum):
    """Why it takes that."""

    JOB_CHANGED = "JobChanged"
    JOB_REMOVED = "JobRemoved"
    JOB_SUSPENDED = "JobSuspended"
    ABOVE_PRIORITY_CEILING = "AbovePriorityCeiling"
    ABOVE_QUEUE_LIMIT = "AboveQueueLimit"
    UNREADABLE_JOB = "UnreadableJob"
    CLUSTER_FILE = "ClusterFile"
    OTHER_FILE = "OtherFile"


REDUCING: Final = frozenset({Cause.JOB_REMOVED, Cause.JOB_SUSPENDED})
"""Changes that start and raise nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed path. `before` and `after` are the job's documents where the path is a job's; None: absent, or bad."""

    path: str
    before: Item | None = None
    after: Item | None = None
    removed: bool = False

    @property
    def job(self) -> JobKey | None:
        """The job the path names, if it is a job's."""
        return key_of(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What one change takes. `had_by` names the people who have it: author and approvers; `queue` is "" for no queue's.

    `told` says it in a sentence, `who` names those who could agree, as the documents spell them.
    """

    path: str
    need: Need
    cause: Cause
    queue: str
    had_by: tuple[Person, ...]
    who: tuple[str, ...]
    told: str

    @property
    def granted(self) -> bool:
        """Somebody had the authority, or it is not ours to judge."""
        return bool(self.had_by) or self.need is Need.ELSEWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the base tree says of people: queues, users, and the limits of queues."""

    documents: Documents
    quotas: QuotaTree
    around: Surroundings

    def members(self, queue: str) -> tuple[str, ...]:
        """Those who may put jobs into a queue: its members and admins, and those of the queues around it."""
        return self._named(path_of_queue(queue, self.quotas), ("members", "admins"))

    def admins(self, queue: str) -> tuple[str, ...]:
        """The admins of a queue and of those around it."""
        return self._named(path_of_queue(queue, self.quotas), ("admins",))

    @property
    def owners(self) -> tuple[str, ...]:
        """The platform owners: admins of the outermost queues."""
        tops = [item.name for item in self.documents.of("Queue") if item.model.spec.parent is None]
        return self._named(tops, ("admins",))

    def is_queue(self, name: str) -> bool:
        """Whether the base has this queue."""
        return name in self.documents.named("Queue")

    def _named(self, queues: Iterable[str], fields: Sequence[str]) -> tuple[str, ...]:
        known = self.documents.named("Queue")
        found: dict[str, None] = {}
        for name in queues:
            for field in fields if name in known else ():
                said = getattr(known[name].model.spec, field)
                found.update(dict.fromkeys((*said.github, *said.users)))
        return tuple(found)


def person_of(documents: Documents, *, login: str = "", email: str = "") -> Person:
    """Somebody by login or address, with the name and the teams that their User document gives them."""
    for item in documents.of("User"):
        spec = item.model.spec
        by_login = bool(login) and (spec.github or "").lower() == login.lower()
        by_email = bool(email) and email.lower() in [address.lower() for address in spec.emails]
        if by_login or by_email:
            return Person(
                user=item.name, email=email or spec.emails[0], login=spec.github or login, teams=tuple(spec.teams)
            )
    return Person(email=email, login=login)


def rulings(rules: Rules, changes: Iterable[Change], people: Sequence[Person]) -> tuple[Ruling, ...]:
    """What each change takes and which of these people have it, by path."""
    return tuple(
        ruling for change in sorted(changes, key=lambda c: c.path) for ruling in _rulings(rules, change, people)
    )


def _rulings(rules: Rules, change: Change, people: Sequence[Person]) -> Iterator[Ruling]:
    if change.job is None or not change.path.startswith(JOBS):
        if change.path.startswith((ROOT, POLICIES)):
            yield _ruling(
                change, Need.PLATFORM_OWNER, Cause.CLUSTER_FILE, "", rules.owners, people, "It defines the cluster."
            )
        else:
            yield _ruling(change, Need.ELSEWHERE, Cause.OTHER_FILE, "", (), people, "It is no desired state.")
        return
    queue = change.job.partition("/")[0]
    cause = _cause(change)
    if not rules.is_queue(queue):
        told = f"Queue {queue} is not in the base: who is in it is not known yet."
        yield _ruling(change, Need.PLATFORM_OWNER, cause, queue, rules.owners, people, told)
        return
    yield _ruling(
        change, Need.QUEUE_MEMBER, cause, queue, rules.members(queue), people, f"It is a job of queue {queue}."
    )
    if cause in (Cause.JOB_CHANGED, Cause.UNREADABLE_JOB) and change.after is not None:
        for reason, told in _excesses(change, rules.around.queues.get(queue), rules.around):
            yield _ruling(change, Need.QUEUE_ADMIN, reason, queue, rules.admins(queue), people, told)


def _cause(change: Change) -> Cause:
    if change.removed:
        return Cause.JOB_REMOVED
    if change.after is None:
        return Cause.UNREADABLE_JOB
    if change.before is not None and change.after.model.spec.suspend:
        then, now = change.before.model, change.after.model
        same = then.spec.model_copy(update={"suspend": True}) == now.spec and then.metadata == now.metadata
        if same:
            return Cause.JOB_SUSPENDED
    return Cause.JOB_CHANGED


def _excesses(change: Change, limits: QueueRules | None, around: Surroundings) -> Iterator[tuple[Cause, str]]:
    """Where a changed job asks for more than its queue gives; what it asked for before does not count again."""
    if limits is None or change.after is None:
        return
    now, then = change.after.model.spec, change.before.model.spec if change.before is not None else None
    value = _class_value(now.priority_class, around)
    raised = then is None or _class_value(then.priority_class, around) < value
    if limits.max_priority is not None and value > limits.max_priority and raised:
        yield Cause.ABOVE_PRIORITY_CEILING, f"{now.priority_class} is above {limits.max_priority_class}, its queue's."
    if limits.gpus_per_job is not None and now.gpus > limits.gpus_per_job and (then is None or now.gpus > then.gpus):
        yield (
            Cause.ABOVE_QUEUE_LIMIT,
            f"{counted(now.gpus, 'GPU is', 'GPUs are')} more than the {limits.gpus_per_job} of its queue.",
        )
    longer = then is None or then.time_limit != now.time_limit
    if limits.time_limit is not None and longer and _longer(now.time_limit, limits.time_limit):
        yield Cause.ABOVE_QUEUE_LIMIT, "Its time limit is longer than its queue's."


def _class_value(name: str | None, around: Surroundings) -> int:
    known = around.classes.get(ClassName(name or around.default_class or ""))
    return known.value if known is not None else 0


def _longer(said: int | None, limit: int) -> bool:
    """-1 is unlimited; unsaid is the cluster's default, which the queue's limit is not compared with."""
    return said is not None and (said < 0 or said > limit)


def _ruling(
    change: Change, need: Need, cause: Cause, queue: str, who: tuple[str, ...], people: Sequence[Person], told: str
) -> Ruling:
    had_by = tuple(person for person in people if any(answers_to(person, wanted) for wanted in who))
    return Ruling(path=change.path, need=need, cause=cause, queue=queue, had_by=had_by, who=who, told=told)


def owners_of_paths(rules: Rules) -> Mapping[str, tuple[str, ...]]:
    """The folders of a repository that platform owners answer for; job folders are left to the express lane."""
    folders = ("fabric", "inventory", "queues", "priorities", "maintenance", "users", "trust")
    return {
        f"/{ROOT}cluster.yaml": rules.owners,
        **{f"/{ROOT}{folder}/": rules.owners for folder in folders},
        f"/{POLICIES}": rules.owners,
        "/.github/": rules.owners,
        "/schemas/": rules.owners,
    }
