"""Who signed this commit? SSH signatures of commit objects, made and checked with ssh-keygen alone.

A signature covers the commit object without its one `gpgsig` header, byte for byte. Exit statuses decide, words
never do: with a wrong key ssh-keygen prints "Good signature" all the same. Which principals may sign what,
and whether ancestors are signed too, is left to the audit.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from reconciler.errors import StoreError
from reconciler.store.child import Ended, program, run_bounded

NAMESPACE = "git"
_SECONDS = 30
_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "HOME": os.devnull, "SSH_ASKPASS_REQUIRE": "never"}
_PUBLIC_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+(?: .*)?")
_VALIDITY = re.compile(r',valid-(?:after|before)="[^"\n]*"|(?<= )valid-(?:after|before)="[^"\n]*",?', re.IGNORECASE)
_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A private key without passphrase that signs commits. The key itself never enters this process."""

    key: Path

    def sign(self, payload: bytes, namespace: str = NAMESPACE) -> str:
        """The armoured signature of a commit payload, or of something else in a namespace of its own.

        Raises StoreError(SigningFailed).
        """
        done = _ssh_keygen("-Y", "sign", "-n", namespace, "-f", str(self.key), stdin=payload)
        if done.status != 0 or not done.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
            raise StoreError(
                f"signing with {self.key.name} failed: {_last_line(done.stderr)}",
                code="SigningFailed",
                remedy="The key must exist, belong to this user with mode 0600, and have no passphrase.",
            )
        return done.stdout.decode("ascii")

    def public_key(self) -> str:
        """The public half as one line of text. Raises StoreError(SigningFailed)."""
        done = _ssh_keygen("-y", "-f", str(self.key))
        if done.status != 0:
            raise StoreError(f"{self.key.name} cannot be read: {_last_line(done.stderr)}", code="SigningFailed")
        return done.stdout.decode("utf-8", "replace").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A good signature: by whom, and with which key (`SHA256:...`, as ssh-keygen prints it)."""

    principal: str
    fingerprint: str


def make_key(path: Path, comment: str) -> Signer:
    """A fresh ed25519 key at `path` (and `path`.pub). Raises StoreError(SigningFailed), also when one exists."""
    if path.exists():
        raise StoreError(f"{path.name} exists already; it was left alone", code="SigningFailed")
    path.parent.mkdir(parents=True, exist_ok=True)
    done = _ssh_keygen("-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path))
    if done.status != 0:
        raise StoreError(f"no key could be made: {_last_line(done.stderr)}", code="SigningFailed")
    return Signer(key=path)


def allowed_signers_line(principal: str, public_key: str) -> str:
    """One line of an allowed_signers file: this principal may sign commits with this key, and nothing else.

    Raises StoreError(SignerUnknown) when either could smuggle in options or a second line.
    """
    if not _PRINCIPAL.fullmatch(principal) or not _PUBLIC_KEY.fullmatch(public_key.strip()):
        raise StoreError(f"{principal[:60]!r} and its key make no allowed_signers line", code="SignerUnknown")
    algorithm, key = public_key.split()[:2]
    return f'{principal} namespaces="{NAMESPACE}" {algorithm} {key}\n'


def split_signature(commit: bytes) -> tuple[bytes, str]:
    """A commit object without its signature, and the signature.

    Raises: StoreError(SignatureMissing), and StoreError(SignatureInvalid) for a second signature header of any
    kind: which of two counts is a question better not asked.
    """
    head, gap, message = commit.partition(b"\n\n")
    kept: list[bytes] = []
    signature: list[bytes] = []
    inside = False
    seen = 0
    for line in head.split(b"\n"):
        if line.startswith(b"gpgsig"):
            if not line.startswith(b"gpgsig "):
                raise _invalid("it has a signature header of another kind")
            seen += 1
            inside = True
            signature.append(line.removeprefix(b"gpgsig "))
        elif inside and line.startswith(b" "):
            signature.append(line[1:])
        else:
            inside = False
            kept.append(line)
    if seen == 0:
        raise StoreError("the commit is not signed", code="SignatureMissing", remedy="Only signed state counts.")
    if seen > 1:
        raise _invalid("it is signed more than once")
    return b"\n".join(kept) + gap + message, (b"\n".join(signature) + b"\n").decode("ascii", "replace")


def verify(commit: bytes, allowed_signers: Path, revoked: Path | None = None) -> Verified:
    """Who signed a commit object, according to a list of allowed signers and a list of revoked keys.

    Validity dates of keys are compared with the date in the commit, as git does. Raises StoreError with code
    SignatureMissing, SignatureInvalid, SignerUnknown or SignerRevoked.
    """
    payload, signature = split_signature(commit)
    if not allowed_signers.is_file() or (revoked is not None and not revoked.is_file()):
        raise StoreError("the list of allowed or revoked signers is missing", code="SignerUnknown")
    fingerprint = _fingerprint(signature)
    with tempfile.TemporaryDirectory(prefix="gangops-verify-") as folder:
        file = Path(folder, "signature")
        file.write_text(signature, encoding="ascii", errors="replace")
        when = f"-Overify-time={_commit_time(payload)}"
        found = _ssh_keygen("-Y", "find-principals", "-s", str(file), "-f", str(allowed_signers), when)
        principals = found.stdout.decode("utf-8", "replace").replace(",", "\n").split() if found.status == 0 else []
        for principal in principals:
            arguments = [
                "-Y",
                "verify",
                "-n",
                NAMESPACE,
                "-I",
                principal,
                "-f",
                str(allowed_signers),
                "-s",
                str(file),
                when,
            ]
            if _ssh_keygen(*arguments, stdin=payload).status != 0:
                continue
            if revoked is not None and _ssh_keygen(*arguments, "-r", str(revoked), stdin=payload).status != 0:
                raise StoreError(f"the key {fingerprint} of {principal} is revoked", code="SignerRevoked")
            return Verified(principal=principal, fingerprint=fingerprint)
    if principals:
        raise _invalid("it does not match the content, or the key may not sign commits")
    raise StoreError(
        f"the key {fingerprint} is not among the allowed signers",
        code="SignerUnknown",
        remedy="Add its line to allowed_signers through a pull request, if it should be.",
    )


def signed_by(commit: bytes, principal: str, allowed_signers: Path, revoked: Path | None = None) -> Verified:
    """A good signature by exactly this principal, at the date the commit bears: one ssh-keygen when all is well.

    Raises StoreError: SignatureMissing, SignatureInvalid, SignerUnknown, SignerRevoked; SignerExpired when the key
    was not valid at that date, WrongPrincipal when it belongs to another one.
    """
    payload, signature = split_signature(commit)
    fingerprint = _fingerprint(signature)
    if not _PRINCIPAL.fullmatch(principal):
        raise StoreError(f"{principal[:60]!r} is no principal", code="WrongPrincipal")
    when = f"-Overify-time={_commit_time(payload)}"
    with tempfile.TemporaryDirectory(prefix="gangops-verify-") as folder:
        file = Path(folder, "signature")
        file.write_text(signature, encoding="ascii", errors="replace")
        check = ["-Y", "verify", "-n", NAMESPACE, "-I", principal, "-f", str(allowed_signers), "-s", str(file)]
        refusing = ["-r", str(revoked)] if revoked is not None else []
        if _ssh_keygen(*check, when, *refusing, stdin=payload).status == 0:
            return Verified(principal=principal, fingerprint=fingerprint)
        if _ssh_keygen("-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(file), stdin=payload).status != 0:
            raise _invalid("it does not match the content")
        if _ssh_keygen(*check, when, stdin=payload).status == 0:
            raise StoreError(f"the key {fingerprint} of {principal} is revoked", code="SignerRevoked")
        ageless = Path(folder, "ageless")
        lists = allowed_signers.read_text("utf-8", "replace")
        ageless.write_text(_VALIDITY.sub("", _VALIDITY.sub("", lists)), encoding="utf-8")
        check[check.index(str(allowed_signers))] = str(ageless)
        if _ssh_keygen(*check, stdin=payload).status == 0:
            raise StoreError(
                f"the key {fingerprint} of {principal} was not valid at the commit's date", code="SignerExpired"
            )
        found = _ssh_keygen("-Y", "find-principals", "-s", str(file), "-f", str(ageless))
        others = found.stdout.decode("utf-8", "replace").split() if found.status == 0 else []
    if others:
        raise StoreError(f"the key {fingerprint} is that of {others[0]}, not of {principal}", code="WrongPrincipal")
    raise StoreError(f"the key {fingerprint} is not among the allowed signers", code="SignerUnknown")


def _ssh_keygen(*arguments: str, stdin: bytes = b"") -> Ended:
    ended = run_bounded(
        [program("ssh-keygen", package="openssh-client"), *arguments], _ENVIRONMENT, stdin=stdin, seconds=_SECONDS
    )
    if ended.timed_out:
        raise StoreError(f"ssh-keygen did not end within {_SECONDS} s", code="SigningFailed")
    return ended


def fingerprint_of(signature: str) -> str:
    """The key that made an armoured signature, as `SHA256:...`. Raises StoreError(SignatureInvalid)."""
    return _fingerprint(signature)


def _fingerprint(signature: str) -> str:
    """The fingerprint of the key inside an armoured SSH signature (PROTOCOL.sshsig: magic, version, key, ...)."""
    try:
        body = base64.b64decode("".join(signature.split("\n")[1:-2]), validate=True)
        magic, version, length = struct.unpack_from(">6sII", body)
        key = body[14 : 14 + length]
    except (binascii.Error, struct.error, ValueError) as err:
        raise _invalid("it is no SSH signature") from err
    if magic != b"SSHSIG" or version != 1 or len(key) != length:
        raise _invalid("it is no SSH signature")
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _commit_time(payload: bytes) -> str:
    """The committer date as ssh-keygen wants it; TZ is UTC there."""
    match = re.search(rb"^committer .* (\d{1,11}) [+-]\d{4}$", payload, re.MULTILINE)
    if match is None:
        raise _invalid("it has no committer date")
    return time.strftime("%Y%m%d%H%M%S", time.gmtime(int(match[1])))


def _invalid(why: str) -> StoreError:
    return StoreError(f"the signature of the commit is not valid: {why}", code="SignatureInvalid")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1][:200]
