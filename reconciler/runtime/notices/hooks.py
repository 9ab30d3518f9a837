"""The two ways out for a notice: a signed webhook and a command on this machine.

Each tries once and says how it ended; when to try again is the courier's. The signature is that of the Standard
Webhooks scheme (webhook-id, webhook-timestamp, webhook-signature), so that receivers find a library for it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from reconciler import __version__
from reconciler.errors import GangOpsError, UsageError
from reconciler.model.units import SECOND, Instant, Nanoseconds
from reconciler.render.names import one_line
from reconciler.runtime.notices.content import content_of
from reconciler.runtime.notices.events import Moment, Notice, NoticeKind

_WEBHOOK_SECONDS, _COMMAND_SECONDS = 10, 60
_AGAIN = frozenset({408, 425, 429})
_LEAST_SECRET = 16


class HookUnavailable(GangOpsError):
    """Nobody took it; the same notice may be taken later."""

    code = "HookUnavailable"


class HookRefused(GangOpsError):
    """It was understood and is not wanted; asking again changes nothing."""

    code = "HookRefused"


class Hook(Protocol):
    """Somebody to tell. `name` is a word for folders, logs and metrics."""

    @property
    def name(self) -> str: ...

    def wants(self, notice: Notice) -> bool:
        """Whether this notice is for it."""

    def send(self, notice: Notice, moment: Moment) -> None:
        """Try once. Raises: HookUnavailable, HookRefused."""


Tail = Callable[[Notice], tuple[str, ...]]
"""The last lines that the failed rank of a notice printed; () where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A POST for each notice, signed with the secret in a file that is read again each time.

    `events` None: all of them. `now` is the wall clock: receivers refuse a timestamp that is old.
    """

    url: str
    secret: Path
    now: Callable[[], Instant]
    events: frozenset[NoticeKind] | None = None
    tail: Tail = lambda _: ()
    seconds: float = _WEBHOOK_SECONDS

    @property
    def name(self) -> str:
        return "webhook"

    def wants(self, notice: Notice) -> bool:
        """Whether this notice is for it."""
        return self.events is None or notice.kind in self.events

    def send(self, notice: Notice, moment: Moment) -> None:  # noqa: ARG002  the protocol's signature
        """Try once. Raises: HookUnavailable, HookRefused."""
        body = json.dumps(content_of(notice, self.tail(notice)), ensure_ascii=False).encode()
        at = str(self.now() // SECOND)
        request = urllib.request.Request(  # noqa: S310  the scheme was checked with the settings
            self.url, data=body, method="POST",
            headers={
                "Content-Type": "application/json",
                "User-Agent": f"gangops/{__version__}",
                "webhook-id": notice.id,
                "webhook-timestamp": at,
                "webhook-signature": signature(key_in(self.secret), notice.id, at, body),
            },
        )  # fmt: skip
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.seconds):
                return
        except urllib.error.HTTPError as err:
            err.close()
            told = f"{_shown(self.url)} answered {err.code}"
            if err.code >= 500 or err.code in _AGAIN:
                raise HookUnavailable(told) from err
            raise HookRefused(told) from err
        except (OSError, http.client.HTTPException) as err:
            why = getattr(err, "reason", None) or err
            raise HookUnavailable(f"{_shown(self.url)}: {why or type(err).__name__}") from err


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Nothing is followed: a job's failure is not for whoever is named there."""


def signature(key: bytes, notice: str, at: str, body: bytes) -> str:
    """`v1,` and base64 of HMAC-SHA256 over id, timestamp and body, with dots between."""
    made = hmac.new(key, b".".join((notice.encode(), at.encode(), body)), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(made).decode()}"


def key_in(file: Path) -> bytes:
    """The key in a secret's file: text after `whsec_` is base64, any other text is taken as it is.

    Raises UsageError (SecretMissing), which names the file and never what is in it.
    """
    try:
        text = file.read_text(encoding="utf-8").strip()
        key = base64.b64decode(text[6:], validate=True) if text.startswith("whsec_") else text.encode()
    except (OSError, UnicodeDecodeError, binascii.Error) as err:
        why = err.strerror if isinstance(err, OSError) else "it is neither text nor whsec_ and base64"
        raise UsageError(
            f"the webhook's secret {file} cannot be read: {why}", code="SecretMissing",
            remedy=f"openssl rand -hex 32 > {file}",
        ) from err  # fmt: skip
    if len(key) < _LEAST_SECRET:
        raise UsageError(
            f"the webhook's secret {file} has fewer than {_LEAST_SECRET} bytes", code="SecretMissing",
            remedy=f"openssl rand -hex 32 > {file}",
        )  # fmt: skip
    return key


def _shown(url: str) -> str:
    """The address without what is secret in many: path and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program of this machine, run once for each notice with its JSON on stdin; exit status 0 means told."""

    run: tuple[str, ...]
    events: frozenset[NoticeKind] | None = None
    tail: Tail = lambda _: ()
    seconds: float = _COMMAND_SECONDS

    @property
    def name(self) -> str:
        return "command"

    def wants(self, notice: Notice) -> bool:
        """Whether this notice is for it."""
        return self.events is None or notice.kind in self.events

    def send(self, notice: Notice, moment: Moment) -> None:  # noqa: ARG002  the protocol's signature
        """Try once. Raises: HookUnavailable."""
        body = json.dumps(content_of(notice, self.tail(notice)), ensure_ascii=False).encode()
        told = {"GANGOPS_EVENT": str(notice.kind), "GANGOPS_EVENT_ID": notice.id, "GANGOPS_JOB": notice.job or ""}
        try:
            child = subprocess.Popen(
                self.run, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                env={**os.environ, **told}, start_new_session=True,
            )  # fmt: skip
        except OSError as err:
            raise HookUnavailable(f"{self.run[0]}: {err.strerror or err}") from err
        try:
            _, said = child.communicate(body, timeout=self.seconds)
        except subprocess.TimeoutExpired as err:
            _end(child)
            raise HookUnavailable(f"{self.run[0]} did not end within {self.seconds:g} s") from err
        if child.returncode != 0:
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            why = f": {one_line(last)[:200]}" if last else ""
            raise HookUnavailable(f"{self.run[0]} ended with {child.returncode}{why}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """The program and what it started: they share a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


KEPT = Nanoseconds(24 * 3600 * SECOND)
"""How old a notice may become before it is given up."""
