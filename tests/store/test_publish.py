"""Every way a push can end, against a real bare remote."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reconciler.errors import BrokenInvariant, Fenced, StoreError, Unreachable
from reconciler.store import failpoints
from reconciler.store.publish import Outcome, PublishedMark, PushResult, check_continues, publish, read_porcelain
from tests.store.world import MAIN, STATE, Desk, Repository, git, text


@pytest.fixture
def desired(remote: Repository, desk: Desk) -> str:
    commit = remote.commit({"cluster-state/cluster.yaml": b"kind: ClusterConfig\n"})
    desk.mirror.fetch()
    return commit


@pytest.fixture
def first(desk: Desk, desired: str) -> str:
    """The first state commit, published."""
    commit = desk.first(desired)
    assert publish(desk.mirror, commit, expected=None) == Outcome(result=PushResult.OK)
    return commit


def test_published_commit_is_the_tip_and_is_seen_without_another_fetch(
    desk: Desk, remote: Repository, first: str
) -> None:
    assert remote.tip() == first
    assert desk.mirror.last_seen(desk.mirror.branches.record, STATE) == first


def test_second_of_two_writers_loses_and_leaves_the_first_alone(
    desk: Desk, other_desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    other_desk.mirror.fetch()
    theirs = other_desk.next(first, desired, 1, {"allocation/a": b"theirs\n"})
    ours = desk.next(first, desired, 1, {"allocation/a": b"ours\n"})
    assert publish(other_desk.mirror, theirs, expected=first).result is PushResult.OK
    outcome = publish(desk.mirror, ours, expected=first)
    assert outcome.result is PushResult.LOST_RACE
    assert remote.tip() == theirs
    with pytest.raises(Fenced) as caught:
        outcome.raise_for_result()
    assert caught.value.code == "LostRace"


def test_branch_that_appeared_meanwhile_is_not_created_over(
    desk: Desk, other_desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    other_desk.mirror.fetch()
    rival = other_desk.first(desired, Rival="yes")
    assert rival != first
    assert publish(other_desk.mirror, rival, expected=None).result is PushResult.LOST_RACE
    assert remote.tip() == first


def test_rewound_branch_is_not_pushed_over(desk: Desk, remote: Repository, desired: str, first: str) -> None:
    second = desk.next(first, desired, 1)
    assert publish(desk.mirror, second, expected=first).result is PushResult.OK
    git(remote.path, "update-ref", STATE, first)  # a plain push of a descendant would be accepted here
    third = desk.next(second, desired, 2)
    assert publish(desk.mirror, third, expected=second).result is PushResult.LOST_RACE
    assert remote.tip() == first


def test_deleted_branch_is_not_made_again(desk: Desk, remote: Repository, desired: str, first: str) -> None:
    git(remote.path, "update-ref", "-d", STATE)
    second = desk.next(first, desired, 1)
    assert publish(desk.mirror, second, expected=first).result is PushResult.LOST_RACE
    assert remote.tip() is None


def test_commit_on_another_parent_is_our_own_bug(desk: Desk, remote: Repository, desired: str, first: str) -> None:
    second = desk.next(first, desired, 1)
    third = desk.next(second, desired, 2)
    with pytest.raises(BrokenInvariant):
        publish(desk.mirror, third, expected=first)
    with pytest.raises(BrokenInvariant):
        publish(desk.mirror, second, expected=None)
    assert remote.tip() == first


def test_server_rule_is_a_rejection_with_the_servers_words(
    desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    remote.hook("pre-receive", r"printf 'GH006 Protected branch update failed\033[2J' >&2; exit 1")
    outcome = publish(desk.mirror, desk.next(first, desired, 1), expected=first)
    assert outcome.result is PushResult.REJECTED
    assert "pre-receive hook declined" in outcome.message
    assert "GH006 Protected branch update failed\\x1b[2J" in outcome.message
    with pytest.raises(StoreError) as caught:
        outcome.raise_for_result()
    assert caught.value.code == "PushRejected"


def test_unwritable_refs_at_the_server_are_a_rejection_and_not_a_race(
    desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    git(remote.path, "update-ref", "-d", STATE)
    git(remote.path, "update-ref", f"{STATE}/below", first)  # a branch below ours makes ours impossible
    outcome = publish(desk.mirror, desk.first(desired, Again="yes"), expected=None)
    assert outcome.result is PushResult.REJECTED
    assert remote.tip() is None


def test_g08_both_pass_the_first_check_and_one_loses_at_the_ref_lock(
    desk: Desk, other_desk: Desk, remote: Repository, desired: str, first: str, tmp_path: Path
) -> None:
    other_desk.mirror.fetch()
    # Each push waits in the hook until both have arrived, so both were told the same old tip.
    gate = tmp_path / "gate"
    gate.mkdir()
    wait = f'touch {gate}/$$; n=0; while [ "$(ls {gate} | wc -l)" -lt 2 ] && [ $n -lt 1200 ]; do sleep 0.05; n=$((n+1)); done'
    remote.hook("pre-receive", wait)
    pushes = [
        (place, place.next(first, desired, 1, {"allocation/a": name}))
        for place, name in ((desk, b"1"), (other_desk, b"2"))
    ]
    outcomes: dict[str, Outcome] = {}

    def push(place: Desk, commit: str) -> None:
        outcomes[commit] = publish(place.mirror, commit, expected=first)

    threads = [threading.Thread(target=push, args=pair) for pair in pushes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome.result for outcome in outcomes.values()) == [PushResult.LOST_RACE, PushResult.OK]
    lost = next(o.message for o in outcomes.values() if o.result is PushResult.LOST_RACE)
    assert "remote rejected" in lost
    assert outcomes[remote.tip() or ""].result is PushResult.OK


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("*\tX:{ref}\t[new branch]", PushResult.OK),
        (" \tX:{ref}\t1111111..2222222", PushResult.OK),
        ("=\tX:{ref}\t[up to date]", PushResult.OK),
        ("!\tX:{ref}\t[rejected] (stale info)", PushResult.LOST_RACE),
        ("!\tX:{ref}\t[rejected] (fetch first)", PushResult.LOST_RACE),
        ("!\tX:{ref}\t[rejected] (non-fast-forward)", PushResult.LOST_RACE),
        ("!\tX:{ref}\t[remote rejected] (cannot lock ref '{ref}': is at 11 but expected 22)", PushResult.LOST_RACE),
        ("!\tX:{ref}\t[remote rejected] (atomic transaction failed)", PushResult.LOST_RACE),
        ("!\tX:{ref}\t[remote rejected] (failed to update ref)", PushResult.LOST_RACE),
        (
            "!\tX:{ref}\t[remote rejected] (cannot lock ref '{ref}': 'refs/heads/a' exists; cannot create)",
            PushResult.REJECTED,
        ),
        ("!\tX:{ref}\t[remote rejected] (cannot lock ref '{ref}': Permission denied)", PushResult.REJECTED),
        ("!\tX:{ref}\t[remote rejected] (pre-receive hook declined)", PushResult.REJECTED),
        ("!\tX:{ref}\t[remote rejected] (protected branch hook declined)", PushResult.REJECTED),
        ("!\tX:{ref}\t[remote rejected] (unpacker error)", PushResult.REJECTED),
        ("!\tX:{ref}\t[remote failure] (remote failed to report status)", None),
        ("*\tX:refs/heads/other\t[new branch]", None),
        ("", None),
    ],
)
def test_each_answer_of_a_remote_has_one_meaning(line: str, result: PushResult | None) -> None:
    outcome = read_porcelain(f"To h\n{line.format(ref=STATE)}\nDone\n", "remote: words\n", STATE)
    assert (outcome.result if outcome else None) == result


def test_many_races_end_in_one_linear_chain(
    desk: Desk, other_desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    other_desk.mirror.fetch()
    won: list[str] = []

    def run(place: Desk, name: str) -> None:
        for turn in range(12):
            tip = place.mirror.fetch().state
            assert tip is not None
            commit = place.next(tip, desired, turn, {"allocation/a": f"{name} {turn}\n".encode()})
            if publish(place.mirror, commit, expected=tip).result is PushResult.OK:
                won.append(commit)

    threads = [threading.Thread(target=run, args=pair) for pair in ((desk, "a"), (other_desk, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    chain = text(remote.path, "rev-list", "--first-parent", STATE).split()
    assert sorted(chain) == sorted([first, *won])
    assert len(won) >= 12


def test_lost_answer_is_a_success_when_our_commit_is_the_tip(
    desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    # The server takes the push, then dies before it can say so: at post-receive it would have said so already.
    remote.hook("reference-transaction", '[ "$1" != committed ] || kill -9 $PPID')
    second = desk.next(first, desired, 1)
    outcome = publish(desk.mirror, second, expected=first)
    assert remote.tip() == second
    assert outcome.result is PushResult.OK


def test_lost_answer_is_a_success_when_others_built_on_our_commit(
    desk: Desk, other_desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    second = desk.next(first, desired, 1)
    git(desk.mirror.folder, "push", "-q", remote.url, f"{second}:refs/heads/aside")
    git(other_desk.mirror.folder, "fetch", "-q", remote.url, "refs/heads/aside", MAIN)
    third = other_desk.next(second, desired, 2)
    git(other_desk.mirror.folder, "push", "-q", remote.url, f"{third}:refs/heads/aside")
    # Between our push and its answer, another writer goes on from our commit.
    remote.hook("pre-receive", f"unset GIT_QUARANTINE_PATH; git update-ref {STATE} {third}; kill -9 $PPID")
    assert publish(desk.mirror, second, expected=first).result is PushResult.OK
    assert remote.tip() == third


def test_push_that_never_arrived_is_unreachable(desk: Desk, remote: Repository, desired: str, first: str) -> None:
    second = desk.next(first, desired, 1)
    remote.hook("pre-receive", "kill -9 $PPID")
    assert publish(desk.mirror, second, expected=first).result is PushResult.UNREACHABLE
    remote.path.rename(remote.path.with_name("away.git"))
    outcome = publish(desk.mirror, second, expected=first)
    assert outcome.result is PushResult.UNREACHABLE
    with pytest.raises(Unreachable) as caught:
        outcome.raise_for_result()
    assert caught.value.code == "RemoteUnreachable"


def test_pushing_again_what_is_there_already_is_a_success(
    desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    second = desk.next(first, desired, 1)
    assert publish(desk.mirror, second, expected=first).result is PushResult.OK
    assert publish(desk.mirror, second, expected=first).result is PushResult.OK
    assert remote.tip() == second


def test_branch_that_goes_on_from_what_we_published_is_accepted(
    desk: Desk, desired: str, first: str, tmp_path: Path
) -> None:
    mark = PublishedMark(folder=tmp_path / "state")
    assert mark.read() is None
    check_continues(desk.mirror, mark, first)  # nothing published from here: nothing to compare with
    mark.write(first)
    assert mark.read() == first
    second = desk.next(first, desired, 1)
    check_continues(desk.mirror, mark, second)
    assert [path.name for path in mark.folder.iterdir() if path.is_file()] == ["last-published"]


def test_rewound_rewritten_deleted_and_absent_branches_are_refused(
    desk: Desk, remote: Repository, desired: str, first: str, tmp_path: Path
) -> None:
    mark = PublishedMark(folder=tmp_path / "state")
    second = desk.next(first, desired, 1)
    mark.write(second)
    stranger = remote.commit({"allocation/x": b"x"}, ref=STATE)
    desk.mirror.fetch()
    cases = {
        first: ("StateRewritten", "rewound"),
        stranger: ("StateRewritten", "rewritten"),
        None: ("StateMissing", "deleted"),
    }
    for tip, (code, word) in cases.items():
        with pytest.raises(StoreError) as caught:
            check_continues(desk.mirror, mark, tip)
        assert (caught.value.code, word in caught.value.message) == (code, True)
        assert second in caught.value.remedy
    with pytest.raises(StoreError) as caught:
        check_continues(desk.mirror, PublishedMark(folder=tmp_path / "fresh"), None)
    assert caught.value.code == "StateMissing"
    assert "gangops init --state" in caught.value.remedy


def test_rewound_branch_is_refused_even_by_a_clone_that_was_made_again(
    desk: Desk, remote: Repository, desired: str, first: str, tmp_path: Path
) -> None:
    mark = PublishedMark(folder=tmp_path / "state")
    second = desk.next(first, desired, 1)
    assert publish(desk.mirror, second, expected=first).result is PushResult.OK
    mark.write(second)
    git(remote.path, "update-ref", STATE, first)
    desk.mirror.remake("test")
    with pytest.raises(StoreError) as caught:
        check_continues(desk.mirror, mark, desk.mirror.fetch().state)
    assert caught.value.code == "StateRewritten"


def test_mark_that_holds_no_commit_is_an_error_and_not_a_fresh_start(tmp_path: Path) -> None:
    mark = PublishedMark(folder=tmp_path)
    mark.file.write_text("")
    with pytest.raises(StoreError) as caught:
        mark.read()
    assert caught.value.code == "MarkUnreadable"


KILLED_WRITER = """
import sys
from pathlib import Path
from reconciler.store.publish import publish
from reconciler.store.signatures import Signer
from reconciler.store.statecommit import Writer
from tests.store.world import Desk, Repository, new_mirror
remote, clone, key, parent, desired = sys.argv[1:]
writer = Writer(identity="gangops <gangops@lab>", signer=Signer(key=Path(key)))
desk = Desk(new_mirror(Path(clone), Repository(Path(remote))), writer)
print(publish(desk.mirror, desk.next(parent, desired, 1), expected=parent).result)
"""


@pytest.mark.parametrize(
    ("failpoint", "arrived"),
    [
        ("before-commit", False),
        ("after-commit", False),
        ("after-push", True),
        ("after-push-response", True),
        ("", True),
    ],
)
def test_killed_anywhere_the_same_decision_is_published_once(
    failpoint: str, arrived: bool, desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    arguments = [remote.url, str(desk.mirror.folder), str(desk.writer.signer.key), first, desired]
    root = Path(__file__).parents[2]
    environment = {**os.environ, failpoints.VARIABLE: failpoint, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WRITER, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == ((failpoints.KILLED, "") if failpoint else (0, "ok\n")), done.stderr
    again = desk.next(first, desired, 1)
    assert (remote.tip() == again) is arrived
    assert publish(desk.mirror, again, expected=first).result is PushResult.OK
    assert text(remote.path, "rev-list", "--first-parent", STATE).split() == [again, first]
