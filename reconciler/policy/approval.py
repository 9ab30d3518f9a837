"""May a proposal be merged without a second person, and if not, has the right one agreed?

The express lane is for people who change their own queue's jobs within its limits and disturb nobody else. Taking
away, cancelling or suspending own jobs, passes at once. Everything else needs somebody besides the author who has the
authority that each change takes, and whoever a policy names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reconciler.documents.layout import is_job
from reconciler.model.observed import Person
from reconciler.model.units import JobKey
from reconciler.policy.authority import REDUCING, Cause, Need, Ruling
from reconciler.policy.rules import Action, Finding
from reconciler.policy.verdicts import answers_to, same_person


class Objection(StrEnum):
    """Why the express lane is closed, or why the check fails."""

    UNKNOWN_AUTHOR = "UnknownAuthor"
    NOT_A_MEMBER = "NotAMember"
    OTHER_PATHS = "OtherPaths"
    ABOVE_LIMITS = "AboveLimits"
    FOREIGN_VICTIM = "ForeignVictim"
    POLICY_ASKS = "PolicyAsks"
    POLICY_DENIES = "PolicyDenies"
    NO_PREVIEW = "NoPreview"
    MISSING_AUTHORITY = "MissingAuthority"
    NO_SECOND_PERSON = "NoSecondPerson"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One objection, with what it is about and who could lift it."""

    objection: Objection
    told: str
    who: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """All that the check looks at.

    `victims` are jobs of others that the proposal makes stop or move, each with those who may agree to that; None when
    it could not be previewed. `findings` are those of policies about what is changed, path first.
    """

    author: Person
    approvers: tuple[Person, ...]
    rulings: tuple[Ruling, ...]
    victims: tuple[tuple[JobKey, tuple[str, ...]], ...] | None
    findings: tuple[tuple[str, Finding], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """The verdict. `express`: no second person was needed. `closed` says why the express lane was closed, `missing` what
    is missing still; no `missing`: passed."""

    express: bool
    closed: tuple[Reason, ...]
    missing: tuple[Reason, ...]

    @property
    def passed(self) -> bool:
        """The check passes."""
        return not self.missing


def approval_of(proposal: Proposal) -> Approval:
    """The verdict on a proposal."""
    closed = _express(proposal)
    if not closed:
        return Approval(express=True, closed=(), missing=())
    return Approval(express=False, closed=closed, missing=_missing(proposal, closed))


# --- without a second person ----------------------------------------------------------------------------------------


def _express(proposal: Proposal) -> tuple[Reason, ...]:
    """What keeps a proposal from passing on its author's word alone."""
    author, found = proposal.author, []
    if not author.user and not author.login:
        found.append(Reason(objection=Objection.UNKNOWN_AUTHOR, told="Nobody knows whose change this is."))
    for ruling in proposal.rulings:
        if not is_job(ruling.path):
            found.append(_about(Objection.OTHER_PATHS, ruling))
        elif ruling.need is Need.QUEUE_ADMIN:
            found.append(_about(Objection.ABOVE_LIMITS, ruling))
        elif not _has(author, ruling):
            found.append(_about(Objection.NOT_A_MEMBER, ruling))
    return (*found, *_disturbed(proposal), *_asked(proposal))


def _disturbed(proposal: Proposal) -> list[Reason]:
    if all(ruling.cause in REDUCING for ruling in proposal.rulings):
        return []
    if proposal.victims is None:
        told = "The decision could not be previewed, so nobody knows whom it disturbs."
        return [Reason(objection=Objection.NO_PREVIEW, told=told)]
    own = {ruling.queue for ruling in proposal.rulings}
    return [
        Reason(objection=Objection.FOREIGN_VICTIM, told=f"{job} would have to stop or move.", who=who)
        for job, who in proposal.victims
        if job.partition("/")[0] not in own
    ]


def _asked(proposal: Proposal) -> list[Reason]:
    """What policies deny, or want somebody's word for. Reducing is fast: it is not asked about."""
    reduced = {ruling.path for ruling in proposal.rulings if ruling.cause in REDUCING}
    return [
        Reason(
            objection=Objection.POLICY_ASKS if finding.action is Action.REQUIRE_APPROVAL else Objection.POLICY_DENIES,
            told=f"{path}: {finding.message}",
            who=finding.approvers,
        )
        for path, finding in proposal.findings
        if finding.action is not Action.WARN and path not in reduced
    ]


def _has(person: Person, ruling: Ruling) -> bool:
    return any(same_person(person, other) for other in ruling.had_by)


def _about(objection: Objection, ruling: Ruling) -> Reason:
    return Reason(objection=objection, told=f"{ruling.path}: {ruling.told}", who=ruling.who)


# --- with one -------------------------------------------------------------------------------------------------------


def _missing(proposal: Proposal, closed: Sequence[Reason]) -> tuple[Reason, ...]:
    """What an author and those who agreed lack together."""
    author = proposal.author
    others = [person for person in proposal.approvers if not same_person(person, author)]
    found = [_about(Objection.MISSING_AUTHORITY, ruling) for ruling in proposal.rulings if not ruling.granted]
    found += [
        reason
        for reason in closed
        if reason.objection in _SECOND_PERSON and not any(answers_to(p, who) for p in others for who in reason.who)
    ]
    if not found and not any(_may_vouch(person, proposal.rulings, closed) for person in others):
        why = "; ".join(dict.fromkeys(reason.told for reason in closed))
        who = dict.fromkeys(name for ruling in proposal.rulings for name in ruling.who)
        found.append(Reason(objection=Objection.NO_SECOND_PERSON, told=why, who=tuple(who)))
    for ruling in proposal.rulings:
        alone = ruling.cause is Cause.CLUSTER_FILE and ruling.granted and not any(_has(p, ruling) for p in others)
        if alone:
            found.append(_about(Objection.NO_SECOND_PERSON, ruling))
    return tuple(dict.fromkeys(found))


_SECOND_PERSON: Final = frozenset({Objection.FOREIGN_VICTIM, Objection.POLICY_ASKS, Objection.POLICY_DENIES})
"""What only a second person among those named can lift; nobody is named for a denial."""


def _may_vouch(person: Person, rulings: Sequence[Ruling], closed: Sequence[Reason]) -> bool:
    """Whether this second person has a say in any of it; for paths that are not ours the forge's own rules hold."""
    ours = [ruling for ruling in rulings if ruling.need is not Need.ELSEWHERE]
    asked = any(answers_to(person, name) for reason in closed for name in reason.who)
    return asked or not ours or any(_has(person, ruling) for ruling in ours)
