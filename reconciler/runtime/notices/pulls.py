"""A hook that is the pull request itself: its comment says what really happened.

Only the comment that showed the preview is written to; a pull request without one is left alone. What the comment says
is worked out in `forge.happened`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reconciler.errors import Unreachable
from reconciler.render.plan.markdown import marker
from reconciler.runtime.forge.api import Api, ForgeRefused
from reconciler.runtime.forge.comment import own_comment
from reconciler.runtime.forge.happened import with_notice
from reconciler.runtime.notices.events import Moment, Notice
from reconciler.runtime.notices.hooks import HookRefused, HookUnavailable

_BRIEF = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequests:
    """Comments of one repository on a forge. `login` is who wrote the previews; the token is read again each time."""

    url: str
    repository: str
    token: Path
    login: str

    @property
    def name(self) -> str:
        return "forge"

    def wants(self, notice: Notice) -> bool:
        """Whether it is about a job that a pull request brought."""
        return notice.job is not None and bool(notice.requests)

    def send(self, notice: Notice, moment: Moment) -> None:
        """Bring the comments up to date. Raises: HookUnavailable, HookRefused."""
        try:
            api = Api(base=self.url, token=self.token.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as err:
            raise HookUnavailable(f"the forge's token {self.token} cannot be read", remedy=str(err)) from err
        try:
            for number in notice.requests:
                self._update(api, int(number), notice, moment)
        except Unreachable as err:
            raise HookUnavailable(err.message) from err
        except ForgeRefused as err:
            raise HookRefused(err.message) from err

    def _update(self, api: Api, number: int, notice: Notice, moment: Moment) -> None:
        found = own_comment(api, self.repository, number, marker(moment.desired.cluster), self.login)
        if found is None:
            return
        before, path = str(found["body"]), f"/repos/{self.repository}/issues/comments/{int(found['id'])}"
        after = with_notice(before, str(number), notice, moment)
        if after == before:
            return
        try:
            api.patch(path, {"body": after})
        except ForgeRefused as err:
            if err.code != "Unprocessable":
                raise
            api.patch(path, {"body": with_notice(before, str(number), notice, moment, most=_BRIEF)})
