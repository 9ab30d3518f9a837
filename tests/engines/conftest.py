"""One real Slurm cluster for all tests that want one; they run one after another in one worker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.engines.slurm_cluster import SlurmCluster, why_not


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
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
