"""Which faults that NVIDIA's driver logs (XIDs) mean that nothing new may start on the GPU?

Data alone: what a node logged is in its observation, what planning does about it in `topology.drift`. Source: NVIDIA's
Xid catalog and the checks of its health validation, by the action they ask for. Here are those that ask for a reset, a
reboot or service before the GPU is used again. All others are told and take nothing away: what they break shows in
facts of its own (links that are down, rows that wait for a reset), or ends with the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FATAL_XIDS: Final[Mapping[int, str]] = {
    46: "GPU stopped working",
    48: "double bit memory error",
    62: "microcontroller halted",
    64: "memory row could not be remapped",
    79: "fell off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered memory error",
    143: "initialisation failed",
}
"""What each means, in a few words."""

NOTHING_LEFT: Final = "None"
"""The recovery action of a GPU for which, says its driver, nothing is left to do: what it logged before is over."""
