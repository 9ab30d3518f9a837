"""What is to be acted on: the newest desired tree, or the last one decided on while the newest has to wait.

A desired branch that is gone, cannot be reached, lost a folder or asks for what a guard refuses stops nothing: nodes
still fail and jobs still end, and that is decided on with what was wanted last.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.errors import GangOpsError, InvalidInput, StoreError
from reconciler.model.desired import Desired
from reconciler.runtime.generation import Generation
from reconciler.runtime.guards import check_removal, check_rewrite, is_rewrite
from reconciler.runtime.reading import DesiredReader, ReadDesired
from reconciler.store.runner import Git

HOLDS = frozenset({"PathNotFound", "MassRemovalRefused", "RewriteRefused"})
"""Codes of a desired commit that waits for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """`desired` is the tree to act on; `held` says why it is not the newest one, None when it is."""

    read: ReadDesired
    desired: Desired
    held: GangOpsError | None = None


def wanted(
    git: Git, reader: DesiredReader, newest: str | None, away: GangOpsError | None, current: Generation
) -> Wanted:
    """What to act on after `current`. `newest` is the tip of the desired branch, or None with the reason `away`.

    Raises that reason, or InvalidInput and StoreError of the newest tree, when nothing was ever decided on.
    """
    held = away
    if newest is not None:
        try:
            return _newest(git, reader, newest, current)
        except (StoreError, InvalidInput) as err:
            if isinstance(err, StoreError) and err.code not in HOLDS:
                raise
            held = err
    assert held is not None  # one of the two is given
    read = reader.recorded(current.commit, current.summary.desired_commit, current.frozen)
    if read.desired is None:
        raise held
    return Wanted(read=read, desired=read.desired, held=held)


def _newest(git: Git, reader: DesiredReader, newest: str, current: Generation) -> Wanted:
    read = reader.read(newest, current)
    if read.desired is None:
        raise InvalidInput(read.diagnostics)
    _check_history(git, reader, read.desired, current)
    check_removal(git, read.desired, current.allocation)
    return Wanted(read=read, desired=read.desired)


def _check_history(git: Git, reader: DesiredReader, desired: Desired, current: Generation) -> None:
    """Where rewrites of the desired branch need an acknowledgement; by the rule of either side of the rewrite."""
    decided = current.summary.desired_commit
    if not is_rewrite(git, desired.commit, decided):
        return
    before = reader.recorded(current.commit, decided, current.frozen).desired
    if any(rules is not None and rules.repository.rewrites_need_acknowledgement for rules in (desired, before)):
        check_rewrite(git, desired.commit, decided)
