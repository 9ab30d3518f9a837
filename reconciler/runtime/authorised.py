"""Which merged changes may be acted on? Those that somebody stands behind who has the authority they take.

Every file that differs from its last authorised form is looked at by the rules of the tree decided on before: nobody
brings the rule along that lets him in. What lacks authority is withheld file by file; the rest of the commit counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.documents.cache import ParseCache
from reconciler.documents.desired import SourceFile
from reconciler.documents.judged import only_job, read_files
from reconciler.documents.layout import ROOT, is_document, is_job, key_of
from reconciler.documents.withheld import Needed, Withheld
from reconciler.errors import StoreError
from reconciler.model.observed import Proof
from reconciler.model.units import CommitId
from reconciler.policy.authority import Change, Rules
from reconciler.policy.merged import is_proven, lacking, names_nobody
from reconciler.runtime.generation import Generation, blob_id
from reconciler.runtime.provenance import Facts, facts_of, signer_of
from reconciler.runtime.reading import DesiredReader, ReadDesired
from reconciler.store.objects import blobs
from reconciler.store.runner import Git
from reconciler.store.trees import REGULAR, tree_entries

_TRUST = f"{ROOT}trust/"


class Authority:
    """The question asked of one desired branch; the last answer is kept, for it costs a look into its history."""

    def __init__(self, git: Git, reader: DesiredReader) -> None:
        self._git = git
        self._reader = reader
        self._last: tuple[tuple[str, str], tuple[Withheld, ...]] | None = None

    def settled(self, read: ReadDesired, current: Generation) -> ReadDesired:
        """The newest tree as it counts: changes without authority stand as they were before.

        `read` is that tree with what was withheld before and is unchanged.
        """
        assert read.desired is not None
        decided = current.summary.desired_commit
        if read.desired.commit == decided:
            return read  # what was known of it is on record
        asked = (read.desired.commit, current.commit)
        if self._last is None or self._last[0] != asked:
            base = self._reader.recorded(current.commit, decided, current.frozen)
            self._last = (asked, withheld_in(self._git, read, base, decided))
        found = self._last[1]
        again = read if found == read.withheld else self._reader.read(read.desired.commit, current, found)
        if found and again.desired is not None and not again.desired.repository.authority_enforced:
            return self._reader.read(read.desired.commit, current, ())
        return again


def check_signed(git: Git, read: ReadDesired, base: ReadDesired, decided: str) -> None:
    """Where either tree requires it, somebody whom the base knows signed the newest commit.

    Raises StoreError (UnsignedDesired) naming the commit.
    """
    assert read.desired is not None
    required = any(one.desired is not None and one.desired.repository.require_signed_desired for one in (read, base))
    commit = read.desired.commit
    if not required or commit == decided or base.documents is None or signer_of(git, commit, base.documents):
        return
    raise StoreError(
        f"commit {commit[:12]} of the desired branch is not signed by a key of a User document",
        code="UnsignedDesired",
        remedy="Add a commit on top that is signed (`git commit -S`) with a key under spec.sshKeys of a User.",
    )


def withheld_in(git: Git, read: ReadDesired, base: ReadDesired, decided: str) -> tuple[Withheld, ...]:
    """The files of a tree that differ from their last authorised form, in `base`, without authority; by path."""
    if read.desired is None or base.desired is None or base.documents is None or base.around is None:
        return ()
    rules = Rules(documents=base.documents, quotas=base.desired.quotas, around=base.around)
    if not base.desired.repository.authority_enforced or names_nobody(rules):
        return ()
    before, after = _authorised_ids(base), {path: oid for path, oid in read.read if _is_ours(path)}
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    if not paths:
        return ()
    signed = base.desired.repository.require_signed_desired
    required = Proof.SIGNATURE if signed else Proof.FORGE
    facts = facts_of(git, read.desired.commit, decided, paths, base.documents)
    found = []
    for change in _changes(git, read.desired.commit, paths, base):
        fact = facts[change.path]
        people = (fact.author, *fact.approvers) if is_proven(fact.proven, required) else ()
        if needs := lacking(rules, change, people):
            found.append(_withheld(change.path, after.get(change.path, ""), fact, required, needs))
    return tuple(found)


def _withheld(path: str, blob: str, fact: Facts, required: Proof, needs: tuple[Needed, ...]) -> Withheld:
    return Withheld(
        path=path,
        blob=blob,
        commit=CommitId(fact.commit),
        author=fact.author,
        needs=needs,
        pull_request=fact.pull_request,
        approvers=fact.approvers,
        proven=fact.proven,
        required=required,
    )


def _is_ours(path: str) -> bool:
    return is_document(path) or path.startswith(_TRUST)


def _authorised_ids(base: ReadDesired) -> dict[str, str]:
    """Blob id of each file in its last authorised form; what has none is not there."""
    ids = {path: oid for path, oid in base.read if _is_ours(path)}
    for one in base.withheld:
        ids.pop(one.path, None)
        if one.path in base.frozen:
            ids[one.path] = blob_id(base.frozen[one.path])
    return ids


def _changes(git: Git, commit: str, paths: list[str], base: ReadDesired) -> Iterator[Change]:
    entries = {entry.path: entry for entry in tree_entries(git, commit)}
    jobs = [e for path in paths if is_job(path) and (e := entries.get(path)) is not None and e.mode == REGULAR]
    contents = blobs(git, {entry.oid for entry in jobs})
    checked = read_files([SourceFile(e.path, e.oid, contents[e.oid]) for e in jobs], ParseCache()).checked
    for path in paths:
        key, now = key_of(path), checked.get(path)
        yield Change(
            path=path,
            before=base.items.get(key) if key is not None else None,
            after=only_job(now) if now is not None and not now.first_error else None,
            removed=path not in entries,
        )
