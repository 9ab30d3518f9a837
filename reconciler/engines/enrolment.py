"""Who may have a certificate, and who no longer? Tokens that are good once and not for long, and a list of the revoked.

All of it is files in the folder of the CA, so that the command line and the server need not know each other: `tokens/`
has a file for each token, named by its hash; `revoked` and `issued` have a line for each certificate. What is written
there holds at once, without a restart.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from reconciler.engines.certificates import CA_CERTIFICATE, ISSUED, append_line, not_writable, request_key, sign_request
from reconciler.errors import GangOpsError, NotFound, UsageError
from reconciler.model.units import SECOND, Instant, Nanoseconds, NodeName

TOKENS: Final = "tokens"
REVOKED: Final = "revoked"
LONGEST_TOKEN: Final = Nanoseconds(24 * 3600 * SECOND)
_SECRET_BYTES: Final = 20


class TokenRefused(GangOpsError):
    """A token that gives nothing. Codes: BadToken, TokenExpired, TokenUsed."""

    code = "BadToken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One node's token. `text` is the secret its agent is given; it names the node and the CA to expect."""

    node: NodeName
    text: str


def make_tokens(folder: Path, nodes: Sequence[NodeName], lifetime: Nanoseconds, now: Instant) -> tuple[Token, ...]:
    """A token for each node, good once and for so long; earlier ones of these nodes are good no more.

    Raises: UsageError (BadLifetime, NotWritable), NotFound (AuthorityMissing).
    """
    if not 0 < lifetime <= LONGEST_TOKEN:
        raise UsageError("a token lives for a second to a day", code="BadLifetime", remedy="such as --ttl 15m")
    fingerprint = authority_fingerprint(folder)
    tokens = folder / TOKENS
    found = []
    try:
        tokens.mkdir(mode=0o700, exist_ok=True)
        _sweep(tokens, set(nodes), now)
        for node in nodes:
            secret = secrets.token_hex(_SECRET_BYTES)
            append_line(tokens / _hash(secret), f"{node} {now + lifetime}\n")
            found.append(Token(node=node, text=f"{node}:{secret}:{fingerprint}"))
    except OSError as err:
        raise not_writable(tokens, err) from err
    return tuple(found)


def _sweep(tokens: Path, nodes: set[NodeName], now: Instant) -> None:
    """Remove what is over, and the earlier tokens of these nodes."""
    for path in tokens.iterdir():
        node, ends = _read_token(path)[:2]
        if ends <= now or node in nodes:
            path.unlink(missing_ok=True)


def authority_fingerprint(folder: Path) -> str:
    """SHA-256 of the CA's certificate: what an agent knows its server by at first. Raises: NotFound (AuthorityMissing)."""
    try:
        certificate = x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes())
    except (OSError, ValueError) as err:
        raise NotFound(
            f"{folder} holds no CA",
            code="AuthorityMissing",
            remedy="Make one with `gangops ca init FOLDER --cluster NAME`.",
        ) from err
    return certificate.fingerprint(hashes.SHA256()).hex()


def enroll(folder: Path, text: str, request: bytes, now: Instant) -> tuple[NodeName, bytes]:
    """The node a token is for, and its certificate in PEM, for the key of the request.

    The token is used up by the key: the same request may be sent again when its answer was lost.
    Raises: TokenRefused, RequestRefused, UsageError, NotFound.
    """
    said, _, rest = text.partition(":")
    path = folder / TOKENS / _hash(rest.partition(":")[0])
    node, ends, used_by = _read_token(path)
    if node is None or node != said:
        raise TokenRefused("this token was never given, or is over")
    if ends <= now:
        raise TokenRefused("this token has expired", code="TokenExpired")
    key = hashlib.sha256(request_key(request)).hexdigest()
    if used_by not in ("", key):
        raise TokenRefused("this token was used already, for another key", code="TokenUsed")
    certificate = sign_request(folder, node, request, now)
    if not used_by:
        append_line(path, f"{key}\n")
        if _read_token(path)[2] != key:  # somebody was quicker
            raise TokenRefused("this token was used already, for another key", code="TokenUsed")
    return node, certificate


def _read_token(path: Path) -> tuple[NodeName | None, int, str]:
    """Node, end, and the first key it was used for, "" when it was not; no node for a file that is none."""
    try:
        words = path.read_text(encoding="ascii").split()
        return NodeName(words[0]), int(words[1]), words[2] if len(words) > 2 else ""
    except (OSError, ValueError, IndexError):
        return None, 0, ""


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# --- revoking ---


def revoke(folder: Path, nodes: Iterable[str], now: Instant) -> dict[str, int]:
    """Revoke every certificate issued to the nodes that has not expired; how many that were, by node.

    A node without any is not an error: its tokens are taken back all the same. Raises: UsageError (NotWritable).
    """
    wanted, known = list(dict.fromkeys(nodes)), set(_lines(folder / REVOKED))
    found = dict.fromkeys(wanted, 0)
    for line in _lines(folder / ISSUED):
        serial, _, rest = line.partition(" ")
        name, _, ends = rest.partition(" ")
        if name in found and ends.isdigit() and int(ends) * SECOND > now:
            found[name] += 1
            if f"{serial} {name}" not in known:
                append_line(folder / REVOKED, f"{serial} {name}\n")
    with contextlib.suppress(FileNotFoundError):
        _sweep(folder / TOKENS, {NodeName(name) for name in wanted}, now)
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return []


class Revocations:
    """The list as the server asks it, read again whenever it changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / REVOKED
        self._seen: tuple[int, int, int] | None = None
        self._serials: frozenset[int] = frozenset()

    def is_revoked(self, serial: int) -> bool:
        """Raises: OSError, ValueError, when there is a list that cannot be read: nobody is known to be good then."""
        try:
            status = os.stat(self._path)  # noqa: PTH116 - asked at every call of every node
        except FileNotFoundError:
            return False
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            self._serials = frozenset(int(line.split()[0], 16) for line in _lines(self._path) if line.strip())
            self._seen = seen
        return serial in self._serials
