"""Orders that must not be believed, each broken in one link of the chain; the commits are real git's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.agent.verify import NOTHING, Accepted, RefusedOrder, Trust, check_signers, object_id, verify
from reconciler.wire import Proof

from .conftest import CLUSTER, NODE, PRINCIPAL, RACK, StateRepo, make_key

FILE = b'{"attempts":[],"formatVersion":"1.0","node":"gpu-001"}\n'


def refusal(proof: Proof, trust: Trust, held: Accepted = NOTHING) -> str:
    with pytest.raises(RefusedOrder) as caught:
        verify(proof, trust, held)
    return caught.value.code


def signature(payload: bytes, key: Path, namespace: str = "git") -> bytes:
    command = ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", str(key)]
    armour = subprocess.run(command, input=payload, capture_output=True, check=True).stdout
    return armour.rstrip(b"\n").replace(b"\n", b"\n ")


def resigned(proof: Proof, head: bytes, message: bytes, signed: bytes) -> Proof:
    """The proof with another commit: `head` with a signature header `signed`, then the message."""
    raw = head + signed + b"\n\n" + message
    return replace(proof, commit=raw, commitId=object_id("commit", raw))


def parts_of(proof: Proof) -> tuple[bytes, bytes]:
    """Headers before the signature, and the message."""
    head, _, message = proof.commit.partition(b"\n\n")
    return head[: head.index(b"gpgsig")], message


def with_message(repo: StateRepo, proof: Proof, message: str) -> Proof:
    head, _ = parts_of(proof)
    return resigned(proof, head, message.encode(), b"gpgsig " + signature(head + b"\n" + message.encode(), repo.key))


def test_a_signed_order_of_this_node_is_accepted(repo: StateRepo) -> None:
    proof = repo.proof(FILE, 7, epoch=2)
    accepted, orders = verify(proof, repo.trust, NOTHING)
    assert accepted == Accepted(2, 7, proof.commitId, FILE)
    assert (orders.node, orders.attempts) == (NODE, [])
    assert verify(proof, repo.trust, accepted)[0] == accepted, "the same once more"


@pytest.mark.parametrize(
    ("held", "code"),
    [((1, 8), "OlderOrder"), ((2, 1), "OlderOrder"), ((1, 7), "OlderOrder"), ((1, 6), ""), ((0, 900), "")],
    ids=["older generation", "older epoch", "same number, another commit", "newer generation", "newer epoch"],
)
def test_epoch_and_generation_never_go_back(repo: StateRepo, held: tuple[int, int], code: str) -> None:
    proof, before = repo.proof(FILE, 7), Accepted(held[0], held[1], "f" * 40, b"{}")
    if code:
        assert refusal(proof, repo.trust, before) == code
    else:
        assert verify(proof, repo.trust, before)[0].generation == 7


Break = Callable[[StateRepo, Proof], Proof]


def _two_signatures(repo: StateRepo, proof: Proof) -> Proof:
    head, message = parts_of(proof)
    signed = b"gpgsig " + signature(head + b"\n" + message, repo.key)
    return resigned(proof, head, message, signed + b"\n" + signed)


def _sha256_signature(repo: StateRepo, proof: Proof) -> Proof:
    head, message = parts_of(proof)
    signed = b"gpgsig " + signature(head + b"\n" + message, repo.key)
    return resigned(proof, head, message, signed + b"\n" + signed.replace(b"gpgsig ", b"gpgsig-sha256 ", 1))


def _only_sha256_signature(repo: StateRepo, proof: Proof) -> Proof:
    head, message = parts_of(proof)
    return resigned(proof, head, message, b"gpgsig-sha256 " + signature(head + b"\n" + message, repo.key))


def _another_header(repo: StateRepo, proof: Proof) -> Proof:
    head, message = parts_of(proof)
    head += b"encoding latin-1\n"
    return resigned(proof, head, message, b"gpgsig " + signature(head + b"\n" + message, repo.key))


def _two_trees(repo: StateRepo, proof: Proof) -> Proof:
    head, message = parts_of(proof)
    head = head.split(b"\n", 1)[0] + b"\n" + head
    return resigned(proof, head, message, b"gpgsig " + signature(head + b"\n" + message, repo.key))


def _other_namespace(repo: StateRepo, proof: Proof) -> Proof:
    head, message = parts_of(proof)
    return resigned(proof, head, message, b"gpgsig " + signature(head + b"\n" + message, repo.key, "file"))


def _header_after_signature(repo: StateRepo, proof: Proof) -> Proof:
    head, message = parts_of(proof)
    signed = b"gpgsig " + signature(head + b"\n" + message, repo.key)
    return resigned(proof, head, message, signed + b"\nparent " + b"0" * 40)


def _unsigned(repo: StateRepo, proof: Proof) -> Proof:
    head, message = parts_of(proof)
    return resigned(proof, head.rstrip(b"\n"), message, b"")


def _pgp(repo: StateRepo, proof: Proof) -> Proof:
    head, message = parts_of(proof)
    return resigned(proof, head, message, b"gpgsig -----BEGIN PGP SIGNATURE-----\n aaaa\n -----END PGP SIGNATURE-----")


def _changed_message(repo: StateRepo, proof: Proof) -> Proof:
    raw = proof.commit.replace(b"Generation: 5", b"Generation: 9")
    return replace(proof, commit=raw, commitId=object_id("commit", raw))


def _entry_twice(repo: StateRepo, proof: Proof) -> Proof:
    """A leaf tree that names the node's file twice, with everything above it hashed and signed anew."""
    own = proof.trees[3].index(b"100644 gpu-001.json")
    trees = [*proof.trees[:3], proof.trees[3] + proof.trees[3][own : own + 40]]
    for step, name in ((2, RACK), (1, "nodes"), (0, "allocation")):
        at = trees[step].index(name.encode() + b"\0") + len(name) + 1
        below = bytes.fromhex(object_id("tree", trees[step + 1]))
        trees[step] = trees[step][:at] + below + trees[step][at + 20 :]
    head, message = parts_of(proof)
    head = b"tree " + object_id("tree", trees[0]).encode() + head[45:]
    signed = resigned(proof, head, message, b"gpgsig " + signature(head + b"\n" + message, repo.key))
    return replace(signed, trees=trees)


TRAPS: list[tuple[str, Break, str]] = [
    ("the file was changed", lambda _, p: replace(p, file=FILE.replace(b"[]", b"[1]")), "WrongBlob"),
    (
        "the commit was changed",
        lambda _, p: replace(p, commit=p.commit.replace(b"state 5", b"state 6")),
        "WrongCommitId",
    ),
    ("the commit was changed and hashed anew", _changed_message, "BadSignature"),
    ("signed by another key", lambda r, p: r.proof(FILE, 5, key=make_key(r.folder, "thief")), "BadSignature"),
    ("signed in another namespace", _other_namespace, "BadSignature"),
    ("not signed", _unsigned, "UnsignedCommit"),
    ("a PGP signature", _pgp, "UnsupportedSignature"),
    ("a sha256 signature besides", _sha256_signature, "UnsupportedSignature"),
    ("a sha256 signature alone", _only_sha256_signature, "UnsupportedSignature"),
    ("two signatures", _two_signatures, "OddCommit"),
    ("a header we never write", _another_header, "OddCommit"),
    ("two trees", _two_trees, "OddCommit"),
    ("a header behind the signature", _header_after_signature, "OddCommit"),
    ("another cluster", lambda r, p: with_message(r, p, r.message(5, cluster="prod")), "NotOurCluster"),
    ("a generation twice", lambda r, p: with_message(r, p, r.message(5) + "Generation: 6\n"), "BadTrailers"),
    ("twice in another case", lambda r, p: with_message(r, p, r.message(5) + "GENERATION: 6\n"), "BadTrailers"),
    ("no epoch", lambda r, p: with_message(r, p, r.message(5).replace("Epoch: 1\n", "")), "BadTrailers"),
    ("trailers above the last paragraph", lambda r, p: with_message(r, p, r.message(5) + "\nNote: x\n"), "BadTrailers"),
    ("prose among the trailers", lambda r, p: with_message(r, p, r.message(5) + "and so on\n"), "BadTrailers"),
    ("a number in disguise", lambda r, p: with_message(r, p, r.message(5).replace(": 5", ": 05")), "BadTrailers"),
    ("a tree left out", lambda _, p: replace(p, trees=p.trees[:3]), "WrongPath"),
    ("a tree of another commit", lambda _, p: replace(p, trees=[p.trees[1], *p.trees[1:]]), "WrongTree"),
    ("a tree cut short", lambda _, p: replace(p, trees=[*p.trees[:3], p.trees[3][:-1]]), "WrongTree"),
    ("a file named twice in its tree", _entry_twice, "WrongPath"),
    ("another node's file", lambda r, _: r.proof(FILE, 5, node="gpu-002"), "WrongPath"),
    ("another folder", lambda r, _: r.proof(FILE, 5, path=("desired", "nodes", RACK)), "WrongPath"),
    ("a folder too deep", lambda r, _: r.proof(FILE, 5, path=("allocation", "nodes", RACK, "x")), "WrongPath"),
    ("a rack that is no name", lambda r, _: r.proof(FILE, 5, path=("allocation", "nodes", "R_1")), "WrongPath"),
    ("an executable file", lambda r, _: r.proof(FILE, 5, mode="100755"), "WrongMode"),
    ("a link", lambda r, _: r.proof(FILE, 5, mode="120000"), "WrongMode"),
    ("orders of another node", lambda r, _: r.proof(FILE.replace(b"001", b"002"), 5), "BadOrders"),
    ("orders of another format", lambda r, _: r.proof(FILE.replace(b"1.0", b"2.0"), 5), "BadOrders"),
    ("orders that are no JSON", lambda r, _: r.proof(b"{", 5), "BadOrders"),
]


@pytest.mark.parametrize(("broken", "code"), [t[1:] for t in TRAPS], ids=[t[0] for t in TRAPS])
def test_a_broken_chain_is_refused_by_name(repo: StateRepo, broken: Break, code: str) -> None:
    proof = repo.proof(FILE, 5)
    verify(proof, repo.trust, NOTHING)
    assert refusal(broken(repo, proof), repo.trust) == code


def why(proof: Proof, trust: Trust) -> tuple[str, str]:
    """Code and words of the refusal."""
    with pytest.raises(RefusedOrder) as caught:
        verify(proof, trust, NOTHING)
    return caught.value.code, caught.value.message


def test_a_key_of_another_principal_does_not_count(repo: StateRepo) -> None:
    assert refusal(repo.proof(FILE, 5), replace(repo.trust, principal="auditor@test")) == "BadSignature"


@pytest.mark.parametrize("form", ["list of keys", "key revocation list"])
def test_a_revoked_key_does_not_count(form: str, repo: StateRepo, tmp_path: Path) -> None:
    proof, revoked = repo.proof(FILE, 5), tmp_path / "revoked"
    revoked.write_text("")
    trust = replace(repo.trust, revoked=revoked)
    assert verify(proof, trust, NOTHING)[0].generation == 5
    public = repo.key.with_suffix(".pub")
    if form == "list of keys":
        revoked.write_text(public.read_text())
    else:
        subprocess.run(["ssh-keygen", "-q", "-k", "-f", revoked, public], check=True)
    code, words = why(proof, trust)
    assert (code, "the key is revoked" in words) == ("BadSignature", True)


def test_a_list_of_revoked_keys_that_is_not_there_revokes_all(repo: StateRepo, tmp_path: Path) -> None:
    assert refusal(repo.proof(FILE, 5), replace(repo.trust, revoked=tmp_path / "gone")) == "BadSignature"


@pytest.mark.parametrize(
    ("option", "words"), [('valid-before="20200101"', "key has expired"), ('valid-after="20990101"', "not yet valid")]
)
def test_a_key_counts_only_while_it_is_valid(option: str, words: str, repo: StateRepo) -> None:
    proof = repo.proof(FILE, 5)
    verify(proof, repo.trust, NOTHING)
    repo.signers.write_text(repo.signers.read_text().replace("namespaces", f"{option},namespaces"))
    code, told = why(proof, repo.trust)
    assert (code, words in told) == ("BadSignature", True)


def test_an_order_that_was_held_once_is_never_taken_again(repo: StateRepo) -> None:
    """A replay through a proxy: every earlier order is as well signed as the newest."""
    first, second = repo.proof(FILE, 5), repo.proof(FILE, 6)
    held, _ = verify(first, repo.trust, NOTHING)
    held, _ = verify(second, repo.trust, held)
    assert refusal(first, repo.trust, held) == "OlderOrder"


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3t7YyYw0cBqLqLrV9rWl6bWkQv0cPzYkQk0m3Vd5xk"


@pytest.mark.parametrize(
    "line",
    [
        f"{PRINCIPAL} {KEY}",
        f'{PRINCIPAL} {KEY} namespaces="git"',
        f'{PRINCIPAL} namespaces="git,file" {KEY}',
        f'{PRINCIPAL} namespaces="*" {KEY}',
        f'{PRINCIPAL} namespaces="git",namespaces="file" {KEY}',
        f'{PRINCIPAL} valid-after="20200101" {KEY}',
        "# nobody",
        "",
    ],
    ids=["none", "in the comment", "two", "any", "given twice", "another option", "a comment alone", "empty"],
)
def test_signers_without_exactly_the_git_namespace_are_not_trusted(line: str, repo: StateRepo) -> None:
    proof = repo.proof(FILE, 5)
    good = repo.signers.read_text() if line.startswith(PRINCIPAL) else ""
    repo.signers.write_text(f"{good}{line}\n")
    assert refusal(proof, repo.trust) == "UntrustedSigners"


def test_signers_may_have_options_and_comments_besides(repo: StateRepo) -> None:
    line = repo.signers.read_text().replace("namespaces", 'valid-after="20200101",namespaces')
    repo.signers.write_text(f"# the reconciler of {CLUSTER}\n\n{line}")
    check_signers(repo.signers)
    assert verify(repo.proof(FILE, 5), repo.trust, NOTHING)[0].generation == 5
