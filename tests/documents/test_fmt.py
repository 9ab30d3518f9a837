"""Formatting and editing keep what people wrote; what the file says changes only as asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.documents.edit import format_text, remove_value, set_value
from reconciler.documents.loader import Tree, load
from reconciler.documents.positions import Path as TreePath
from reconciler.documents.scaffold import scaffold
from reconciler.errors import InvalidInput, NotFound
from tests.documents.trees import ROOT

UGLY = b"""\
# who: the sft team
kind: Job   # a job
apiVersion: gangops/v1
spec:
    run:
        command:
        - torchrun
        - "train.py"   # the script
        env: {B: "1", A: 'x'}
    gpus:   16
    queue: nlp
metadata: {name: a}
"""
PRETTY = b"""\
# who: the sft team
apiVersion: gangops/v1
kind: Job   # a job
metadata: {name: a}
spec:
  queue: nlp
  gpus: 16
  run:
    command:
      - torchrun
      - "train.py"     # the script
    env: {B: "1", A: 'x'}
"""


def trees(content: bytes) -> list[Tree]:
    loaded = load(content, "f")
    assert loaded.ok
    return [document.value for document in loaded.documents]


def documents() -> list[Path]:
    return sorted(path for folder in ("cluster-state", "policies") for path in (ROOT / folder).rglob("*.yaml"))


def test_a_file_is_put_in_order_with_its_comments() -> None:
    assert format_text(UGLY).decode() == PRETTY.decode()


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.stem)
def test_the_reference_cluster_is_formatted_already(path: Path) -> None:
    assert format_text(path.read_bytes()) == path.read_bytes()


def test_the_scaffold_is_formatted_already() -> None:
    for path, content in scaffold().items():
        if path.endswith(".yaml"):
            assert format_text(content) == content, path


@pytest.mark.parametrize(
    "text",
    [
        UGLY.decode(),
        "a:\n- b\n-   c\n\n\n# end\n",
        "# top\n---\na: 1\n---\n# second\nb: [1,\n  2]\n",
        "a: |\n  text\n   more\nb: >-\n  folded\n  text\n",
        'a: "x" # c\nb:\n    # inner\n    - {c: d}\n    # after\n',
        "a: 0.10\nb: 30m\nc: '010'\nd:\n",
        'a: "\\u2028"\nb: "tab\\t"\n',
        "\ufeffa: 1\r\nb: 2\r\n",
    ],
)
def test_formatting_twice_is_formatting_once_and_says_the_same(text: str) -> None:
    once = format_text(text.encode())
    assert format_text(once) == once
    assert trees(once) == trees(text.encode())
    assert [line.partition("#")[2] for line in text.splitlines() if "#" in line] == [
        line.partition("#")[2] for line in once.decode().splitlines() if "#" in line
    ]


def test_fields_are_not_moved_past_a_comment_on_its_own_line() -> None:
    text = b"apiVersion: gangops/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  gpus: 8\n  # belongs to queue\n  queue: nlp\n"
    assert format_text(text) == text


def test_what_the_strict_loader_refuses_is_not_formatted() -> None:
    with pytest.raises(InvalidInput) as refused:
        format_text(b"a: 1\na: 2\n", "f.yaml")
    assert [(d.code, d.place.file, d.place.line) for d in refused.value.diagnostics] == [("DuplicateKey", "f.yaml", 2)]


# --- edits ----------------------------------------------------------------------------------------------------------

JOB = b"""\
# mine
spec:
  queue: nlp   # ours
  gpus: 16
  topology: {required: {job: rack}}
  list:
  - a   # first
  - b
"""


@pytest.mark.parametrize(
    ("path", "value", "old", "new"),
    [
        (("spec", "gpus"), 32, "gpus: 16", "gpus: 32"),
        (("spec", "queue"), "vision", "queue: nlp   # ours", "queue: vision # ours"),
        (("spec", "topology", "required", "job"), "spineGroup", "job: rack", "job: spineGroup"),
        (("spec", "topology", "spares"), 1, "job: rack}}", "job: rack}, spares: 1}"),
        (("spec", "list", 1), "c", "  - b\n", "  - c\n"),
        (("spec", "suspend"), True, "  - b\n", "  - b\n  suspend: true\n"),
        (("spec", "a", "b"), "30m", "  - b\n", "  - b\n  a:\n    b: 30m\n"),
        (("spec", "text"), "no", "  - b\n", '  - b\n  text: "no"\n'),
        (("spec", "text"), "a: b # c", "  - b\n", '  - b\n  text: "a: b # c"\n'),
        (("spec", "text"), ["x", "010"], "  - b\n", '  - b\n  text: [x, "010"]\n'),
        (("spec", "text"), {"k": {"5": "v"}}, "  - b\n", '  - b\n  text: {k: {"5": v}}\n'),
    ],
)
def test_an_edit_changes_what_was_asked_and_nothing_else(path: TreePath, value: Tree, old: str, new: str) -> None:
    assert set_value(JOB, path, value).decode() == JOB.decode().replace(old, new)


def test_an_edit_in_one_of_several_documents() -> None:
    text = b"a: 1\n---\na: 1   # two\n"
    assert set_value(text, ("a",), 2, index=1) == b"a: 1\n---\na: 2   # two\n"


def test_taking_a_value_out() -> None:
    assert remove_value(JOB, ("spec", "gpus")) == JOB.replace(b"  gpus: 16\n", b"")
    assert remove_value(JOB, ("spec", "list", 1)) == JOB.replace(b"  - b\n", b"")


@pytest.mark.parametrize("path", [(), ("spec", "gpus", "x"), ("spec", "list", 7), ("spec", "list", "x")])
def test_a_path_that_leads_nowhere_is_refused(path: TreePath) -> None:
    with pytest.raises(NotFound) as refused:
        set_value(JOB, path, 1)
    assert refused.value.code == "PathNotFound"


def test_taking_out_what_is_not_there_is_refused() -> None:
    with pytest.raises(NotFound):
        remove_value(JOB, ("spec", "nothing"))
    with pytest.raises(NotFound):
        remove_value(JOB, ("spec",), index=1)


# --- byte for byte --------------------------------------------------------------------------------------------------

ODD = b"""\
# Mine, laid out as I like it.
apiVersion:   gangops/v1
kind: Job
metadata: { name: a,   labels: {team: a} }      # do not rename

spec:
    queue:    nlp   # ours
    gpus: 16
    # trains for a week
    run: {command: [python,   train.py],
          env: {A: '1'}}     # two lines
    checkpoint:
        dir: /fs/a      # shared

# the end
"""


@pytest.mark.parametrize(
    ("path", "value", "old", "new"),
    [
        (("spec", "gpus"), 8, "gpus: 16", "gpus: 8"),
        (("spec", "queue"), "vision", "nlp   # ours", "vision # ours"),
        (("spec", "suspend"), True, "/fs/a      # shared\n", "/fs/a      # shared\n    suspend: true\n"),
        (("spec", "nice"), -5, "nlp   # ours\n", "nlp   # ours\n    nice: -5\n"),
        (("spec", "priorityClass"), "high", "nlp   # ours\n", "nlp   # ours\n    priorityClass: high\n"),
        (("spec", "timeLimit"), "12h", "gpus: 16\n", "gpus: 16\n    timeLimit: 12h\n"),
        (("spec", "run", "workingDir"), "/fs/w", "env: {A: '1'}}", "env: {A: '1'}, workingDir: /fs/w}"),
        (("spec", "run", "env", "B"), "2", "{A: '1'}", "{A: '1', B: \"2\"}"),
        (("spec", "checkpoint", "every"), "5m", "# shared\n", "# shared\n        every: 5m\n"),
        (("metadata", "annotations", "why"), "so", "{team: a} }", "{team: a}, annotations: {why: so} }"),
        (("spec", "preemption", "policy"), "never", "# shared\n", "# shared\n    preemption:\n      policy: never\n"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else None,
)  # fmt: skip
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
def test_what_is_not_edited_stays_byte_for_byte(
    path: TreePath, value: Tree, old: str, new: str, ends: bytes, mark: bytes
) -> None:
    """A field goes where the schema has it; odd spacing, indentation and comments are nobody's business."""
    text = mark + ODD.replace(b"\n", ends)
    fresh = set_value(text, path, value)
    assert fresh == mark + ODD.replace(old.encode(), new.encode()).replace(b"\n", ends)
    assert ODD.count(old.encode()) == 1


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (("spec", "gpus"), "    gpus: 16\n", ""),
        (("spec", "queue"), "    queue:    nlp   # ours\n", ""),
        (("spec", "checkpoint"), "    checkpoint:\n        dir: /fs/a      # shared\n", ""),
        (("metadata", "labels"), ",   labels: {team: a}", ""),
        (("metadata", "labels", "team"), "{team: a}", "{}"),
        (("metadata", "name"), "name: a,   ", ""),
        (("spec", "run", "env"), ",\n          env: {A: '1'}", ""),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else None,
)
def test_what_is_taken_out_leaves_the_rest_byte_for_byte(path: TreePath, old: str, new: str) -> None:
    assert ODD.count(old.encode()) == 1
    assert remove_value(ODD, path) == ODD.replace(old.encode(), new.encode())


def test_a_file_without_a_last_line_feed_and_the_second_document_of_a_file() -> None:
    text = b"kind: Job\nspec:\n  gpus: 1\n---\nkind: Job\nspec:\n  gpus:  2"
    assert set_value(text, ("spec", "nice"), 3, index=1) == text + b"\n  nice: 3\n"
    assert set_value(text, ("spec", "nice"), 3).count(b"nice: 3\n---\n") == 1


def test_a_script_of_several_lines_is_no_obstacle() -> None:
    text = b"kind: Job\nspec:\n  gpus: 1\n  run:\n    script: |\n      a # not a comment\n\n      b\n\n# end\n"
    fresh = set_value(text, ("spec", "suspend"), True)
    assert fresh == text.replace(b"gpus: 1\n", b"gpus: 1\n  suspend: true\n")
    assert set_value(text, ("spec", "run", "image"), "x") == text.replace(b"      b\n", b"      b\n    image: x\n")


def test_what_cannot_be_put_in_by_place_is_written_anew_and_says_the_same() -> None:
    text = b"spec:\n    list:\n    - a   # first\n    - b\n"
    assert trees(set_value(text, ("spec", "list"), ["c"])) == [{"spec": {"list": ["c"]}}]
    assert trees(remove_value(text, ("spec", "list"))) == [{"spec": {}}]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.stem)
def test_setting_any_one_value_of_the_reference_cluster_changes_its_line_alone(path: Path) -> None:
    content = path.read_bytes()
    before = content.decode().splitlines()
    for index, tree in enumerate(trees(content)):
        for place, value in leaves(tree):
            fresh = set_value(content, place, "changed", index=index).decode().splitlines()
            differing = [(a, b) for a, b in zip(before, fresh, strict=False) if a != b]
            alike = isinstance(value, str) and "\n" in value
            assert alike or (len(fresh) == len(before) and len(differing) <= 1), (place, differing)


def leaves(tree: Tree, path: TreePath = ()) -> list[tuple[TreePath, Tree]]:
    if isinstance(tree, dict):
        return [leaf for key, value in tree.items() for leaf in leaves(value, (*path, key))]
    if isinstance(tree, list):
        return [leaf for key, value in enumerate(tree) for leaf in leaves(value, (*path, key))]
    return [(path, tree)]
