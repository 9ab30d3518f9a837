"""Nothing lost: a reconciler killed anywhere between deciding and acting, and two of them at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Observed
from reconciler.model.units import Instant
from reconciler.ports import Committed
from reconciler.store.failpoints import KILLED, VARIABLE
from tests.engines.fake import FakeCluster
from tests.runtime import driver
from tests.runtime.lab import Desk, Lab, job_file, job_text, jobs

ROOT = Path(__file__).parents[2]
SOAK = (
    pytest.mark.skipif(not os.environ.get("GANGOPS_SOAK"), reason="a soak: set GANGOPS_SOAK=1 to run it by hand"),
    pytest.mark.timeout(10_800),
)


def drive(lab: Lab, failpoint: str = "") -> int:
    """One round in another process; its exit status."""
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: failpoint}
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.driver", str(lab.folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode in {0, KILLED}, done.stderr
    return done.returncode


@pytest.mark.parametrize("failpoint", ["before-commit", "after-commit", "after-push", "after-push-response"])
def test_killed_at_every_commit_of_a_preemption_nothing_happens_twice(lab: Lab, failpoint: str) -> None:
    """Every generation of two gangs' lives is decided by a process that dies at the failpoint, and by the next one."""
    shutil.copy(lab.writer.signer.key, lab.folder / "signing")
    lab.begin(**jobs("sft", gpus=32))
    cluster = FakeCluster(lab.clock)
    driver.save(lab.folder, lab.clock, cluster)
    kills = 0
    for _ in range(4):
        if drive(lab, failpoint) == 0:
            break
        kills += 1
        lab.clock, cluster = driver.load(lab.folder)
        lab.desk(cluster=cluster).round()
        driver.save(lab.folder, lab.clock, cluster)
    assert kills == (3 if "commit" in failpoint else 2)  # what was pushed is taken over, and the round goes on

    desk = lab.desk(cluster=cluster)
    desk.settle()
    assert (desk.record("sft").state, desk.record("sft").attempt) == (JobState.RUNNING, 1)
    assert set(cluster.running("nlp/sft").values()) == {("nlp/sft", 1)}
    subjects = [meta.subject for meta in reversed(lab.log())]
    assert subjects == ["Begin the record", "Place nlp/sft", "Start nlp/sft", "nlp/sft runs"]
    assert all(result.identical for result in lab.replayed())
    lab.check_chain()


# --- two at once ---


class OneAtATime:
    """Engines of two reconcilers over the same pretended nodes, which are not made for two threads."""

    def __init__(self, desk: Desk, lock: threading.Lock) -> None:
        self._desk, self._lock = desk, lock
        self.applied: set[str] = set()
        self._observe, self._apply, self._leads = desk.engine.observe, desk.engine.apply, desk.engine.leads
        desk.engine.observe = self.observe  # type: ignore[method-assign]  # the same, under the lock
        desk.engine.apply = self.apply  # type: ignore[method-assign]  # the same, under the lock
        desk.engine.leads = self.leads  # type: ignore[method-assign]  # the same, under the lock

    def observe(self, desired: Desired, now: Instant) -> Observed:
        with self._lock:
            return self._observe(desired, now)

    def leads(self) -> bool:
        with self._lock:
            return self._leads()

    def apply(self, committed: Committed) -> None:
        with self._lock:
            self.applied.add(committed.commit)
            self._apply(committed)


def race(desks: list[Desk]) -> None:
    """One round of each, begun at the same moment; any error of either is the test's."""
    gate, errors = threading.Barrier(len(desks)), list[BaseException]()

    def run(desk: Desk) -> None:
        try:
            gate.wait()
            desk.reconciler.wake()
            desk.reconciler.round()
        except BaseException as err:  # noqa: BLE001  told by the main thread
            errors.append(err)

    threads = [threading.Thread(target=run, args=(desk,)) for desk in desks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.slow
@pytest.mark.parametrize("races", [40, pytest.param(1000, marks=SOAK)])
def test_two_reconcilers_that_race_make_one_chain_and_no_agent_obeys_the_loser(lab: Lab, races: int) -> None:
    lab.begin()
    cluster, lock = FakeCluster(lab.clock), threading.Lock()
    desks = [lab.desk(name, cluster) for name in ("one", "two")]
    for desk in desks:
        desk.settle()
    told = [OneAtATime(desk, lock) for desk in desks]
    obeyed: set[str] = set()
    for number in range(races):
        lab.desire({job_file(f"j{number % 6}"): job_text(f"j{number % 6}", 4 + number % 9)})
        lab.clock.advance(10**9)
        race(desks)
        obeyed |= {node.accepted[2] for node in cluster.nodes.values() if node.accepted[2]}

    lab.check_chain()
    chain = {meta.id for meta in lab.log()}
    assert obeyed
    assert obeyed <= chain
    assert told[0].applied | told[1].applied <= chain
    lost = sum(
        desk.reconciler.metrics.registry.get_sample_value("gangops_push_total", {"result": "lost_race"}) or 0
        for desk in desks
    )
    assert lost > races // 8  # they did meet
    print(f"{races} races, {len(chain) - 1} generations, {lost:.0f} pushes lost")
    assert [r for r in lab.replayed() if not r.identical] == []
