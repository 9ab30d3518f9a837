"""`gangops use`: every verb from any folder, on a clone without file contents that may be lost at any time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reconciler.errors import ExitStatus
from reconciler.store.statecommit import Writer
from tests.cli.people import Kept, Person, codes, person_at
from tests.runtime.lab import Lab, job_file, jobs
from tests.store.world import git, new_repository, text


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Kept:
    folder = tmp_path_factory.mktemp("use")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.begin(**jobs("sft"))
    lab.desk().settle()
    return Kept(lab)


@pytest.fixture
def ada(kept: Kept, tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> Person:
    lab = kept.again(tmp_path, writer)
    for key in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        git(lab.remote.path, "config", key, "true")
    return person_at(lab, monkeypatch)


@pytest.fixture
def code(ada: Person) -> Path:
    """A repository of code: a git clone, and no cluster's."""
    folder = ada.home / "code"
    folder.mkdir()
    git(folder, "init", "-q")
    return folder


def url(ada: Person) -> str:
    return f"file://{ada.lab.remote.path}"


def clones(ada: Person) -> list[Path]:
    return sorted((ada.home / ".cache/gangops/clones").glob("*"))


def test_readers_and_verbs_work_from_any_folder(ada: Person, code: Path) -> None:
    assert codes(ada.run("use", at=code)) == ("NothingInUse", ExitStatus.NOT_FOUND)
    assert ada.done("use", url(ada), at=code).stdout == f"using {url(ada)}\n"
    assert ada.done("use", at=code).stdout == f"{url(ada)}\n"
    assert ada.done("get", "jobs", "-o", "name", at=code).stdout == "nlp/sft\n"
    assert "nlp/sft" in ada.done("status", at=code).stdout
    assert ada.done("history", "nlp/sft", at=code).stdout.splitlines()[1].startswith("#")
    assert "No job changes" in ada.done("plan", at=code).stdout
    ada.done("suspend", "sft", "--yes", at=code)
    assert ada.changed(ada.only_branch()) == [f"M {job_file('sft')}"]
    assert text(ada.lab.remote.path, "log", "-1", "--format=%an", ada.only_branch()) == "Ada Lovelace"


def test_the_clone_has_no_file_contents_until_they_are_read(ada: Person, code: Path) -> None:
    ada.done("use", url(ada), at=code)
    (clone,) = clones(ada)
    missing = text(clone, "rev-list", "--objects", "--all", "--missing=print").count("?")
    assert missing > 5
    assert (clone.stat().st_mode & 0o777) == 0o700


def test_the_cluster_repository_one_stands_in_goes_first_and_so_does_a_named_one(ada: Person, code: Path) -> None:
    ada.done("use", url(ada), at=code)
    ada.done("status", at=code)
    ada.lab.remote.path.rename(ada.lab.folder / "away")
    git(ada.clone, "remote", "set-url", "origin", str(ada.lab.folder / "away"))
    ada.done("suspend", "sft", "--yes", at=ada.clone / "cluster-state")
    ada.done("resume", "sft", "--yes")
    assert codes(ada.run("suspend", "sft", "--yes", at=code)) == ("RemoteUnreachable", ExitStatus.UNREACHABLE)
    assert "nlp/sft" in ada.done("status", "nlp/sft", at=code).stdout  # what was read before is still there


def test_an_emptied_cache_is_filled_again(ada: Person, code: Path) -> None:
    ada.done("use", url(ada), at=code)
    shutil.rmtree(ada.home / ".cache")
    assert ada.done("get", "jobs", "-o", "name", at=code).stdout == "nlp/sft\n"
    ada.done("use", "--none", at=code)
    assert codes(ada.run("status", at=code)) == ("StateMissing", ExitStatus.NOT_FOUND)


def test_a_broken_clone_is_made_anew_when_it_is_named_again(ada: Person, code: Path) -> None:
    ada.done("use", url(ada), at=code)
    (clone,) = clones(ada)
    (clone / "config").write_text("[broken\n")
    ada.done("use", url(ada), at=code)
    assert ada.done("get", "jobs", "-o", "name", at=code).stdout == "nlp/sft\n"


@pytest.mark.parametrize(
    ("address", "code_", "status"),
    [
        ("ext::sh -c x", "UnsafeUrl", ExitStatus.USAGE),
        ("https://ada:secret@forge.example/x.git", "SecretInUrl", ExitStatus.USAGE),
        ("/nowhere/at/all", "RemoteUnreachable", ExitStatus.UNREACHABLE),
    ],
)
def test_an_address_that_is_none(ada: Person, code: Path, address: str, code_: str, status: ExitStatus) -> None:
    found = ada.run("use", address, at=code)
    assert codes(found) == (code_, status)
    assert "secret" not in str(found.exception)
    assert clones(ada) == []
    assert codes(ada.run("use", at=code)) == ("NothingInUse", ExitStatus.NOT_FOUND)


def test_a_repository_of_code_is_no_cluster(ada: Person, code: Path, tmp_path: Path) -> None:
    other = new_repository(tmp_path / "code.git")
    other.commit({"train.py": b"x"})
    assert codes(ada.run("use", other.url, at=code))[0] == "NotACluster"
    assert clones(ada) == []
