"""Rings as NCCL tells them: senders and receivers, communicators with their own ranks, prefixes, other lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.discovery.nccl_log import parse_nccl_log


def hops(text: str) -> list[tuple[str, str, str, str, str]]:
    return [(h.node, h.gpu, h.peer_node, h.peer, h.via) for h in parse_nccl_log(text)]


ROWS = {
    "neighbours of one node, the sender speaks": (
        ("n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "n1:8:9 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct\n"),
        [("n1", "0", "n1", "1", "P2P/CUMEM"), ("n1", "1", "n1", "0", "SHM/direct/direct")],
    ),
    "between nodes both sides speak, of one hop": (
        ("n1:7:9 [0] NCCL INFO Channel 02/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
        "n2:7:9 [0] NCCL INFO Channel 02/0 : 0[0] -> 8[0] [receive] via NET/IB/0/GDRDMA\n"),
        [("n1", "0", "n2", "0", "NET/IB/0/GDRDMA")],
    ),
    "all channels of a pair are one hop": (
        "".join(f"n1:7:9 [0] NCCL INFO Channel {c:02}/0 : 0[0] -> 1[1] via P2P/IPC\n" for c in range(3))
        + "n1:8:9 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC\n",
        [("n1", "0", "n1", "1", "P2P/IPC"), ("n1", "1", "n1", "0", "P2P/IPC")],
    ),
    "older versions number channels and devices otherwise": (
        ("n1:7:9 [0] NCCL INFO Channel 00 : 0[1a000] -> 1[1c000] via P2P/IPC\n"
        "n1:8:9 [1] NCCL INFO Channel 00 : 1[1c000] -> 0[1a000] via P2P/IPC\n"),
        [("n1", "1a000", "n1", "1c000", "P2P/IPC"), ("n1", "1c000", "n1", "1a000", "P2P/IPC")],
    ),
    "behind the prefix of gangops logs": (
        ("[rank 0] n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0\n"
        "[rank 1] n2:7:9 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/Socket/0\n"),
        [("n1", "0", "n2", "1", "NET/Socket/0"), ("n2", "1", "n1", "0", "NET/Socket/0")],
    ),
    "a rank is another one in another communicator": (
        ("n1:7:9 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1 commId 0xaa - Init START\n"
        "n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"
        "n1:8:8 [1] NCCL INFO ncclCommInitRank comm 0x2 rank 1 nranks 2 cudaDev 1 busId 2 commId 0xaa - Init START\n"
        "n1:8:8 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC\n"
        "n1:7:9 [0] NCCL INFO ncclCommInitRank comm 0x3 rank 0 nranks 2 cudaDev 0 busId 1 commId 0xbb - Init START\n"
        "n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n"
        "n2:7:9 [0] NCCL INFO ncclCommInitRank comm 0x4 rank 1 nranks 2 cudaDev 0 busId 1 commId 0xbb - Init START\n"
        "n2:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0\n"),
        [("n1", "0", "n1", "1", "P2P/IPC"), ("n1", "0", "n2", "0", "NET/IB/0"), ("n1", "1", "n1", "0", "P2P/IPC")],
    ),
    "a rank of which nobody tells the node": ("n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n", []),
    "other lines": ("hello\nn1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\nstep 7 loss 2.1\n", []),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_hops_of_a_log(row: tuple[str, list[tuple[str, str, str, str, str]]]) -> None:
    text, expected = row
    assert hops(text) == expected


@given(st.text(alphabet="n1:79 [0]NCLIFOChael/->via\n", max_size=300))
def test_any_text_is_read_to_its_end(text: str) -> None:
    parse_nccl_log(text)
