"""Fixtures of the forge's tests: payloads as they were recorded, a forge on this machine, a plan with a price."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.model.units import Instant
from reconciler.render.plan import Basis, Plan, Row, Step
from reconciler.render.plan.model import Numbers
from reconciler.runtime.forge.api import Api
from tests.runtime.forge.stand_in import Forge, served

PAYLOADS = Path(__file__).parent / "payloads"


def payload(name: str) -> Path:
    return PAYLOADS / f"{name}.json"


def priced(*victims: str, lost: int = 3600) -> Plan:
    """A plan in which these jobs pay, each with so many GPU-seconds."""
    rows = tuple(
        Row(step=Step.PREEMPT, job=job, gpus=8, priority_class="low", reason="Preempted", why="gives way",
            lost_gpu_seconds=lost)
        for job in victims
    )  # fmt: skip
    numbers = Numbers(capacity=32, busy=8, idle=24, stranded=0, phi_ppm=0, cross_rack_ppm=0)
    basis = Basis(
        cluster="h100-east", base="b" * 40, head="a" * 40, state="c" * 40, generation=7, at=Instant(10**18),
        state_at=Instant(10**18), digest="d" * 64, decision_version=1, package_version="1.0.0",
    )  # fmt: skip
    return Plan(
        basis=basis, decided=True, rows=rows, unchanged=3, before=numbers, after=numbers,
        lost_gpu_seconds=lost * len(rows), phi_limit_ppm=200_000,
    )  # fmt: skip


@pytest.fixture
def forge() -> Iterator[Forge]:
    """A forge with the two pull requests of the payloads."""
    made = Forge()
    for name in ("pull_request", "pull_request_fork"):
        pull = json.loads(payload(name).read_text())["pull_request"]
        made.pulls[pull["number"]] = pull
    with served(made) as base:
        made.base = base
        yield made


@pytest.fixture
def waits() -> list[float]:
    """The seconds that were waited, without waiting them."""
    return []


@pytest.fixture
def api(forge: Forge, waits: list[float]) -> Api:
    return Api(base=forge.base, token="t0ken", pause=waits.append)
