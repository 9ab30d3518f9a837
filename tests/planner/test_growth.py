"""How work grows with the cluster, counted in operations: what is alike is asked once, and a search stays where it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from reconciler.model.units import SECOND, Instant
from reconciler.planner import admit
from reconciler.planner.decide import decide
from reconciler.planner.draft import Draft
from reconciler.planner.explain import Explainer
from reconciler.planner.preemption import Victims, find_victims
from reconciler.planner.reservation import Planner
from reconciler.planner.rights import Claim, Rights
from tests.benchmarks.bench_decide import guaranteed
from tests.benchmarks.bench_pass import made
from tests.benchmarks.packed import KIND, drafted, packed
from tests.planner.worlds import START, allocation, job, pending, ready, with_jobs


@pytest.mark.parametrize("each", [8, 4, 1])
def test_a_reclaim_looks_at_no_more_sets_in_a_larger_cluster(each: int) -> None:
    """The domains' bounds tell where to look: sets stay as few, and all else is a step for each candidate."""
    looked, steps = [], []
    for nodes in (128, 512, 2_048):
        desired, records, asked = packed(nodes, each)
        draft = drafted(desired, records)
        rights = Rights(draft)
        found = find_victims(draft, pending(desired, str(asked.key)), asked, KIND, rights.claim(asked, KIND))
        assert isinstance(found, Victims)
        assert found.proved
        assert len(found.jobs) == 64 // each
        looked.append(found.visits)
        steps.append(rights.standing.effort.spent - len(records))
    assert max(looked) <= looked[0] + 20, looked
    assert max(steps) <= steps[0] + 3_000, steps


def test_jobs_that_are_alike_cost_no_search_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many of the same jobs: as many looks for a place, claims, searches for victims, and reasons."""
    counts: list[Counter[str]] = []
    desired, known = made(96, "conservative", "reclaim")
    desired = guaranteed(desired, 96)
    seen = ready(desired, *(record for record in known.jobs.values() if record.placement))
    waiting = [key for key, record in known.jobs.items() if record.placement is None]
    for owner, name in ((Draft, "look"), (admit, "find_victims"), (Explainer, "_first"), (Claim, "__init__"),
                        (Planner, "earliest")):  # fmt: skip
        asked = getattr(owner, name)

        def counting(*given: object, _name: str = name, _asked: object = asked) -> object:
            counts[-1][_name] += 1
            assert callable(_asked)
            return _asked(*given)

        monkeypatch.setattr(owner, name, counting)
    for copies in (1, 2, 4):
        more = [
            replace(desired.jobs[key], name=f"{desired.jobs[key].name}-{number}")
            for key in waiting for number in range(copies)
        ]  # fmt: skip
        crowd = with_jobs(desired, *more, without=waiting)
        at = [pending(crowd, str(one.key), Instant(START - SECOND)) for one in more]
        running_ones = [record for record in known.jobs.values() if record.placement is not None]
        counts.append(Counter())
        decide(crowd, seen, allocation(crowd, *running_ones, *at), START)
    for name, few in counts[0].items():
        assert counts[2][name] <= 2 * few + 64, (name, counts)


def test_a_world_in_which_nothing_happens_comes_to_rest() -> None:
    """Each round at most 32 jobs evict others; when no more can, nothing changes any more, reasons included."""
    desired, known = made(256, "conservative", "reclaim")
    desired = guaranteed(replace(desired, scheduling=replace(desired.scheduling, order="fairShare")), 256)
    seen = ready(desired, *(record for record in known.jobs.values() if record.placement))
    changes = []
    for number in range(20):
        decision = decide(desired, seen, known, Instant(START + number * SECOND))
        known = decision.allocation
        changes.append(len(decision.changes))
    assert changes[0] > 0
    assert changes[12:] == [0] * 8, changes


def test_the_queue_of_a_job_is_not_asked_again() -> None:
    """A class, a queue and a size have one claim as long as nobody's use changes."""
    desired, records, asked = packed(64, 8)
    rights = Rights(drafted(desired, records))
    first = rights.claim(asked, KIND)
    assert rights.claim(replace(asked, name="other"), KIND) is first
    assert rights.claim(job("own/small", 8), KIND) is not first
    rights.standing.forget([records[0].job])
    assert rights.claim(asked, KIND) is not first
