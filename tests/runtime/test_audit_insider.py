"""An insider with the record's own key, and with the forge: whatever is put right again, something is left to be found.

Two kinds. Commits made anew with one thing changed and signed again (`Rewriter`); and whole generations decided by the
real planner on inputs that nobody brought (`Forger`): those replay byte for byte.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from reconciler.documents.record import SUMMARY
from reconciler.documents.withheld import WITHHELD
from reconciler.model.decision import DECISION_VERSION
from reconciler.model.observed import Person
from reconciler.model.request import Refusal, Standing
from reconciler.model.units import HOUR, MINUTE, CommitId, Instant, JobKey
from reconciler.runtime.audit.exceptions import exceptions
from reconciler.runtime.audit.form import folder_fault
from reconciler.runtime.audit.index import indexed
from reconciler.runtime.audit.verify import verify
from reconciler.runtime.generation import PREVIEW, Generation, Inputs, next_generation, restored_to
from reconciler.runtime.provenance import provenance_after
from reconciler.runtime.reading import DesiredReader
from reconciler.runtime.requests import judged_again
from reconciler.runtime.taken import Taking, told_by
from reconciler.runtime.telling import message_of, trigger_of
from reconciler.store.publish import publish
from reconciler.store.signatures import Signer, allowed_signers_line, make_key
from reconciler.store.statecommit import Writer, build_on
from tests.runtime.asking import People
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.runtime.tampering import Change, Files, Rewriter, adding, in_message, replacing
from tests.runtime.test_policies import merged
from tests.store.world import MAIN, STATE, Repository, git, new_repository

TRUST = "cluster-state/trust/allowed_signers"
REVOKED = "cluster-state/trust/revoked"
A = JobKey("nlp/a")


def line(writer: Writer) -> str:
    return allowed_signers_line("gangops@lab", writer.signer.public_key())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Lab:
    """Jobs a and b from the beginning; c merged by the forge; a cancelled by kim's request; d merged with b's file broken."""
    folder = tmp_path_factory.mktemp("kept")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    people = People(lab)
    lab.begin(**{**people.files, **jobs("a", "b"), TRUST: line(writer)})
    desk = lab.desk()
    desk.settle()
    lab.desire(jobs("c"))
    merged(lab, "Add c (#7)\n\nApproved-by: @lea-gh\n")
    desk.settle()
    people.push("cancel-a", people.wish(hours=1))
    desk.settle()
    lab.desire({job_file("b"): job_text("b", 8).replace("gpus: 8", "gpus: many"), **jobs("d")})
    merged(lab, "Change b, add d (#8)\n")
    desk.settle()
    return lab


@pytest.fixture
def lab(tmp_path: Path, kept: Lab) -> Lab:
    """A copy of that record, to be changed."""
    shutil.copytree(kept.folder / "remote.git", tmp_path / "remote.git")
    shutil.copytree(kept.folder / "keys", tmp_path / "keys")
    clock = type(kept.clock)()
    clock.advance(kept.clock.now() - clock.now())
    return Lab(
        folder=tmp_path, remote=Repository(tmp_path / "remote.git"), writer=kept.writer, clock=clock,
        files=dict(kept.files),
    )  # fmt: skip


def found(lab: Lab, *, tip: str = "", branch: str = "") -> list[tuple[int, str]]:
    """(generation's position, code) of each finding."""
    verdict = verify(lab.remote.git, tip or lab.tip, signers=line(lab.writer).encode(), branch=branch)
    return [(one.position, one.code) for one in verdict.findings]


def end(lab: Lab) -> int:
    return len(lab.log()) - 1


def position(lab: Lab, words: str) -> int:
    """Of the first generation whose message has these words."""
    return next(i for i, meta in enumerate(reversed(lab.log())) if words in meta.message)


def test_the_untouched_record_is_true(lab: Lab) -> None:
    assert found(lab) == []
    generation = lab.generation()
    assert generation.observed.requests["cancel-a"].standing is Standing.IN_FORCE
    assert job_file("b") in generation.frozen
    assert [one.user for one in generation.observed.provenance[JobKey("nlp/c")].approvers] == ["lea"]


# --- made anew ---


def _raw(pattern: bytes, new: bytes) -> Callable[[Rewriter], None]:
    """A commit with other bytes, signed as they are."""

    def change(raw: bytes) -> bytes:
        changed = re.sub(pattern, new, raw, count=1, flags=re.MULTILINE | re.DOTALL)
        assert changed != raw, raw
        return changed

    return lambda rewriter: rewriter.rewrite(3, Change(payload=change))


def _with_empty_signature(rewriter: Rewriter) -> None:
    rewriter.rewrite(3, Change(raw=lambda raw: re.sub(rb"gpgsig .*?\n(?! )", b"gpgsig \n", raw, flags=re.DOTALL)))


def _with_other_header(rewriter: Rewriter) -> None:
    rewriter.rewrite(3, Change(raw=lambda raw: raw.replace(b"\ngpgsig ", b"\ngpgsig-sha256 ")))


def _with_both_headers(rewriter: Rewriter) -> None:
    def twice(raw: bytes) -> bytes:
        signature = re.search(rb"gpgsig .*?\n(?! )", raw, flags=re.DOTALL)
        assert signature is not None
        return raw.replace(signature[0], signature[0] + signature[0].replace(b"gpgsig ", b"gpgsig-sha256 "))

    rewriter.rewrite(3, Change(raw=twice))


def _third_parent(rewriter: Rewriter) -> None:
    main = rewriter.lab.remote.tip(MAIN)
    rewriter.rewrite(3, Change(payload=lambda raw: raw.replace(b"\nauthor ", f"\nparent {main}\nauthor ".encode(), 1)))


def _begun_later(rewriter: Rewriter) -> None:
    """Everything before generation 3 is cut off, and 3 stands as if nothing had been before."""
    chain = rewriter.chain()
    parent = ""
    for meta in chain[3:]:
        orphan = Change(payload=lambda raw: re.sub(rb"parent \w+\n", b"", raw)) if not parent else Change()
        parent = rewriter.commit(meta, parent, orphan)
    git(rewriter.folder, "update-ref", STATE, parent)


def _file_with_mode(mode: str) -> Callable[[Rewriter], None]:
    def plant(rewriter: Rewriter) -> None:
        rewriter.rewrite(3, Change(tree=lambda tree: _in_folder(rewriter, tree, "observed", f"{mode} blob", "zz")))

    return plant


def _in_folder(rewriter: Rewriter, tree: str, folder: str, kind: str, name: str) -> str:
    """The tree with one more entry in one of its folders; the content is that of the first file there is."""
    some = rewriter.lab.remote.tip(MAIN) if kind.startswith("160000") else git(
        rewriter.folder, "rev-parse", f"{tree}:{SUMMARY}"
    ).decode().strip()  # fmt: skip
    below = git(rewriter.folder, "ls-tree", f"{tree}:{folder}").decode() + f"{kind} {some}\t{name}\n"
    made = git(rewriter.folder, "mktree", "--missing", stdin=below.encode()).decode().strip()
    rows = git(rewriter.folder, "ls-tree", tree).decode().splitlines()
    top = "".join(f"040000 tree {made}\t{folder}\n" if row.endswith(f"\t{folder}") else f"{row}\n" for row in rows)
    return git(rewriter.folder, "mktree", stdin=top.encode()).decode().strip()


def _named_twice(rewriter: Rewriter) -> None:
    """The folder of jobs names one file twice: git shows the first, some tools the last."""

    def twice(tree: str) -> str:
        blob = git(rewriter.folder, "rev-parse", f"{tree}:{SUMMARY}").decode().strip()
        jobs = git(rewriter.folder, "rev-parse", f"{tree}:allocation/jobs/nlp").decode().strip()
        content = git(rewriter.folder, "cat-file", "tree", jobs)
        end = content.index(b"\0") + 21
        forged = content[:end] + content[: end - 20] + bytes.fromhex(blob) + content[end:]
        return _replaced(rewriter, tree, ("allocation", "jobs", "nlp"), forged)

    rewriter.rewrite(3, Change(tree=twice))


def _replaced(rewriter: Rewriter, tree: str, path: tuple[str, ...], content: bytes) -> str:
    """The tree with another folder at a path, byte for byte as given."""
    told = git(rewriter.folder, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", stdin=content)
    made = told.decode().strip()
    for depth in range(len(path), 0, -1):
        above = f"{tree}:{'/'.join(path[: depth - 1])}" if depth > 1 else tree
        rows = git(rewriter.folder, "ls-tree", above).decode().splitlines()
        name = path[depth - 1]
        listed = "".join(f"040000 tree {made}\t{name}\n" if row.endswith(f"\t{name}") else f"{row}\n" for row in rows)
        made = git(rewriter.folder, "mktree", stdin=listed.encode()).decode().strip()
    return made


def _same_tree_by_another(rewriter: Rewriter) -> None:
    """What brought c is replaced by a commit of the same tree, by somebody else, in parent, summary and trailers."""
    lab = rewriter.lab
    at = position(lab, "nlp/c")
    real = rewriter.chain()[at].parents[1]
    raw = git(lab.remote.path, "cat-file", "commit", real).decode().replace("author kim <kim@", "author eve <eve@")
    forged = git(lab.remote.path, "hash-object", "-t", "commit", "-w", "--stdin", stdin=raw.encode()).decode().strip()

    def edit(files: Files) -> None:
        files[SUMMARY] = files[SUMMARY].replace(real.encode(), forged.encode())

    message = in_message(rf"^Desired-Commit: {real}$", f"Desired-Commit: {forged}")
    rewriter.rewrite(at, Change(files=edit, message=message, second_parent=forged))


MADE_ANEW = {
    "a signature header of another kind": (_with_other_header, 3, "SignatureInvalid"),
    "a second signature header of another kind": (_with_both_headers, 3, "SignatureInvalid"),
    "an empty signature": (_with_empty_signature, 3, "SignatureInvalid"),
    "an encoding that makes git show other words": (_raw(rb"\n\n", b"\nencoding UTF-7\n\n"), 3, "ForeignHeader"),
    "a header that git does not show": (_raw(rb"\n\n", b"\nmergetag object x\n\n"), 3, "ForeignHeader"),
    "another author": (_raw(rb"^author [^<]*<[^>]*>", b"author Kim <kim@acme.org>"), 3, "ForeignHeader"),
    "another time zone": (_raw(rb"\+0000$", b"+0900"), 3, "ForeignHeader"),
    "a message that goes on behind a NUL": (_raw(rb"\Z", b"\0And more.\n"), 3, "ForeignText"),
    "a subject that tells something else": (
        lambda r: r.rewrite(3, Change(message=in_message(r"\A.*$", "Preempt nlp/b"))), 3, "MessageDiffers",
    ),
    "a body that tells something else": (
        lambda r: r.rewrite(3, Change(message=in_message(r"^\d+ of \d+ GPUs held", "9 of 9 GPUs held"))), 3, "MessageDiffers",
    ),
    "a word more in front of the trailers": (
        lambda r: r.rewrite(3, Change(message=in_message(r"^Generation:", "Approved-by: Kim\nGeneration:"))), 3, "MessageDiffers",
    ),
    "a third parent": (_third_parent, 3, "WrongParents"),
    "a record that begins in the middle": (_begun_later, 0, "NotTheBeginning"),
    "a beginning with something in it": (
        lambda r: r.rewrite(0, Change(files=adding({"finished/nlp/cb/old.yaml": b"x"}))), 0, "Unreadable",
    ),
    "a beginning with frozen files": (
        lambda r: r.rewrite(0, Change(files=adding({"frozen/cluster-state/jobs/nlp/b.yaml": b"x"}))), 0, "NotTheBeginning",
    ),
    "an executable file": (_file_with_mode("100755"), 3, "ForeignPath"),
    "a symbolic link": (_file_with_mode("120000"), 3, "ForeignPath"),
    "a submodule": (
        lambda r: r.rewrite(3, Change(tree=lambda tree: _in_folder(r, tree, "observed", "160000 commit", "zz"))), 3, "ForeignPath",
    ),
    "a folder that names a file twice": (_named_twice, 3, "ForgedObject"),
    "a name that differs in case alone": (
        lambda r: r.rewrite(3, Change(files=lambda files: files.update({"allocation/jobs/nlp/A.yaml": files["allocation/jobs/nlp/a.yaml"]}))),
        3, "Unreadable",
    ),
    "orders of one node in the file of another": (
        lambda r: r.rewrite(3, Change(files=lambda f: f.update({"allocation/nodes/r02/gpu-004.json": f["allocation/nodes/r01/gpu-001.json"]}))),
        3, "DecisionDiffers",
    ),
    "a version that escapes the replay": (
        lambda r: r.rewrite(3, Change(files=replacing(SUMMARY, b"decisionVersion: %d" % DECISION_VERSION, b"decisionVersion: 77"))),
        3, "WrongVersion",
    ),
    "another trigger": (
        lambda r: r.rewrite(3, Change(files=replacing(SUMMARY, b"trigger: observed", b"trigger: desired"))), 3, "WrongTrigger",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE_ANEW)
def test_what_is_made_anew_is_found(lab: Lab, name: str) -> None:
    plant, at, code = MADE_ANEW[name]
    plant(Rewriter(lab))
    findings = found(lab)
    assert (at, code) in findings
    assert min(position for position, _ in findings) == at


def test_a_desired_commit_of_the_same_tree_by_somebody_else(lab: Lab) -> None:
    at = position(lab, "nlp/c")
    _same_tree_by_another(Rewriter(lab))
    assert found(lab)[0] == (at, "ProvenanceDiffers")
    listed = [
        one.generation
        for one in exceptions(lab.remote.git, indexed(lab.remote.git, lab.tip))
        if one.kind == "DesiredRewritten"
    ]
    assert listed == [at + 1]  # where the real branch comes back


# --- decided on what nobody brought ---


@dataclass
class Forger:
    """Decides and commits as the reconciler does, with its key, on inputs of its own."""

    lab: Lab

    def forge(self, alter: Callable[[Inputs], Inputs]) -> int:
        """A generation on altered inputs; its position."""
        self.lab.clock.advance(MINUTE)
        mirror = self.lab.mirror("forger")
        mirror.fetch()
        current = self.lab.generation()
        inputs = alter(self._inputs(current))
        made = next_generation(inputs)
        reader = DesiredReader(mirror.git)
        read = reader.read(made.summary.desired_commit, current, ())
        taken = Taking(reader).of(read, current, told_by(made))
        commit = build_on(
            mirror.git, made.changes, parent=current.commit, desired=made.summary.desired_commit,
            message=message_of(made, current, taken), at=made.summary.decided_at, writer=self.lab.writer,
        )  # fmt: skip
        publish(mirror, commit, expected=current.commit).raise_for_result()
        return end(self.lab)

    def _inputs(self, current: Generation) -> Inputs:
        """What is true, but for guards and for changes that lack authority: nobody asks about those."""
        access = self.lab.remote.git
        reader = DesiredReader(access)
        main = self.lab.remote.tip(MAIN)
        assert main is not None
        read = reader.read(main, current, ())
        base = reader.recorded(current.commit, current.summary.desired_commit, current.frozen)
        decided = current.summary.desired_commit
        brought = provenance_after(
            access, current.observed.provenance, read, base if main != decided else None, decided, current.allocation
        )
        observed = replace(current.observed, provenance=brought)
        assert read.desired is not None
        return Inputs(
            desired=read.desired, read=read.read, frozen=read.frozen, observed=observed, previous=current,
            now=Instant(self.lab.clock.now()), trigger=trigger_of(current, read.desired.commit, observed.requests),
            verdicts=read.verdicts,
        )  # fmt: skip


def _observed(inputs: Inputs, **fields: object) -> Inputs:
    return replace(inputs, observed=replace(inputs.observed, **fields))  # type: ignore[arg-type]  # fields by name


def _other_author(inputs: Inputs) -> Inputs:
    known = inputs.observed.provenance[A]
    forged = replace(known, author=Person(user="eve", email="eve@acme.org"))
    return _observed(inputs, provenance={**inputs.observed.provenance, A: forged})


def _another_approver(inputs: Inputs) -> Inputs:
    key = JobKey("nlp/c")
    known = inputs.observed.provenance[key]
    forged = replace(known, approvers=(*known.approvers, Person(user="pat", email="pat@acme.org")))
    return _observed(inputs, provenance={**inputs.observed.provenance, key: forged})


def _forgotten_author(inputs: Inputs) -> Inputs:
    return _observed(inputs, provenance={k: v for k, v in inputs.observed.provenance.items() if k != JobKey("nlp/c")})


def _longer_request(inputs: Inputs) -> Inputs:
    request = inputs.observed.requests["cancel-a"]
    longer = replace(request, expires=Instant(request.expires + HOUR))
    return replace(_observed(inputs, requests={"cancel-a": longer}), trigger="request")


def _lost_request(inputs: Inputs) -> Inputs:
    return _observed(inputs, requests={})


def _ended_request(inputs: Inputs) -> Inputs:
    request = inputs.observed.requests["cancel-a"]
    ended = replace(request, standing=Standing.EXPIRED, ended=inputs.now)
    return replace(_observed(inputs, requests={"cancel-a": ended}), trigger="request")


def _receipt_of_another_node(inputs: Inputs) -> Inputs:
    nodes = dict(inputs.observed.nodes)
    giving = next(name for name, seen in nodes.items() if seen.attempts)
    taking = next(name for name, seen in nodes.items() if not seen.attempts)
    nodes[taking] = replace(nodes[taking], attempts=nodes[giving].attempts)
    nodes[giving] = replace(nodes[giving], attempts=())
    return _observed(inputs, nodes=nodes)


def _new_epoch_with_news(inputs: Inputs) -> Inputs:
    return replace(inputs, trigger=restored_to(9))


FORGED = {
    "another author": (_other_author, "ProvenanceDiffers"),
    "an approval that nobody gave": (_another_approver, "ProvenanceDiffers"),
    "nobody who brought it": (_forgotten_author, "ProvenanceDiffers"),
    "a request that lasts longer": (_longer_request, "RequestForged"),
    "a request that is gone": (_lost_request, "RequestForged"),
    "a request that is over before its time": (_ended_request, "RequestForged"),
    "receipts of one node in the file of another": (_receipt_of_another_node, "ReceiptUnknown"),
    "a decision that policies over previews were not asked of": (lambda inputs: replace(inputs, trigger=PREVIEW), "WrongTrigger"),
    "a new epoch that takes something in": (_new_epoch_with_news, "InputsMoved"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_decision_on_forged_inputs_is_found(lab: Lab, name: str) -> None:
    alter, code = FORGED[name]
    at = Forger(lab).forge(alter)
    findings = found(lab)
    assert (at, code) in findings
    assert {position for position, _ in findings} == {at}
    assert not {"DecisionDiffers", "InputsDiffer", "InvariantBroken"} & {code for _, code in findings}


def test_the_forger_s_own_work_is_true_as_long_as_nothing_is_forged(lab: Lab) -> None:
    lab.desire(jobs("e"))
    merged(lab, "Add e (#9)\n")
    Forger(lab).forge(lambda inputs: inputs)
    assert found(lab) == []


def test_a_file_that_counts_in_a_form_it_never_had(lab: Lab) -> None:
    """The broken file of b counts in its last valid form; its own command is put into that."""

    def alter(inputs: Inputs) -> Inputs:
        forged = inputs.frozen[job_file("b")].replace(b"train.py", b"steal.py")
        frozen = {**inputs.frozen, job_file("b"): forged}
        read = DesiredReader(lab.remote.git).read(inputs.desired.commit, replace(inputs.previous, frozen=frozen), ())
        assert read.desired is not None
        return replace(inputs, desired=read.desired, frozen=read.frozen)

    at = Forger(lab).forge(alter)
    assert (at, "FrozenDiffers") in found(lab)


def test_a_change_without_authority_that_is_acted_on_all_the_same(lab: Lab) -> None:
    lab.desire(jobs("evil"))
    merged(lab, "Add (#9)\n", author="eve")
    at = Forger(lab).forge(lambda inputs: inputs)
    assert WITHHELD not in lab.generation().frozen
    assert (at, "WithheldDiffers") in found(lab)


def test_a_removal_that_had_to_wait_and_was_acted_on(lab: Lab) -> None:
    lab.desire({job_file("b"): None, job_file("c"): None})
    merged(lab, "Remove all (#9)\n")
    at = Forger(lab).forge(lambda inputs: inputs)
    assert (at, "DesiredRefused") in found(lab)


@pytest.mark.parametrize(
    ("by", "standing", "refusal"),
    [("eve", Standing.IN_FORCE, None), ("kim", Standing.REFUSED, Refusal.NO_AUTHORITY)],
    ids=["one let in that its signer had no right to", "one refused that had to be let in"],
)
def test_a_request_judged_otherwise_than_by_the_rules(
    lab: Lab, by: str, standing: Standing, refusal: Refusal | None
) -> None:
    people = People.__new__(People)
    people.lab, people.keys = lab, {name: Signer(key=lab.folder / "keys" / name) for name in ("kim", "eve")}
    commit = people.push("cancel-c", people.wish(job="nlp/c", hours=1), by)

    def alter(inputs: Inputs) -> Inputs:
        raw = git(lab.remote.path, "cat-file", "commit", commit).decode()
        content = git(lab.remote.path, "show", f"{commit}:request.yaml").decode()
        read = DesiredReader(lab.remote.git).recorded(inputs.previous.commit, inputs.desired.commit, inputs.frozen)
        seen = replace(
            inputs.observed.requests["cancel-a"],
            id="cancel-c",
            commit=CommitId(commit),
            seen=inputs.now,
            signed=raw,
            content=content,
        )
        honest = judged_again(lab.remote.git, seen, read, "lab")
        assert (honest.standing is Standing.IN_FORCE) == (by == "kim")
        forged = replace(
            honest,
            standing=standing,
            refusal=refusal,
            told="no" if refusal else "",
            ended=inputs.now if refusal else Instant(0),
        )
        requests = {**inputs.observed.requests, "cancel-c": forged}
        return replace(_observed(inputs, requests=requests), trigger="request")

    at = Forger(lab).forge(alter)
    assert found(lab) == [(at, "RequestForged")]


# --- what a clone is made to show ---


def test_what_makes_a_clone_show_another_branch(lab: Lab) -> None:
    tip = end(lab)
    git(lab.remote.path, "tag", "origin/allocations", MAIN)
    assert found(lab) == [(tip, "ShadowedBranch")]


def test_parents_that_a_clone_is_told(lab: Lab) -> None:
    chain = Rewriter(lab).chain()
    (lab.remote.path / "info").mkdir(exist_ok=True)
    (lab.remote.path / "info" / "grafts").write_text(f"{chain[4].id} {chain[2].id} {chain[4].parents[1]}\n")
    findings = found(lab)
    assert {"GraftedParents", "WrongParents"} <= {code for _, code in findings}


def test_a_boundary_that_a_clone_is_told(lab: Lab) -> None:
    chain = Rewriter(lab).chain()
    (lab.remote.path / "shallow").write_text(f"{chain[3].id}\n")
    assert "ChainCut" in {code for _, code in found(lab)}


def test_a_key_that_is_revoked_by_now_is_named(lab: Lab) -> None:
    other = Writer(identity=lab.writer.identity, signer=make_key(lab.folder / "next", "next"))
    old = lab.writer
    lab.desire({TRUST: line(old) + line(other), REVOKED: old.signer.public_key() + "\n"})
    merged(lab, "Rotate (#9)\n", author="pat")
    lab.desk("a").round()
    lab.writer = other
    lab.desk("b").settle()
    lab.writer = old
    result = verify(lab.remote.git, lab.tip, signers=line(old).encode())
    assert result.findings == []
    assert any("which is revoked by now" in notice for notice in result.notices)


# --- folders ---


def _entry(mode: bytes, name: bytes) -> bytes:
    return mode + b" " + name + b"\0" + bytes(20)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", ""),
        (_entry(b"100644", b"a") + _entry(b"40000", b"b"), ""),
        (_entry(b"40000", b"a") + _entry(b"100644", b"a.b"), "is out of order"),  # a/ sorts after a.b
        (_entry(b"100644", b"a.b") + _entry(b"40000", b"a"), ""),
        (_entry(b"100644", b"a") + _entry(b"100644", b"a"), "names a file twice"),
        (_entry(b"100644", b"a") + _entry(b"40000", b"a"), "names a file twice"),
        (_entry(b"040000", b"a"), "gives 'a' a mode that is none"),
        (_entry(b"100644", b"a/b"), "holds the name 'a/b'"),
        (_entry(b"40000", b".GIT"), "holds the name '.GIT'"),
        (_entry(b"100644", b"a")[:-1], "cannot be read"),
        (b"100644 a", "cannot be read"),
    ],
)
def test_a_folder_as_git_stores_it(content: bytes, fault: str) -> None:
    assert folder_fault(content) == fault
