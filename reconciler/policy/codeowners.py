"""CODEOWNERS for everything but the job folders, as forges read it: who has to approve a change of which path.

Nobody can approve his own change, so an owner of a job folder would always need a second person. For jobs the check
`gangops/approval` decides instead; a last rule without owners takes their folders out.
"""

from __future__ import annotations

from reconciler.documents.layout import JOBS
from reconciler.policy.authority import Rules, owners_of_paths

_HEAD = """\
# Written by `gangops codeowners` from the admins of the outermost queues; do not edit.
# Job folders have no owners here: the required check gangops/approval decides who may change a job.
"""


def codeowners(rules: Rules) -> bytes:
    """The file's content. Teams and logins as queues spell them, then e-mail addresses; the last match wins."""
    paths = owners_of_paths(rules)
    width = max(map(len, [*paths, f"/{JOBS}"]))
    lines = ["*".ljust(width) + f" {' '.join(rules.owners)}".rstrip()]
    lines += [f"{path.ljust(width)} {' '.join(owners)}".rstrip() for path, owners in paths.items()]
    # No owners: the rule above no longer holds for what is below this folder.
    lines.append(f"/{JOBS}")
    return (_HEAD + "\n".join(lines) + "\n").encode()
