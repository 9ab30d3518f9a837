"""How does a node get its certificate, and the next one in time? Its key is made here and never leaves the node.

A token is used once: it names the node and the CA to expect, so that the server is known before the token is shown.
Later the agent renews by the certificate it has, with a new key each time. Key and certificate are two files; one that
was killed between them goes on with the pair that fits. openssl makes keys and requests.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from reconciler.agent.client import ask, tls_context
from reconciler.agent.conf import Conf
from reconciler.agent.say import Voice
from reconciler.errors import GangOpsError
from reconciler.wire import (
    AUTHORITY_PATH,
    ENROLL_PATH,
    RENEW_PATH,
    Application,
    BadMessage,
    Identity,
    decode_identity,
    encode,
)

RENEW_AFTER = 2 / 3
"""Share of a certificate's life after which the next one is asked for."""
LOOK_SECONDS = 600
_OPENSSL_SECONDS = 60


class NotEnrolled(GangOpsError):
    """No certificate was got. Codes: BadToken, UntrustedServer, EnrollmentFailed, OpensslFailed, NotWritable."""

    code = "EnrollmentFailed"


def enroll(conf: Conf, token: str, at: str) -> None:
    """Get this node's certificate for a token from the door `at` (https URL), and write ca, cert and key of [tls].

    Raises NotEnrolled, LinkDown.
    """
    node, _, rest = token.strip().partition(":")
    secret, _, fingerprint = rest.partition(":")
    if not (node and secret and fingerprint):
        raise NotEnrolled("this is no token of `gangops ca token`", code="BadToken")
    if node != conf.node:
        raise NotEnrolled(f"the token is for {node}; agent.conf says that this node is {conf.node}", code="BadToken")
    if urlsplit(at).scheme != "https" or not urlsplit(at).hostname:
        raise NotEnrolled(f"{at!r} is not an https URL", remedy="write https://HOST:PORT, as agents.enroll listens")
    # 1. Is it our server? Whoever is asked first may be anybody: nothing secret is said before this is known.
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    authority = _identity(ask(at, stranger, AUTHORITY_PATH, b"{}")).authority
    if _fingerprint(authority) != fingerprint:
        raise NotEnrolled(
            f"the server at {at} has another CA than the token says",
            code="UntrustedServer",
            remedy="Is it the address of this cluster's reconciler? Else somebody is in between.",
        )
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.minimum_version = ssl.TLSVersion.TLSv1_3
    trusting.load_verify_locations(cadata=authority)
    # 2. A key of our own, and a certificate for it.
    request = _new_key(conf)
    got = _identity(ask(at, trusting, ENROLL_PATH, encode(Application(request, token=token.strip()))))
    _install(conf, got)
    _write(conf.ca, authority, 0o644)


def renew(conf: Conf, server: str) -> None:
    """Get the next certificate by the present one. Raises NotEnrolled, LinkDown."""
    try:
        context = tls_context(conf.ca, conf.cert, conf.key)
    except OSError as err:
        raise NotEnrolled(f"certificate or key cannot be used: {err}") from err
    _install(conf, _identity(ask(server, context, RENEW_PATH, encode(Application(_new_key(conf))))))


def settle(conf: Conf) -> None:
    """Finish what an agent that was killed left half done: the certificate there, its key not yet in its place."""
    fresh = _next(conf.key)
    if fresh.exists() and _fit(conf.cert, fresh):
        fresh.replace(conf.key)


def is_due(cert: Path, now: float) -> bool:
    """Whether it is time for the next certificate. Raises NotEnrolled."""
    begins, ends = lifetime_of(cert)
    return now >= begins + (ends - begins) * RENEW_AFTER


def lifetime_of(cert: Path) -> tuple[int, int]:
    """First and last second of a certificate. Raises NotEnrolled."""
    said = _openssl("x509", "-in", str(cert), "-noout", "-startdate", "-enddate")
    told = dict(line.partition("=")[::2] for line in said.splitlines())
    try:
        return ssl.cert_time_to_seconds(told["notBefore"]), ssl.cert_time_to_seconds(told["notAfter"])
    except (KeyError, ValueError) as err:
        raise NotEnrolled(f"openssl does not tell how long {cert} is good") from err


class Renewal(threading.Thread):
    """Asks for the next certificate in time, of one server after the other, until one gives it; then calls `renewed`."""

    def __init__(self, conf: Conf, say: Voice, renewed: Callable[[], None]) -> None:
        super().__init__(name="renewal", daemon=True)
        self._conf, self._say, self._renewed = conf, say, renewed

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(LOOK_SECONDS * (0.75 + os.urandom(1)[0] / 512))  # agents must not come all at once

    def look(self) -> bool:
        """Renew if it is time; whether it was and worked."""
        try:
            if not is_due(self._conf.cert, time.time()):
                return False
        except NotEnrolled as err:
            self._say(f"certificate: {err.message}")
            return False
        for server in self._conf.servers:
            try:
                renew(self._conf, server)
            except GangOpsError as err:
                self._say(f"certificate not renewed by {server}: {err.message}")
                continue
            self._say("certificate renewed")
            self._renewed()
            return True
        return False


def _new_key(conf: Conf) -> str:
    """A new private key beside the present one, and the signing request for it."""
    fresh = _next(conf.key)
    try:
        conf.key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        # Made by us with its mode: openssl writes into what is there.
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as err:
        raise NotEnrolled(f"{fresh} cannot be written: {err.strerror}", code="NotWritable") from err
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(fresh))
    subject = ("-subj", f"/CN={conf.node}", "-addext", f"subjectAltName=DNS:{conf.node}")
    return _openssl("req", "-new", "-key", str(fresh), *subject, "-config", "/dev/null")


def _install(conf: Conf, got: Identity) -> None:
    """The certificate, then its key: `settle` knows what to do between the two."""
    fresh = _next(conf.cert)
    _write(fresh, got.certificate, 0o644)
    if not _fit(fresh, _next(conf.key)):
        raise NotEnrolled("the certificate that came is not for the key that was asked for")
    fresh.replace(conf.cert)
    _next(conf.key).replace(conf.key)


def _fit(cert: Path, key: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(str(cert), str(key))
    except OSError:  # ssl.SSLError is one
        return False
    return True


def _next(path: Path) -> Path:
    return path.with_name(path.name + ".next")


def _write(path: Path, text: str, mode: int) -> None:
    fresh = path.with_name(path.name + ".new")
    try:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as err:
        raise NotEnrolled(f"{path} cannot be written: {err.strerror}", code="NotWritable") from err


def _identity(body: bytes) -> Identity:
    try:
        return decode_identity(body)
    except BadMessage as err:
        raise NotEnrolled(f"the server's answer is none: {err.message}") from err


def _fingerprint(pem: str) -> str:
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.strip())).hexdigest()
    except ValueError:
        return ""


def _openssl(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["openssl", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_OPENSSL_SECONDS,
            check=False,
            text=True,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise NotEnrolled(f"openssl could not be asked: {err}", code="OpensslFailed") from err
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise NotEnrolled(f"openssl {arguments[0]}: {said[-1] if said else 'failed'}", code="OpensslFailed")
    return done.stdout
