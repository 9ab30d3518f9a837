"""Which names may be handed to git? Object ids, revisions, refs, paths inside a tree, and remote addresses.

Git reads a leading `-` as an option and some addresses as commands (`ext::`, `ssh://-oProxyCommand=`).
Everything that comes from a setting, a file or a person passes here first; running git is left to `runner`.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import urlsplit

from reconciler.errors import BrokenInvariant, UsageError

_OBJECT_ID = re.compile(r"[0-9a-f]{40}")
_REF = re.compile(r"refs/[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)+")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_SCP_LIKE = re.compile(r"(?:(?P<user>[^@:/]+)@)?(?P<host>[^:/@]+):(?!:)(?P<path>[^-].*)")
_WORDS_THAT_HURT = re.compile(r"[\x00-\x20\x7f$`\\]|::")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def is_object_id(text: str) -> bool:
    """Whether this is a full SHA-1 object id in lower case."""
    return _OBJECT_ID.fullmatch(text) is not None


def object_id(kind: str, content: bytes) -> str:
    """The id git gives to an object (`blob`, `tree` or `commit`) of this content."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def checked_object_id(text: str) -> str:
    """The same id. Raises BrokenInvariant: ids come from git, never from people."""
    if not is_object_id(text):
        raise BrokenInvariant(f"not an object id: {text[:60]!r}")
    return text


def is_ref(text: str) -> bool:
    """Whether this is a full ref name that is safe to hand to git."""
    return _REF.fullmatch(text) is not None and ".." not in text and not any(
        part.endswith((".lock", ".")) for part in text.split("/")
    )  # fmt: skip


def checked_ref(ref: str) -> str:
    """The same full ref name (`refs/heads/main`). Raises UsageError(UnsafeRef)."""
    if not is_ref(ref):
        raise UsageError(
            f"{ref[:80]!r} cannot be used as a branch",
            code="UnsafeRef",
            remedy="Use a full name of letters, digits, '.', '_' and '-', such as refs/heads/main.",
        )
    return ref


def checked_revision(revision: str) -> str:
    """The same revision as a person may type it (`main~2`, `HEAD`). Raises UsageError(UnsafeRevision)."""
    if not revision or revision.startswith("-") or re.search(r"[\x00-\x20\x7f]", revision):
        raise UsageError(
            f"{revision[:80]!r} cannot be used as a revision",
            code="UnsafeRevision",
            remedy="Give a branch, a tag or a commit id, such as origin/main.",
        )
    return revision


def checked_path(path: str) -> str:
    """The same path inside a tree we write. Raises BrokenInvariant: we choose these names ourselves."""
    parts = path.split("/")
    hurts = _CONTROL.search(path) or path.startswith('"')
    if hurts or any(part in {"", ".", ".."} or part.lower() == ".git" for part in parts):
        raise BrokenInvariant(f"not a path of the state tree: {path[:120]!r}")
    return path


def checked_url(url: str, protocols: frozenset[str]) -> str:
    """The same remote address, known to be no command, no option and to carry no secret.

    Understood: `https://`, `ssh://`, `user@host:path`, and absolute paths when `file` is among `protocols`.
    Raises: UsageError(SecretInUrl) and UsageError(UnsafeUrl); the text never shows the secret.
    """
    problem = _problem_of_url(url, protocols)
    if problem == "secret":
        raise UsageError(
            "the remote address carries a password",
            code="SecretInUrl",
            remedy="Take it out of the address and put it into the credential file named in reconciler.toml.",
        )
    if problem:
        raise UsageError(
            f"the address of the repository is refused: {problem}",
            code="UnsafeUrl",
            remedy="Such as https://git.example.org/acme/cluster.git or git@git.example.org:acme/cluster.git.",
        )
    return url


def url_origin(url: str) -> str:
    """`https://host[:port]` of an address: the only place its credentials are ever offered to. Else ''."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.scheme in {"http", "https"} else ""


def _problem_of_url(url: str, protocols: frozenset[str]) -> str:
    if not url or url.startswith("-") or _WORDS_THAT_HURT.search(url):
        return "it looks like an option or a command"
    if url.startswith("/"):
        return "" if "file" in protocols else "local paths are not allowed"
    if "://" not in url:
        return _problem_of_scp_like(url, protocols)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "it cannot be read"
    if parts.password is not None or "@" in (parts.username or ""):
        return "secret"
    if parts.scheme not in protocols:
        return "its protocol is not allowed"
    if parts.scheme == "file":
        return "" if not parts.netloc and parts.path.startswith("/") else "it cannot be read"
    if parts.username is not None and not _USER.fullmatch(parts.username):
        return "its user name cannot be read"
    host = parts.netloc.rpartition("@")[2]
    bare_host = host if host.endswith("]") or ":" not in host else host.rpartition(":")[0]
    return "" if _HOST.fullmatch(bare_host) else "its host cannot be read"


def _problem_of_scp_like(url: str, protocols: frozenset[str]) -> str:
    if re.match(r"[^/@]*:[^/@]*@", url):
        return "secret"
    match = _SCP_LIKE.fullmatch(url)
    if match is None:
        return "it cannot be read"
    if "ssh" not in protocols:
        return "its protocol is not allowed"
    if match["user"] is not None and not _USER.fullmatch(match["user"]):
        return "its user name cannot be read"
    return "" if _HOST.fullmatch(match["host"]) else "its host cannot be read"
