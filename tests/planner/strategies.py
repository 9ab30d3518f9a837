"""Random small worlds for property tests: few nodes, few GPUs, jobs that nearly fill them.

What is drawn are recipes, so that a failure shows a few words and not a whole world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from reconciler.model.desired import Desired
from reconciler.model.job import Fence, Job
from tests.planner.worlds import QUEUES, Spines, job, queue, shape, with_jobs, world

KEYS = tuple(f"{home}/{name}" for home in ("nlp", "vision") for name in "abc")


@dataclass(frozen=True)
class Asked:
    """A job of 1 to 8 GPUs, perhaps with groups, levels, a checkpoint, a time limit."""

    gpus: int
    priority: str
    tensor: int
    required: Mapping[str, str]
    preferred: Mapping[str, str]
    checkpoint: int | None
    limit: int | None
    version: int
    fence: Fence
    restarts: int
    spares: int = 0

    def job(self, key: str) -> Job:
        made = job(
            key, self.gpus, self.priority, dims={"tensor": self.tensor, "data": self.gpus // self.tensor},
            required=self.required, preferred=self.preferred, checkpoint=self.checkpoint, limit=self.limit,
            version=self.version, fence=self.fence, restarts=self.restarts,
        )  # fmt: skip
        return replace(made, spares=self.spares)


@dataclass(frozen=True)
class Site:
    """Nodes of four GPUs in one or two NVLink islands; sometimes a ceiling for queue nlp; jobs submitted at once."""

    spines: Spines
    islands: tuple[int, ...]
    ceiling: int | None
    jobs: Mapping[str, Asked]

    def world(self) -> Desired:
        queues = (queue("nlp", ceiling=self.ceiling), *QUEUES[1:])
        empty = world(self.spines, of=shape(4, nvlink=self.islands), queues=queues)
        return with_jobs(empty, *(asked.job(key) for key, asked in self.jobs.items()))


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    gpus = draw(st.sampled_from((4, 1, 2, 3, 6, 8)))
    levels = {
        "job": st.sampled_from(("node", "rack", "spineGroup")),
        "tensor": st.sampled_from(("nvlinkDomain", "node", "rack")),
        "data": st.sampled_from(("rack", "spineGroup")),
    }
    return Asked(
        gpus=gpus, priority=draw(st.sampled_from(("low", "normal", "high"))),
        tensor=draw(st.sampled_from([size for size in (1, 2, 4) if gpus % size == 0])),
        required=draw(st.fixed_dictionaries({}, optional=levels)),
        preferred=draw(st.sampled_from(({}, {"job": "rack"}, {"job": "node"}))),
        checkpoint=draw(st.sampled_from((None, 20))), limit=draw(st.sampled_from((None, None, 90))),
        version=draw(st.integers(1, 2)), fence=draw(st.sampled_from(Fence)), restarts=draw(st.sampled_from((0, 2))),
        spares=draw(st.sampled_from((0, 0, 1, 2))),
    )  # fmt: skip


@st.composite
def sites(draw: st.DrawFn, most_jobs: int = 0) -> Site:
    """One or two spine groups of one or two racks of one to three nodes."""
    count = iter(range(1, 13))
    spines = {
        f"sg{s}": {
            f"r{s}{r}": [f"n{next(count):02}" for _ in range(draw(st.integers(1, 3)))]
            for r in range(draw(st.integers(1, 2)))
        }
        for s in range(draw(st.integers(1, 2)))
    }
    return Site(
        spines=spines, islands=draw(st.sampled_from(((0b1111,), (0b0011, 0b1100)))),
        ceiling=draw(st.sampled_from((None, None, 6))),
        jobs=draw(st.dictionaries(st.sampled_from(KEYS), asked(), max_size=most_jobs)),
    )  # fmt: skip
