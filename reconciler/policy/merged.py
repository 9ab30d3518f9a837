"""Was a change that is merged already merged by people who may?

The rules are those of `authority`, of the tree decided on before. People count as far as it is proven who they are;
what nobody is named for is open to everybody, so that a cluster without members and admins works as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.documents.withheld import Needed, Withheld
from reconciler.model.observed import Person, Proof
from reconciler.policy.authority import Change, Need, Rules, Ruling, rulings
from reconciler.policy.verdicts import answers_to

_STRENGTH = {Proof.NONE: 0, Proof.FORGE: 1, Proof.SIGNATURE: 2}


def is_proven(proven: Proof, required: Proof) -> bool:
    """Whether a proof is at least as good as what is required."""
    return _STRENGTH[proven] >= _STRENGTH[required]


def names_nobody(rules: Rules) -> bool:
    """No queue names members or admins: then there is nothing to enforce."""
    return not any(rules.members(item.name) for item in rules.documents.of("Queue"))


def lacking(rules: Rules, change: Change, people: Sequence[Person]) -> tuple[Needed, ...]:
    """What a change takes and none of these people has."""
    return tuple(
        Needed(need=ruling.need.value, queue=ruling.queue, who=ruling.who, told=ruling.told)
        for ruling in rulings(rules, (change,), people)
        if not ruling.granted and not _is_open(rules, ruling)
    )


def _is_open(rules: Rules, ruling: Ruling) -> bool:
    """Nobody is named who could agree. A queue with members and no admins has limits all the same."""
    named = rules.members(ruling.queue) if ruling.need is Need.QUEUE_ADMIN else ruling.who
    return not named


def still_lacks(record: Withheld) -> bool:
    """Whether the recorded people lack what is recorded as needed."""
    people = (record.author, *record.approvers) if is_proven(record.proven, record.required) else ()
    return any(not any(answers_to(one, wanted) for one in people for wanted in need.who) for need in record.needs)
