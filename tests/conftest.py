"""Options of the whole test suite, and one real Slurm cluster for all tests that want one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import resource_tracker

import pytest
from hypothesis import HealthCheck, settings

from tests.engines.slurm_cluster import SlurmCluster, why_not

# How long an example takes says more about what else this machine does than about the code. CI looks at the same examples
# each time, so that what fails there is the change's doing; whoever runs the tests by hand explores.
settings.register_profile(
    "patient",
    settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))),
)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-goldens` writes golden files anew and prints how they differ: a person reads that before it is kept."""
    parser.addoption("--update-goldens", action="store_true", help="write golden files anew and print the difference")


@pytest.fixture(scope="session", autouse=True)
def _tracker() -> None:
    """The process in which Python notes shared resources is there before any stage is, which would end it as its own."""
    resource_tracker.ensure_running()


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Started when the first test asks for it. Tests that do are in the group `slurm`, so in one worker."""
    if why := why_not():
        assert not os.environ.get("CI"), why
        pytest.skip(why)
    cluster = SlurmCluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", cluster.environment["PATH"])
        patch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        yield cluster
    cluster.stop()


@pytest.fixture
def slurm(slurm_cluster: SlurmCluster) -> SlurmCluster:
    """The cluster with nothing on it."""
    slurm_cluster.clear()
    return slurm_cluster
