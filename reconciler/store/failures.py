"""What did git's complaint mean, and what of it may be shown?

One table turns the text of a failed git command into one of our errors; `redact` removes secrets from any
text before anyone sees it. Git is run with LC_ALL=C, so its words are stable enough to be read. Telling the
outcomes of a push apart is left to `publish`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from reconciler.errors import GangOpsError, StoreError, Unreachable, UsageError

_USERINFO = re.compile(r"(?<=://)[^/\s'\"]*@")
_SCP_PASSWORD = re.compile(r"\b[\w.+-]+:[^\s@/:]+@(?=[\w.-]+:)")
_HEADER = re.compile(r"(?i)\b((?:proxy-)?authorization\s*[:=]\s*)(?:(?:basic|bearer|token)\s+)?\S+")
_QUERY = re.compile(r"(?i)\b((?:access_|private_|job_|api)?(?:token|key|secret|password|passwd)=)[^\s&'\"]+")
_KNOWN_TOKENS = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|gl[a-z]{2,5}-[\w-]{16,}|ATBB[A-Za-z0-9]{16,}|"
    r"xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{16})"
)
_MASK = "***"


def redact(text: str, secrets: tuple[str, ...] = ()) -> str:
    """The text without credentials: those given, those in addresses and headers, and well-known token shapes."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, _MASK)
    text = _USERINFO.sub(f"{_MASK}@", text)
    text = _SCP_PASSWORD.sub(f"{_MASK}@", text)
    text = _HEADER.sub(rf"\1{_MASK}", text)
    text = _QUERY.sub(rf"\1{_MASK}", text)
    return _KNOWN_TOKENS.sub(_MASK, text)


Make = Callable[[str], GangOpsError]


def _store(code: str, remedy: str) -> Make:
    return lambda text: StoreError(text, code=code, remedy=remedy)


def _unreachable(code: str, remedy: str) -> Make:
    return lambda text: Unreachable(text, code=code, remedy=remedy)


_REMOTE_IS_DAMAGED = re.compile(r"repository corruption on the remote side|bad pack header")

# First match wins. The words are git's, libcurl's and OpenSSH's. Lines that the remote sent do not count here.
_ABOUT_US: tuple[tuple[re.Pattern[str], Make], ...] = (
    (
        re.compile(r"No space left on device|Out of diskspace|Disk quota exceeded|File too large"),
        _store("LocalStorageFull", "Free space in the state folder; the next round continues by itself."),
    ),
    (
        re.compile(r"detected dubious ownership"),
        _store("ForeignClone", "The clone belongs to another user: run as its owner, or use a clone of your own."),
    ),
    (
        re.compile(r"not a git repository|cannot use bare repository"),
        _store("NotAClone", "Run this inside a git clone, or make one with `gangops init`."),
    ),
    (
        re.compile(r"Unable to create '[^']*\.lock': File exists|could not lock config file"),
        _store("CloneLocked", "Another git works on this clone, or died in it; it is looked after by itself."),
    ),
    (
        re.compile(
            r"object file \S+ is empty|[Ll]oose object \S+ .*is corrupt|(?<!remote: )fatal: bad object|unable to read (?:tree|sha1)|"
            r"packfile \S+ (?:cannot be|is far|index|does not|claims)|index file \S+ is too small|non-monotonic index|"
            r"missing (?:blob|tree|commit) object|inflate: data stream error|unable to unpack|hash mismatch|"
            r"Could not read [0-9a-f]{40}|[Ff]ailed to traverse parents|bad config line|cannot lock ref .*reference broken"
        ),
        _store("CloneBroken", "The clone is only a cache: it is thrown away and made again."),
    ),
    (
        re.compile(r"transport '[^']*' not allowed|unable to find remote helper for"),
        lambda text: UsageError(text, code="UnsafeUrl", remedy="Use an https:// or ssh address."),
    ),
)

_ABOUT_THE_REMOTE: tuple[tuple[re.Pattern[str], Make], ...] = (
    (  # before the general "unable to access", which libcurl puts in front of these
        re.compile(
            r"Authentication failed|could not read (?:Username|Password)|terminal prompts disabled|"
            r"Permission denied \(|Permission to \S+ denied|HTTP Basic: Access denied|"
            r"requested URL returned error: 40[13]|Host key verification failed|Too many authentication failures"
        ),
        _unreachable(
            "AuthenticationFailed",
            "Renew the credentials. A reconciler reads its credential file again at every attempt.",
        ),
    ),
    (
        re.compile(r"couldn't find remote ref|Remote branch \S+ not found"),
        _store("SourceMissing", "Push the branch again, or correct its name in reconciler.toml."),
    ),
    (
        re.compile(
            r"Could not resolve host|Name or service not known|[Ff]ailed to connect|Connection (?:refused|reset|timed out)|"
            r"Operation timed out|Network is unreachable|No route to host|unable to access 'http|unable to connect|"
            r"Could not read from remote repository|remote end hung up|early EOF|unexpected disconnect|"
            r"does not appear to be a git repository|[Rr]epository .*(?:not found|does not exist)|RPC failed|"
            r"Connection closed|invalid index-pack output"
        ),
        _unreachable(
            "RemoteUnreachable", "`git ls-remote` with that address tells more. Running jobs go on meanwhile."
        ),
    ),
)


def failure_of(stderr: str) -> GangOpsError:
    """The error a failed git command amounts to; `stderr` must have been redacted.

    Lines of the remote (`remote: ...`) are shown but do not speak about our own disk and clone. What no row of the table
    knows is StoreError(GitFailed).
    """
    text = shown(stderr) or "git failed without a word"
    ours = "\n".join(line for line in stderr.splitlines() if not line.startswith("remote:"))
    if _REMOTE_IS_DAMAGED.search(stderr):
        return Unreachable(text, remedy="The repository at the remote is damaged: its operators can mend it.")
    for table, heard in ((_ABOUT_US, ours), (_ABOUT_THE_REMOTE, stderr)):
        for pattern, make in table:
            if pattern.search(heard):
                return make(text)
    return StoreError(text, code="GitFailed", remedy="Run `gangops doctor`; the local clone is only a cache.")


_SAYS_NOTHING = re.compile(
    r"fatal: Could not read from remote repository|Please make sure you have the correct access|and the repository exists"
)


def shown(text: str) -> str:
    """The first lines of what git or the remote said, without hints, as plain text that no terminal obeys."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("hint:")]
    telling = [line.removeprefix("fatal: ") for line in lines if not _SAYS_NOTHING.match(line)]
    plain = "\n".join((telling or lines)[:12]).encode("ascii", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in plain)[:2000]
