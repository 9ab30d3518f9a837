"""Files that operators put beside GangOps: systemd units, alerts for Prometheus, a dashboard for Grafana.

They ship with the package as they are, so that a version and its units, metrics and alerts belong together.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

UNITS = ("gangops-reconciler.service", "gangops-agent.service")
MONITORING = ("prometheus-alerts.yml", "grafana-dashboard.json")


def shipped(names: tuple[str, ...]) -> Mapping[str, bytes]:
    """The content of these files, by name."""
    folder = files(__name__)
    return {name: (folder / name).read_bytes() for name in names}
