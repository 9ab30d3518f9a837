"""How does the forge tell the reconciler to look now? By its webhook: `POST /push`, signed with a secret both know.

A ring says only that somebody pushed. What was pushed is fetched as ever, so a lost ring costs the poll interval and a
forged one could cost a fetch; who does not know the secret cannot ring. A push of a branch that no decision reads, our
own state branch above all, does not ring either. Rings close together are one.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

from reconciler.engines.serving import Brief, Listener
from reconciler.errors import UsageError
from reconciler.runtime.notices.hooks import key_in
from reconciler.runtime.settings import BellSetting, host_port
from reconciler.store.mirror import REQUESTS

PATH: Final = "/push"
MOST_BYTES: Final = 4 * 1024 * 1024
"""Forges send what each commit changed; of a push with more than this the next poll hears."""
_MOST_AT_ONCE: Final = 8
_BODY_SECONDS: Final = 10
_APART_SECONDS: Final = 0.25
"""Rings closer together than this are one look at the remote."""
_CONNECTIONS: Final = Brief(most=64, seconds=30)
"""A forge asks once on each; what strangers hold open must not use up the files of the loop."""
_GITHUB, _GITLAB = "X-Hub-Signature-256", "X-Gitlab-Token"


def is_from_forge(headers: Mapping[str, str], body: bytes, key: bytes) -> bool:
    """Whether who sent this knows the secret: GitHub, Gitea and Forgejo sign the body, GitLab sends the secret itself.

    Where both are there, the signature counts.
    """
    if (signed := headers.get(_GITHUB)) is not None:
        made = "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(signed.encode("utf-8", "replace"), made.encode())
    token = headers.get(_GITLAB)
    return token is not None and hmac.compare_digest(token.encode("utf-8", "replace"), key)


def concerns(body: bytes, branch: str) -> bool:
    """Whether a push may change a decision: of the desired branch, or a request. One that cannot be read may."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return True  # it is signed, and a look too many does no harm
    ref = told.get("ref") if isinstance(told, dict) else None
    return isinstance(ref, str) and (ref == f"refs/heads/{branch}" or ref.startswith(REQUESTS))


class Bell:
    """The application, and who is woken by it. `count` hears each call's result: rung, ignored, refused or failed."""

    def __init__(
        self, secret: Path, branch: str, wake: Callable[[], None], count: Callable[[str], None] = lambda _: None
    ) -> None:
        self._secret, self._branch, self._wake, self._count = secret, branch, wake, count
        self._open = 0
        self._next_at = 0.0
        self._pending: asyncio.TimerHandle | None = None

    def application(self) -> web.Application:
        """What is served; everything but `POST /push` is an error of the asker."""
        application = web.Application(client_max_size=MOST_BYTES)
        application.router.add_post(PATH, self.hear)
        return application

    async def hear(self, request: web.Request) -> web.Response:
        """One delivery: 202 when it rang, 200 when there was nothing to ring for, else why not."""
        if self._open >= _MOST_AT_ONCE:
            return self._answer(503, "failed", "too many deliveries at once")
        self._open += 1
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read()
            known = is_from_forge(request.headers, body, key_in(self._secret))
        except web.HTTPRequestEntityTooLarge:
            return self._answer(413, "refused", f"a delivery has at most {MOST_BYTES} bytes")
        except TimeoutError:
            return self._answer(408, "refused", "the delivery did not arrive in time")
        except UsageError:
            return self._answer(503, "failed", "the secret cannot be read here")
        finally:
            self._open -= 1
        if not known:
            return self._answer(401, "refused", "not signed with the secret of this cluster")
        if not concerns(body, self._branch):
            return self._answer(200, "ignored", "no decision reads that branch")
        self._ring()
        return self._answer(202, "rung", "the remote is looked at now")

    def _answer(self, status: int, result: str, told: str) -> web.Response:
        self._count(result)
        return web.json_response({"result": result, "message": told}, status=status)

    def _ring(self) -> None:
        """Now, or as soon as the last ring is long enough ago; a ring that waits stands for all that come meanwhile."""
        if self._pending is not None:
            return
        loop = asyncio.get_running_loop()
        self._pending = loop.call_at(max(self._next_at, loop.time()), self._rung)

    def _rung(self) -> None:
        self._pending = None
        self._next_at = asyncio.get_running_loop().time() + _APART_SECONDS
        self._wake()


class BellServer(Listener):
    """A `Bell` at its address, in a thread of its own."""

    def __init__(self, setting: BellSetting, bell: Bell) -> None:
        host, port = host_port(setting.listen, "bell.listen")
        key_in(setting.secret)  # a typing error is found at the start
        super().__init__(
            bell.application, name="gangops-bell", host=host, port=port, tls=_tls(setting),
            awaits="the forge", setting="bell.listen", brief=_CONNECTIONS,
        )  # fmt: skip


def _tls(setting: BellSetting) -> ssl.SSLContext | None:
    """TLS with the certificate of the settings; None leaves it to a proxy in front."""
    if setting.certificate is None or setting.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(setting.certificate, setting.key)
    except OSError as err:
        raise UsageError(
            f"bell.certificate and bell.key are not a certificate and its key: {err}", code="SettingsInvalid"
        ) from err
    return context
