"""Which image is meant, and does this node allow it? Names of registries are brought into one form first; pure.

An allowed entry is a registry or a part of one (`nvcr.io/nvidia`), or a folder on the node for image files.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_HOST = r"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?(?::[0-9]{1,5})?)"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:docker://)?(?:(?P<host>{_HOST})[/#])?(?P<name>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][-.A-Za-z0-9_]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True)
class Image:
    """An image by registry, name, tag and digest, or by `file`, an absolute path."""

    host: str = ""
    name: str = ""
    tag: str = ""
    digest: str = ""
    file: str = ""

    @property
    def reference(self) -> str:
        """In full, as docker and podman write it. A digest decides alone."""
        return f"{self.host}/{self.name}{self._version}"

    @property
    def for_enroot(self) -> str:
        """In full, as enroot writes it."""
        return f"{self.host}#{self.name}{self._version}"

    @property
    def _version(self) -> str:
        return f"@{self.digest}" if self.digest else f":{self.tag or 'latest'}"

    @property
    def key(self) -> str:
        """A file name for it."""
        return hashlib.sha256(self.reference.encode()).hexdigest()[:32]


def image_of(text: str) -> Image | None:
    """The image a job names; None when it is no name. `ubuntu` is `docker.io/library/ubuntu:latest`, as everywhere."""
    if text.startswith("/"):
        return Image(file=text) if ".." not in text.split("/") and text.isprintable() else None
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return None
    host, name = found["host"] or "", found["name"]
    if host and "#" not in text and not ("." in host or ":" in host or host == "localhost"):
        host, name = "", f"{host}/{name}"  # a first part that is no host belongs to the name
    host = host or "docker.io"
    if host in ("index.docker.io", "registry-1.docker.io"):
        host = "docker.io"
    if host == "docker.io" and "/" not in name:
        name = f"library/{name}"
    return Image(host=host, name=name, tag=found["tag"] or "", digest=found["digest"] or "")


def is_allowed(image: Image, registries: tuple[str, ...]) -> bool:
    """Whether an entry of `limits.registries` covers it. A file needs more than this: no link may lead to it."""
    if image.file:
        return any(root.startswith("/") and image.file.startswith(root.rstrip("/") + "/") for root in registries)
    full = f"{image.host}/{image.name}"
    return any(full == entry or full.startswith(entry + "/") for entry in (r.rstrip("/") for r in registries))
