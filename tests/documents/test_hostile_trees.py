"""Trees that want to be expensive, and trees with random damage: an answer, soon, and the same one in a replay."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.documents.desired import load_desired
from reconciler.model.units import CommitId
from tests.documents.trees import FABRIC, RACKS, ROOT, changed, codes, files_below, job, sources, starter, with_job

REFERENCE = {file.path: file.content.decode() for file in files_below(ROOT, "cluster-state", "policies")}
MANY = range(20_000)


def ring_of_queues() -> dict[str, str]:
    head = "apiVersion: gangops/v1\nkind: Queue\n"
    texts = [f"{head}metadata: {{name: q{i}}}\nspec: {{parent: q{(i + 1) % 900}}}\n" for i in range(900)]
    return {**starter(), "cluster-state/queues/ring.yaml": "---\n".join(texts)}


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (with_job(job("".join(f"x{i}: 1\n" for i in MANY))), {"UnknownField", "MoreProblems"}),
        (
            with_job(job(run="{command: [a], env: {" + ", ".join(f"A{i}_TOKEN: x" for i in range(1000)) + "}}")),
            {"SecretInEnv", "MoreProblems"},
        ),
        (
            changed(RACKS, "rack: r01", "rack: r01, overrides: {" + ", ".join(f"n{i}: {{}}" for i in MANY) + "}"),
            {"UnknownNode", "MoreProblems"},
        ),
        (
            changed(
                RACKS,
                "rack: r01",
                "rack: r01, overrides: {" + ", ".join(f'"n{i}x[1-9999]": {{}}' for i in range(5000)) + "}",
            ),
            {"BadNodeList", "MoreProblems"},
        ),
        (changed(FABRIC, "racks: [", "racks: [" + "".join(f"{{name: a{i}}}, " for i in MANY)), set()),
        (ring_of_queues(), {"QueueCycle"}),
    ],
    ids=["unknown fields", "secrets", "overrides", "wide overrides", "racks", "ring of queues"],
)
def test_what_is_much_is_answered_soon(tree: dict[str, str], expected: set[str]) -> None:
    start = time.process_time()
    assert set(codes(tree)) == expected
    assert time.process_time() - start < 5, "measured well under a second on an idle machine"


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(REFERENCE)), st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=3
    )
)
def test_any_damage_is_survived_and_replayed(damage: list[tuple[str, int, int]]) -> None:
    tree = dict(REFERENCE)
    for path, at, other in damage:
        lines = tree[path].split("\n")
        lines[at % len(lines)] = lines[other % len(lines)] if at % 3 else ""
        tree[path] = "\n".join(lines)
    last_valid = {path: text.encode() for path, text in REFERENCE.items()}
    found = load_desired(sources(tree), CommitId("c"), last_valid=last_valid)
    assert found.desired is not None
    assert load_desired(sources(tree), CommitId("c"), frozen=found.frozen) == found
