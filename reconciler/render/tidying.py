"""What defragmentation proposes, in a calm line: moves, what they free, what they cost."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.documents.hostlist import fold
from reconciler.model.decision import Tidying
from reconciler.render.names import gpu_hours
from reconciler.render.plan.model import Hop, Tidy


def proposed(tidying: Sequence[Tidying]) -> tuple[Tidy, ...]:
    """Proposals as a plan tells them."""
    return tuple(
        Tidy(
            nodes=fold(one.nodes),
            gpus=one.gpus,
            hops=tuple(
                Hop(job=move.job, source=move.source, target=fold(move.target), lost_gpu_seconds=move.lost)
                for move in one.moves
            ),
            phi_before_ppm=one.phi_before_ppm,
            phi_after_ppm=one.phi_after_ppm,
        )
        for one in tidying
    )


def tidying_line(tidying: Sequence[Tidy]) -> str:
    """`Defragment: 2 moves free 1 whole domain, cost 1.2 GPU-h`; "" when nothing is proposed."""
    if not tidying:
        return ""
    moves, lost = (
        sum(len(one.hops) for one in tidying),
        sum(hop.lost_gpu_seconds for one in tidying for hop in one.hops),
    )
    freed = "1 whole domain" if len(tidying) == 1 else f"{len(tidying)} whole domains"
    start = "1 move frees" if moves == 1 else f"{moves} moves free"
    return f"Defragment: {start} {freed}, {f'cost {gpu_hours(lost)}' if lost else 'cost no work'}"


def hop_line(hop: Hop) -> str:
    """One move: `nlp/a: gpu-027 -> gpu-030, 0.6 GPU-h`."""
    return f"{hop.job}: {hop.source} -> {hop.target}, {gpu_hours(hop.lost_gpu_seconds)}"
