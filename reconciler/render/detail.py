"""The page of one job or one node: how it stands now, and what was decided about it. HTML, no script, nothing loaded."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from reconciler.model.units import Instant
from reconciler.render.page import environment, policy, style


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of what holds now."""

    name: str
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One row of who holds what: a node's GPUs and the job that has them."""

    node: str
    gpus: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One decision about it."""

    generation: int
    at: Instant
    commit: str
    action: str
    gpus: int
    job: str
    by: str
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """All of the page. `kind` is `Job` or `Node`; `word` says in one word how it stands, `mood` good, warn, bad or ""."""

    kind: str
    name: str
    cluster: str
    generation: int
    commit: str
    word: str
    mood: str
    why: str
    facts: tuple[Fact, ...]
    held: tuple[Held, ...]
    steps: tuple[Step, ...]
    more_steps: bool


def detail_page(detail: Detail) -> str:
    """The whole page."""
    template = environment().get_template("detail.html.j2")
    return template.render(page=detail, style=Markup(style()), policy=policy())  # noqa: S704  our own file
