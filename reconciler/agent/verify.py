"""Is this order really ours, and newer than what we hold? Trust is in a signature and in hashes, never in the channel.

The chain: one SSH signature over the raw commit, by a key of `allowed_signers` for exactly our principal; the
commit names its tree; each tree object names the next; the last names the blob of this node's file. Epoch,
generation and cluster are read from the signed message. Nothing here acts or remembers.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from reconciler.errors import GangOpsError
from reconciler.wire import FORMAT, BadMessage, NodeOrders, Proof, decode_orders

_HEADERS = re.compile(rb"tree (?P<tree>[0-9a-f]{40})\n(?:parent [0-9a-f]{40}\n)*author [^\n]+\ncommitter [^\n]+\n")
_ARMOUR = re.compile(r"-----BEGIN SSH SIGNATURE-----\n(?:[A-Za-z0-9+/=]+\n)+-----END SSH SIGNATURE-----\n*")
_DIR = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_TRAILER = re.compile(r"([A-Za-z][A-Za-z0-9-]*): (.*)")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_KEY_TYPE = re.compile(r"(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9-]+(@openssh\.com)?")
_VERIFY_SECONDS = 20
_MAX_ARMOUR = 32768


class RefusedOrder(GangOpsError):
    """An order this agent does not accept; nothing of it is acted on.

    Codes: UnsignedCommit, UnsupportedSignature, OddCommit, BadSignature, UntrustedSigners, WrongCommitId, WrongTree,
    WrongMode, WrongPath, WrongBlob, BadTrailers, NotOurCluster, OlderOrder, BadOrders, LocalStorageFull.
    """

    code = "RefusedOrder"


@dataclass(frozen=True)
class Trust:
    """Whom and what this node believes: from its own agent.conf, never from the channel."""

    node: str
    cluster: str
    principal: str
    allowed_signers: Path
    revoked: Path | None = None


@dataclass(frozen=True)
class Accepted:
    """An order that was proven. The journal holds the last one."""

    epoch: int
    generation: int
    commit: str
    file: bytes

    @property
    def digest(self) -> str:
        """sha256 of the orders file, as the report carries it."""
        return hashlib.sha256(self.file).hexdigest()


NOTHING = Accepted(epoch=0, generation=0, commit="", file=b"")
"""What a node without a journal holds."""


def verify(proof: Proof, trust: Trust, held: Accepted) -> tuple[Accepted, NodeOrders]:
    """The order that `proof` proves, when it is newer than the one held, or the very same.

    Raises RefusedOrder; the code says which link of the chain is broken.
    """
    if object_id("commit", proof.commit) != proof.commitId:
        raise RefusedOrder("the commit's bytes do not have the commit's id", code="WrongCommitId")
    tree, payload, signature = split_commit(proof.commit)
    check_signature(payload, signature, trust)
    epoch, generation = _position(payload, trust.cluster)
    if (epoch, generation) < (held.epoch, held.generation):
        raise RefusedOrder(
            f"generation {generation} of epoch {epoch} is older than {held.generation} of {held.epoch}, which is held",
            code="OlderOrder",
        )
    if (epoch, generation) == (held.epoch, held.generation) and held.commit not in ("", proof.commitId):
        raise RefusedOrder(f"generation {generation} is held as commit {held.commit[:12]} already", code="OlderOrder")
    _walk(tree, proof, trust.node)
    return Accepted(epoch, generation, proof.commitId, proof.file), read_orders(proof.file, trust.node)


def read_orders(content: bytes, node: str) -> NodeOrders:
    """The node's own orders. Raises RefusedOrder(BadOrders) for another node's, another format or two of a kind."""
    try:
        orders = decode_orders(content)
    except BadMessage as err:
        raise RefusedOrder(f"the orders file cannot be read: {err.message}", code="BadOrders") from err
    if orders.node != node:
        raise RefusedOrder("the orders file names another node", code="BadOrders")
    if orders.formatVersion.split(".")[0] != FORMAT.split(".", maxsplit=1)[0]:
        raise RefusedOrder(f"orders have format {orders.formatVersion}; {FORMAT} is known here", code="BadOrders")
    if len({(order.job, order.attempt) for order in orders.attempts}) != len(orders.attempts):
        raise RefusedOrder("an attempt is ordered twice", code="BadOrders")
    return orders


def object_id(kind: str, content: bytes) -> str:
    """Git's name for an object with this content."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def split_commit(raw: bytes) -> tuple[str, bytes, str]:
    """Tree id, the bytes that were signed, and the armoured signature. Raises RefusedOrder.

    Only the headers a state commit has are accepted, in git's order: what is odd was not made by our reconciler.
    """
    head, blank, message = raw.partition(b"\n\n")
    if not blank or b"\0" in raw:
        raise RefusedOrder("the commit has no message, or a NUL byte", code="OddCommit")
    head += b"\n"
    if re.search(rb"^gpgsig-sha256\b", head, re.MULTILINE):
        raise RefusedOrder("the commit carries a gpgsig-sha256 header", code="UnsupportedSignature")
    signed = _HEADERS.match(head)
    if signed is None:
        raise RefusedOrder("the commit's headers are not those of a state commit", code="OddCommit")
    rest = head[signed.end() :]
    if not rest:
        raise RefusedOrder("the commit is not signed", code="UnsignedCommit")
    first, *folded = rest.split(b"\n")[:-1]
    if not first.startswith(b"gpgsig ") or not all(line.startswith(b" ") for line in folded):
        raise RefusedOrder("the commit has a header besides its one signature", code="OddCommit")
    lines = [first[len(b"gpgsig ") :], *(line[1:] for line in folded)]
    armour = "".join(line.decode("latin-1") + "\n" for line in lines)
    if len(armour) > _MAX_ARMOUR or not _ARMOUR.fullmatch(armour):
        raise RefusedOrder("the signature is not an SSH signature", code="UnsupportedSignature")
    return signed["tree"].decode(), signed[0] + b"\n" + message, armour


def check_signature(payload: bytes, armour: str, trust: Trust) -> None:
    """Raises RefusedOrder(BadSignature, UntrustedSigners). The verdict is ssh-keygen's exit status, never its words."""
    check_signers(trust.allowed_signers)
    refused = _why_not_signed(payload, armour, trust, trust.revoked)
    if not refused:
        return
    if trust.revoked and not _why_not_signed(payload, armour, trust, None):  # ssh-keygen does not say so itself
        refused = f"the key is revoked, or {trust.revoked} cannot be read"
    raise RefusedOrder(f"signature not accepted: {refused}", code="BadSignature")


def _why_not_signed(payload: bytes, armour: str, trust: Trust, revoked: Path | None) -> str:
    """What ssh-keygen says against the signature, "" when it accepts it. Raises RefusedOrder."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        os.write(writing, armour.encode("ascii"))  # its size was checked: less than a pipe holds
        os.close(writing)
        command = ["ssh-keygen", "-Y", "verify", "-n", "git", "-I", trust.principal]
        command += ["-f", str(trust.allowed_signers), "-s", f"/dev/fd/{reading}"]
        command += ["-r", str(revoked)] if revoked else []
        done = subprocess.run(
            command,
            input=payload,
            capture_output=True,
            timeout=_VERIFY_SECONDS,
            check=False,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            pass_fds=(reading,),
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise RefusedOrder(f"ssh-keygen could not be asked: {err}", code="BadSignature") from err
    finally:
        os.close(reading)
    if done.returncode == 0:
        return ""
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    return said[-1] if said else "no reason given"


def check_signers(path: Path) -> None:
    """Raises RefusedOrder(UntrustedSigners) unless every key of the file is for namespace git alone.

    Without that, a signature made for another purpose (a file, an e-mail) would pass as an order.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise RefusedOrder(f"{path} cannot be read: {err}", code="UntrustedSigners") from err
    keys = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    for number, line in keys:
        words = re.findall(r'(?:"[^"]*"|[^\s"])+', line)
        options = words[1] if len(words) > 2 and not _KEY_TYPE.fullmatch(words[1]) else ""
        named = [option for option in re.findall(r'(?:"[^"]*"|[^,"])+', options) if option.lower().startswith("namesp")]
        if [option.partition("=")[2] for option in named] != ['"git"']:
            raise RefusedOrder(f'{path}:{number}: the key lacks namespaces="git"', code="UntrustedSigners")
    if not keys:
        raise RefusedOrder(f"{path} names no key", code="UntrustedSigners")


def _position(payload: bytes, cluster: str) -> tuple[int, int]:
    """Epoch and generation from the trailers of the last paragraph, each of them there exactly once."""
    try:
        message = payload.partition(b"\n\n")[2].decode("utf-8")
    except UnicodeDecodeError as err:
        raise RefusedOrder("the commit message is not UTF-8", code="BadTrailers") from err
    paragraph = message.rstrip("\n").rpartition("\n\n")[2].split("\n")
    found: dict[str, list[str]] = {"generation": [], "epoch": [], "cluster-id": []}
    for line in paragraph:
        trailer = _TRAILER.fullmatch(line)
        if trailer is None:
            raise RefusedOrder("the last paragraph of the message is not all trailers", code="BadTrailers")
        found.setdefault(trailer[1].lower(), []).append(trailer[2])
    for name in ("generation", "epoch", "cluster-id"):
        if len(found[name]) != 1:
            raise RefusedOrder(f"trailer {name} stands there {len(found[name])} times, not once", code="BadTrailers")
    if not _NUMBER.fullmatch(found["epoch"][0]) or not _NUMBER.fullmatch(found["generation"][0]):
        raise RefusedOrder("epoch or generation is not a plain number", code="BadTrailers")
    if found["cluster-id"][0] != cluster:
        raise RefusedOrder("the commit belongs to another cluster", code="NotOurCluster")
    return int(found["epoch"][0]), int(found["generation"][0])


def _walk(tree: str, proof: Proof, node: str) -> None:
    """Follow the hashes from the commit's tree to the file. Raises RefusedOrder."""
    parts = proof.path.split("/")
    if len(parts) != 4 or parts[:2] != ["allocation", "nodes"] or not _DIR.fullmatch(parts[2]):
        raise RefusedOrder("the path is not that of a node's orders", code="WrongPath")
    if parts[3] != f"{node}.json" or len(proof.trees) != len(parts):
        raise RefusedOrder("the path does not lead to this node's orders", code="WrongPath")
    expected = tree
    for step, (raw, name) in enumerate(zip(proof.trees, parts)):  # noqa: B905 - lengths were compared above
        if object_id("tree", raw) != expected:
            raise RefusedOrder(f"tree object {step} does not have the id it is named by", code="WrongTree")
        expected = _entry(raw, name.encode(), b"40000" if step < len(parts) - 1 else b"100644")
    if object_id("blob", proof.file) != expected:
        raise RefusedOrder("the file does not have the id the tree names", code="WrongBlob")


def _entry(raw: bytes, name: bytes, mode: bytes) -> str:
    """The id of the one entry of that name, which must have that mode."""
    found, at = [], 0
    while at < len(raw):
        space, end = raw.find(b" ", at), raw.find(b"\0", at)
        if not at < space < end or end + 21 > len(raw):
            raise RefusedOrder("a tree object is malformed", code="WrongTree")
        if raw[space + 1 : end] == name:
            found.append((raw[at:space], raw[end + 1 : end + 21].hex()))
        at = end + 21
    if len(found) != 1:
        raise RefusedOrder(f"a tree names {name.decode()} {len(found)} times, not once", code="WrongPath")
    if found[0][0] != mode:
        raise RefusedOrder(f"{name.decode()} has mode {found[0][0].decode('latin-1')}", code="WrongMode")
    return found[0][1]
