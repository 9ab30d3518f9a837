"""What a node still knows after any crash: exactly the lines that were completely written."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.agent import journal as module
from reconciler.agent.journal import Journal, JournalFull, Record
from reconciler.agent.verify import NOTHING, Accepted

ORDER = Accepted(1, 5, "a" * 40, b'{"node":"n"}')
RECORD = Record("nlp/a", 1, "sha256:1", "prepared", "Prepared", 17, 5, "a" * 40)


def contents(journal: Journal) -> tuple[Accepted, dict[tuple[str, int], Record]]:
    return journal.accepted, dict(journal.records)


def test_a_journal_says_after_a_restart_what_it_was_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert contents(journal) == (NOTHING, {})
    journal.accept(ORDER)
    journal.keep(RECORD)
    journal.keep(replace(RECORD, attempt=2))
    journal.keep(replace(RECORD, stage="launched", boot="b", begun=3, baseline=4))
    journal.forget(("nlp/a", 2))
    journal.close()
    again = Journal(tmp_path / "journal")
    assert contents(again) == (
        ORDER,
        {("nlp/a", 1): replace(RECORD, stage="launched", boot="b", begun=3, baseline=4)},
    )
    assert again.torn == 0
    again.close()


def test_a_journal_torn_at_any_byte_holds_the_whole_lines_before(tmp_path: Path) -> None:
    path, states, ends = tmp_path / "journal", [], [0]
    journal = Journal(path)
    states.append(contents(journal))
    acts: list[Callable[[], None]] = [
        lambda: journal.accept(ORDER),
        lambda: journal.keep(RECORD),
        lambda: journal.forget(("nlp/a", 1)),
    ]
    for act in acts:
        act()
        states.append(contents(journal))
        ends.append(path.stat().st_size)
    journal.close()
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        torn = Journal(path)
        lines = sum(end <= cut for end in ends) - 1
        assert contents(torn) == states[lines], cut
        assert torn.torn == cut - ends[lines]
        torn.keep(replace(RECORD, attempt=9))
        torn.close()
        healed = Journal(path)
        assert ("nlp/a", 9) in healed.records, f"a line after a tail torn at {cut} is lost"
        healed.close()


@pytest.mark.parametrize("at", [0, 7, 8, 20, -2])
def test_a_flipped_bit_ends_the_journal_there(tmp_path: Path, at: int) -> None:
    journal = Journal(tmp_path / "journal")
    journal.accept(ORDER)
    end = (tmp_path / "journal").stat().st_size
    journal.keep(RECORD)
    journal.close()
    content = bytearray((tmp_path / "journal").read_bytes())
    content[end + at if at >= 0 else at] ^= 1
    (tmp_path / "journal").write_bytes(content)
    damaged = Journal(tmp_path / "journal")
    assert contents(damaged) == (ORDER, {})
    damaged.close()


def test_a_journal_is_compacted_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACT_ABOVE", 2000)
    journal = Journal(tmp_path / "journal")
    journal.accept(ORDER)
    for at in range(200):
        journal.keep(replace(RECORD, at=at))
    journal.close()
    assert (tmp_path / "journal").stat().st_size < 3000
    again = Journal(tmp_path / "journal")
    assert contents(again) == (ORDER, {("nlp/a", 1): replace(RECORD, at=199)})
    again.close()


def test_a_full_disk_loses_nothing_that_was_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    journal.accept(ORDER)
    write, full = os.write, [True]

    def half(fd: int, content: bytes) -> int:
        if not full[0]:
            return write(fd, content)
        write(fd, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(JournalFull) as caught:
        journal.accept(replace(ORDER, generation=6))
    assert caught.value.code == "LocalStorageFull"
    assert journal.accepted == ORDER
    with pytest.raises(JournalFull):
        journal.keep(RECORD)
    assert journal.records == {("nlp/a", 1): RECORD}, "known until the agent ends"
    full[0] = False
    journal.flush()
    journal.close()
    again = Journal(tmp_path / "journal")
    assert contents(again) == (ORDER, {("nlp/a", 1): RECORD})
    assert again.torn == 0
    again.close()
