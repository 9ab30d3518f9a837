"""What is at the remotes? Our own bare clone, kept in the state folder as a cache that may be lost at any time.

Holds the desired branch, the state branch and the requests; nobody else writes here, so what a crash left behind
is cleaned up or thrown away without a person. Nothing is configured inside the clone: addresses and secrets
arrive with each command. What a rewritten or missing branch means is left to the caller and to `publish`.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from reconciler.errors import StoreError, Unreachable, UsageError
from reconciler.store.branches import in_order, year_of
from reconciler.store.credentials import Credentials
from reconciler.store.history import is_ancestor
from reconciler.store.leftovers import git_at_work
from reconciler.store.names import checked_ref, checked_url, is_object_id
from reconciler.store.runner import DEFAULT_PROTOCOLS, NETWORK_SECONDS, Git
from reconciler.store.walk import write_commit_graph

REQUESTS = "refs/heads/request/"
_MOST_REF_BYTES = 8 << 20
_LOOK_AGAIN_SECONDS = 0.1
_CURED_BY_REPAIR = frozenset({"CloneLocked", "CloneBroken", "NotAClone"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A repository elsewhere. `name` only tells tracking refs apart; identity is the cluster id, not the address."""

    url: str
    name: str = "origin"
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """Where desired state is read and where the record is written; often two branches of one repository."""

    source: Remote
    record: Remote
    desired: str = "refs/heads/main"
    state: str = "refs/heads/allocations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A desired branch whose new tip does not have the old one in its history."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The tips after a fetch, all of them readable in the clone. `state` is None where no state branch exists."""

    desired: str
    state: str | None
    rewritten: Rewrite | None
    requests: Mapping[str, str]


class Mirror:
    """A bare clone of our own. `repairs` says, oldest first, what was mended since the start."""

    def __init__(
        self,
        folder: Path,
        branches: Branches,
        *,
        protocols: frozenset[str] = DEFAULT_PROTOCOLS,
        ssh_options: tuple[str, ...] = (),
        blobless: bool = False,
        patience: float = 30,
    ) -> None:
        for remote in (branches.source, branches.record):
            checked_url(remote.url, protocols)
        for ref in (branches.desired, branches.state):
            checked_ref(ref)
        self.folder = folder
        self.branches = branches
        self.repairs: list[str] = []
        self._blobless = blobless
        self._patience = patience
        self._state: str | None = None
        origin = (("remote.origin.url", branches.source.url),) if blobless else ()
        self.git = Git(
            folder=folder,
            bare=True,
            protocols=protocols,
            credentials=branches.source.credentials,
            ssh_options=ssh_options,
            config=origin,
        )

    # -- life of the clone

    def open(self) -> None:
        """Makes the clone usable: creates it, clears what a crash left, or starts it anew when it is broken.

        Raises: StoreError(CloneBusy) while another git works in it; StoreError(LocalStorageFull).
        """
        if not self.folder.exists():
            self._create()
            return
        self._clear_leftovers()
        try:
            self._check()
        except StoreError as err:
            if err.code == "LocalStorageFull":
                raise
            self.remake(f"{err.code}: {err.message}")

    def remake(self, why: str) -> None:
        """Throws the clone away and starts an empty one; the next fetch fills it. Counted in `repairs`."""
        self._wait_for_others()
        self.repairs.append(f"remade: {why.splitlines()[0][:200]}")
        shutil.rmtree(self.folder)
        self._create()

    def _create(self) -> None:
        try:
            self.folder.mkdir(parents=True, mode=0o700)
        except OSError as err:
            raise _disk_error(err, self.folder) from err
        # No template: it would bring hooks and settings of this machine.
        self.git.run("init", "--bare", "--quiet", "--template=", "--initial-branch=unused")
        if self._blobless:
            for key, value in (
                ("core.repositoryFormatVersion", "1"),
                ("extensions.partialClone", "origin"),
                ("remote.origin.promisor", "true"),
                ("remote.origin.partialCloneFilter", "blob:none"),
            ):
                self.git.run("config", key, value)

    def _check(self) -> None:
        """Reads every object of the newest trees once, so that a torn write of a crash is found now, not later."""
        tips = self.tracked().values()
        if tips and not self._blobless:
            lines = "".join(f"{oid}\n" for oid in sorted(set(tips))).encode()
            self.git.run("rev-list", "--objects", "--verify-objects", "--no-walk", "--quiet", "--stdin", stdin=lines)

    def _clear_leftovers(self) -> None:
        locks = [path for path in self.folder.rglob("*.lock") if path.is_file()]
        if locks:
            self._wait_for_others()
        elif git_at_work(self.folder):
            return
        torn = [*self.folder.glob("objects/**/tmp_*"), *self.folder.glob("fast_import_crash_*")]
        still_there = [path for path in locks if path.exists()]
        for path in [*still_there, *torn]:
            path.unlink(missing_ok=True)
        self.repairs += [f"stale lock removed: {path.relative_to(self.folder)}" for path in still_there]

    def _wait_for_others(self) -> None:
        end = time.monotonic() + self._patience
        while git_at_work(self.folder):
            if time.monotonic() >= end:
                raise StoreError(
                    "another git process works in our clone",
                    code="CloneBusy",
                    remedy="Two reconcilers must not share a state folder; give each its own.",
                )
            time.sleep(_LOOK_AGAIN_SECONDS)

    # -- talking to the remotes

    def at(self, remote: Remote) -> Git:
        """Git with the credentials of one remote."""
        return replace(self.git, credentials=remote.credentials)

    def remote_refs(self, remote: Remote) -> Mapping[str, str]:
        """The tips of our branches and of all requests at a remote, by full ref name: one cheap round trip.

        Raises: Unreachable(RemoteUnreachable | AuthenticationFailed).
        """
        wanted = (self.branches.desired, self.branches.state, f"{self.branches.state}-*", f"{REQUESTS}*")
        told = self.at(remote).run(
            "ls-remote", "--quiet", "--refs", "--end-of-options", remote.url, *wanted,
            network=True, at_most=_MOST_REF_BYTES,
        )  # fmt: skip
        rows = [line.partition("\t") for line in told.stdout.decode("utf-8", "replace").splitlines()]
        return {ref: oid for oid, _, ref in sorted(rows) if is_object_id(oid) and self._is_ours(ref)}

    def fetch(self) -> Fetched:
        """Brings all branches up to date, whatever happened to them at the remote; repairs the clone if it must.

        Raises: Unreachable; StoreError(SourceMissing) when the desired branch does not exist: a missing branch is
        never an empty one.
        """
        try:
            return self._fetch()
        except StoreError as err:
            if err.code not in _CURED_BY_REPAIR:
                raise
            self._cure(err)
        return self._fetch()

    def _cure(self, err: StoreError) -> None:
        """Mends what made a fetch fail; raises Unreachable when the fault turns out to be the remote's."""
        if err.code == "CloneLocked":
            self._clear_leftovers()
        elif not self.folder.exists():
            self.repairs.append("made anew: the folder was gone")
            self._create()
        elif self._is_sound():  # over ssh the remote's complaints look like our own
            raise Unreachable(
                f"the repository at the remote is broken: {err.message}",
                remedy="Its operators can mend it: `git fsck` there.",
            ) from err
        else:
            self.remake(f"{err.code}: {err.message}")

    def _is_sound(self) -> bool:
        with contextlib.suppress(StoreError):
            self.git.run("fsck", "--connectivity-only", "--no-dangling", "--no-progress", seconds=NETWORK_SECONDS)
            return True
        return False

    def _fetch(self) -> Fetched:
        branches = self.branches
        before = self.tracked()
        theirs = {branches.source: self.remote_refs(branches.source)}
        if branches.record not in theirs:
            theirs[branches.record] = self.remote_refs(branches.record)
        for remote, refs in theirs.items():
            self._bring(remote, self._without_older(remote, refs, before), before)
        self._state = self._newest(theirs[branches.record])
        self._forget_gone_requests(theirs, before)
        desired = theirs[branches.source].get(branches.desired)
        if desired is None:
            raise StoreError(
                f"the desired branch {branches.desired} does not exist at the remote",
                code="SourceMissing",
                remedy="Push it again, or correct its name. The last allocations stay applied; nothing is stopped.",
            )
        old = before.get(_tracking(branches.source, branches.desired))
        rewritten = old is not None and old != desired and not is_ancestor(self.git, old, desired)
        return Fetched(
            desired=desired,
            state=theirs[branches.record].get(self.state_ref),
            rewritten=Rewrite(old=old, new=desired) if rewritten and old is not None else None,
            requests={ref: oid for refs in theirs.values() for ref, oid in refs.items() if ref.startswith(REQUESTS)},
        )

    def fetch_state(self) -> str | None:
        """Brings the state branch alone up to date; its tip, or None. Raises Unreachable."""
        record = self.branches.record
        refs = self.remote_refs(record)
        self._state = self._newest(refs)
        self._bring(record, {ref: oid for ref, oid in refs.items() if ref == self._state}, self.tracked())
        return refs.get(self._state)

    def fetch_record(self) -> None:
        """Brings every branch of the record, also those that nothing needs to run. Raises Unreachable."""
        record = self.branches.record
        refs = self.remote_refs(record)
        self._bring(record, {ref: refs[ref] for ref in in_order(refs, self.branches.state)}, self.tracked())

    @property
    def state_ref(self) -> str:
        """The branch the record is in now: the newest one at the last fetch."""
        if self._state is None:
            prefix = _tracking(self.branches.record, "refs/heads/")
            self._state = self._newest(f"refs/heads/{ref.removeprefix(prefix)}" for ref in self.tracked())
        return self._state

    def _newest(self, refs: Iterable[str]) -> str:
        return ([self.branches.state, *in_order(refs, self.branches.state)])[-1]

    def _without_older(self, remote: Remote, refs: Mapping[str, str], before: Mapping[str, str]) -> Mapping[str, str]:
        """Without the branches of the record that were closed: those are brought to who had them already."""
        closed = in_order(refs, self.branches.state)[:-1]
        return {ref: oid for ref, oid in refs.items() if ref not in closed or _tracking(remote, ref) in before}

    def _bring(self, remote: Remote, refs: Mapping[str, str], before: Mapping[str, str]) -> None:
        stale = [ref for ref, oid in refs.items() if before.get(_tracking(remote, ref)) != oid]
        if not stale:
            return
        # Forced: the remote is the truth. Objects of an older tip stay readable here.
        refspecs = [f"+{ref}:{_tracking(remote, ref)}" for ref in stale]
        where = ("--filter=blob:none", "origin") if self._blobless and remote.name == "origin" else (remote.url,)
        self.at(remote).run(
            "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", *where, *refspecs,
            network=True,
        )  # fmt: skip

    def tracked(self) -> Mapping[str, str]:
        """The tips as they were at the last fetch, by tracking ref (`refs/remotes/origin/main`)."""
        told = self.git.run("for-each-ref", "--format=%(objectname) %(refname)", "refs/remotes/")
        rows = [line.partition(" ") for line in told.stdout.decode("utf-8", "replace").splitlines()]
        return {ref: oid for oid, _, ref in rows}

    def last_seen(self, remote: Remote, ref: str) -> str | None:
        """The tip of a remote's branch at the last fetch: what we can still say while the remote is away."""
        return self.tracked().get(_tracking(remote, ref))

    def note_published(self, commit: str, ref: str = "") -> None:
        """Our own commit is at the remote: the next fetch need not bring it, and it is safe from being packed away."""
        ref = ref or self.state_ref
        tip = self.last_seen(self.branches.record, ref)
        if tip is None or is_ancestor(self.git, tip, commit):
            self.git.run("update-ref", _tracking(self.branches.record, ref), commit)

    def _forget_gone_requests(self, theirs: Mapping[Remote, Mapping[str, str]], before: Mapping[str, str]) -> None:
        alive = {_tracking(remote, ref) for remote, refs in theirs.items() for ref in refs}
        gone = [ref for ref in before if f"/{REQUESTS.removeprefix('refs/heads/')}" in ref and ref not in alive]
        if gone:
            self.git.run("update-ref", "--stdin", stdin="".join(f"delete {ref}\n" for ref in gone).encode())

    def remove_requests(self, tips: Mapping[str, str]) -> None:
        """Removes refs of requests from the desired repository, each only while it is at this commit.

        Raises StoreError (GitFailed) when the remote does not let us; Unreachable.
        """
        remote = self.branches.source
        leases = [f"--force-with-lease={ref}:{oid}" for ref, oid in sorted(tips.items()) if ref.startswith(REQUESTS)]
        gone = [f":{ref}" for ref in sorted(tips) if ref.startswith(REQUESTS)]
        if gone:
            self.at(remote).run(
                "push", "--quiet", "--no-verify", *leases, "--end-of-options", remote.url, *gone, network=True
            )  # fmt: skip

    def _is_ours(self, ref: str) -> bool:
        if ref == self.branches.desired or year_of(ref, self.branches.state) is not None:
            return True
        if not ref.startswith(REQUESTS):
            return False
        with contextlib.suppress(UsageError):
            checked_ref(ref)
            return True
        return False

    def maintain(self) -> None:
        """Packs what piled up and drops old leftovers; for a daily call between rounds. Loses nothing reachable."""
        self.git.run("repack", "-d", "-l", "-q", "--geometric=2", seconds=NETWORK_SECONDS)
        # Each state commit leaves the scratch commit its tree was made with; a lost race, the whole commit.
        self.git.run("prune", "--expire=1.week.ago", seconds=NETWORK_SECONDS)
        self.git.run("pack-refs", "--all")
        # With filters of changed paths, one job's or one node's history reads no trees.
        write_commit_graph(self.git)


def _tracking(remote: Remote, ref: str) -> str:
    return f"refs/remotes/{remote.name}/{ref.removeprefix('refs/heads/')}"


def _disk_error(err: OSError, path: Path) -> StoreError:
    return StoreError(
        f"{path.name} could not be written: {err.strerror}",
        code="LocalStorageFull",
        remedy="Free space in the state folder and check who owns it; the next round continues by itself.",
    )
