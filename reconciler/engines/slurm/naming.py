"""By what is a gang known in Slurm? By its name and what its comment says, never by the job's number.

The comment names cluster, job, attempt, incarnation and the generation it was submitted for, and, once a checkpoint
was asked for, when that was: so a reconciler that starts anew knows how far a stop has come.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from reconciler.engines.reports import AttemptKey
from reconciler.model.units import Instant, JobKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """Whose a Slurm job is. `asked` is when a checkpoint was asked for (0: not yet), `marker` the mtime that the
    checkpoint marker had then, both in ns."""

    cluster: str
    job: JobKey
    attempt: int
    digest: str
    epoch: int
    generation: int
    asked: Instant = Instant(0)
    marker: int = 0

    @property
    def key(self) -> AttemptKey:
        return self.job, self.attempt

    @property
    def order(self) -> tuple[int, int]:
        """What a later generation is greater than."""
        return self.epoch, self.generation

    @property
    def name(self) -> str:
        """The Slurm job's name: to be read by people, and different for everything that may not run twice."""
        told = f"{self.cluster}\n{self.job}\n{self.attempt}\n{self.digest}"
        mark = hashlib.sha256(told.encode()).hexdigest()[:8]
        return f"gangops-{self.job.replace('/', '.')}-{self.attempt}-{mark}"

    def comment(self) -> str:
        """The tag as one line of JSON without spaces, which every command of Slurm takes unchanged."""
        said: dict[str, object] = {
            "gangops": self.cluster,
            "job": self.job,
            "attempt": self.attempt,
            "digest": self.digest,
            "epoch": self.epoch,
            "generation": self.generation,
        }
        if self.asked:
            said |= {"asked": self.asked, "marker": self.marker}
        return json.dumps(said, separators=(",", ":"))

    def asked_at(self, now: Instant, marker: int) -> Tag:
        """The same once a checkpoint was asked for."""
        return replace(self, asked=now, marker=marker)


def find_tag(name: str, comment: str, cluster: str) -> Tag | None:
    """The tag of a job that this cluster's reconciler submitted; None for everyone else's, and for a comment that does
    not belong to the name."""
    if not name.startswith("gangops-") or not comment.startswith("{"):
        return None
    try:
        said = json.loads(comment)
        tag = Tag(
            cluster=str(said["gangops"]),
            job=JobKey(str(said["job"])),
            attempt=int(said["attempt"]),
            digest=str(said["digest"]),
            epoch=int(said["epoch"]),
            generation=int(said["generation"]),
            asked=Instant(int(said.get("asked", 0))),
            marker=int(said.get("marker", 0)),
        )
    except (ValueError, KeyError, TypeError):
        return None
    # The name of a further part of a heterogeneous job ends with its number.
    if tag.cluster != cluster or name.partition("+")[0] != tag.name:
        return None
    return tag
