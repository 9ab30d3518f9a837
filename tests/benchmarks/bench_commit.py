"""How long do reading and committing take? `python -m tests.benchmarks.bench_commit`; prints, asserts nothing.

Targets: 10,000 blobs read in 300 ms; 100 changed files in a tree of 10,000 committed and signed in 80 ms.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from reconciler.store.history import commit_meta
from reconciler.store.objects import raw_commit
from reconciler.store.publish import publish
from reconciler.store.signatures import allowed_signers_line, make_key, verify
from reconciler.store.statecommit import Writer, build, build_on
from reconciler.store.trees import read_tree
from tests.store.world import NOW, git, message, new_mirror, new_repository

FILES = 10_000
CHANGED = 100
ROUNDS = 9


def timed(name: str, run: Callable[[], object], rounds: int = ROUNDS) -> None:
    """Prints median and worst of some rounds in milliseconds."""
    spent = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        spent.append((time.perf_counter() - start) * 1000)
    print(f"{name:<58} {statistics.median(spent):8.1f} ms   worst {max(spent):8.1f}")


def record(n: int, generation: int) -> bytes:
    """About as long as a job's record."""
    return (
        f"job: team{n % 50}/job{n}\n".encode()
        + b"ranks: [0, 1, 2, 3, 4, 5, 6, 7]\n" * 30
        + f"g: {generation}\n".encode()
    )


def main() -> None:
    """Builds a cluster of 10,000 jobs and measures."""
    with tempfile.TemporaryDirectory(prefix="gangops-bench-") as folder:
        here = Path(folder)
        remote = new_repository(here / "remote.git")
        desired = remote.commit({f"cluster-state/jobs/q{n % 50}/{n:05}.yaml": record(n, 0) for n in range(FILES)})
        git(remote.path, "repack", "-q", "-a", "-d")
        mirror = new_mirror(here / "git", remote)
        writer = Writer(identity="gangops <gangops@bench>", signer=make_key(here / "key", "bench"))
        timed("fetch 10,000 files, first time", mirror.fetch, 1)
        timed("fetch, nothing new (two branches, one ls-remote)", mirror.fetch)
        timed("ls-remote poll", lambda: mirror.remote_refs(mirror.branches.source))
        timed("read 10,000 blobs (about 1 KB each)", lambda: read_tree(mirror.git, desired, ("cluster-state",)))
        known = read_tree(mirror.git, desired, ("cluster-state",)).blobs
        timed("read 10,000 known blobs", lambda: read_tree(mirror.git, desired, ("cluster-state",), known=known))
        timed("open: check every object of the tips", mirror.open)
        whole = {f"allocation/jobs/q{n % 50}/{n:05}.yaml": record(n, 0) for n in range(FILES)}
        first = build(mirror.git, whole, parent=None, desired=desired, message=message(0), at=NOW, writer=writer)
        timed("publish the first commit", lambda: publish(mirror, first, expected=None), 1)
        tip = first
        generation = 0

        def commit() -> None:
            nonlocal tip, generation
            generation += 1
            changes = {f"allocation/jobs/q{n % 50}/{n:05}.yaml": record(n, generation) for n in range(CHANGED)}
            tip = build_on(mirror.git, changes, parent=tip, desired=desired, message=message(generation), at=NOW, writer=writer)  # fmt: skip

        timed("commit 100 of 10,000 files, signed", commit)

        def commit_and_publish() -> None:
            before = tip
            commit()
            assert publish(mirror, tip, expected=before).result.value == "ok"

        timed("sign alone", lambda: writer.signer.sign(raw_commit(mirror.git, tip)))
        allowed = here / "allowed"
        allowed.write_text(allowed_signers_line("bench", writer.signer.public_key()))
        raw = raw_commit(mirror.git, tip)
        timed("verify a signature", lambda: verify(raw, allowed))
        tip = first
        timed("commit 100 of 10,000 files, signed, and publish it", commit_and_publish)
        timed("maintain", mirror.maintain, 1)
        timed("commit 100 of 10,000 files, signed, after maintain", commit)
        assert commit_meta(mirror.git, tip).signed


if __name__ == "__main__":
    main()
