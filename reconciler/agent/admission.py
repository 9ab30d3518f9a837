"""May this person look into this job? Judged by their signature and by who holds the job, never by who passes it on.

The reconciler's server asks the same before it troubles a node; the node asks again, since it trusts no channel: its
holders come with proven orders.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from reconciler.errors import ExitStatus, GangOpsError
from reconciler.wire import VISIT_NAMESPACE, BadMessage, VisitRequest, decode_visit_request

CHALLENGE_SECONDS = 120
"""How long a challenge is good for."""
MOST_BYTES = 16384
_SECOND = 1_000_000_000
_VERIFY_SECONDS = 20
_CHALLENGE = re.compile(r"([0-9]{19})\.[0-9a-f]{32}")
_HOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]* [a-z0-9@.-]+ [A-Za-z0-9+/=]+")
_ARMOUR = re.compile(r"-----BEGIN SSH SIGNATURE-----\n(?:[A-Za-z0-9+/=]+\n)+-----END SSH SIGNATURE-----\n*")


class VisitRefused(GangOpsError):
    """Somebody may not look into a job, or not like this.

    Codes: NotHeld (not signed by who holds the job), OldChallenge, JustStarted (the agent, after the challenge was made),
    BadRequest, NotHere, NotRunning, NoTerminal, TooMany.
    """

    code = "VisitRefused"
    exit_status = ExitStatus.INVALID


def new_challenge(now: int) -> str:
    """What a request has to carry to be good from now (ns), once."""
    return f"{now}.{os.urandom(16).hex()}"


def read_request(content: bytes, signature: str, now: int) -> VisitRequest:
    """The request, when it is well-formed and its challenge is of this moment (ns). Raises VisitRefused."""
    if len(content) > MOST_BYTES:
        raise VisitRefused(f"a request has at most {MOST_BYTES} bytes", code="BadRequest")
    try:
        asked = decode_visit_request(content)
    except BadMessage as err:
        raise VisitRefused(err.message, code="BadRequest") from err
    if asked.kind not in ("logs", "shell") or any(part in ("", ".", "..") for part in asked.job.split("/")):
        raise VisitRefused("a request is for logs or a shell, of a job", code="BadRequest")
    if not _ARMOUR.fullmatch(signature) or len(signature) > MOST_BYTES:
        raise VisitRefused("the request carries no SSH signature", code="BadRequest")
    told = _CHALLENGE.fullmatch(asked.challenge)
    if told is None or abs(now - int(told[1])) > CHALLENGE_SECONDS * _SECOND:
        raise VisitRefused("the challenge is not of now: are the clocks right?", code="OldChallenge")
    return asked


def signer_among(content: bytes, signature: str, holders: Sequence[str]) -> str:
    """The user, of these `USER ALGORITHM KEY`, who signed this. Raises VisitRefused(NotHeld)."""
    lines = [line.replace(" ", f' namespaces="{VISIT_NAMESPACE}" ', 1) for line in holders if _HOLDER.fullmatch(line)]
    if lines:
        with tempfile.TemporaryDirectory(prefix="gangops-visit-") as folder:
            allowed, armour = Path(folder, "allowed_signers"), Path(folder, "signature")
            allowed.write_text("\n".join(lines) + "\n", encoding="ascii")
            armour.write_text(signature, encoding="ascii")
            files = ["-s", str(armour), "-f", str(allowed)]
            found = _ssh_keygen(["-Y", "find-principals", *files], b"")
            user = found.stdout.decode("utf-8", "replace").split("\n")[0].strip()
            if found.returncode == 0 and user:
                verify = ["-Y", "verify", "-n", VISIT_NAMESPACE, "-I", user, *files]
                if _ssh_keygen(verify, content).returncode == 0:
                    return user
    raise VisitRefused(
        "the request is not signed by who holds the job: its author, its owner, or an admin of its queue",
        code="NotHeld",
        remedy="Sign with a key under spec.sshKeys of your User document; --key names it.",
    )


def _ssh_keygen(arguments: list[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    """Its exit status decides, never its words. Raises VisitRefused."""
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments],
            input=content,
            capture_output=True,
            timeout=_VERIFY_SECONDS,
            check=False,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise VisitRefused(f"ssh-keygen could not be asked: {err}", code="NotHeld") from err


class Challenges:
    """Those used up already. Forgets what is too old to be good anyhow."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}

    def use(self, challenge: str) -> None:
        """Raises VisitRefused(OldChallenge) the second time."""
        now = time.monotonic()
        self._used = {c: at for c, at in self._used.items() if now - at < 3 * CHALLENGE_SECONDS}
        if challenge in self._used:
            raise VisitRefused("this request was made already", code="OldChallenge")
        self._used[challenge] = now
