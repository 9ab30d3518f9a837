"""Verdicts on many generations, in the chain's order, from as many processes as are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from reconciler.errors import StoreError
from reconciler.runtime.audit.ends import number_said
from reconciler.runtime.audit.findings import Finding, Judged
from reconciler.runtime.audit.judge import Bench, GenerationJudge
from reconciler.runtime.audit.reel import frames
from reconciler.store.objects import raw_commits
from reconciler.store.runner import Git
from reconciler.store.walk import Link

_PART = 50
"""Generations judged at a stretch by one process."""


@dataclass(frozen=True, slots=True)
class _Part:
    links: list[Link]
    before: str
    first: int


_BENCH: list[Bench] = []


def _sit(git: Git, pinned: bytes) -> None:
    """Makes ready a process that judges."""
    _BENCH[:] = [Bench(git, pinned)]


def _judge_part(part: _Part) -> list[Judged]:
    return _judge_links(_BENCH[0], part)


def judged_in_order(git: Git, links: list[Link], first: int, pinned: bytes, processes: int) -> Iterator[Judged]:
    """Verdicts in the chain's order, from as many processes as are wanted."""
    parts = [
        _Part(links[i : i + _PART], links[i - 1].id if i else links[0].parent, first + i)
        for i in range(0, len(links), _PART)
    ]
    if processes <= 1 or len(parts) == 1:
        bench = Bench(git, pinned)
        with bench.signers:
            for part in parts:
                yield from _judge_links(bench, part)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _sit, (git, pinned)) as pool:
        for found in pool.map(_judge_part, parts):
            yield from found


def _judge_links(bench: Bench, part: _Part) -> list[Judged]:
    try:
        return _judge_frames(bench, part)
    except StoreError as err:  # git itself cannot read what is there
        finding = object_fault(bench.git, part.links, part.first, 0, f"{err.code} from here on: {err.message}")
        return [
            Judged(
                position=finding.position, generation=finding.generation, commit=finding.commit, findings=(finding,),
                version=0, package="", epoch=0,
            )
        ]  # fmt: skip


def _judge_frames(bench: Bench, part: _Part) -> list[Judged]:
    reel = frames(bench.git, part.links, part.before)
    before = next(reel) if part.before else None
    trees = _trees(bench.git, part.links)
    bench.signers.look_ahead(link.parent for link in part.links if link.parent)
    found = []
    for position, (link, frame) in enumerate(zip(part.links, reel, strict=True), part.first):
        found.append(GenerationJudge(bench, position, link, frame, before, trees).verdict())
        before = frame
    return found


def _trees(git: Git, links: list[Link]) -> dict[str, str]:
    """Ids of the desired trees: of `COMMIT:desired`, and of each desired commit's own tree."""
    names = list(
        dict.fromkeys(
            name
            for link in links
            for name in (f"{link.id}:desired", f"{link.merged}^{{tree}}" if link.merged else "")
            if name
        )
    )
    told = git.run("cat-file", "--batch-check", "--buffer", stdin="".join(f"{n}\n" for n in names).encode()).stdout
    rows = (line.split(" ") for line in told.decode("utf-8", "replace").splitlines())
    return {name: row[0] for name, row in zip(names, rows, strict=True) if len(row) == 3 and row[1] == "tree"}


def object_fault(git: Git, part: list[Link], first: int, at: int, told: str) -> Finding:
    """A finding about objects at a link of a part whose first link has the position `first`."""
    commit = part[at].id
    number = number_said(raw_commits(git, (commit,))[commit], b"Generation")
    return Finding(
        position=first + at, generation=number, commit=commit, check="objects", code="ForgedObject", told=told
    )
