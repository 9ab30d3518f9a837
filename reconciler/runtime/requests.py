"""Which requests are there, and which are in force? Looked at when they come, once; from then on the record tells.

A request is let in when a User signed it, asks this cluster for something that only reduces, has the authority to and
lets it end within a day. Whatever it is, it is recorded: a refused one with why. It is over when it expires, or when
what is desired says the same, from when on the files alone count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from reconciler.documents.request_file import REQUEST_FILE, Wish, read_wish
from reconciler.errors import GangOpsError, StoreError
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.observed import Person
from reconciler.model.request import LONGEST, Ask, Refusal, Request, Standing, granted_for, keys_of_tasks
from reconciler.model.units import DAY, MINUTE, CommitId, Instant, Nanoseconds, document_of
from reconciler.policy.authority import Rules
from reconciler.policy.requesting import may_ask, who_may
from reconciler.runtime.reading import ReadDesired
from reconciler.runtime.request_proof import MOST_NODES, Refused, one_file_tree, said_by, signer_of_request
from reconciler.store.history import parse_commit
from reconciler.store.mirror import REQUESTS
from reconciler.store.objects import blobs, described, objects
from reconciler.store.runner import Git

_ID = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_AT_ONCE = 16
"""Requests looked at in one round; the rest wait for the next."""
_KEPT = Nanoseconds(7 * DAY)
"""How long one that is over stays in the newest tree. The history keeps it for ever."""
_SLACK = Nanoseconds(5 * MINUTE)
_MOST_BYTES = 16_384

Known = Mapping[str, Request]


def requests_after(
    git: Git, known: Known, tips: Mapping[str, str], read: ReadDesired, cluster: str, now: Instant
) -> Known:  # fmt: skip
    """What is known of requests, brought to `now`, with those of `tips` (ref to commit) that nobody looked at yet.

    People, keys, queues and nodes are those of `read`. The same object as `known` when nothing is new.
    """
    if not known and not tips:
        return known
    refs = {ref.removeprefix(REQUESTS): commit for ref, commit in tips.items()}
    found = {
        name: stood(request, read.desired, now)
        for name, request in known.items()
        if name in refs or not may_be_forgotten(request, now)
    }
    if read.desired is not None and read.documents is not None and read.around is not None:
        fresh = [name for name in sorted(refs) if _ID.fullmatch(name) and _is_new(known.get(name), refs[name])]
        for name in fresh[:_AT_ONCE]:
            found[name] = _Look(git, read, cluster, now).judged(name, refs[name])
    same = found.keys() == known.keys() and all(found[name] is known[name] for name in found)
    return known if same else {name: found[name] for name in sorted(found)}


def news(before: Known, after: Known) -> list[Request]:
    """Requests that came, were refused, or ended since; by name. That one is forgotten is none."""
    return [request for name, request in sorted(after.items()) if before.get(name) != request]


def judged_again(git: Git, request: Request, read: ReadDesired, cluster: str) -> Request:
    """What a recorded request comes to when it is looked at once more, at the time it was first seen, by the evidence on
    record and the people, keys and queues of `read`. One whose evidence could not be read has to be refused for that."""
    if not request.signed:
        return Request(
            id=request.id, commit=request.commit, ask=None, standing=Standing.REFUSED, seen=request.seen,
            ended=request.seen, refusal=Refusal.NOT_A_REQUEST, told=request.told,
        )  # fmt: skip
    look = _Look(git, read, cluster, request.seen)
    return look.by_evidence(request.id, request.commit, request.signed.encode(), request.content.encode())


def may_be_forgotten(request: Request, now: Instant) -> bool:
    """Whether one that is over has been in the newest tree for long enough."""
    return bool(request.ended) and now >= request.ended + _KEPT


def over(known: Known, tips: Mapping[str, str]) -> dict[str, str]:
    """Refs, with the commit each is at, of requests that were refused or are over: nobody needs them any more."""
    return {
        ref: commit
        for ref, commit in tips.items()
        if (request := known.get(ref.removeprefix(REQUESTS))) is not None and request.ended and request.commit == commit
    }


def _is_new(known: Request | None, commit: str) -> bool:
    """Nobody looked at this commit. What is in force cannot be replaced by moving its ref."""
    return known is None or (known.commit != commit and known.standing is not Standing.IN_FORCE)


def stood(request: Request, desired: Desired | None, now: Instant) -> Request:
    """A known request as it stands at `now`."""
    if request.standing is not Standing.IN_FORCE:
        return request
    if now >= request.expires:
        return replace(request, standing=Standing.EXPIRED, ended=now)
    if desired is not None and _has_landed(request, desired, now):
        return replace(request, standing=Standing.LANDED, ended=now)
    return request


def _has_landed(request: Request, desired: Desired, now: Instant) -> bool:
    """What is desired asks for the same."""
    match request.ask:
        case Ask.CANCEL if request.tasks and desired.job_of(request.job) is not None:
            return not any(key in desired.jobs and not _is_cancelled(desired.jobs[key]) for key in request.keys)
        case Ask.CANCEL:
            return desired.job_of(request.job) is None and request.job not in desired.invalid
        case Ask.SUSPEND:
            job = desired.job_of(request.job)
            return job.suspend if job is not None else request.job not in desired.invalid
        case Ask.CORDON:
            return not {node.name for node in desired.inventory.nodes if not node.cordoned} & set(request.nodes)
        case Ask.DRAIN:
            shut = {w.node for w in desired.windows if w.begins <= now < w.ends and w.drain != "wait" and not w.members}
            return not {node.name for node in desired.inventory.nodes if node.name not in shut} & set(request.nodes)
        case _:
            return False


def _is_cancelled(job: Job) -> bool:
    return job.task is not None and job.task.cancelled


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at what came, with all it is judged by."""

    git: Git
    read: ReadDesired
    cluster: str
    now: Instant

    def judged(self, name: str, commit: str) -> Request:
        """The request of a commit as it goes into the record, let in or refused."""
        known = self._unread(name, commit)
        try:
            raw, content = self._evidence(commit)
        except Refused as refused:
            return replace(known, refusal=refused.refusal, told=refused.told)
        return self.by_evidence(name, commit, raw, content)

    def _unread(self, name: str, commit: str) -> Request:
        return Request(
            id=name, commit=CommitId(commit), ask=None, standing=Standing.REFUSED, seen=self.now, ended=self.now
        )

    def by_evidence(self, name: str, commit: str, raw: bytes, content: bytes) -> Request:
        """The request whose commit object and file these are."""
        known = replace(self._unread(name, commit), signed=raw.decode(), content=content.decode())
        try:
            wish = self._wish(name, content)
            known = replace(known, **said_by(wish))  # type: ignore[arg-type]  # fields of a request by name
            person = signer_of_request(self.git, raw, self.read)
            known = replace(known, by=person.user, email=person.email)
            self._check(wish, person)
        except Refused as refused:
            return replace(known, refusal=refused.refusal, told=refused.told)
        return replace(known, standing=Standing.IN_FORCE, ended=Instant(0))

    def _evidence(self, commit: str) -> tuple[bytes, bytes]:
        """The commit object and its one file, both plain text."""
        try:
            ((_, kind, raw),) = objects(self.git, (commit,))
            listed = self.git.run("ls-tree", "-z", "--object-only", commit, at_most=_MOST_BYTES).stdout.split(b"\0")
            oid = listed[0].decode()
            content = blobs(self.git, (oid,))[oid] if described(self.git, oid)[2] <= _MOST_BYTES else b""
        except (StoreError, ValueError, IndexError) as err:
            raise Refused(Refusal.NOT_A_REQUEST, _line(f"it cannot be read: {err}")) from err
        alone = raw.startswith(f"tree {one_file_tree(content)}\n".encode())
        if kind != "commit" or not alone or parse_commit(commit, raw).parents:
            raise Refused(
                Refusal.NOT_A_REQUEST, f"it is no commit of a plain file {REQUEST_FILE} alone, without a parent"
            )
        if len(raw) > _MOST_BYTES or not (_is_plain(raw) and _is_plain(content)):
            raise Refused(Refusal.NOT_A_REQUEST, "it is no plain text, or too much of it")
        return raw, content

    def _wish(self, name: str, content: bytes) -> Wish:
        try:
            said, wish = read_wish(content)
        except GangOpsError as err:
            raise Refused(Refusal.NOT_A_REQUEST, _line(f"its file cannot be read: {err}")) from err
        if said != name:
            raise Refused(Refusal.NOT_A_REQUEST, _line(f"it calls itself {said}"))
        return wish

    def _check(self, wish: Wish, person: Person) -> None:
        if wish.cluster != self.cluster:
            raise Refused(Refusal.OTHER_CLUSTER, f"it is for cluster {wish.cluster}, this is {self.cluster}")
        if wish.ask not in list(Ask):
            raise Refused(Refusal.NOT_REDUCING, f"{wish.ask} does not only reduce: it goes through a pull request")
        if wish.expires <= self.now:
            raise Refused(Refusal.EXPIRED, "it was over before it came")
        if not granted_for(self.now, wish.expires, _SLACK):
            raise Refused(Refusal.TOO_LONG, f"it lasts longer than {LONGEST // 3600 // 10**9} h")
        ask = Ask(wish.ask)
        self._check_target(ask, wish)
        who = who_may(self._rules(), ask, wish)
        if not may_ask(who, person):
            raise Refused(Refusal.NO_AUTHORITY, f"{person.user} may not; who may: {', '.join(who)[:160]}")

    def _check_target(self, ask: Ask, wish: Wish) -> None:
        """It names what it takes, all of that exists, and nothing else is named."""
        desired = self.read.desired
        assert desired is not None
        named = (bool(wish.job), bool(wish.nodes), bool(wish.queue))
        nodes = {node.name for node in desired.inventory.nodes}
        known = False
        if wish.tasks and ask is not Ask.CANCEL:
            raise Refused(Refusal.UNKNOWN_TARGET, f"there are no tasks to {wish.ask}")
        match ask:
            case Ask.CANCEL | Ask.SUSPEND:
                whole = document_of(wish.job) == wish.job and desired.job_of(wish.job) is not None
                meant = keys_of_tasks(wish.job, wish.tasks) if wish.tasks else ()
                known = named == (True, False, False) and whole and all(key in desired.jobs for key in meant)
            case Ask.CORDON | Ask.DRAIN:
                known = named == (False, True, False) and len(wish.nodes) <= MOST_NODES and nodes >= set(wish.nodes)
            case Ask.FREEZE:
                known = named[:2] == (False, False) and (not wish.queue or wish.queue in desired.quotas.queues)
        if not known:
            raise Refused(Refusal.UNKNOWN_TARGET, f"there is nothing of that name to {wish.ask}")

    def _rules(self) -> Rules:
        read = self.read
        assert read.desired is not None
        assert read.documents is not None
        assert read.around is not None
        return Rules(documents=read.documents, quotas=read.desired.quotas, around=read.around)


def _line(told: str) -> str:
    """One line, not too long: what somebody wrote is in it."""
    return " ".join(told.split())[:200]


def _is_plain(content: bytes) -> bool:
    """Text that any file of the record can hold: UTF-8, printable, with line ends."""
    try:
        return all(char == "\n" or char.isprintable() for char in content.decode())
    except UnicodeDecodeError:
        return False
