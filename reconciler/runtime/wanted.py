"""What is to be acted on: the newest desired tree, or the last one decided on while the newest has to wait.

A desired branch that is gone, cannot be reached, lost a folder or asks for what a guard refuses stops nothing: nodes
still fail and jobs still end, and that is decided on with what was wanted last.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.errors import GangOpsError, InvalidInput, StoreError
from reconciler.model.desired import Desired
from reconciler.model.units import CommitId
from reconciler.runtime.authorised import Authority, check_signed
from reconciler.runtime.generation import Generation
from reconciler.runtime.guards import check_removal, check_rewrite, is_rewrite
from reconciler.runtime.reading import DesiredReader, ReadDesired
from reconciler.store.runner import Git

HOLDS = frozenset({"PathNotFound", "MassRemovalRefused", "RewriteRefused", "UnsignedDesired"})
"""Codes of a desired commit that waits for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """`desired` is the tree to act on; `held` says why it is not the newest one, None when it is."""

    read: ReadDesired
    desired: Desired
    held: GangOpsError | None = None


def wanted(
    git: Git, reader: DesiredReader, authority: Authority, newest: str | None, away: GangOpsError | None,
    current: Generation,
) -> Wanted:  # fmt: skip
    """What to act on after `current`. `newest` is the tip of the desired branch, or None with the reason `away`.

    Raises that reason, or InvalidInput and StoreError of the newest tree, when nothing was ever decided on.
    """
    held = away
    if newest is not None:
        try:
            return _newest(git, reader, authority, newest, current)
        except (StoreError, InvalidInput) as err:
            if isinstance(err, StoreError) and err.code not in HOLDS:
                raise
            held = err
    assert held is not None  # one of the two is given
    read = reader.recorded(current.commit, current.summary.desired_commit, current.frozen)
    if read.desired is None:
        raise held
    return Wanted(read=read, desired=read.desired, held=held)


def _newest(git: Git, reader: DesiredReader, authority: Authority, newest: str, current: Generation) -> Wanted:
    # 1. What does it say, with what was withheld before?
    read = reader.read(newest, current)
    if read.desired is None:
        raise InvalidInput(read.diagnostics)
    # 2. May it be looked at at all?
    decided = current.summary.desired_commit
    if newest != decided:
        before = reader.recorded(current.commit, decided, current.frozen)
        _check_history(git, read.desired, before, decided)
        check_signed(git, read, before, decided)
    # 3. Which of its changes does nobody with authority stand behind? What is left must not take too much away.
    read = authority.settled(read, current)
    if read.desired is None:
        raise InvalidInput(read.diagnostics)
    check_removal(git, read.desired, current.allocation)
    return Wanted(read=read, desired=read.desired)


def _check_history(git: Git, desired: Desired, before: ReadDesired, decided: CommitId) -> None:
    """Where rewrites of the desired branch need an acknowledgement; by the rule of either side of the rewrite."""
    if not is_rewrite(git, desired.commit, decided):
        return
    if any(rules is not None and rules.repository.rewrites_need_acknowledgement for rules in (desired, before.desired)):
        check_rewrite(git, desired.commit, decided)
