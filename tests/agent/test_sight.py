"""What files of jobs say, as kept for the report: while the job runs, and what they said last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reconciler.agent.sight import Lookout, Watch

KEY = ("nlp/train", 1)


class Looks:
    """The watches of one look each, after which the lookout is through."""

    def __init__(self, *looks: Watch | None) -> None:
        self.left = list(looks)
        self.moved = 0

    def next(self) -> dict[tuple[str, int], Watch]:
        if not self.left:
            raise SystemExit
        watch = self.left.pop(0)
        return {} if watch is None else {KEY: watch}

    def changed(self) -> None:
        self.moved += 1


def looked(monkeypatch: pytest.MonkeyPatch, looks: Looks, lookout: Lookout) -> None:
    monkeypatch.setattr("reconciler.agent.sight.time.sleep", lambda _: None)
    with pytest.raises(SystemExit):
        lookout.run()


def test_what_is_written_right_before_the_end_is_seen_and_what_comes_later_is_another_attempts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    os.utime(marker, ns=(5, 5))
    runs, over = Watch(str(marker), "", closely=True), Watch(str(marker), "", over=True)

    looks = Looks(runs)
    lookout = Lookout(looks.next, looks.changed)
    looked(monkeypatch, looks, lookout)
    assert lookout.sights[KEY].marker == 5

    os.utime(marker, ns=(7, 7))  # and then the rank ended, before anybody looked
    looks.left = [over]
    looked(monkeypatch, looks, lookout)
    assert lookout.sights[KEY].marker == 7
    assert looks.moved == 2

    os.utime(marker, ns=(9, 9))  # the next attempt's, elsewhere
    looks.left = [over, over]
    looked(monkeypatch, looks, lookout)
    assert lookout.sights[KEY].marker == 7
    assert looks.moved == 2

    looks.left = [None]
    looked(monkeypatch, looks, lookout)
    assert lookout.sights == {}
