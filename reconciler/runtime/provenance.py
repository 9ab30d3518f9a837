"""Who brought each job into the desired tree, and who agreed? Read from git, once for each content of a job's file.

Decisions read the answer from the record alone (`observed/provenance/`), never from here: what a forge or a key list says
later changes nothing that was decided. The people, their teams and their keys are those of the tree that was decided on
before, so that nobody brings his own approval along.

What it is worth. A signature by a key of a User document proves who made, or merged, the commit. Without one there is
the merge commit of the forge (its committer is `noreply@...`): author, merger, and the trailers `Approved-by` and
`Reviewed-by`. Whoever may push to the branch past the forge can write such a commit himself. Any other commit proves
nothing: its names are recorded, and count for nothing.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reconciler.documents.layout import POLICIES, ROOT, is_job, path_of
from reconciler.documents.lint import Documents, documents_of
from reconciler.documents.withheld import ACKNOWLEDGE_CHANGE
from reconciler.errors import StoreError
from reconciler.model.allocation import Allocation
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.observed import Person, Proof, Provenance, Shown
from reconciler.model.units import CommitId, JobKey, document_of
from reconciler.policy.authority import person_of
from reconciler.policy.previewed import shown_in
from reconciler.policy.verdicts import same_person
from reconciler.runtime.reading import ReadDesired
from reconciler.store.history import CommitMeta, is_ancestor, parse_commit
from reconciler.store.objects import raw_commits
from reconciler.store.runner import Git
from reconciler.store.signatures import allowed_signers_line, verify
from reconciler.store.walk import unquoted

_MOST_COMMITS = 5000
"""How far back is looked for a file that nothing is known of."""
_PERSON = re.compile(r"(?P<name>[^<]*)<(?P<email>[^<>]*)>")
_NOREPLY = re.compile(r"(?:\d+\+)?(?P<login>[A-Za-z0-9-]+)@users\.noreply\.")
_PULL = (re.compile(r"Merge pull request #(\d+) from "), re.compile(r"\(#(\d+)\)$"))
_BEGINNING = re.compile(r"[0-9a-f]{12,64}")
_OURS = (ROOT.rstrip("/"), POLICIES.rstrip("/"))
_STRENGTH = {Proof.NONE: 0, Proof.FORGE: 1, Proof.SIGNATURE: 2}
_AGREED = frozenset({"approved-by", "reviewed-by"})

Known = Mapping[JobKey, Provenance]


@dataclass(frozen=True, slots=True)
class Facts:
    """What one commit of the desired branch says of people. `approvers` are others than the author."""

    commit: CommitId
    author: Person
    pull_request: str
    approvers: tuple[Person, ...]
    proven: Proof
    preview: Shown | None = None
    vouched: Proof = Proof.NONE


def provenance_after(
    git: Git, known: Known, read: ReadDesired, base: ReadDesired | None, decided: str, then: Allocation
) -> Known:  # fmt: skip
    """The provenance of every desired job: what is known, and what git says of files that changed since.

    `then` is the allocation before: what has no file and a record still is remembered until that record goes, and what
    comes back runs as who brought it first.

    `decided` is the desired commit of the last decision, `base` its tree (None: the tree itself is the first). The same
    object as `known` when nothing is new.
    """
    desired = read.desired
    if desired is None:
        return known
    files = {path: oid for path, oid in read.read if is_job(path)}
    # Somebody may stand behind a change now whom nobody knew of when it came.
    released = {one.path for one in (base.withheld if base is not None else ())} - {one.path for one in read.withheld}
    said = tuple(_acknowledged(git, desired.commit, decided)) if desired.commit != decided else ()
    documents = _documents_of(desired)
    fresh = [
        key
        for key in documents
        if key not in desired.frozen
        and (
            (seen := known.get(key)) is None
            or seen.file != files.get(path_of(key), "")
            or path_of(key) in released
            or seen.commit.startswith(said)
        )
    ]
    kept = documents.keys() | {document_of(key) for key in then.jobs}
    if not fresh and known.keys() <= kept:
        return known
    people = (base or read).documents or documents_of(())
    facts = facts_of(git, desired.commit, decided, {path_of(key) for key in fresh}, people) if fresh else {}
    found = {key: seen for key, seen in known.items() if key in kept}
    for key in fresh:
        fact, seen = facts[path_of(key)], known.get(key)
        submitter, vouched = fact.author, fact.vouched
        if seen is not None and seen.submitter is not None and seen.digest == documents[key].digest:
            submitter, vouched = seen.submitter, seen.vouched  # it runs what it ran before
        for stone in then.tombstones.get(key, ()) if seen is None else ():
            if stone.digest == documents[key].digest and stone.submitter is not None:
                submitter, vouched = stone.submitter, stone.vouched
        found[key] = Provenance(
            job=key,
            digest=documents[key].digest,
            file=files.get(path_of(key), ""),
            commit=fact.commit,
            author=fact.author,
            pull_request=fact.pull_request,
            approvers=fact.approvers,
            proven=fact.proven,
            preview=fact.preview,
            submitter=submitter,
            vouched=vouched,
        )
    return {key: found[key] for key in sorted(found)}


def _documents_of(desired: Desired) -> dict[JobKey, Job]:
    """What each job's document says: one for an array, however many tasks it has."""
    return {**{key: job for key, job in desired.jobs.items() if job.task is None}, **desired.arrays}


def foreseen(git: Git, known: Known, read: ReadDesired, head: str) -> Known:
    """What will be known of jobs that are only proposed, taken that their author's pull request is merged by the forge.

    Policies do not hear of it: it speaks of no file that counts yet.
    """
    desired = read.desired
    if desired is None:
        return known
    documents = _documents_of(desired)
    fresh = [key for key, job in documents.items() if (seen := known.get(key)) is None or seen.digest != job.digest]
    if not fresh:
        return known
    people = read.documents or documents_of(())
    author = _named(parse_commit(head, raw_commits(git, (head,))[head]).author, people)
    found = dict(known)
    for key in fresh:
        found[key] = Provenance(
            job=key, digest=documents[key].digest, file="", commit=CommitId(head), author=author, submitter=author,
            vouched=Proof.FORGE,
        )  # fmt: skip
    return {key: found[key] for key in sorted(found)}


def facts_of(git: Git, tip: str, decided: str, paths: Collection[str], people: Documents) -> dict[str, Facts]:
    """What is known of who brought each of these paths to the desired branch, those who acknowledged it included.

    `decided` is the desired commit of the last decision: what came since is looked at first, and acknowledged since.
    """
    brought = _brought_by(git, tip, decided, set(paths))
    acknowledged = _acknowledged(git, tip, decided)
    told = _told_by(git, {*brought.values(), *acknowledged.values()}, people)
    unknown = Facts(CommitId(tip), Person(), "", (), Proof.NONE)
    found = {path: told.get(brought.get(path, ""), unknown) for path in paths}
    return {path: _vouched(fact, acknowledged, told) for path, fact in found.items()}


# --- who stands behind it afterwards ------------------------------------------------------------------------------


def _acknowledged(git: Git, tip: str, decided: str) -> dict[str, str]:
    """By what is acknowledged, a commit or its beginning: the commit of the branch that says so."""
    listed = git.run("rev-list", "--first-parent", f"--max-count={_MOST_COMMITS}", *_since(git, tip, decided))
    commits = listed.stdout.decode("ascii").split()
    metas = {commit: parse_commit(commit, raw) for commit, raw in raw_commits(git, commits).items()}
    heads = {meta.parents[1]: commit for commit, meta in metas.items() if len(meta.parents) > 1}
    metas.update({head: parse_commit(head, raw) for head, raw in raw_commits(git, heads).items()})
    found: dict[str, str] = {}
    for commit, meta in metas.items():
        for key, value in meta.trailers:
            if key == ACKNOWLEDGE_CHANGE and _BEGINNING.fullmatch(value.strip()):
                found.setdefault(value.strip(), heads.get(commit, commit))
    return found


def _vouched(fact: Facts, acknowledged: Mapping[str, str], told: Mapping[str, Facts]) -> Facts:
    """The facts with those of who acknowledged the commit; what is proven better does not rest on what is proven less."""
    by = next((told[who] for said, who in acknowledged.items() if fact.commit.startswith(said)), None)
    if by is None or by.proven is Proof.NONE or by.commit == fact.commit:
        return fact
    if _STRENGTH[by.proven] > _STRENGTH[fact.proven]:
        return replace(fact, author=by.author, approvers=by.approvers, proven=by.proven, preview=by.preview)
    agreed = (*fact.approvers, by.author, *by.approvers)
    approvers = tuple(dict.fromkeys(person for person in agreed if _is_other(person, fact.author)))
    return replace(fact, approvers=approvers, proven=by.proven, preview=by.preview or fact.preview)


# --- which commit -------------------------------------------------------------------------------------------------


def _since(git: Git, tip: str, decided: str) -> list[str]:
    """The range of commits that came since the last decision; all, where that commit is no ancestor or the tip."""
    return [tip, f"^{decided}"] if decided != tip and is_ancestor(git, decided, tip) else [tip]


def _brought_by(git: Git, tip: str, decided: str, paths: set[str]) -> dict[str, str]:
    """The newest commit of the branch's own line that changed each of these paths, by path."""
    since = _since(git, tip, decided)
    found = _changed_in(git, since, paths)
    # A file that came back, or that no earlier decision knew: look further.
    left = paths - found.keys()
    return {**_changed_in(git, [tip], left), **found} if left and len(since) > 1 else found


def _changed_in(git: Git, range_: Sequence[str], paths: set[str]) -> dict[str, str]:
    listed = git.run("rev-list", "--first-parent", "--parents", f"--max-count={_MOST_COMMITS}", *range_, "--", *_OURS)
    # Parents are rewritten to those that changed a file of ours; the tree compared with has the same files all the same.
    pairs = [line.split() for line in listed.stdout.decode("ascii").splitlines()]
    lines = "".join(f"{' '.join(pair[:2])}\n" for pair in pairs)
    told = git.run(
        "diff-tree", "--stdin", "--root", "-r", "--no-renames", "--name-only", "--", *_OURS, stdin=lines.encode()
    )  # fmt: skip
    found: dict[str, str] = {}
    commit = ""
    commits = {pair[0] for pair in pairs}
    for line in told.stdout.split(b"\n"):
        path = unquoted(line).decode("utf-8", "replace")
        first = path.split(" ", 1)[0]
        if first in commits:
            commit = first
        elif path in paths:
            found.setdefault(path, commit)
    return found


# --- what it says -----------------------------------------------------------------------------------------------


def _told_by(git: Git, commits: Iterable[str], people: Documents) -> dict[str, Facts]:
    raws = dict(raw_commits(git, sorted(commits)))
    metas = {commit: parse_commit(commit, raw) for commit, raw in raws.items()}
    merged = sorted({meta.parents[1] for meta in metas.values() if len(meta.parents) > 1} - raws.keys())
    for commit, raw in raw_commits(git, merged).items():
        raws[commit], metas[commit] = raw, parse_commit(commit, raw)
    signers = signers_of(people)
    return {commit: _facts(commit, metas, raws, people, signers) for commit in sorted(commits)}


def _facts(
    commit: str, metas: Mapping[str, CommitMeta], raws: Mapping[str, bytes], people: Documents, signers: str
) -> Facts:
    meta = metas[commit]
    brought = metas.get(meta.parents[1], meta) if len(meta.parents) > 1 else meta
    signer = _signed_by(raws[commit], meta, people, signers)
    of_author = signer if brought is meta else _signed_by(raws[brought.id], brought, people, signers)
    author = of_author or _named(brought.author, people)
    proven = Proof.SIGNATURE if signer else Proof.FORGE if _by_forge(meta) else Proof.NONE
    agreed = [signer] if signer is not None else []
    if proven is not Proof.NONE and brought is not meta:
        agreed.append(_named(meta.author, people) if signer is None else signer)
    if proven is Proof.FORGE:
        agreed += [_said(value, people) for key, value in meta.trailers if key.lower() in _AGREED]
    approvers = tuple(dict.fromkeys(person for person in agreed if _is_other(person, author)))
    # Of what it merges a merge proves nothing; where the forge made the commit itself, it wrote the name.
    vouched = Proof.SIGNATURE if of_author else proven if brought is meta else Proof.NONE
    return Facts(CommitId(commit), author, _pull_request(meta), approvers, proven, shown_in(meta.trailers), vouched)


def _is_other(person: Person, author: Person) -> bool:
    return bool(person.user or person.login or person.email) and not same_person(person, author)


def _by_forge(meta: CommitMeta) -> bool:
    """A commit that the forge made itself: on its merge button."""
    match = _PERSON.fullmatch(meta.committer)
    return match is not None and match["email"].startswith("noreply@")


def _pull_request(meta: CommitMeta) -> str:
    return next((found[1] for pattern in _PULL if (found := pattern.search(meta.subject)) is not None), "")


def _named(line: str, people: Documents) -> Person:
    """The person of an author line; its address may be the one the forge gives to those who hide theirs."""
    match = _PERSON.fullmatch(line)
    email = match["email"].strip() if match is not None else ""
    hidden = _NOREPLY.match(email)
    return person_of(people, login=hidden["login"] if hidden is not None else "", email=email)


def _said(value: str, people: Documents) -> Person:
    """The person of a trailer: `Name <address>` or `@login`."""
    return person_of(people, login=value[1:].split(maxsplit=1)[0]) if re.match(r"@\S", value) else _named(value, people)


# --- signatures ---------------------------------------------------------------------------------------------------


def signer_of(git: Git, commit: str, people: Documents) -> Person | None:
    """The user whose key signed this commit; None without a signature that verifies."""
    raw = raw_commits(git, (commit,))[commit]
    return _signed_by(raw, parse_commit(commit, raw), people, signers_of(people))


def signers_of(people: Documents) -> str:
    """An allowed_signers list of all keys that User documents have, by user."""
    lines = []
    for item in people.of("User"):
        for key in item.model.spec.ssh_keys:
            try:
                lines.append(allowed_signers_line(item.name, key))
            except StoreError:
                continue  # a key with options in it signs nothing
    return "".join(lines)


def _signed_by(raw: bytes, meta: CommitMeta, people: Documents, signers: str) -> Person | None:
    """The user whose key signed this commit; None without a signature that verifies."""
    if not meta.signed or not signers:
        return None
    with tempfile.TemporaryDirectory(prefix="gangops-signers-") as folder:
        allowed = Path(folder, "allowed_signers")
        allowed.write_text(signers, encoding="utf-8")
        try:
            user = verify(raw, allowed).principal
        except StoreError:
            return None
    item = people.named("User").get(user)
    if item is None:
        return None
    spec = item.model.spec
    return Person(user=user, email=spec.emails[0], login=spec.github or "", teams=tuple(spec.teams))
