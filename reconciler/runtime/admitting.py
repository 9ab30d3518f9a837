"""Who may look into a job? The judgement that agents make too, for the server that people ask first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from reconciler.agent.admission import Challenges, new_challenge, read_request, signer_among
from reconciler.engines.visits import House
from reconciler.wire import Visit, VisitRequest


class Doorkeeper:
    """`engines.visits.Admission`. Every request is good once."""

    def __init__(self) -> None:
        self._challenges = Challenges()

    def challenge(self, now: int) -> str:
        """A new one."""
        return new_challenge(now)

    def admit(self, visit: Visit, now: int, holders: Callable[[str], Sequence[str]]) -> tuple[VisitRequest, str]:
        """The request and the User who made it. Raises VisitRefused."""
        asked = read_request(visit.request, visit.signature, now)
        user = signer_among(visit.request, visit.signature, holders(asked.job))
        self._challenges.use(asked.challenge)
        return asked, user


def house_of(cluster: str, tell: Callable[[str, Mapping[str, object]], None]) -> House:
    """What the engine asks when somebody wants to come in."""
    return House(admission=Doorkeeper(), cluster=cluster, tell=tell)
