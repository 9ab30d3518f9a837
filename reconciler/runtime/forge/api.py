"""The forge's REST interface, as little of it as a comment needs. Base address and token come from the environment.

The token goes to that address alone: redirections are not followed. Being refused, being asked to slow down and being
unable to get through are told apart, because they mean different things to a check.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import urlencode, urlsplit

from reconciler.errors import GangOpsError, Unreachable, UsageError

_PAGE = 100
_PAGES = 50
_TRIES = 4
_LONGEST_WAIT = 60
_SECONDS = 30
_MOST_BYTES = 16 << 20


class ForgeRefused(GangOpsError):
    """The forge answered, and will not do it. Codes: Forbidden, NotThere, Unprocessable, ForgeFailed."""

    code = "ForgeFailed"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Nothing is followed: the token is for one address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """`base` such as `https://api.github.com` or `https://ghe.example.org/api/v3`. `pause` waits some seconds."""

    base: str
    token: str
    pause: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        parts = urlsplit(self.base)
        local = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost", "::1"}
        if not (parts.scheme == "https" or local) or not parts.netloc or parts.username or parts.query:
            raise UsageError("the forge's address has to be https://", code="UnsafeUrl", remedy="Set GITHUB_API_URL.")

    def get(self, path: str, **query: str) -> Any:
        """One answer. Raises ForgeRefused, Unreachable."""
        return self._call("GET", f"{path}?{urlencode(query)}" if query else path, None)

    def pages(self, path: str, **query: str) -> Iterator[Any]:
        """The rows of all pages, page by page as they are used, 5,000 rows at most."""
        for page in range(1, _PAGES + 1):
            rows = self.get(path, **query, per_page=str(_PAGE), page=str(page))
            if not isinstance(rows, list):
                raise ForgeRefused(f"{path} is no list", code="ForgeFailed")
            yield from rows
            if len(rows) < _PAGE:
                return

    def post(self, path: str, body: object) -> Any:
        """Make something. Raises ForgeRefused, Unreachable."""
        return self._call("POST", path, body)

    def patch(self, path: str, body: object) -> Any:
        """Change something. Raises ForgeRefused, Unreachable."""
        return self._call("PATCH", path, body)

    def _call(self, method: str, path: str, body: object) -> Any:
        for left in reversed(range(_TRIES)):
            try:
                return self._once(method, path, body)
            except urllib.error.HTTPError as err:
                with err:
                    wait = _wait(err.code, err.headers)
                    if wait is None:
                        raise _refusal(err, method, path) from err
                if not left or wait > _LONGEST_WAIT:
                    raise Unreachable(
                        f"the forge asks to wait {wait} s for {method} {path}",
                        code="RateLimited" if err.code in {403, 429} else "RemoteUnreachable",
                        remedy="Run the job again later.",
                    ) from err
                self.pause(wait)
            except (OSError, ValueError) as err:
                if not left or method == "POST":  # it may have got through: a second comment would be worse than none
                    raise Unreachable(f"no answer to {method} {path}: {type(err).__name__}") from err
                self.pause(2)
        raise AssertionError  # the last try returned or raised

    def _once(self, method: str, path: str, body: object) -> Any:
        request = urllib.request.Request(  # noqa: S310  the scheme was checked
            f"{self.base.rstrip('/')}{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
                "User-Agent": "gangops",
                "X-GitHub-Api-Version": "2022-11-28",
            },
        )
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(request, timeout=_SECONDS) as answer:
            return json.loads(answer.read(_MOST_BYTES) or b"null")


def _wait(status: int, headers: Message) -> int | None:
    """Seconds to wait before another try; None when another try changes nothing."""
    if status >= 500:
        return 2
    if status not in {403, 429}:
        return None
    asked = headers.get("retry-after", "")
    if asked.isdigit():
        return int(asked)
    if headers.get("x-ratelimit-remaining") == "0":
        reset = headers.get("x-ratelimit-reset", "")
        return max(1, int(reset) - int(time.time())) if reset.isdigit() else _LONGEST_WAIT
    return _LONGEST_WAIT if status == 429 else None


def _refusal(err: urllib.error.HTTPError, method: str, path: str) -> ForgeRefused:
    code = {401: "Forbidden", 403: "Forbidden", 404: "NotThere", 422: "Unprocessable"}.get(err.code, "ForgeFailed")
    return ForgeRefused(f"the forge answered {err.code} to {method} {path}", code=code)
