"""The record: what is read back equals what was written, bytes are stable, and foreign content is an error with a place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.documents.places import from_spans, spans
from reconciler.documents.record import (
    JOBS,
    OBSERVED_NODES,
    SUMMARY,
    Changes,
    Summary,
    changed_jobs,
    differing,
    job_path,
    observed_files,
    read_allocation,
    read_observed,
    read_summary,
    summary_bytes,
)
from reconciler.errors import StoreError
from reconciler.model.allocation import Allocation, JobRecord, Metrics, Placement, RankPlace
from reconciler.model.inventory import Inventory, Node, NodeShape
from reconciler.model.lifecycle import JobState, Outcome, Phase
from reconciler.model.observed import GpuReport, NodeCondition, NodeObservation, Observed
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.tombstones import Tombstone, buried
from reconciler.model.units import (
    CommitId,
    Digest,
    DomainName,
    GpuType,
    Instant,
    JobKey,
    LevelName,
    Nanoseconds,
    NodeName,
    QueueName,
)
from tests.documents import strategies as some

BARE = Inventory(levels=(), nodes=())
SUMMARY_OF_ONE = Summary(
    generation=7,
    epoch=1,
    cluster_id="lab",
    decision_id="d" * 32,
    decided_at=Instant(1_767_225_600_000_000_000),
    decision_version=1,
    package_version="0.1.0",
    desired_commit=CommitId("c" * 40),
    inputs_digest="1" * 64,
    previous_commit="b" * 40,
    trigger="desired",
    metrics=Metrics(declared=32, capacity=32, held=4, idle=28, stranded=4, phi_whole=24, jobs=(("Running", 1),)),
)


def at(summary: Summary, **more: object) -> Allocation:
    return Allocation(
        generation=summary.generation,
        epoch=summary.epoch,
        cluster_id=summary.cluster_id,
        decided_at=summary.decided_at,
        desired_commit=summary.desired_commit,
        metrics=summary.metrics,
        **more,  # type: ignore[arg-type]  # jobs and tombstones
    )


def files_of(allocation: Allocation, summary: Summary) -> dict[str, bytes]:
    written = changed_jobs(at(summary), allocation)
    assert all(content is not None for content in written.values())
    return {SUMMARY: summary_bytes(summary), **{p: c for p, c in written.items() if c is not None}}


def places(*rows: tuple[str, int]) -> tuple[RankPlace, ...]:
    """Ranks on (node, GPU), with the NUMA node, NIC and rail an eight-GPU board has beside it."""
    found: list[RankPlace] = []
    for rank, (node, gpu) in enumerate(rows):
        local = sum(place.node == node for place in found)
        found.append(
            RankPlace(
                rank=rank, node=NodeName(node), local_rank=local, gpu=gpu, numa=gpu // 4, nic=f"mlx5_{gpu}", rail=gpu
            )
        )
    return tuple(found)


RUNNING = JobRecord(
    job=JobKey("nlp/llama"),
    queue=QueueName("nlp"),
    digest=Digest("a" * 64),
    state=JobState.RUNNING,
    since=Instant(1_767_225_600_000_000_000),
    submitted=Instant(1_767_225_500_500_000_000),
    reason=reason(ReasonCode.RUNNING, ranks=4),
    attempt=2,
    phase=Phase.RUN,
    placement=Placement(
        ranks=places(("gpu-001", 0), ("gpu-001", 1), ("gpu-002", 4), ("gpu-002", 5)),
        level=LevelName("rack"),
        domain="r01",
        comm_time=Nanoseconds(6_100_000),
    ),
    started=Instant(1_767_225_590_000_000_000),
    ports=(29400,),
)


# --- round trips ---


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_allocation_reads_back_as_it_was_written(data: st.DataObject) -> None:
    summary = data.draw(some.summaries)
    allocation = data.draw(some.allocations(summary))
    files = files_of(allocation, summary)

    again = read_allocation(files)

    assert read_summary(files) == summary
    assert again == allocation
    assert list(again.jobs) == list(allocation.jobs)  # decisions walk them in this order
    assert list(again.tombstones) == list(allocation.tombstones)
    assert files_of(again, summary) == files  # byte for byte
    assert changed_jobs(allocation, again) == {}


@settings(max_examples=60, deadline=None)
@given(some.observed())
def test_an_observation_reads_back_as_it_was_written(seen: Observed) -> None:
    files = observed_files(seen, BARE)
    again = read_observed(files)
    assert again == seen
    assert list(again.nodes) == list(seen.nodes)
    assert observed_files(again, BARE) == files


def test_strategies_reach_every_field_of_a_record() -> None:
    # A field without a strategy would be a field without a round trip.
    set_by_hand = {f.name for f in fields(JobRecord)}
    drawn = some.records().wrapped_strategy  # type: ignore[attr-defined]  # hypothesis keeps the keywords there
    assert set(drawn.kwargs) == set_by_hand


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-1, 60)))
def test_spans_read_back_in_their_order(numbers: list[int]) -> None:
    assert from_spans(spans(numbers)) == numbers


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([0, 1, 2, 5], "0-2,5"),
        ([0, 1], "0,1"),
        ([0, 0, 0, 1, 1, 1], "0,0,0,1,1,1"),
        ([3, 2, 1], "3,2,1"),
        ([-1, -1, 0, 1, 2], "x,x,0-2"),
    ],
)
def test_spans_look_like_this(numbers: list[int], text: str) -> None:
    assert spans(numbers) == text


@pytest.mark.parametrize("text", ["0-99999999999", "3-1", "1-", "-1", "a", "0,,1", "0-x", "\u0663-99999999"])
def test_what_spans_never_wrote_is_refused_and_costs_nothing(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_spans(text)


# --- the look of one file ---


def test_a_job_record_reads_like_a_page() -> None:
    written = changed_jobs(at(SUMMARY_OF_ONE), at(SUMMARY_OF_ONE, jobs={RUNNING.job: RUNNING}))
    assert written[job_path(RUNNING.job)] == (
        b"job: nlp/llama\n"
        b"queue: nlp\n"
        b"digest: " + b"a" * 64 + b"\n"
        b"state: Running\n"
        b'since: "2026-01-01T00:00:00+00:00"\n'
        b'submitted: "2025-12-31T23:58:20.5+00:00"\n'
        b"reason:\n"
        b"  code: Running\n"
        b"  ranks: 4\n"
        b'why: "all 4 ranks started"\n'
        b"attempt: 2\n"
        b"phase: run\n"
        b"placement:\n"
        b"  level: rack\n"
        b"  domain: r01\n"
        b'  commTime: "6.1ms"\n'
        b"  nodes:\n"
        b"    - node: gpu-001\n"
        b'      ranks: "0,1"\n'
        b'      gpus: "0,1"\n'
        b'      numa: "0"\n'
        b'      nics: "mlx5_0,mlx5_1"\n'
        b'      rails: "0,1"\n'
        b"    - node: gpu-002\n"
        b'      ranks: "2,3"\n'
        b'      gpus: "4,5"\n'
        b'      numa: "1"\n'
        b'      nics: "mlx5_4,mlx5_5"\n'
        b'      rails: "4,5"\n'
        b'started: "2025-12-31T23:59:50+00:00"\n'
        b"ports:\n"
        b"  - 29400\n"
    )


# --- only what differs ---


def test_only_jobs_that_differ_are_written() -> None:
    other = replace(RUNNING, job=JobKey("nlp/other"))
    before = at(SUMMARY_OF_ONE, jobs={RUNNING.job: RUNNING, other.job: other})
    after = at(
        SUMMARY_OF_ONE,
        jobs={RUNNING.job: replace(RUNNING, attempt=2), JobKey("a/b"): replace(other, job=JobKey("a/b"))},
    )
    changes = changed_jobs(before, after)
    assert list(changes) == [job_path(JobKey("a/b")), job_path(other.job)]
    assert changes[job_path(other.job)] is None


@given(
    st.dictionaries(st.text("abc/", max_size=3), st.binary(max_size=2)),
    st.dictionaries(st.text("abc/", max_size=3), st.binary(max_size=2)),
)
def test_differing_turns_one_into_the_other_with_the_fewest_changes(
    before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    changes: Changes = differing(before, after)
    result = {path: content for path, content in {**before, **changes}.items() if content is not None}
    assert result == after
    assert all(before.get(path) != content for path, content in changes.items())


def test_an_unchanged_node_keeps_its_very_bytes() -> None:
    seen = NodeObservation(
        node=NodeName("gpu-001"),
        boot_id="b",
        address="10.0.0.1",
        condition=NodeCondition.READY,
        condition_since=Instant(0),
    )
    moved = replace(seen, node=NodeName("gpu-002"))
    before = Observed(nodes={seen.node: seen, moved.node: moved})
    files = observed_files(before, BARE)
    after = Observed(nodes={seen.node: replace(seen), moved.node: replace(moved, boot_id="c")})
    again = observed_files(after, BARE, before, files)
    path = f"{OBSERVED_NODES}unknown/gpu-001.yaml"
    assert again[path] is files[path]
    assert again == observed_files(after, BARE)


def test_a_node_lies_under_its_rack() -> None:
    shape = NodeShape(profile="p", gpu_type=GpuType("h100"), gpu_memory=80, gpus=(), nvlink=(), numa=())  # type: ignore[arg-type]  # bytes
    node = Node(name=NodeName("gpu-001"), shape=shape, path=(DomainName("sg0"), DomainName("r01")), labels={})
    seen = NodeObservation(
        node=node.name,
        boot_id="b",
        address="10.0.0.1",
        condition=NodeCondition.READY,
        condition_since=Instant(0),
        gpus=(GpuReport(index=0, uuid="GPU-0"),),
    )
    files = observed_files(Observed(nodes={node.name: seen}), Inventory(levels=(), nodes=(node,)))
    assert list(files) == [f"{OBSERVED_NODES}r01/gpu-001.yaml"]


# --- content that is not ours ---

NOTHING = at(SUMMARY_OF_ONE)
_ONE = files_of(at(SUMMARY_OF_ONE, jobs={RUNNING.job: RUNNING}), SUMMARY_OF_ONE)
_JOB = _ONE[job_path(RUNNING.job)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]\n",
        b"hello\n",
        b"\xff\xfe",
        b"a: &x 1\nb: *x\n",
        _JOB.replace(b"state: Running", b"state: Flying"),
        _JOB.replace(b"  code: Running\n", b""),
        _JOB.replace(b"  code: Running\n  ranks: 4", b"  ranks: 4\n  code: Running"),
        _JOB.replace(b"attempt: 2", b'attempt: "2"'),
        _JOB.replace(b"attempt: 2", b"attempt: true"),
        _JOB.replace(b"attempt: 2", b"tries: 2"),
        _JOB.replace(b'ranks: "0,1"', b'ranks: "0-99999999"'),
        _JOB.replace(b'nics: "mlx5_0,mlx5_1"', b'nics: "a,b,c"'),
        _JOB.replace(b"  - 29400", b"  - x"),
        _JOB.replace(b"ports:\n  - 29400", b"ports: abc"),
        _JOB.replace(b"  nodes:\n", b"  hosts:\n"),
        _JOB.replace(b"2026-01-01T", b"2026-13-01T"),
        _JOB.replace(b"job: nlp/llama", b"job: nlp/other"),
        _JOB.replace(b"queue: nlp\n", b""),
    ],
    ids=range(19),
)
def test_a_record_that_is_not_ours_is_a_bad_record(content: bytes) -> None:
    assert content != _JOB
    with pytest.raises(StoreError) as caught:
        read_allocation({**_ONE, job_path(RUNNING.job): content})
    assert caught.value.code == "BadRecord"
    assert job_path(RUNNING.job) in caught.value.message


# --- tombstones ---------------------------------------------------------------------------------------------------


def _buried(names: Iterable[str]) -> Allocation:
    keys = sorted(JobKey(f"nlp/{name}") for name in names)
    stones = {
        key: (
            Tombstone(job=key, digest=Digest("a" * 64), outcome=Outcome.SUCCEEDED, at=Instant(5 * 10**9), attempts=1),
        )
        for key in keys
    }
    return replace(NOTHING, tombstones=buried(stones))


def test_a_tombstone_lies_beneath_two_hex_digits_of_its_name() -> None:
    changes = changed_jobs(NOTHING, _buried(["sweep"]))
    assert list(changes) == ["finished/nlp/df/sweep.yaml"]  # printf sweep | sha256sum


def test_no_folder_grows_with_all_the_jobs_that_ever_ended() -> None:
    """A tree is written anew for each job that ends in it: of 20,000 jobs of one queue none has more than 300 lines."""
    paths = list(changed_jobs(NOTHING, _buried(f"job-{n:05}" for n in range(20_000))))
    folders = Counter(path.rpartition("/")[0] for path in paths)
    assert len(paths) == 20_000
    assert len(folders) == 256
    assert max(folders.values()) <= 300


@pytest.mark.parametrize("path", ["finished/nlp/sweep.yaml", "finished/nlp/de/sweep.yaml", "finished/df/sweep.yaml"])
def test_a_tombstone_in_another_place_is_a_bad_record(path: str) -> None:
    (content,) = changed_jobs(NOTHING, _buried(["sweep"])).values()
    assert content is not None
    with pytest.raises(StoreError) as caught:
        read_allocation({**_ONE, path: content})
    assert (caught.value.code, path in caught.value.message) == ("BadRecord", True)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_record_never_ends_in_a_traceback(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(_ONE)))
    content = _ONE[path]
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(len(content), start + 30)))
    patch = data.draw(st.binary(max_size=3) | st.sampled_from([b"\n", b"- ", b": ", b"[", b'"', b"0", b"null", b"{}"]))
    with suppress(StoreError):  # and nothing else
        read_allocation({**_ONE, path: content[:start] + patch + content[end:]})


def test_no_summary_is_not_an_empty_cluster() -> None:
    with pytest.raises(StoreError) as caught:
        read_allocation({f"{JOBS}nlp/llama.yaml": _JOB})
    assert caught.value.code == "PathNotFound"
