"""Do the inputs that come from people come from them? Each is made again from git and the record, and compared.

A replay takes what was put in as given, so whoever holds the record's key could put in what nobody brought: another
author, an approval, a file that counts as it never was, a request that was not let in. Those all follow from the desired
branch and from what its people signed; what nodes report does not, and is left to the receipts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from reconciler import __version__
from reconciler.documents.withheld import WITHHELD
from reconciler.errors import GangOpsError
from reconciler.model.observed import Provenance
from reconciler.model.request import Request, Standing
from reconciler.model.units import JobKey
from reconciler.runtime.authorised import Authority
from reconciler.runtime.generation import Generation, raised_epoch
from reconciler.runtime.provenance import provenance_after
from reconciler.runtime.reading import DesiredReader, ReadDesired
from reconciler.runtime.request_proof import proof_fails
from reconciler.runtime.requests import judged_again, may_be_forgotten, stood
from reconciler.runtime.telling import ROTATE
from reconciler.runtime.wanted import wanted
from reconciler.store.runner import Git

Fault = tuple[str, str, str]
"""Check, code, and what is told."""
_SHOWN = 3


def takes_nothing_in(trigger: str) -> bool:
    """Whether a generation only carries the record on: to another branch, or from a backup."""
    return trigger == ROTATE or raised_epoch(trigger) is not None


def carried_faults(now: Generation, then: Generation) -> Iterator[Fault]:
    """Of a generation that only carries the record on: what it takes in nevertheless."""
    moved = {
        "the observation": now.observed_files != then.observed_files,
        "the frozen files": now.frozen != then.frozen,
        "the desired commit": now.summary.desired_commit != then.summary.desired_commit,
        "the time": now.summary.decided_at != then.summary.decided_at,
    }
    for what, differs in moved.items():
        if differs:
            yield "inputs", "InputsMoved", f"{what} moved in a generation that only carries the record on"


def desired_faults(git: Git, reader: DesiredReader, now: Generation, then: Generation) -> Iterator[Fault]:
    """A desired commit that had to wait, or files that count in another form than their last authorised, valid one."""
    if now.summary.desired_commit == then.summary.desired_commit and now.frozen == then.frozen:
        return
    try:
        want = wanted(git, reader, Authority(git, reader), now.summary.desired_commit, None, then)
    except GangOpsError as err:
        yield "desired", "DesiredRefused", f"what was desired could not be acted on ({err.code}): {err.message}"
        return
    if want.held is not None:
        yield (
            "desired",
            "DesiredRefused",
            f"it acts on a commit that had to wait ({want.held.code}): {want.held.message}",
        )
        return
    for path in sorted(want.read.frozen.keys() | now.frozen.keys()):
        ours, theirs = want.read.frozen.get(path), now.frozen.get(path)
        if ours == theirs:
            continue
        if path == WITHHELD:
            yield "inputs", "WithheldDiffers", "the changes that nobody with authority stands behind are others"
        else:
            how = "counts in another form" if ours and theirs else "is kept" if theirs else "is not kept"
            yield "inputs", "FrozenDiffers", f"{path} {how} than the last valid and authorised one"


def provenance_faults(
    git: Git, now: Generation, then: Generation, read: ReadDesired, base: ReadDesired | None
) -> Iterator[Fault]:
    """Jobs of which the record says another author, commit, pull request or approver than the desired branch does.

    `base` is what was desired before, None when it is the same commit.
    """
    known, recorded = then.observed.provenance, now.observed.provenance
    if base is None and recorded == known and now.frozen == then.frozen:
        return
    expected = provenance_after(git, known, read, base, then.summary.desired_commit, then.allocation)
    wrong = [key for key in sorted(expected.keys() | recorded.keys()) if expected.get(key) != recorded.get(key)]
    for key in wrong[:_SHOWN]:
        yield "inputs", "ProvenanceDiffers", _differs(key, recorded, expected)
    if len(wrong) > _SHOWN:
        yield "inputs", "ProvenanceDiffers", f"and so it is of {len(wrong) - _SHOWN} more jobs"


def _differs(key: JobKey, recorded: Mapping[JobKey, Provenance], expected: Mapping[JobKey, Provenance]) -> str:
    ours, theirs = expected.get(key), recorded.get(key)
    if ours is None or theirs is None:
        return f"who brought {key} is {'recorded' if ours is None else 'not recorded'}"
    names = [name for name in Provenance.__dataclass_fields__ if getattr(ours, name) != getattr(theirs, name)]
    return f"of {key} the desired branch tells another {', '.join(names)}"


def request_faults(git: Git, now: Generation, then: Generation, read: ReadDesired) -> Iterator[Fault]:
    """Requests that their signer did not make, that had to be judged otherwise, or that changed or went by themselves."""
    at = now.summary.decided_at
    for name, request in now.observed.requests.items():
        old = then.observed.requests.get(name)
        wrong = ""
        if old is None or (old.commit != request.commit and old.standing is not Standing.IN_FORCE):
            wrong = _not_as_judged(git, now, request, read)
        elif old is not request and stood(old, read.desired, at) != request:
            wrong = "it is another one than before"
        if wrong:
            yield "signatures", "RequestForged", f"request {name} of {request.by or 'nobody'}: {wrong}"
    for name in then.observed.requests.keys() - now.observed.requests.keys():
        old = then.observed.requests[name]
        if not may_be_forgotten(old, at):
            yield "signatures", "RequestForged", f"request {name} of {old.by or 'nobody'}: it went before its time"


def _not_as_judged(git: Git, now: Generation, request: Request, read: ReadDesired) -> str:
    """Why a request that came with this generation is not what it had to come to; "" when it is."""
    if request.seen != now.summary.decided_at:
        return "it was first seen at another time than it was recorded"
    if request.standing is not Standing.REFUSED and (wrong := proof_fails(git, request, read)):
        return wrong
    again = stood(judged_again(git, request, read, now.summary.cluster_id), None, now.summary.decided_at)
    if now.summary.package_version != __version__:
        again = replace(again, told=request.told)  # another release may have had other words for the same refusal
    if again == request:
        return ""
    if again.standing is request.standing:
        return "its own file and signature say something else"
    return f"it is {request.standing.value}, and had to be {again.standing.value} ({again.told or 'nothing speaks against it'})"
