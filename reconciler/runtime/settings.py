"""What this reconciler needs to know that must never be in git: `reconciler.toml`.

Remotes, where the credential file lies, the signing key, where to listen. A relative path is taken from the folder
of the file. Rules of scheduling are not here; they are in the cluster's own `cluster.yaml`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reconciler.errors import UsageError

_TEXT: Final = "text in quotes"
_KEYS: Final[Mapping[str, str]] = {
    "clusterId": _TEXT,
    "folder": _TEXT,
    "desired.url": _TEXT,
    "desired.branch": _TEXT,
    "desired.credentials": _TEXT,
    "state.url": _TEXT,
    "state.branch": _TEXT,
    "state.credentials": _TEXT,
    "signing.key": _TEXT,
    "signing.identity": _TEXT,
    "agents.listen": _TEXT,
    "agents.ca": _TEXT,
    "agents.enroll": _TEXT,
    "agents.serverNames": "a list of names",
    "status.listen": _TEXT,
}
_REQUIRED: Final = ("clusterId", "desired.url", "signing.key")
_SHORTEST: Final = """\
    clusterId = "my-cluster"
    [desired]
    url = "https://git.example.org/acme/cluster.git"
    [signing]
    key = "signing.key"          # ssh-keygen -t ed25519 -N '' -f signing.key
    [agents]
    listen = "0.0.0.0:7443"
    ca = "ca"                    # gangops ca init ca --cluster my-cluster
    serverNames = ["localhost"]  # how nodes call this machine
    enroll = "0.0.0.0:7444"      # where nodes get certificates with a token"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """One git remote: its URL, the branch, and the file a credential is read from again at each use."""

    url: str
    branch: str
    credentials: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`folder` holds our own bare clone, the parse cache and the id of the last published commit.

    `listen`, `enroll` ("" for no enrolment) and `status` are `host:port`; `ca` is the folder of the node CA, `server_names` what its certificate
    for this server must be valid for.
    """

    cluster_id: str
    desired: Remote
    state: Remote
    folder: Path
    signing_key: Path
    identity: str
    listen: str
    ca: Path | None
    server_names: tuple[str, ...]
    status: str
    enroll: str = ""


def read_settings(path: Path) -> Settings:
    """Raises UsageError (SettingsMissing, SettingsInvalid) that names each wrong key and what to write."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise UsageError(
            f"there is no {path}",
            code="SettingsMissing",
            remedy=f"name it with --settings or GANGOPS_SETTINGS, or write one. Its shortest form:\n{_SHORTEST}",
        ) from err
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise UsageError(f"{path} cannot be read: {err}", code="SettingsInvalid") from err
    said = dict(_flat(tree))
    problems = list(_problems(said))
    if problems:
        told = "; ".join(problems)
        raise UsageError(f"{path}: {told}", code="SettingsInvalid", remedy=f"known keys: {', '.join(_KEYS)}")
    return _settings(said, path.resolve().parent)


def _flat(tree: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Keys with their section in front, as `desired.url`."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _problems(said: Mapping[str, object]) -> Iterator[str]:
    for key in sorted({*said, *_REQUIRED}):
        value = said.get(key)
        if key not in said:
            yield f"`{key}` is missing"
        elif key not in _KEYS:
            yield f"`{key}` is not a setting"
        elif _KEYS[key] != _TEXT:
            if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
                yield f"`{key}` is not {_KEYS[key]}"
        elif not isinstance(value, str) or not value:
            yield f"`{key}` is not {_TEXT}"


def _settings(said: Mapping[str, object], base: Path) -> Settings:
    def text(key: str, default: str = "") -> str:
        return str(said.get(key, default))

    def path(key: str) -> Path | None:
        return base / text(key) if key in said else None

    names = said.get("agents.serverNames", ["localhost"])
    return Settings(
        cluster_id=text("clusterId"),
        desired=Remote(
            url=text("desired.url"), branch=text("desired.branch", "main"), credentials=path("desired.credentials")
        ),
        state=Remote(
            url=text("state.url", text("desired.url")),
            branch=text("state.branch", "allocations"),
            # One repository has one credential, unless it is said otherwise.
            credentials=path("state.credentials") or (None if "state.url" in said else path("desired.credentials")),
        ),
        folder=base / text("folder", "state"),
        signing_key=base / text("signing.key"),
        identity=text("signing.identity", "gangops <gangops@localhost>"),
        listen=text("agents.listen"),
        ca=path("agents.ca"),
        server_names=tuple(names) if isinstance(names, list) else (),
        status=text("status.listen"),
        enroll=text("agents.enroll"),
    )


def settings_text(settings: Settings) -> str:
    """The file that reads back as these settings, with absolute paths."""
    sections: dict[str, dict[str, object]] = {
        "": {"clusterId": settings.cluster_id, "folder": settings.folder},
        "desired": _remote(settings.desired),
        "state": _remote(settings.state),
        "signing": {"key": settings.signing_key, "identity": settings.identity},
        "agents": {
            "listen": settings.listen,
            "ca": settings.ca,
            "enroll": settings.enroll,
            "serverNames": list(settings.server_names),
        },
        "status": {"listen": settings.status},
    }
    lines = ["# Local settings of one reconciler. Never commit this file."]
    for name, keys in sections.items():
        # A JSON string is a TOML basic string.
        told = [f"{key} = {json.dumps(v if isinstance(v, list) else str(v))}" for key, v in keys.items() if v]
        if told:
            lines += ["", f"[{name}]", *told] if name else told
    return "\n".join(lines) + "\n"


def _remote(remote: Remote) -> dict[str, object]:
    return {"url": remote.url, "branch": remote.branch, "credentials": remote.credentials}
