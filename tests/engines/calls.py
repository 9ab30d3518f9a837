"""Calls of nodes over real TLS on loopback, and a world of an `AgentEngine` with such nodes."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

from reconciler.engines.agents import AgentEngine, AgentSettings
from reconciler.engines.certificates import Credentials, issue_node, issue_server, make_ca
from reconciler.model.units import Nanoseconds, NodeName
from reconciler.wire import SYNC_PATH, Answer, Report, decode_answer, encode
from tests.engines.contract import AgentNodes
from tests.engines.fake import NEW_YEAR, FakeClock, FakeNode

# TLS judges certificates by the real clock, whatever the fake one says.
ISSUED = NEW_YEAR
LONG = Nanoseconds(3650 * 86400 * 10**9)


def client_context(credentials: Credentials, authority: Path) -> ssl.SSLContext:
    """A node's side of the connection: it trusts `authority` and shows `credentials`."""
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(credentials.certificate, credentials.key)
    return context


class Caller:
    """One node's keep-alive connection to the server."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        self._connection = http.client.HTTPSConnection(*address, context=context, timeout=90)

    def post(self, body: bytes, path: str = SYNC_PATH, **headers: str) -> tuple[int, dict[str, Any]]:
        """Status and decoded JSON of one call."""
        status, content = self.raw(body, path, **headers)
        return status, json.loads(content)

    def raw(self, body: bytes, path: str = SYNC_PATH, **headers: str) -> tuple[int, bytes]:
        self._connection.request("POST", path, body, headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def sync(self, report: Report) -> Answer:
        status, content = self.raw(encode(report))
        assert status == 200, content
        return decode_answer(content)

    def close(self) -> None:
        self._connection.close()


class TlsWorld(AgentNodes):
    """An `AgentEngine` on loopback and a caller for each node."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.clock = FakeClock()
        self.nodes = {name: FakeNode(name=name, clock=self.clock) for name in names}
        self.ca = folder / "ca"
        self.authority = make_ca(self.ca, "test", ISSUED)
        server = issue_server(self.ca, ["127.0.0.1", "localhost"], folder / "server", ISSUED, LONG)
        self.settings = AgentSettings(
            certificate=server.certificate, key=server.key, node_ca=server.authority, host="127.0.0.1", port=0
        )
        self.engine = AgentEngine(self.settings, self.clock)
        self.credentials = {n: issue_node(self.ca, NodeName(n), folder / "nodes", ISSUED, LONG) for n in names}
        self._callers: dict[str, Caller] = {}

    def caller(self, name: str) -> Caller:
        """The node's connection, made when first asked for."""
        if name not in self._callers:
            self._callers[name] = self.new_caller(client_context(self.credentials[name], self.authority))
        return self._callers[name]

    def new_caller(self, context: ssl.SSLContext) -> Caller:
        return Caller(self.engine.address, context)

    def sync(self, *names: str) -> None:
        """Let each node that can be heard report, take what it is handed, and report again."""
        for name in names or tuple(self.nodes):
            node = self.nodes[name]
            if not node.speaks:
                continue
            self.exchange(node)
            self.exchange(node)

    def exchange(self, node: FakeNode, **changes: Any) -> Answer:
        """One call of a node, obeyed."""
        answer = self.caller(node.name).sync(replace(node.report(), **changes))
        node.last_answer = self.clock.monotonic()
        if answer.proof is not None:
            epoch = json.loads(answer.proof.commit)["epoch"]
            node.take(epoch, answer.generation, answer.proof.commitId, answer.proof.file)
        return answer

    def close(self) -> None:
        for caller in self._callers.values():
            caller.close()
        self.engine.stop()
