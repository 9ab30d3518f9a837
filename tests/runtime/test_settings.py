"""`reconciler.toml`: what it says is what is used, and what is wrong is named with its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.agent.conf import read_conf
from reconciler.errors import UsageError
from reconciler.runtime.notices.events import NoticeKind
from reconciler.runtime.settings import (
    BellSetting,
    CommandSetting,
    ForgeSetting,
    Remote,
    Settings,
    WebhookSetting,
    read_settings,
    settings_text,
)

SHORTEST = """\
clusterId = "h100-east"
[desired]
url = "https://forge.example/ml/cluster.git"
[signing]
key = "signing"
"""


def read(folder: Path, text: str) -> Settings:
    file = folder / "reconciler.toml"
    file.write_text(text)
    return read_settings(file)


def test_the_shortest_file_and_its_defaults(tmp_path: Path) -> None:
    found = read(tmp_path, SHORTEST)
    assert found == Settings(
        cluster_id="h100-east",
        desired=Remote(url="https://forge.example/ml/cluster.git", branch="main"),
        state=Remote(url="https://forge.example/ml/cluster.git", branch="allocations"),
        folder=tmp_path / "state",
        signing_key=tmp_path / "signing",
        identity="gangops <gangops@localhost>",
        listen="",
        ca=None,
        server_names=("localhost",),
        status="",
    )


def test_everything_said_reads_back(tmp_path: Path) -> None:
    full = Settings(
        cluster_id="lab",
        desired=Remote(url="/srv/desired.git", branch="prod", credentials=tmp_path / "token"),
        state=Remote(url="/srv/state.git", branch="record", credentials=tmp_path / "token2"),
        folder=tmp_path / "var",
        signing_key=tmp_path / "key",
        identity='The "east" reconciler <gangops@lab>',
        listen="0.0.0.0:7443",
        ca=tmp_path / "ca",
        server_names=("localhost", "recon.example"),
        status="127.0.0.1:9090",
        bell=BellSetting(
            listen="0.0.0.0:7446", secret=tmp_path / "bell", certificate=tmp_path / "crt", key=tmp_path / "crt.key"
        ),
        webhook=WebhookSetting(
            url="https://hooks.example/x?y=1", secret=tmp_path / "hook", events=frozenset({NoticeKind.FAILED})
        ),
        command=CommandSetting(run=("/usr/bin/notify", "--to", "ops"), events=None),
        forge=ForgeSetting(
            repository="acme/cluster", token=tmp_path / "forge", url="https://ghe.example/api/v3", login="bot"
        ),
        logs=tmp_path / "logs",
    )
    assert read(tmp_path, settings_text(full)) == full


def test_paths_are_beside_the_file_wherever_it_is_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/reconciler.toml").write_text(SHORTEST + '[agents]\nlisten = ":7443"\nca = "../ca"\n')
    found = read_settings(Path("etc/reconciler.toml"))
    assert found.signing_key == tmp_path / "etc/signing"
    assert found.ca is not None
    assert found.ca.resolve() == tmp_path / "ca"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (SHORTEST.replace("clusterId", "cluster"), "cluster"),
        (SHORTEST.replace('clusterId = "h100-east"\n', ""), "clusterId"),
        (SHORTEST.replace('clusterId = "h100-east"', 'clusterId = ""'), "clusterId"),
        (SHORTEST.replace('clusterId = "h100-east"', "clusterId = 7"), "clusterId"),
        (SHORTEST.replace('url = "https://forge.example/ml/cluster.git"\n', ""), "desired.url"),
        (SHORTEST.replace('url = "https', 'urls = "https'), "desired.urls"),
        (SHORTEST.replace('key = "signing"', "key = 5"), "signing.key"),
        (SHORTEST.replace('key = "signing"\n', ""), "signing.key"),
        ('state = "x"\n' + SHORTEST, "state"),
        (SHORTEST + "[agents]\nserverNames = 'x'\n", "agents.serverNames"),
        (SHORTEST + "[agents]\nlisten = 7443\n", "agents.listen"),
        (SHORTEST + "[agents]\nserverNames = [1]\n", "agents.serverNames"),
        (SHORTEST + "[status]\nlisten = 1\n", "status.listen"),
        (SHORTEST + "[state]\nbranch = 1\n", "state.branch"),
        (SHORTEST + '[webhook]\nurl = "https://x"\n', "webhook.secret"),
        (SHORTEST + '[webhook]\nsecret = "x"\n', "webhook.url"),
        (SHORTEST + '[webhook]\nurl = "http://x"\nsecret = "x"\n', "webhook.url"),
        (SHORTEST + '[webhook]\nurl = "file:///etc/passwd"\nsecret = "x"\n', "webhook.url"),
        (SHORTEST + '[bell]\nlisten = "0.0.0.0:7446"\n', "bell.secret"),
        (SHORTEST + '[bell]\nsecret = "x"\n', "bell.listen"),
        (SHORTEST + '[bell]\nlisten = ":1"\nsecret = "x"\nkey = "y"\n', "bell.certificate"),
        (SHORTEST + '[bell]\ncertificate = "x"\nkey = "y"\n', "bell.listen"),
        (SHORTEST + '[command]\nevents = ["Failed"]\n', "command.run"),
        (SHORTEST + '[command]\nrun = ["x"]\nevents = ["failed"]\n', "command.events"),
        (SHORTEST + '[command]\nrun = "mail ops"\n', "command.run"),
        (SHORTEST + '[forge]\nrepository = "a/b"\n', "forge.token"),
        (SHORTEST + '[forge]\nrepository = "a/b"\ntoken = "t"\nurl = "http://x"\n', "forge.url"),
        (SHORTEST + '[forge]\nrepository = "a"\ntoken = "t"\n', "forge.repository"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert caught.value.code == "SettingsInvalid"
    assert f"`{key}`" in caught.value.message
    assert str(tmp_path / "reconciler.toml") in caught.value.message


@pytest.mark.parametrize("content", [b"clusterId = ", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_a_file_that_is_no_toml(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "reconciler.toml").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_settings(tmp_path / "reconciler.toml")
    assert caught.value.code == "SettingsInvalid"


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, 'colour = "red"\n[signing]\nkey = 1\n')
    assert [
        key for key in ("colour", "clusterId", "desired.url", "signing.key") if f"`{key}`" in caught.value.message
    ] == [
        "colour",
        "clusterId",
        "desired.url",
        "signing.key",
    ]


def test_one_repository_has_one_credential(tmp_path: Path) -> None:
    said = SHORTEST.replace("[signing]", 'credentials = "token"\n[signing]')
    assert read(tmp_path, said).state.credentials == tmp_path / "token"
    assert read(tmp_path, said + '[state]\nurl = "/srv/x.git"\n').state.credentials is None


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_settings(tmp_path / "none.toml")
    assert caught.value.code == "SettingsMissing"
    assert "GANGOPS_SETTINGS" in caught.value.remedy
    shown = caught.value.remedy.partition("shortest form:\n")[2]
    assert read(tmp_path, shown).cluster_id == "my-cluster"


def test_the_readme_s_settings_can_be_read(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shown = readme.partition("```toml\n")[2].partition("```")[0]
    found = read(tmp_path, shown)
    assert (found.cluster_id, found.listen, found.ca) == ("h100-east", "0.0.0.0:7443", Path("/etc/gangops/ca"))


def test_the_readme_s_agent_conf_can_be_read(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (tmp_path / "agent.conf").write_text(readme.partition("```ini\n")[2].partition("```")[0])
    (tmp_path / "agent.conf").chmod(0o600)
    found = read_conf(tmp_path / "agent.conf", root=True)
    assert (found.node, found.servers, found.simulation is not None) == (
        "gpu-01", ("https://gangops.example.org:7443",), True,
    )  # fmt: skip
    assert (found.trust.principal, found.logs_dir) == ("reconciler@h100-east", Path("/fs/logs/gangops"))
    assert f'echo "{found.trust.principal} namespaces=' in readme
    assert f'identity = "gangops <{found.trust.principal}>"' in readme  # else `audit verify` finds WrongPrincipal
