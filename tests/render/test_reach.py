"""Where the ports of a job are, and the tunnel to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.model.lifecycle import JobState
from reconciler.model.units import JobKey, NodeName
from reconciler.render.reach import reach_lines, reaches
from tests.planner.worlds import job, ready, running, saw, world

KEY = JobKey("nlp/a")
DESIRED = world(jobs=[job(KEY, 16)])
RUNS = replace(running(DESIRED, KEY, {"gpu-002": 8, "gpu-001": 8}), ports=(29400, 8888, 6006))
SEEN = saw(ready(DESIRED, RUNS), "gpu-002", address="10.0.0.2")


def test_a_notebook_is_behind_a_tunnel_to_the_first_node() -> None:
    first, second = reaches(RUNS, SEEN)
    assert (first.variable, first.address, first.port) == ("GANGOPS_PORT_0", "10.0.0.2", 8888)
    assert first.url == "http://localhost:8888"
    assert first.tunnel == "ssh -N -L 8888:10.0.0.2:8888 gpu-002"
    assert second.port == 6006
    assert reach_lines(RUNS, SEEN)[:2] == [
        "http://localhost:8888  ($GANGOPS_PORT_0 at 10.0.0.2)",
        "  after: ssh -N -L 8888:10.0.0.2:8888 gpu-002",
    ]


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.FINISHED])
def test_a_job_without_gpus_serves_nothing(state: JobState) -> None:
    assert reaches(replace(RUNS, state=state), SEEN) == ()


def test_addresses_of_every_kind() -> None:
    six = saw(SEEN, "gpu-002", address="fd00::2")
    assert reaches(RUNS, six)[0].tunnel == "ssh -N -L 8888:[fd00::2]:8888 gpu-002"
    unknown = replace(SEEN, nodes={n: s for n, s in SEEN.nodes.items() if n != NodeName("gpu-002")})
    assert reaches(RUNS, unknown)[0].address == "gpu-002"
