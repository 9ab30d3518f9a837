"""What does a state commit say of its decision? Its message and its trigger: nothing in either is free text.

The loop writes them, the audit makes them again: whoever reads `git log` must be told what the files say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from reconciler.model.request import Request
from reconciler.model.units import CommitId
from reconciler.render.story import body, request_line, subject
from reconciler.render.taken import taken_body
from reconciler.runtime.generation import Generation, NextGeneration, trailers
from reconciler.runtime.requests import news
from reconciler.store.statecommit import Message

ROTATE: Final = "rotate"
"""The trigger of the two generations that a branch ends and the next one begins with."""
_PREVIEWS = 20
_MADE_BY_HAND = re.compile(
    r"(?:Close this branch: the record goes on in|Go on with the record of) [A-Za-z0-9._/-]+"
    r"|Go on from a backup of generation \d+, in epoch \d+"
)


def message_of(following: NextGeneration, current: Generation, taken: Sequence[str]) -> Message:
    """What changes, what is taken in, which requests came or ended, which previews it answers to, and where it is not what they showed."""
    summary = following.summary
    previews = [f"Answers to preview sha256:{digest}" for digest in summary.previews[:_PREVIEWS]]
    differs = [f"{one.job} differs from its preview: {one.told}" for one in summary.differs[:_PREVIEWS]]
    whole = body(following.decision, current.allocation, following.inputs.desired.inventory)
    asked = [request_line(one) for one in news(current.observed.requests, following.inputs.observed.requests)]
    return Message(
        subject=subject(following.decision, summary.trigger, taken),
        body="\n\n".join("\n".join(part) for part in ([whole], taken_body(taken), asked, previews, differs) if part),
        trailers=trailers(summary),
    )


def is_told_by_hand(subject: str, text: str) -> bool:
    """Whether this is the whole text of a generation that `rotate` or `restore` makes, without its trailers."""
    return _MADE_BY_HAND.fullmatch(subject) is not None and text.strip() == subject


def trigger_of(current: Generation, desired: CommitId, requests: Mapping[str, Request]) -> str:
    """What made the loop decide after `current`."""
    if desired != current.summary.desired_commit:
        return "desired"
    return "request" if news(current.observed.requests, requests) else "observed"
