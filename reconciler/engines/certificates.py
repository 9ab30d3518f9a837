"""Who vouches for nodes: the cluster's own CA, and the certificates it issues to agents and to the server.

Everything is ECDSA P-256 and lives in PEM files; private keys are readable by their owner alone. Time is an argument.
Whatever is issued is noted in `issued`, so that it can be revoked. Who may ask for a certificate is decided in
`enrolment`.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from reconciler.errors import GangOpsError, NotFound, UsageError
from reconciler.model.units import DAY, SECOND, Instant, Nanoseconds, NodeName

CA_CERTIFICATE: Final = "ca.crt"
CA_KEY: Final = "ca.key"
ISSUED: Final = "issued"
"""One line a certificate: serial number in hexadecimal, name, last second of its life (seconds since 1970)."""
CA_VALIDITY: Final = Nanoseconds(3650 * DAY)
LEAF_VALIDITY: Final = Nanoseconds(30 * DAY)
# Clocks of nodes differ a little: a certificate has to hold at once everywhere.
_BACKDATED: Final = timedelta(minutes=5)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Files a side of a connection needs: its certificate, its private key, and the CA it trusts."""

    certificate: Path
    key: Path
    authority: Path


def make_ca(folder: Path, cluster: str, now: Instant) -> Path:
    """A new CA in `folder` (made with mode 0700): the path of its certificate.

    Raises: UsageError (AuthorityExists, BadName, NotWritable).
    """
    _check_name(cluster)
    certificate, key_file = folder / CA_CERTIFICATE, folder / CA_KEY
    if certificate.exists() or key_file.exists():
        raise UsageError(
            f"{folder} already holds a CA",
            code="AuthorityExists",
            remedy="Every node trusts the present one. To start anew, move the folder away first.",
        )
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject(f"{cluster} node CA")
    builder = _builder(name, name, key.public_key(), now, CA_VALIDITY)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    _write(key_file, _pem_of_key(key), 0o600)
    _write(certificate, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), 0o644)
    return certificate


def issue_node(
    folder: Path,
    node: NodeName,
    into: Path,
    now: Instant,
    validity: Nanoseconds = LEAF_VALIDITY,
) -> Credentials:
    """Credentials of a node's agent, by the CA in `folder`: `<node>.crt`, `<node>.key` and `ca.crt` in `into`.

    The certificate names the node and nothing else, and is good for calling only. Issuing again replaces it.
    Raises: UsageError (BadName, AuthorityUnreadable, NotWritable), NotFound (AuthorityMissing).
    """
    _check_name(node)
    return _issue(folder, node, [x509.DNSName(node)], ExtendedKeyUsageOID.CLIENT_AUTH, into, now, validity)


def sign_request(
    folder: Path, node: NodeName, request: bytes, now: Instant, validity: Nanoseconds = LEAF_VALIDITY
) -> bytes:
    """The certificate, in PEM, of exactly this node for the key of a signing request; its private key stays there.

    Raises: RequestRefused, when the request is none, names anything else, or its key is none of ours;
    UsageError (AuthorityUnreadable, NotWritable), NotFound (AuthorityMissing).
    """
    key = _requested_key(request, node)
    authority, signing_key = _load_ca(folder)
    builder = _leaf(node, [x509.DNSName(node)], ExtendedKeyUsageOID.CLIENT_AUTH, authority, key, now, validity)
    certificate = builder.sign(signing_key, hashes.SHA256())
    _note(folder, certificate, node)
    return certificate.public_bytes(serialization.Encoding.PEM)


def request_key(request: bytes) -> bytes:
    """The public key of a signing request, in DER. Raises: RequestRefused."""
    return (
        _parsed(request)
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


class RequestRefused(GangOpsError):
    """A signing request that is not granted. Codes: BadRequest, NotYourNode."""

    code = "BadRequest"


def _parsed(request: bytes) -> x509.CertificateSigningRequest:
    try:
        parsed = x509.load_pem_x509_csr(request)
        proven = parsed.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as err:
        raise RequestRefused("this is no certificate signing request") from err
    if not proven:
        raise RequestRefused("the request is not signed by the key it is for")
    return parsed


def _requested_key(request: bytes, node: NodeName) -> ec.EllipticCurvePublicKey:
    """The key of a request that names the node and nothing else."""
    parsed = _parsed(request)
    key = parsed.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise RequestRefused("the key is not ECDSA P-256")
    try:
        alternatives = list(parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        alternatives = []
    except ValueError as err:
        raise RequestRefused("the names in the request cannot be read") from err
    names = [attribute.value for attribute in parsed.subject]
    if names != [node] or any(name != x509.DNSName(node) for name in alternatives):
        raise RequestRefused(f"the request is for another name than {node}", code="NotYourNode")
    return key


def issue_server(
    folder: Path,
    names: Sequence[str],
    into: Path,
    now: Instant,
    validity: Nanoseconds = LEAF_VALIDITY,
) -> Credentials:
    """Credentials of the server agents call: `server.crt`, `server.key` and `ca.crt` in `into`.

    `names` are the DNS names and IP addresses agents are configured with. Raises: as `issue_node`.
    """
    if not names:
        raise UsageError(
            "a server certificate needs a name or an address",
            code="BadName",
            remedy="such as gangops.example.org or 10.0.0.7",
        )
    alternatives = [_general_name(name) for name in names]
    return _issue(folder, "server", alternatives, ExtendedKeyUsageOID.SERVER_AUTH, into, now, validity)


def certificate_end(path: Path) -> Instant | None:
    """The last instant of a certificate; None when there is none that can be read."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None
    return Instant(int(certificate.not_valid_after_utc.timestamp()) * SECOND)


def _issue(
    folder: Path,
    name: str,
    alternatives: list[x509.GeneralName],
    use: x509.ObjectIdentifier,
    into: Path,
    now: Instant,
    validity: Nanoseconds,
) -> Credentials:
    authority, signing_key = _load_ca(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _leaf(name, alternatives, use, authority, key.public_key(), now, validity)
    certificate = builder.sign(signing_key, hashes.SHA256())
    _note(folder, certificate, name)
    made = Credentials(certificate=into / f"{name}.crt", key=into / f"{name}.key", authority=into / CA_CERTIFICATE)
    _write(made.key, _pem_of_key(key), 0o600)
    _write(made.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    if made.authority.resolve() != (folder / CA_CERTIFICATE).resolve():
        _write(made.authority, authority.public_bytes(serialization.Encoding.PEM), 0o644)
    return made


def _leaf(
    name: str,
    alternatives: list[x509.GeneralName],
    use: x509.ObjectIdentifier,
    authority: x509.Certificate,
    key: ec.EllipticCurvePublicKey,
    now: Instant,
    validity: Nanoseconds,
) -> x509.CertificateBuilder:
    ours = authority.public_key()
    assert isinstance(ours, ec.EllipticCurvePublicKey)
    builder = _builder(_subject(name), authority.subject, key, now, validity)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ours), critical=False)


def _note(folder: Path, certificate: x509.Certificate, name: str) -> None:
    """Before it is handed out: what was issued can be revoked."""
    line = f"{certificate.serial_number:x} {name} {int(certificate.not_valid_after_utc.timestamp())}\n"
    append_line(folder / ISSUED, line)


def append_line(path: Path, line: str) -> None:
    """Add a whole line, for good. Raises: UsageError (NotWritable)."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line.encode("ascii"))
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as err:
        raise not_writable(path, err) from err


def _load_ca(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes())
        key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), password=None)
    except FileNotFoundError as err:
        raise NotFound(
            f"{folder} holds no CA",
            code="AuthorityMissing",
            remedy="Make one with `gangops ca init FOLDER --cluster NAME`.",
        ) from err
    except (OSError, ValueError, TypeError) as err:
        why = err.strerror if isinstance(err, OSError) else "its certificate or key is damaged"
        raise UsageError(f"the CA in {folder} cannot be read: {why}", code="AuthorityUnreadable", remedy=_CA) from err
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"the CA in {folder} has no elliptic curve key", code="AuthorityUnreadable", remedy=_CA)
    return certificate, key


_CA = "name the folder that `gangops ca init` made, or restore it from its backup"


def not_writable(path: Path, err: OSError) -> UsageError:
    """The error of a file that could not be written, by what the system says."""
    return UsageError(
        f"{path} cannot be written: {err.strerror or err}",
        code="NotWritable",
        remedy=f"`ls -ld {path.parent}` shows whose that is; name a folder of yours, on a disk with space",
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: Instant,
    validity: Nanoseconds,
) -> x509.CertificateBuilder:
    begins = datetime.fromtimestamp(now // SECOND, UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - _BACKDATED)
        .not_valid_after(begins + timedelta(seconds=validity // SECOND))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        _check_name(name)
        return x509.DNSName(name)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot stand in a certificate",
            code="BadName",
            remedy="Names have lower-case letters, digits, '-' and '.', at most 63, and begin and end with none of these.",
        )


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """The file with this content and mode, whole or not at all: never readable by others even for a moment."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(handle, mode)
                os.fsync(handle)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as err:
        raise not_writable(path, err) from err
