"""Is the record true? Every generation against its parent, its signers, its inputs, and the decision made again.

Checks of one generation need nothing but it and the one before, so parts of the chain are judged side by side; what
agents said they did is then followed through in the chain's order. Nothing is taken from the index or from a
commit-graph: each object is hashed, each parent read from the signed bytes. That a branch was not *rewound* cannot be
seen in it alone: the commit this clone verified last, or one the auditor wrote down, must still be in it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from reconciler.errors import BrokenInvariant, GangOpsError, NotFound, StoreError
from reconciler.model.decision import DECISION_VERSION
from reconciler.model.units import SECOND, Instant
from reconciler.planner.verify import violations
from reconciler.runtime.audit.reel import Frame, frames, object_id
from reconciler.runtime.audit.signers import Signers, missing
from reconciler.runtime.generation import Generation, Inputs, inputs_digest, trailers
from reconciler.runtime.reading import DesiredReader, ReadDesired
from reconciler.runtime.replay import made_again, outcome_differs
from reconciler.store.objects import described, objects, raw_commits
from reconciler.store.runner import Git
from reconciler.store.walk import Link, first_parents, streamed

CHECKS = ("objects", "chain", "trailers", "signatures", "desired", "inputs", "replay", "judge", "receipts")
_PART = 50
"""Generations judged at a stretch by one process."""
_HASHED = 2000
"""Objects hashed at a stretch."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, at the generation that first shows it. `position` counts from the chain's beginning."""

    position: int
    generation: int
    commit: str
    check: str
    code: str
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a node said of one attempt: the generation it obeyed, as it came into the record."""

    node: str
    job: str
    attempt: int
    generation: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One generation's verdict, and what the checks that need an order follow through."""

    position: int
    generation: int
    commit: str
    findings: tuple[Finding, ...]
    version: int
    package: str
    epoch: int
    signer: str = ""
    fingerprint: str = ""
    identical: bool = False
    receipts: tuple[Receipt, ...] = ()
    ordered: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is verified: from the root or from a generation on. `root` is the id the first commit must have."""

    since: int | None = None
    until: int | None = None
    since_at: Instant | None = None
    until_at: Instant | None = None
    root: str = ""
    contains: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Verdict:
    """The whole answer. `judged` in the chain's order; `notices` are no faults, but what the proof does not cover."""

    root: str
    root_pinned: bool
    from_root: bool
    judged: list[Judged] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    receipts: int = 0

    @property
    def first_bad(self) -> Finding | None:
        """The earliest finding, the most telling check first."""
        return min(self.findings, key=lambda one: (one.position, CHECKS.index(one.check)), default=None)


def verify(
    git: Git,
    tip: str,
    *,
    signers: bytes = b"",
    bounds: Bounds = Bounds(),
    processes: int = 1,
    progress: Progress | None = None,
) -> Verdict:
    """Verify a state branch up to a commit. Never raises for a bad record: what is wrong is in the verdict.

    `signers` is an allowed_signers file from outside the record. Raises NotFound (UnknownGeneration) for bounds that
    name nothing; StoreError when git itself fails.
    """
    chain = first_parents(git, tip)
    part, first = _chosen(git, chain, bounds)
    verdict = Verdict(root=chain[0].id, root_pinned=bool(bounds.root or signers), from_root=first == 0)
    # 1. Does this clone show what is in it, and is what was seen before still there?
    verdict.findings += [*_disguises(git, chain), *_lost(git, chain, bounds), *_root(git, chain, bounds)]
    # 2. Each generation against the one before.
    told = progress or (lambda _done, _of: None)
    for judged in _judged(git, part, first, signers, processes):
        verdict.judged.append(judged)
        verdict.findings += judged.findings
        told(len(verdict.judged), len(part))
    # 3. What agents did, in the order of generations.
    verdict.findings += _receipts(verdict, complete=first == 0)
    # 4. Every object under all of it, trees included.
    verdict.findings += _objects(git, part, first)
    verdict.findings.sort(key=lambda one: (one.position, CHECKS.index(one.check)))
    _notice(verdict, bounds, signers)
    return verdict


def _chosen(git: Git, chain: list[Link], bounds: Bounds) -> tuple[list[Link], int]:
    """The part of the chain asked for, and the position of its first link."""
    if bounds == Bounds(root=bounds.root, contains=bounds.contains):
        return chain, 0
    raw = raw_commits(git, (link.id for link in chain))
    numbers, dates = [], []
    for link in chain:
        numbers.append(_trailer(raw[link.id], b"Generation"))
        dates.append(_date(raw[link.id]) * SECOND)
    wanted = [
        i for i in range(len(chain))
        if (bounds.since is None or numbers[i] >= bounds.since) and (bounds.until is None or numbers[i] <= bounds.until)
        and (bounds.since_at is None or dates[i] >= bounds.since_at) and (bounds.until_at is None or dates[i] <= bounds.until_at)
    ]  # fmt: skip
    if not wanted:
        raise NotFound("the record has no generation between --since and --until", code="UnknownGeneration")
    return chain[wanted[0] : wanted[-1] + 1], wanted[0]


def _trailer(raw: bytes, key: bytes) -> int:
    for line in reversed(raw.split(b"\n")):
        if line.startswith(key + b": "):
            digits = line[len(key) + 2 :]
            return int(digits) if digits.isdigit() and len(digits) < 19 else -1
    return -1


def _date(raw: bytes) -> int:
    for line in raw.split(b"\n\n", 1)[0].split(b"\n"):
        if line.startswith(b"committer "):
            digits = line.rsplit(b" ", 2)[1]
            return int(digits) if digits.isdigit() else 0
    return 0


# --- the clone, and the ends of the chain ---


def _disguises(git: Git, chain: list[Link]) -> Iterator[Finding]:
    """What makes git show other commits than those that are there, and other tools believe it."""
    positions = {link.id: i for i, link in enumerate(chain)}
    for line in git.run("for-each-ref", "--format=%(refname)", "refs/replace/").stdout.decode().split():
        replaced = line.rpartition("/")[2]
        told = f"this clone shows another object in place of {replaced[:12]} ({line})"
        yield _at(git, chain, positions.get(replaced, 0), "objects", "ReplacedObject", told)
    grafts = git.folder / git.run("rev-parse", "--git-path", "info/grafts").stdout.decode().strip()
    with contextlib.suppress(OSError):
        for line in grafts.read_text().split("\n"):
            if line and not line.startswith("#"):
                yield _at(
                    git,
                    chain,
                    positions.get(line.split()[0], 0),
                    "objects",
                    "GraftedParents",
                    "info/grafts gives it other parents",
                )


def _lost(git: Git, chain: list[Link], bounds: Bounds) -> Iterator[Finding]:
    """Commits known to have been in the branch that no longer are."""
    inside = {link.id for link in chain}
    known = [*bounds.contains, *([kept] if (kept := verified_before(git)) else [])]
    for commit in known:
        if not any(one.startswith(commit) for one in inside):
            told = f"the branch does not contain {commit[:12]}, which was in it before: it was rewound or rewritten"
            yield _at(git, chain, _common(git, chain, commit), "chain", "BranchRewritten", told)


def _common(git: Git, chain: list[Link], commit: str) -> int:
    """The position after the last commit that this branch and the lost one share."""
    kind, oid, _ = described(git, f"{commit}^{{commit}}")
    if kind != "commit":
        return len(chain) - 1
    other = {link.id for link in first_parents(git, oid)}
    shared = max((i for i, link in enumerate(chain) if link.id in other), default=-1)
    return min(shared + 1, len(chain) - 1)


def _root(git: Git, chain: list[Link], bounds: Bounds) -> Iterator[Finding]:
    first = chain[0]
    if bounds.root and not first.id.startswith(bounds.root):
        told = f"the record begins with {first.id[:12]}, not with {bounds.root[:12]}"
        yield _at(git, chain, 0, "chain", "OtherRoot", told)
    if (
        b"\nparent " in raw_commits(git, (first.id,))[first.id].split(b"\n\n", 1)[0]
        and bounds.since is bounds.since_at is None
    ):
        told = (
            "the chain is cut off here: the commit has parents that this clone does not show (`git fetch --unshallow`)"
        )
        yield _at(git, chain, 0, "chain", "ChainCut", told)


def _at(git: Git, chain: list[Link], position: int, check: str, code: str, told: str) -> Finding:
    commit = chain[position].id
    number = _trailer(raw_commits(git, (commit,))[commit], b"Generation")
    return Finding(position=position, generation=number, commit=commit, check=check, code=code, told=told)


def verified_file(git: Git) -> Path:
    """Where a clone remembers the tip it verified last."""
    return git.folder / git.run("rev-parse", "--git-path", "gangops/verified").stdout.decode().strip()


def verified_before(git: Git) -> str:
    """The tip that was verified last in this clone, "" when none was."""
    try:
        found = verified_file(git).read_text().strip()
    except OSError:
        return ""
    return found if len(found) == 40 and set(found) <= set("0123456789abcdef") else ""


def remember_verified(git: Git, commit: str) -> None:
    """Keep the tip of a record that was found true; best effort."""
    file = verified_file(git)
    with contextlib.suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{commit}\n")


# --- one generation ---


@dataclass(frozen=True, slots=True)
class _Part:
    links: list[Link]
    before: str
    first: int


class _Bench:
    """What judging keeps between generations: parsed documents and signers."""

    def __init__(self, git: Git, pinned: bytes) -> None:
        self.git = git
        self.reader = DesiredReader(git)
        self.signers = Signers(git, pinned)
        self._last: tuple[tuple[str, str, object], ReadDesired] | None = None

    def desired(self, frame: Frame, tree: str) -> ReadDesired:
        """The desired state a frame answered to."""
        assert frame.generation is not None
        key = (tree, str(frame.generation.summary.desired_commit), frame.generation.frozen)
        if self._last is None or self._last[0] != key:
            self._last = (
                key,
                self.reader.recorded(frame.meta.id, frame.generation.summary.desired_commit, frame.generation.frozen),
            )
        return self._last[1]


_BENCH: list[_Bench] = []


def _sit(git: Git, pinned: bytes) -> None:
    """Makes ready a process that judges."""
    _BENCH[:] = [_Bench(git, pinned)]


def _judge_part(part: _Part) -> list[Judged]:
    return _judge_links(_BENCH[0], part)


def _judged(git: Git, links: list[Link], first: int, pinned: bytes, processes: int) -> Iterator[Judged]:
    """Verdicts in the chain's order, from as many processes as are wanted."""
    parts = [
        _Part(links[i : i + _PART], links[i - 1].id if i else links[0].parent, first + i)
        for i in range(0, len(links), _PART)
    ]
    if processes <= 1 or len(parts) == 1:
        bench = _Bench(git, pinned)
        with bench.signers:
            for part in parts:
                yield from _judge_links(bench, part)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _sit, (git, pinned)) as pool:
        for found in pool.map(_judge_part, parts):
            yield from found


def _judge_links(bench: _Bench, part: _Part) -> list[Judged]:
    try:
        return _judge_frames(bench, part)
    except StoreError as err:  # git itself cannot read what is there
        finding = _in_part(bench.git, part.links, part.first, 0, f"{err.code} from here on: {err.message}")
        return [
            Judged(
                position=finding.position, generation=finding.generation, commit=finding.commit, findings=(finding,),
                version=0, package="", epoch=0,
            )
        ]  # fmt: skip


def _judge_frames(bench: _Bench, part: _Part) -> list[Judged]:
    reel = frames(bench.git, part.links, part.before)
    before = next(reel) if part.before else None
    trees = _trees(bench.git, part.links)
    bench.signers.look_ahead(link.parent for link in part.links if link.parent)
    found = []
    for position, (link, frame) in enumerate(zip(part.links, reel, strict=True), part.first):
        found.append(_Judge(bench, position, link, frame, before, trees).verdict())
        before = frame
    return found


def _trees(git: Git, links: list[Link]) -> dict[str, str]:
    """Ids of the desired trees: of `COMMIT:desired`, and of each desired commit's own tree."""
    names = list(
        dict.fromkeys(
            name
            for link in links
            for name in (f"{link.id}:desired", f"{link.merged}^{{tree}}" if link.merged else "")
            if name
        )
    )
    told = git.run("cat-file", "--batch-check", "--buffer", stdin="".join(f"{n}\n" for n in names).encode()).stdout
    rows = (line.split(" ") for line in told.decode("utf-8", "replace").splitlines())
    return {name: row[0] for name, row in zip(names, rows, strict=True) if len(row) == 3 and row[1] == "tree"}


class _Judge:
    """All checks of one generation; each adds what it finds and leaves the others to theirs."""

    def __init__(
        self, bench: _Bench, position: int, link: Link, frame: Frame, before: Frame | None, trees: dict[str, str]
    ) -> None:
        self._bench, self._position, self._link, self._trees = bench, position, link, trees
        self._frame, self._before = frame, before
        self._findings: list[Finding] = []
        self._identical = False
        self._number = frame.generation.summary.generation if frame.generation else _trailer(frame.raw, b"Generation")

    def verdict(self) -> Judged:
        """Every check, the cheap ones first."""
        self._objects()
        principal, fingerprint = self._signature()
        now = self._frame.generation
        if now is None:
            self._says("chain", "Unreadable", str(self._frame.problem and self._frame.problem.message))
        else:
            self._chain(now)
            self._trailers(now)
            self._desired(now)
            if self._before is not None:
                self._decision(now)
        summary = now.summary if now else None
        return Judged(
            position=self._position, generation=self._number, commit=self._frame.meta.id, findings=tuple(self._findings),
            version=summary.decision_version if summary else 0, package=summary.package_version if summary else "",
            epoch=summary.epoch if summary else 0, signer=principal, fingerprint=fingerprint, identical=self._identical,
            receipts=tuple(self._new_receipts(now)) if now else (), ordered=tuple(self._new_orders(now)) if now else (),
        )  # fmt: skip

    def _says(self, check: str, code: str, told: str) -> None:
        commit = self._frame.meta.id
        self._findings.append(
            Finding(position=self._position, generation=self._number, commit=commit, check=check, code=code, told=told)
        )

    def _objects(self) -> None:
        for path in self._frame.forged:
            self._says("objects", "ForgedObject", f"{path} is not what its id says")
        for path in self._frame.foreign:
            self._says("objects", "ForeignPath", f"{path} is no file of the record")

    def _signature(self) -> tuple[str, str]:
        meta, signers = self._frame.meta, self._bench.signers
        trust = signers.of_child(meta.parents[0]) if meta.parents else signers.of_first()
        problem = missing(trust)
        if problem is not None and not meta.parents and meta.signed:
            return "", ""  # the root is believed, and the verdict says so
        try:
            if problem is not None:
                raise problem
            return signers.check(self._frame.raw, meta.committer, trust)
        except StoreError as err:
            self._says("signatures", err.code, err.message)
            return "", ""

    def _chain(self, now: Generation) -> None:
        meta, summary = self._frame.meta, now.summary
        if self._before is None:
            if meta.parents:
                self._says("chain", "ChainCut", "it has parents, and the record begins with it")
            return
        if meta.parents[:1] != (self._link.parent,) or len(meta.parents) != 2:
            self._says("chain", "WrongParents", f"it has {len(meta.parents)} parents, or others than the chain shows")
        if summary.previous_commit != self._before.meta.id:
            self._says(
                "chain",
                "WrongPrevious",
                f"its summary stands on {summary.previous_commit[:12] or 'nothing'}, it on {self._before.meta.id[:12]}",
            )
        self._dates()
        then = self._before.generation
        if then is None:
            return
        if summary.generation != then.summary.generation + 1:
            self._says(
                "chain", "GenerationGap", f"generation {then.summary.generation} is followed by {summary.generation}"
            )
        if summary.cluster_id != then.summary.cluster_id:
            self._says(
                "chain",
                "OtherCluster",
                f"it is of cluster {summary.cluster_id}, the record of {then.summary.cluster_id}",
            )
        if summary.epoch < then.summary.epoch:
            self._says("chain", "EpochBack", f"epoch {then.summary.epoch} is followed by {summary.epoch}")
        if summary.decided_at < then.summary.decided_at:
            self._says("chain", "TimeRunsBackwards", "it was decided before the generation it stands on")

    def _dates(self) -> None:
        assert self._before is not None
        meta = self._frame.meta
        if meta.committed_at < self._before.meta.committed_at:
            self._says("chain", "TimeRunsBackwards", "its date is before that of its parent")
        now = self._frame.generation
        if now is not None and {meta.authored_at, meta.committed_at} != {now.summary.decided_at // SECOND * SECOND}:
            self._says("chain", "WrongDate", "the commit's dates are not the instant of the decision")

    def _trailers(self, now: Generation) -> None:
        said = Counter(line.partition(":")[0].lower() for line in self._frame.meta.message.split("\n") if ":" in line)
        told = dict(self._frame.meta.trailers)
        for key, value in trailers(now.summary).items():
            if said[key.lower()] != 1:
                self._says("trailers", "TrailerCount", f"{key} stands {said[key.lower()]} times in the message")
            if told.get(key) != value:
                self._says("trailers", "TrailerDiffers", f"{key} is {told.get(key, 'missing')}, in the summary {value}")

    def _desired(self, now: Generation) -> None:
        if self._before is None:
            return
        if self._frame.meta.parents[1:] != (now.summary.desired_commit,):
            self._says(
                "desired",
                "WrongDesired",
                f"its second parent is not the desired commit {now.summary.desired_commit[:12]}",
            )
        grafted, own = self._trees.get(f"{self._link.id}:desired"), self._trees.get(f"{self._link.merged}^{{tree}}")
        if grafted is None or grafted != own:
            self._says("desired", "DesiredDiffers", "desired/ is not the tree of the desired commit")

    def _decision(self, now: Generation) -> None:
        """Inputs, outcome and invariants; one of another decision version is judged by its invariants alone."""
        assert self._before is not None
        then, tree = self._before.generation, self._trees.get(f"{self._link.id}:desired")
        if then is None or tree is None:
            self._says("replay", "InputsMissing", "what it was decided from cannot be read")
            return
        try:
            read = self._bench.desired(self._frame, tree)
            if read.desired is None:
                self._says("replay", "InputsMissing", "no valid form of the cluster's own files is in it")
                return
            ours = now.summary.decision_version == DECISION_VERSION
            if ours:
                self._replay(now, then, read)
            if not self._identical:
                desired = read.desired
                if read.verdicts is not None:
                    held = read.verdicts.holds(now.observed.provenance)
                    desired = replace(desired, policy={**held, **desired.policy})
                for one in violations(desired, now.observed, then.allocation, now.allocation):
                    self._says("judge", "InvariantBroken", str(one))
        except BrokenInvariant as err:
            self._says("replay", "ReplayRefused", err.message)
        except GangOpsError as err:
            self._says("replay", err.code, err.message)

    def _replay(self, now: Generation, then: Generation, read: ReadDesired) -> None:
        assert self._before is not None
        assert read.desired is not None
        inputs = Inputs(
            desired=read.desired, read=read.read, frozen=now.frozen, observed=now.observed, previous=then,
            now=now.summary.decided_at, trigger=now.summary.trigger,
        )  # fmt: skip
        if inputs_digest(inputs, now.observed_files) != now.summary.inputs_digest:
            self._says("inputs", "InputsDiffer", "the digest of what it was decided from is another one")
        again = made_again(now, then, read)
        differs, fields = outcome_differs(self._before.files, self._frame.files, again.changes)
        self._identical = not differs
        if differs:
            self._says("replay", "DecisionDiffers", "; ".join(fields[:3]) or ", ".join(differs[:3]))

    def _new_receipts(self, now: Generation) -> Iterator[Receipt]:
        then = self._before.generation if self._before else None
        for name, seen in now.observed.nodes.items():
            known = then.observed.nodes.get(name) if then else None
            if seen is known:
                continue
            old = set(known.attempts) if known else set()
            for one in seen.attempts:
                if one not in old:
                    yield Receipt(
                        node=name, job=one.job, attempt=one.attempt, generation=one.generation, state=str(one.state)
                    )

    def _new_orders(self, now: Generation) -> Iterator[tuple[str, str, int]]:
        then = self._before.generation if self._before else None
        for name, orders in now.orders.items():
            known = then.orders.get(name) if then else None
            if orders is known:
                continue
            old = {(one.job, one.attempt) for one in known.attempts} if known else set()
            yield from ((name, one.job, one.attempt) for one in orders.attempts if (one.job, one.attempt) not in old)


# --- over the whole chain ---


def _receipts(verdict: Verdict, *, complete: bool) -> Iterator[Finding]:
    """Receipts that obey a generation before it was committed, or one that never ordered the attempt there.

    Ordered by generation alone: nodes' clocks prove nothing. `complete`: all orders ever given are known.
    """
    ordered: dict[tuple[str, str, int], int] = {}
    committed = verdict.judged[0].generation - 1 if verdict.judged else 0
    for one in verdict.judged:
        for receipt in one.receipts:
            verdict.receipts += 1
            first = ordered.get((receipt.node, receipt.job, receipt.attempt))
            what = f"{receipt.node} says {receipt.state} of {receipt.job} attempt {receipt.attempt}"
            code = told = ""
            if receipt.generation > committed:
                code, told = (
                    "ReceiptTooEarly",
                    f"{what}, obeying generation {receipt.generation}, which was not committed yet",
                )
            elif first is None and complete:
                code, told = "ReceiptUnknown", f"{what}, which was never ordered there"
            elif first is not None and 0 < receipt.generation < first:
                code, told = (
                    "ReceiptTooEarly",
                    f"{what}, obeying generation {receipt.generation}, before generation {first} ordered it",
                )
            if code:
                yield Finding(
                    position=one.position,
                    generation=one.generation,
                    commit=one.commit,
                    check="receipts",
                    code=code,
                    told=told,
                )
        for place in one.ordered:
            ordered.setdefault(place, one.generation)
        committed = max(committed, one.generation)


def _objects(git: Git, part: list[Link], first: int) -> Iterator[Finding]:
    """Everything reachable in the part, hashed once: folders and people's files are hashed by nothing else."""
    older = [f"^{part[0].parent}"] if part[0].parent else []
    bad: list[str] = []
    try:
        listed = streamed(git, "rev-list", "--objects", "--no-object-names", part[-1].id, *older)
        while chunk := [line.decode("ascii") for line in islice(listed, _HASHED)]:
            bad += (oid for oid, kind, content in objects(git, chunk) if object_id(kind, content) != oid)
    except GangOpsError as err:
        yield _in_part(git, part, first, len(part) - 1, f"an object below it is missing or damaged: {err.message}")
    for oid in bad:
        holder = next(
            (i for i, link in enumerate(part) if oid == link.id or oid in _below(git, link.id)), len(part) - 1
        )
        yield _in_part(git, part, first, holder, f"object {oid[:12]} is not what its id says")


def _below(git: Git, commit: str) -> set[str]:
    told = git.run("ls-tree", "-r", "-t", "--full-tree", commit, accept=(0, 128)).stdout.decode("utf-8", "replace")
    return {line.split()[2] for line in told.splitlines()}


def _in_part(git: Git, part: list[Link], first: int, at: int, told: str) -> Finding:
    commit = part[at].id
    number = _trailer(raw_commits(git, (commit,))[commit], b"Generation")
    return Finding(
        position=first + at, generation=number, commit=commit, check="objects", code="ForgedObject", told=told
    )


def _notice(verdict: Verdict, bounds: Bounds, signers: bytes) -> None:
    others = sorted({one.package for one in verdict.judged if one.version not in {0, DECISION_VERSION}})
    count = sum(one.version not in {0, DECISION_VERSION} for one in verdict.judged)
    if count:
        verdict.notices.append(
            f"{count} decisions of another decision version (gangops {', '.join(others)}) were judged by their invariants, not made again"
        )
    if verdict.from_root and not (bounds.root or signers):
        verdict.notices.append(
            f"the first commit {verdict.root[:12]} was believed: pin it with --root, or name its signers with --signers"
        )
    if not verdict.from_root and verdict.judged:
        verdict.notices.append(f"what came before generation {verdict.judged[0].generation} was not looked at")
