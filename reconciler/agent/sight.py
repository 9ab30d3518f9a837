"""What do files of running jobs say, and is the node well? Looked at apart, for a shared file system may hang.

A checkpoint marker is only asked for its mtime, a heartbeat file for its last line. Both belong to users, so they
are opened without following links or waiting, and read to a limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reconciler.agent.conf import Conf
from reconciler.agent.hardware import hardware
from reconciler.agent.health import Course
from reconciler.agent.journal import Key

PROGRESS_LIMIT = 4096
"""Bytes of a heartbeat's last line that are read; a longer line is not reported."""


@dataclass(frozen=True)
class Watch:
    """Files of one attempt. `closely`: a checkpoint was asked for and is waited for. `owner`: the job's uid, None when
    the agent has no more rights than the job. `over`: it has ended, so that one more look is the last."""

    marker: str
    heartbeat: str
    closely: bool = False
    owner: int | None = None
    over: bool = False


@dataclass(frozen=True)
class Sight:
    """What they said last: the marker's mtime in ns, the heartbeat's last line. `final`: the attempt had ended by then;
    what its files say later is of another attempt."""

    marker: int | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    final: bool = False


class Lookout(threading.Thread):
    """Keeps `sights` fresh; calls `changed` when a marker moved."""

    def __init__(self, watches: Callable[[], Mapping[Key, Watch]], changed: Callable[[], None]) -> None:
        super().__init__(name="lookout", daemon=True)
        self.sights: dict[Key, Sight] = {}
        self._watches = watches
        self._changed = changed

    def run(self) -> None:
        while True:
            watches = self._watches()
            for key, watch in watches.items():
                before = self.sights.get(key)
                if before is not None and before.final:
                    continue
                seen = Sight(marker_time(watch.marker), last_line(watch.heartbeat, watch.owner), watch.over)
                self.sights[key] = seen
                if before is None or before.marker != seen.marker:
                    self._changed()
            for key in [key for key in self.sights if key not in watches]:
                del self.sights[key]
            time.sleep(0.1 if any(watch.closely for watch in watches.values()) else 0.5)


def marker_time(path: str) -> int | None:
    """When the marker was last written, in ns; None when there is none."""
    if not path:
        return None
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - asked twice a second for each attempt
    except (OSError, ValueError):
        return None


def last_line(path: str, owner: int | None = None) -> dict[str, Any]:
    """The last line of a heartbeat file, when it is a JSON object that is not too long; else {}.

    A line that is just being written does not count; the one before it does. A file that is not its `owner`'s is not
    read: what root can read and the job cannot would be told to everyone.
    """
    if not path:
        return {}
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return {}
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or owner not in (None, status.st_uid):
            return {}
        tail = os.pread(fd, PROGRESS_LIMIT + 2, max(0, status.st_size - PROGRESS_LIMIT - 2))
    except OSError:
        return {}
    finally:
        os.close(fd)
    lines = tail.rstrip(b"\n").split(b"\n")
    for line in reversed(lines if tail.endswith(b"\n") else lines[-2:]):
        if len(line) > PROGRESS_LIMIT:
            return {}
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
            return found if isinstance(found, dict) else {}
        if tail.endswith(b"\n"):
            return {}
    return {}


class Checkup(threading.Thread):
    """Keeps `hardware` and `unhealthy` fresh; calls `changed` when one of them changed.

    A hook of the site that failed cordons the node with its reason, and is asked again until it succeeds.
    """

    def __init__(self, conf: Conf, is_ours: Callable[[int], bool], changed: Callable[[], None]) -> None:
        super().__init__(name="checkup", daemon=True)
        self.conf = conf
        self._course = Course(log=Path("/dev/kmsg"), reset_mark=conf.state_dir / "gpus-reset")
        self.hardware = hardware(conf.node, conf.simulation, is_ours, self._course)
        self._is_ours = is_ours
        self._changed = changed
        self._failed: dict[str, tuple[tuple[str, ...], str]] = {}

    @property
    def unhealthy(self) -> str:
        """The first failing hook and what it said; "" when the node is well."""
        return "; ".join(f"{name}: {reason}" for name, (_, reason) in sorted(self._failed.items()))

    def run(self) -> None:
        hooks, next_health = self.conf.hooks, 0.0
        while True:
            if time.monotonic() >= next_health:
                next_health = time.monotonic() + hooks.health_seconds
                failed = tuple(self._failed.items())  # at once: hooks that other threads run come and go in it
                again = {name: command for name, (command, _) in failed}
                for name, command in {"health": hooks.health, **again}.items():
                    self.hook(name, command, {})
            found = hardware(self.conf.node, self.conf.simulation, self._is_ours, self._course)
            if found != self.hardware:
                self.hardware = found
                self._changed()
            time.sleep(1 if self.conf.simulation else 10)

    def hook(self, name: str, command: tuple[str, ...], about: Mapping[str, str]) -> str:
        """Run one of the site's hooks; why it failed, "" when it did not or there is none."""
        if not command:
            return ""
        reason, environment = "", {**os.environ, "GANGOPS_NODE": self.conf.node, **about}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, timeout=self.conf.hooks.timeout_seconds, check=False
            )
            if done.returncode != 0:
                said = (done.stdout + done.stderr).decode("utf-8", "replace").strip().splitlines()
                reason = said[-1][:200] if said else f"exit status {done.returncode}"
        except (OSError, subprocess.TimeoutExpired) as err:
            reason = str(err)[:200]
        before = self.unhealthy
        if reason:
            self._failed[name] = (command, reason)
        else:
            self._failed.pop(name, None)
        if self.unhealthy != before:
            self._changed()
        return reason
