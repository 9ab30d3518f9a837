"""What is desired, with the requests that are in force laid over it: a value again, that can only ask for less.

Nodes are cordoned or drained, jobs marked as asked for by somebody, an array whole or some of its tasks; what a marked job becomes is for `classify`.
Who may ask was judged before; a request that is over lies on nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from reconciler.model.desired import Desired, Window
from reconciler.model.inventory import Inventory
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.request import Ask, Request
from reconciler.model.units import Instant, JobKey, NodeName, document_of

_STRENGTH: Final = {Ask.CANCEL: 0, Ask.SUSPEND: 1, Ask.FREEZE: 2}


def as_requested(desired: Desired, requests: Mapping[str, Request], now: Instant) -> Desired:
    """What counts at `now`. The same object when no request is in force."""
    standing = [requests[name] for name in sorted(requests) if requests[name].in_force(now)]
    if not standing:
        return desired
    whole = next((r for r in standing if r.ask is Ask.FREEZE and not r.queue), None)
    return replace(
        desired,
        inventory=_cordoned(desired.inventory, standing),
        windows=(*desired.windows, *_drains(standing)),
        blocked=desired.blocked or (f"request {whole.id}" if whole is not None else ""),
        asked=_asked(desired, standing),
    )


def why_asked(request: Request) -> Reason:
    """The reason of a job that a request stops or keeps from starting."""
    code = ReasonCode.FROZEN if request.ask is Ask.FREEZE else ReasonCode.REQUESTED
    told = {"what": request.target} if request.ask is Ask.FREEZE else {"done": request.ask.done if request.ask else ""}
    return reason(
        code, **told, by=request.by, until=request.expires, request=request.id, message=request.reason or "no reason given"
    )  # fmt: skip


def _cordoned(inventory: Inventory, standing: Iterable[Request]) -> Inventory:
    why: dict[NodeName, str] = {}
    for request in standing:
        if request.ask is Ask.CORDON:
            told = f"request {request.id} by {request.by}: {request.reason or 'no reason given'}"
            why.update({node: told for node in request.nodes if node not in why})
    if not why:
        return inventory
    nodes = tuple(
        replace(node, cordoned=why[node.name]) if node.name in why and not node.cordoned else node
        for node in inventory.nodes
    )
    return replace(inventory, nodes=nodes)


def _drains(standing: Iterable[Request]) -> Iterable[Window]:
    return (
        Window(
            name=f"request {request.id}", node=node, begins=request.seen, ends=request.expires, drain="checkpoint",
            by=request.by, message=request.reason or "no reason given",
        )
        for request in standing
        if request.ask is Ask.DRAIN
        for node in request.nodes
    )  # fmt: skip


def _asked(desired: Desired, standing: Iterable[Request]) -> Mapping[JobKey, Request]:
    """The request that says most about each job: cancel before suspend before freeze, then the first that came."""
    about = [request for request in standing if request.ask in _STRENGTH]
    about.sort(key=lambda r: (_STRENGTH[r.ask], r.seen, r.id) if r.ask is not None else (9, r.seen, r.id))
    found: dict[JobKey, Request] = {}
    for request in about:
        for key in _jobs_of(desired, request):
            found.setdefault(key, request)
    return found


def _jobs_of(desired: Desired, request: Request) -> Iterable[JobKey]:
    if request.tasks:
        return [key for key in request.keys if key in desired.jobs]
    if request.ask is not Ask.FREEZE:
        return (request.job,) if desired.job_of(request.job) is not None else ()
    if not request.queue:
        return dict.fromkeys(document_of(key) for key in desired.jobs)
    inside = {name for name in desired.quotas.queues if request.queue in desired.quotas.path(name)}
    return dict.fromkeys(document_of(key) for key, job in desired.jobs.items() if job.queue in inside)
