"""A headless Chromium, driven over its debugging protocol on loopback: what it says, loads and shows, and its keys."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--no-first-run", "--disable-sync", "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip
CONTRAST = """
(() => {
  const lit = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const luminance = ([r, g, b]) => 0.2126 * lit(r) + 0.7152 * lit(g) + 0.0722 * lit(b);
  const parts = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const ground = node => { for (; node; node = node.parentElement) {
    const c = parts(getComputedStyle(node).backgroundColor); if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const at = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || at.closest('title,style,.label')) continue;
    const style = getComputedStyle(at);
    const [one, two] = [luminance(parts(at.closest('svg') ? style.fill : style.color)), luminance(ground(at))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5) found.push(texts.currentNode.data.trim() + ' ' + ratio.toFixed(2));
  }
  return found;
})()
"""
"""Texts whose contrast with what is behind them is too low. Labels on bars are judged by their palette elsewhere."""


class Tab:
    """One page. `said` is what landed on the console, `asked` the addresses it requested."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.said: list[str] = []
        self.asked: list[str] = []
        self._seen: set[str] = set()

    async def call(self, method: str, **parameters: Any) -> Any:
        """One command; what happens until its answer is noted."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            told = await self._socket.receive_json(timeout=60)
            if told.get("id") == number:
                assert "error" not in told, told
                return told["result"]
            self._note(told)

    async def until(self, event: str) -> None:
        """Wait for an event, unless it came already."""
        while event not in self._seen:
            self._note(await self._socket.receive_json(timeout=60))

    def _note(self, told: dict[str, Any]) -> None:
        name, given = told.get("method", ""), told.get("params", {})
        self._seen.add(name)
        if name == "Network.requestWillBeSent":
            self.asked.append(given["request"]["url"])
        elif name in {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}:
            self.said.append(str(given))

    async def value(self, expression: str) -> Any:
        """What an expression comes to in the page; its policy does not bind the debugger."""
        done = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    async def press(self, key: str) -> None:
        """A key goes down and up."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **(text if kind == "keyDown" else {}))  # fmt: skip

    async def open(self, address: str) -> None:
        """Load a page and wait until all of it is there."""
        for domain in ("Network", "Log", "Runtime", "Page"):
            await self.call(f"{domain}.enable")
        self._seen.discard("Page.loadEventFired")
        await self.call("Page.navigate", url=address)
        await self.until("Page.loadEventFired")

    async def look(self, *, width: int, dark: bool) -> None:
        """How wide the window is, and which colours its owner prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])


async def _first_tab(session: aiohttp.ClientSession, port: str) -> dict[str, str]:
    """The browser listens before it has opened the page it was told to."""
    while True:
        async with session.get(f"http://{port}/json/list") as answer:
            pages: list[dict[str, str]] = [one for one in await answer.json(content_type=None) if one["type"] == "page"]
        if pages:
            return pages[0]
        await asyncio.sleep(0.05)


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Tab]:
    """One tab of a browser that ends with the block."""
    child = await asyncio.create_subprocess_exec(
        PROGRAM, *_FLAGS, f"--user-data-dir={folder}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stderr is not None
        address = ""
        while "DevTools listening on " not in address:
            address = (await asyncio.wait_for(child.stderr.readline(), 60)).decode()
            assert address, "the browser ended"
        port = address.rpartition("ws://")[2].partition("/")[0]
        async with aiohttp.ClientSession() as session:
            page = await asyncio.wait_for(_first_tab(session, port), 60)
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Tab(socket)
    finally:
        child.kill()
        while child.stderr is not None and await child.stderr.read(1 << 16):
            pass
        await child.wait()
