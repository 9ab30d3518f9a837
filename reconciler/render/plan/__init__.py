"""What a change would do, as one value, and that value as text, markdown, JSON and HTML.

Belongs here: the difference between two decisions, told to people, and the escaping that makes it safe to show
anywhere. Does not belong here: reading trees, deciding, the forge's API.
"""

from reconciler.render.plan.build import Side, plan_of, refused_plan
from reconciler.render.plan.machine import plan_json
from reconciler.render.plan.markdown import plan_markdown
from reconciler.render.plan.model import Basis, Finding, Plan, Removal, Row, Step
from reconciler.render.plan.text import plan_text

__all__ = [
    "Basis", "Finding", "Plan", "Removal", "Row", "Side", "Step", "plan_json", "plan_markdown", "plan_of", "plan_text",
    "refused_plan",
]  # fmt: skip
