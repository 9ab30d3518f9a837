"""Real Slurm: gangs at exactly the decided GPUs, nothing lost and nothing twice, whoever dies; others' jobs respected."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.engines.slurm.commands import Commands
from reconciler.engines.slurm.fence import Fence, Turn
from reconciler.engines.slurm.seen import SlurmJob
from reconciler.model.desired import Desired
from reconciler.model.observed import AttemptReport, AttemptState, NodeCondition, NodeObservation, Observed
from reconciler.model.units import MINUTE, SECOND, JobKey, Nanoseconds, NodeName
from reconciler.runtime.demo.stage import is_zombie
from reconciler.wire import AttemptOrder, RankOrder
from tests.engines.builders import committed_of
from tests.engines.contract import JOB
from tests.engines.slurm_cluster import SlurmCluster, until
from tests.engines.slurm_world import SlurmWorld

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

FOREVER = "while :; do sleep 0.1; done"


class Scene:
    """All eight nodes, and the orders that a test gives step by step."""

    def __init__(self, slurm: SlurmCluster) -> None:
        self.slurm = slurm
        self.world = SlurmWorld(slurm, names=tuple(slurm.names))
        self.desired: Desired = self.world.desired()
        self.orders: dict[str, list[AttemptOrder]] = {name: [] for name in slurm.names}
        self.generation = 0
        self.world.engine.start(self.desired, Observed())

    def order(self, **gangs: AttemptOrder | None) -> None:
        """Another generation: on each named node this attempt alone, or nothing; other nodes as before."""
        self.orders |= {node: [order] if order else [] for node, order in gangs.items()}
        self.apply()

    def apply(self) -> None:
        self.generation += 1
        self.world.engine.apply(committed_of(self.generation, self.orders))

    def phase(self, phase: str) -> None:
        """The next phase for all that is ordered, followed until nothing moves."""
        self.orders = {node: [replace(o, phase=phase) for o in found] for node, found in self.orders.items()}
        self.apply()
        self.world.sync()

    def start(self, **gangs: AttemptOrder) -> None:
        """Prepare, then run."""
        self.order(**gangs)
        self.world.sync()
        self.phase("run")

    def node(self, name: str) -> NodeObservation:
        return self.world.engine.observe(self.desired, self.world.clock.now()).nodes[NodeName(name)]

    def receipt(self, name: str, attempt: int = 1, job: JobKey = JOB) -> AttemptReport:
        found = self.node(name).attempt(job, attempt)
        assert found is not None
        return found

    def wait_for(self, name: str, state: AttemptState, patience: float = 60) -> None:
        """Look until the node says so of its first attempt."""

        def says_so() -> bool:
            self.world.look()
            return self.receipt(name).state is state

        until(says_so, f"{name}: {state}", patience)

    def held(self) -> dict[str, dict[str, int]]:
        """GPU masks by node, by the name of the Slurm job."""
        return {job.name: {str(n): mask for n, mask in job.gpus.items()} for job in self.slurm.jobs()}

    def log(self, rank: int = 0, attempt: int = 1) -> str:
        path = self.slurm.shared / JOB / str(attempt) / f"{rank}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def submissions(self) -> int:
        return sum(event == "slurm-submitted" for event, _ in self.world.told)


@pytest.fixture
def scene(slurm: SlurmCluster) -> Iterator[Scene]:
    found = Scene(slurm)
    yield found
    found.world.engine.stop()


def gang(
    world: SlurmWorld, nodes: list[str], *, gpus: tuple[int, ...] = tuple(range(8)), script: str
) -> dict[str, AttemptOrder]:
    """One attempt over these nodes, ranks in node order, on the same GPUs of each."""
    base = world.order(gpus=gpus, script=script)
    return {node: _share(base, number, len(nodes), gpus) for number, node in enumerate(nodes)}


def _share(base: AttemptOrder, number: int, nodes: int, gpus: tuple[int, ...]) -> AttemptOrder:
    ranks = [
        RankOrder(rank=number * len(gpus) + i, localRank=i, gpu=gpu, uuid="", numa=0, cpus="", nic="", rail=gpu)
        for i, gpu in enumerate(gpus)
    ]
    return replace(base, ranks=ranks, worldSize=nodes * len(gpus), nodeCount=nodes, nodeRank=number)


def said_in(path: Path) -> list[str]:
    """The words of the lines that ranks have written whole."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[: text.rfind("\n") + 1].split()


def job_named(slurm: SlurmCluster, name: str) -> SlurmJob:
    return next(job for job in slurm.jobs(every=True) if job.name == name)


# --- placing ---------------------------------------------------------------------------------------------------------


def test_two_small_jobs_of_one_node_get_exactly_the_gpus_decided_for_them(scene: Scene) -> None:
    scene.orders["node001"] = [
        scene.world.order("nlp/a", gpus=(2, 5), script=FOREVER),
        scene.world.order("nlp/b", gpus=(0, 7), script=FOREVER),
    ]
    scene.apply()
    scene.world.sync()
    scene.phase("run")
    assert {name.split("-")[1]: held for name, held in scene.held().items()} == {
        "nlp.a": {"node001": 1 << 2 | 1 << 5},
        "nlp.b": {"node001": 1 << 0 | 1 << 7},
    }
    assert [a.reason for a in scene.node("node001").attempts] == ["", ""]


def test_a_gang_of_sixteen_runs_on_exactly_the_two_nodes_decided_for_it(scene: Scene) -> None:
    say = "echo $RANK $LOCAL_RANK $WORLD_SIZE $NODE_RANK $SLURMD_NODENAME $GANGOPS_GPU $CUDA_VISIBLE_DEVICES; "
    scene.start(**gang(scene.world, ["node006", "node008"], script=say + FOREVER))
    [held] = scene.held().values()
    assert held == {"node006": 255, "node008": 255}
    assert scene.receipt("node006").state is scene.receipt("node008").state is AttemptState.RUNNING
    until(lambda: all(scene.log(rank) for rank in range(16)), "every rank has said where it is")
    said = [scene.log(rank).split() for rank in range(16)]
    nodes = ["node006"] * 8 + ["node008"] * 8
    assert said == [[str(r), str(r % 8), "16", str(r // 8), nodes[r], str(r % 8), "0,1,2,3,4,5,6,7"] for r in range(16)]


def test_a_gang_whose_nodes_differ_starts_as_one_and_each_rank_finds_its_place(scene: Scene) -> None:
    say = "echo $RANK $SLURMD_NODENAME $GANGOPS_GPU $LOCAL_WORLD_SIZE $CUDA_VISIBLE_DEVICES; " + FOREVER
    whole = scene.world.order(gpus=tuple(range(8)), script=say)
    part = scene.world.order(gpus=(6, 3), script=say)
    ranks = [replace(rank, rank=8 + i) for i, rank in enumerate(part.ranks)]
    scene.start(
        node005=replace(whole, worldSize=10, nodeCount=2),
        node002=replace(part, worldSize=10, nodeCount=2, ranks=ranks, nodeRank=1),
    )
    assert sorted(scene.held().values(), key=str) == [{"node002": 1 << 3 | 1 << 6}, {"node005": 255}]
    until(lambda: all(scene.log(rank) for rank in range(10)), "every rank has said where it is")
    assert scene.log(7).split() == ["7", "node005", "7", "8", "0,1,2,3,4,5,6,7"]
    # Local rank 0 is bound to GPU 6: devices are listed in the order of local ranks, as agents list them.
    assert [scene.log(8).split(), scene.log(9).split()] == [
        ["8", "node002", "6", "2", "6,3"],
        ["9", "node002", "3", "2", "6,3"],
    ]
    scene.phase("stop")
    assert scene.receipt("node002").state is scene.receipt("node005").state is AttemptState.GONE


def test_without_slots_slurm_picks_the_index_and_what_it_picked_is_recorded(scene: Scene) -> None:
    theirs = scene.slurm.submit("--gres=gpu:h100:2", "--mem=100M", "-w", "node005")
    until(lambda: any(job.id == theirs and job.gpus for job in scene.slurm.jobs()), "their job runs")
    scene.world.engine.poll()
    scene.start(node005=scene.world.order(gpus=(6, 7), script=FOREVER))
    receipt = scene.receipt("node005")
    ours = next(held["node005"] for name, held in scene.held().items() if name.startswith("gangops-"))
    picked = ",".join(str(index) for index in range(8) if ours >> index & 1)
    assert ours & 0b11 == 0
    assert (receipt.state, receipt.reason) == (AttemptState.RUNNING, f"Slurm gave it GPUs {picked} for 6,7")
    foreign = {gpu.index: gpu.foreign for gpu in scene.node("node005").gpus if gpu.foreign}
    assert foreign == dict.fromkeys((0, 1), f"Slurm job {theirs} (wrap) of root")


def test_with_pins_off_a_slot_is_not_asked_for(scene: Scene) -> None:
    scene.desired = replace(scene.desired, slurm=replace(scene.desired.slurm, pin_gpus=False))
    scene.world.engine.observe(scene.desired, scene.world.clock.now())
    scene.start(node003=scene.world.order(gpus=(6, 7), script=FOREVER))
    assert scene.receipt("node003").state is AttemptState.RUNNING
    [held] = scene.held().values()
    assert held["node003"].bit_count() == 2


def test_what_slurm_does_not_take_is_refused_with_its_own_words(scene: Scene) -> None:
    scene.start(node001=replace(scene.world.order(script=FOREVER), cpusPerGpu=500))
    receipt = scene.receipt("node001")
    assert receipt.state is AttemptState.REFUSED
    assert receipt.reason.startswith("SlurmRefused: Batch job submission failed: ")


def test_nothing_runs_as_root_and_a_queue_may_have_an_account(scene: Scene) -> None:
    scene.world.engine._root_may_run = False
    scene.slurm.shared.chmod(0o777)  # Slurm itself takes nothing from the account nobody
    scene.order(node001=scene.world.order(script=FOREVER))
    scene.world.sync()
    assert scene.receipt("node001").reason == "NotAllowed: nothing runs as root; give the queue an account in `runAs`"
    order = scene.world.order(script=f"id -un; id -gn; {FOREVER}", attempt=2)
    scene.order(node001=replace(order, run=replace(order.run, user="games")))
    scene.world.sync()
    scene.phase("run")
    assert scene.receipt("node001", 2).state is AttemptState.RUNNING
    until(lambda: scene.log(attempt=2) == "games\ngames\n", "its ranks run as that account")
    assert scene.slurm.jobs()[0].user == "games"


@pytest.mark.parametrize("launch", ["perGpu", "perNode"])
def test_a_task_of_an_array_finds_its_number_and_its_parameters(scene: Scene, launch: str) -> None:
    say = 'echo "$GANGOPS_JOB $GANGOPS_TASK_INDEX $GANGOPS_PARAM_LR $GANGOPS_PARAM_SEED"; '
    base = scene.world.order("nlp/sweep.7", gpus=(1, 4), script=say + FOREVER)
    order = replace(
        base, taskIndex=7, parameters={"lr": "0.1", "seed": "it's $4"}, run=replace(base.run, launch=launch)
    )
    scene.start(node001=order)
    assert scene.receipt("node001", job=JobKey("nlp/sweep.7")).state is AttemptState.RUNNING
    [(name, held)] = scene.held().items()
    assert (name.rpartition("-")[0], held) == ("gangops-nlp.sweep.7-1", {"node001": 1 << 1 | 1 << 4})
    log = scene.slurm.shared / "nlp/sweep.7/1/0.log"
    until(lambda: log.exists() and log.stat().st_size, "it has said what it was told")
    assert log.read_text(encoding="utf-8") == "nlp/sweep.7 7 0.1 it's $4\n"


def test_what_is_no_task_of_an_array_is_told_no_number(scene: Scene) -> None:
    scene.start(node001=scene.world.order(script='echo "${GANGOPS_TASK_INDEX-none}"; ' + FOREVER))
    until(scene.log, "it has said what it was told")
    assert scene.log() == "none\n"


# --- other people's jobs ---------------------------------------------------------------------------------------------


def test_gpus_of_other_peoples_jobs_are_not_free_and_have_an_owner(scene: Scene) -> None:
    small = scene.slurm.submit("-J", "notebook", "--gres=gpu:g3:1", "--mem=100M", "-w", "node001")
    alone = scene.slurm.submit("-J", "bench", "--exclusive", "-w", "node006")
    until(lambda: all(job.nodes for job in scene.slurm.jobs()), "both run")
    scene.world.engine.poll()
    owners = {
        name: {gpu.index: gpu.foreign for gpu in scene.node(name).gpus if gpu.foreign}
        for name in ("node001", "node006", "node002")
    }
    assert owners == {
        "node001": {3: f"Slurm job {small} (notebook) of root"},
        "node006": dict.fromkeys(range(8), f"Slurm job {alone} (bench) of root"),
        "node002": {},
    }
    scene.world.engine.stop()
    assert {job.id for job in scene.slurm.jobs()} == {small, alone}


def test_a_job_of_ours_that_no_order_names_is_ended_and_its_gpus_wait_for_that(scene: Scene) -> None:
    scene.start(node001=scene.world.order(gpus=(1,), script="trap : TERM; echo up; " + FOREVER))
    until(lambda: "up" in scene.log(0), "it ignores SIGTERM by now")
    scene.order(node001=None)
    scene.world.engine.poll()
    assert "Slurm job" in scene.node("node001").gpus[1].foreign
    scene.world.sync()
    assert not scene.slurm.jobs()
    assert not scene.node("node001").gpus[1].foreign


# --- stopping --------------------------------------------------------------------------------------------------------


def test_a_preempted_gang_saves_and_its_next_attempt_goes_on_from_there(scene: Scene) -> None:
    marker = scene.slurm.shared / "marker"
    work = f"trap 'echo 41 >{marker}.new; mv {marker}.new {marker}; exit 0' USR1; echo resume=$GANGOPS_RESUME from=$(cat {marker}); {FOREVER}"
    order = scene.world.order(script=work)
    order = replace(order, checkpoint=replace(order.checkpoint, marker=str(marker)))  # type: ignore[type-var]  # it has one
    scene.start(node001=order)
    first = scene.slurm.jobs()[0].id
    until(lambda: "resume=0 from=" in scene.log(0), "it works")
    scene.world.clock.advance(5 * MINUTE)  # no checkpoint is of the future
    scene.phase("checkpoint")
    assert scene.receipt("node001").state is AttemptState.GONE
    assert marker.read_text(encoding="utf-8") == "41\n"
    assert (
        scene.world.engine.observe(scene.desired, scene.world.clock.now()).jobs[JOB].checkpoint
        == marker.stat().st_mtime_ns
    )
    scene.start(node001=replace(order, attempt=2, resume=True, phase="prepare"))
    assert scene.slurm.jobs()[0].id > first
    until(lambda: "resume=1 from=41" in scene.log(0, attempt=2), "it goes on")


def test_a_gang_that_does_not_save_is_ended_when_its_grace_is_over(scene: Scene) -> None:
    scene.start(node001=scene.world.order(script="trap : USR1; echo up; " + FOREVER, grace=60))
    until(lambda: "up" in scene.log(0), "it does not die of that signal by now")
    scene.orders["node001"] = [replace(scene.orders["node001"][0], phase="checkpoint")]
    scene.apply()
    scene.world.engine.poll()
    scene.world.engine.poll()
    assert scene.receipt("node001").state is AttemptState.STOPPING
    assert scene.slurm.jobs()[0].state == "RUNNING"
    scene.world.clock.advance(60 * SECOND)
    scene.world.sync()
    assert scene.receipt("node001").state is AttemptState.GONE


def test_a_reconciler_that_restarts_during_a_checkpoint_asks_no_second_time(scene: Scene) -> None:
    scene.start(node001=scene.world.order(script="trap 'echo asked' USR1; echo up; " + FOREVER, grace=60))
    until(lambda: "up" in scene.log(0), "it hears that signal by now")
    scene.orders["node001"] = [replace(scene.orders["node001"][0], phase="checkpoint")]
    scene.apply()
    scene.world.engine.poll()
    until(lambda: "asked" in scene.log(0).splitlines(), "it was asked")
    seen = scene.world.engine.observe(scene.desired, scene.world.clock.now())
    scene.world.engine.stop()
    scene.world.engine = scene.world.another()
    scene.world.engine.start(scene.desired, seen)
    scene.apply()
    scene.world.engine.poll()
    assert scene.receipt("node001").state is AttemptState.STOPPING
    scene.world.clock.advance(60 * SECOND)
    scene.world.sync()
    assert scene.receipt("node001").state is AttemptState.GONE
    assert scene.log(0).splitlines().count("asked") == 1


def test_slurm_itself_ends_a_gang_soon_after_its_deadline(scene: Scene) -> None:
    scene.start(node001=scene.world.order(script=FOREVER))
    started = scene.slurm.jobs()[0].started
    assert scene.slurm.jobs()[0].limit is None
    deadline = (started + 600) * SECOND
    scene.orders["node001"] = [replace(scene.orders["node001"][0], deadline=deadline)]
    scene.apply()
    scene.world.engine.poll()
    assert scene.slurm.jobs()[0].limit == 11  # 600 s and 30 s to stop in, in whole minutes


# --- endings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_a_gang_that_ends_by_itself_is_seen_with_its_exit_code(scene: Scene, script: str, code: int) -> None:
    scene.start(node001=scene.world.order(script=f"sleep 0.5; {script}"))
    scene.wait_for("node001", AttemptState.EXITED)
    assert scene.receipt("node001").exit_code == code
    assert scene.submissions() == 1


def test_one_failing_rank_ends_the_whole_gang(scene: Scene) -> None:
    scene.start(**gang(scene.world, ["node001", "node002"], gpus=(0, 1), script=f"[ $RANK = 3 ] && exit 9; {FOREVER}"))
    scene.wait_for("node001", AttemptState.EXITED)
    assert [scene.receipt(node).exit_code for node in ("node001", "node002")] == [9, 9]


def test_a_job_that_somebody_cancels_in_slurm_has_failed_and_says_why(scene: Scene) -> None:
    scene.start(node001=scene.world.order(script=FOREVER))
    scene.slurm.run("scancel", str(scene.slurm.jobs()[0].id))
    scene.wait_for("node001", AttemptState.EXITED)
    assert scene.receipt("node001").reason == "Cancelled: somebody cancelled it in Slurm"
    assert scene.submissions() == 1


def test_an_ending_that_slurm_has_forgotten_is_known_from_its_receipt(scene: Scene) -> None:
    scene.start(node001=scene.world.order(script="sleep 0.5; exit 3"))
    ended = scene.slurm.shared / JOB / "1" / "ended"
    until(ended.exists, "its receipt is written")
    until(lambda: not scene.slurm.jobs(), "it is over")
    # What MinJobAge does after minutes, a controller that starts clean does at once.
    scene.slurm.control("kill-ctld")
    scene.slurm.control("start-ctld", "-c")
    until(lambda: scene.slurm.idle() == 8, "all nodes are back")
    assert not scene.slurm.jobs(every=True)
    scene.world.engine.poll()
    receipt = scene.receipt("node001")
    assert (receipt.state, receipt.exit_code) == (AttemptState.EXITED, 3)
    assert scene.submissions() == 1


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "saved", [True, False], ids=["it had saved the job", "the job is lost, and its number free again"]
)
def test_a_controller_killed_right_after_submission_loses_nothing_and_runs_nothing_twice(
    scene: Scene, saved: bool
) -> None:
    scene.slurm.save()
    runs = scene.slurm.shared / "runs"
    work = f"[ $RANK != 0 ] || echo $SLURM_JOB_ID >>{runs}; {FOREVER}"
    orders = gang(scene.world, ["node001", "node002"], gpus=(0, 1), script=work)
    scene.order(**orders)
    scene.world.sync()
    scene.orders |= {node: [replace(order, phase="run")] for node, order in orders.items()}
    scene.apply()
    commands = scene.world.engine._commands
    accept = commands.submit

    def and_crash(options: tuple[str, ...], script: str) -> int:
        number = accept(options, script)
        if saved:
            _, _, name = next(option for option in options if option.startswith("--job-name=")).partition("=")
            until(lambda: scene.slurm.has_saved(name), "the controller has saved the job")
        scene.slurm.control("kill-ctld")
        for kept in () if saved else (scene.slurm.folder / "state").glob("job_state*"):
            kept.unlink()
        return number

    commands.submit = and_crash  # type: ignore[method-assign, assignment]  # the crash comes between answer and next look
    scene.world.look()
    commands.submit = accept  # type: ignore[method-assign]  # in place of the real one
    assert scene.world.told[-1][0] in {"SlurmUnavailable", "SlurmTimedOut"}
    scene.slurm.control("start-ctld")
    scene.world.sync()
    assert scene.receipt("node001").state is scene.receipt("node002").state is AttemptState.RUNNING
    until(lambda: said_in(runs), "rank 0 has begun")
    assert len(runs.read_text(encoding="utf-8").split()) == 1
    assert len(scene.slurm.jobs()) == 1
    assert scene.submissions() == (1 if saved else 2)
    until(lambda: scene.slurm.idle() == 6, "the other nodes are as free as they were")


def test_a_running_gang_that_its_controller_forgot_goes_on_once_and_only_after_the_first_is_gone(scene: Scene) -> None:
    scene.slurm.save()
    runs = scene.slurm.shared / "runs"
    work = f"[ $RANK != 0 ] || echo $GANGOPS_RESUME $$ >>{runs}; {FOREVER}"
    state = scene.slurm.folder / "state"
    scene.start(node001=scene.world.order(script=work))
    until(lambda: said_in(runs), "rank 0 has begun")
    first = int(runs.read_text(encoding="utf-8").split()[1])
    # As if the controller had crashed before it saved anything of the job.
    scene.slurm.control("kill-ctld")
    for kept in state.glob("job_state*"):
        kept.unlink()
    scene.slurm.control("start-ctld")
    scene.world.sync()

    def again() -> bool:
        scene.world.look()
        return len(said_in(runs)) == 4

    until(again, "rank 0 has begun again")
    resumed = runs.read_text(encoding="utf-8").split()[2]
    assert resumed == "1"
    assert not Path(f"/proc/{first}").exists() or is_zombie(first)
    assert len(scene.slurm.jobs()) == 1


def test_a_number_that_is_given_out_again_is_nobodys_key(scene: Scene) -> None:
    scene.slurm.save()
    scene.start(node001=scene.world.order(script=FOREVER))
    number = scene.slurm.jobs()[0].id
    scene.slurm.control("kill-ctld")
    for kept in (scene.slurm.folder / "state").glob("job_state*"):
        kept.unlink()
    scene.slurm.control("start-ctld")
    theirs = scene.slurm.submit("-J", "theirs", "--gres=gpu:h100:1", "-w", "node006")
    while theirs < number:
        theirs = scene.slurm.submit("-J", "theirs", "--gres=gpu:h100:1", "-w", "node006")
    assert theirs == number
    scene.phase("stop")
    scene.wait_for("node001", AttemptState.GONE)
    assert number in {job.id for job in scene.slurm.jobs() if job.name == "theirs"}


def test_a_job_that_is_in_twice_runs_once(scene: Scene) -> None:
    """A submission whose answer was lost may come in late, after the next one."""
    commands = scene.world.engine._commands
    accept = commands.submit
    commands.submit = lambda options, script: (accept(options, script), accept(options, script))[1]  # type: ignore[method-assign]  # in place of the real one
    scene.start(node001=scene.world.order(script=FOREVER))
    commands.submit = accept  # type: ignore[method-assign]  # in place of the real one

    def one_is_left() -> bool:
        scene.world.sync()
        states = [job.state for job in scene.slurm.jobs()]
        return states == ["RUNNING"] and scene.receipt("node001").state is AttemptState.RUNNING

    until(one_is_left, "the second one is gone")


def test_a_requeued_job_does_not_start_again_without_a_decision(scene: Scene) -> None:
    scene.start(node001=scene.world.order(script=FOREVER))
    number = str(scene.slurm.jobs()[0].id)
    scene.slurm.run("scontrol", "update", f"JobId={number}", "Requeue=1")
    scene.slurm.run("scontrol", "requeue", number)
    scene.wait_for("node001", AttemptState.EXITED)
    assert scene.receipt("node001").reason == "Requeued"
    assert not scene.slurm.jobs()


def test_a_drained_node_takes_nothing_new_and_keeps_what_runs(scene: Scene) -> None:
    scene.start(node001=scene.world.order(script=FOREVER))
    scene.world.ail("node001", "bad nic")
    scene.world.engine.poll()
    node = scene.node("node001")
    assert (node.condition, node.unhealthy) == (NodeCondition.READY, "Slurm: drained: bad nic")
    assert scene.receipt("node001").state is AttemptState.RUNNING


def test_a_crashed_node_is_silent_its_gang_has_failed_and_its_return_confirms_the_release(scene: Scene) -> None:
    scene.start(**gang(scene.world, ["node001", "node002"], gpus=(0, 1), script=FOREVER))
    scene.world.crash("node002")

    scene.wait_for("node001", AttemptState.EXITED, 90)
    assert scene.receipt("node001").exit_code
    # The dead node has said nothing: what ran on it may still run, as far as anybody knows.
    assert scene.receipt("node002").state is AttemptState.RUNNING
    scene.world.clock.advance(10 * MINUTE)
    scene.world.engine.poll()
    assert scene.node("node002").condition is NodeCondition.LOST
    scene.slurm.control("start", "node002")
    scene.wait_for("node002", AttemptState.EXITED)
    assert scene.node("node002").condition is NodeCondition.READY
    assert scene.submissions() == 1


def test_an_older_reconciler_only_looks_while_a_newer_one_acts(scene: Scene) -> None:
    scene.generation = 8
    scene.start(node001=scene.world.order(script=FOREVER))
    older = scene.world.another()
    older.start(scene.desired, Observed())
    older.apply(committed_of(3, {name: [] for name in scene.slurm.names}))
    older.poll()
    older.poll()
    assert [job.state for job in scene.slurm.jobs()] == ["RUNNING"]
    older.stop()


# --- two reconcilers -------------------------------------------------------------------------------------------------


def test_two_reconcilers_with_one_decision_submit_it_once(scene: Scene) -> None:
    """The other one looks exactly while the first is between its look and Slurm's answer."""
    other = scene.world.another()
    other.start(scene.desired, Observed())
    scene.order(node001=scene.world.order(script=FOREVER))
    scene.world.sync()
    scene.orders["node001"] = [replace(scene.orders["node001"][0], phase="run")]
    scene.apply()
    other.apply(committed_of(scene.generation, scene.orders))
    commands = scene.world.engine._commands
    accept = commands.submit

    def meanwhile(options: tuple[str, ...], script: str) -> int:
        other.poll()
        return accept(options, script)

    commands.submit = meanwhile  # type: ignore[method-assign, assignment]  # the other's turn comes in between
    scene.world.engine.poll()
    commands.submit = accept  # type: ignore[method-assign]
    other.poll()
    scene.world.sync()
    assert scene.submissions() == 1
    assert scene.receipt("node001").state is AttemptState.RUNNING
    other.stop()


def test_a_reconciler_whose_git_is_cut_starts_nothing_that_was_decided_over(scene: Scene) -> None:
    """Nothing in Slurm tells of the newer generation: it took back what had never been submitted."""
    scene.order(node001=replace(scene.world.order(script=FOREVER), phase="run"))
    cut_off = scene.world.another()
    cut_off.start(scene.desired, Observed())
    cut_off.apply(committed_of(scene.generation, scene.orders))
    scene.order(node001=None)
    scene.world.engine.poll()
    assert not scene.slurm.jobs()
    cut_off.poll()
    assert not scene.slurm.jobs()
    assert scene.submissions() == 0
    assert ("slurm-turn", "Over") in [(event, fields.get("turn")) for event, fields in scene.world.told]
    cut_off.stop()


def test_a_reconciler_that_dies_in_its_turn_keeps_nobody_from_theirs(scene: Scene) -> None:
    """As a lock does: with its holder it is gone. What it had written half reads as nothing newer."""
    fence = Fence(scene.world.cluster)
    program = (
        "import os, signal, sys\nfrom reconciler.engines.slurm.fence import Fence\n"
        "with Fence(sys.argv[1]).turn(sys.argv[2], (1, 1)) as turn:\n    print(turn, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    argv = [sys.executable, "-c", program, scene.world.cluster, str(scene.slurm.shared)]
    died = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (died.stdout, died.returncode) == ("Ours\n", -signal.SIGKILL)
    with fence.turn(str(scene.slurm.shared), (1, 1)) as turn:
        assert turn is Turn.OURS
    fence.path(str(scene.slurm.shared)).write_bytes(b"        ")
    with fence.turn(str(scene.slurm.shared), (1, 1)) as turn:
        assert turn is Turn.OURS


def test_a_submission_that_comes_in_after_its_attempt_has_ended_does_nothing(scene: Scene) -> None:
    runs = scene.slurm.shared / "runs"
    commands = scene.world.engine._commands
    accept, given = commands.submit, list[tuple[tuple[str, ...], str]]()

    def note(options: tuple[str, ...], script: str) -> int:
        given.append((options, script))
        return accept(options, script)

    commands.submit = note  # type: ignore[method-assign, assignment]  # what it was given can be given again
    scene.start(node001=scene.world.order(script=f"echo $RANK >>{runs}; exit 7"))
    scene.wait_for("node001", AttemptState.EXITED)
    late = accept(*given[0])
    until(lambda: any(job.id == late and job.over for job in scene.slurm.jobs(every=True)), "it came and went")
    assert sorted(runs.read_text(encoding="utf-8").split()) == ["0", "1"]
    scene.world.engine.poll()
    receipt = scene.receipt("node001")
    assert (receipt.state, receipt.exit_code) == (AttemptState.EXITED, 7)


def test_a_call_that_hangs_is_given_up_in_time(scene: Scene) -> None:
    scene.world.engine._commands = Commands(timeout=Nanoseconds(3 * SECOND))
    controller = scene.slurm._pid("slurmctld")
    os.kill(controller, signal.SIGSTOP)
    try:
        began = time.monotonic()
        scene.world.look()
        assert time.monotonic() - began < 45, "Slurm's own clients wait for a minute"
    finally:
        os.kill(controller, signal.SIGCONT)
    assert scene.world.told[-1][0] == "SlurmTimedOut"
    scene.world.engine._commands = Commands()
    scene.world.engine.poll()
    assert scene.node("node001").condition is NodeCondition.READY
