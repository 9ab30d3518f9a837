"""Host lists: Slurm's syntax, guarded before anything is expanded."""

from __future__ import annotations

import itertools
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.documents.hostlist import expand, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x1", "x1"),
        ("gpu-[001-003,010],x1", "gpu-001 gpu-002 gpu-003 gpu-010 x1"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[0-2]", "n0 n1 n2"),
        ("n[00-02]", "n00 n01 n02"),
        ("n1,n01", "n01 n1"),
        ("r[1-2]-n[01-02].dc", "r1-n01.dc r1-n02.dc r2-n01.dc r2-n02.dc"),
        ("b,a[10,9]", "a9 a10 b"),
        ("n1[1-2]", "n11 n12"),
        ("n[5]", "n5"),
    ],
)
def test_expands(text: str, names: str) -> None:
    assert expand(text) == tuple(names.split())


@pytest.mark.parametrize(
    "text",
    [
        *"@rack n* n? a!b a&b a^b n[1-2][3-4] n[1]] n[1 n[] n[1-] n[-1] n[a-b] n[2-1] n[0-4/2]".split(),  # noqa: SIM905 - short
        *"n[001-10] n[1-010] a, ,a a,,b n[1,] -a a- .a é n[٣] n[1-1000000000] %c n1[8-11] n[8-11]1".split(),  # noqa: SIM905 - short
        *["n[1,1]", "n1,n1", "n[1-3,2]", "n[1-2],n2"],
        *["", " ", "a b", "a\n", "a, b", "a" * 300, "1" * 200_000, "[" * 100_000],
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="node"):
        expand(text)


@pytest.mark.parametrize(
    "text",
    [
        "n[0-999999999]",
        "a[0-9999]b[0-9999]",
        "[0-9]x".join("abcdefghij"),
        "-".join(["n[0-999999999]"] * 40),
        ",".join(["n[1-20000]"] * 500),
        "a[1," * 50_000,
        ",".join(["a"] * 30_000),
        "x" * (2 << 20),
    ],
)
def test_a_hostile_list_is_refused_before_it_is_expanded(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=r"more than|too long|does not start"):
        expand(text)
    assert time.process_time() - started < 0.2


def test_the_limit_is_inclusive() -> None:
    assert len(expand("n[1-10],m[1-10]", limit=20)) == 20
    with pytest.raises(ValueError, match="more than 19"):
        expand("n[1-10],m[1-10]", limit=19)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("", ""),
        ("x1", "x1"),
        ("gpu-002 gpu-001 gpu-010 x1", "gpu-[001-002,010],x1"),
        ("n98 n99 n100", "n[98-100]"),
        ("n098 n099 n100 n1000", "n[098-100,1000]"),
        ("n999 n1000", "n[999-1000]"),
        ("n1 n01", "n[01,1]"),
        ("r1-n1 r1-n2 r2-n1 r2-n2 r3-n1", "r[1-2]-n[1-2],r3-n1"),
        ("a b", "a,b"),
        ("n12345678901 n12345678902", "n12345678901,n12345678902"),
    ],
)
def test_folds(names: str, text: str) -> None:
    assert fold(names.split()) == text
    assert fold(reversed(names.split())) == text


@pytest.mark.parametrize("name", ["", "a,b", "n[1-2]", "@g", "-a", "a b", "é", "a" * 254])
def test_does_not_fold_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="is not a node name"):
        fold([name])


def test_scattered_names_of_three_numbers_fold_quickly() -> None:
    names = [f"r{n * 7 % 101}-c{n * 13 % 89}-n{n}" for n in range(5000)]
    started = time.process_time()
    assert set(expand(fold(names))) == set(names)
    assert time.process_time() - started < 2


NAME = st.from_regex(r"[a-c0-9]([a-b0-9.-]{0,8}[a-c0-9])?", fullmatch=True)


@given(st.sets(NAME, max_size=40))
def test_folded_names_come_back(names: set[str]) -> None:
    folded = fold(names)
    assert (set(expand(folded)) if folded else set()) == names


PIECE = st.sampled_from(
    ["a", "b", "0", "1", "9", "-", "[0-3]", "[08-11]", "[8-11]", "[1,3]", "[8,11]", "[098-101]", "x[1-2]y"]
)


@given(st.lists(PIECE, min_size=1, max_size=5).map("".join))
def test_reads_a_list_as_slurm_does_or_not_at_all(item: str) -> None:
    """Slurm's rule: every bracket is replaced by each of its numbers, padded as its low end is."""
    try:
        names = expand(item)
    except ValueError:
        return
    pieces = [_numbers(part) if part.startswith("[") else [part] for part in re.split(r"(\[[^\]]*\])", item)]
    assert set(names) == {"".join(choice) for choice in itertools.product(*pieces)}


def _numbers(group: str) -> list[str]:
    ends = [(part.split("-")[0], part.split("-")[-1]) for part in group[1:-1].split(",")]
    return [str(n).zfill(len(low)) for low, high in ends for n in range(int(low), int(high) + 1)]
