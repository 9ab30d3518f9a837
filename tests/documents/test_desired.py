"""One bad file does not stop the cluster: what stands in for it, and that a replay finds the same."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from reconciler.documents.cache import ParseCache, restored
from reconciler.documents.desired import LoadedDesired, load_desired, validate_files
from reconciler.errors import Severity
from reconciler.model.desired import Desired
from reconciler.model.units import CommitId, JobKey
from tests.documents.trees import (
    CLASSES,
    CONFIG,
    HELLO,
    PROFILE,
    QUEUES,
    RACKS,
    changed,
    job,
    sources,
    starter,
    with_job,
)

X = "cluster-state/jobs/research/x.yaml"
KEY = JobKey("research/x")
BROKEN = job("gpuz: 1")


def load(
    tree: Mapping[str, str], last: Mapping[str, str] | None = None, frozen: Mapping[str, bytes] | None = None
) -> LoadedDesired:
    """Load, and check that a replay, which only has what is recorded as frozen, comes to the same."""
    last_valid = {path: text.encode() for path, text in (last or {}).items()}
    found = load_desired(sources(tree), CommitId("c"), frozen=frozen or {}, last_valid=last_valid)
    assert load_desired(sources(tree), CommitId("c"), frozen=found.frozen) == found
    return found


def desired(loaded: LoadedDesired) -> Desired:
    assert loaded.desired is not None
    return loaded.desired


def test_a_sound_tree_has_nothing_frozen() -> None:
    found = load(starter())
    assert (found.diagnostics, found.frozen) == ((), {})
    assert desired(found).cluster == "my-cluster"
    assert desired(found).commit == "c"
    assert list(desired(found).jobs) == ["research/hello"]
    assert (desired(found).blocked, desired(found).invalid, desired(found).frozen) == ("", {}, frozenset())


def test_an_invalid_job_goes_on_in_its_last_valid_form() -> None:
    good = job("nice: 7")
    found = load(with_job(BROKEN), with_job(good))
    assert [d.code for d in found.diagnostics] == ["UnknownField"]
    assert desired(found).jobs[KEY].nice == 7
    assert desired(found).frozen == {KEY}
    assert found.frozen == {X: good.encode()}
    assert not desired(found).blocked
    assert desired(found).jobs[JobKey("research/hello")].gpus == 8, "the others are not touched"


def test_a_form_frozen_earlier_stays_when_the_tree_before_was_invalid_too() -> None:
    good = job("nice: 7").encode()
    found = load(with_job(BROKEN + "# again\n"), with_job(BROKEN), {X: good})
    assert desired(found).frozen == {KEY}
    assert found.frozen == {X: good}


def test_an_invalid_job_that_never_was_valid_is_named_with_its_code() -> None:
    found = load(with_job(BROKEN), starter())
    assert desired(found).invalid == {KEY: "UnknownField"}
    assert KEY not in desired(found).jobs
    assert found.frozen == {}


def test_a_job_file_that_is_no_yaml_at_all_is_named_by_its_path() -> None:
    assert desired(load(with_job("{"))).invalid == {KEY: "InvalidYaml"}
    assert desired(load(with_job("# gone\n"))).invalid == {KEY: "EmptyFile"}


def test_a_repaired_job_is_frozen_no_more_and_a_deleted_one_is_gone() -> None:
    frozen = {X: job("nice: 7").encode()}
    repaired = load(with_job(job("nice: 8")), with_job(BROKEN), frozen)
    assert (desired(repaired).jobs[KEY].nice, repaired.frozen) == (8, {})
    deleted = load(starter(), with_job(BROKEN), frozen)
    assert (list(desired(deleted).jobs), deleted.frozen) == (["research/hello"], {})


def test_a_job_that_contradicts_the_cluster_is_invalid_as_well() -> None:
    found = load(with_job(job("priorityClass: urgnt")), with_job(job()))
    assert desired(found).frozen == {KEY}
    assert desired(load(with_job(job("priorityClass: urgnt")))).invalid == {KEY: "UnknownPriorityClass"}


def test_a_job_that_never_fits_is_a_job_all_the_same() -> None:
    found = load(with_job(job(gpus=64)))
    assert [(d.code, d.severity) for d in found.diagnostics] == [("NeverFits", Severity.WARNING)]
    assert desired(found).jobs[KEY].gpus == 64
    assert [d.severity for d in validate_files(sources(with_job(job(gpus=64))))] == [Severity.ERROR], (
        "in a proposal it is wrong"
    )


def test_jobs_of_a_queue_that_is_gone_run_on_and_new_ones_are_invalid() -> None:
    before = starter()
    tree = changed(QUEUES, "name: research", "name: other")
    tree["cluster-state/jobs/research/new.yaml"] = job(name="new")
    found = load(tree, before)
    assert desired(found).jobs[JobKey("research/hello")].queue == "research"
    assert desired(found).frozen == {"research/hello"}
    assert desired(found).invalid == {"research/new": "UnknownQueue"}
    assert found.frozen == {HELLO: before[HELLO].encode()}


def test_a_class_that_is_gone_leaves_running_jobs_the_default() -> None:
    text = job("priorityClass: urgent")
    tree = {**changed(CLASSES, "name: urgent", "name: other"), X: text}
    found = load(tree, with_job(text))
    assert desired(found).jobs[KEY].priority_class == "normal"


def test_jobs_in_a_circle_are_invalid_and_the_rest_is_not() -> None:
    tree = with_job(job("after: [{job: w}]"))
    tree["cluster-state/jobs/research/w.yaml"] = job("after: [{job: x}]", name="w")
    tree["cluster-state/jobs/research/z.yaml"] = job("after: [{job: x}]", name="z")
    assert desired(load(tree)).invalid == {"research/w": "DependencyCycle", "research/x": "DependencyCycle"}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (CONFIG, "spec: {}", "spec: {schedulin: {}}"),
        (QUEUES, "80GB: 16}", "80GB: 64GiB}"),
        (QUEUES, "parent: root", "parent: rot"),
        (PROFILE, "name: mlx5_7", "name: mlx5_6"),
        (RACKS, "rack: r01", "rack: r09"),
        (CLASSES, "value: 1000", "value: 1000, default: true"),
    ],
)
def test_an_invalid_cluster_file_stands_in_its_last_form_and_blocks_admissions(path: str, old: str, new: str) -> None:
    before = with_job(job())
    tree = {**changed(path, old, new), X: job("nice: 9")}
    found = load(tree, before)
    assert desired(found).blocked == path
    assert found.frozen == {path: before[path].encode()}
    assert desired(found).jobs[KEY].nice == 9, "jobs are read as they are"
    sound = desired(load(before))
    assert desired(found).inventory == sound.inventory
    assert desired(found).quotas == sound.quotas


def test_a_change_beside_a_bad_cluster_file_still_counts() -> None:
    tree = changed(CLASSES, "value: 1000", "valeu: 1000")
    tree[RACKS] = tree[RACKS].replace("rack: r01}", "rack: r01, cordoned: PSU}")
    found = load(tree, starter())
    assert desired(found).blocked == CLASSES
    assert desired(found).inventory.nodes[0].cordoned == "PSU"


def test_a_cluster_that_lost_a_file_others_need_stands_as_it_was() -> None:
    tree = starter()
    del tree[PROFILE]
    found = load(tree, starter())
    assert desired(found).blocked == RACKS
    assert len(desired(found).inventory.nodes) == 4
    assert found.frozen[PROFILE] == starter()[PROFILE].encode()


def test_without_any_valid_form_of_the_cluster_there_is_nothing_to_act_on() -> None:
    found = load(changed(QUEUES, "parent: root", "parent: rot"))
    assert found.desired is None
    assert [d.code for d in found.diagnostics] == ["UnknownQueue"]
    tree = starter()
    del tree[CONFIG]
    assert load(tree).desired is None
    assert load({}).desired is None


def test_a_bad_maintenance_file_blocks_and_forgets_nothing_else() -> None:
    tree = {
        **starter(),
        "cluster-state/maintenance/m.yaml": "apiVersion: gangops/v1\nkind: Maintenance\nmetadata: {name: m}\nspec: {}\n",
    }
    found = load(tree)
    assert desired(found).blocked == "cluster-state/maintenance/m.yaml"
    assert desired(found).windows == ()


def test_a_rack_taken_out_before_its_guarantees_is_taken_out() -> None:
    tree = changed(RACKS, "gpu-[01-02]", "gpu-01")
    tree[RACKS] = tree[RACKS].split("---\n")[0]
    found = load(tree, starter())
    assert [(d.code, d.severity) for d in found.diagnostics] == [("GuaranteesExceedCapacity", Severity.WARNING)]
    assert [node.name for node in desired(found).inventory.nodes] == ["gpu-01"]
    assert not desired(found).blocked


# --- order and cache ------------------------------------------------------------------------------------------------


def test_the_order_of_files_changes_nothing() -> None:
    tree = with_job(job("priorityClass: urgnt"))
    files = sources(tree)
    expected = load_desired(files, CommitId("c"))
    for seed in range(5):
        random.Random(seed).shuffle(files)
        assert load_desired(files, CommitId("c")) == expected


def test_a_warm_load_equals_a_cold_one_in_this_process_and_the_next() -> None:
    tree = with_job(
        job("array: {matrix: {lr: [0.10, 0.5]}}\ncommunication: {data: {bytesPerStep: 1GiB, overlap: 0.7}}", gpus=1)
    )
    tree["cluster-state/jobs/research/bad.yaml"] = BROKEN
    cache = ParseCache()
    cold = load_desired(sources(tree), CommitId("c"), cache=cache)
    assert load_desired(sources(tree), CommitId("c"), cache=cache) == cold
    assert load_desired(sources(tree), CommitId("c"), cache=restored(cache.dump())) == cold
    assert "UnknownField" in [d.code for d in cold.diagnostics]


def test_a_cached_job_is_judged_again_when_the_cluster_changes() -> None:
    cache = ParseCache()
    tree = with_job(job("priorityClass: urgent"))
    assert desired(load_desired(sources(tree), CommitId("c"), cache=cache)).jobs[KEY].priority_class == "urgent"
    tree[CLASSES] = tree[CLASSES].replace("name: urgent", "name: other")
    assert desired(load_desired(sources(tree), CommitId("c"), cache=cache)).invalid == {KEY: "UnknownPriorityClass"}


@pytest.mark.parametrize("damage", [b"", b"x", b"cut", b"flip", b"version"])
def test_a_damaged_cache_is_an_empty_one(damage: bytes) -> None:
    cache = ParseCache()
    load_desired(sources(starter()), CommitId("c"), cache=cache)
    content = cache.dump()
    broken = {
        b"cut": content[:-1],
        b"flip": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        b"version": content.replace(b"cache 2", b"cache 0"),
    }.get(damage, damage)
    assert restored(broken) == ParseCache()
    assert restored(content) != ParseCache()


def test_a_cache_keeps_to_its_limit() -> None:
    cache = ParseCache(limit=4)
    files = sources({**starter(), X: job()})
    assert load_desired(files, CommitId("c"), cache=cache) == load_desired(files, CommitId("c"))
    again = restored(cache.dump())
    assert sum(again.items(f.oid, f.path, f.content) is not None for f in files) == 4
