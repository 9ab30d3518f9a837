"""Is a state good news? One answer for all pages."""

from __future__ import annotations

from reconciler.model.lifecycle import JobState

_MOODS = {
    JobState.RUNNING: "good",
    JobState.LOST: "bad",
    JobState.REPAIRING: "warn",
    JobState.STOPPING: "warn",
}


def mood_of(state: JobState) -> str:
    """`good`, `warn`, `bad`, or "" for what is neither."""
    return _MOODS.get(state, "")
