"""What ships for operators is true: every metric, label and code that alerts, dashboard, units and page name exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from reconciler.cli.root import VERBS, root
from reconciler.model.anomaly import MEANINGS, AnomalyCode
from reconciler.model.observed import NodeCondition
from reconciler.model.units import GpuSeconds, JobKey, Nanoseconds
from reconciler.runtime.operations import MONITORING, UNITS, shipped
from reconciler.runtime.status_server import LoopMetrics, StatusSnapshot, snapshot_metrics
from reconciler.store.publish import PushResult
from reconciler.topology.drift import DriftCode

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / ".github/OPERATIONS.md").read_text()
METRIC = re.compile(r"\bgangops_[a-z_]+\b")


def exported() -> dict[str, set[str]]:
    """Every sample a reconciler exports, with its labels: one value of each kind is counted."""
    one = {"x": 1}
    snapshot = StatusSnapshot(
        ready=True, stalled=False, reason="", since=None, generation=1, gpus=one, agents=one, drift=one, rejected=one,
        refusing=one, mfu={JobKey("nlp/x"): 0.5}, anomalies=one,
    )  # fmt: skip
    metrics = LoopMetrics()
    metrics.round_ended("committed", Nanoseconds(1))
    metrics.pushed("ok")
    metrics.preempted(1, GpuSeconds(1))
    text = (generate_latest(metrics.registry) + generate_latest(snapshot_metrics(lambda: snapshot))).decode()
    return {
        sample.name: set(sample.labels) for family in text_string_to_metric_families(text) for sample in family.samples
    }


def alerts() -> list[dict[str, Any]]:
    tree = YAML(typ="safe").load(shipped(MONITORING)["prometheus-alerts.yml"])
    return [rule for group in tree["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shipped(MONITORING)["grafana-dashboard.json"])["panels"]
    return found


EXPRESSIONS = [
    *((rule["alert"], rule["expr"]) for rule in alerts()),
    *((panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]),
]
# The closed sets that labels are taken from.
VALUES = {
    "gangops_anomalies": {str(code) for code in AnomalyCode},
    "gangops_agents": {str(condition) for condition in NodeCondition},
    "gangops_drift": {str(code) for code in DriftCode},
    "gangops_push_total": {str(result) for result in PushResult},
    "gangops_reconcile_total": {"committed", "unchanged", "failed"},
    "gangops_gpus": {"held", "idle", "promised", "stranded"},
    "gangops_agent_rejected_total": {"NotYourNode", "CertificateRevoked", "NoIdentity"},
}


@pytest.mark.parametrize(("name", "expr"), EXPRESSIONS)
def test_alerts_and_dashboard_name_only_what_is_exported(name: str, expr: str) -> None:
    known = exported()
    named = METRIC.findall(expr)
    assert named or expr.startswith('up{job="gangops"}'), name
    assert set(named) <= set(known), name
    for metric, label, text in re.findall(r'(gangops_[a-z_]+)\{(\w+)=~?"([^"]*)"\}', expr):
        assert label in known[metric], name
        assert set(text.split("|")) <= VALUES[metric], name


def test_the_refusals_that_alerts_name_are_those_of_the_server() -> None:
    source = (ROOT / "reconciler/engines/server.py").read_text()
    assert VALUES["gangops_agent_rejected_total"] <= set(re.findall(r'Rejected\(\d+, "(\w+)"', source))


def test_every_alert_says_what_to_do() -> None:
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())
    for rule in alerts():
        assert rule["labels"]["severity"] in {"page", "warn", "info"}
        assert {"summary", "remedy"} <= set(rule["annotations"])
        for verb in re.findall(r"gangops ([a-z]+)", rule["annotations"]["remedy"]):
            assert verb in VERBS
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert any(label in exported()[metric] for metric in METRIC.findall(rule["expr"])), rule["alert"]


def test_a_dashboard_has_its_panels_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def unit(name: str) -> dict[str, str]:
    lines = shipped(UNITS)[name].decode().splitlines()
    return dict(line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#"))


def test_units_leave_ranks_alone_and_start_what_there_is() -> None:
    agent, reconciler = unit("gangops-agent.service"), unit("gangops-reconciler.service")
    assert (agent["KillMode"], agent["Delegate"], agent["Restart"]) == ("process", "yes", "always")
    inherited = {
        "PrivateDevices",
        "PrivateTmp",
        "ProtectSystem",
        "ProtectHome",
        "NoNewPrivileges",
        "DevicePolicy",
        "User",
    }
    assert not inherited & set(agent), "ranks would inherit it"
    assert {"NoNewPrivileges", "ProtectSystem", "PrivateDevices"} <= set(reconciler)
    assert reconciler["User"] == "gangops"
    assert reconciler["ExecStart"].split()[1] in VERBS


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_knows_every_key(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(re.sub(rb"ExecStart=\S+", b"ExecStart=/bin/true", shipped(UNITS)[name]))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if name in line] == []


def test_init_writes_them_over_older_ones(tmp_path: Path) -> None:
    (tmp_path / UNITS[0]).write_text("of an older version")
    told = CliRunner().invoke(root, ["init", "--systemd", "--monitoring", str(tmp_path)], catch_exceptions=False).output
    assert sorted(told.splitlines()) == sorted(str(tmp_path / name) for name in (*UNITS, *MONITORING))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {**shipped(UNITS), **shipped(MONITORING)}


def test_the_page_has_each_code_with_its_cause_and_command() -> None:
    rows = {line.split("`")[1]: line for line in PAGE.splitlines() if line.startswith("| `")}
    assert list(rows) == [str(code) for code in AnomalyCode]
    for code, meaning in MEANINGS.items():
        command = meaning.mend.replace("{on}", "NAME").partition("    # ")[0]
        assert f"| {meaning.cause} | `{command}`" in rows[str(code)]


def test_the_page_names_only_verbs_that_exist() -> None:
    named = set(re.findall(r"\bgangops(?: -C \S+)? ([a-z]+)(?=[ `])", PAGE))
    assert named - set(VERBS) - {"namespaces"} == set()  # the word that follows the principal of a key


@pytest.mark.parametrize("python", ["python3.10", "python3.11", "python3.12"])
def test_the_agent_is_one_file_for_every_python_from_3_10_on(tmp_path: Path, python: str) -> None:
    """Each that is here reads a configuration with it: nothing installed, no site, no environment."""
    from reconciler.agent.zipapp import build_zipapp

    found = shutil.which(python)
    works = found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
    if not found or not works:
        pytest.skip(f"needs {python}")
    app = build_zipapp(tmp_path / "agent.pyz")
    (tmp_path / "agent.conf").write_text("[agent]\nnode = n1\n")
    done = subprocess.run(
        [found, "-I", "-S", str(app), "check", "--conf", str(tmp_path / "agent.conf")], capture_output=True, text=True,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 4
    assert "agent.servers" in done.stderr
    assert "Traceback" not in done.stderr
