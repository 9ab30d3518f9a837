"""Does this environment value look like a secret? Judged by name and by shape; the value is never repeated.

Documents are public to everyone who can read the repository, and stay so in its history. Erring towards asking is
right: the remedy costs one line.
"""

from __future__ import annotations

import re
from collections import Counter
from math import log2
from typing import Final

_SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|(?:API|ACCESS|PRIVATE|SECRET|AUTH|SSH|ENCRYPTION|SIGNING|ACCOUNT)_KEY)(?:_ID)?$"
    r"|_KEY$"
)
_KNOWN_SHAPES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("an AWS access key", re.compile(r"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])")),
    ("a Hugging Face token", re.compile(r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{20,}")),
    ("a GitHub token", re.compile(r"(?<![A-Za-z0-9])(?:gh[opsur]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})")),
    ("a GitLab token", re.compile(r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{20,}")),
    ("an API key", re.compile(r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{20,}")),
    ("a Slack token", re.compile(r"(?<![A-Za-z0-9])xox[abprs]-[A-Za-z0-9-]{10,}")),
    ("a JSON web token", re.compile(r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("a password in an address", re.compile(r"[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/@$]+@")),
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9+/_-]{32,}={0,2}")
_UNBROKEN: Final = re.compile(r"[A-Za-z0-9]{20,}")  # words joined by dashes are no token
_HARMLESS: Final = re.compile(r"|true|false|[0-9]{1,9}|\$\{?[A-Za-z_][A-Za-z0-9_]*\}?|/[^\s]*|https?://[^\s@]*")
_BITS: Final = 3.5  # per character: random base64 of 32 has about 4.5, random hex 3.7, words and paths less


def secret_kind(name: str, value: str) -> str | None:
    """What the value of this variable looks like, such as "a GitHub token"; None when it looks harmless."""
    for kind, shape in _KNOWN_SHAPES:
        if shape.search(value):
            return kind
    if _HARMLESS.fullmatch(value):
        return None
    if _SECRET_NAME.search(name.upper()):
        return "a secret, by its name"
    return "a random token" if _is_random(value) else None


def _is_random(value: str) -> bool:
    mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    return mixed and bool(_TOKEN.fullmatch(value) and _UNBROKEN.search(value)) and _entropy(value) >= _BITS


def _entropy(text: str) -> float:
    """Bits a character, by how often each occurs."""
    return -sum(n / len(text) * log2(n / len(text)) for n in Counter(text).values())
