"""Ten faults of different kinds planted into the reference cluster: all ten are named, each at its line, and only those."""

from __future__ import annotations

from tests.documents.trees import ROOT, files_below, problems

JOBS = "cluster-state/jobs"
# The file, a text in it and what stands there instead; then the code that has to be found.
FAULTS = [
    (f"{JOBS}/nlp/llama7b-sft.yaml", "queue: nlp", "queu: nlp", "UnknownField"),
    (f"{JOBS}/nlp/llama7b-eval.yaml", "timeLimit: 2h", "timeLimit: 2 hours", "BadDuration"),
    (f"{JOBS}/pretrain/pretrain-13b.yaml", "data: 4}", "data: 5}", "ParallelismProduct"),
    (f"{JOBS}/pretrain/continued.yaml", "gpus: 32", "gpus: 32\n  gpus: 64", "DuplicateKey"),
    (f"{JOBS}/vision/dino-l.yaml", "queue: vision", "queue: vision\n  priorityClass: reserch", "UnknownPriorityClass"),
    (f"{JOBS}/vision/notebook.yaml", "{session: true}", "{session: true, env: {HF_TOKEN: abc123}}", "SecretInEnv"),
    (f"{JOBS}/nlp/rlhf.yaml", "{job: rack}", "{job: rak}", "UnknownLevel"),
    ("cluster-state/inventory/racks.yaml", '"gpu-[009-012]"', '"gpu-[008-012]"', "NodeNamedTwice"),
    ("cluster-state/queues/tree.yaml", "H100-SXM5-80GB: 48}", "H100-SXM5-80GB: 72}", "GuaranteesExceedParent"),
    ("cluster-state/maintenance/r02-firmware.yaml", '"2030-06-03T10', '"2030-06-03T05', "BadWindow"),
]


def test_ten_planted_faults_are_all_named_at_their_lines() -> None:
    tree = {file.path: file.content.decode() for file in files_below(ROOT, "cluster-state", "policies")}
    assert problems(tree) == ()
    expected = []
    for path, old, new, code in FAULTS:
        assert tree[path].count(old) == 1, (path, old)
        at = tree[path][: tree[path].index(old)].count("\n") + 1
        tree[path] = tree[path].replace(old, new)
        expected.append((path, at, code))
    lines = {
        # Where the fault is not where the text was changed: the key that repeats, the queue that gives too little.
        "DuplicateKey": 1,
        "UnknownPriorityClass": 1,
        "GuaranteesExceedParent": -9,
        "BadWindow": -3,
    }
    found = [(d.place.file, d.place.line, d.code) for d in problems(tree)]
    wanted = {(path, line + lines.get(code, 0), code) for path, line, code in expected}
    assert set(found) == wanted
    assert len(found) == 10
    assert all("abc123" not in str(d) for d in problems(tree)), "a secret is never repeated"
    assert all(d.remedy or d.code in ("BadDuration", "BadWindow") for d in problems(tree))
