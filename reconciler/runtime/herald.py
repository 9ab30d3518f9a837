"""What does the loop say of a round, to the log, the metrics and whoever wants notices?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from reconciler.documents.withheld import withheld_of
from reconciler.model.decision import Action
from reconciler.model.observed import Observed
from reconciler.model.units import GpuSeconds, NodeName
from reconciler.policy.previewed import RULE as PLAN_DIFFERS
from reconciler.render.story import subject
from reconciler.runtime.condition import Condition, surprises_in
from reconciler.runtime.generation import NextGeneration
from reconciler.runtime.notices.teller import Teller
from reconciler.runtime.requests import news
from reconciler.runtime.status_server import LoopMetrics

Report = Callable[[str, Mapping[str, object]], None]


class Herald:
    """`report` is called with an event name and its fields."""

    def __init__(self, report: Report, metrics: LoopMetrics, teller: Teller | None) -> None:
        self._report, self._metrics, self._teller = report, metrics, teller
        self._refusing: dict[NodeName, str] = {}

    def refusals(self, observed: Observed) -> None:
        """Each node that stopped or began again to accept our orders, once."""
        refusing = {name: seen.refused for name, seen in observed.nodes.items() if seen.refused}
        for node in sorted(refusing.keys() | self._refusing.keys()):
            if refusing.get(node) != self._refusing.get(node):
                self._report(
                    "node-refuses" if node in refusing else "node-accepts",
                    {"node": node, "reason": refusing.get(node, "")},
                )
        self._refusing = refusing

    def published(self, following: NextGeneration, commit: str, taken: Sequence[str]) -> None:
        """A generation is on record. `taken`: what it takes in besides what it decides."""
        evicted = [c.job for c in following.decision.changes if c.action is Action.PREEMPT]
        before = following.inputs.previous.allocation.jobs
        lost = sum(following.allocation.jobs[job].lost_work - before[job].lost_work for job in evicted)
        self._metrics.preempted(len(evicted), GpuSeconds(lost))
        if self._teller is not None:
            self._teller.published(following, commit)
        self._report(
            "published",
            {
                "generation": following.summary.generation,
                "commit": commit[:12],
                "changes": subject(following.decision, "", taken),
            },
        )
        self._told_of(following)

    def _told_of(self, following: NextGeneration) -> None:
        """What people have to look at: surprises, and changes that wait for somebody."""
        kept = following.inputs.previous.allocation.jobs
        for record in surprises_in(following.allocation):
            if record is not kept.get(record.job):
                self._report(PLAN_DIFFERS, {"job": record.job, "what": record.reason.number("message"), "held": True})
        for request in news(following.inputs.previous.observed.requests, following.inputs.observed.requests):
            told = {"request": request.id, "asks": request.asked, "by": request.by, "standing": request.standing.value}
            why = {"refused": request.refusal.value, "told": request.told} if request.refusal is not None else {}
            self._report("request", {**told, **why})
        for one in following.summary.differs:
            self._report(PLAN_DIFFERS, {"job": one.job, "what": one.told, "preview": one.preview, "held": False})
        known = {(one.path, one.blob) for one in withheld_of(following.inputs.previous.frozen)}
        for change in withheld_of(following.inputs.frozen):
            if (change.path, change.blob) not in known:
                lacks, who = change.needs[0].need, list(change.who)
                fields = {"file": change.path, "commit": change.commit[:12], "lacks": lacks, "who": who}
                self._report("withheld", fields)

    def became(self, condition: Condition) -> None:
        """The reconciler is otherwise than before."""
        told = {
            "reason": condition.reason,
            "message": condition.message.splitlines()[0] if condition.message else "",
            "remedy": condition.remedy,
        }
        self._report("ready" if condition.ready else "stalled" if condition.stalled else "degraded", told)
