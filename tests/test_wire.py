"""Messages between agent and reconciler: what is sent is what is read, and nothing that is sent can hurt the reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler import wire
from reconciler.wire import (
    Answer,
    AttemptOrder,
    AttemptStatus,
    BadMessage,
    CheckpointOrder,
    NodeOrders,
    Proof,
    RankOrder,
    Refusal,
    Report,
    RunOrder,
    decode_answer,
    decode_orders,
    decode_report,
    encode,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(-(2**62), 2**62)
plain = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
)
objects = st.dictionaries(texts, plain, max_size=3)
BY_ANNOTATION: dict[str, st.SearchStrategy[Any]] = {
    "str": texts,
    "int": numbers,
    "bool": st.booleans(),
    "bytes": st.binary(max_size=20),
    "int | None": st.none() | numbers,
    "list[str]": st.lists(texts, max_size=2),
    "list[int]": st.lists(numbers, max_size=2),
    "list[bytes]": st.lists(st.binary(max_size=9), max_size=2),
    "dict[str, str]": st.dictionaries(texts, texts, max_size=2),
    "dict[str, Any]": objects,
    "list[dict[str, Any]]": st.lists(objects, max_size=2),
}


def any_of(kind: type) -> st.SearchStrategy[Any]:
    """Any value of a message kind, every field drawn by its annotation."""
    drawn: dict[str, st.SearchStrategy[Any]] = {}
    for name, annotation in wire._annotations(kind).items():
        inner = annotation.removeprefix("list[").removesuffix("]").removesuffix(" | None")
        if annotation in BY_ANNOTATION:
            drawn[name] = BY_ANNOTATION[annotation]
        elif annotation.startswith("list["):
            drawn[name] = st.lists(any_of(getattr(wire, inner)), max_size=2)
        elif annotation.endswith(" | None"):
            drawn[name] = st.none() | any_of(getattr(wire, inner))
        else:
            drawn[name] = any_of(getattr(wire, annotation))
    return st.builds(kind, **drawn)


@settings(max_examples=60, deadline=None)
@given(any_of(Report))
def test_a_report_reads_back(report: Report) -> None:
    assert decode_report(encode(report)) == report


@settings(max_examples=60, deadline=None)
@given(any_of(Answer))
def test_an_answer_reads_back(answer: Answer) -> None:
    assert decode_answer(encode(answer)) == answer


@settings(max_examples=60, deadline=None)
@given(any_of(NodeOrders))
def test_orders_read_back(orders: NodeOrders) -> None:
    assert decode_orders(encode(orders)) == orders


REPORT = Report(
    node="gpu-001",
    bootId="b",
    session="s",
    sequence=1,
    address="10.0.0.1",
    epoch=1,
    generation=2,
    commit="c" * 40,
    hardware={"gpus": []},
    attempts=[
        AttemptStatus(job="nlp/sft", attempt=1, state="Running", at=1, generation=1, commit="c", ranks=[{"rank": 0}])
    ],
    refusals=[Refusal(commitId="c", code="BadSignature", detail="d", at=1)],
)
PROOF = Proof(commitId="c", commit=b"\x00\xff", trees=[b"t"], path="p", file=b"{}")
ORDERS = NodeOrders(
    node="gpu-001",
    attempts=[
        AttemptOrder(
            job="nlp/sft",
            attempt=1,
            phase="run",
            digest="d",
            worldSize=1,
            nodeRank=0,
            nodeCount=1,
            leaderAddress="10.0.0.1",
            port=29400,
            ports=[1],
            resume=False,
            deadline=None,
            killSeconds=30,
            fence="confirm",
            leaseSeconds=0,
            cpusPerGpu=1,
            memoryBytes=1,
            run=RunOrder(
                runtime="process",
                launch="perGpu",
                command=["true"],
                script="",
                session=False,
                image="",
                workingDir="",
                env={"A": "b"},
                mounts=[{"source": "/a"}],
                secretFiles=["/s"],
                user="self",
                group="",
                heartbeatFile="",
            ),
            checkpoint=CheckpointOrder(dir="/c", marker="/c/m", signal="SIGUSR1", to="leader", graceSeconds=1),
            ranks=[RankOrder(rank=0, localRank=0, gpu=0, uuid="", numa=0, cpus="", nic="", rail=0)],
        )
    ],
)
DECODERS: dict[str, tuple[Callable[[bytes], Any], Any]] = {
    "report": (decode_report, REPORT),
    "answer": (decode_answer, Answer(generation=1, proof=PROOF)),
    "orders": (decode_orders, ORDERS),
}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(DECODERS)), st.data())
def test_a_field_of_another_type_is_a_bad_message_or_reads_as_that_type(which: str, data: st.DataObject) -> None:
    """One value anywhere in a message is replaced by any other; whatever is let in can be sent on."""
    decode, sound = DECODERS[which]
    tree = json.loads(encode(sound))
    parent: Any = tree
    while True:
        key = data.draw(st.sampled_from(sorted(parent) if isinstance(parent, dict) else range(len(parent))))
        if isinstance(parent[key], (dict, list)) and parent[key] and data.draw(st.booleans()):
            parent = parent[key]
            continue
        parent[key] = data.draw(plain | st.just(10**30) | st.just("\ud800"))
        break
    try:
        read = decode(json.dumps(tree).encode())
    except BadMessage:
        return
    assert decode(encode(read)) == read
    json.dumps(asdict(read), ensure_ascii=False, default=str).encode("utf-8")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_at_all(content: bytes) -> None:
    for decode, _ in DECODERS.values():
        with pytest.raises(BadMessage):
            decode(content)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", {}),
        ("attempts", [5]),
        ("attempts", None),
        ("sequence", True),
        ("sequence", "1"),
        ("sequence", 1.5),
        ("sequence", 2**63),
        ("node", None),
        ("node", "\ud800"),
        ("hardware", []),
        ("hardware", {"x": "\udfff"}),
    ],
)
def test_a_report_with_one_wrong_field_is_refused(field: str, value: object) -> None:
    with pytest.raises(BadMessage):
        decode_report(json.dumps({**asdict(REPORT), field: value}).encode())


@pytest.mark.parametrize(
    "proof",
    [
        5,
        [],
        {},
        {**asdict(PROOF), "commit": "*", "file": "", "trees": []},
        {**asdict(PROOF), "commit": "", "file": "", "trees": [5]},
    ],
)
def test_an_answer_with_a_wrong_proof_is_refused(proof: object) -> None:
    with pytest.raises(BadMessage):
        decode_answer(json.dumps({"generation": 1, "proof": proof}).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"command": ["true", 5]},
        {"command": "true"},
        {"env": {"A": 5}},
        {"secretFiles": [None]},
        {"mounts": ["/a"]},
        {"session": 0},
    ],
)
def test_nothing_is_launched_from_a_malformed_run(change: dict[str, object]) -> None:
    tree = json.loads(encode(ORDERS))
    tree["attempts"][0]["run"].update(change)
    with pytest.raises(BadMessage):
        decode_orders(json.dumps(tree).encode())


def test_a_newer_minor_may_say_more() -> None:
    tree = {**asdict(REPORT), "mood": "fine"}
    assert decode_report(json.dumps(tree).encode()) == REPORT


def test_a_message_has_a_largest_size() -> None:
    big = replace(REPORT, unhealthy="x" * wire.MAX_MESSAGE)
    with pytest.raises(BadMessage, match=str(wire.MAX_MESSAGE)):
        decode_report(encode(big))


def test_a_deep_message_is_refused() -> None:
    with pytest.raises(BadMessage):
        decode_report(b'{"hardware":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
