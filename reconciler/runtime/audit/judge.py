"""Is one generation true? It against its parent, its signers, its inputs, and the decision made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from reconciler import __version__
from reconciler.errors import BrokenInvariant, GangOpsError, StoreError
from reconciler.model.decision import DECISION_VERSION
from reconciler.model.units import SECOND
from reconciler.planner.requested import as_requested
from reconciler.planner.verify import violations
from reconciler.render.names import one_line
from reconciler.runtime.audit.ends import number_said
from reconciler.runtime.audit.findings import Finding, Judged, Receipt
from reconciler.runtime.audit.form import beginning_faults, header_faults, trigger_faults, version_faults
from reconciler.runtime.audit.people import (
    Fault,
    carried_faults,
    desired_faults,
    provenance_faults,
    request_faults,
    takes_nothing_in,
)
from reconciler.runtime.audit.reel import Frame
from reconciler.runtime.audit.signers import Signers, missing
from reconciler.runtime.generation import Generation, Inputs, NextGeneration, inputs_digest, trailers
from reconciler.runtime.reading import DesiredReader, ReadDesired
from reconciler.runtime.replay import made_again, outcome_differs
from reconciler.runtime.taken import taken_between, told_by
from reconciler.runtime.telling import is_told_by_hand, message_of
from reconciler.store.branches import CONTINUED, named_before
from reconciler.store.runner import Git
from reconciler.store.walk import Link


class Bench:
    """What judging keeps between generations: parsed documents and signers."""

    def __init__(self, git: Git, pinned: bytes) -> None:
        self.git = git
        self.reader = DesiredReader(git)
        self.signers = Signers(git, pinned)
        self.partial = git.run("rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
        """The desired branch is cut off somewhere: who brought what cannot be told."""
        self._last: list[tuple[tuple[str, str, object], ReadDesired]] = []

    def desired(self, frame: Frame, tree: str) -> ReadDesired:
        """The desired state a frame answered to."""
        assert frame.generation is not None
        key = (tree, str(frame.generation.summary.desired_commit), frame.generation.frozen)
        for known, found in self._last:
            if known == key:
                return found
        found = self.reader.recorded(frame.meta.id, frame.generation.summary.desired_commit, frame.generation.frozen)
        self._last = [*self._last[-1:], (key, found)]  # the one before is asked for once more
        return found


class GenerationJudge:
    """All checks of one generation; each adds what it finds and leaves the others to theirs."""

    def __init__(
        self, bench: Bench, position: int, link: Link, frame: Frame, before: Frame | None, trees: dict[str, str]
    ) -> None:
        self._bench, self._position, self._link, self._trees = bench, position, link, trees
        self._frame, self._before = frame, before
        self._findings: list[Finding] = []
        self._identical = False
        self._number = (
            frame.generation.summary.generation if frame.generation else number_said(frame.raw, b"Generation")
        )

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
            self._say_all(version_faults(now))
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

    def _say_all(self, faults: Iterable[Fault]) -> None:
        for check, code, told in faults:
            self._says(check, code, told)

    def _objects(self) -> None:
        self._say_all(header_faults(self._frame))
        for path in self._frame.forged:
            self._says("objects", "ForgedObject", f"{one_line(path)} is not what its id says")
        for path in self._frame.foreign:
            self._says("objects", "ForeignPath", f"{one_line(path)} is no file of the record")

    def _signature(self) -> tuple[str, str]:
        meta, signers = self._frame.meta, self._bench.signers
        stands_on = meta.parents[0] if meta.parents else self._link.parent
        trust = signers.of_child(stands_on) if stands_on else signers.of_first()
        problem = missing(trust)
        if problem is not None and not stands_on and meta.signed:
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
                self._says(
                    "chain", "ChainCut", "it has parents, which this clone does not show (`git fetch --unshallow`)"
                )
            elif not named_before(meta):  # else the branch before is not in this clone, and the verdict says so
                self._say_all(beginning_faults(self._frame, now))
            return
        closed = dict(self._before.meta.trailers).get(CONTINUED, "")
        if self._link.carried:
            if not closed:
                self._says("chain", "NotClosed", "it goes on from a commit that does not close its branch")
        elif meta.parents[:1] != (self._link.parent,) or len(meta.parents) != 2:
            self._says("chain", "WrongParents", f"it has {len(meta.parents)} parents, or others than the chain shows")
        elif closed:
            self._says("chain", "ClosedBranch", f"the branch was closed before it: the record goes on in {closed}")
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
        if not self._link.carried and self._frame.meta.parents[1:] != (now.summary.desired_commit,):
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
            self._say_all(trigger_faults(self._frame.meta, now, then, carried=self._link.carried))
            if takes_nothing_in(now.summary.trigger):
                self._say_all(carried_faults(now, then))
            elif ours:
                self._brought(now, then, read)
            if ours:
                self._replay(now, then, read)
            if not self._identical:
                desired = read.desired
                if read.verdicts is not None:
                    held = read.verdicts.holds(now.observed.provenance)
                    desired = replace(desired, policy={**held, **desired.policy})
                desired = as_requested(desired, now.observed.requests, now.summary.decided_at)
                for one in violations(desired, now.observed, then.allocation, now.allocation):
                    self._says("judge", "InvariantBroken", str(one))
        except BrokenInvariant as err:
            self._says("replay", "ReplayRefused", err.message)
        except GangOpsError as err:
            self._says("replay", err.code, err.message)

    def _brought(self, now: Generation, then: Generation, read: ReadDesired) -> None:
        """What people brought: files, their authors, requests."""
        assert self._before is not None
        git = self._bench.git
        self._say_all(request_faults(git, now, then, read))
        if self._bench.partial:
            return
        self._say_all(desired_faults(git, self._bench.reader, now, then))
        self._say_all(provenance_faults(git, now, then, read, self._base(now, then)))

    def _base(self, now: Generation, then: Generation) -> ReadDesired | None:
        """The tree on record before; None when it answers to the same commit."""
        assert self._before is not None
        if now.summary.desired_commit == then.summary.desired_commit:
            return None
        tree = self._trees.get(f"{self._before.meta.id}:desired", self._before.meta.id)
        return self._bench.desired(self._before, tree)

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
        self._message(now, then, read, again)

    def _message(self, now: Generation, then: Generation, read: ReadDesired, again: NextGeneration) -> None:
        """Its words are those this release would write; another release may have had others."""
        meta = self._frame.meta
        if takes_nothing_in(now.summary.trigger):
            text = meta.message.rpartition("\n\n")[0]
            right = is_told_by_hand(meta.subject, text)
        elif now.summary.package_version != __version__:
            return
        else:
            base = self._base(now, then)
            taken = taken_between(base, read, told_by(again)) if base is not None else ()
            right = meta.message == message_of(again, then, taken).text()
        if not right:
            self._says("trailers", "MessageDiffers", f"its message does not tell what it does: {meta.subject}")

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
