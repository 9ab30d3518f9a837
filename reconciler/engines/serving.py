"""How does an aiohttp application live beside the loop? In a thread and event loop of its own.

Deciding takes whole seconds of a core at times; nodes and people are answered meanwhile. What is served is the
caller's business.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from reconciler.errors import UsageError

_GOODBYE_SECONDS = 1.0
_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """Connections that are soon over: at most `most` at once, the newest, and none for longer than `seconds`."""

    most: int
    seconds: float


class ServingThread:
    """One application on one address. Made once, started once, stopped once."""

    def __init__(
        self,
        application: Callable[[], web.Application],
        *,
        name: str,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        brief: Brief | None = None,
    ) -> None:
        """`brief`: where strangers connect, so that what they hold open is not taken from files the loop needs."""
        self._application = application
        self._brief = brief
        self._sweeping: asyncio.Task[None] | None = None
        self._host, self._port, self._tls = host, port, tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._runner: web.AppRunner | None = None
        self._beside: list[tuple[Callable[[], web.Application], str, int, ssl.SSLContext | None]] = []
        self._runners: list[web.AppRunner] = []

    def beside(
        self, application: Callable[[], web.Application], host: str, port: int, tls: ssl.SSLContext | None
    ) -> None:
        """Another application in the same event loop, at an address of its own. Before `start`."""
        self._beside.append((application, host, port, tls))

    def start(self) -> None:
        """Listen; returns when connections are accepted. Raises: OSError, when the address cannot be bound."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are really bound (port 0 asks for any). Only after `start`."""
        if self._runner is None or not self._runner.addresses:
            return (self._host, self._port)
        host, port, *_ = self._runner.addresses[0]
        return (host, port)

    @property
    def address_beside(self) -> tuple[str, int]:
        """The same for the first application beside. Only after `start`."""
        host, port, *_ = self._runners[0].addresses[0]
        return (host, port)

    def call(self, callback: Callable[[], None]) -> None:
        """Run something in the application's thread soon; nothing happens after `stop`."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Close the listener, give open requests a second, and end the thread."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _listen(self) -> None:
        self._runner = await _runner(self._application())
        await web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls).start()
        if self._brief is not None:
            self._sweeping = asyncio.create_task(_sweep(self._runner, self._brief))
        for application, host, port, tls in self._beside:
            runner = await _runner(application())
            self._runners.append(runner)
            await web.TCPSite(runner, host, port, ssl_context=tls).start()

    async def _close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for runner in self._runners:
            await runner.cleanup()
        if self._runner is not None:
            await self._runner.cleanup()


class Listener(ServingThread):
    """One whose address a person chose: when it cannot be bound, that is told with the setting to change."""

    def __init__(
        self,
        application: Callable[[], web.Application],
        *,
        name: str,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        awaits: str,
        setting: str,
        brief: Brief | None = None,
    ) -> None:
        super().__init__(application, name=name, host=host, port=port, tls=tls, brief=brief)
        self._awaits, self._setting = awaits, setting

    def start(self) -> None:
        """Listen. Raises: UsageError (ListenFailed)."""
        try:
            super().start()
        except OSError as err:
            raise UsageError(
                f"cannot listen for {self._awaits} on {self._host}:{self._port}: {err.strerror or err}",
                code="ListenFailed",
                remedy=f"Choose another {self._setting} in reconciler.toml.",
            ) from err


async def _runner(application: web.Application) -> web.AppRunner:
    runner = web.AppRunner(
        application,
        access_log=None,
        handler_cancellation=True,
        auto_decompress=False,
        shutdown_timeout=_GOODBYE_SECONDS,
    )
    await runner.setup()
    return runner


async def _sweep(runner: web.AppRunner, brief: Brief) -> None:
    """Close what is too old or too much, for ever. A request that never ends its headers is nobody's to time out."""
    since: dict[web.RequestHandler, float] = {}
    while runner.server is not None:
        now = asyncio.get_running_loop().time()
        since = {one: since.get(one, now) for one in runner.server.connections}
        oldest = sorted(since, key=lambda one: since[one])
        over = oldest[: max(0, len(oldest) - brief.most)]
        for one in {*over, *(one for one in oldest if now - since[one] > brief.seconds)}:
            one.force_close()
        await asyncio.sleep(_LOOK_SECONDS)
