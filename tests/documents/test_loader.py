"""The strict loader: what it reads, what it refuses, and where it says so."""

from __future__ import annotations

import base64
import codecs
import resource
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.documents.loader import FILE_LIMITS, STATE_LIMITS, Limits, Loaded, Tree, bulk, load
from reconciler.documents.scalars import DecimalText
from reconciler.errors import Severity

JOB = b"""\
# a comment
apiVersion: gangops/v1
kind: Job
metadata: {name: llama7b-sft}
spec:
  queue: nlp
  gpus: 16
  run:
    command: [torchrun, train.py]
    mounts:
      - source: /a
        target: /b
      -   source: /c
"""
MIB = 1 << 20


def value_of(text: str) -> Tree:
    loaded = load(text.encode(), "f.yaml")
    assert loaded.diagnostics == ()
    assert len(loaded.documents) == 1
    return loaded.documents[0].value


def errors_of(content: bytes | str, limits: Limits = FILE_LIMITS) -> list[tuple[str, int, int]]:
    loaded = load(content.encode() if isinstance(content, str) else content, "f.yaml", limits)
    return [(d.code, d.place.line, d.place.column) for d in loaded.diagnostics]


def test_a_job_is_read_as_plain_values() -> None:
    loaded = load(JOB, "jobs/nlp/llama.yaml")
    assert loaded.ok
    (document,) = loaded.documents
    assert (document.kind, document.name, document.line, document.file) == (
        "Job",
        "llama7b-sft",
        2,
        "jobs/nlp/llama.yaml",
    )
    assert document.value == {
        "apiVersion": "gangops/v1",
        "kind": "Job",
        "metadata": {"name": "llama7b-sft"},
        "spec": {
            "queue": "nlp",
            "gpus": 16,
            "run": {
                "command": ["torchrun", "train.py"],
                "mounts": [{"source": "/a", "target": "/b"}, {"source": "/c"}],
            },
        },
    }


def test_documents_of_one_file_are_told_apart() -> None:
    loaded = load(b"kind: A\nx: 1\n---\nkind: B\nx: 2\n", "f.yaml")
    assert [(d.kind, d.line) for d in loaded.documents] == [("A", 1), ("B", 4)]
    assert [d.place_of(("x",)).line for d in loaded.documents] == [2, 5]


def test_a_sound_document_survives_a_broken_neighbour_but_the_file_is_not_ok() -> None:
    loaded = load(b"kind: A\n---\nkind: B\nkind: C\n---\nkind: D\n", "f.yaml")
    assert [d.kind for d in loaded.documents] == ["A", "D"]
    assert not loaded.ok


@pytest.mark.parametrize("value", ["[1]", "text", "{spec: 3}"])
def test_kind_and_name_are_empty_without_an_envelope(value: str) -> None:
    (document,) = load(value.encode(), "f.yaml").documents
    assert (document.kind, document.name) == ("", "")


# --- scalars ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("42", 42),
        ("-7", -7),
        ("999999999999999999", 10**18 - 1),
        ("true", True),
        ("false", False),
        ("null", None),
        ("''", ""),
        ('"yes"', "yes"),
        ("'010'", "010"),
        ("7d", "7d"),
        ("1d12h", "1d12h"),
        ("0.7us", "0.7us"),
        ("25%", "25%"),
        ("450GBps", "450GBps"),
        ("128..256", "128..256"),
        ("127.0.1.4", "127.0.1.4"),
        ("H100-SXM5-80GB", "H100-SXM5-80GB"),
        ("yes-man", "yes-man"),
        ("/fs/ckpt", "/fs/ckpt"),
        ("--config", "--config"),
        ("a b c", "a b c"),
        ("grün", "grün"),
        ("1.2.3", "1.2.3"),
        ("22:80", "22:80"),
        ("2026-12-03-run", "2026-12-03-run"),
        ("1e", "1e"),
        ("0x", "0x"),
    ],
)
def test_scalar_means_the_same_to_everyone(text: str, value: Tree) -> None:
    read = value_of(f"a: {text}")
    assert isinstance(read, dict)
    assert read["a"] == value
    assert type(read["a"]) is type(value)


@pytest.mark.parametrize("text", ["0.7", "0.20", "-1.5", "12.000"])
def test_a_decimal_keeps_its_digits(text: str) -> None:
    read = value_of(f"a: {text}")
    assert isinstance(read, dict)
    assert isinstance(read["a"], DecimalText)
    assert read["a"] == text


@pytest.mark.parametrize(
    "text",
    """yes no on off y n Yes NO oN Y N True TRUE False tRUE Null NULL ~ = <<
    010 00 -0 +1 1_000 0b1 0o7 0x1F 0X1f 0B1 1:30:00 1:30 190:20:30.15 1e3 1E3 12e4567 1.5e3 1e-3 .5 5. +.5 1_0.5
    .inf -.inf .Inf +.INF .nan .NaN 2026-12-03 2026-1-3 2026-12-03T10:00:00Z 01.5""".split(),  # noqa: SIM905 - as a list it takes sixty lines
)
def test_scalar_that_loaders_read_differently_wants_quotes(text: str) -> None:
    loaded = load(f"a: {text}\nb: '{text}'\n".encode(), "f.yaml")
    (problem,) = loaded.diagnostics
    assert (problem.code, problem.place.line, problem.place.column, problem.place.path) == (
        "AmbiguousScalar",
        1,
        4,
        "a",
    )
    assert f'uote it: "{text}"' in problem.remedy


def test_a_timestamp_with_spaces_wants_quotes() -> None:
    assert errors_of("a: 2026-12-03 10:00:00\n") == [("AmbiguousScalar", 1, 4)]


@pytest.mark.parametrize("text", ["1" * 19, "-" + "1" * 19, "1." + "0" * 18, "9" * 5000])
def test_a_number_beyond_63_bits_is_refused(text: str) -> None:
    assert errors_of(f"a: {text}") == [("NumberTooLong", 1, 4)]


def test_our_own_files_may_hold_larger_integers() -> None:
    (document,) = load(b"a: %d" % 10**39, "f.yaml", STATE_LIMITS).documents
    assert document.value == {"a": 10**39}


# --- refusals ---


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        pytest.param("a: 1\nb: 2\n  \na: 3\n", [("DuplicateKey", 4, 1)], id="repeated key"),
        pytest.param("a: {b: 1, 'b': 2}\n", [("DuplicateKey", 1, 11)], id="repeated key, quoted once"),
        pytest.param("a: &x 1\n", [("AnchorRefused", 1, 4)], id="anchor"),
        pytest.param("&x a: 1\n", [("AnchorRefused", 1, 1)], id="anchor on a key"),
        pytest.param("a: *x\n", [("AliasRefused", 1, 4)], id="alias"),
        pytest.param("a: &a [*a]\n", [("AnchorRefused", 1, 4), ("AliasRefused", 1, 8)], id="self reference"),
        pytest.param("<<: *x\nb: 1\n", [("MergeRefused", 1, 1)], id="merge"),
        pytest.param("<<: {c: 1}\nb: 1\n", [("MergeRefused", 1, 1)], id="merge of a mapping written out"),
        pytest.param("a: !!str 1\n", [("TagRefused", 1, 4)], id="tag"),
        pytest.param("a: ! x\n", [("TagRefused", 1, 4)], id="non-specific tag"),
        pytest.param("a: !!python/object:os.system {}\n", [("TagRefused", 1, 4)], id="tag of a language"),
        pytest.param("%YAML 1.1\n---\na: 1\n", [("DirectiveRefused", 1, 1)], id="directive"),
        pytest.param("8: a\n", [("KeyNotText", 1, 1)], id="integer key"),
        pytest.param("0.5: a\n", [("KeyNotText", 1, 1)], id="decimal key"),
        pytest.param("true: a\n", [("KeyNotText", 1, 1)], id="boolean key"),
        pytest.param("null: a\n", [("KeyNotText", 1, 1)], id="null key"),
        pytest.param("? [a]\n: 1\n", [("KeyNotText", 1, 3)], id="list as key"),
        pytest.param("*x : 1\n", [("AliasRefused", 1, 1)], id="alias as key"),
        pytest.param("on: a\n", [("AmbiguousScalar", 1, 1)], id="key that is a boolean in YAML 1.1"),
        pytest.param(f"? {'k' * 200}\n: 1\n", [("KeyTooLong", 1, 3)], id="long key"),
        pytest.param("a: [1, 2\nb: 3\n", [("InvalidYaml", 2, 2)], id="open bracket"),
        pytest.param("a:\n\tb: 1\n", [("InvalidYaml", 2, 1)], id="tab"),
        pytest.param("", [("EmptyFile", 0, 0)], id="empty file"),
        pytest.param("# all\n# gone\n", [("EmptyFile", 0, 0)], id="comments only"),
        pytest.param("a: x\x07y\n", [("ControlCharacter", 1, 5)], id="control character"),
        pytest.param("a: 1\nb: x\0\n", [("ControlCharacter", 2, 5)], id="NUL"),
        pytest.param("a: ü\u202ey\n", [("ControlCharacter", 1, 5)], id="reversed writing direction"),
        pytest.param("a: 1 # x\rb: 2\n", [("ControlCharacter", 1, 9)], id="lone carriage return"),
        pytest.param("a: 1\n# x\x85b: 2\n", [("ControlCharacter", 2, 4)], id="next line, a line end in YAML 1.1 only"),
        pytest.param("a: 1\nb: \ufeffx\n", [("ControlCharacter", 2, 4)], id="byte order mark inside"),
    ],
)
def test_refused_with_its_place(content: str, problems: list[tuple[str, int, int]]) -> None:
    assert errors_of(content) == problems


def test_all_problems_are_gathered_and_each_has_a_remedy() -> None:
    loaded = load(b"a: yes\nb: &x 1\nb: 010\nc: !t v\n", "f.yaml")
    assert [d.code for d in loaded.diagnostics] == [
        "AmbiguousScalar", "AnchorRefused", "DuplicateKey", "AmbiguousScalar", "TagRefused",
    ]  # fmt: skip
    assert all(d.remedy and d.detail and d.severity is Severity.ERROR for d in loaded.diagnostics)
    assert loaded.documents == ()


def test_many_problems_are_cut_at_the_limit() -> None:
    assert len(errors_of("- yes\n" * 1000)) == FILE_LIMITS.max_problems


def test_a_repeated_key_names_its_first_use() -> None:
    (problem,) = load(b"a:\n  x: 1\n  z: 2\n  x: 3\n", "f.yaml").diagnostics
    assert "line 2, column 3" in problem.detail
    assert problem.place.path == "a.x"


def test_a_key_repeated_inside_a_repeated_mapping_names_the_right_line() -> None:
    first, second = load(b"a: {z: 0}\na:\n  z: 1\n  z: 2\n", "f.yaml").diagnostics
    assert "line 1, column 1" in first.detail
    assert "line 3, column 3" in second.detail


def test_a_superfluous_document_mark_is_a_warning_said_once() -> None:
    loaded = load(b"---\n---\na: 1\n---\n", "f.yaml")
    assert [(d.code, d.severity) for d in loaded.diagnostics] == [("EmptyDocument", Severity.WARNING)]
    assert loaded.ok
    assert loaded.documents[0].place_of(("a",)).line == 3


@pytest.mark.parametrize(
    ("content", "limits", "code"),
    [
        (b"a: 1234567", Limits(max_bytes=9), "TooLarge"),
        (b"a: {b: {c: 1}}", Limits(max_depth=2), "TooDeep"),
        (b"a: [[1]]", Limits(max_depth=2), "TooDeep"),
        (b"[1, 2, 3]", Limits(max_nodes=3), "TooManyNodes"),
        (b"{a: 1, b: 2}", Limits(max_nodes=4), "TooManyNodes"),
        (b"a\n---\nb\n", Limits(max_documents=1), "TooManyDocuments"),
    ],
)
def test_beyond_a_limit(content: bytes, limits: Limits, code: str) -> None:
    assert [problem[0] for problem in errors_of(content, limits)] == [code]


def test_at_the_limit() -> None:
    limits = Limits(max_bytes=14, max_depth=3, max_nodes=7, max_documents=1, max_digits=1, max_key=1)
    assert load(b"a: {b: {c: 1}}", "f.yaml", limits).ok


# --- positions ---


@pytest.mark.parametrize(
    ("path", "place", "text"),
    [
        (("kind",), (3, 7), "kind"),
        (("metadata", "name"), (4, 18), "metadata.name"),
        (("spec", "queue"), (6, 10), "spec.queue"),
        (("spec",), (5, 1), "spec"),
        (("spec", "run", "command", 1), (9, 25), "spec.run.command[1]"),
        (("spec", "run", "mounts", 0, "target"), (12, 17), "spec.run.mounts[0].target"),
        (("spec", "run", "mounts", 1), (13, 11), "spec.run.mounts[1]"),
        (("spec", "priorityClass"), (5, 1), "spec.priorityClass"),
        (("spec", "run", "mounts", 7, "source"), (10, 5), "spec.run.mounts[7].source"),
        (("absent",), (2, 1), "absent"),
        ((), (2, 1), ""),
        (("a.b/c",), (2, 1), '["a.b/c"]'),
    ],
)
def test_place_of_a_path(path: tuple[str | int, ...], place: tuple[int, int], text: str) -> None:
    (document,) = load(JOB, "f.yaml").documents
    found = document.place_of(path)
    assert ((found.line, found.column), found.path, found.file) == (place, text, "f.yaml")


def test_place_of_a_key() -> None:
    (document,) = load(JOB, "f.yaml").documents
    assert document.place_of(("spec", "queue"), of_key=True).column == 3


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(JOB, id="LF"),
        pytest.param(JOB.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(codecs.BOM_UTF8 + JOB.replace(b"\n", b"\r\n"), id="byte order mark and CRLF"),
        pytest.param(JOB.replace(b"a comment", "ein Wörtchen 日本 😀".encode()), id="multi-byte text before"),
    ],
)
def test_places_do_not_depend_on_the_encoding_of_lines(content: bytes) -> None:
    (document,) = load(content, "f.yaml").documents
    assert document.value == load(JOB, "f.yaml").documents[0].value
    assert [document.place_of(p).column for p in (("kind",), ("spec", "run", "command", 1))] == [7, 25]
    assert document.place_of(("spec", "run", "mounts", 1)).line == 13


def test_columns_count_characters_not_bytes() -> None:
    assert errors_of("a: {b: 'ü😀', c: yes}\n") == [("AmbiguousScalar", 1, 17)]


def test_columns_after_a_byte_order_mark_are_those_of_the_editor() -> None:
    assert errors_of(codecs.BOM_UTF8 + b"a: yes\n") == [("ByteOrderMark", 1, 1), ("AmbiguousScalar", 1, 4)]


# --- cases from reports about other tools ---


def test_g14_repeated_key() -> None:
    (problem,) = load(b"name: a\npriority: 10\ngpus: 8\npriority: 1000\n", "jobs/a.yaml").diagnostics
    assert (problem.code, str(problem.place)) == ("DuplicateKey", "jobs/a.yaml:4:1  priority")
    assert "line 2" in problem.detail


def test_g17_file_of_a_windows_editor() -> None:
    content = base64.b64decode("77u/bmFtZTogd2luDQpncHVzOiA4DQpwcmlvcml0eTogNQ0K")
    loaded = load(content, "jobs/win.yaml")
    assert loaded.documents[0].value == {"name": "win", "gpus": 8, "priority": 5}
    assert [(d.code, d.severity) for d in loaded.diagnostics] == [("ByteOrderMark", Severity.WARNING)]


G15 = b"".join(
    b"%c: &%c [%s]\n" % (name, name, b",".join([inner] * 10))
    for name, inner in zip(b"abcdefg", (b"x", b"*a", b"*b", b"*c", b"*d", b"*e", b"*f"), strict=True)
)


@pytest.mark.parametrize("content", [G15 + b"name: [*g,*g,*g,*g,*g,*g,*g,*g,*g,*g]\n", b"a: &a [*a]\n"])
def test_g15_anchor_bomb_is_refused_where_it_begins_and_never_expanded(content: bytes) -> None:
    load(b"a: 1\n", "warm.yaml")
    tracemalloc.start()
    started = time.process_time()
    try:
        loaded = load(content, "jobs/bomb.yaml")
        told = "".join(map(str, loaded.diagnostics))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 1
    assert peak < 64 * MIB
    assert not loaded.ok
    first = loaded.diagnostics[0]
    assert (first.code, str(first.place)) == ("AnchorRefused", "jobs/bomb.yaml:1:4  a")
    assert told.count("x,") < 20


@pytest.mark.parametrize(
    ("content", "code", "offset", "place"),
    [
        (base64.b64decode("//5uAGEAbQBlADoAIAB1AAoA"), "NotUtf8", 0, (1, 1)),
        (base64.b64decode("bmFtZTogY2Fm6Qo="), "NotUtf8", 9, (1, 10)),
        ("a: 1\nb: ü".encode() + b"\xff", "NotUtf8", 10, (2, 5)),
        ("name: u\n".encode("utf-16-le"), "ControlCharacter", 1, (1, 2)),
        (b"a: \xed\xa0\x80\n", "NotUtf8", 3, (1, 4)),
        (b"a: \xc0\xaf\n", "NotUtf8", 3, (1, 4)),
    ],
)
def test_g18_not_utf8(content: bytes, code: str, offset: int, place: tuple[int, int]) -> None:
    (problem,) = load(content, "f.yaml").diagnostics
    assert (problem.code, (problem.place.line, problem.place.column)) == (code, place)
    assert f"byte offset {offset}" in problem.detail
    assert "UTF-8" in problem.detail or "UTF-16" in problem.detail


def test_g19_lfs_pointer() -> None:
    content = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (problem,) = load(content, "inventory/rack1.yaml").diagnostics
    assert problem.code == "LfsPointer"
    assert "Git LFS pointer" in problem.summary
    assert ".gitattributes" in problem.remedy


def _bomb(levels: int) -> bytes:
    rows = [b"a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"]
    rows += [b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, levels)]
    return b"".join(rows)


HOSTILE = {
    "g15 alias bomb of 15 levels": _bomb(15),
    "open brackets": b"[" * MIB,
    "open braces": b"{" * MIB,
    "dashes": b"- " * (MIB // 2),
    "question marks": b"? " * (MIB // 2),
    "deep indentation": b"".join(b" " * depth + b"a:\n" for depth in range(1400)),
    "binary": bytes(range(256)) * 4096,
    "zeros": bytes(MIB),
    "huge key": b"a" * (MIB - 4) + b": 1\n",
    "huge explicit key": b"? " + b"a" * (MIB - 8) + b"\n: 1\n",
    "flat list": b"[" + b"1," * (MIB // 2 - 2) + b"]",
    "many keys": b"".join(b"k%d: 1\n" % n for n in range(95_000)),
    "repeated keys at the end": b"".join(b"k%d: 1\n" % n for n in range(49_000)) + b"k48999: 2\n" * 30,
    "digits": b"9" * MIB,
    "base 60": b"1" + b":1" * (MIB // 2 - 1),
    "document marks": b"---\n" * (MIB // 4),
    "anchors": b"".join(b"- &a%d x\n" % n for n in range(80_000)),
    "too large": b"a: b\n" * MIB,
    "self reference": b"a: &a [*a]\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_content_is_refused_quickly_and_briefly(name: str) -> None:
    started = time.process_time()
    loaded = load(HOSTILE[name], "f.yaml")
    assert time.process_time() - started < 1
    assert not loaded.ok
    assert all(len(str(d)) < 1000 for d in loaded.diagnostics)
    assert len(loaded.diagnostics) <= FILE_LIMITS.max_problems


def test_hostile_content_stays_within_memory() -> None:
    """All cases in one process of 256 MiB of address space beyond what the imports need."""
    folder = Path(__file__).parent
    program = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(folder.parents[1])!r}]; import test_loader; test_loader.spend()"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stdout) == (0, f"{len(HOSTILE)} refused\n"), run.stderr


def spend() -> None:
    """Run by the test above, in a process of its own."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 256 * MIB, used + 256 * MIB))
    refused = [name for name, content in HOSTILE.items() if not load(content, "f.yaml").ok]
    print(f"{len(refused)} refused")


# --- properties ---


@given(st.binary(max_size=200))
def test_no_bytes_raise(content: bytes) -> None:
    assert isinstance(load(content, "f.yaml"), Loaded)


@given(st.text(alphabet="ab:-?[]{},&*!|>'\"%@# \n\t0123.~<", max_size=60))
def test_no_yaml_like_text_raises_and_every_place_is_inside_the_file(text: str) -> None:
    lines = text.split("\n")
    for problem in load(text.encode(), "f.yaml").diagnostics:
        assert 0 <= problem.place.line <= len(lines)
        if problem.place.line:
            assert 1 <= problem.place.column <= len(lines[problem.place.line - 1]) + 1


@given(st.text(alphabet="ab:-[]{}, \n", max_size=60))
def test_every_value_has_a_place(text: str) -> None:
    for document in load(text.encode(), "f.yaml").documents:
        for path in _paths(document.value, ()):
            assert document.place_of(path).line >= document.line


def _paths(tree: Tree, path: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
    children: list[tuple[str | int, Tree]] = []
    if isinstance(tree, dict):
        children = list(tree.items())
    elif isinstance(tree, list):
        children = list(enumerate(tree))
    return [path, *(found for step, child in children for found in _paths(child, (*path, step)))]


def test_bulk_restores_garbage_collection() -> None:
    import gc

    assert gc.isenabled()
    with bulk():
        assert not gc.isenabled()
    assert gc.isenabled()
