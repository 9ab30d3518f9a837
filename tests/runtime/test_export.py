"""A decision as an in-toto statement: what it names is what git has, and its signature is checked by ssh-keygen alone."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from reconciler.cli.root import root
from reconciler.errors import NotFound, StoreError
from reconciler.render.statement import PREDICATE, STATEMENT, statement_bytes, statement_schema
from reconciler.runtime.audit.export import exported, statements
from reconciler.store.signatures import make_key
from tests.runtime.lab import Lab, jobs
from tests.store.world import STATE, text

ORDERS = "allocation/nodes/r01/gpu-001.json"


@pytest.fixture
def settled(lab: Lab) -> Lab:
    """One job placed at generation 1, started at 2, running from 3 on."""
    lab.begin(**jobs("sft", gpus=16))
    lab.desk().settle()
    return lab


def told(lab: Lab, first: int, last: int) -> list[dict[str, Any]]:
    found = []
    for one in statements(lab.remote.git, lab.tip, first, last):
        tree: dict[str, Any] = json.loads(statement_bytes(one))
        found.append(tree)
    return found


def test_a_statement_names_the_commit_its_orders_and_all_inputs_by_digest(settled: Lab) -> None:
    (one,) = told(settled, 1, 1)
    commit = text(settled.remote.path, "rev-list", "--first-parent", "--reverse", STATE).split()[1]

    def at(name: str) -> str:
        return text(settled.remote.path, "rev-parse", name)

    assert (one["_type"], one["predicateType"]) == (STATEMENT, PREDICATE)
    first, *orders = one["subject"]
    assert first == {"name": "generation/1", "digest": {"gitCommit": commit, "gitTree": at(f"{commit}^{{tree}}")}}
    (file,) = [each for each in orders if each["name"] == ORDERS]
    content = subprocess.run(
        ["git", "cat-file", "blob", f"{commit}:{ORDERS}"], cwd=settled.remote.path, capture_output=True, check=True
    ).stdout
    assert file["digest"] == {"gitBlob": at(f"{commit}:{ORDERS}"), "sha256": hashlib.sha256(content).hexdigest()}
    predicate = one["predicate"]
    trailer = text(settled.remote.path, "log", "-1", "--format=%(trailers:key=Inputs-Digest,valueonly)", commit)
    assert predicate["inputsDigest"] == trailer
    assert {each["name"]: each["digest"] for each in predicate["inputs"]} == {
        "desired": {"gitCommit": at(f"{commit}^2"), "gitTree": at(f"{commit}:desired")},
        "observed": {"gitTree": at(f"{commit}:observed")},
        "previous": {"gitCommit": at(f"{commit}^1")},
    }
    (job,) = predicate["jobs"]
    assert (job["job"], job["state"], job["gpus"], job["nodes"]) == ("nlp/sft", "Starting", 16, ["gpu-001", "gpu-002"])


def test_a_range_is_told_oldest_first_and_fits_the_schema(settled: Lab) -> None:
    found = told(settled, 0, 99)
    assert [one["predicate"]["generation"] for one in found] == settled.numbers()
    (schema,) = statement_schema().values()
    checker = jsonschema.Draft202012Validator(json.loads(schema))
    for one in found:
        checker.validate(one["predicate"])
    assert Path(__file__).parents[2].joinpath("schemas/decision-predicate.schema.json").read_bytes() == schema
    assert told(settled, 0, 0)[0]["predicate"]["inputs"][-1]["name"] == "observed"  # nothing was before it
    with pytest.raises(NotFound):
        told(settled, 70, 71)


def signature_holds(envelope: dict[str, Any], public: str, folder: Path) -> bool:
    """By the words of the DSSE and SSHSIG specifications, with none of our code."""
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"]
    (signature,) = envelope["signatures"]
    (folder / "sig").write_bytes(base64.b64decode(signature["sig"]))
    (folder / "allowed").write_text(f'auditor namespaces="in-toto" {public}\n')
    covered = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    done = subprocess.run(
        ["ssh-keygen", "-Y", "verify", "-n", "in-toto", "-I", "auditor", "-f", "allowed", "-s", "sig"],
        cwd=folder, input=covered, capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def test_an_envelope_is_verified_by_ssh_keygen_and_a_change_is_noticed(settled: Lab, tmp_path: Path) -> None:
    signer = make_key(tmp_path / "auditor", "auditor")
    (statement,) = statements(settled.remote.git, settled.tip, 2, 2)
    envelope = json.loads(exported(statement, signer))
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert base64.b64decode(envelope["payload"]) == statement_bytes(statement)
    listed = subprocess.run(
        ["ssh-keygen", "-lf", f"{signer.key}.pub"], capture_output=True, text=True, check=True
    ).stdout
    assert envelope["signatures"][0]["keyid"] == listed.split()[1]
    assert signature_holds(envelope, signer.public_key(), tmp_path)
    forged = base64.b64encode(base64.b64decode(envelope["payload"]).replace(b'"generation":2', b'"generation":3'))
    assert not signature_holds({**envelope, "payload": forged.decode()}, signer.public_key(), tmp_path)


def test_the_verb_says_whether_it_signed(settled: Lab, tmp_path: Path) -> None:
    signer = make_key(tmp_path / "auditor", "auditor")
    base = ["-C", str(settled.remote.path), "audit", "export", "--no-fetch"]
    bare = CliRunner().invoke(root, [*base, "1..2"], catch_exceptions=False)
    assert [json.loads(line)["predicate"]["generation"] for line in bare.stdout.splitlines()] == [1, 2]
    assert "not signed" in bare.stderr
    signed = CliRunner().invoke(root, [*base, "--key", str(signer.key)], catch_exceptions=False)
    (line,) = signed.stdout.splitlines()
    newest = json.loads(base64.b64decode(json.loads(line)["payload"]))
    assert newest["predicate"]["generation"] == settled.numbers()[-1]
    assert signed.stderr == ""


def test_a_key_that_cannot_sign_is_told(settled: Lab, tmp_path: Path) -> None:
    (tmp_path / "no-key").write_text("nothing")
    done = CliRunner().invoke(
        root, ["-C", str(settled.remote.path), "audit", "export", "--no-fetch", "--key", str(tmp_path / "no-key")]
    )
    assert isinstance(done.exception, StoreError)
    assert done.exception.code == "SigningFailed"
