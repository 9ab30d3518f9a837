"""Every form a plan is printed in, by name, and the exit status that goes with it."""

from __future__ import annotations

from reconciler.errors import ExitStatus
from reconciler.render.plan.machine import plan_text_json
from reconciler.render.plan.markdown import plan_markdown
from reconciler.render.plan.model import Plan
from reconciler.render.plan.text import plan_text


def printed(plan: Plan, form: str, width: int | None = None) -> str:
    """The plan as `table`, `json` (also under the name of `yaml`, of which it is a part), `markdown`, `html`, or as the
    `trailers` by which a merge commit tells what its preview had shown."""
    if form in {"json", "yaml"}:
        return plan_text_json(plan)
    if form == "markdown":
        return plan_markdown(plan)
    if form == "html":
        from reconciler.render.plan.page import plan_page

        return plan_page(plan)
    if form == "trailers":
        return "\n".join(f"{key}: {value}" for key, value in trailers_of(plan))
    return plan_text(plan, width)


def trailers_of(plan: Plan) -> tuple[tuple[str, str], ...]:
    """What a merge commit says of this plan."""
    victims = plan.victims
    return (
        ("Preview-Digest", f"sha256:{plan.basis.digest}"),
        ("Preview-State", f"{plan.basis.generation} {plan.basis.state}"),
        ("Preview-Victims", ", ".join(sorted(row.job for row in victims)) or "none"),
        ("Preview-Lost", str(sum(row.lost_gpu_seconds for row in victims))),
    )


def exit_status(plan: Plan) -> ExitStatus:
    """MASS_REMOVAL before INVALID before OK."""
    if plan.removals:
        return ExitStatus.MASS_REMOVAL
    return ExitStatus.INVALID if plan.errors or not plan.decided else ExitStatus.OK
