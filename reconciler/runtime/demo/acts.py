"""The acts: each does one thing people do, waits until the record shows its effect, and says where to look."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from reconciler.errors import AuditFailed, GangOpsError
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState
from reconciler.model.units import JobKey, NodeName
from reconciler.render.plan import plan_text
from reconciler.render.view import job_table, node_table
from reconciler.runtime.clock import SystemClock
from reconciler.runtime.clone import open_clone
from reconciler.runtime.demo.files import job
from reconciler.runtime.demo.stage import Stage
from reconciler.runtime.generation import Generation
from reconciler.runtime.preview import preview
from reconciler.runtime.reading import DesiredReader
from reconciler.runtime.replay import replay
from reconciler.store.history import first_parent_log

PRETRAIN, EXPLORE = JobKey("nlp/pretrain"), JobKey("vision/explore")
SFT, NIGHTLY = JobKey("nlp/llama-sft"), JobKey("vision/nightly")

_PATIENCE = 180
"""Seconds that anything may take, on a machine that has much else to do."""

Say = Callable[[str], None]


def play(stage: Stage, say: Say) -> None:
    """All acts in order. Raises GangOpsError when the cluster does not do what it should."""
    began = time.monotonic()
    for number, (title, act) in enumerate(ACTS, 1):
        say(f"\n{number}  {title}   [{time.monotonic() - began:.0f} s]")
        act(stage, say)
    say(f"\nDone in {time.monotonic() - began:.0f} s.")


def act_cluster(stage: Stage, say: Say) -> None:
    """Remote, reconciler and agents; the act ends when every node was observed."""
    stage.build()
    stage.start_reconciler()
    stage.start_agents()
    stage.until("agents connect", _PATIENCE, lambda g: len(g.observed.nodes) == len(stage.nodes))
    say(f"   {len(stage.nodes)} agents, 128 simulated GPUs, each agent with a certificate of its own (mutual TLS 1.3).")
    say(f"   The record: branch `allocations` of {stage.remote}")


def act_submit(stage: Stage, say: Say) -> None:
    """Three jobs by pull request: preview, merge, and three whole gangs."""
    trainer = _trainer(stage)
    ckpt = str(stage.checkpoints)
    files = {
        PRETRAIN: job("nlp", "pretrain", gpus=64, command=[*trainer, "100000", "0.2"], checkpoints=ckpt),
        SFT: job(
            "nlp",
            "llama-sft",
            gpus=16,
            command=[*trainer, "100000", "0.1"],
            checkpoints=ckpt,
            launch="perGpu",
            lease=True,
        ),
        EXPLORE: job(
            "vision",
            "explore",
            gpus=32,
            command=[*trainer, "100000", "0.1"],
            checkpoints=ckpt,
            priority="interactive",
            rack=True,
        ),
    }
    for key, text in files.items():
        stage.write(f"cluster-state/jobs/{key}.yaml", text)
    stage.commit("Submit pretrain, llama-sft, explore", branch="submit")
    say("   Two teams open a pull request with three jobs. The preview, before the merge:")
    _show(say, "gangops plan", _plan(stage, "submit"))
    stage.merge("submit", "Merge pull request #1: three jobs")
    generation = stage.until("three gangs run", _PATIENCE, lambda g: _running(g, PRETRAIN, SFT, EXPLORE))
    say("   Merged. Decided, committed, and only then started; every gang whole:")
    _show(say, "gangops get jobs", _jobs(stage, generation))


def act_preempt(stage: Stage, say: Say) -> None:
    """A production job evicts an interactive one of its queue, which later resumes from its checkpoint."""
    _until_step(stage, "explore", 30)
    trainer = _trainer(stage)
    text = job(
        "vision",
        "nightly",
        gpus=32,
        command=[*trainer, "60", "0.1"],
        checkpoints=str(stage.checkpoints),
        priority="production",
        rack=True,
    )
    stage.write(f"cluster-state/jobs/{NIGHTLY}.yaml", text)
    stage.commit("Nightly production training", branch="nightly")
    say("   A production job needs a whole rack. The preview names the victim and the price:")
    _show(say, "gangops plan", _plan(stage, "nightly"))
    stage.merge("nightly", "Merge pull request #2: nightly")
    stage.until("nightly runs", _PATIENCE, lambda g: _running(g, NIGHTLY) or _done(g, NIGHTLY))
    step = _step(stage, "explore")
    say(f"   {EXPLORE} wrote a checkpoint at step {step}, was seen gone, and only then {NIGHTLY} started.")
    stage.until("nightly ends and explore resumes", _PATIENCE, lambda g: _done(g, NIGHTLY) and _running(g, EXPLORE))
    say(f"   {NIGHTLY} is done; {EXPLORE} runs again, from that step:")
    _show(say, f"gangops logs {EXPLORE} --rank 0", _log(stage, EXPLORE, 2))


def act_node_dies(stage: Stage, say: Say) -> None:
    """A node's power goes; its gang is fenced by its lease and restarts on other nodes."""
    generation = stage.until("llama-sft runs", _PATIENCE, lambda g: _running(g, SFT))
    placement = generation.allocation.jobs[SFT].placement
    assert placement is not None
    node = placement.nodes[-1]
    before = _step(stage, "llama-sft")
    count = stage.fail_node(node)
    say(f"   The power of {node} goes: agent, shims and ranks, {count} processes. {SFT} had reached step {before}.")
    attempt = generation.allocation.jobs[SFT].attempt
    later = stage.until(
        "llama-sft runs elsewhere",
        _PATIENCE,
        lambda g: _running(g, SFT) and g.allocation.jobs[SFT].attempt > attempt and not _on(g, SFT, node),
    )
    say("   Its lease ran out, so no rank of it can be alive; the gang restarted whole, elsewhere:")
    _show(say, "gangops get nodes", _nodes(stage, later))
    _show(say, f"gangops logs {SFT} --rank 0", _log(stage, SFT, later.allocation.jobs[SFT].attempt))


def act_record(stage: Stage, say: Say) -> None:
    """The decision log, and every decision of it recomputed. Raises AuditFailed when one differs."""
    clone = stage.clone
    lines = [f"{meta.id[:7]}  {meta.subject}" for meta in first_parent_log(clone.git, clone.state_tip())]
    say("   The whole story, newest first:")
    _show(say, "git log --first-parent --oneline origin/allocations", "\n".join(lines))
    results = list(replay(clone.git, clone.state_tip()))
    wrong = [r for r in results if not r.identical]
    if wrong:
        told = ", ".join(wrong[-1].differs) or wrong[-1].why
        raise AuditFailed(f"generation {wrong[-1].generation}: {told}", generation=wrong[-1].generation)
    _show(
        say, "gangops replay --all", f"{len(results)} of {len(results)} decisions recomputed, byte for byte identical"
    )
    # People's clone shall know the record too, for whoever looks around afterwards.
    stage.git("fetch", "--quiet", "origin")


ACTS: tuple[tuple[str, Callable[[Stage, Say], None]], ...] = (
    ("A cluster comes up", act_cluster),
    ("Two teams submit by merge", act_submit),
    ("Production preempts, and the victim resumes", act_preempt),
    ("A node dies", act_node_dies),
    ("The record", act_record),
)


def _trainer(stage: Stage) -> list[str]:
    script = stage.folder / "train.py"
    if not script.exists():
        script.write_text(Path(__file__).with_name("train.py").read_text())
    return [sys.executable, "-I", "-S", str(script)]


def _running(generation: Generation, *jobs: JobKey) -> bool:
    found = [generation.allocation.jobs.get(key) for key in jobs]
    return all(record is not None and record.state is JobState.RUNNING for record in found)


def _done(generation: Generation, key: JobKey) -> bool:
    record = generation.allocation.jobs.get(key)
    return record is not None and record.state is JobState.FINISHED


def _on(generation: Generation, key: JobKey, node: NodeName) -> bool:
    placement = generation.allocation.jobs[key].placement
    return placement is not None and node in placement.masks


def _plan(stage: Stage, branch: str) -> str:
    stage.git("fetch", "--quiet", "origin", "allocations:refs/remotes/origin/allocations")
    return plan_text(preview(open_clone(stage.people), f"refs/heads/{branch}", SystemClock().now()), 96)


def _jobs(stage: Stage, generation: Generation) -> str:
    desired = _desired(stage, generation)
    return job_table(desired, generation.allocation.jobs, SystemClock().now(), 96, wide=False)


def _nodes(stage: Stage, generation: Generation) -> str:
    return node_table(_desired(stage, generation), generation.observed, generation.allocation.holders(), 96)


def _desired(stage: Stage, generation: Generation) -> Desired:
    reader = DesiredReader(stage.clone.git)
    found = reader.recorded(generation.commit, generation.summary.desired_commit, generation.frozen).desired
    assert found is not None  # it was decided on
    return found


def _step(stage: Stage, name: str) -> int:
    try:
        found = json.loads((stage.checkpoints / name / "latest").read_text())
    except (OSError, ValueError):
        return 0
    return int(found["step"])


def _until_step(stage: Stage, name: str, step: int) -> None:
    end = time.monotonic() + _PATIENCE
    while _step(stage, name) < step:
        if time.monotonic() > end:
            raise GangOpsError(f"{name} did not reach step {step}", code="DemoFailed")
        time.sleep(0.2)


def _log(stage: Stage, key: JobKey, attempt: int) -> str:
    found = sorted((stage.logs / key).glob("*/0.log"))
    wanted = [p for p in found if p.parent.name == str(attempt)] or found[-1:]
    return "\n".join(wanted[0].read_text("utf-8", "replace").splitlines()[:3]) if wanted else "(nothing yet)"


def _show(say: Say, command: str, text: str) -> None:
    say(f"\n   $ {command}")
    say("\n".join(f"   {line}".rstrip() for line in text.strip("\n").splitlines()))
