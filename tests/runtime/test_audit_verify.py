"""An untouched record verifies; each way to tamper with it is found, and the first bad generation is named."""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler import __version__
from reconciler.documents.record import SUMMARY
from reconciler.errors import NotFound
from reconciler.model.decision import DECISION_VERSION
from reconciler.model.units import HOUR, SECOND
from reconciler.runtime.audit.ends import remember_verified
from reconciler.runtime.audit.findings import Bounds, Verdict
from reconciler.runtime.audit.verify import verify
from reconciler.store.signatures import allowed_signers_line, make_key
from reconciler.store.statecommit import Writer
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.runtime.tampering import Change, Files, Rewriter, adding, in_message, replacing
from tests.store.world import STATE, Repository, git, new_repository

JOB = "allocation/jobs/nlp/sft.yaml"
ORDERS = "allocation/nodes/r01/gpu-001.json"
SEEN = "observed/nodes/r01/gpu-001.yaml"
TRUST = "cluster-state/trust/allowed_signers"
REVOKED = "cluster-state/trust/revoked"
PRINCIPAL = "gangops@lab"


def line(writer: Writer, principal: str = PRINCIPAL, options: str = "") -> str:
    made = allowed_signers_line(principal, writer.signer.public_key())
    return made.replace('namespaces="git"', f'namespaces="git"{options}')


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Path:
    """A record that names its signers, made once: begun, one job placed, started, running, and then another."""
    folder = tmp_path_factory.mktemp("kept")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.begin(**jobs("sft", gpus=8), **{TRUST: line(writer)})
    desk = lab.desk()
    desk.settle()
    lab.desire(jobs("two"))
    desk.settle()
    assert lab.numbers() == [0, 1, 2, 3, 4, 5, 6]
    return folder / "remote.git"


@pytest.fixture
def lab(tmp_path: Path, kept: Path, writer: Writer) -> Lab:
    """A copy of that record, to be changed."""
    shutil.copytree(kept, tmp_path / "remote.git")
    return Lab(folder=tmp_path, remote=Repository(tmp_path / "remote.git"), writer=writer)


WHOLE = Bounds()


def verdict(lab: Lab, bounds: Bounds = WHOLE, *, pinned: str = "", processes: int = 1) -> Verdict:
    return verify(
        lab.remote.git, lab.tip, signers=(pinned or line(lab.writer)).encode(), bounds=bounds, processes=processes
    )


def found(lab: Lab, bounds: Bounds = WHOLE) -> list[tuple[int, str]]:
    return [(one.position, one.code) for one in verdict(lab, bounds).findings]


# --- the truth ---


@pytest.mark.parametrize("processes", [1, 2])
def test_an_untouched_record_verifies(lab: Lab, monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    monkeypatch.setattr("reconciler.runtime.audit.parts._PART", 3)
    result = verdict(lab, processes=processes)
    assert result.findings == []
    assert result.notices == []
    assert [one.generation for one in result.judged] == [0, 1, 2, 3, 4, 5, 6]
    assert [one.identical for one in result.judged] == [False, *[True] * 6]
    assert {one.signer for one in result.judged} == {PRINCIPAL}
    assert result.receipts > 0


def test_what_is_not_proven_is_said(lab: Lab) -> None:
    unpinned = verify(lab.remote.git, lab.tip)
    assert unpinned.findings == []  # the record names its signers from generation 1 on
    assert "was believed" in unpinned.notices[0]
    pinned = verify(lab.remote.git, lab.tip, bounds=Bounds(root=unpinned.root[:16]))
    assert (pinned.findings, pinned.notices) == ([], [])


def test_a_part_of_the_record(lab: Lab) -> None:
    part = verdict(lab, Bounds(since=2, until=4))
    assert [one.generation for one in part.judged] == [2, 3, 4]
    assert part.findings == []
    assert part.notices == ["what came before generation 2 was not looked at"]
    with pytest.raises(NotFound):
        verdict(lab, Bounds(since=70))


def test_keys_rotate_without_a_gap(tmp_path: Path, writer: Writer) -> None:
    other = Writer(identity=writer.identity, signer=make_key(tmp_path / "next", "next"))
    lab = Lab(folder=tmp_path, remote=new_repository(tmp_path / "remote.git"), writer=writer)
    lab.begin(**jobs("sft"), **{TRUST: line(writer)})
    lab.desk().settle()
    lab.desire({TRUST: line(writer) + line(other), **jobs("two")})
    lab.desk("a").round()  # answers the commit that adds the key, signed by the old one
    lab.writer = other
    lab.desk("b").settle()
    lab.desire({TRUST: line(other), **jobs("three")})
    lab.desk("c").settle()
    assert verdict(lab, pinned=line(writer)).findings == []


def test_another_decision_version_is_judged_by_its_invariants_and_never_passed_silently(lab: Lab) -> None:
    version, package = f"decisionVersion: {DECISION_VERSION}\n".encode(), f'packageVersion: "{__version__}"'.encode()

    def older(files: Files) -> None:
        replacing(SUMMARY, version, version[:-1] + b"1\n")(files)
        replacing(SUMMARY, package, b'packageVersion: "0.0.9"')(files)

    Rewriter(lab).rewrite(6, Change(files=older))
    result = verdict(lab)
    assert result.findings == []
    assert not result.judged[-1].identical
    assert result.notices == [
        (
            "1 decision of another decision version, judged by the invariants, not made again: "
            "pipx run --spec gangops==0.0.9 gangops replay 6..6"
        )
    ]


# --- the tamperings ---


def _edited(path: str, old: bytes, new: bytes) -> Callable[[Rewriter], None]:
    return lambda rewriter: rewriter.rewrite(2, Change(files=replacing(path, old, new)))


def _removed(rewriter: Rewriter) -> None:
    rewriter.rewrite(2, Change(), order=[3, 4, 5, 6])


def _reordered(rewriter: Rewriter) -> None:
    rewriter.rewrite(2, Change(), order=[3, 2, 4, 5, 6])


def _stranger(rewriter: Rewriter) -> None:
    rewriter.rewrite(2, Change(signer=make_key(rewriter.lab.folder / "stranger", "x")))


def _unsigned(rewriter: Rewriter) -> None:
    rewriter.rewrite(2, Change(signed=False))


def _signature_of_another(rewriter: Rewriter) -> None:
    rewriter.rewrite(2, Change(raw=lambda raw: raw.replace(b"Start nlp/sft", b"Start nlp/pft")))


def _redated(rewriter: Rewriter) -> None:
    rewriter.rewrite(2, Change(date=rewriter.chain()[2].committed_at // 10**9 + 1))


def _backwards(rewriter: Rewriter) -> None:
    rewriter.rewrite(2, Change(date=rewriter.chain()[1].committed_at // 10**9 - 1))


def _foreign_branch(rewriter: Rewriter) -> None:
    """Another record by the same hand, with ours on top of it from generation 2 on."""
    lab = rewriter.lab
    foreign = Lab(folder=lab.folder / "foreign", remote=new_repository(lab.folder / "foreign.git"), writer=lab.writer)
    foreign.begin(**jobs("evil"), **{TRUST: line(lab.writer)})
    foreign.desk().round()
    git(lab.remote.path, "fetch", "-q", str(foreign.remote.path), f"{STATE}:refs/heads/foreign")
    rewriter.onto(foreign.tip, 2)


def _replaced(rewriter: Rewriter) -> None:
    chain = rewriter.chain()
    git(rewriter.folder, "replace", chain[2].id, chain[1].id)


def _rewound(rewriter: Rewriter) -> None:
    """Set back, and other decisions made since, each of them sound."""
    lab, chain = rewriter.lab, rewriter.chain()
    remember_verified(lab.remote.git, chain[-1].id)
    git(rewriter.folder, "update-ref", STATE, chain[1].id)
    lab.clock.advance(HOUR)
    lab.desk("other").settle()


def _other_desired(rewriter: Rewriter) -> None:
    rewriter.rewrite(2, Change(second_parent=rewriter.chain()[6].parents[1]))


def _digest_forged(rewriter: Rewriter) -> None:
    forged = "f" * 64

    def edit(files: Files) -> None:
        files[SUMMARY] = re.sub(rb"(?m)^inputsDigest: .*$", f'inputsDigest: "{forged}"'.encode(), files[SUMMARY])

    rewriter.rewrite(2, Change(files=edit, message=in_message(r"^Inputs-Digest: .*$", f"Inputs-Digest: {forged}")))


def _receipt_of_no_decision(rewriter: Rewriter) -> None:
    rewriter.rewrite(2, Change(files=replacing(SEEN, b"    generation: 1", b"    generation: 77")))


def _receipt_of_no_order(rewriter: Rewriter) -> None:
    rewriter.rewrite(2, Change(files=replacing(SEEN, b"job: nlp/sft", b"job: nlp/evil")))


def _damaged_tree(rewriter: Rewriter) -> None:
    """The disk says something else for a tree's id: an object written over."""
    tree = git(rewriter.folder, "rev-parse", f"{rewriter.chain()[6].id}:allocation/jobs").decode().strip()
    other = git(rewriter.folder, "rev-parse", f"{rewriter.chain()[2].id}:allocation/jobs").decode().strip()
    _overwrite(rewriter, tree, b"tree", git(rewriter.folder, "cat-file", "tree", other))


def _damaged_blob(rewriter: Rewriter) -> None:
    commit = rewriter.chain()[2].id
    blob = git(rewriter.folder, "rev-parse", f"{commit}:{JOB}").decode().strip()
    content = git(rewriter.folder, "show", f"{commit}:{JOB}").replace(b'gpus: "0-7"', b'gpus: "1-8"')
    _overwrite(rewriter, blob, b"blob", content)


def _overwrite(rewriter: Rewriter, oid: str, kind: bytes, content: bytes) -> None:
    packs = list((rewriter.folder / "objects/pack").glob("*.pack"))
    for pack in packs:
        moved = rewriter.folder / pack.name
        pack.rename(moved)
        pack.with_suffix(".idx").unlink()
        git(rewriter.folder, "unpack-objects", "-q", stdin=moved.read_bytes())
    file = rewriter.folder / "objects" / oid[:2] / oid[2:]
    file.chmod(0o644)
    file.write_bytes(zlib.compress(b"%s %d\0" % (kind, len(content)) + content))


TAMPERINGS = {
    "an edited allocation": (_edited(JOB, b'gpus: "0-7"', b'gpus: "0-6,8"'), 2, "DecisionDiffers"),
    "edited orders of a node": (_edited(ORDERS, b'"worldSize": 8', b'"worldSize": 9'), 2, "DecisionDiffers"),
    "an edited summary": (_edited(SUMMARY, b"held: 8", b"held: 9"), 2, "DecisionDiffers"),
    "a changed observation": (_edited(SEEN, b"bootId: boot-", b"bootId: loot-"), 2, "InputsDiffer"),
    "an edited desired tree": (
        _edited("desired/cluster-state/jobs/nlp/sft.yaml", b"gpus: 8", b"gpus: 7"),
        2,
        "DesiredDiffers",
    ),
    "a removed commit": (_removed, 2, "GenerationGap"),
    "re-ordered commits": (_reordered, 2, "GenerationGap"),
    "a stranger's signature": (_stranger, 2, "SignerUnknown"),
    "no signature": (_unsigned, 2, "SignatureMissing"),
    "a message changed after signing": (_signature_of_another, 2, "SignatureInvalid"),
    "a re-dated commit": (_redated, 2, "WrongDate"),
    "dates that run backwards": (_backwards, 2, "TimeRunsBackwards"),
    "a grafted foreign branch": (_foreign_branch, 2, "WrongPrevious"),
    "a replaced object": (_replaced, 2, "ReplacedObject"),
    "a branch set back and written anew": (_rewound, 2, "BranchRewritten"),
    "another desired commit": (_other_desired, 2, "WrongDesired"),
    "a forged digest of inputs": (_digest_forged, 2, "InputsDiffer"),
    "a trailer twice": (
        lambda r: r.rewrite(2, Change(message=in_message(r"^(Epoch: 1)$", r"\1\nEpoch: 1"))),
        2,
        "TrailerCount",
    ),
    "a trailer that lies": (
        lambda r: r.rewrite(2, Change(message=in_message(r"^Generation: 2$", "Generation: 3"))),
        2,
        "TrailerDiffers",
    ),
    "a file that is not ours": (lambda r: r.rewrite(2, Change(files=adding({"notes.txt": b"x"}))), 2, "ForeignPath"),
    "a receipt for a decision that did not exist": (_receipt_of_no_decision, 2, "ReceiptTooEarly"),
    "a receipt for what was never ordered": (_receipt_of_no_order, 2, "ReceiptUnknown"),
    "an overwritten file": (_damaged_blob, 2, "ForgedObject"),
    "an overwritten folder": (_damaged_tree, 6, "ForgedObject"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_found_and_the_first_bad_generation_named(lab: Lab, name: str) -> None:
    plant, position, code = TAMPERINGS[name]
    plant(Rewriter(lab))
    result = verdict(lab)
    assert (position, code) in [(one.position, one.code) for one in result.findings]
    assert result.first_bad is not None
    assert result.first_bad.position == position


@pytest.fixture
def young(tmp_path: Path, writer: Writer) -> Lab:
    """A lab whose record has not begun."""
    return Lab(folder=tmp_path, remote=new_repository(tmp_path / "remote.git"), writer=writer)


def test_a_revoked_key_signs_nothing_more(young: Lab) -> None:
    young.begin(**jobs("sft"), **{TRUST: line(young.writer)})
    young.desk().settle()
    young.desire({REVOKED: young.writer.signer.public_key() + "\n", **jobs("two")})
    young.desk("a").settle()
    # Generation 4 answers the revocation; its parent still trusts the key.
    assert found(young) == [(at, "SignerRevoked") for at in range(5, len(young.numbers()))]


def test_the_key_of_somebody_else_is_the_wrong_principal(young: Lab) -> None:
    ada = Writer(identity="gangops <gangops@lab>", signer=make_key(young.folder / "ada", "ada"))
    young.begin(**jobs("sft"), **{TRUST: line(young.writer) + line(ada, "ada@lab")})
    young.writer, real = ada, young.writer
    young.desk().round()
    young.writer = real
    assert found(young) == [(1, "WrongPrincipal")]


def test_a_key_that_had_expired_when_the_decision_was_made(young: Lab) -> None:
    young.begin(**jobs("sft"), **{TRUST: line(young.writer, options=',valid-before="20260101010000Z"')})
    young.desk().settle()
    young.clock.advance(2 * HOUR)
    young.desire(jobs("two"))
    young.desk("a").round()
    assert found(young) == [(4, "SignerExpired")]


def test_a_commit_cannot_vouch_for_its_own_key(young: Lab) -> None:
    young.begin(**jobs("sft"), **{TRUST: line(young.writer)})
    evil = Writer(identity="gangops <gangops@lab>", signer=make_key(young.folder / "evil", "evil"))
    real = young.writer
    young.desire({TRUST: line(real) + line(evil)})
    young.writer = evil
    young.desk().round()
    young.writer = real
    assert found(young) == [(1, "SignerUnknown")]


def test_a_lost_commit_that_was_written_down(lab: Lab) -> None:
    tip = lab.tip
    git(lab.remote.path, "update-ref", STATE, Rewriter(lab).chain()[4].id)
    assert found(lab) == []  # a branch that was only set back is sound in itself
    assert found(lab, Bounds(contains=(tip,))) == [(4, "BranchRewritten")]


def test_another_root_than_the_one_that_was_pinned(lab: Lab) -> None:
    assert found(lab, Bounds(root="0123456789ab")) == [(0, "OtherRoot")]


def test_a_shallow_clone_proves_nothing_of_what_it_lacks(lab: Lab, tmp_path: Path) -> None:
    git(
        tmp_path,
        "clone",
        "-q",
        "--bare",
        "--depth",
        "3",
        "--branch",
        "allocations",
        f"file://{lab.remote.path}",
        "shallow",
    )
    shallow = Repository(tmp_path / "shallow").git
    codes = {one.code for one in verify(shallow, lab.tip, signers=line(lab.writer).encode()).findings}
    assert "ChainCut" in codes


def test_a_longer_life_with_losses_and_evictions_verifies(young: Lab) -> None:
    young.begin(**jobs("sft", gpus=16), **{TRUST: line(young.writer)})
    desk = young.desk()
    desk.settle()
    young.desire({job_file("big"): job_text("big", 32, more="  priorityClass: production\n")})
    desk.settle()
    desk.engine.cluster.lose("gpu-001")
    young.clock.advance(400 * SECOND)
    desk.settle()
    desk.engine.cluster.reboot("gpu-001")
    desk.settle()
    young.desire({job_file("big"): None})
    desk.settle()
    result = verdict(young)
    assert result.findings == []
    assert len(result.judged) > 12
