"""Who stands beside one launched process while agents come and go? A shim: it outlives them and tells what it saw.

`main` is the launcher: single-threaded, it forks one shim for each process of a spec and ends. A shim leads its own
session, is the reaper of everything its process leaves behind (so "no child left" means that nothing is left), pipes
output into the log, keeps the facts in a status file, ends the work alone at its deadline or when its lease runs
out, and takes commands from a FIFO: `signal N`, `term`, `kill`, `deadline BOOTTIME_NS|-`, `shell ID` (a program of a
person on a terminal, beside the process and under the same bounds; asked for in the file `shell-ID`).

What ought to happen is the agent's business (`attempts`); what to launch is `launch`'s.
"""

# Not pathlib: it would double what a shim imports, and there is one shim for each rank.
# ruff: noqa: PTH105, PTH108, PTH110, PTH118, PTH120, PTH123

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

from reconciler.agent import cgroups, proc
from reconciler.agent.inside import work_behind
from reconciler.agent.rank import DEADLY, be_rank, be_shell, prctl, set_oom_score
from reconciler.agent.rotate import Log

SECOND = 1_000_000_000
RETRY = SECOND // 2
"""Between two attempts at something that may fail for a while: a kill, an unheard signal, a full disk."""
CLEAR_AWAY = 5 * SECOND
"""How long what wraps a container may outlive what was killed in it; agents call nothing stuck before."""

_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 65536
_GUESTS_SECONDS = 0.05


def main(arguments: list[str]) -> int:
    """Launch every process of the spec that has no status file yet; 0 when each has its shim."""
    # Held by launcher and shims until each shim has written its first status: who gets it next sees all of them.
    lock = os.open(os.path.join(os.path.dirname(arguments[0]), "launch.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(arguments[0], encoding="utf-8") as file:
            spec = json.load(file)
    except (BlockingIOError, FileNotFoundError):  # another launcher is at it, or the launch was cancelled
        return 0
    gc.freeze()  # the collector's marks would copy every page that shims share
    for launched in spec["processes"]:
        if os.path.exists(_path(spec, launched, "status")):
            continue
        if os.fork() == 0:
            _be_shim(spec, launched, lock)
    return 0


def _be_shim(spec: dict[str, Any], launched: dict[str, Any], lock: int) -> NoReturn:
    status = 1
    try:
        os.setsid()
        Shim(spec, launched).run(lock)
        status = 0
    except BaseException:  # noqa: BLE001 - the last thing a shim can do is say why it ended
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _path(spec: dict[str, Any], launched: dict[str, Any], kind: str) -> str:
    return os.path.join(spec["folder"], f"{launched['rank']}.{kind}")


class Shim:
    """One launched process from fork to the last of its descendants."""

    def __init__(self, spec: dict[str, Any], launched: dict[str, Any]) -> None:
        self.spec = spec
        self.launched = launched
        self.main = 0
        self.reaped = False
        self.empty = False
        self.error = b""
        self.term_at: int | None = None
        self.kill_at: int | None = None
        self.deadline: int | None = spec["deadline"]
        self.lease: int | None = None
        self.shells: dict[int, str] = {}
        self.shutting_down = False
        self.unheard = 0
        self.retry_at: int | None = None
        self.write_at: int | None = None
        self.log = Log(launched["log"], spec["logs"], launched["uid"], launched["gid"])
        pid = os.getpid()
        self.facts: dict[str, object] = {
            "rank": launched["rank"], "digest": spec["digest"], "boot": spec["boot"], "shim": pid, "shimStart": proc.start_time(pid),
            "cgroup": _cgroup_folder(spec, launched),
        }  # fmt: skip

    # --- life ---------------------------------------------------------------------------------------------------

    def run(self, lock: int) -> None:
        """Start the process, watch it until nothing of it is left, and leave its exit status behind."""
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        set_oom_score(-500)
        wake_in, wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._note_shutdown)
        for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        commands = self._open_commands()
        if not self._write():  # a rank that no agent could see must not start
            raise OSError(errno.ENOSPC, "the first status cannot be written")
        os.close(lock)
        output, failure = self._start()
        self._watch(output, failure, commands, wake_in)
        self._finish()

    def _note_shutdown(self, *_: object) -> None:
        """No more than noted: in the midst of a status that is being written it must not begin another."""
        self.shutting_down = True

    def _open_commands(self) -> int:
        path = _path(self.spec, self.launched, "ctl")
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Read and write: without a writer of its own the FIFO would report end of file after each command.
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def _start(self) -> tuple[int, int]:
        output, output_end = os.pipe2(os.O_CLOEXEC)
        failure, failure_end = os.pipe2(os.O_CLOEXEC)
        self.main = _fork()
        if self.main == 0:
            be_rank(self.spec, self.launched, output_end, failure_end)
        with contextlib.suppress(OSError):  # the child does so as well: whoever comes first, it is ended as a group
            os.setpgid(self.main, self.main)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, DEADLY)
        os.close(output_end)
        os.close(failure_end)
        os.set_blocking(output, False)
        os.set_blocking(failure, False)
        self.facts.update(pid=self.main, start=proc.start_time(self.main))
        return output, failure

    def _watch(self, output: int, failure: int, commands: int, wake: int) -> None:
        poller = select.poll()
        for fd in (output, failure, commands, wake):
            poller.register(fd, select.POLLIN)
        while not self.empty:
            for fd, _ in poller.poll(self._patience()):
                if fd == wake:
                    _read(wake)
                elif fd == commands:
                    for line in (_read(commands) or b"").decode("ascii", "replace").splitlines():
                        self._obey(line.split())
                elif (content := _read(fd)) == b"":
                    poller.unregister(fd)
                    if fd == failure:
                        self._started()
                elif content and fd == failure:
                    self.error += content
                elif content:
                    self.log.write(content)
            self._reap()
            self._keep_time()
        while content := _read(output):
            self.log.write(content)
        while content := _read(failure):  # it may have died before we looked
            self.error += content

    def _started(self) -> None:
        """The failure pipe closed: the process was executed, or said why not."""
        if not self.error:
            self.facts["startedAt"] = time.time_ns()
        self._write()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.empty = True
                return
            if pid == 0:
                return
            if pid in self.shells:
                self._close_shell(pid, os.waitstatus_to_exitcode(status))
            if pid == self.main:
                self.reaped = True
                code = os.waitstatus_to_exitcode(status)
                self.facts.update(exit=128 - code if code < 0 else code, exitAt=time.time_ns(), **_used())
                self._write()
                if self.term_at is None and proc.children_of(os.getpid()):
                    self._end("", int(self.spec["killSeconds"]))  # what it left behind must go too

    def _see_guests_off(self) -> None:
        """People who came by ssh (`pam`) are in the rank's cgroups and no children of ours: they end with it, for its GPUs
        are not free as long as they can use them."""
        while self.launched["cgroup"] and cgroups.members(self.spec["cgroups"], self.launched["cgroup"]):
            cgroups.kill(self.spec["cgroups"], self.launched["cgroup"])
            time.sleep(_GUESTS_SECONDS)
            if "killedAt" not in self.facts:
                self.facts["killedAt"] = proc.boottime()
                self._write()

    def _finish(self) -> None:
        self._see_guests_off()
        if not self.error:
            self.facts.setdefault("startedAt", self.facts.get("exitAt", 0))
        else:
            self.facts["error"] = self.error.decode("utf-8", "replace")[:400]
            self.log.write(b"gangops: this rank could not be started: " + self.error[:400] + b"\n")
        self.facts.update(_used(), gone=1)
        self.log.close()
        while not self._write(durable=True):  # a full disk must not lose an exit status
            time.sleep(RETRY / SECOND)
        with contextlib.suppress(OSError):
            os.unlink(_path(self.spec, self.launched, "ctl"))
        if self.launched["cgroup"]:
            cgroups.leave(self.spec["cgroups"], self.launched["cgroup"])

    # --- commands and time --------------------------------------------------------------------------------------

    def _obey(self, words: list[str]) -> None:
        with contextlib.suppress(ValueError, IndexError):
            if words[0] == "signal":
                self.unheard = int(words[1])
                self.facts["signalledAt"] = time.time_ns()
                self._signal_listeners()
                self._write()
            elif words[0] == "term":
                self._end("order", int(self.spec["killSeconds"]))
            elif words[0] == "kill":
                self._end("order", 0)
            elif words[0] == "shell":
                self._open_shell(f"{int(words[1], 16):032x}")
            elif words[0] == "deadline":
                self.deadline = None if words[1] == "-" else int(words[1])

    def _open_shell(self, name: str) -> None:
        """Start what a person asked for; how it ended will stand in `shell-NAME.exit`."""
        path = os.path.join(self.spec["folder"], f"shell-{name}")
        try:
            with open(path, encoding="utf-8") as file:
                asked = json.load(file)
            os.unlink(path)
        except (OSError, ValueError):
            return
        if not self.main or self.reaped or self.term_at is not None:
            return
        wrappers = self.launched["wrappers"]
        work = work_behind(wrappers, self.shells) if wrappers else 0
        try:
            pid = _fork()
        except OSError:  # no process is left on the node: the job goes on
            _leave_status(path, 126)  # as of a command that could not run
            return
        if pid == 0:
            be_shell(self.spec, self.launched, asked, work)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, DEADLY)
        self.shells[pid] = path
        self.facts["shells"] = len(self.shells)
        self._write()

    def _close_shell(self, pid: int, code: int) -> None:
        path = self.shells.pop(pid)
        _leave_status(path, 128 - code if code < 0 else code)
        self.facts["shells"] = len(self.shells)
        self._write()

    def _patience(self) -> int:
        """Milliseconds until something is due. A lease is looked at again at its old end: it may have been renewed."""
        due = [t for t in (self.kill_at, self.retry_at, self.write_at, self.deadline, self.lease) if t is not None]
        if self.spec["lease"] and self.lease is None and self.kill_at is None:
            return 0
        return max(0, (min(due) - proc.boottime()) // 1_000_000 + 1) if due else -1

    def _keep_time(self) -> None:
        now = proc.boottime()
        if self.shutting_down and self.term_at is None:
            self._end("shim", int(self.spec["killSeconds"]))
        if self.kill_at is not None and now >= self.kill_at:
            self._signal_all(signal.SIGKILL)
            self.kill_at = now + RETRY  # a fork may have slipped through
            if "killedAt" not in self.facts:
                self.facts["killedAt"] = now
                self._write()
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self._end("deadline", int(self.spec["killSeconds"]))
        if self.spec["lease"] and (self.lease is None or now >= self.lease):
            self.lease = _lease_end(self.spec["lease"])
            if now >= self.lease:
                self.spec["lease"] = ""
                self.lease = None
                self._end("lease", 0)
        if self.retry_at is not None and now >= self.retry_at:
            self._signal_listeners()
        if self.write_at is not None and now >= self.write_at:
            self._write()

    def _end(self, cause: str, seconds: int) -> None:
        """SIGTERM to everything now, SIGKILL after `seconds`; a later call can only bring the kill nearer."""
        now = proc.boottime()
        self.unheard, self.retry_at = 0, None
        if self.term_at is None:
            self.term_at = now
            self.facts["termAt"] = now
            if cause and not self.reaped:
                self.facts["cause"] = cause
            for pid in self.shells:  # an interactive one ignores SIGTERM
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGHUP)
            if seconds:
                self._signal_all(signal.SIGTERM)
            self._write()
        self.kill_at = min(now + seconds * SECOND, self.kill_at if self.kill_at is not None else 1 << 62)

    # --- signals ------------------------------------------------------------------------------------------------

    def _signal_all(self, signum: int) -> None:
        spared = self.launched["wrappers"] if self._spares_wrappers(signum) else ()
        if signum == signal.SIGKILL and self.launched["cgroup"] and not spared:
            cgroups.kill(self.spec["cgroups"], self.launched["cgroup"])
        as_group = self.main and not self.reaped and not (spared and signum == signal.SIGKILL)
        if as_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.main, signum)
        for pid in proc.descendants_of(os.getpid()):
            if not (as_group and _group_of(pid) == self.main) and proc.name_of(pid) not in spared:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signum)

    def _spares_wrappers(self, signum: int) -> bool:
        """What wraps a container ends with it and clears away what is left of it, unless that takes too long."""
        killed = self.facts.get("killedAt")
        return signum != signal.SIGKILL or not isinstance(killed, int) or proc.boottime() < killed + CLEAR_AWAY

    def _signal_listeners(self) -> None:
        """Deliver a request to checkpoint to the topmost processes that have a handler for it.

        Launchers and shells in between have none, and would die of it; so nobody gets it before someone listens.
        What wraps a container catches every signal and means none of them: the work is beneath it.
        """
        waiting, heard = [self.main, *self._orphans()], False
        while waiting and not self.reaped:
            pid = waiting.pop()
            if proc.name_of(pid) not in self.launched["wrappers"] and proc.listens_to(pid, self.unheard):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, self.unheard)
                    heard = True
            else:
                waiting.extend(proc.children_of(pid))
        self.retry_at = None if heard or self.reaped else proc.boottime() + RETRY
        if heard:
            self.unheard = 0
            self.facts["heardAt"] = time.time_ns()
            self._write()

    def _orphans(self) -> list[int]:
        """What a container's runtime left to us: podman's monitor, with the work beneath it, leaves its parent."""
        if not self.launched["wrappers"]:
            return []
        return [pid for pid in proc.children_of(os.getpid()) if pid != self.main and pid not in self.shells]

    # --- status -------------------------------------------------------------------------------------------------

    def _write(self, *, durable: bool = False) -> bool:
        """Replace the status file and wake the agent; False when the disk would not have it."""
        path = _path(self.spec, self.launched, "status")
        try:
            with open(path + ".new", "w", encoding="utf-8") as file:
                file.write("".join(f"{key}={_one_line(value)}\n" for key, value in self.facts.items()))
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(path + ".new", path)
        except OSError as err:
            self.write_at = proc.boottime() + RETRY
            return err.errno == errno.ENOENT  # the folder was removed: nobody is left to read it
        self.write_at = None
        with contextlib.suppress(OSError):
            fd = os.open(self.spec["events"], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(fd, b".")
            os.close(fd)
        return True


def _fork() -> int:
    """Fork with what ends a process blocked. A child that is told to end before it has become what it is to be would
    answer as the shim it still is, and go on; blocked, the signal waits until the child is itself (`rank`)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, DEADLY)
    try:
        return os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, DEADLY)
        raise


def _leave_status(path: str, code: int) -> None:
    with contextlib.suppress(OSError), open(path + ".exit", "w", encoding="ascii") as file:
        file.write(str(code))


def _used() -> dict[str, int]:
    """CPU time of all that was reaped, and the most memory that one process of it had."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"cpuMs": int((used.ru_utime + used.ru_stime) * 1000), "peakBytes": used.ru_maxrss * 1024}


def _cgroup_folder(spec: dict[str, Any], launched: dict[str, Any]) -> str:
    """One of the rank's cgroups, for an agent that looks for what a dead shim left; all hold the same processes."""
    return os.path.join(spec["cgroups"][0]["root"], launched["cgroup"]) if launched["cgroup"] else ""


def _lease_end(path: str) -> int:
    """Boottime at which the lease ends; a lease that cannot be read has ended."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _read(fd: int) -> bytes | None:
    """What is there; b"" at the end of the file, None when nothing is there now."""
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _one_line(value: object) -> str:
    return " ".join(str(value).split())
