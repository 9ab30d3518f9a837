"""Traces in virtual time: figures worked out by hand, what has to add up, and a queue that needs no planner to foresee."""

from __future__ import annotations

import csv
import heapq
import io
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from reconciler.documents.desired import load_desired, source_file
from reconciler.errors import InvalidInput
from reconciler.model.units import SECOND, CommitId, Nanoseconds
from reconciler.render.simulation import Simulated, simulation_text
from reconciler.render.simulation import Simulation as Page
from reconciler.runtime.simulation.agents import Pace, Spell
from reconciler.runtime.simulation.result import found_in, simulate
from reconciler.runtime.simulation.run import Reached, Run
from reconciler.runtime.simulation.setting import BEGIN, Setting, Stands, Submission, setting_of, stood_in, submissions
from reconciler.runtime.simulation.trace import Trace, read_trace
from tests.runtime.lab import BASE

PHILLY = Path(__file__).parents[3] / "shared" / "corpus" / "traces" / "philly-muri"
PLAIN = (
    "order: priorityThenAge, moveToStart: never, preemptSameQueue: never, preemptOtherQueues: never, "
    "defragment: {action: never}, holdForStarvedAfter: 10000h"
)
"""Rules by which nobody is ever stopped, and who came first goes first."""
SMALL = """\
apiVersion: gangops/v1
kind: ClusterConfig
metadata: {{name: lab}}
spec: {{scheduling: {{{rules}}}}}
"""


def setting(rules: str = "", **files: str) -> Setting:
    """Four nodes of eight GPUs in two racks, one queue `nlp`, classes `production` and `research` (the default)."""
    return setting_from({**BASE, "cluster-state/cluster.yaml": SMALL.format(rules=rules), **files})


def setting_from(files: Mapping[str, str]) -> Setting:
    loaded = load_desired([source_file(path, text.encode()) for path, text in files.items()], CommitId("0" * 40))
    assert loaded.desired is not None, loaded.diagnostics
    assert loaded.cluster is not None
    return setting_of("lab", loaded.desired, loaded.cluster.around)


def racks(nodes: int, rules: str) -> Setting:
    """Racks of eight nodes, four racks a spine group."""
    names = [f"r{n:02}" for n in range(-(-nodes // 8))]
    sets = "".join(
        f"---\napiVersion: gangops/v1\nkind: NodeSet\nmetadata: {{name: {rack}}}\n"
        f'spec: {{nodes: "gpu-[{n * 8 + 1:03}-{min(nodes, n * 8 + 8):03}]", profile: small, rack: {rack}}}\n'
        for n, rack in enumerate(names)
    )
    groups = "".join(
        f'    - name: sg{n}\n      spines: ["s{n}-[0-1]"]\n      racks: [{", ".join(f"{{name: {r}}}" for r in names[n : n + 4])}]\n'
        for n in range(0, len(names), 4)
    )
    fabric = BASE["cluster-state/fabric/clos.yaml"].partition("  spineGroups:\n")[0]
    return setting(
        rules,
        **{
            "cluster-state/inventory/nodes.yaml": sets,
            "cluster-state/fabric/clos.yaml": f"{fabric}  spineGroups:\n{groups}",
        },
    )


def trace(text: str) -> Trace:
    """Columns apart by blanks, which read better than commas."""
    rows = [",".join(line.split()) for line in text.strip().splitlines()]
    return read_trace("\n".join(rows).encode(), "trace.csv")


def as_jobs(found: Trace, at: Setting) -> tuple[Submission, ...]:
    return submissions(found, at, Stands(), lambda row: max(row.duration, Nanoseconds(SECOND)))


def ran(text: str, at: Setting, pace: Pace | None = None) -> tuple[Simulated, Run]:
    run = Run(at, as_jobs(trace(text), at), pace or Pace())
    assert run.go(lambda _: True)
    return found_in(run, partial=False), run


def starts(run: Run) -> list[int]:
    """Seconds at which each job ran first, in the order of submission."""
    return [(run.tally.starts[key] - BEGIN) // SECOND for key in sorted(run.tally.starts)]


def ends(run: Run) -> list[int]:
    return [(run.tally.ends[key] - BEGIN) // SECOND for key in sorted(run.tally.ends)]


def every(seconds: int) -> Nanoseconds:
    return Nanoseconds(seconds * SECOND)


# --- by hand ---


def test_two_jobs_that_fit_run_at_once_and_their_hours_are_counted() -> None:
    found, run = ran(
        """submit_s duration_s gpus
           5        100        8
           10       50         16""",
        setting(),
    )
    assert starts(run) == [0, 5]  # time begins with the first submission
    assert ends(run) == [100, 55]
    assert (found.allocated, found.useful, found.lost, found.idle) == (100 * 8 + 50 * 16, 1600, 0, 0)
    assert found.lasted == 100
    assert found.utilisation_ppm == 1600 * 10**6 // (32 * 100)
    assert found.turnaround == 75
    assert found.counts.finished == 2
    # The gang of two nodes has one rack for itself.
    assert [(one.level, one.share_ppm) for one in found.crossings] == [("rack", 0), ("spineGroup", 0)]


def test_who_came_first_goes_first() -> None:
    found, run = ran(
        """submit_s duration_s gpus
           0        100        32
           10       50         32
           20       30         32""",
        setting(PLAIN),
    )
    assert starts(run) == [0, 100, 150]
    (whole, size) = found.waits
    assert (whole.group, whole.jobs, whole.mean, whole.p50, whole.p95, whole.most) == ("all", 3, 220 // 3, 90, 130, 130)
    assert (size.name, size.jobs) == ("more than 8", 3)
    assert found.queued_ppm == 1_000_000  # while somebody waited nothing was free
    assert found.phi_ppm == 0


def test_a_later_job_goes_before_only_where_it_delays_nobody() -> None:
    _, run = ran(
        """submit_s duration_s gpus
           0        100        16
           10       50         32
           15       80         8
           16       100        8""",
        setting(PLAIN),
    )
    # 15 + 80 is before 100, when the second begins; 16 + 100 is not, so that the last comes after it.
    assert starts(run) == [0, 100, 15, 150]


PREEMPTED = """submit_s duration_s gpus priority
               0        100        32   research
               40       50         32   production"""


def test_who_is_stopped_for_another_begins_anew() -> None:
    found, run = ran(PREEMPTED, setting("cooldown: 0s"))
    assert starts(run) == [0, 40]
    assert ends(run) == [90 + 100, 90]
    assert (found.lost, found.useful) == (40 * 32, 150 * 32)
    assert [(one.cause, one.times, one.lost) for one in found.stops] == [("Preempted", 1, 40 * 32)]
    assert found.allocated == 190 * 32


def test_a_protection_ends_in_the_instant_it_is_over() -> None:
    found, run = ran(
        """submit_s duration_s gpus priority
           0        9000       32   research
           600      50         32   production""",
        setting("minRuntime: 30m, cooldown: 0s"),
    )
    assert starts(run) == [0, 1800]
    assert found.lost == 1800 * 32


def test_a_checkpoint_keeps_what_came_before_it() -> None:
    found, run = ran(PREEMPTED, setting("cooldown: 0s"), Pace(checkpoint=every(30)))
    assert ends(run) == [90 + 70, 90]
    assert (found.lost, found.allocated) == (10 * 32, 160 * 32)


def test_starts_and_stops_take_the_time_they_are_given() -> None:
    found, run = ran(PREEMPTED, setting("cooldown: 0s"), Pace(start=every(3), stop=every(5)))
    # Ran 3..40, gone at 45; the other 48..98; then anew 101..201.
    assert starts(run) == [3, 48]
    assert ends(run) == [201, 98]
    assert (found.lost, found.idle, found.allocated) == (37 * 32, (3 + 5 + 3 + 3) * 32, 201 * 32)


def test_a_job_ends_at_its_time_limit() -> None:
    found, run = ran(
        """submit_s duration_s gpus time_limit_s
           0        100        8    60
           0        100        8    400""",
        setting(),
    )
    assert ends(run) == [60, 100]
    assert (found.counts.finished, found.counts.timed_out, found.lost) == (1, 1, 0)


def test_what_can_never_run_is_told_and_in_nobodys_way() -> None:
    nodes = BASE["cluster-state/inventory/nodes.yaml"]
    cordoned = nodes.replace("profile: small, rack: r02}", "profile: small, rack: r02, cordoned: fan}")
    assert cordoned != nodes
    small = setting(PLAIN, **{"cluster-state/inventory/nodes.yaml": cordoned})
    found, run = ran(
        """job_id submit_s duration_s gpus
           big    0        100        64
           large  0        100        32
           fine   1        10         16
           none   2        10         0""",
        small,
    )
    assert starts(run) == [1]
    (one,) = found.never_fit
    assert (one.job, one.line, one.gpus) == ("big", 2, 64)
    assert "32" in one.why  # what there is
    (two,) = found.waiting  # it would fit, were its nodes not cordoned
    assert (two.job, two.line) == ("large", 3)
    assert (found.counts.never_fit, found.counts.waiting, found.counts.finished) == (1, 1, 1)
    assert (found.gpus, found.lasted) == (16, 11)  # time in which nothing came of it is not counted


def test_capacity_counts_from_the_first_submission_on_although_that_one_never_runs() -> None:
    found, _ = ran(
        """submit_s duration_s gpus
           0        100        64
           100      100        32""",
        setting(PLAIN),
    )
    assert (found.lasted, found.utilisation_ppm) == (200, 500_000)


def test_shares_of_gangs_that_cross_racks_go_by_gpu_hours() -> None:
    found, _ = ran(
        """submit_s duration_s gpus
           0        100        8
           0        100        8
           200      100        24
           400      300        16""",
        setting(PLAIN),
    )
    # 24 GPUs need three nodes, and a rack has two; the gang of 16 fits one.
    rack, spine = found.crossings
    assert rack.share_ppm == 2400 * 10**6 // (2400 + 4800)
    assert spine.share_ppm == 0


def test_phi_is_averaged_over_time() -> None:
    found, _ = ran(
        """submit_s duration_s gpus
           0        100        4
           100      100        32""",
        setting(PLAIN),
    )
    # 28 idle, 24 of them in whole nodes, for half of the time; then nothing is idle.
    assert found.phi_ppm == (4 * 10**6 // 28) * 100 // 200


def test_limits_of_one_person_hold() -> None:
    queues = BASE["cluster-state/queues/tree.yaml"].replace(
        "spec: {parent: root}", "spec: {parent: root, limits: {perUser: {gpus: 16}}}"
    )
    _, run = ran(
        """submit_s duration_s gpus user
           0        100        16   ada
           1        100        16   ada
           2        100        16   bob""",
        setting(PLAIN, **{"cluster-state/queues/tree.yaml": queues}),
    )
    assert starts(run) == [0, 100, 2]


# --- what has to add up ---


def made_up(seed: int, jobs: int) -> str:
    rng = random.Random(seed)
    rows = [
        (rng.randint(0, 20_000), rng.choice((0, 1, 60, 600, 3000)) * rng.randint(1, 3), rng.choice((1, 2, 4, 8, 16, 32, 40)),
         rng.choice(("production", "research")))
        for _ in range(jobs)
    ]  # fmt: skip
    return "submit_s duration_s gpus priority\n" + "\n".join(" ".join(map(str, row)) for row in rows)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "pace", [Pace(), Pace(start=every(7), stop=every(11), checkpoint=every(300))], ids=["at once", "slow"]
)
def test_hours_add_up_and_no_gpu_is_given_twice(seed: int, pace: Pace) -> None:
    found, run = ran(made_up(seed, 60), setting("cooldown: 1m"), pace)
    spells = run.tally.spells
    assert found.refused == 0
    # What was held over time is what the attempts had, and each hour of it was of use, lost, or idle.
    assert run.tally.held == sum(one.gpus * (one.released - one.placed) for one in spells)
    assert found.allocated - found.useful - found.lost - found.idle in (0, 1, 2)  # each is rounded down
    assert not list(overlaps(spells))
    # Each job that fits ends, having done all of its work, and never before it was submitted.
    jobs = as_jobs(trace(made_up(seed, 60)), setting())
    fits = [one for one in jobs if one.job.gpus <= 32]
    assert run.tally.ends.keys() == {one.key for one in fits}
    assert sum(one.gpus * one.kept for one in spells) == sum(one.job.gpus * one.row.duration for one in fits)
    assert all(run.tally.starts[one.key] >= BEGIN + one.row.submit for one in fits)
    assert (found.counts.never_fit, found.counts.waiting, found.counts.running) == (len(jobs) - len(fits), 0, 0)


def overlaps(spells: Sequence[Spell]) -> list[tuple[str, int]]:
    """GPUs that two attempts had at the same time: of each GPU, the intervals in order, looked at two by two."""
    had: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for one in spells:
        for place in one.placement.ranks:
            had.setdefault((place.node, place.gpu), []).append((one.placed, one.released))
    found = []
    for gpu, intervals in had.items():
        ordered = sorted(intervals)
        found += [gpu for (_, end), (begin, _) in pairwise(ordered) if begin < end]
    return found


def test_the_same_gives_the_same() -> None:
    first, _ = ran(made_up(3, 60), setting())
    again, _ = ran(made_up(3, 60), setting())
    assert first == again


# --- a queue that needs no planner ---


@pytest.mark.parametrize("seed", range(2))
def test_jobs_of_a_whole_node_wait_as_in_a_queue_with_four_counters(seed: int) -> None:
    rng = random.Random(seed)
    submitted = sorted(accumulate(rng.randint(0, 300) for _ in range(80)))
    lengths = [rng.randint(1, 2000) for _ in submitted]
    counters = [0] * 4
    expected = []
    for at, length in zip(submitted, lengths, strict=True):
        begins = max(at, heapq.heappop(counters))
        expected.append(begins - submitted[0])
        heapq.heappush(counters, begins + length)
    rows = "\n".join(f"{at} {length} 8" for at, length in zip(submitted, lengths, strict=True))
    found, run = ran(f"submit_s duration_s gpus\n{rows}", setting(PLAIN))
    assert starts(run) == expected
    assert found.waits[0].most > 0  # else nothing was tried


# --- a trace of others ---


def fifo_first_fit(rows: Sequence[tuple[int, int, int]], nodes: int) -> list[int]:
    """Waits in seconds where nobody passes anybody: a gang of up to 8 on the first node with room, larger on whole nodes."""
    free, clock, waits = [8] * nodes, 0, []
    running: list[tuple[int, int, dict[int, int]]] = []
    for number, (submit, duration, gpus) in enumerate(rows):
        clock = max(clock, submit)
        while (place := _first_fit(free, gpus)) is None or (running and running[0][0] <= clock):
            end, _, back = heapq.heappop(running)
            clock = max(clock, end)
            for node, count in back.items():
                free[node] += count
        for node, count in place.items():
            free[node] -= count
        heapq.heappush(running, (clock + duration, number, place))
        waits.append(clock - submit)
    return waits


def _first_fit(free: Sequence[int], gpus: int) -> dict[int, int] | None:
    if gpus <= 8:
        node = next((n for n, left in enumerate(free) if left >= gpus), None)
        return None if node is None else {node: gpus}
    whole = [n for n, left in enumerate(free) if left == 8][: gpus // 8]
    return dict.fromkeys(whole, 8) if len(whole) == gpus // 8 else None


@pytest.mark.slow
@pytest.mark.skipif(not PHILLY.is_dir(), reason="the corpus is not beside the repository")
def test_a_real_trace_ends_no_later_than_first_come_first_fit_and_within_what_was_published() -> None:
    content = (PHILLY / "jobs_cluster400.csv").read_bytes()
    found = read_trace(content, "jobs_cluster400.csv")
    at = racks(8, f"{PLAIN}, backfill: {{mode: easy}}")
    simulated = simulate(at, as_jobs(found, at), Pace())
    assert simulated.counts.finished == 400
    rows = [(int(r.submit // SECOND), int(r.duration // SECOND), r.gpus) for r in found.rows]
    waited = fifo_first_fit(rows, 8)
    assert simulated.waits[0].mean < sum(waited) // len(waited)
    # Theirs on eight nodes: one that knows lengths and preempts at will, and one that shares in fairness to each job.
    with (PHILLY / "published_muri.csv").open() as published:
        theirs = {r["policy"]: float(r["avg_jct_s"]) for r in csv.DictReader(published) if r["trace"] == "cluster400"}
    assert theirs["SRTF"] < simulated.turnaround < theirs["themis"]
    # The same GPU-hours as the file has, by a reader of its own.
    asked = sum(int(float(r["duration_s"])) * int(r["gpus"]) for r in csv.DictReader(io.StringIO(content.decode())))
    assert simulated.useful == simulated.allocated == asked


# --- the watch ---


def test_a_watch_ends_it_and_what_was_found_says_so() -> None:
    seen: list[Reached] = []

    def watch(moment: Reached) -> bool:
        seen.append(moment)
        return moment.over < 1

    at = setting(PLAIN)
    jobs = as_jobs(trace("submit_s duration_s gpus\n0 100 32\n10 50 32\n20 30 32"), at)
    found = simulate(at, jobs, Pace(), watch)
    assert (found.partial, found.lasted, found.counts.finished, found.counts.waiting) == (True, 100, 1, 1)
    assert [moment.now for moment in seen] == sorted(moment.now for moment in seen)
    page = simulation_text(Page(trace="t", jobs=3, without_gpus=0, assumed=(), runs=(found,)), 80)
    assert "INTERRUPTED" in page


def test_a_name_of_the_trace_adds_no_line_to_the_page_and_says_nothing_to_the_terminal() -> None:
    at = setting(PLAIN)
    found = simulate(
        at, as_jobs(read_trace(b'job_id,submit_s,duration_s,gpus\n"a\x1b[31m\nb",0,9,4000\n', "t"), at), Pace()
    )
    page = simulation_text(Page(trace="t", jobs=1, without_gpus=0, assumed=(), runs=(found,)), 80)
    assert "\n  a [31m b (line 2, 4,000 GPUs): " in page
    assert "\x1b" not in page
    for text in (
        "\x1b[31m\n",
        "submit_s,duration_s,gpus\n\x1b[31m,1,1\n",
        "submit_s,duration_s,gpus,priority\n0,1,1,\x1b[31m\n",
    ):
        with pytest.raises(InvalidInput) as err:
            as_jobs(read_trace(text.encode(), "t"), at)
        assert "[31m" in str(err.value)
        assert "\x1b" not in str(err.value)


# --- reading ---


@pytest.mark.parametrize(
    ("text", "code", "line", "path"),
    [
        ("", "MissingColumn", 1, ""),
        ("submit_s,duration_s\n1,2\n", "MissingColumn", 1, ""),
        ("submit_s,duration_s,gpus,gpus\n1,2,3,4\n", "RepeatedColumn", 1, ""),
        ("submit_s,duration_s,gpus\n", "EmptyTrace", 0, ""),
        ("submit_s,duration_s,gpus\n1,2,0\n", "EmptyTrace", 0, ""),
        ("submit_s,duration_s,gpus\n1,2,3\n1,-2,3\n", "BadField", 3, "duration_s"),
        ("submit_s,duration_s,gpus\n1,2,3\nnan,2,3\n", "BadField", 3, "submit_s"),
        ("submit_s,duration_s,gpus\n1,1e30,3\n", "BadField", 2, "duration_s"),
        ("submit_s,duration_s,gpus\n1,2,1.5\n", "BadField", 2, "gpus"),
        ("submit_s,duration_s,gpus\n1,2,-8\n", "BadField", 2, "gpus"),
        ("submit_s,duration_s,gpus\n1,2\n", "RaggedRow", 2, ""),
        ('submit_s,duration_s,gpus,job_id\n1,2,3,"a\n\nb"\n1,-2,3,"c\nd"\n', "BadField", 5, "duration_s"),
        ('submit_s,duration_s,gpus\n1,"2,3\n', "NotCsv", 2, ""),
        ("submit_s,duration_s,gpus,time_limit_s\n1,2,3,soon\n", "BadField", 2, "time_limit_s"),
    ],
)
def test_what_is_wrong_with_a_trace_is_told_with_its_place(text: str, code: str, line: int, path: str) -> None:
    with pytest.raises(InvalidInput) as err:
        read_trace(text.encode(), "trace.csv")
    first = err.value.diagnostics[0]
    assert (first.code, first.place.file, first.place.line, first.place.path) == (code, "trace.csv", line, path)
    assert first.place.column == (1 if line else 0)
    assert first.remedy


@pytest.mark.parametrize(
    ("first_line", "detail", "remedy"),
    [
        ("submit,gpus,run_s", "The first line names: submit, gpus, run_s; there is no submit_s, no duration_s.",
         "Name submit_s, duration_s, gpus in the first line; job_id, queue, priority, gpu_type, user, time_limit_s are optional."),
        ("submit_s;duration_s;gpus", "The first line names: submit_s;duration_s;gpus; there is no submit_s, no duration_s, no gpus.",
         "Put commas between the fields."),
    ],
)  # fmt: skip
def test_columns_that_are_missing_are_one_problem(first_line: str, detail: str, remedy: str) -> None:
    with pytest.raises(InvalidInput) as err:
        read_trace(f"{first_line}\n1;2;3\n".encode(), "trace.csv")
    assert [(one.code, one.detail, one.remedy) for one in err.value.diagnostics] == [("MissingColumn", detail, remedy)]


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        ("0,1e11,8", 'duration_s is "1e11"; it has to be a number of seconds, 0 to 10,000,000,000.'),
        ("-1e11,1,8", 'submit_s is "-1e11"; it has to be a number of seconds, -10,000,000,000 to 10,000,000,000.'),
        ("0,1,9999999999", 'gpus is "9999999999"; it has to be a whole number of GPUs, below a billion.'),
    ],
)
def test_a_number_that_is_too_large_is_told_what_it_may_be(row: str, detail: str) -> None:
    with pytest.raises(InvalidInput) as err:
        read_trace(f"submit_s,duration_s,gpus\n{row}\n".encode(), "trace.csv")
    assert [one.detail for one in err.value.diagnostics] == [detail]


def test_all_problems_are_told_together_up_to_a_number() -> None:
    rows = "\n".join("x,2,3" for _ in range(1000))
    with pytest.raises(InvalidInput) as err:
        read_trace(f"submit_s,duration_s,gpus\n{rows}".encode(), "trace.csv")
    codes = [one.code for one in err.value.diagnostics]
    assert codes == ["BadField"] * 20 + ["MoreProblems"]
    assert err.value.diagnostics[-1].detail.startswith("980 more")


def test_bytes_that_are_no_text_are_told() -> None:
    with pytest.raises(InvalidInput) as err:
        read_trace(b"submit_s,duration_s,gpus\n1,2,3\n\xff,2,3\n", "trace.csv")
    assert [(one.code, one.place.line) for one in err.value.diagnostics] == [("NotUtf8", 3)]


def test_a_trace_as_spreadsheets_write_it_is_read() -> None:
    found = read_trace(
        b"\xef\xbb\xbfgpus, submit_s,duration_s,colour\r\n8.0,20.5,3.25,red\r\n\r\n1,10,2,\r\n  \r\n , ,,\r\n", "t.csv"
    )
    rows = [(row.line, row.submit, row.duration, row.gpus) for row in found.rows]
    assert rows == [(4, 0, 2 * SECOND, 1), (2, 21 * SECOND // 2, 13 * SECOND // 4, 8)]


def test_names_that_the_cluster_does_not_have_are_told_once_each() -> None:
    found = trace(
        """submit_s duration_s gpus queue priority gpu_type
           0        1          1    nlp   research H100
           0        1          1    nlp   urgent   H200
           0        1          1    npl   urgent   H100|A100"""
    )
    queues = BASE["cluster-state/queues/tree.yaml"] + (
        "---\napiVersion: gangops/v1\nkind: Queue\nmetadata: {name: vision}\nspec: {parent: root}\n"
    )
    at = setting("", **{"cluster-state/queues/tree.yaml": queues})
    with pytest.raises(InvalidInput) as err:
        as_jobs(found, at)
    told = [(one.code, one.place.line, one.place.path) for one in err.value.diagnostics]
    assert told == [
        ("UnknownPriorityClass", 3, "priority"),
        ("UnknownQueue", 4, "queue"),
    ]  # one GPU type stands for all
    assert '"nlp"' in err.value.diagnostics[1].remedy
    with pytest.raises(InvalidInput) as other:
        submissions(found.first(1), at, Stands(queue="nowhere"), lambda _: None)
    assert [one.code for one in other.value.diagnostics] == ["UnknownQueue"]


def test_a_time_limit_of_the_queue_holds() -> None:
    queues = BASE["cluster-state/queues/tree.yaml"].replace(
        "spec: {parent: root}", "spec: {parent: root, limits: {timeLimit: 60s}}"
    )
    at = setting(PLAIN, **{"cluster-state/queues/tree.yaml": queues})
    rows = b"job_id,submit_s,duration_s,gpus,time_limit_s\nshort,0,50,8,\nlong,0,100,8,\nasks,0,50,8,100\n"
    jobs = as_jobs(read_trace(rows, "t.csv"), at)
    assert stood_in(jobs) == ("3 jobs of queues that the cluster does not have: in nlp",
                              "1 job ran longer than the time limit of their queue: cut short there")  # fmt: skip
    found = simulate(at, jobs, Pace())
    assert (found.counts.finished, found.counts.timed_out, found.lasted) == (1, 1, 60)
    (refused,) = found.never_fit  # its file would not be merged
    assert refused.job == "asks"
    assert "1m" in refused.why


def test_a_load_is_reached_by_stretching_arrivals_alone() -> None:
    found = trace("submit_s duration_s gpus\n0 100 16\n50 100 16\n100 100 32")
    assert found.load(32) == Fraction(6400, 3200)
    slower = found.stretched(Fraction(1, 2), 32)
    assert [row.submit // SECOND for row in slower.rows] == [0, 200, 400]
    assert slower.load(32) == Fraction(1, 2)
    assert [row.duration for row in slower.rows] == [row.duration for row in found.rows]
