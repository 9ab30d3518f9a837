"""Is a decision what the preview of the merge had shown?

The preview a merge was made on is told by trailers of the merge commit, as far as that commit proves anything. It names
those who would pay: only they are nobody's surprise. Looked at in every decision, for what was shown to wait may evict later.

    Preview-Digest: sha256:HEX             what `plan` prints for the change
    Preview-State: GENERATION COMMIT       the state it stood on
    Preview-Victims: nlp/a, vision/b       those who pay; `none`
    Preview-Lost: SECONDS                  GPU-seconds of their work

`gangops plan -o trailers` prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.decision import Decision, Denial, Difference, Judge
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.observed import Proof, Provenance, Shown
from reconciler.model.units import CommitId, GpuSeconds, JobKey, job_key

RULE: Final = "PlanDiffersFromPreview"
TOLERANCE: Final = GpuSeconds(3600)
"""GPU-seconds more than were shown that nobody minds: one GPU-hour, or a tenth of what was shown."""
_PAYS: Final = frozenset({Cause.PREEMPTED, Cause.RECLAIMED, Cause.FAIR_SHARE, Cause.MOVED, Cause.RESIZED})
_DIGEST: Final = re.compile(r"sha256[:-]([0-9a-f]{64})")
_STATE: Final = re.compile(r"(\d{1,18}) ([0-9a-f]{40,64})")
_KEY: Final = re.compile(r"([a-z0-9][-a-z0-9]{0,62})/([a-z0-9][-a-z0-9]{0,62})")


def shown_in(trailers: Iterable[tuple[str, str]]) -> Shown | None:
    """The preview that trailers tell of; None when they tell of none, or not all of it, or of two."""
    told: dict[str, str] = {}
    for key, value in trailers:
        if key in _TRAILERS and told.setdefault(key, value.strip()) != value.strip():
            return None
    digest, state = _DIGEST.fullmatch(told.get("Preview-Digest", "")), _STATE.fullmatch(told.get("Preview-State", ""))
    named, lost = told.get("Preview-Victims", ""), told.get("Preview-Lost", "")
    keys = [_KEY.fullmatch(word.strip()) for word in named.split(",")] if named != "none" else []
    if digest is None or state is None or not named or not lost.isdecimal() or len(lost) > 18 or None in keys:
        return None
    return Shown(
        digest=digest[1],
        generation=int(state[1]),
        state=CommitId(state[2]),
        victims=tuple(sorted(job_key(key[1], key[2]) for key in keys if key is not None)),
        lost=GpuSeconds(int(lost)),
    )


_TRAILERS: Final = frozenset({"Preview-Digest", "Preview-State", "Preview-Victims", "Preview-Lost"})


def differences(
    after: Allocation, before: Allocation, provenance: Mapping[JobKey, Provenance], *, strict: bool = False
) -> tuple[Difference, ...]:
    """Where a decision makes others pay otherwise than previews showed, by job; `strict`: of jobs without one as well."""
    found = []
    for job, paying in sorted(_paying(after, before).items()):
        shown = _known(provenance.get(job))
        if shown is None and not strict:
            continue
        lost = sum(record.reason.count("lost") for record in paying)
        unseen = tuple(sorted(r.job for r in paying if shown is None or r.job not in shown.victims))
        most = shown.lost + max(TOLERANCE, shown.lost // 10) if shown is not None else lost
        if unseen or lost > most:
            found.append(
                Difference(
                    job=job,
                    preview=shown.digest if shown is not None else "",
                    unseen=unseen,
                    lost=GpuSeconds(lost),
                    lost_shown=shown.lost if shown is not None else GpuSeconds(0),
                )
            )
    return tuple(found)


def _known(brought: Provenance | None) -> Shown | None:
    return brought.preview if brought is not None and brought.proven is not Proof.NONE else None


def _paying(after: Allocation, before: Allocation) -> dict[JobKey, list[JobRecord]]:
    """Jobs newly told to stop, move or shrink, by the job for whose sake."""
    found: dict[JobKey, list[JobRecord]] = {}
    for key, record in after.jobs.items():
        then = before.jobs.get(key)
        if record is then or record.state is not JobState.STOPPING or record.preemptor is None:
            continue
        if record.cause in _PAYS and (then is None or then.state is not JobState.STOPPING):
            found.setdefault(record.preemptor, []).append(record)
    return found


def preview_judge(before: Allocation, provenance: Mapping[JobKey, Provenance], rest: Judge | None) -> Judge:
    """A judge that lets nobody pay whom no preview has shown, before another is asked."""

    def judge(decision: Decision) -> tuple[Denial, ...]:
        found = differences(decision.allocation, before, provenance, strict=True)
        denials = tuple(
            Denial(policy="preview", rule=RULE, message=one.told, job=one.job) for one in found if one.unseen
        )
        return denials or (rest(decision) if rest is not None else ())

    return judge
