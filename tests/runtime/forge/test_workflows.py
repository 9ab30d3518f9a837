"""The workflow files: in order by the tools that know, one text for all places, and their scripts run as a forge would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from reconciler.model.units import SECOND
from reconciler.runtime.forge.files import own_workflows, reusable_workflows, rulesets
from tests.runtime.forge.conftest import payload
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.store.world import git

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent


def written(folder: Path, texts: dict[str, str]) -> list[Path]:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return sorted((folder / ".github/workflows").glob("*.yml"))


def test_the_published_workflows_are_those_of_the_package() -> None:
    for path, text in reusable_workflows().items():
        assert (ROOT / path).read_text() == text, f"{path} is stale: run `gangops forge files`"


@pytest.mark.parametrize("texts", [reusable_workflows(), own_workflows(), own_workflows(artifact=False)])
def test_the_tools_that_know_workflows_find_nothing(texts: dict[str, str], tmp_path: Path) -> None:
    files = written(tmp_path, dict(texts))
    git(tmp_path, "init", "-q")
    for program, *flags in (
        ("actionlint", "-shellcheck=", "-pyflakes="),
        ("zizmor", "--offline", "--quiet", "--no-progress"),
    ):
        if not (BIN / program).exists():
            pytest.skip(f"{program} is not installed")
        command = [str(BIN / program), *flags, *map(str, files)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("texts", [reusable_workflows(), own_workflows("gangops==9", artifact=False)])
def test_every_action_is_pinned_and_the_forge_s_own_and_no_job_has_more_than_it_needs(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        tree = YAML(typ="safe").load(text)
        assert tree["permissions"] == {}, name
        assert "pull_request_target" not in text
        assert "secrets." not in text
        for job in tree["jobs"].values():
            granted = {key for key, value in job["permissions"].items() if value == "write"}
            assert granted == ({"pull-requests"} if "comment" in name else set()), name
            for step in job["steps"]:
                if "uses" in step:
                    action, _, version = step["uses"].partition("@")
                    assert action.startswith("actions/")
                    assert len(version) == 40, step["uses"]
                    assert not (granted and action == "actions/checkout")


def test_without_artefacts_there_is_no_comment_and_nothing_is_uploaded() -> None:
    texts = own_workflows("gangops==9", artifact=False)
    assert not any("comment" in name for name in texts)
    assert not any("artifact" in text for text in texts.values())
    assert all("inputs." not in text for text in texts.values())
    assert all("'gangops==9'" in text or "gangops==9" in text for text in texts.values())


def test_the_rules_ask_for_the_checks_by_the_names_the_jobs_have() -> None:
    rules = {name: json.loads(text) for name, text in rulesets().items()}
    main = next(rule for name, rule in rules.items() if name.endswith("-main.json"))
    checks = next(rule["parameters"] for rule in main["rules"] if rule["type"] == "required_status_checks")
    wanted = {check["context"] for check in checks["required_status_checks"]}
    jobs_of = [YAML(typ="safe").load(text)["jobs"] for text in own_workflows().values()]
    assert wanted <= {job["name"] for named in jobs_of for job in named.values()}
    writers = [rule for rule in rules.values() if {"type": "update"} in rule["rules"]]
    assert [rule["bypass_actors"][0]["actor_type"] for rule in writers] == ["DeployKey"]
    assert all(rule["bypass_actors"] == [] for rule in rules.values() if rule not in writers)


# --- the scripts ---


@pytest.fixture
def checkout(lab: Lab) -> tuple[Path, dict[str, str]]:
    """What `actions/checkout` leaves of a pull request: its merge commit and both sides of it, and nothing else."""
    lab.begin()
    desk = lab.desk()
    lab.clock.advance(600 * SECOND)
    desk.settle()
    base = lab.remote.tip("refs/heads/main")
    head = lab.remote.commit(
        {p: c.encode() for p, c in {**lab.files, **jobs("sft"), job_file("bad"): job_text("bad").replace("8", "many")}.items()},
        ref="refs/pull/12/head", parent=base,
    )  # fmt: skip
    person = ("-c", "user.name=T", "-c", "user.email=t@t")
    tree = git(lab.remote.path, "rev-parse", f"{head}^{{tree}}").decode().strip()
    merge = (
        git(lab.remote.path, *person, "commit-tree", tree, "-p", str(base), "-p", head, stdin=b"Merge").decode().strip()
    )
    git(lab.remote.path, "update-ref", "refs/pull/12/merge", merge)
    folder = lab.folder / "work"
    git(lab.folder, "init", "-q", "work")
    git(folder, "remote", "add", "origin", f"file://{lab.remote.path}")
    git(folder, "fetch", "-q", "--depth=2", "--no-tags", "origin", "+refs/pull/12/merge:refs/remotes/pull/12/merge")
    git(folder, "checkout", "-q", "--detach", "refs/remotes/pull/12/merge")
    event = json.loads(payload("pull_request").read_text())
    event["pull_request"]["head"]["sha"], event["pull_request"]["base"]["sha"] = head, base
    temp = lab.folder / "temp"
    (temp / "gangops/bin").mkdir(parents=True)
    (temp / "gangops/bin/gangops").symlink_to(BIN / "gangops")
    (temp / "event.json").write_text(json.dumps(event))
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(lab.folder), "RUNNER_TEMP": str(temp), "TOKEN": "t0ken", "BRANCH": "allocations",
        "GITHUB_SERVER_URL": "https://ghe.example.org", "GITHUB_EVENT_PATH": str(temp / "event.json"),
        "GITHUB_STEP_SUMMARY": str(temp / "summary"), "GITHUB_OUTPUT": str(temp / "output"), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    return folder, environment


def step(workflow: str, name: str) -> str:
    tree = YAML(typ="safe").load(own_workflows()[f".github/workflows/gangops-{workflow}.yml"])
    found: str = next(s["run"] for job in tree["jobs"].values() for s in job["steps"] if s.get("name") == name)
    return found


def bash(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], cwd=folder, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_the_steps_of_a_plan_on_what_a_pull_request_s_check_has(checkout: tuple[Path, dict[str, str]]) -> None:
    if not (BIN / "gangops").exists() or shutil.which("bash") is None:
        pytest.skip("gangops is not installed here")
    folder, environment = checkout
    fetched = bash(step("plan", "Fetch the record"), folder, environment)
    assert fetched.returncode == 0, fetched.stderr
    assert "t0ken" not in (folder / ".git/config").read_text()
    done = bash(step("plan", "Plan"), folder, environment)
    assert done.returncode == 4, done.stderr  # one of its two files is wrong
    assert f"::error file={job_file('bad')},line=6" in done.stdout
    temp = Path(environment["RUNNER_TEMP"])
    assert "`nlp/sft`" in (temp / "summary").read_text()
    outputs = dict(line.split("=", 1) for line in (temp / "output").read_text().splitlines())
    assert outputs | {"digest": ""} == {"digest": "", "changes": "true", "exit-status": "4", "victims": "0"}
    assert {file.name for file in (temp / "gangops-plan").iterdir()} == {
        "plan.json",
        "plan.md",
        "plan.html",
        "plan.txt",
    }
    tree = json.loads((temp / "gangops-plan/plan.json").read_text())
    assert tree["basis"]["base"] == git(folder, "rev-parse", "HEAD^1").decode().strip()


def test_the_comment_s_step_says_so_when_there_is_no_plan(checkout: tuple[Path, dict[str, str]]) -> None:
    folder, environment = checkout
    done = bash(step("comment", "Comment"), folder, environment)
    assert done.returncode == 0
    assert done.stdout.startswith("::notice")
