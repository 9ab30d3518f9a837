"""How do an attempt's processes get started? A launcher is given a spec, forks a shim for each process, and ends.

Launchers are children of ours only until they end; what they started belongs to the shims, and is read from their
files. Whether to launch is decided elsewhere, and written down first.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from reconciler.agent.conf import Conf
from reconciler.agent.folder import AttemptFolder
from reconciler.agent.journal import Key
from reconciler.agent.launch import launcher_command, spec_of
from reconciler.agent.limits import account_of, log_folder
from reconciler.agent.prepare import hierarchies_of, site_of
from reconciler.wire import AttemptOrder


class Launchers:
    """The launchers of this agent, by attempt; `hierarchies` are the cgroups ranks are put into."""

    def __init__(self, conf: Conf, events: Path, boot: str) -> None:
        self.hierarchies = hierarchies_of(conf)
        self.under_way: dict[Key, subprocess.Popen[bytes]] = {}
        self._conf, self._events, self._boot = conf, events, boot

    def write_spec(self, order: AttemptOrder, folder: AttemptFolder, deadline: int | None) -> Path:
        """What a launcher will read; `deadline` in boottime ns. Raises OSError, NotAllowed."""
        account = account_of(order, self._conf.limits)
        site = site_of(order, account, self._conf, self._events, self._boot, self.hierarchies)
        logs = log_folder(order, self._conf)
        return folder.write_spec(spec_of(order, account, site, folder=folder.path, logs=logs, deadline=deadline))

    def start(self, key: Key, spec: Path) -> None:
        """Start a launcher for a spec that was written."""
        with (spec.parent / "launcher.err").open("ab") as errors:
            self.under_way[key] = subprocess.Popen(
                launcher_command(spec),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )

    def is_at_work(self, key: Key, folder: AttemptFolder, expected: int) -> tuple[bool, str]:
        """Whether a launcher, ours or a dead agent's, is still at it; and why ours failed to start as many as expected."""
        launcher = self.under_way.get(key)
        if launcher is not None and launcher.poll() is None:
            return True, ""
        if folder.is_launching():
            return True, ""
        if launcher is None or len(folder.shims().facts) == expected:
            return False, ""
        return False, f"the launcher ended with status {launcher.returncode} and left ranks unstarted"

    def forget(self, key: Key) -> None:
        """Nothing of the attempt is left to launch."""
        self.under_way.pop(key, None)
