"""Fixtures of the notices' tests: a receiver on this machine, and a webhook that reaches it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.runtime.notices.hooks import Webhook
from tests.runtime.lab import Lab
from tests.runtime.notices.receiver import SECRET, Receiver, served


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with served(Receiver()) as found:
        yield found


@pytest.fixture
def webhook(receiver: Receiver, lab: Lab, tmp_path: Path) -> Webhook:
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    return Webhook(url=receiver.url, secret=tmp_path / "secret", now=lab.clock.now, seconds=5)
