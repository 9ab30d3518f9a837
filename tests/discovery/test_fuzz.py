"""Damaged inputs: no parser crashes, hangs, or says something that cannot be printed."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.discovery.parsed import Kind, Status
from reconciler.discovery.reading import read
from reconciler.render.hardware import summary
from tests.discovery.samples import SAMPLES

_SECONDS = 2
_SCRAPS = st.sampled_from([
    *"X NV18 PIX , [ ] [1-99999999] ... GPU0 NIC0 0000:0a:00.0 <pci> </pci> &a; { } N/A 10 99999999999 é ٣ ALL - : null".split(),  # noqa: SIM905 - short
    "\t", "\n", " ", "\\\n", '"', "\x1b[4m", "\r", "\0", "#", "=", "&a", "node 0 cpus:", "CPU Affinity",
])  # fmt: skip


@st.composite
def _damaged(draw: st.DrawFn, whole: str) -> str:
    """A few cuts, repeats and insertions in a text that was sound."""
    text = whole
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 60)))
        middle = draw(st.one_of(st.just(""), _SCRAPS, st.text(max_size=8), st.just(text[start:end] * 3)))
        text = text[:start] + middle + text[end:]
    return text


@pytest.mark.parametrize("kind", list(Kind))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_text_gives_a_result(kind: Kind, data: st.DataObject) -> None:
    text = data.draw(_damaged(SAMPLES[kind]))
    started = time.process_time()
    for found in (read(text.encode("utf-8", "surrogatepass"), kind), read(text.encode("utf-8", "surrogatepass"))):
        json.dumps(found.tree())
        summary(found.tree(), width=80)
        assert (found.status is Status.ERROR) == bool(found.errors)
        assert found.status is not Status.PARTIAL or found.warnings
    assert time.process_time() - started < _SECONDS


@given(st.binary(max_size=200), st.sampled_from([None, *Kind]))
def test_any_bytes_give_a_result(content: bytes, kind: Kind | None) -> None:
    json.dumps(read(content, kind).tree())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.NCCL_XML, "<system>" + "<pci>" * 500_000),
        (Kind.LLDP, "[" * 1_000_000),
        (Kind.LLDP, '{"lldp":{"interface":{' + ",".join(f'"e{i}":{{}}' for i in range(100_000)) + ',"e99999":{}}}}'),
        (Kind.SLURM_NODES, "NodeName=n Gres=" + "a(," * 300_000),
        (Kind.SLURM_TOPOLOGY, "SwitchName=a Nodes=" + "[1-2]" * 200_000),
        (Kind.HOSTLIST, "n[1-999999999]" * 1000),
        (Kind.NVIDIA_TOPO, "GPU0 " * 1_000_000),
        (Kind.SLURM_TOPOLOGY, "".join(f"SwitchName=s{i} Switches=s{i + 1}\n" for i in range(15_000))),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else value,
)
def test_large_and_hostile_ends_soon(kind: Kind, text: str) -> None:
    started = time.process_time()
    read(text.encode())
    read(text.encode(), kind)
    assert time.process_time() - started < 2 * _SECONDS
