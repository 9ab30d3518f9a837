"""The files a repository needs for its forge: workflows, and rules to import. One text for every place they stand.

The workflows exist twice: to be called from other repositories (`.github/workflows` of this project), and written into
a repository that wants no dependency on another one, as behind a company's own server. Both come from the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files

from reconciler import __version__

NAMES = ("plan", "comment", "approval", "validate", "audit")
_INPUT = re.compile(r"\$\{\{ inputs\.[a-z-]+ \|\| '([^']*)' \}\}")

_TRIGGERS: Mapping[str, str] = {
    "plan": "\n  pull_request:\n  merge_group:",
    "comment": "\n  workflow_run: # zizmor: ignore[dangerous-triggers] it runs nothing of the run's, see above\n"
    "    workflows: [gangops plan]\n    types: [completed]",
    "approval": "\n  pull_request:\n  pull_request_review:\n    types: [submitted, dismissed]\n  merge_group:",
    "validate": "\n  push:\n    branches: [main]",
    "audit": '\n  schedule:\n    - cron: "17 3 * * *"\n  workflow_dispatch:',
}
_RUNNER = (
    "      runner:\n        description: Label of the machine.\n        type: string\n        default: ubuntu-24.04\n"
)
_PACKAGE = (
    "      package:\n        description: What pip installs, such as gangops==1.0.0 or the address of a wheel.\n"
    "        type: string\n        default: gangops\n"
)
_BRANCH = "      state-branch:\n        description: Where the record is.\n        type: string\n        default: allocations\n"
_ARTIFACT = (
    "      artifact:\n        description: Keep the plan as an artefact, from which the comment is made.\n"
    "        type: boolean\n        default: true\n"
)

_INSTALL = """\
      - name: Install gangops
        env:
          PACKAGE: ${{ inputs.package || '{PACKAGE}' }}
        run: | # -I: nothing of the checkout is imported
          python3 -I -m venv "$RUNNER_TEMP/gangops"
          "$RUNNER_TEMP/gangops/bin/pip" install --quiet --disable-pip-version-check -- "$PACKAGE\""""
_RECORD = """\
      - name: Fetch the record
        env:
          TOKEN: ${{ github.token }}
          BRANCH: ${{ inputs.state-branch || 'allocations' }}
        run: |
          export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="http.$GITHUB_SERVER_URL/.extraHeader"
          GIT_CONFIG_VALUE_0="Authorization: Basic $(printf 'x-access-token:%s' "$TOKEN" | base64 -w0)"
          export GIT_CONFIG_VALUE_0
          git fetch --quiet --depth=1 --no-tags origin "+refs/heads/$BRANCH*:refs/remotes/origin/$BRANCH*\""""


def reusable_workflows() -> Mapping[str, str]:
    """Path to text, for callers in other repositories."""
    return {f".github/workflows/gangops-{name}.yml": _reusable(name) for name in NAMES}


def own_workflows(package: str = "", *, artifact: bool = True) -> Mapping[str, str]:
    """Path to text, for a repository that stands alone. Without `artifact` no plan is kept, and so no comment made."""
    names = [name for name in NAMES if artifact or name != "comment"]
    return {f".github/workflows/gangops-{name}.yml": _own(name, package, artifact=artifact) for name in names}


def _template(name: str) -> str:
    text = (files(__package__) / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    return text.replace("{INSTALL}", _INSTALL).replace("{RECORD}", _RECORD)


def _reusable(name: str) -> str:
    inputs = _RUNNER + _PACKAGE
    inputs += _BRANCH if name in {"plan", "approval"} else ""
    inputs += _ARTIFACT if name == "plan" else ""
    text = _template(name).replace("{TRIGGER}", f"\n  workflow_call:\n    inputs:\n{inputs.rstrip()}")
    return text.replace("{ARTIFACT}", "inputs.artifact").replace("{PACKAGE}", "gangops")


def _own(name: str, package: str, *, artifact: bool) -> str:
    text = _template(name).replace("{TRIGGER}", _TRIGGERS[name])
    if not artifact:
        text = text.partition("      - name: Keep the plan")[0]
    text = text.replace(" && {ARTIFACT}", "").replace("{PACKAGE}", package or f"gangops=={__version__}")
    return _INPUT.sub(r"\1", text)


# --- rules ---


def rulesets(state_branch: str = "allocations") -> Mapping[str, str]:
    """Path to text: rules to import under Settings, Rules, Rulesets."""
    refs = {"exclude": [], "include": ["~DEFAULT_BRANCH"]}
    state = {"exclude": [], "include": [f"refs/heads/{state_branch}", f"refs/heads/{state_branch}-*"]}
    writer = {"actor_id": None, "actor_type": "DeployKey", "bypass_mode": "always"}
    rules: dict[str, dict[str, object]] = {
        "main": {
            "name": "gangops: changes are reviewed and checked",
            "conditions": {"ref_name": refs},
            "bypass_actors": [],
            "rules": [
                {"type": "deletion"},
                {"type": "non_fast_forward"},
                {"type": "pull_request", "parameters": _REVIEWS},
                {"type": "required_status_checks", "parameters": _CHECKS},
            ],
        },
        "state-written": {
            "name": f"gangops: the reconciler alone writes {state_branch}",
            "conditions": {"ref_name": state},
            "bypass_actors": [writer],
            "rules": [{"type": "creation"}, {"type": "update"}],
        },
        "state-kept": {
            "name": f"gangops: nobody rewrites {state_branch}",
            "conditions": {"ref_name": state},
            "bypass_actors": [],
            "rules": [{"type": "deletion"}, {"type": "non_fast_forward"}, {"type": "required_signatures"}],
        },
    }
    return {
        f".github/rulesets/gangops-{name}.json": json.dumps(
            {"target": "branch", "enforcement": "active", **rule}, indent=2
        )
        + "\n"
        for name, rule in rules.items()
    }


_REVIEWS = {
    "required_approving_review_count": 0,  # gangops/approval decides; code owners are asked for the rest
    "dismiss_stale_reviews_on_push": True,
    "require_code_owner_review": True,
    "require_last_push_approval": False,
    "required_review_thread_resolution": False,
}
_CHECKS = {
    "strict_required_status_checks_policy": False,
    "required_status_checks": [{"context": "gangops/plan"}, {"context": "gangops/approval"}],
}
