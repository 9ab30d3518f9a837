"""What do the policies of a tree say of its documents, and which jobs do they hold back?

A verdict depends on the document with its defaults, on the policies, and on who brought it in (`Provenance`), and on
nothing else; a replay that has the three comes to the same. A denied job is held; one that needs approval is held until
its provenance names an approver. Documents of other kinds start nothing: there a failure only speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reconciler.documents.check import Item
from reconciler.documents.defaulted import defaulted
from reconciler.documents.judged import Cluster
from reconciler.errors import Diagnostic, Severity
from reconciler.model.desired import PolicyHold
from reconciler.model.job import Job
from reconciler.model.observed import Person, Proof, Provenance
from reconciler.model.queue import QuotaTree
from reconciler.model.units import JobKey, QueueName
from reconciler.policy.rules import PLAN, Action, Finding, Policy, Subject, findings, policies_of

_JUDGED = ("Queue", "PriorityClass", "NodeSet", "Maintenance")
"""Kinds beside Job; policies name no others."""
_TREES = 4  # whose policies are kept compiled
_DEFAULTS = 256  # parts that defaults add to a job at most
_DEEP = 64  # queues inside each other; lint allows fewer


@dataclass(frozen=True, slots=True)
class _Known:
    policies: tuple[Policy, ...]
    item: Item
    job: Job | None
    provenance: Provenance | None
    found: tuple[Finding, ...]
    stood_on: object

    def stands(self, policies: tuple[Policy, ...], item: Item, job: Job | None, provenance: Provenance | None) -> bool:
        """Whether nothing that was looked at is another object now."""
        return (
            self.policies is policies
            and self.item.read is item.read
            and self.job is job
            and self.provenance is provenance
        )


_People = tuple[Person, tuple[Person, ...], Proof]


class Recalled(NamedTuple):
    """What another process found in one job, and all that it looked at, by value: of who brought it, what rules see.

    A tuple, like `Verdict`: thousands of them are read at the start of a preview.
    """

    content: bytes
    job: Job | None
    brought: _People | None
    found: tuple[Finding, ...]


def _seen_of(provenance: Provenance | None) -> _People | None:
    """All of a provenance that `people` looks at."""
    return (provenance.author, provenance.approvers, provenance.proven) if provenance is not None else None


@dataclass(slots=True)
class Memory:
    """What was found before, for as long as policies, documents and provenance stay. Not safe for several threads.

    `recalled` is what another process found by the policies and in the queues `stood_on` says.
    """

    policies: dict[tuple[tuple[str, int, bytes], ...], tuple[Policy, ...]] = field(default_factory=dict)
    jobs: dict[JobKey, _Known] = field(default_factory=dict)
    recalled: dict[JobKey, Recalled] = field(default_factory=dict)
    stood_on: object = None

    def known(self, stood_on: object) -> dict[JobKey, Recalled]:
        """What was found by policies and in queues: for `recalled` of a later process."""
        found = {}
        same: dict[_People | None, _People | None] = {}  # few people bring most jobs: each is written once
        for key, one in self.jobs.items():
            if one.stood_on == stood_on:
                brought = _seen_of(one.provenance)
                found[key] = Recalled(one.item.content, one.job, same.setdefault(brought, brought), one.found)
        return found

    def policies_of(self, items: Sequence[Item]) -> tuple[Policy, ...]:
        """Compiled policies, the same object for the same documents: two trees are looked at in turn, not more."""
        written = tuple((item.file, item.index, item.content) for item in items)
        if written not in self.policies:
            if len(self.policies) >= _TREES:
                del self.policies[next(iter(self.policies))]
            self.policies[written] = policies_of(items)
        return self.policies[written]


class Verdicts:
    """The policies of one tree over its documents."""

    __slots__ = ("_cluster", "_items", "_job_of", "_look_at_jobs", "_memory", "_recalled", "policies", "stood_on")

    def __init__(
        self,
        cluster: Cluster,
        items: Mapping[JobKey, Item],
        job_of: Callable[[JobKey], Job | None],
        memory: Memory,
    ) -> None:
        """`items` are the documents of jobs by key, `job_of` what each of them says."""
        self._cluster, self._items, self._job_of, self._memory = cluster, items, job_of, memory
        written = cluster.documents.of("Policy")
        self.policies = memory.policies_of(written)
        self._look_at_jobs = any("Job" in policy.kinds for policy in self.policies)
        queues = cluster.desired.quotas.queues
        self.stood_on = (
            tuple((item.file, item.index, item.content) for item in written),
            tuple(sorted((name, queue.parent or "") for name, queue in queues.items())),
        )
        self._recalled = memory.recalled if memory.stood_on == self.stood_on else {}

    def holds(self, provenance: Mapping[JobKey, Provenance]) -> dict[JobKey, PolicyHold]:
        """The jobs that policies hold back, by key: the first denial, else the first approval that is missing."""
        found = {}
        for key in self._items if self._look_at_jobs else ():
            brought = provenance.get(key)
            told = self.of_job(key, brought)
            if told and (hold := _hold_of(told, brought)) is not None:
                found[key] = hold
        return found

    def of_job(self, key: JobKey, provenance: Provenance | None) -> tuple[Finding, ...]:
        """All that policies find in one job."""
        if not self._look_at_jobs:
            return ()
        item, job = self._items[key], self._job_of(key)
        known = self._memory.jobs.get(key)
        if known is not None and known.stands(self.policies, item, job, provenance):
            return known.found
        found = self._found_before(key, item, job, provenance)
        if found is None:
            found = findings(self.policies, subject_of(item, job, self._cluster.desired.quotas), *people(provenance))
        self._memory.jobs[key] = _Known(self.policies, item, job, provenance, found, self.stood_on)
        return found

    def unjudged(self) -> tuple[JobKey, ...]:
        """Jobs of which nothing is known from before, so that they have to be looked at."""
        if not self._look_at_jobs:
            return ()
        return tuple(key for key in self._items if key not in self._memory.jobs and key not in self._recalled)

    def found_in(
        self, keys: Iterable[JobKey], provenance: Mapping[JobKey, Provenance]
    ) -> dict[JobKey, tuple[Finding, ...]]:
        """All that policies find in these jobs, by key: for `take` of another process."""
        return {key: self.of_job(key, provenance.get(key)) for key in keys}

    def take(self, found: Mapping[JobKey, tuple[Finding, ...]], provenance: Mapping[JobKey, Provenance]) -> None:
        """Remember what another process found by the same policies in the same documents."""
        for key, told in found.items():
            item, job = self._items[key], self._job_of(key)
            known = _Known(self.policies, item, job, provenance.get(key), told, self.stood_on)
            self._memory.jobs[key] = known

    def _found_before(
        self, key: JobKey, item: Item, job: Job | None, provenance: Provenance | None
    ) -> tuple[Finding, ...] | None:  # fmt: skip
        """What another process found in exactly this, if it did."""
        then = self._recalled.get(key)
        if then is None or (then.content, then.job, then.brought) != (item.content, job, _seen_of(provenance)):
            return None
        return then.found

    def of_cluster(self, provenance: Provenance | None = None) -> Iterator[tuple[Item, Finding]]:
        """All that policies find in documents other than jobs; `provenance` is that of the change."""
        for kind in _JUDGED:
            matching = tuple(policy for policy in self.policies if kind in policy.kinds)
            for item in self._cluster.documents.of(kind) if matching else ():
                subject = subject_of(item, None, self._cluster.desired.quotas)
                for finding in findings(matching, subject, *people(provenance)):
                    yield item, finding

    def diagnostics(
        self, provenance: Mapping[JobKey, Provenance] | None, *, proposal: bool = False
    ) -> Iterator[Diagnostic]:
        """What authors are told. In a proposal a denial is an error; of what is merged already everything is a warning.

        `provenance` None: nobody knows who brought what, and approvals are left out.
        """
        for item, finding in self._all(provenance):
            denied = finding.action is Action.DENY
            yield item.problem(
                finding.rule,
                f"Policy {_DOES[finding.action]}",
                f'Policy "{finding.policy}": {finding.message}',
                "spec",
                remedy=_remedy(finding),
                severity=Severity.ERROR if denied and proposal else Severity.WARNING,
                of_key=True,
            )

    def _all(self, provenance: Mapping[JobKey, Provenance] | None) -> Iterator[tuple[Item, Finding]]:
        for key, item in self._items.items() if self._look_at_jobs else ():
            brought = provenance.get(key) if provenance is not None else None
            for finding in self.of_job(key, brought):
                if finding.action is not Action.REQUIRE_APPROVAL or (
                    provenance is not None and not is_approved(finding, brought)
                ):
                    yield item, finding
        yield from ((item, f) for item, f in self.of_cluster() if f.action is not Action.REQUIRE_APPROVAL)

    @property
    def over_plans(self) -> tuple[Policy, ...]:
        """The policies that judge plans."""
        return tuple(policy for policy in self.policies if PLAN in policy.kinds)


_DOES = {
    Action.DENY: "denies the document",
    Action.WARN: "warns of the document",
    Action.REQUIRE_APPROVAL: "wants approval for the document",
}


def _remedy(finding: Finding) -> str:
    if finding.action is Action.REQUIRE_APPROVAL:
        return f"Ask one of {', '.join(finding.approvers)} to approve the pull request."
    return "Correct the document, or talk to those who own policies/." if finding.action is Action.DENY else ""


def subject_of(item: Item, job: Job | None, quotas: QuotaTree) -> Subject:
    """The document as rules see it."""
    queue = item.model.spec.queue if item.kind == "Job" else item.name if item.kind == "Queue" else ""
    return Subject(
        kind=item.kind,
        name=item.name,
        queues=tuple(path_of_queue(queue, quotas)) if queue else (),
        labels=item.model.metadata.labels,
        tree=defaulted(item, job),
        # Two bytes for each part at least, but for node lists, which are written short; and what defaults add.
        size=len(item.content) // 2 + _DEFAULTS if item.kind == "Job" else 0,
    )


def path_of_queue(name: str, quotas: QuotaTree) -> list[str]:
    """The queue and those around it, innermost first."""
    found = [name]
    while len(found) < _DEEP and (queue := quotas.queues.get(QueueName(found[-1]))) is not None and queue.parent:
        found.append(queue.parent)
    return found


# --- people ---------------------------------------------------------------------------------------------------------


def people(provenance: Provenance | None) -> tuple[dict[str, object], list[dict[str, object]]]:
    """`author` and `approvers` as expressions see them. Names that nothing stands behind are in no team."""
    if provenance is None:
        return person_value(Person(), Proof.NONE), []
    approvers = [person_value(person, provenance.proven) for person in provenance.approvers]
    return person_value(provenance.author, provenance.proven), approvers


def person_value(person: Person, proven: Proof) -> dict[str, object]:
    """Somebody as expressions see them."""
    teams = [team.removeprefix("@") for team in person.teams] if proven is not Proof.NONE else []
    return {
        "user": person.user, "email": person.email, "login": person.login, "teams": teams, "proven": proven.value,
    }  # fmt: skip


def is_approved(finding: Finding, provenance: Provenance | None) -> bool:
    """Whether somebody who may has agreed: an approver by login, team, e-mail address or user, and never the author."""
    if provenance is None or provenance.proven is Proof.NONE:
        return False
    return any(
        answers_to(person, wanted) and not same_person(person, provenance.author)
        for person in provenance.approvers
        for wanted in finding.approvers
    )


def answers_to(person: Person, wanted: str) -> bool:
    """Whether a name in `approvers`, `members` or `admins` means this person: `@login`, `@org/team`, address or user.

    Logins, teams and addresses are the same in any case, as they are at forges.
    """
    bare = wanted.removeprefix("@").lower()
    if not bare:
        return False
    teams = [team.removeprefix("@").lower() for team in person.teams]
    if "/" in bare:
        return bare in teams
    names = (
        {person.login.lower()} if wanted.startswith("@") else {person.user, person.email.lower(), person.login.lower()}
    )
    return bare in names


def same_person(one: Person, other: Person) -> bool:
    """Whether two are known to be one: by user, login or address."""
    pairs = ((one.user, other.user), (one.login.lower(), other.login.lower()), (one.email.lower(), other.email.lower()))
    return any(mine and mine == theirs for mine, theirs in pairs)


def _hold_of(found: Sequence[Finding], provenance: Provenance | None) -> PolicyHold | None:
    denied = next((f for f in found if f.action is Action.DENY), None)
    waits = next((f for f in found if f.action is Action.REQUIRE_APPROVAL and not is_approved(f, provenance)), None)
    first = denied or waits
    if first is None:
        return None
    return PolicyHold(policy=first.policy, rule=first.rule, message=first.message, approvers=first.approvers)
