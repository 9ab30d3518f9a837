"""What a plan costs, in operations: processes of git, files read and parsed, models made, modules imported.

How long it takes is for `tests/benchmarks/bench_plan.py`; these counts are what keeps it short.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.runtime.lab import Lab, job_file, jobs
from tests.store.world import MAIN

ROOT = Path(__file__).parents[2]
WITNESS = """
import json, sys
from reconciler.documents import loader
from reconciler.store.runner import Git
asked, parsed, contents = [], [], []
run, load = Git.run, loader.load

def witness(self, *arguments, stdin=b"", **how):
    asked.append(arguments[0])
    if arguments[:2] == ("cat-file", "--batch"):
        contents.extend(stdin.split())
    return run(self, *arguments, stdin=stdin, **how)

def loading(content, file, *more):
    parsed.append(file)
    return load(content, file, *more)

Git.run, loader.load = witness, loading
from reconciler.cli import main
sys.argv = ["gangops", *sys.argv[1:]]
status = 0
try:
    main()
except SystemExit as end:
    status = end.code
told = {"status": int(status or 0), "asked": asked, "parsed": parsed, "contents": len(contents), "modules": sorted(sys.modules)}
print(json.dumps(told), file=sys.stderr)
"""
UNUSED = (
    "aiohttp", "cryptography", "git", "jinja2", "networkx", "prometheus_client", "ssl", "textual", "watchfiles",
    "reconciler.agent", "reconciler.engines", "reconciler.store.mirror", "reconciler.store.publish", "reconciler.wire",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one plan cost, in a process of its own."""

    shown: str
    asked: Counter[str]
    parsed: list[str]
    contents: int
    modules: frozenset[str]


def cost(lab: Lab, cache: Path, base: str, head: str) -> Cost:
    done = subprocess.run(
        [sys.executable, "-c", WITNESS, "-C", str(lab.remote.path), "plan", "--no-fetch", "--base", base, "--head", head,
         "--at", "2030-01-01T00:00:00Z"],
        cwd=ROOT, env={"PATH": os.environ["PATH"], "HOME": os.devnull, "XDG_CACHE_HOME": str(cache)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stderr.splitlines()[-1])
    assert told["status"] == 0, done.stdout
    return Cost(
        shown=done.stdout,
        asked=Counter(told["asked"]),
        parsed=told["parsed"],
        contents=told["contents"],
        modules=frozenset(told["modules"]),
    )


def begun(lab: Lab) -> str:
    """Eight jobs, decided on; the commit that has them."""
    lab.begin(**jobs(*"abcdefgh"))
    lab.desk().settle()
    base = lab.remote.tip(MAIN)
    assert base is not None
    return base


def test_a_plan_of_one_new_job_reads_and_parses_that_job_alone(lab: Lab, tmp_path: Path) -> None:
    base = begun(lab)
    first = cost(lab, tmp_path, base, lab.desire(jobs("x")))
    second = cost(lab, tmp_path, base, lab.desire({job_file("x"): None, **jobs("z")}))
    assert job_file("a") in first.parsed
    assert second.parsed == [job_file("z")]
    # The new file, the commit that brings it, and the one file that is no document; the state is kept.
    assert second.contents == 3
    assert first.contents > 10


def test_the_same_plan_costs_few_processes_however_many_jobs_there_are(lab: Lab, tmp_path: Path) -> None:
    """Where the clone is and of which kind, the revisions, the state; then folders, listing and contents of each side."""
    base = begun(lab)
    head = lab.desire(jobs("x"))
    cold, warm = cost(lab, tmp_path, base, head), cost(lab, tmp_path, base, head)
    # Of objects: the revisions, folders of the base, size and contents of what is no document, folders of the head, who
    # brings it.
    few = Counter({"rev-parse": 1, "config": 1, "for-each-ref": 1, "ls-tree": 2, "cat-file": 6})
    assert warm.asked == few
    assert cold.asked.total() <= few.total() + 6, "the state and what is new in the head, beside that"
    assert warm.parsed == []
    assert warm.shown == cold.shown


def test_a_plan_imports_nothing_that_only_other_verbs_use(lab: Lab, tmp_path: Path) -> None:
    base = begun(lab)
    head = lab.desire(jobs("x"))
    cold, warm = cost(lab, tmp_path, base, head), cost(lab, tmp_path, base, head)
    assert [name for name in UNUSED if name in warm.modules] == []
    models = {name for name in cold.modules if name.startswith("reconciler.documents.schema.")}
    assert "reconciler.documents.schema.inventory" in models
    kept = {name for name in warm.modules if name.startswith("reconciler.documents.schema.")}
    assert kept == {f"reconciler.documents.schema.{name}" for name in ("base", "job", "run")}


def test_a_cluster_kept_for_other_files_is_not_believed(lab: Lab, tmp_path: Path) -> None:
    """The quota of a queue is cut: with what an earlier plan kept, and without, the plan is the same."""
    base = begun(lab)
    cost(lab, tmp_path / "kept", base, lab.desire(jobs("x")))
    queues = "cluster-state/queues/tree.yaml"
    cut = lab.files[queues].replace("{parent: root}", "{parent: root, ceiling: {H100: 16}}")
    assert cut != lab.files[queues]
    head = lab.desire({queues: cut})
    kept = cost(lab, tmp_path / "kept", base, head)
    assert kept.shown == cost(lab, tmp_path / "fresh", base, head).shown
    assert kept.shown != cost(lab, tmp_path / "kept", base, base).shown
