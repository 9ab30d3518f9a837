"""Tombstones against a plain dictionary, which they are but for what they share."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.documents.kept import again, kept
from reconciler.model.lifecycle import Outcome
from reconciler.model.tombstones import Tombstone, Tombstones, buried, folder_of
from reconciler.model.units import Digest, Instant, JobKey, document_of

KEYS = [JobKey(f"{queue}/{name}") for queue in ("nlp", "vision") for name in ("a", "b", "c", "a.0", "a.1", "b.0")]


def stone(key: JobKey, at: int = 0) -> Tombstone:
    return Tombstone(job=key, digest=Digest("d"), outcome=Outcome.SUCCEEDED, at=Instant(at), attempts=1)


@st.composite
def steps(draw: st.DrawFn) -> tuple[dict[JobKey, tuple[Tombstone, ...]], set[JobKey]]:
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=4))
    return {key: (stone(key, draw(st.integers(0, 3))),) for key in keys}, draw(
        st.sets(st.sampled_from([key for key in KEYS if "." not in key]), max_size=2)
    )


@settings(max_examples=400, deadline=None)
@given(st.lists(steps(), max_size=6))
def test_they_are_what_a_dictionary_would_be(
    changes: list[tuple[dict[JobKey, tuple[Tombstone, ...]], set[JobKey]]],
) -> None:
    known, plain = Tombstones(), dict[JobKey, tuple[Tombstone, ...]]()
    for fresh, gone in changes:
        before, was = known, plain
        known = known.updated(fresh, gone)
        plain = {key: stones for key, stones in plain.items() if document_of(key) not in gone} | fresh
        assert (list(known), len(known)) == (sorted(plain), len(plain))
        assert dict(known) == plain
        assert known == buried(plain)
        assert (known == before) is (plain == was)
        assert [key for key in KEYS if key in known] == [key for key in KEYS if key in plain]
        assert all(known.folders.values())
        old, new = before.apart(known)
        assert {key for key in KEYS if was.get(key) != plain.get(key)} <= old.keys() | new.keys()
        assert (old, new) == ({k: was[k] for k in old}, {k: plain[k] for k in new})
        assert dict(before) == was  # a value: nothing was changed in place
        assert again(kept(known)) == known


def test_a_task_lies_with_its_array_and_queues_share_folders() -> None:
    assert folder_of(JobKey("nlp/sweep")) == "df"  # printf sweep | sha256sum
    assert {folder_of(JobKey(key)) for key in ("nlp/sweep.7", "vision/sweep", "a/b/sweep.0")} == {"df"}


def test_burying_one_more_looks_at_one_folder() -> None:
    years = buried({key: (stone(key),) for key in (JobKey(f"nlp/job-{n:05}") for n in range(20_000))})
    one = JobKey("nlp/job-00007")
    later = years.updated({one: (replace(stone(one), attempts=2),)})
    shared = [name for name in years.folders if later.folders[name] is years.folders[name]]
    assert (len(years.folders), len(shared)) == (256, 255)
    old, new = years.apart(later)
    assert old.keys() == new.keys() == {key for key in years if folder_of(key) == folder_of(one)}
    assert [key for key in new if new[key] != old[key]] == [one]
    assert later.apart(later) == ({}, {})
    assert years.updated({}) is years
