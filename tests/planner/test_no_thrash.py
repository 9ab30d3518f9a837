"""Nobody is disturbed again and again: random lives of a cluster on which everyone may take from everyone by some rule."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.queue import Queue, Scheduling
from reconciler.model.units import MINUTE, SECOND, ClassName, Digest, Gpus, GpuType, Instant, JobKey, Nanoseconds
from tests.planner.worlds import H100, Cluster, Spines, job, queue, with_jobs, world

KIND = GpuType(H100)
SPINES: Spines = {"sg0": {"r1": ["a1", "a2"], "r2": ["b1", "b2"]}}
KEYS = [f"{home}/{name}" for home in ("a", "b", "c", "d") for name in "xyz"]
MILD = (Cause.PREEMPTED, Cause.FAIR_SHARE, Cause.MOVED, Cause.RESIZED)


def tree(a: int, b: int, inner: int) -> list[Queue]:
    """Queues a and b, and c and d inside an organisation, of 16 GPUs."""
    said = {"a": (a, "root"), "b": (b, "root"), "org": (inner * 2, "root"), "c": (inner, "org"), "d": (inner, "org")}
    return [
        queue("root", None),
        *(replace(queue(n, above), guaranteed={KIND: Gpus(g)}) for n, (g, above) in said.items()),
    ]


class Quarrel(RuleBasedStateMachine):
    """People submit, cancel and re-rank; jobs end, nodes die and come back; time passes."""

    cluster: Cluster

    @initialize(
        a=st.integers(0, 8), b=st.integers(0, 4), inner=st.integers(0, 2), policy=st.sampled_from(("reclaim", "fairShare")),
        order=st.sampled_from(("fairShare", "priorityThenAge")), least=st.sampled_from((0, 60, 300)),
        cooldown=st.sampled_from((60, 300)), straddlers=st.booleans(),
    )  # fmt: skip
    def begin(
        self, a: int, b: int, inner: int, policy: str, order: str, least: int, cooldown: int, straddlers: bool
    ) -> None:
        rules = Scheduling(
            order=order, preempt_other_queues=policy, backfill="none", min_runtime=Nanoseconds(least * SECOND),
            cooldown=Nanoseconds(cooldown * SECOND), reclaim_straddlers=straddlers, max_per_day=1000,
        )  # fmt: skip
        self.cluster = Cluster(world(SPINES, 4, queues=tree(a, b, inner), rules=rules))
        self.quiet = max(least, cooldown) * SECOND
        self.mild: dict[tuple[JobKey, Digest], list[Instant]] = {}
        self.reclaims: dict[tuple[JobKey, Digest], list[Instant]] = {}
        self.pairs: set[tuple[JobKey, JobKey, int]] = set()

    def then(self, *spans: int) -> None:
        for span in spans:
            before = self.cluster.allocation
            self.cluster.step(span)
            for key, record in self.cluster.allocation.jobs.items():
                old = before.jobs.get(key)
                if record.state is JobState.STOPPING and record.cause in (*MILD, Cause.RECLAIMED) and (
                    old is None or old.state is not JobState.STOPPING or old.attempt != record.attempt
                ):  # fmt: skip
                    self.stopped(key)

    def stopped(self, key: JobKey) -> None:
        record, now = self.cluster.allocation.jobs[key], self.cluster.now
        told = self.reclaims if record.cause is Cause.RECLAIMED else self.mild
        last = told.setdefault((key, record.digest), [])
        assert not last or now - last[-1] >= self.quiet, (
            f"{key} again after {(now - last[-1]) // SECOND} s\n{self.cluster.show()}"
        )
        last.append(now)
        if record.preemptor is not None:
            winner = self.cluster.allocation.jobs[record.preemptor]
            pair = (key, winner.job, winner.attempt)
            assert pair not in self.pairs, f"{pair} again\n{self.cluster.show()}"
            self.pairs.add(pair)

    @rule(
        key=st.sampled_from(KEYS),
        gpus=st.sampled_from((1, 2, 4, 4, 8)),
        rank=st.sampled_from(("low", "normal", "high")),
        limit=st.sampled_from((None, None, 120)),
    )
    def submit(self, key: str, gpus: int, rank: str, limit: int | None) -> None:
        level = "node" if gpus <= 4 else "rack"
        asked = job(key, gpus, rank, required={"job": level}, limit=limit)
        self.cluster.desired = with_jobs(self.cluster.desired, asked)
        self.then(0, 1, 1)

    @rule(key=st.sampled_from(KEYS))
    def cancel(self, key: str) -> None:
        self.cluster.desired = with_jobs(self.cluster.desired, without=[key])
        self.then(0, 1)

    @rule(key=st.sampled_from(KEYS), rank=st.sampled_from(("low", "normal")))
    def rank(self, key: str, rank: str) -> None:
        one = self.cluster.desired.jobs.get(JobKey(key))
        if one is not None:
            self.cluster.desired = with_jobs(self.cluster.desired, replace(one, priority_class=ClassName(rank)))
            self.then(0, 1)

    @rule(a=st.integers(0, 8), b=st.integers(0, 4), inner=st.integers(0, 2))
    def guarantee(self, a: int, b: int, inner: int) -> None:
        quotas = world(queues=tree(a, b, inner)).quotas
        self.cluster.desired = replace(self.cluster.desired, quotas=quotas)
        self.then(0, 1)

    @rule(key=st.sampled_from(KEYS))
    def end(self, key: str) -> None:
        self.cluster.end(key)
        self.then(0, 1)

    @rule(node=st.sampled_from(("a1", "a2", "b1", "b2")), how=st.sampled_from(("die", "back", "back")))
    def link(self, node: str, how: str) -> None:
        getattr(self.cluster, how)(node)
        self.then(0, 1)

    @rule(minutes=st.sampled_from((1, 2, 6)))
    def wait(self, minutes: int) -> None:
        self.then(minutes * MINUTE // SECOND, 1, 1)


TestQuarrel = Quarrel.TestCase
TestQuarrel.settings = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
