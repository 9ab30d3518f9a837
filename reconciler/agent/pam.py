"""May this person come to this node by ssh, and in whose bounds are they then? Asked by sshd through pam_exec.

Who has ranks on the node under their own unix user gets in; their session joins the cgroup of the newest one, and so
has its devices, memory and CPUs, and ends with it. Everybody else is refused, and so is everybody when something here
is wrong; only root, whom sshd's own settings judge, passes. Read from what shims write: no agent has to run.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reconciler.agent import cgroups, proc
from reconciler.agent.folder import read_facts
from reconciler.errors import ExitStatus, GangOpsError

WAY = "`gangops shell JOB` opens a terminal in any job you hold"


class NotAdmitted(GangOpsError):
    """Nobody is let in for that. Codes: NoJobHere, NotBound, UnknownUser, BadPamCall."""

    code = "NoJobHere"
    exit_status = ExitStatus.INVALID


@dataclass(frozen=True)
class Place:
    """A rank that runs: whose it is, since when (ns), and the cgroups it is in."""

    uid: int
    since: int
    job: str
    status: Path
    hierarchies: list[cgroups.Hierarchy]
    cgroup: str

    def runs(self) -> bool:
        """Whether it still does, and nobody has ended it."""
        facts = read_facts(self.status)
        ended = {"exit", "termAt", "gone"} & facts.keys()
        return "startedAt" in facts and not ended and proc.is_alive(int(facts["pid"]), int(facts["start"]))


def answer(
    asked: Mapping[str, str], attempts: Path, node: str, caller: int, *,
    join: Callable[[list[cgroups.Hierarchy], str, int], None] = cgroups.adopt,
) -> str:  # fmt: skip
    """What pam_exec asks in its environment, answered: "" or a sentence for the person. Raises NotAdmitted.

    `attempts` is the folder of the agent's attempts, `caller` the process that is to be bound: sshd's for this session.
    """
    phase, user = asked.get("PAM_TYPE", ""), asked.get("PAM_USER", "")
    if phase == "close_session":
        return ""
    if phase not in ("account", "open_session"):
        raise NotAdmitted(f"pam_exec asks for {phase or 'nothing'}: this is for account and session", code="BadPamCall")
    uid = _uid_of(user)
    if uid == 0:
        return ""
    place = _newest(attempts, uid, user, node)
    if phase == "account":
        return ""
    try:
        join(place.hierarchies, place.cgroup, caller)
    except OSError as err:
        raise NotAdmitted(f"this session cannot be bound to {place.job}: {err.strerror}", code="NotBound") from err
    if not place.runs():  # what came into its cgroup before it ended is ended with it; after that, by nobody
        raise NotAdmitted(f"{place.job} has just ended on {node}")
    return f"gangops: in the bounds of {place.job}, and only as long as it runs here"


def _uid_of(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError) as err:
        raise NotAdmitted(f"there is no user {user[:64]!r} here", code="UnknownUser") from err


def _newest(attempts: Path, uid: int, user: str, node: str) -> Place:
    places = [place for place in _places(attempts) if place.uid == uid and place.runs()]
    if not places:
        raise NotAdmitted(f"no job runs as {user} on {node}", remedy=f"`gangops get jobs` says where; {WAY}")
    bound = [place for place in places if place.cgroup]
    if not bound:
        raise NotAdmitted(f"jobs on {node} have no cgroup to be in", code="NotBound", remedy=WAY)
    return max(bound, key=lambda place: (place.since, place.job))


def _places(attempts: Path) -> Iterator[Place]:
    """Every rank that ever wrote a status; what cannot be read is nobody's."""
    for file in sorted(attempts.glob("**/spec.json")):
        try:
            spec: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if spec["boot"] != proc.boot_id():
            continue
        job = file.parent.parent.relative_to(attempts).as_posix()
        for launched in spec["processes"]:
            status = file.parent / f"{launched['rank']}.status"
            if launched["uid"] is not None and (since := read_facts(status).get("startedAt")):
                yield Place(launched["uid"], int(since), job, status, spec["cgroups"], launched["cgroup"])


def main(conf_file: Path) -> int:
    """The verb: exit 0 lets in, anything else does not. What the person is told goes to stdout."""
    from reconciler.agent.conf import read_conf

    try:
        conf = read_conf(conf_file)
        told = answer(os.environ, conf.state_dir / "attempts", conf.node, os.getppid())
    except GangOpsError as err:
        print(f"gangops: {err.message}" + (f"; {err.remedy}" if err.remedy else ""))  # noqa: T201 - pam_exec passes it on
        return int(err.exit_status)
    if told:
        print(told)  # noqa: T201 - pam_exec passes it on
    return int(ExitStatus.OK)
