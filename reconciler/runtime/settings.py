"""What this reconciler needs to know that must never be in git: `reconciler.toml`.

Remotes, where the credential file lies, the signing key, where to listen. A relative path is taken from the folder
of the file. Rules of scheduling are not here; they are in the cluster's own `cluster.yaml`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from reconciler.errors import UsageError
from reconciler.runtime.forge.comment import OWN
from reconciler.runtime.notices.events import NoticeKind

_TEXT: Final = "text in quotes"
_EVENTS: Final = f"a list of {', '.join(NoticeKind)}"
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
    "agents.visits": _TEXT,
    "agents.serverNames": "a list of names",
    "status.listen": _TEXT,
    "bell.listen": _TEXT,
    "bell.secret": _TEXT,
    "bell.certificate": _TEXT,
    "bell.key": _TEXT,
    "webhook.url": _TEXT,
    "webhook.secret": _TEXT,
    "webhook.events": _EVENTS,
    "command.run": "a list of words",
    "command.events": _EVENTS,
    "forge.repository": _TEXT,
    "forge.token": _TEXT,
    "forge.url": _TEXT,
    "forge.login": _TEXT,
    "logs.dir": _TEXT,
}
_REQUIRED: Final = ("clusterId", "desired.url", "signing.key")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}")
_TOGETHER: Final = (
    ("webhook.url", "webhook.secret"),
    ("forge.repository", "forge.token"),
    ("bell.listen", "bell.secret"),
    ("bell.certificate", "bell.key"),
)
"""Neither without the other: what is sent, or listened to, is signed, and who writes says who it is."""
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
    enroll = "0.0.0.0:7444"      # where nodes get certificates with a token
    visits = "0.0.0.0:7445"      # where people get logs and shells through agents"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """One git remote: its URL, the branch, and the file a credential is read from again at each use."""

    url: str
    branch: str
    credentials: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BellSetting:
    """Where the forge tells of pushes, and the file of the secret it signs them with. Without `certificate`: no TLS."""

    listen: str
    secret: Path
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSetting:
    """Where notices are posted, and the file of the secret they are signed with. `events` None: all."""

    url: str
    secret: Path
    events: frozenset[NoticeKind] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSetting:
    """The program that is run for each notice. `events` None: all."""

    run: tuple[str, ...]
    events: frozenset[NoticeKind] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeSetting:
    """The repository whose pull requests are told what became of them. `login` is who writes the previews there."""

    repository: str
    token: Path
    url: str
    login: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`folder` holds our own bare clone, the parse cache, the id of the last published commit and the outboxes.

    `listen`, `enroll` ("" for no enrolment), `visits` ("" for none) and `status` are `host:port`; `ca` is the folder of the node CA,
    `server_names` what its certificate for this server must be valid for. `logs` is the shared log folder as it is mounted here.
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
    bell: BellSetting | None = None
    webhook: WebhookSetting | None = None
    command: CommandSetting | None = None
    forge: ForgeSetting | None = None
    logs: Path | None = None
    visits: str = ""


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
        why = err.strerror if isinstance(err, OSError) else str(err)
        raise UsageError(
            f"{path} cannot be read: {why}",
            code="SettingsInvalid",
            remedy=f"it is TOML. Its shortest form:\n{_SHORTEST}",
        ) from err
    said = dict(_flat(tree))
    problems = list(_problems(said))
    if problems:
        told = "; ".join(problems)
        raise UsageError(f"{path}: {told}", code="SettingsInvalid", remedy=f"known keys: {', '.join(_KEYS)}")
    return _settings(said, path.resolve().parent)


def host_port(text: str, key: str) -> tuple[str, int]:
    """The two parts of an address that the setting `key` gives. Raises UsageError (SettingsInvalid)."""
    host, _, port = text.rpartition(":")
    if not port.isdigit():
        raise UsageError(
            f"{key} = {text!r} is not HOST:PORT", code="SettingsInvalid", remedy=f'such as {key} = "0.0.0.0:7443"'
        )
    return host, int(port)


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
            elif _KEYS[key] == _EVENTS and not set(value) <= set(NoticeKind):
                yield f"`{key}` is not {_EVENTS}"
        elif not isinstance(value, str) or not value:
            yield f"`{key}` is not {_TEXT}"
    if "bell.certificate" in said and "bell.listen" not in said:
        yield "`bell.listen` is missing"
    for pair in _TOGETHER:
        yield from (f"`{key}` is missing" for key in pair if key not in said and set(pair) & said.keys())
    if "command.events" in said and "command.run" not in said:
        yield "`command.run` is missing"
    if isinstance(name := said.get("forge.repository"), str) and name and not _REPOSITORY.fullmatch(name):
        yield "`forge.repository` is not owner/name"
    for key in ("webhook.url", "forge.url"):
        if isinstance(url := said.get(key), str) and url and not _is_safe(url):
            yield f"`{key}` does not begin with https://"


def _is_safe(url: str) -> bool:
    """Encrypted, or to this machine."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost", "::1"}
    return bool(parts.hostname) and (parts.scheme == "https" or local)


def _settings(said: Mapping[str, object], base: Path) -> Settings:
    def text(key: str, default: str = "") -> str:
        return str(said.get(key, default))

    def path(key: str) -> Path | None:
        return base / text(key) if key in said else None

    def words(key: str) -> tuple[str, ...]:
        found = said.get(key)
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def events(section: str) -> frozenset[NoticeKind] | None:
        return frozenset(map(NoticeKind, words(f"{section}.events"))) or None

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
        server_names=words("agents.serverNames") or ("localhost",),
        status=text("status.listen"),
        enroll=text("agents.enroll"),
        bell=BellSetting(
            listen=text("bell.listen"),
            secret=base / text("bell.secret"),
            certificate=path("bell.certificate"),
            key=path("bell.key"),
        )
        if "bell.listen" in said
        else None,
        webhook=WebhookSetting(url=text("webhook.url"), secret=base / text("webhook.secret"), events=events("webhook"))
        if "webhook.url" in said
        else None,
        command=CommandSetting(run=words("command.run"), events=events("command")) if "command.run" in said else None,
        forge=ForgeSetting(
            repository=text("forge.repository"),
            token=base / text("forge.token"),
            url=text("forge.url", "https://api.github.com"),
            login=text("forge.login", OWN),
        )
        if "forge.repository" in said
        else None,
        logs=path("logs.dir"),
        visits=text("agents.visits"),
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
            "visits": settings.visits,
            "serverNames": list(settings.server_names),
        },
        "status": {"listen": settings.status},
        "bell": _told(settings.bell),
        "webhook": _told(settings.webhook),
        "command": _told(settings.command),
        "forge": _told(settings.forge),
        "logs": {"dir": settings.logs},
    }
    lines = ["# Local settings of one reconciler. Never commit this file."]
    for name, keys in sections.items():
        # A JSON string is a TOML basic string.
        told = [f"{key} = {json.dumps(v if isinstance(v, list) else str(v))}" for key, v in keys.items() if v]
        if told:
            lines += ["", f"[{name}]", *told] if name else told
    return "\n".join(lines) + "\n"


def _told(section: BellSetting | WebhookSetting | CommandSetting | ForgeSetting | None) -> dict[str, object]:
    if section is None:
        return {}
    values = {field.name: getattr(section, field.name) for field in fields(section)}
    return {
        name: sorted(v) if isinstance(v, frozenset) else list(v) if isinstance(v, tuple) else v
        for name, v in values.items()
    }


def _remote(remote: Remote) -> dict[str, object]:
    return {"url": remote.url, "branch": remote.branch, "credentials": remote.credentials}
