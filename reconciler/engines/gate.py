"""How does a node that has no certificate yet get one? A door of its own: `POST /v1/authority` and `POST /v1/enroll`.

It asks for no certificate, so it is apart from the door that lets nobody in without one, and it is open only where
the settings say so. What it hands out is decided by `enrolment`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from pathlib import Path

from aiohttp import web

from reconciler.engines.certificates import CA_CERTIFICATE, RequestRefused
from reconciler.engines.enrolment import TokenRefused, enroll
from reconciler.engines.server import Rejected, body_of, rejection
from reconciler.errors import GangOpsError
from reconciler.ports import Clock
from reconciler.wire import AUTHORITY_PATH, ENROLL_PATH, BadMessage, Identity, decode_application, encode

log = logging.getLogger(__name__)
_MOST_BYTES = 16384


class Gate:
    """The application; `rejected` counts what was refused, by code."""

    def __init__(self, folder: Path, clock: Clock, rejected: Counter[str]) -> None:
        self._folder, self._clock, self._rejected = folder, clock, rejected

    def application(self) -> web.Application:
        """The application to serve, over TLS with the server's certificate."""
        application = web.Application(client_max_size=_MOST_BYTES)
        application.router.add_post(AUTHORITY_PATH, self.show_authority)
        application.router.add_post(ENROLL_PATH, self.enroll)
        return application

    async def show_authority(self, _: web.Request) -> web.Response:
        """The CA's certificate, which the asking node compares with what its token says."""
        return web.Response(body=encode(Identity(self._authority())), content_type="application/json")

    async def enroll(self, request: web.Request) -> web.Response:
        """A certificate for the node a token is for."""
        try:
            asked = decode_application(await body_of(request))
            redeem = partial(enroll, self._folder, asked.token, asked.request.encode(), self._clock.now())
            node, made = await asyncio.get_running_loop().run_in_executor(None, redeem)
        except BadMessage as err:
            return rejection(Rejected(400, err.code, err.message), self._rejected)
        except (TokenRefused, RequestRefused) as err:
            log.warning("enrolment refused", extra={"code": err.code, "peer": request.remote})
            return rejection(Rejected(403, err.code, err.message), self._rejected)
        except Rejected as err:
            return rejection(err, self._rejected)
        except GangOpsError as err:
            log.warning("enrolment failed", extra={"code": err.code, "reason": err.message})
            return rejection(Rejected(503, err.code, "the CA cannot be used now"), self._rejected)
        log.info("enrolled", extra={"node": node, "peer": request.remote})
        return web.Response(
            body=encode(Identity(self._authority(), made.decode("ascii"))), content_type="application/json"
        )

    def _authority(self) -> str:
        return (self._folder / CA_CERTIFICATE).read_text(encoding="ascii")
