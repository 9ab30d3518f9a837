"""What is wrong with the cluster, and how can one tell? Pure finders over one `Situation`; `gather` fills it.

A finder reads values and yields anomalies; it opens nothing and asks nobody. How anomalies are shown is `render`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from reconciler.model.anomaly import Anomaly, AnomalyCode
from reconciler.runtime.anomalies.control import control_anomalies
from reconciler.runtime.anomalies.gangs import gang_anomalies
from reconciler.runtime.anomalies.nodes import node_anomalies
from reconciler.runtime.anomalies.situation import Situation

_FINDERS: Final[tuple[Callable[[Situation], Iterable[Anomaly]], ...]] = (
    control_anomalies,
    node_anomalies,
    gang_anomalies,
)
_ORDER: Final = {code: place for place, code in enumerate(AnomalyCode)}


def anomalies_of(situation: Situation) -> tuple[Anomaly, ...]:
    """Everything that is wrong: grave ones first, then in the order of the codes, then by subject."""
    found = dict.fromkeys(anomaly for finder in _FINDERS for anomaly in finder(situation))
    return tuple(sorted(found, key=lambda one: (not one.grave, _ORDER[one.code], one.on, one.evidence)))
