"""`gangops simulate` on real clones and folders: what it prints, for people and for machines, and how it is ended."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from reconciler.cli import simulate as verb
from reconciler.cli.root import root
from reconciler.cli.simulate_screen import Screen
from reconciler.errors import GangOpsError, InvalidInput, NotFound, UsageError
from reconciler.runtime.simulation.run import Reached
from tests.runtime.lab import BASE, Lab, jobs
from tests.store.world import git

ROOT = Path(__file__).parents[2]
TRACE = """\
job_id,submit_s,duration_s,gpus,queue,priority
one,0,3600,32,nlp,
two,600,1800,32,nlp,production
three,700,600,8,nlp,
huge,800,600,64,nlp,
"""
FIRST = "order: priorityThenAge, preemptSameQueue: never"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.csv"
    file.write_text(TRACE)
    return file


@pytest.fixture
def at(lab: Lab) -> Path:
    """A bare repository whose main has a job of its own, of which nothing may be seen here."""
    lab.desire(jobs("sft", gpus=32))
    return lab.remote.path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of the same cluster, in which nobody is preempted."""
    rules = BASE["cluster-state/cluster.yaml"].replace("spec: {}", f"spec: {{scheduling: {{{FIRST}}}}}")
    for path, text in {**BASE, "cluster-state/cluster.yaml": rules}.items():
        file = tmp_path / "calm" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "calm"


def simulate(repo: Path, *arguments: object) -> Result:
    return CliRunner().invoke(root, ["-C", str(repo), "simulate", *map(str, arguments)], standalone_mode=False)


def tree(done: Result) -> dict[str, Any]:
    assert (done.exception, done.return_value) == (None, 0)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_the_machine_form_is_as_its_schema_says_and_the_same_each_time(at: Path, trace: Path) -> None:
    found = tree(simulate(at, trace, "-o", "json"))
    schema = json.loads((ROOT / "schemas" / "simulation.schema.json").read_bytes())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(found)
    assert (found["formatVersion"], found["kind"], found["jobs"]) == ("1.0", "Simulation", 4)
    assert simulate(at, trace, "-o", "json").stdout == simulate(at, trace, "-o", "json").stdout


def test_the_newest_desired_commit_is_taken_without_its_own_jobs(at: Path, trace: Path) -> None:
    found = tree(simulate(at, trace, "-o", "json"))
    (run,) = found["runs"]
    # `one` runs 0..600, `two` takes its nodes for 1800 s, and it begins anew.
    assert (run["at"], run["nodes"], run["gpus"]) == ("main", 4, 32)
    assert run["counts"] == {"submitted": 4, "finished": 3, "timedOut": 0, "running": 0, "waiting": 0, "neverFit": 1}
    assert [(one["cause"], one["times"], one["lost"]) for one in run["stops"]] == [("Preempted", 1, 600 * 32)]
    assert run["useful"] == 3600 * 32 + 1800 * 32 + 600 * 8
    assert [(one["job"], one["line"]) for one in run["neverFit"]] == [("huge", 5)]


def test_two_clusters_stand_side_by_side(at: Path, folder: Path, trace: Path) -> None:
    done = simulate(at, trace, "--at", "main", "--at", folder, "-o", "json")
    main, calm = tree(done)["runs"]
    assert (main["lost"], calm["lost"]) == (600 * 32, 0)
    by_size = {one["name"]: one for one in calm["waits"]}
    assert by_size["more than 8"]["most"] == 3000  # `two` waits until `one` is over at 3600
    page = simulate(at, trace, "--at", "main", "--at", folder).stdout
    (line,) = [line for line in page.splitlines() if line.startswith("stopped for others")]
    assert line.split()[-4:] == ["1,", "5.3", "0,", "0.0"]  # 19,200 GPU-seconds
    assert "Waited until it ran first, at main:" in page


def test_the_page_fits_eighty_columns(at: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "width", lambda: 80)
    done = simulate(at, trace, "--at", "main", "--load", "0.5")
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "arrivals: stretched to load 0.5" in done.stdout
    assert re.search(r"^load +0\.500$", done.stdout, re.MULTILINE)
    assert "huge (line 5, 64 GPUs)" in done.stdout


def test_figures_that_differ_from_machine_to_machine_are_not_in_the_result(at: Path, trace: Path) -> None:
    done = simulate(at, trace)
    assert re.fullmatch(r"main: \d+ decisions in \d+\.\d s of processor time, \d+\.\d ms each\n", done.stderr)
    assert "processor" not in done.stdout


def test_time_limits_change_who_may_go_before(folder: Path, tmp_path: Path) -> None:
    rows = "submit_s,duration_s,gpus\n0,100,16\n10,50,32\n15,90,8\n"
    (tmp_path / "t.csv").write_text(rows)

    def most(limits: str) -> int:
        found = tree(simulate(folder, tmp_path / "t.csv", "--at", folder, "--time-limits", limits, "-o", "json"))
        small = next(one for one in found["runs"][0]["waits"] if one["name"] == "8")
        return int(small["most"])

    assert most("exact") == 150 - 15  # 15 + 90 would put off the wide one, at 100
    assert most("2") == 0  # nobody knows better than 15 + 180, which is before 200
    assert most("none") == 0  # nothing has an end, so that nothing can be reserved


def test_names_that_stand_in_are_told(at: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("submit_s,duration_s,gpus,queue,gpu_type\n0,1,8,elsewhere,V100\n")
    done = simulate(at, tmp_path / "t.csv")
    assert done.exit_code == 0, done.exception
    assert "1 job of queues that the cluster does not have: in nlp" in done.stdout
    assert "1 job of GPU types that it does not have: on H100" in done.stdout


def test_the_first_so_many_jobs_alone(at: Path, trace: Path) -> None:
    found = tree(simulate(at, trace, "--limit", "1", "-o", "json"))
    assert (found["jobs"], found["runs"][0]["useful"]) == (1, 3600 * 32)


def test_control_c_ends_it_with_what_was_found_by_then(at: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Screen.told

    def interrupted(self: Screen, reached: Reached) -> bool:
        if reached.now >= 600 * 10**9:
            signal.raise_signal(signal.SIGINT)
        return told(self, reached)

    monkeypatch.setattr(Screen, "told", interrupted)
    before = signal.getsignal(signal.SIGINT)
    done = simulate(at, trace, "--at", "main", "--at", "refs/heads/main", "-o", "json")
    assert done.return_value == 130
    (run,) = json.loads(done.stdout)["runs"]  # the second one was not begun
    assert (run["partial"], run["lasted"], run["counts"]["submitted"], run["counts"]["finished"]) == (True, 600, 2, 0)
    assert signal.getsignal(signal.SIGINT) is before
    assert "INTERRUPTED: what follows counts only what had happened by then." in simulate(at, trace).stdout


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        (("--load", "0"), UsageError, "BadOption"),
        (("--load", "much"), UsageError, "BadOption"),
        (("--time-limits", "0.5"), UsageError, "BadOption"),
        (("--start-seconds", "500"), UsageError, "BadOption"),
        (("--stop-seconds", "500"), UsageError, "BadOption"),
        (("--checkpoint-every", "0"), UsageError, "BadOption"),
        (("--queue", "nowhere"), InvalidInput, "InvalidInput"),
        (("--at", "no-such-branch"), NotFound, "UnknownRevision"),
        (("--at", "EMPTY"), NotFound, "PathNotFound"),
        (("--limit", "1", "--load", "1"), UsageError, "BadOption"),
    ],
)
def test_what_makes_no_sense_is_refused(
    at: Path, trace: Path, tmp_path: Path, arguments: tuple[str, ...], kind: type[GangOpsError], code: str
) -> None:
    (tmp_path / "empty").mkdir()
    words = [str(tmp_path / "empty") if word == "EMPTY" else word for word in arguments]
    done = simulate(at, trace, *words)
    assert isinstance(done.exception, kind)
    assert done.exception.code == code
    assert done.stdout == ""


@pytest.mark.parametrize("words", [(), ("--at", "mistyped")])
def test_outside_of_a_clone_the_way_without_one_is_told(
    folder: Path, trace: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = simulate(tmp_path, trace, "--at", folder, *words) if words else simulate(tmp_path, trace)
    assert isinstance(done.exception, NotFound)
    assert done.exception.code == "NotAClone"
    assert done.exception.remedy.endswith("; or --at FOLDER of its files")


def test_jobs_that_come_at_once_have_no_load(at: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("submit_s,duration_s,gpus\n5,10,1\n5,10,1\n")
    done = simulate(at, tmp_path / "one.csv", "--load", "1")
    assert isinstance(done.exception, UsageError)
    assert done.exception.message == "--load 1: all jobs of the trace come at once"
    assert done.exception.remedy.startswith("Leave --load out")


def test_a_trace_that_is_not_there_is_told(at: Path, tmp_path: Path) -> None:
    done = simulate(at, tmp_path / "nothing.csv")
    assert isinstance(done.exception, NotFound)
    assert done.exception.remedy


def test_the_desired_branch_by_its_name_is_what_was_merged_not_what_was_pulled_last(
    at: Path, lab: Lab, tmp_path: Path, trace: Path
) -> None:
    git(tmp_path, "clone", "-q", str(at), "clone")
    lab.desire({"cluster-state/queues/vision.yaml": VISION})
    merged = git(at, "rev-parse", "main").decode().strip()
    for words in ((), ("--at", "main")):
        assert (
            f"main is commit {merged[:12]}"
            in tree(simulate(tmp_path / "clone", trace, *words, "-o", "json"))["assumed"]
        )
    git(tmp_path / "clone", "checkout", "-q", "--detach")
    git(tmp_path / "clone", "branch", "-q", "-D", "main")
    assert tree(simulate(tmp_path / "clone", trace, "--at", "main", "-o", "json"))["runs"][0]["at"] == "main"


VISION = "apiVersion: gangops/v1\nkind: Queue\nmetadata: {name: vision}\nspec: {parent: root}\n"
BROKEN = "apiVersion: gangops/v1\nkind: Queue\n"


def test_a_cluster_with_errors_is_told_by_its_files(folder: Path, trace: Path) -> None:
    tree = folder / "cluster-state" / "queues" / "tree.yaml"
    tree.write_text(BROKEN)
    for named in (folder, folder / "cluster-state"):
        done = simulate(folder, trace, "--at", named)
        assert isinstance(done.exception, InvalidInput)
        assert {one.place.file for one in done.exception.diagnostics} == {str(tree)}


def test_of_several_clusters_the_one_with_errors_is_told(at: Path, lab: Lab, folder: Path, trace: Path) -> None:
    git(at, "branch", "sound", "main")
    lab.desire({"cluster-state/queues/tree.yaml": BROKEN})
    done = simulate(at, trace, "--at", "sound", "--at", folder, "--at", "main")
    assert isinstance(done.exception, InvalidInput)
    paths = ("cluster-state/jobs/nlp/sft.yaml", "cluster-state/queues/tree.yaml")  # its queue is gone with the tree
    assert {one.place.file for one in done.exception.diagnostics} == {f"main:{path}" for path in paths}


def test_the_readme_s_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (ROOT / "README.md").read_text()
    (rows,) = re.findall(r"^```csv\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    shutil.copytree(ROOT / "cluster-state", tmp_path / "cluster" / "cluster-state")
    monkeypatch.chdir(tmp_path / "cluster")
    person = ("-c", "user.name=T", "-c", "user.email=t@t")
    for words in (
        ("init", "-q", "-b", "main"),
        ("add", "."),
        (*person, "commit", "-qm", "x"),
        ("branch", "more-quota"),
    ):
        git(tmp_path / "cluster", *words)
    Path("jobs.csv").write_text(rows)
    lines = re.findall(r"^gangops (simulate .*?)(?:  +#.*)?$", readme, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        done = CliRunner().invoke(root, shlex.split(line))
        assert done.exit_code == 0, (line, done.output, done.exception)
        assert "jobs.csv" in done.stdout
        assert "could never run" not in done.stdout
