"""Who may ask the cluster to stop, hold or close something at once?

Who could have the lasting change merged: members of the queue for its jobs, its admins for all of the queue, platform
owners for nodes and the cluster. What nobody is named for is open to everybody who is known, as it is for merges.
"""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.documents.request_file import Wish
from reconciler.model.observed import Person
from reconciler.model.request import Ask
from reconciler.policy.authority import Rules
from reconciler.policy.verdicts import answers_to


def who_may(rules: Rules, ask: Ask, wish: Wish) -> tuple[str, ...]:
    """Those who may ask for this, as the documents spell them; () when nobody is named and everybody may."""
    match ask:
        case Ask.CANCEL | Ask.SUSPEND:
            return rules.members(wish.job.partition("/")[0]) or rules.owners
        case Ask.FREEZE:
            return (rules.admins(wish.queue) if wish.queue else ()) or rules.owners
        case Ask.CORDON | Ask.DRAIN:
            return rules.owners


def may_ask(who: Sequence[str], person: Person) -> bool:
    """Whether a person is among them."""
    return not who or any(answers_to(person, wanted) for wanted in who)
