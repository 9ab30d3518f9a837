"""A real loop over a real remote, and somebody who is told: every kind of notice, every fault of the receiver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from reconciler.errors import UsageError
from reconciler.model.units import HOUR, MINUTE, SECOND
from reconciler.runtime.notices.events import Moment, Notice, NoticeKind
from reconciler.runtime.notices.hooks import Command, Webhook, key_in
from reconciler.runtime.notices.outbox import Outbox
from reconciler.store.failpoints import KILLED, VARIABLE
from tests.engines.fake import FakeCluster
from tests.runtime import driver
from tests.runtime.lab import Desk, Lab, job_file, job_text, jobs
from tests.runtime.notices.receiver import HANGS, SECRET, Receiver, served

ROOT = Path(__file__).parents[3]


def told(desk: Desk) -> bool:
    assert desk.reconciler.teller is not None
    return desk.reconciler.teller.tell()


def left(desk: Desk) -> int:
    """Commits that the first hook was not fully told of."""
    assert desk.reconciler.teller is not None
    return len(desk.reconciler.teller.couriers[0].outbox.entries())


def counted(desk: Desk, result: str, hook: str = "webhook") -> float:
    labels = {"hook": hook, "result": result}
    return desk.reconciler.metrics.registry.get_sample_value("gangops_notifications_total", labels) or 0


# --- what is told ---


def test_a_job_s_life_is_told_in_order(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    lab.begin(**jobs("sft", gpus=16))
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    desk.engine.cluster.finish("nlp/sft")
    desk.settle()

    assert told(desk)

    assert receiver.of("nlp/sft") == ["Started", "Finished"]
    started, finished = receiver.taken
    assert (started["attempt"], started["queue"], started["details"]["gpus"]) == (1, "nlp", 16)
    assert started["details"]["where"] == "r01 gpu-[001-002]"
    assert started["commit"] in {meta.id for meta in lab.log()}
    assert finished["details"]["outcome"] == "Succeeded"
    assert left(desk) == 0
    assert counted(desk, "told") == 2


def test_who_gives_way_is_told_by_whom_at_what_price_and_until_when(
    lab: Lab, webhook: Webhook, receiver: Receiver
) -> None:
    lab.begin(**{job_file("low"): job_text("low", 32, more="  timeLimit: 10h\n")})
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    lab.clock.advance(HOUR)
    high = "  priorityClass: production\n  timeLimit: 2h\n"
    lab.desire({job_file("high"): job_text("high", 32, more=high)})
    desk.settle()
    desk.engine.cluster.finish("nlp/high")
    desk.settle()
    told(desk)

    assert receiver.of("nlp/low") == ["Started", "Preempted", "Resumed"]
    preempted = next(one for one in receiver.taken if one["event"] == "Preempted")
    assert preempted["details"]["by"] == "nlp/high"
    assert preempted["details"]["cause"] == "Preempted"
    # It never wrote a checkpoint: all its work since the start is lost.
    assert 32 * 3600 <= preempted["details"]["lostGpuSeconds"] <= 32 * 3660
    # The preemptor may run for two hours, and starts within a minute or so.
    decided = next(m for m in lab.log() if m.id == preempted["commit"]).committed_at
    hours = (parsed(preempted["details"]["resumesAt"]) - decided) / HOUR
    assert 2 <= hours <= 2.2
    assert receiver.of("nlp/high") == ["Started", "Finished"]


def parsed(text: str) -> int:
    from reconciler.documents.quantities import parse_instant

    return parse_instant(text)


def test_a_failed_rank_is_told_with_its_node_its_exit_code_and_its_last_words(
    lab: Lab, webhook: Webhook, receiver: Receiver, tmp_path: Path
) -> None:
    from reconciler.runtime.notices.tail import tail_of

    logs = tmp_path / "logs/nlp/sft/1"
    logs.mkdir(parents=True)
    for rank in range(16):
        (logs / f"{rank}.log").write_text(f"step {rank}\n")
    (logs / "11.log").write_text("step 1\rstep 2\nTraceback (most recent call last):\nRuntimeError: \x1b[31mNaN\n")
    lab.begin(**jobs("sft", gpus=16))
    desk = lab.desk(hooks=[replace(webhook, tail=tail_of(tmp_path / "logs"))])
    desk.settle()
    desk.engine.cluster.finish("nlp/sft", 3, node="gpu-002")
    desk.settle()
    told(desk)

    failed = next(one for one in receiver.taken if one["event"] == "Failed")
    assert (failed["details"]["node"], failed["details"]["exitCode"]) == ("gpu-002", 3)
    assert failed["details"]["cause"] == "RankFailed"
    assert failed["details"]["ranks"] == [str(rank) for rank in range(8, 16)]
    assert failed["lastLines"] == [
        "11 | step 2", "11 | Traceback (most recent call last):", "11 | RuntimeError:  [31mNaN",
    ]  # fmt: skip
    assert receiver.of("nlp/sft")[:2] == ["Started", "Failed"]


def test_a_node_that_differs_from_what_was_declared_is_told_once(
    lab: Lab, webhook: Webhook, receiver: Receiver
) -> None:
    lab.begin(**jobs("sft", gpus=8))
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    held = next(iter(desk.engine.cluster.running("nlp/sft")))
    desk.engine.cluster.break_gpu(held, 7, "Xid 79")
    for _ in range(5):
        lab.clock.advance(MINUTE)
        desk.round()
    told(desk)

    drifted = [one for one in receiver.taken if one["event"] == "NodeDrifted"]
    assert [(one["node"], one["details"]["codes"]) for one in drifted] == [(held, ["GpuFaulty"])]
    assert drifted[0]["details"]["heldBy"] == ["nlp/sft"]


def test_a_start_that_is_put_off_past_its_date_is_told(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    from reconciler.documents.quantities import print_instant

    first = job_text("first", 32, more="  timeLimit: 2h\n  priorityClass: production\n")
    lab.begin(**{job_file("first"): first})
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    due = print_instant(lab.clock.now() + 3 * HOUR)
    waits = f'  timeLimit: 1h\n  startBefore: "{due}"\n'
    lab.desire({job_file("waits"): job_text("waits", 32, more=waits)})
    desk.settle()
    told(desk)
    assert "ForecastSlipped" not in receiver.of("nlp/waits")

    later = job_text("before", 32, more="  timeLimit: 5h\n  priorityClass: production\n")
    lab.desire({job_file("before"): later})
    desk.settle()
    told(desk)

    slipped = [one for one in receiver.taken if one["event"] == "ForecastSlipped"]
    assert [one["job"] for one in slipped] == ["nlp/waits"]
    assert parsed(slipped[0]["details"]["to"]) - parsed(slipped[0]["details"]["from"]) == 5 * HOUR
    assert parsed(slipped[0]["details"]["startBefore"]) == parsed(due)


def test_what_happens_to_tasks_at_once_is_told_once(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    lab.begin(**{job_file("sweep"): job_text("sweep", 4, more="  array: {count: 8}\n")})
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    desk.engine.cluster.finish("nlp/sweep.3")
    desk.settle()
    told(desk)
    started, finished = receiver.taken
    assert (started["job"], started["tasks"], started["told"][:8]) == ("nlp/sweep", "0-7", "8 tasks:")
    assert (finished["job"], "tasks" in finished) == ("nlp/sweep.3", False)


def test_only_what_was_asked_for_is_told(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    lab.begin(**jobs("sft"))
    desk = lab.desk(hooks=[replace(webhook, events=frozenset({NoticeKind.FINISHED}))])
    desk.settle()
    desk.engine.cluster.finish("nlp/sft")
    desk.settle()
    told(desk)
    assert [one["event"] for one in receiver.taken] == ["Finished"]


# --- faults of the receiver ---


@pytest.mark.parametrize("fault", [500, 503, 429, 408], ids=str)
def test_what_may_heal_is_tried_again_and_arrives_once(
    lab: Lab, webhook: Webhook, receiver: Receiver, fault: int
) -> None:
    lab.begin(**jobs("sft"))
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    receiver.script = [fault]

    assert told(desk)

    assert receiver.of("nlp/sft") == ["Started"]
    assert [one["id"] for one in receiver.asked] == [receiver.taken[0]["id"]] * 2


def test_an_outage_loses_nothing_and_keeps_the_order(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    lab.begin(**jobs("a", "b"))
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    receiver.script = [500] * 4

    assert not told(desk)
    assert not told(desk)
    desk.engine.cluster.finish("nlp/a")
    desk.settle()
    assert receiver.taken == []
    assert counted(desk, "late") == 2
    assert "notification-late" in desk.events()

    assert told(desk)
    assert receiver.of("nlp/a") == ["Started", "Finished"]
    assert receiver.of("nlp/b") == ["Started"]
    generations = [one["generation"] for one in receiver.taken]
    assert generations == sorted(generations)


def test_nobody_listens_then_somebody_does(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    gone = Receiver()
    with served(gone):
        pass
    hook = Webhook(url=gone.url, secret=tmp_path / "secret", now=lab.clock.now)
    lab.begin(**jobs("sft"))
    desk = lab.desk(hooks=[hook])
    desk.settle()
    assert not told(desk)
    with served(gone, port=gone.port):
        assert told(desk)
    assert gone.of("nlp/sft") == ["Started"]


def test_a_receiver_that_hangs_is_left_after_its_time(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    lab.begin(**jobs("sft"))
    desk = lab.desk(hooks=[replace(webhook, seconds=0.05)])
    desk.settle()
    receiver.script = [HANGS, HANGS]
    assert not told(desk)
    assert left(desk) == 1


def test_what_is_refused_is_not_asked_again_and_holds_up_nobody(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    lab.begin(**jobs("a", "b"))
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    receiver.script = [410]
    assert told(desk)
    assert len(receiver.asked) == 2
    assert [one["job"] for one in receiver.taken] == ["nlp/b"]
    assert counted(desk, "refused") == 1


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirection_is_not_followed(lab: Lab, webhook: Webhook, receiver: Receiver, status: int) -> None:
    lab.begin(**jobs("sft"))
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    receiver.script = [status]
    assert told(desk)
    assert receiver.taken == []
    assert counted(desk, "refused") == 1


def test_after_a_day_it_is_given_up_and_said(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    lab.begin(**jobs("a"))
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    receiver.script = [500] * 2
    lab.clock.advance(24 * HOUR + SECOND)
    assert told(desk)
    assert receiver.taken == []
    assert left(desk) == 0
    assert [fields["about"] for event, fields in desk.told if event == "notification-dropped"] == ["nlp/a"]


def test_no_log_line_has_the_path_or_the_secret(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    lab.begin(**jobs("a"))
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    receiver.script = [500, 500]
    told(desk)
    text = repr(desk.told)
    assert "127.0.0.1" in text
    assert "s3cret-path" not in text
    assert SECRET.decode() not in text


# --- faults of ours ---


def test_a_restart_tells_what_was_not_told_and_nothing_twice(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    lab.begin(**jobs("a", "b"))
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    receiver.script = [204, 500, 500]  # a is told, b is not
    assert not told(desk)
    taken = list(receiver.taken)

    again = lab.desk(cluster=desk.engine.cluster, hooks=[webhook])
    again.settle()
    assert told(again)

    assert receiver.of("nlp/a") == receiver.of("nlp/b") == ["Started"]
    assert receiver.taken[: len(taken)] == taken


def test_one_taken_before_a_crash_is_told_again_with_the_same_id(
    lab: Lab, webhook: Webhook, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.begin(**jobs("a"))
    desk = lab.desk(hooks=[webhook])
    desk.settle()
    with monkeypatch.context() as patched:
        patched.setattr(Outbox, "settle", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            told(desk)
    again = lab.desk(cluster=desk.engine.cluster, hooks=[webhook])
    again.settle()
    told(again)
    assert receiver.of("nlp/a") == ["Started", "Started"]
    assert len({one["id"] for one in receiver.taken}) == 1


@pytest.mark.parametrize("failpoint", ["before-commit", "after-commit", "after-push", "after-push-response"])
def test_killed_anywhere_around_the_push_every_notice_arrives(
    lab: Lab, webhook: Webhook, receiver: Receiver, failpoint: str
) -> None:
    """Each round is made by a process that dies at the failpoint and then by one that is let live."""
    shutil.copy(lab.writer.signer.key, lab.folder / "signing")
    lab.begin(**jobs("sft", gpus=32))
    driver.save(lab.folder, lab.clock, FakeCluster(lab.clock))
    for _ in range(4):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: failpoint, driver.HOOK: receiver.url}
        done = subprocess.run(
            [sys.executable, "-m", "tests.runtime.driver", str(lab.folder)],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode in {0, KILLED}, done.stderr
        if done.returncode == 0:
            break
        lab.clock, cluster = driver.load(lab.folder)
        desk = lab.desk(cluster=cluster, hooks=[replace(webhook, now=lab.clock.now)])
        desk.round()
        told(desk)
        driver.save(lab.folder, lab.clock, cluster)
    assert receiver.of("nlp/sft") == ["Started"]
    assert Outbox(lab.folder / "one/notices/webhook").entries() == []


def test_two_reconcilers_tell_each_their_own(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    lab.begin(**jobs("a"))
    one = lab.desk("one", hooks=[webhook])
    two = lab.desk("two", cluster=one.engine.cluster, hooks=[webhook])
    for _ in range(4):
        one.round()
        two.round()
    told(one)
    told(two)
    assert receiver.of("nlp/a") == ["Started"]


def test_a_commit_that_lost_the_race_is_told_by_nobody(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    lab.begin()
    one, two = lab.desk("one", hooks=[webhook]), lab.desk("two", hooks=[webhook])
    one.settle()
    two.settle()
    lab.desire(jobs("a"))
    real = two.reconciler.teller
    assert real is not None
    raced = list[int]()

    def first_the_other(generation: int, commit: str) -> None:
        type(real).expects(real, generation, commit)
        if not raced:
            raced.append(generation)
            one.round()

    real.expects = first_the_other  # type: ignore[method-assign]  # between deciding and pushing
    two.round()
    assert raced
    assert "lost-race" in two.events()
    entries = real.couriers[0].outbox.entries()
    assert all(entry.commit in {meta.id for meta in lab.log()} for entry in entries)


def test_a_full_disk_stops_no_round(
    lab: Lab, webhook: Webhook, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.begin(**jobs("a"))
    desk = lab.desk(hooks=[webhook])
    monkeypatch.setattr(Outbox, "expect", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert desk.settle() == [1, 2, 3]
    assert "notification-failed" in desk.events()


@dataclass(frozen=True)
class Listener:
    """A hook that only remembers, and says when it did."""

    name: str = "listener"
    heard: list[str] = field(default_factory=list)
    news: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def wants(self, notice: Notice) -> bool:
        return notice.job is not None

    def send(self, notice: Notice, moment: Moment) -> None:
        assert moment.commit == notice.commit
        self.heard.append(str(notice.kind))
        self.news.release()


def test_a_hook_that_hangs_slows_no_round_and_no_other_hook(lab: Lab, webhook: Webhook, receiver: Receiver) -> None:
    listener = Listener()
    receiver.script = [HANGS]
    lab.begin(**jobs("a"))
    desk = lab.desk(hooks=[replace(webhook, seconds=300), listener])
    teller = desk.reconciler.teller
    assert teller is not None
    teller.start()
    try:
        assert desk.settle() == [1, 2, 3]
        desk.engine.cluster.finish("nlp/a")
        assert desk.settle() == [4]
        assert all(listener.news.acquire(timeout=60) for _ in range(2))
        assert listener.heard == ["Started", "Finished"]
        assert teller.couriers[0].outbox.entries()
    finally:
        receiver.over.set()
        teller.stop()


# --- the command ---


def test_a_command_gets_one_notice_on_stdin_each_time(lab: Lab, tmp_path: Path) -> None:
    out = tmp_path / "told"
    script = f'cat >> {out}; echo " $GANGOPS_EVENT $GANGOPS_JOB" >> {out}'
    lab.begin(**jobs("a"))
    desk = lab.desk(hooks=[Command(run=("/bin/sh", "-c", script))])
    desk.settle()
    assert told(desk)
    (line,) = out.read_text().splitlines()
    assert line.startswith('{"formatVersion": "1.0", "kind": "Notification", "id": "')
    assert line.endswith("} Started nlp/a")


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (("/bin/sh", "-c", "echo no mail server >&2; exit 75"), "/bin/sh ended with 75: no mail server"),
        (("/none/such",), "/none/such: No such file or directory"),
        (("/bin/sleep", "30"), "/bin/sleep did not end within 0.05 s"),
    ],
)
def test_a_command_that_fails_is_tried_again(lab: Lab, run: tuple[str, ...], why: str) -> None:
    lab.begin(**jobs("a"))
    desk = lab.desk(hooks=[Command(run=run, seconds=0.05 if run[0] == "/bin/sleep" else 30)])
    desk.settle()
    assert not told(desk)
    assert [fields["why"] for event, fields in desk.told if event == "notification-late"] == [why]


# --- secrets ---


@pytest.mark.parametrize(
    ("content", "key"),
    [(b"0123456789abcdef\n", b"0123456789abcdef"), (b"whsec_MDEyMzQ1Njc4OWFiY2RlZg==", b"0123456789abcdef")],
)
def test_a_secret_is_text_or_base64(tmp_path: Path, content: bytes, key: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)
    assert key_in(tmp_path / "secret") == key


@pytest.mark.parametrize("content", [None, b"short", b"whsec_%%%", b"\xff" * 32], ids=str)
def test_a_secret_that_is_none_is_named_by_its_file(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        key_in(tmp_path / "secret")
    assert caught.value.code == "SecretMissing"
    assert str(tmp_path / "secret") in caught.value.message


# --- logs of others ---


@pytest.mark.parametrize("step", ["nlp", "nlp/sft", "nlp/sft/1", "nlp/sft/1/0.log"])
def test_no_link_in_the_log_folder_is_followed(tmp_path: Path, step: str) -> None:
    from reconciler.model.units import JobKey
    from reconciler.runtime.notices.tail import last_lines

    real = tmp_path / "logs/nlp/sft/1"
    real.mkdir(parents=True)
    (real / "0.log").write_text("Error: mine\n")
    assert last_lines(tmp_path / "logs", JobKey("nlp/sft"), 1, ["0"]) == ("0 | Error: mine",)
    moved = tmp_path / "elsewhere"
    (tmp_path / "logs" / step).rename(moved)
    (tmp_path / "logs" / step).symlink_to(moved)
    assert last_lines(tmp_path / "logs", JobKey("nlp/sft"), 1, ["0"]) == ()


# --- from the settings ---


def test_the_settings_say_who_is_told(lab: Lab, tmp_path: Path) -> None:
    from reconciler.runtime.service import teller_of
    from reconciler.runtime.settings import read_settings
    from reconciler.runtime.status_server import LoopMetrics

    base = 'clusterId = "lab"\n[desired]\nurl = "/srv/x.git"\n[signing]\nkey = "k"\n'
    file, mirror, metrics = tmp_path / "reconciler.toml", lab.mirror("one"), LoopMetrics()
    file.write_text(base)
    assert teller_of(read_settings(file), mirror, lambda *_: None, metrics) is None
    file.write_text(
        base + '[webhook]\nurl = "https://hooks.example/x"\nsecret = "secret"\n[command]\nrun = ["/bin/true"]\n'
        '[forge]\nrepository = "acme/cluster"\ntoken = "token"\n'
    )
    with pytest.raises(UsageError) as caught:
        teller_of(read_settings(file), mirror, lambda *_: None, metrics)
    assert caught.value.code == "SecretMissing"
    (tmp_path / "secret").write_bytes(SECRET)
    teller = teller_of(read_settings(file), mirror, lambda *_: None, metrics)
    assert teller is not None
    assert [courier.hook.name for courier in teller.couriers] == ["webhook", "command", "forge"]
