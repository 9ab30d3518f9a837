"""The check `gangops/approval`: an event of the forge and two revisions in, a verdict on who has to agree out.

Reads git objects and the recorded event; asks neither forge nor agent. Queues, people, limits and policies are those of
the base; from the head comes only what is proposed. An approval counts for the head it was given for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reconciler.documents.cache import ParseCache
from reconciler.documents.check import Item
from reconciler.documents.desired import SourceFile
from reconciler.documents.judged import Cluster, cluster_of, only_job, read_files
from reconciler.documents.layout import is_job
from reconciler.errors import GangOpsError, InvalidInput, NotFound, UsageError
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.observed import Person, Proof
from reconciler.model.units import Instant, JobKey
from reconciler.policy.approval import Approval, Proposal, approval_of
from reconciler.policy.authority import Change, Rules, Ruling, person_of, rulings
from reconciler.policy.rules import Finding, findings, policies_of
from reconciler.policy.verdicts import person_value, subject_of
from reconciler.runtime.clone import Clone
from reconciler.runtime.generation import PREVIEW, Generation, Inputs, NextGeneration, next_generation
from reconciler.runtime.reading import DesiredReader, ReadDesired
from reconciler.store.objects import blobs, resolve
from reconciler.store.runner import Git
from reconciler.store.trees import REGULAR, TreeEntry, tree_entries

_DISTURBS = frozenset({Cause.PREEMPTED, Cause.RECLAIMED, Cause.FAIR_SHARE, Cause.MOVED, Cause.RESIZED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an event says of a pull request. `approvers` are logins of those whose approval stands for this head."""

    number: str
    author: str
    base: str
    head: str
    approvers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The verdict, and what it rests on."""

    request: Request
    author: Person
    rulings: tuple[Ruling, ...]
    approval: Approval


def request_of(event: object, reviews: object = ()) -> Request:
    """The pull request of a forge's event; `reviews` is what its API lists, oldest first.

    Raises UsageError (BadEvent) when the event is none of a pull request.
    """
    pull = _at(event, "pull_request")
    head = _text(pull, "head", "sha")
    given = [*(reviews if isinstance(reviews, list | tuple) else ()), *_one(_at(event, "review"))]
    found = Request(
        number=str(_at(pull, "number") or ""),
        author=_text(pull, "user", "login"),
        base=_text(pull, "base", "sha"),
        head=head,
        approvers=_approved(given, head),
    )
    if not found.author or not found.base or not found.head:
        raise UsageError(
            "the event names no pull request with author, base and head",
            code="BadEvent",
            remedy="give the event of pull_request, pull_request_review or pull_request_target",
        )
    return found


def check_approval(clone: Clone, request: Request, now: Instant) -> Checked:
    """The verdict on a pull request whose base and head are in this clone.

    Raises NotFound (UnknownRevision), InvalidInput when the base says nothing of queues and people.
    """
    git, base, head = clone.git, resolve(clone.git, request.base), resolve(clone.git, request.head)
    reader = DesiredReader(git)
    current = _current(clone)
    before, after = reader.read(base, current), DesiredReader(git).read(head, current)
    if before.desired is None or before.documents is None:
        raise InvalidInput(before.diagnostics)
    cluster = _cluster_at(git, base)
    rules = Rules(documents=before.documents, quotas=before.desired.quotas, around=cluster.around)
    author = person_of(rules.documents, login=request.author)
    approvers = tuple(person_of(rules.documents, login=login) for login in request.approvers)
    changes = tuple(changes_between(git, _fork(git, base, head), head))
    ruled = rulings(rules, changes, (author, *approvers))
    proposal = Proposal(
        author=author,
        approvers=approvers,
        rulings=ruled,
        victims=_victims(current, before, after, rules, now),
        findings=tuple(_findings(rules, changes, after, author, approvers)),
    )
    return Checked(request=request, author=author, rulings=ruled, approval=approval_of(proposal))


# --- the event ------------------------------------------------------------------------------------------------------


def _at(tree: object, key: str) -> object:
    return tree.get(key) if isinstance(tree, dict) else None


def _text(tree: object, *keys: str) -> str:
    for key in keys:
        tree = _at(tree, key)
    return tree if isinstance(tree, str) else ""


def _one(value: object) -> list[object]:
    return [value] if isinstance(value, dict) else []


def _approved(reviews: Sequence[object], head: str) -> tuple[str, ...]:
    """Logins whose last word on this head is an approval; a comment takes nothing back."""
    last: dict[str, str] = {}
    for review in reviews:
        login, state = _text(review, "user", "login"), _text(review, "state").upper()
        if login and state in ("APPROVED", "CHANGES_REQUESTED", "DISMISSED"):
            last[login] = state if _text(review, "commit_id") == head or state != "APPROVED" else "STALE"
    return tuple(login for login, state in sorted(last.items()) if state == "APPROVED")


# --- what changes ---------------------------------------------------------------------------------------------------


def _fork(git: Git, base: str, head: str) -> str:
    """Where the head left the base: what the base got since is not the author's change."""
    found = git.run("merge-base", base, head, accept=(0, 1)).stdout.decode("ascii").split()
    return found[0] if found else base


def changes_between(git: Git, fork: str, head: str) -> Iterator[Change]:
    """Every path that differs between two commits, jobs with their documents; a path that is no plain file as it is."""
    then, now = _entries(git, fork), _entries(git, head)
    paths = sorted(p for p in then.keys() | now.keys() if _mark(then.get(p)) != _mark(now.get(p)))
    jobs = [path for path in paths if is_job(path)]
    contents = blobs(
        git, {e.oid for p in jobs for e in (then.get(p), now.get(p)) if e is not None and e.mode == REGULAR}
    )
    for path in paths:
        yield Change(
            path=path,
            before=_job(path, then.get(path), contents),
            after=_job(path, now.get(path), contents),
            removed=path not in now,
        )


def _entries(git: Git, commit: str) -> dict[str, TreeEntry]:
    return {entry.path: entry for entry in tree_entries(git, commit)}


def _mark(entry: TreeEntry | None) -> tuple[str, str] | None:
    return (entry.mode, entry.oid) if entry is not None else None


def _job(path: str, entry: TreeEntry | None, contents: Mapping[str, bytes]) -> Item | None:
    if entry is None or entry.oid not in contents:
        return None
    tree = read_files([SourceFile(path, entry.oid, contents[entry.oid])], ParseCache())
    checked = tree.checked.get(path)
    return only_job(checked) if checked is not None and not checked.first_error else None


def _cluster_at(git: Git, commit: str) -> Cluster:
    """The cluster's own documents at a commit, for the limits of its queues."""
    entries = [
        e for p, e in _entries(git, commit).items() if e.mode == REGULAR and p.endswith(".yaml") and not is_job(p)
    ]
    contents = blobs(git, (entry.oid for entry in entries))
    tree = read_files([SourceFile(e.path, e.oid, contents[e.oid]) for e in entries], ParseCache())
    return cluster_of(item for checked in tree.checked.values() for item in checked.items)


# --- whom it disturbs, what policies say ----------------------------------------------------------------------------


def _current(clone: Clone) -> Generation | None:
    try:
        return clone.generation()
    except NotFound:
        return None


def _victims(
    current: Generation | None, before: ReadDesired, after: ReadDesired, rules: Rules, now: Instant
) -> tuple[tuple[JobKey, tuple[str, ...]], ...] | None:
    """Jobs that would have to stop or move for the head and not for the base, with the admins of their queues."""
    if current is None:
        return None
    try:
        base, head = _decided(current, before, now), _decided(current, after, now)
    except GangOpsError:
        return None  # an invalid head, for one: the preview says why, and nobody passes on his own word
    found = _disturbed(current, head) - _disturbed(current, base)
    return tuple((job, rules.admins(job.partition("/")[0])) for job in sorted(found))


def _decided(current: Generation, read: ReadDesired, now: Instant) -> NextGeneration:
    errors = [d for d in read.diagnostics if d.is_error]
    if errors or read.desired is None:
        raise InvalidInput(errors)
    return next_generation(
        Inputs(
            desired=read.desired,
            read=read.read,
            frozen=read.frozen,
            observed=current.observed,
            previous=current,
            now=now,
            trigger=PREVIEW,
            verdicts=read.verdicts,
        )
    )


def _disturbed(current: Generation, following: NextGeneration) -> set[JobKey]:
    return {
        key
        for key, record in following.allocation.jobs.items()
        if record.state is JobState.STOPPING
        and record.cause in _DISTURBS
        and ((then := current.allocation.jobs.get(key)) is None or then.state is not JobState.STOPPING)
    }


def _findings(
    rules: Rules, changes: Sequence[Change], after: ReadDesired, author: Person, approvers: Sequence[Person]
) -> Iterator[tuple[str, Finding]]:
    """What the policies of the base say of the documents of the head that were changed."""
    policies = policies_of(rules.documents.of("Policy"))
    people: tuple[Any, Any] = (
        person_value(author, Proof.FORGE),
        [person_value(person, Proof.FORGE) for person in approvers],
    )
    changed = {change.path for change in changes}
    for item, job in _changed_items(after, changed):
        for finding in findings(policies, subject_of(item, job, rules.quotas), *people):
            yield item.file, finding


def _changed_items(after: ReadDesired, changed: set[str]) -> Iterator[tuple[Item, Job | None]]:
    desired = after.desired
    if desired is not None:
        yield from ((item, desired.job_of(key)) for key, item in after.items.items() if item.file in changed)
    documents = after.documents
    for kind in ("Queue", "PriorityClass", "NodeSet", "Maintenance"):
        yield from (
            (item, None) for item in (documents.of(kind) if documents is not None else ()) if item.file in changed
        )
