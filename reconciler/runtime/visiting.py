"""How does a person look into a job through its agent? Ask, sign, come in: the caller's half of `engines.visits`.

The key is the person's own, the one they sign commits with; it never enters this process.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from reconciler.errors import EngineUnavailable, ExitStatus, GangOpsError, UsageError
from reconciler.store.person import LITERAL, as_person, signing_key
from reconciler.store.runner import Git
from reconciler.wire import CHALLENGE_PATH, VISIT_NAMESPACE, VISITS_PATH, Visit, VisitRequest, encode

_ASK_SECONDS = 30
_MESSAGE = 32 * 1024 * 1024


class NotAdmitted(GangOpsError):
    """The reconciler, or the node, does not let this person in. The code is theirs."""

    code = "NotAdmitted"
    exit_status = ExitStatus.INVALID


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where people come in (`agents.visits`), the CA that vouches for it, and the key to sign with, as `signing_key` has it."""

    server: str
    authority: Path
    key: Path | str


def door_of(server: str | None, authority: Path | None, key: Path | None, repo: Path) -> Door:
    """From options, else the key that requests are signed with. Raises UsageError (NoDoor, NoSigningKey): what is missing."""
    if not server or authority is None:
        raise UsageError(
            "the address of the reconciler or the certificate of its CA is not known",
            code="NoDoor",
            remedy="Name them with --server and --ca, or GANGOPS_SERVER and GANGOPS_CA.",
        )
    found = signing_key(as_person(Git(folder=repo)), key)
    return Door(server=server.rstrip("/"), authority=authority, key=found)


@asynccontextmanager
async def visit(
    door: Door, wanted: dict[str, Any], *, job: str, node: str = ""
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """The connection to the job's node; `wanted` are fields of the request. Raises NotAdmitted, EngineUnavailable."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_ASK_SECONDS)
    try:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=_trusting(door.authority)), timeout=timeout
        ) as session:
            about = {"job": job, "node": node, "rank": wanted.get("rank", -1), "attempt": wanted.get("attempt", 0)}
            told = await _asked(session, door.server + CHALLENGE_PATH, json.dumps(about).encode())
            asked = VisitRequest(
                job=job, node=told["node"], cluster=told["cluster"], challenge=told["challenge"], **wanted
            )
            content = encode(asked)
            signed = encode(Visit("", content, sign(door.key, content)))
            ticket = await _asked(session, door.server + VISITS_PATH, signed)
            where = f"{door.server}{VISITS_PATH}/{ticket['id']}"
            async with session.ws_connect(where, max_msg_size=_MESSAGE, compress=0) as line:
                yield line
    except (aiohttp.ClientError, TimeoutError, OSError) as err:
        raise EngineUnavailable(
            f"{door.server} cannot be reached: {err}",
            code="ServerUnreachable",
            remedy="Is it the address of `agents.visits`, and --ca the CA of `gangops ca init`?",
        ) from err


def sign(key: Path | str, content: bytes) -> str:
    """The armoured signature, by a key as `signing_key` names it; asks for a passphrase where there is one, or an ssh-agent. Raises UsageError."""
    with tempfile.TemporaryDirectory(prefix="gangops-") as folder:
        message = Path(folder, "request")
        message.write_bytes(content)
        file = Path(key)
        if str(key).startswith(LITERAL):
            file = Path(folder, "key.pub")
            file.write_text(str(key).removeprefix("key::") + "\n", encoding="utf-8")
        command = ["ssh-keygen", "-Y", "sign", "-n", VISIT_NAMESPACE, "-f", str(file), str(message)]
        done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"})
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise UsageError(
                f"{key} does not sign: {said[-1] if said else done.returncode}",
                code="SigningFailed",
                remedy="Name a private key, or a public one whose private half an ssh-agent has.",
            )
        return message.with_suffix(".sig").read_text(encoding="ascii")


async def _asked(session: aiohttp.ClientSession, url: str, body: bytes) -> dict[str, Any]:
    """The server's answer. Raises NotAdmitted with the server's own code."""
    async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
        try:
            told = dict(json.loads(await answer.text()))
        except (ValueError, TypeError):
            told = {}
        if answer.status >= 300:
            message = told.get("message") or f"{url} answers {answer.status}"
            raise NotAdmitted(message, code=told.get("code") or "NotAdmitted", remedy=told.get("remedy", ""))
        return told


def refusal_of(told: dict[str, Any]) -> NotAdmitted | None:
    """What the node said, when that was no."""
    if "refused" not in told:
        return None
    return NotAdmitted(told.get("message", ""), code=told["refused"], remedy=told.get("remedy", ""))


def _trusting(authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cafile=authority)
    except OSError as err:
        why = "No such file or directory" if not authority.exists() else "it holds no certificate"
        raise UsageError(
            f"{authority} cannot be used: {why}",
            code="BadCertificate",
            remedy="name ca.crt of the reconciler with --ca",
        ) from err
    return context
