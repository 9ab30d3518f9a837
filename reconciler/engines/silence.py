"""What does a node's silence mean: nothing, no new work, a loss, or that our own link is down? And may we lead at all?

Pure rules over monotonic times; who was heard when is kept by `sessions`. Only when a silence is judged may it cost
a gang its node, so every doubt here counts for the node.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.model.desired import AgentRules
from reconciler.model.observed import NodeCondition
from reconciler.model.units import Nanoseconds

_BADNESS = {NodeCondition.READY: 0, NodeCondition.UNREACHABLE: 1, NodeCondition.LOST: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How long one node was not heard. `since_listening` counts from when we began to listen, if that is later.

    `heard` is False while nothing came from it in this life of the reconciler. `dead`: a person declared it dead.
    """

    condition: NodeCondition
    heard: bool
    silent: Nanoseconds
    since_listening: Nanoseconds
    dead: bool = False

    @property
    def expected(self) -> bool:
        """It was there when last judged, so its silence says something about our own link."""
        return self.condition is not NodeCondition.LOST and not self.dead


def own_link_suspected(silences: list[Silence], rules: AgentRules) -> bool:
    """At least two nodes, and more than the allowed share of those that were there, are silent at once."""
    expected = [s for s in silences if s.expected]
    silent = sum(1 for s in expected if s.silent > rules.unreachable_after)
    return _suspicious(silent, len(expected), rules)


def _suspicious(silent: int, expected: int, rules: AgentRules) -> bool:
    return silent >= 2 and silent * 1_000_000 > rules.mass_loss_ppm * expected


def may_lead(heard: int, expected: int, rules: AgentRules, *, rivalled: bool) -> bool:
    """Whether who hears `heard` of the `expected` nodes that were there may decide for them.

    Every node speaks to one reconciler at a time. Once another one is known to commit (`rivalled`), more than half of
    the nodes have to speak to us, which cannot be true of two; else as many as keep our own link above suspicion.
    """
    if expected == 0:
        return True
    if rivalled:
        return 2 * heard > expected
    return heard > 0 and not _suspicious(expected - heard, expected, rules)


def judged(silence: Silence, rules: AgentRules) -> NodeCondition:
    """The node's condition now: Ready when it was heard lately, else never better than it was.

    A node declared dead is lost as soon as it is unreachable: a person has said so already.
    """
    if silence.heard and silence.silent <= rules.unreachable_after:
        return NodeCondition.READY
    reached = NodeCondition.READY
    if silence.since_listening > rules.unreachable_after:
        reached = NodeCondition.LOST if silence.dead else NodeCondition.UNREACHABLE
    if silence.since_listening > rules.lost_after:
        reached = NodeCondition.LOST
    return max(silence.condition, reached, key=_BADNESS.__getitem__)
