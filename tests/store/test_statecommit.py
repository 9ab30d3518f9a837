"""State commits: the same inputs give the same id, and git itself agrees with every part of them."""

from __future__ import annotations

from pathlib import Path
from subprocess import check_output, run

import pytest

from reconciler.errors import BrokenInvariant, StoreError
from reconciler.store.history import commit_meta, paths_at
from reconciler.store.objects import raw_commit
from reconciler.store.signatures import (
    Signer,
    Verified,
    allowed_signers_line,
    make_key,
    split_signature,
    verify,
)
from reconciler.store.statecommit import Message, Writer, build, build_on
from tests.store.world import NOW, Desk, Repository, git, message, text


@pytest.fixture
def desired(remote: Repository, desk: Desk) -> str:
    commit = remote.commit({"cluster-state/cluster.yaml": b"kind: ClusterConfig\n", "run.sh": ("100755", b"x")})
    desk.mirror.fetch()
    return commit


@pytest.fixture
def allowed(desk: Desk, tmp_path: Path) -> Path:
    path = tmp_path / "allowed_signers"
    path.write_text(allowed_signers_line("reconciler@lab", desk.writer.signer.public_key()))
    return path


def test_desired_tree_is_grafted_with_its_own_id_and_parents_are_record_then_desired(desk: Desk, desired: str) -> None:
    clone = desk.mirror.folder
    first = desk.first(desired)
    second = desk.next(first, desired, 1)
    assert text(clone, "rev-parse", f"{second}:desired") == text(clone, "rev-parse", f"{desired}^{{tree}}")
    assert commit_meta(desk.mirror.git, second).parents == (first, desired)
    assert commit_meta(desk.mirror.git, first).parents == ()
    assert text(clone, "log", "-1", "--format=%at %ct %an %ae", second) == "1767225600 1767225600 gangops gangops@lab"
    git(clone, "fsck", "--strict", "--no-dangling", second)


def test_git_reads_the_same_trailers_as_we_wrote(desk: Desk, desired: str) -> None:
    first = desk.first(desired)
    told = text(desk.mirror.folder, "log", "-1", "--format=%(trailers:only,unfold)", first)
    assert told.splitlines() == ["Generation: 0", "Epoch: 1", "Cluster-Id: lab"]
    assert commit_meta(desk.mirror.git, first).trailers == (("Generation", "0"), ("Epoch", "1"), ("Cluster-Id", "lab"))


def test_same_inputs_give_the_same_commit_id_in_another_clone(desk: Desk, other_desk: Desk, desired: str) -> None:
    other_desk.mirror.fetch()
    changes = {"allocation/b": b"2", "allocation/a": b"1"}
    mine = desk.next(desk.first(desired), desired, 1, changes)
    theirs = other_desk.next(other_desk.first(desired), desired, 1, dict(reversed(changes.items())))
    assert mine == theirs


def test_whole_and_incremental_build_agree(desk: Desk, desired: str) -> None:
    clone, writer = desk.mirror.git, desk.writer
    files = {"allocation/summary.yaml": b"1\n", "allocation/jobs/a/b.yaml": b"b\n", "observed/nodes/r/n.yaml": b"n\n"}
    first = build(clone, files, parent=None, desired=desired, message=message(0), at=NOW, writer=writer)
    changes = {"allocation/summary.yaml": b"2\n", "observed/nodes/r/n.yaml": None, "allocation/jobs/a": b"now a file\n"}
    step = build_on(clone, changes, parent=first, desired=desired, message=message(1), at=NOW, writer=writer)
    whole = {"allocation/summary.yaml": b"2\n", "allocation/jobs/a": b"now a file\n"}
    anew = build(clone, whole, parent=first, desired=desired, message=message(1), at=NOW, writer=writer)
    assert step == anew
    assert paths_at(clone, step) == (
        "allocation/jobs/a", "allocation/summary.yaml", "desired/cluster-state/cluster.yaml", "desired/run.sh",
    )  # fmt: skip


def test_files_of_an_earlier_desired_tree_do_not_linger(desk: Desk, remote: Repository, desired: str) -> None:
    first = desk.first(desired)
    later = remote.commit({"cluster-state/other.yaml": b"x\n"}, parent=desired)
    desk.mirror.fetch()
    second = desk.next(first, later, 1)
    assert paths_at(desk.mirror.git, second, "desired") == ("desired/cluster-state/other.yaml",)


def test_contents_of_any_bytes_arrive_as_they_are(desk: Desk, desired: str) -> None:
    odd = {
        "allocation/a": b"",
        "allocation/b": b"\n\ndone\nM 100644 inline x\n\x00\xff",
        "frozen/grün und blau.yaml": b"x",
    }
    commit = desk.next(desk.first(desired), desired, 1, odd)
    for path, content in odd.items():
        assert git(desk.mirror.folder, "cat-file", "blob", f"{commit}:{path}") == content


def test_building_leaves_no_ref_behind(desk: Desk, desired: str) -> None:
    before = text(desk.mirror.folder, "for-each-ref")
    desk.first(desired)
    assert text(desk.mirror.folder, "for-each-ref") == before


@pytest.mark.parametrize(
    "path", ["desired/x", "desired", "../x", "/x", "a//b", "a/", "a/.git/b", "a/./b", "a\nb", '"a"', ""]
)
def test_paths_we_must_never_write_are_our_own_bug(desk: Desk, desired: str, path: str) -> None:
    first = desk.first(desired)
    with pytest.raises(BrokenInvariant):
        desk.next(first, desired, 1, {path: b"x"})


@pytest.mark.parametrize(
    ("subject", "body", "trailers"),
    [
        ("s", "Generation: 8", {"Generation": "7"}),
        ("s", "placed\n  generation: 8", {"Generation": "7"}),
        ("Generation: 8", "", {"Generation": "7"}),
        ("two\nlines", "", {"Generation": "7"}),
        ("s", "", {"Generation": "7\nEpoch: 9"}),
        ("s", "", {"Generation": ""}),
        ("s", "", {"no key": "7"}),
        ("", "", {"Generation": "7"}),
    ],
)
def test_message_that_could_be_read_in_two_ways_is_our_own_bug(
    subject: str, body: str, trailers: dict[str, str]
) -> None:
    with pytest.raises(BrokenInvariant):
        Message(subject=subject, body=body, trailers=trailers)


def test_unknown_desired_commit_is_an_error(desk: Desk, desired: str) -> None:
    first = desk.first(desired)
    with pytest.raises(StoreError):
        desk.next(first, "1" * 40, 1)


# -- signatures


def test_git_accepts_our_signature_and_we_agree_on_the_signer(desk: Desk, desired: str, allowed: Path) -> None:
    commit = desk.next(desk.first(desired), desired, 1)
    git(
        desk.mirror.folder,
        "-c",
        f"gpg.ssh.allowedSignersFile={allowed}",
        "-c",
        "gpg.format=ssh",
        "verify-commit",
        commit,
    )
    verified = verify(raw_commit(desk.mirror.git, commit), allowed)
    listed = desk.writer.signer.key.with_name("signing.pub")
    fingerprint = check_output(["ssh-keygen", "-lf", str(listed)], text=True).split()[1]
    assert verified == Verified(principal="reconciler@lab", fingerprint=fingerprint)


def test_we_accept_a_commit_that_git_signed(desk: Desk, desired: str, allowed: Path) -> None:
    clone = desk.mirror.folder
    tree = text(clone, "rev-parse", f"{desired}^{{tree}}")
    key = desk.writer.signer.key
    commit = text(
        clone, "-c", "user.name=T", "-c", "user.email=t@t", "-c", "gpg.format=ssh", "-c", f"user.signingKey={key}",
        "commit-tree", "-S", "-m", "by git", tree,
    )  # fmt: skip
    assert verify(raw_commit(desk.mirror.git, commit), allowed).principal == "reconciler@lab"


def code_of(commit: bytes, allowed: Path, revoked: Path | None = None) -> str:
    with pytest.raises(StoreError) as caught:
        verify(commit, allowed, revoked)
    return caught.value.code


def test_every_changed_byte_outside_the_signature_is_noticed(desk: Desk, desired: str, allowed: Path) -> None:
    raw = raw_commit(desk.mirror.git, desk.first(desired))
    verify(raw, allowed)
    for old, new in (
        (b"Generation: 0", b"Generation: 1"),
        (b"1767225600 +0000\ngpgsig", b"1767225601 +0000\ngpgsig"),
        (b"tree ", b"tree  "),
    ):
        assert old in raw
        assert code_of(raw.replace(old, new), allowed) == "SignatureInvalid"
    assert code_of(raw + b"\n", allowed) == "SignatureInvalid"


def test_signature_headers_must_be_one_and_of_the_known_kind(desk: Desk, desired: str, allowed: Path) -> None:
    raw = raw_commit(desk.mirror.git, desk.first(desired))
    payload, signature = split_signature(raw)
    folded = signature.rstrip("\n").replace("\n", "\n ").encode()
    head, gap, body = payload.partition(b"\n\n")
    assert code_of(payload, allowed) == "SignatureMissing"
    assert code_of(head + b"\ngpgsig " + folded + b"\ngpgsig " + folded + gap + body, allowed) == "SignatureInvalid"
    assert code_of(head + b"\ngpgsig-sha256 " + folded + gap + body, allowed) == "SignatureInvalid"
    assert code_of(raw.replace(b"\ngpgsig ", b"\ngpgsig-sha256 x\ngpgsig "), allowed) == "SignatureInvalid"
    assert code_of(head + b"\ngpgsig garbage" + gap + body, allowed) == "SignatureInvalid"


def test_header_in_the_message_is_no_signature(allowed: Path) -> None:
    commit = b"tree x\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\ngpgsig -----BEGIN SSH SIGNATURE-----\n"
    assert code_of(commit, allowed) == "SignatureMissing"


def test_unknown_revoked_and_expired_keys_are_told_apart(
    desk: Desk, desired: str, allowed: Path, tmp_path: Path
) -> None:
    raw = raw_commit(desk.mirror.git, desk.first(desired))
    public = desk.writer.signer.public_key()
    stranger = make_key(tmp_path / "stranger", "x").public_key()
    empty, others, old = tmp_path / "empty", tmp_path / "others", tmp_path / "old"
    empty.write_text("")
    others.write_text(allowed_signers_line("other@lab", stranger))
    old.write_text(f'reconciler@lab namespaces="git",valid-before="20251231" {" ".join(public.split()[:2])}\n')
    assert code_of(raw, empty) == "SignerUnknown"
    assert code_of(raw, others) == "SignerUnknown"
    assert code_of(raw, old) == "SignerUnknown"
    assert code_of(raw, tmp_path / "absent") == "SignerUnknown"
    revoked = tmp_path / "revoked"
    revoked.write_text(f"{stranger}\n")
    assert verify(raw, allowed, revoked).principal == "reconciler@lab"
    revoked.write_text(f"{public}\n")
    assert code_of(raw, allowed, revoked) == "SignerRevoked"
    assert code_of(raw, allowed, tmp_path / "absent") == "SignerUnknown"


def test_key_for_another_purpose_may_not_sign_commits(desk: Desk, desired: str, tmp_path: Path) -> None:
    raw = raw_commit(desk.mirror.git, desk.first(desired))
    file_only = tmp_path / "file_only"
    file_only.write_text(f'reconciler@lab namespaces="file" {desk.writer.signer.public_key()}\n')
    assert code_of(raw, file_only) in {"SignatureInvalid", "SignerUnknown"}


def test_allowed_signers_line_cannot_be_smuggled_into(desk: Desk) -> None:
    public = desk.writer.signer.public_key()
    assert allowed_signers_line("a@b", public).startswith('a@b namespaces="git" ssh-ed25519 ')
    for principal, key in (("a b", public), ("*", public), ("a\nb", public), ("a", f"{public}\n* {public}"), ("a", "")):
        with pytest.raises(StoreError):
            allowed_signers_line(principal, key)


def test_signing_without_a_usable_key_is_an_error_and_asks_nobody(desk: Desk, desired: str, tmp_path: Path) -> None:
    make_key(tmp_path / "locked", "x")
    run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(tmp_path / "locked")],
        check=True,
        capture_output=True,
    )
    for key in (tmp_path / "absent", tmp_path / "locked"):
        writer = Writer(identity="gangops <gangops@lab>", signer=Signer(key=key))
        with pytest.raises(StoreError) as caught:
            build(desk.mirror.git, {"a": b""}, parent=None, desired=desired, message=message(0), at=NOW, writer=writer)
        assert caught.value.code == "SigningFailed"


def test_existing_key_is_never_overwritten(tmp_path: Path) -> None:
    make_key(tmp_path / "key", "x")
    before = (tmp_path / "key").read_bytes()
    with pytest.raises(StoreError):
        make_key(tmp_path / "key", "x")
    assert (tmp_path / "key").read_bytes() == before
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
