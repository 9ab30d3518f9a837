"""Decisions for tools that know nothing of GangOps: each as an in-toto statement, in a signed envelope where a key is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from reconciler.documents.record import JOBS, NODES
from reconciler.errors import NotFound, StoreError
from reconciler.render.statement import (
    DecisionPredicate,
    Digests,
    JobDecided,
    Resource,
    Statement,
    envelope_bytes,
    statement_bytes,
    to_sign,
)
from reconciler.runtime.audit.ends import number_said
from reconciler.runtime.audit.glance import job_glance, masks
from reconciler.runtime.audit.reel import Frame, frames
from reconciler.store.names import object_id
from reconciler.store.objects import raw_commits
from reconciler.store.runner import Git
from reconciler.store.signatures import Signer, fingerprint_of
from reconciler.store.walk import Link, record_chain

NAMESPACE = "in-toto"
"""Of signatures, so that one of a statement can never pass for one of a commit."""


def statements(git: Git, tip: str, first: int, last: int) -> Iterator[Statement]:
    """The statements of a range of generations, oldest first.

    Raises NotFound (UnknownGeneration) when there is none; StoreError for a generation that cannot be read.
    """
    chain = record_chain(git, tip)
    raw = raw_commits(git, (link.id for link in chain))
    asked = [i for i, link in enumerate(chain) if first <= number_said(raw[link.id], b"Generation") <= last]
    if not asked:
        raise NotFound(
            "the record has no such generation",
            code="UnknownGeneration",
            remedy="`gangops history --limit 1` shows the newest",
        )
    part = chain[asked[0] : asked[-1] + 1]
    reel = frames(git, part, part[0].parent)
    if part[0].parent:
        next(reel)  # what the first one stood on
    trees = _trees(git, part)
    for link, frame in zip(part, reel, strict=True):
        yield _statement(link, frame, trees)


def exported(statement: Statement, signer: Signer | None) -> bytes:
    """The statement as it is handed out: in a DSSE envelope signed with SSH, or bare when there is no key."""
    payload = statement_bytes(statement)
    if signer is None:
        return payload
    signature = signer.sign(to_sign(payload), NAMESPACE)
    return envelope_bytes(payload, fingerprint_of(signature), signature)


def _statement(link: Link, frame: Frame, trees: Mapping[str, str]) -> Statement:
    generation = frame.generation
    if generation is None:
        raise frame.problem or StoreError(f"{link.id[:12]} cannot be read", code="BadRecord")
    summary = generation.summary
    inputs = [
        Resource(
            name="desired", digest=Digests(git_commit=summary.desired_commit, git_tree=trees[f"{link.id}:desired"])
        ),
        Resource(name="observed", digest=Digests(git_tree=trees.get(f"{link.id}:observed", ""))),
    ]
    if summary.previous_commit:
        inputs.append(Resource(name="previous", digest=Digests(git_commit=summary.previous_commit)))
    subject = Resource(
        name=f"generation/{summary.generation}", digest=Digests(git_commit=link.id, git_tree=frame.meta.tree)
    )
    changed = sorted(frame.changed)
    return Statement(
        subject=(subject, *(_file(path, frame.files[path]) for path in changed if path.startswith(NODES) and path in frame.files)),
        predicate=DecisionPredicate(
            cluster_id=summary.cluster_id, epoch=summary.epoch, generation=summary.generation,
            decision_id=summary.decision_id, decided_at=summary.decided_at, decision_version=summary.decision_version,
            package_version=summary.package_version, trigger=summary.trigger, inputs_digest=summary.inputs_digest,
            inputs=tuple(inputs), said=frame.meta.subject,
            jobs=tuple(_job(path, frame.files.get(path)) for path in changed if path.startswith(JOBS)),
        ),
    )  # fmt: skip


def _file(path: str, content: bytes) -> Resource:
    return Resource(
        name=path, digest=Digests(git_blob=object_id("blob", content), sha256=hashlib.sha256(content).hexdigest())
    )


def _job(path: str, content: bytes | None) -> JobDecided:
    told = job_glance(content or b"")
    held = masks(told.place)
    return JobDecided(
        job=path[len(JOBS) : -len(".yaml")], state=told.state, attempt=told.attempt, nodes=tuple(sorted(held)),
        gpus=sum(mask.bit_count() for mask in held.values()), reason=told.code, why=told.why,
    )  # fmt: skip


def _trees(git: Git, part: list[Link]) -> dict[str, str]:
    names = [f"{link.id}:{folder}" for link in part for folder in ("desired", "observed")]
    told = git.run(
        "cat-file", "--batch-check", "--buffer", stdin="".join(f"{name}\n" for name in names).encode()
    ).stdout
    rows = (line.split(" ") for line in told.decode("utf-8", "replace").splitlines())
    return {name: row[0] for name, row in zip(names, rows, strict=True) if len(row) == 3 and row[1] == "tree"}
