"""What the CA makes, for whom, and what it refuses. That TLS accepts them is shown in test_server."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from reconciler.engines.certificates import CA_KEY, LEAF_VALIDITY, issue_node, issue_server, make_ca
from reconciler.errors import GangOpsError, NotFound, UsageError
from reconciler.model.units import SECOND, NodeName
from tests.engines.fake import NEW_YEAR

N1 = NodeName("n1")


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    make_ca(tmp_path / "ca", "east", NEW_YEAR)
    return tmp_path / "ca"


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_node_certificate_names_its_node_and_is_good_for_calling_alone(ca: Path, tmp_path: Path) -> None:
    made = issue_node(ca, N1, tmp_path / "n1", NEW_YEAR)
    certificate = read(made.certificate)
    certificate.verify_directly_issued_by(read(made.authority))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("n1")]
    assert [a.value for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["n1"]
    uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert isinstance(key := certificate.public_key(), ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"


def test_it_holds_from_a_little_before_now_and_not_for_long(ca: Path, tmp_path: Path) -> None:
    certificate = read(issue_node(ca, N1, tmp_path / "n1", NEW_YEAR).certificate)
    now = datetime.fromtimestamp(NEW_YEAR // SECOND, UTC)
    assert certificate.not_valid_before_utc < now
    assert (certificate.not_valid_after_utc - now).total_seconds() == LEAF_VALIDITY // SECOND


def test_a_server_certificate_has_names_and_addresses(ca: Path, tmp_path: Path) -> None:
    made = issue_server(ca, ["gangops.example", "127.0.0.1", "::1"], tmp_path / "server", NEW_YEAR)
    names = read(made.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gangops.example"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]


def test_private_keys_are_for_their_owner_alone(ca: Path, tmp_path: Path) -> None:
    made = issue_node(ca, N1, tmp_path / "n1", NEW_YEAR)
    assert [path.stat().st_mode & 0o777 for path in (ca / CA_KEY, made.key, made.certificate)] == [0o600, 0o600, 0o644]
    assert ca.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in (tmp_path / "n1").iterdir()) == ["ca.crt", "n1.crt", "n1.key"]


def test_issuing_again_replaces_and_issuing_into_the_cas_folder_keeps_the_ca(ca: Path) -> None:
    before = (ca / "ca.crt").read_bytes()
    first = read(issue_node(ca, N1, ca, NEW_YEAR).certificate)
    second = read(issue_node(ca, N1, ca, NEW_YEAR).certificate)
    assert first.serial_number != second.serial_number
    assert (ca / "ca.crt").read_bytes() == before


def test_a_ca_is_never_overwritten(ca: Path) -> None:
    before = (ca / CA_KEY).read_bytes()
    with pytest.raises(UsageError) as caught:
        make_ca(ca, "east", NEW_YEAR)
    assert caught.value.code == "AuthorityExists"
    assert (ca / CA_KEY).read_bytes() == before


@pytest.mark.parametrize("name", ["", "N1", "-n1", "n1.", "../n1", "n1\n", "n 1", "a" * 64, "nö"])
def test_a_name_that_is_no_node_name_is_refused(ca: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        issue_node(ca, NodeName(name), tmp_path / "out", NEW_YEAR)
    assert caught.value.code == "BadName"
    assert not (tmp_path / "out").exists()


def rsa_key() -> bytes:
    key = rsa.generate_private_key(65537, 2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("key", "kind", "code"),
    [
        (None, NotFound, "AuthorityMissing"),
        (b"junk", UsageError, "AuthorityUnreadable"),
        (rsa_key(), UsageError, "AuthorityUnreadable"),
    ],
    ids=["missing", "junk", "another algorithm"],
)
def test_a_ca_that_cannot_be_used(ca: Path, key: bytes | None, kind: type[GangOpsError], code: str) -> None:
    if key is None:
        (ca / CA_KEY).unlink()
    else:
        (ca / CA_KEY).write_bytes(key)
    with pytest.raises(kind) as caught:
        issue_node(ca, N1, ca, NEW_YEAR)
    assert caught.value.code == code


def test_a_folder_that_cannot_be_written_is_a_typed_error(ca: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        issue_node(ca, N1, tmp_path / "file", NEW_YEAR)
    assert caught.value.code == "NotWritable"
