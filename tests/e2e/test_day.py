"""One working day, end to end: thirty jobs, a sweep of two hundred tasks, two notebooks, and all that goes wrong.

Real git, reconciler, agents over mutual TLS and processes; people act through the command line with keys of their own,
a forge merges, a hook is told. The acts are in the order of the day, and each waits for what the record has to say.
In the evening everything is read back the way people do, from the state branch alone.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.documents.tasklist import parse_tasks
from reconciler.model.allocation import JobRecord
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.reasons import ReasonCode
from reconciler.model.request import Standing
from reconciler.model.units import JobKey, NodeName, document_of, task_key
from reconciler.runtime.demo.files import GPU_TYPE
from reconciler.runtime.generation import Generation
from tests.e2e.day import Day, check_goes_on, folder_for, gang, job, program
from tests.e2e.test_cluster import assert_no_gpu_twice, state

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(1800)]

RACKS = 4
QUEUES = f"""\
apiVersion: gangops/v1
kind: Queue
metadata: {{name: root}}
spec: {{admins: {{users: [kim@acme.org]}}}}
---
apiVersion: gangops/v1
kind: Queue
metadata: {{name: nlp}}
spec: {{parent: root, guaranteed: {{{GPU_TYPE}: 64}}, ceiling: {{{GPU_TYPE}: 96}}, members: {{users: [ada@acme.org]}}}}
---
apiVersion: gangops/v1
kind: Queue
metadata: {{name: vision}}
spec: {{parent: root, guaranteed: {{{GPU_TYPE}: 64}}, ceiling: {{{GPU_TYPE}: 96}}, members: {{users: [bo@acme.org]}}}}
"""
PRETRAIN, SFT, SUMMARY, FLAKY = (JobKey(f"nlp/{name}") for name in ("pretrain", "sft", "summary", "flaky"))
ABLATE_A, ABLATE_B, DESK, EVENING = (JobKey(f"nlp/{name}") for name in ("ablate-a", "ablate-b", "desk", "evening"))
EXPLORE, NIGHTLY, LABEL, DINO = (JobKey(f"vision/{name}") for name in ("explore", "nightly", "label", "dino"))
SEGMENT, TAIL, LOOK, SWEEP = (JobKey(f"vision/{name}") for name in ("segment", "tail", "look", "sweep"))
EVALS = tuple(JobKey(f"nlp/eval-{n}") for n in range(1, 9))
CROPS = tuple(JobKey(f"vision/crop-{n}") for n in range(1, 9))
PROBE = JobKey("nlp/probe")
TASKS, BAD_TASK = 200, 123
COLUMNS = ("starting", "running", "stalled", "stopping", "reserved", "idle", "unavailable")
NAP = "{command: [/bin/sleep, '1']}"
FLAKES = """{script: 'test "$GANGOPS_ATTEMPT" = 2 || exit 7'}"""
NAN = """\
import os, sys, time
if os.environ["PET_NODE_RANK"] == "1":
    print("RuntimeError: NaN in the loss")
    sys.exit(3)
time.sleep(600)
"""
JOBS = (
    PRETRAIN, SFT, SUMMARY, FLAKY, ABLATE_A, ABLATE_B, EVENING, *EVALS, PROBE,
    EXPLORE, NIGHTLY, LABEL, DINO, SEGMENT, TAIL, *CROPS,
)  # fmt: skip
TOLD = {
    PRETRAIN: ["Started", "Preempted", "Resumed"],
    EXPLORE: ["Started", "Preempted", "Resumed", "Finished"],
    DINO: ["Started"],
    SEGMENT: ["Started", "Finished", "Resumed"],
    TAIL: ["Started", "Finished"],
    ABLATE_A: ["Started", "Finished"],
    ABLATE_B: ["Started", "Finished"],
    DESK: ["Started", "Finished"],
    LOOK: ["Started", "Finished"],
}
"""What the hook has to hear of the jobs that run for long enough to be seen."""
ENDS = {
    PRETRAIN: ["Maintenance", "Running"],
    EXPLORE: ["Preempted", "Succeeded"],
    DINO: ["Running"],
    SEGMENT: ["Cancelled", "Running"],
    SFT: ["RankFailed", "Succeeded"],
    FLAKY: ["RankFailed", "Succeeded"],
    ABLATE_A: ["Cancelled"],
    ABLATE_B: ["Cancelled"],
    DESK: ["Cancelled"],
    LOOK: ["Idle"],
    task_key(SWEEP, BAD_TASK): ["RankFailed", "Succeeded"],
}
"""How each attempt of a job ended, where it was not one that succeeded."""
SAYS: dict[JobKey, tuple[str, ...]] = {
    PRETRAIN: ("fan 3 stands", "kim", "last checkpoint"),
    EXPLORE: ("gives way to vision/nightly",),
    SFT: ("exited with 3",),
    FLAKY: ("exited with 7",),
    SUMMARY: ("waits for nlp/sft to be Succeeded",),
    LABEL: ("waits for vision/nightly to be Succeeded",),
    EVENING: ("waits for vision/tail to be Succeeded",),
    ABLATE_A: ("its file was removed",),
    ABLATE_B: ("cancelled by ada", "loss is NaN"),
    SEGMENT: ("its file was removed",),
    DESK: ("its file was removed",),
    LOOK: ("nobody has used it for",),
    task_key(SWEEP, BAD_TASK): ("exited with 9",),
}
"""What a person has to find on the page of a job."""
WHO = {key: {"nlp": "ada", "vision": "bo"}[key.partition("/")[0]] for key in (*JOBS, DESK, LOOK, SWEEP)} | {
    PROBE: "kim"
}


@pytest.fixture
def day() -> Iterator[Day]:
    folder = folder_for("day")
    with Day(folder, racks=RACKS, queues=QUEUES) as made:
        yield made
    shutil.rmtree(folder)


def record_of(generation: Generation, key: JobKey) -> JobRecord:
    return generation.allocation.jobs[key]


def ended(outcome: Outcome, *keys: JobKey) -> Callable[[Generation], bool]:
    def holds(generation: Generation) -> bool:
        found = [generation.allocation.jobs.get(key) for key in keys]
        return all(one is not None and one.outcome is outcome for one in found)

    return holds


def runs(*keys: JobKey) -> Callable[[Generation], bool]:
    return lambda generation: all(state(key, JobState.RUNNING)(generation) for key in keys)


def path(key: JobKey) -> str:
    return f"cluster-state/jobs/{key}.yaml"


def test_a_working_day(day: Day, capsys: pytest.CaptureFixture[str]) -> None:
    """Thirty jobs, a sweep, two notebooks: submitted, looked into, cancelled, run again, moved, and accounted for."""
    for act in ACTS:
        began = time.monotonic()
        try:
            act(day)
        except AssertionError as err:
            err.add_note(day.told_so_far())
            raise
        with capsys.disabled():
            print(f"\n{time.monotonic() - began:5.1f} s  {act.__name__.replace('_', ' ')}", end="")


# --- morning ----------------------------------------------------------------------------------------------------------


def the_cluster_comes_up(day: Day) -> None:
    """1. Sixteen nodes report; from then on everybody is known by a key."""
    day.stage.start_reconciler()
    day.stage.start_agents()
    up = day.until("agents connect", lambda g: len(g.observed.nodes) == 16)
    assert dict(up.allocation.jobs) == {}
    assert sum(len(seen.gpus) for seen in up.observed.nodes.values()) == 128
    day.awaits("the reconciler is well", lambda: day.health()["ready"] is True)


def two_teams_submit(day: Day) -> None:
    """2. Pull requests of one file and of many: gangs of up to four nodes, small jobs, one that fails once, one that waits."""
    train = [*program(day.folder, "train.py"), "1000000", "0.1"]
    sft = [*program(day.folder, "sft.py", NAN), "20", "0.05"]
    ckpt, rack = day.stage.checkpoints, "topology: {required: {job: rack}}"
    explore = gang(
        "vision", "explore", 32, [*train, str(stop_file(day, EXPLORE))], ckpt, rack, "priorityClass: interactive"
    )
    day.submits("ada", {path(PRETRAIN): gang("nlp", "pretrain", 32, train, ckpt, rack)})
    day.submits("bo", {path(EXPLORE): explore})
    day.until("two racks are full", runs(PRETRAIN, EXPLORE))
    ada = {
        SFT: gang("nlp", "sft", 16, sft, ckpt, "restart: {onFailure: 0}"),
        SUMMARY: job("nlp", "summary", 1, "{command: [/bin/true]}", "after: [{job: nlp/sft}]"),
        FLAKY: job("nlp", "flaky", 1, FLAKES, "restart: {onFailure: 1, backoff: 1s}"),
        ABLATE_A: gang("nlp", "ablate-a", 4, train, ckpt),
        ABLATE_B: gang("nlp", "ablate-b", 4, train, ckpt),
        **{key: job("nlp", key.partition("/")[2], 1, NAP) for key in EVALS},
    }
    bo = {DINO: gang("vision", "dino", 8, train, ckpt), SEGMENT: gang("vision", "segment", 16, train, ckpt)}
    for who, files in (("ada", ada), ("bo", bo)):
        day.submits(who, {path(key): text for key, text in files.items()})
    failed = day.until("sft has failed", ended(Outcome.FAILED, SFT))
    # Its GPUs are free again: nobody has to give way for these.
    day.submits("bo", {path(key): job("vision", key.partition("/")[2], 1, NAP) for key in CROPS})
    day.submits("kim", {path(PROBE): job("nlp", "probe", 16, NAP)})
    day.until("the gangs run", runs(PRETRAIN, ABLATE_A, ABLATE_B, EXPLORE, DINO, SEGMENT))
    later = day.until("small jobs are done", ended(Outcome.SUCCEEDED, *EVALS, *CROPS, PROBE, FLAKY))

    assert record_of(failed, SFT).reason.code is ReasonCode.FAILED
    assert record_of(failed, SFT).reason.number("exitCode") == 3
    assert record_of(failed, SUMMARY).state is JobState.HELD
    assert record_of(failed, SUMMARY).reason.code is ReasonCode.AFTER
    assert (record_of(later, FLAKY).attempt, record_of(later, FLAKY).failures) == (2, 1)
    assert len(racks_of(later, PRETRAIN)) == len(racks_of(later, EXPLORE)) == 1
    assert [record_of(later, key).attempt for key in (PRETRAIN, EXPLORE, DINO, SEGMENT)] == [1, 1, 1, 1]


def notebooks_are_opened(day: Day) -> None:
    """3. Two sessions; each person gets a shell in the own one, in a running gang, and in nobody else's."""
    ada, bo = day["ada"], day["bo"]
    file = ada.clone.parent / "desk.yaml"
    ada.says(
        "new", "job", "desk", "--session", "--queue", "nlp", "--gpus", "1", "--time-limit", "2h", "--into", str(file)
    )
    day.merges(ada.proposes("submit", str(file)), by="ada")
    look = job("vision", "look", 2, "{session: {idleTimeout: 90s}}")
    day.submits("bo", {path(LOOK): look})
    open_ = day.until("both notebooks run", runs(DESK, LOOK))

    ask = "echo $GANGOPS_JOB $CUDA_VISIBLE_DEVICES"
    assert bo.says("shell", LOOK, "--", "/bin/sh", "-c", ask) == f"{LOOK} {','.join(gpus_of(open_, LOOK))}\n"
    assert ada.says("shell", DESK, "--", "/bin/sh", "-c", ask) == f"{DESK} {','.join(gpus_of(open_, DESK))}\n"
    assert (
        ada.says("shell", DESK, "--", "/bin/sh", "-c", "read line; echo got $line; exit 7", typed="it\n", status=7)
        == "got it\n"
    )
    gang_ = ada.says("shell", PRETRAIN, "--rank", "31", "--", "/bin/sh", "-c", "echo $PET_NODE_RANK of $PET_NNODES")
    assert gang_ == "3 of 4\n"
    bo.says("shell", DESK, "--", "/bin/true", status=4)
    day.awaits("pretrain has begun", lambda: day.step(PRETRAIN) > 0)
    assert "rank 0 of 4 starts at step 0" in ada.says("logs", PRETRAIN, "--rank", "0")


# --- noon -------------------------------------------------------------------------------------------------------------


def production_preempts(day: Day) -> None:
    """4. A production job needs a rack: the plan names who pays, who saves its work, and later goes on from there."""
    day.awaits("explore has something to lose", lambda: day.step(EXPLORE) > 20)
    train = [*program(day.folder, "train.py"), "1000000", "0.1", str(stop_file(day, NIGHTLY))]
    rack, urgent = "topology: {required: {job: rack}}", "priorityClass: production"
    bo = day["bo"]
    files = {
        NIGHTLY: gang("vision", "nightly", 32, train, day.stage.checkpoints, rack, urgent),
        LABEL: job("vision", "label", 8, NAP, "after: [{job: nightly}]"),
    }
    branch = bo.pushes("nightly", "Train for tonight's release", {path(key): text for key, text in files.items()})
    plan = json.loads(bo.says("plan", "--base", "origin/main", "--head", branch, "-o", "json"))
    assert [(row["step"], row["job"], row.get("preemptor", "")) for row in plan["rows"]] == [
        ("preempt", EXPLORE, NIGHTLY), ("promise", NIGHTLY, ""), ("hold", LABEL, ""),
    ]  # fmt: skip
    day.merges(branch, by="bo")
    away = day.until("explore has stopped", state(EXPLORE, JobState.PENDING))
    assert record_of(away, EXPLORE).preemptor == NIGHTLY
    day.awaits("the release has something to show", lambda: day.step(NIGHTLY) > 20)
    stop_file(day, NIGHTLY).touch()
    day.until("the release is trained", ended(Outcome.SUCCEEDED, NIGHTLY, LABEL))
    back = day.until("explore goes on", runs(EXPLORE))

    assert record_of(back, EXPLORE).attempt == 2
    check_goes_on(day.stage, EXPLORE, 2)
    stop_file(day, EXPLORE).touch()
    day.until("explore is done", ended(Outcome.SUCCEEDED, EXPLORE))


def a_failed_job_runs_again_with_other_code(day: Day) -> None:
    """5. The program is mended, its file is not: `rerun` starts the next incarnation, and who waited for it goes on."""
    program(day.folder, "sft.py")
    day.merges(day["ada"].proposes("rerun", "sft", "-m", "the loss is scaled now"), by="ada")
    done = day.until("sft and its summary are done", ended(Outcome.SUCCEEDED, SFT, SUMMARY))
    assert record_of(done, SFT).attempt == 2
    assert "rank 0 done at step 20" in day.log(SFT, 2)


def a_sweep_of_two_hundred_tasks(day: Day) -> None:
    """6. One file, two hundred gangs of one GPU, sixty-four at once; one of them is going to fail."""
    script = f'test "$GANGOPS_TASK_INDEX" != {BAD_TASK} || test -e {day.folder}/mended || exit 9'
    sweep = job(
        "vision", "sweep", 1, f"{{command: {json.dumps(['/bin/sh', '-c', script])}}}", "restart: {onFailure: 0}",
        f"array: {{count: {TASKS}, maxParallel: 64}}",
    )  # fmt: skip
    day.submits("bo", {path(SWEEP): sweep})
    begun = day.until("the sweep begins", lambda g: any(r.state is JobState.FINISHED for r in tasks_of(g)))
    assert len(tasks_of(begun)) == TASKS


def two_jobs_are_cancelled(day: Day) -> None:
    """7. One by pull request, one at once by a signed request; a request without authority is refused, on record."""
    ada, bo = day["ada"], day["bo"]
    day.merges(ada.proposes("cancel", "ablate-a", "-m", "not needed any more"), by="ada")
    asked = json.loads(ada.says("cancel", "ablate-b", "--now", "--yes", "--reason", "loss is NaN", "-o", "json"))
    stopped = day.until("ablate-b is over", ended(Outcome.CANCELLED, ABLATE_B))
    assert record_of(stopped, ABLATE_B).reason.number("by") == "ada"
    assert record_of(stopped, ABLATE_B).reason.number("message") == "loss is NaN"
    day.merges(asked["branch"], by="ada")
    gone = day.until("both have left", lambda g: not {ABLATE_A, ABLATE_B} & g.allocation.jobs.keys())
    request = asked["request"].removeprefix("request/")
    assert (gone.observed.requests[request].standing, gone.observed.requests[request].by) == (Standing.LANDED, "ada")

    over = json.loads(bo.says("cancel", PRETRAIN, "--now", "--yes", "--reason", "I want its GPUs", "-o", "json"))
    name = over["request"].removeprefix("request/")
    refused = day.until("bo is refused", lambda g: name in g.observed.requests)
    assert refused.observed.requests[name].standing is Standing.REFUSED
    assert str(refused.observed.requests[name].refusal) == "NoAuthority"
    assert record_of(refused, PRETRAIN).state is JobState.RUNNING


def the_sweep_ends_and_one_task_runs_again(day: Day) -> None:
    """8. The task that failed is run once more with its cause mended; no other task is touched. A notebook idles out."""
    bad = task_key(SWEEP, BAD_TASK)
    last = day.until("every task is over", lambda g: all(r.state is JobState.FINISHED for r in tasks_of(g)))
    assert Counter(r.outcome for r in tasks_of(last)) == {Outcome.SUCCEEDED: TASKS - 1, Outcome.FAILED: 1}
    assert record_of(last, bad).reason.number("exitCode") == 9
    (day.folder / "mended").touch()
    day.merges(day["bo"].proposes("rerun", SWEEP, "--tasks", str(BAD_TASK)), by="bo")
    again = day.until("the task is done", ended(Outcome.SUCCEEDED, bad))
    assert Counter(record.attempt for record in tasks_of(again)) == {1: TASKS - 1, 2: 1}
    idle = day.until("the notebook ends", state(LOOK, JobState.FINISHED))
    assert record_of(idle, LOOK).reason.code is ReasonCode.IDLE


# --- afternoon --------------------------------------------------------------------------------------------------------


def bad_merges_are_reverted(day: Day) -> None:
    """9. One that removes too much is not acted on; one that stops a job and breaks another is reverted like any merge."""
    live = (PRETRAIN, DINO, SEGMENT, DESK)
    before = day.until("four jobs run", runs(*live))
    ranks = sorted(pid for node in day.stage.nodes for pid in day.stage.ranks_on(node))
    number = day.merges(day["kim"].pushes("spring", "Spring cleaning", {path(key): None for key in live}), by="kim")
    day.awaits("the reconciler refuses", lambda: day.health()["reason"] == "MassRemovalRefused")
    assert day.health()["stalled"] is True
    day.reverts(number, by="kim")
    day.awaits("it goes on", lambda: day.health()["ready"] is True)
    after = day.stage.clone.generation()
    assert [record_of(after, key) for key in live] == [record_of(before, key) for key in live]
    assert sorted(pid for node in day.stage.nodes for pid in day.stage.ranks_on(node)) == ranks

    day.awaits("segment has something to lose", lambda: day.step(SEGMENT) > 20)
    broken = (day["bo"].clone / path(DINO)).read_text().replace("gpus: 8", "gpus: eight")
    number = day.merges(day["bo"].pushes("oops", "Tidy up", {path(SEGMENT): None, path(DINO): broken}), by="bo")
    bad = day.until("segment has stopped", lambda g: SEGMENT not in g.allocation.jobs)
    assert f"jobs/{DINO}.yaml" in " ".join(bad.frozen)
    assert record_of(bad, DINO) == record_of(before, DINO)
    assert day.health()["reason"] == "InvalidDocuments"
    day.reverts(number, by="bo")
    back = day.until("segment runs again", runs(SEGMENT))
    assert record_of(back, SEGMENT).attempt == 2
    assert record_of(back, DINO) == record_of(before, DINO)
    check_goes_on(day.stage, SEGMENT, 2)


# --- night ------------------------------------------------------------------------------------------------------------


def a_node_is_drained_at_night(day: Day) -> None:
    """10. A fan fails at two in the morning: a request empties the node within seconds, the merge comes later."""
    before = day.until("pretrain runs", runs(PRETRAIN))
    node = nodes_of(before, PRETRAIN)[1]
    kim = day["kim"]
    words = ("drain", node, "--now", "--reason", "fan 3 stands", "--for", "4h", "--yes", "-o", "json")
    asked = json.loads(kim.says(*words))
    away = day.until("pretrain runs elsewhere", lambda g: runs(PRETRAIN)(g) and record_of(g, PRETRAIN).attempt == 2)
    assert node not in nodes_of(away, PRETRAIN)
    assert node not in away.allocation.holders()
    check_goes_on(day.stage, PRETRAIN, 2)
    day.merges(asked["branch"], by="kim")
    name = asked["request"].removeprefix("request/")
    day.until("the files say it", lambda g: g.observed.requests[name].standing is Standing.LANDED)


def the_forge_is_away(day: Day) -> None:
    """11. Nothing can be decided or recorded. What runs goes on and ends, and is on record once the forge is back."""
    train = [*program(day.folder, "train.py"), "1000000", "0.1", str(stop_file(day, TAIL))]
    files = {
        TAIL: gang("vision", "tail", 8, train, day.stage.checkpoints),
        EVENING: job("nlp", "evening", 8, NAP, "after: [{job: vision/tail}]"),
    }
    for who, key in (("bo", TAIL), ("ada", EVENING)):
        day.submits(who, {path(key): files[key]})
    last = day.until("tail runs and evening waits", lambda g: runs(TAIL)(g) and state(EVENING, JobState.HELD)(g))

    day["bo"].says("status")
    day.goes_away()
    day.awaits("the reconciler says so", lambda: day.health()["ready"] is False)
    seen, stop = day.step(PRETRAIN), stop_file(day, TAIL)
    stop.touch()
    day.awaits("tail ends by itself", lambda: "rank 0 done at step" in day.log(TAIL, 1))
    day.awaits("pretrain goes on", lambda: day.step(PRETRAIN) > seen + 20)
    told = day["bo"].tries("status")
    assert (told.returncode, told.stderr.partition(":")[0]) == (0, "warning")
    assert TAIL in told.stdout
    day.comes_back()

    done = day.until("both are done, on record", ended(Outcome.SUCCEEDED, TAIL, EVENING))
    assert record_of(done, PRETRAIN).attempt == 2
    assert record_of(done, TAIL).attempt == 1
    assert done.summary.generation > last.summary.generation
    day.awaits("all is well", lambda: day.health()["ready"] is True)


def everybody_goes_home(day: Day) -> None:
    """12. The other notebook is closed; training goes on over night, and so the reconciler's part is told."""
    day.merges(day["ada"].proposes("cancel", "desk", "-m", "good night"), by="ada")
    last = day.until("the notebook is closed", lambda g: DESK not in g.allocation.jobs)
    assert runs(PRETRAIN, DINO, SEGMENT)(last)
    assert {key for key in last.allocation.jobs if "." not in key} == {*JOBS, LOOK} - {ABLATE_A, ABLATE_B}
    day.awaits("the hook was told all", lambda: day.hook.of(DESK)[-1:] == ["Finished"])
    day.stage.kill_reconciler()


# --- what is left is the record ---------------------------------------------------------------------------------------


def everybody_was_told(day: Day) -> None:
    """13. Each notice once, signed (the hook checks that), in order, and of everything that became of somebody's job."""
    assert day.hook.asked[0]["id"] == day.hook.asked[1]["id"]  # refused with 503 at first, and told again
    ids = [notice["id"] for notice in day.hook.taken]
    assert len(ids) == len(set(ids)) == len(day.hook.asked) - 1
    assert [n["generation"] for n in day.hook.taken] == sorted(n["generation"] for n in day.hook.taken)
    assert {key: day.hook.of(key) for key in TOLD} == TOLD
    # What lasts a second may be over before anybody sees it run.
    short = {key: [event for event in day.hook.of(key) if event not in ("Started", "Resumed")] for key in JOBS}
    for key in (*EVALS, *CROPS, PROBE, SUMMARY, LABEL, NIGHTLY, EVENING):
        assert short[key] == ["Finished"], key
    assert short[SFT] == ["Failed", "Finished", "Finished"]
    assert short[FLAKY] == ["Failed", "Finished"]
    check_what_was_said(day)


def check_what_was_said(day: Day) -> None:
    (away,) = (n for n in day.hook.taken if (n.get("job"), n["event"]) == (EXPLORE, "Preempted"))
    assert (away["details"]["cause"], away["details"]["by"]) == ("Preempted", NIGHTLY)
    assert away["author"]["user"] == "bo"
    (drained,) = (n for n in day.hook.taken if (n.get("job"), n["event"]) == (PRETRAIN, "Preempted"))
    assert drained["details"]["cause"] == "Maintenance"
    (failed,) = (n for n in day.hook.taken if (n.get("job"), n["event"]) == (SFT, "Failed"))
    assert (failed["details"]["exitCode"], failed["author"]["user"]) == (3, "ada")
    assert any("NaN in the loss" in line for line in failed["lastLines"])
    outcomes = {n["job"]: n["details"]["outcome"] for n in day.hook.taken if n["event"] == "Finished"}
    assert {key: outcomes[key] for key in (LOOK, DESK, ABLATE_A, ABLATE_B)} == {
        LOOK: "TimedOut", DESK: "Cancelled", ABLATE_A: "Cancelled", ABLATE_B: "Cancelled",
    }  # fmt: skip
    finished = [n for n in day.hook.taken if n["event"] == "Finished" and n.get("job", "").partition(".")[0] == SWEEP]
    over = Counter(index for notice in finished for index in tasks_in(notice))
    assert over == Counter(range(TASKS)) + Counter([BAD_TASK])


def nothing_was_held_twice(day: Day) -> None:
    """14. One line of generations without a gap, and no GPU in two hands in any of them."""
    generations = day.generations()
    assert [one.summary.generation for one in generations] == list(range(len(generations)))
    for one in generations:
        assert_no_gpu_twice(one.allocation)
    assert max(sum(r.state.holds_gpus for r in tasks_of(one)) for one in generations) <= 64


def the_auditor_is_content(day: Day) -> None:
    """15. Every signature, every input, every decision; and every GPU-second is in one column."""
    generations = day.generations()
    count = len(generations)
    assert f"Verified #0..#{count - 1} " in day.tells("audit", "verify", "-j", "2")
    assert f"{count - 1} of {count - 1} decisions recomputed" in day.tells("replay", "--all")
    first, last = generations[0].allocation.decided_at, generations[-1].allocation.decided_at
    held: dict[str, int] = {}
    for by in ("queue", "user", "type", "job", "task"):
        found = json.loads(day.tells("usage", "--by", by, "-o", "json"))
        (total,) = found["totals"]
        assert (
            sum(total[f"{column}Nanoseconds"] for column in COLUMNS)
            == total["capacityNanoseconds"]
            == 128 * (last - first)
        )
        held[by] = total["types"][0]["allocatedNanoseconds"]
        seconds = sum(row["allocated"] for row in found["rows"])
        assert 0 <= held[by] // 10**9 - seconds < len(found["rows"]) * 5  # rows are rounded down, column by column
        if by == "user":
            assert {row["key"] for row in found["rows"]} == {"ada@acme.org", "bo@acme.org", "kim@acme.org"}
        if by == "job":
            assert {row["key"] for row in found["rows"]} == {*JOBS, LOOK, DESK, SWEEP}
    assert len(set(held.values())) == 1


def every_job_tells_its_story(day: Day) -> None:
    """16. `describe`, job by job: who asked, each attempt with its place and its end, and why."""
    for key in (*JOBS, DESK, LOOK, task_key(SWEEP, 0), task_key(SWEEP, BAD_TASK)):
        told = json.loads(day.tells("describe", key, "-o", "json"))
        how = [attempt["how"] for attempt in told["attempts"]]
        assert how == ENDS.get(key, ["Succeeded"]), key
        assert all(attempt["placement"] for attempt in told["attempts"]), key
        assert told["story"][0]["action"] in ("place", "promise", "wait", "hold"), key
        page = day.tells("describe", key)
        assert f"asked by      {WHO[document_of(key)]}, PR #" in page, page
        for said in SAYS.get(key, ()):
            assert said in page, page
    table = day.tells("describe", SWEEP)
    assert f"{SWEEP}   200 tasks of 1 GPU each, at most 64 at once\n200 Succeeded\n" in table


def the_pages_fit_a_terminal(day: Day) -> None:
    """17. What people look at in the evening, on eighty columns."""
    day["kim"].says("status")  # fetches
    for words in (
        ("status",), ("get", "requests"), ("usage",), ("usage", "--by", "user"), ("history", "-n", "40"),
        ("history", "--user", "ada", "-n", "40"), ("describe", PRETRAIN), ("describe", SFT),
    ):  # fmt: skip
        page = day["kim"].sees(*words)
        assert [line for line in page.splitlines() if len(line) > 80] == [], words


# --- small things -----------------------------------------------------------------------------------------------------


def tasks_of(generation: Generation) -> list[JobRecord]:
    return [record for key, record in generation.allocation.jobs.items() if key.startswith(f"{SWEEP}.")]


def tasks_in(notice: dict[str, Any]) -> tuple[int, ...]:
    """The tasks a notice is about: one that is named, or several of an array."""
    return parse_tasks(notice["tasks"]) if "tasks" in notice else (int(notice["job"].rpartition(".")[2]),)


def nodes_of(generation: Generation, key: JobKey) -> list[NodeName]:
    placement = record_of(generation, key).placement
    assert placement is not None
    return list(placement.nodes)


def racks_of(generation: Generation, key: JobKey) -> set[int]:
    """The racks of a job, by number: four nodes each."""
    return {(int(node.removeprefix("gpu-")) - 1) // 4 for node in nodes_of(generation, key)}


def gpus_of(generation: Generation, key: JobKey) -> list[str]:
    """The GPUs that the record gives a job, as its ranks see them named."""
    placement = record_of(generation, key).placement
    assert placement is not None
    seen = generation.observed.nodes
    return [next(gpu.uuid for gpu in seen[rank.node].gpus if gpu.index == rank.gpu) for rank in placement.ranks]


def stop_file(day: Day, key: JobKey) -> Path:
    """Where a training job looks whether it is time to end."""
    return day.folder / f"stop-{key.partition('/')[2]}"


ACTS: tuple[Callable[[Day], None], ...] = (
    the_cluster_comes_up,
    two_teams_submit,
    notebooks_are_opened,
    production_preempts,
    a_failed_job_runs_again_with_other_code,
    a_sweep_of_two_hundred_tasks,
    two_jobs_are_cancelled,
    the_sweep_ends_and_one_task_runs_again,
    bad_merges_are_reverted,
    a_node_is_drained_at_night,
    the_forge_is_away,
    everybody_goes_home,
    everybody_was_told,
    nothing_was_held_twice,
    the_auditor_is_content,
    every_job_tells_its_story,
    the_pages_fit_a_terminal,
)
