"""Where a user's own files are: an absolute path names a folder, anything else is as good as unset."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.runtime.used import Folders
from reconciler.runtime.xdg import cache_home, config_home


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        pytest.param(None, False, id="unset"),
        pytest.param("", False, id="empty"),
        pytest.param("cache", False, id="relative"),
        pytest.param("./cache", False, id="relative to here"),
        pytest.param("~/cache", False, id="a tilde that no shell has read"),
        pytest.param("/var/tmp/gangops-test", True, id="absolute"),
    ],
)
def test_only_an_absolute_path_names_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, counts: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        if said is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, said)
    assert cache_home() == (Path(said or "") if counts else Path("/home/ada/.cache"))
    assert config_home() == (Path(said or "") if counts else Path("/home/ada/.config"))
    assert Folders.of_user() == Folders(cache=cache_home() / "gangops", settings=config_home() / "gangops")


def test_verbs_write_no_cache_where_one_happens_to_stand(tmp_path: Path) -> None:
    """In a process of its own, as a shell starts it."""
    program = "from reconciler.cli.show import cache_file; print(cache_file('state.cache'))"
    home = tmp_path / "home"
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "here", check=True, capture_output=True, text=True,
        env={**os.environ, "HOME": str(home), "XDG_CACHE_HOME": "relative", "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.stdout == f"{home}/.cache/gangops/state.cache\n"
    assert list((tmp_path / "here").iterdir()) == []
