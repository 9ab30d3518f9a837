"""Requests of somebody who wants to stop the reconciler, or to write into its record: each is one refused request."""

from __future__ import annotations

from reconciler.documents.request_file import wish_bytes
from reconciler.model.request import Refusal, Standing
from reconciler.runtime.audit.verify import verify
from reconciler.store.signatures import allowed_signers_line
from tests.runtime.asking import People
from tests.runtime.lab import Lab, jobs

NAMES: dict[str, dict[str, object]] = {
    "line": {"job": "nlp/a\nGeneration: 99"},
    "separator": {"job": "nlp/a\u2028Epoch: 7"},
    "escape": {"job": "nlp/a\x1b[2J"},
    "direction": {"job": "\u202enlp/a"},
    "ask": {"ask": "drain\nEpoch: 3", "nodes": ("gpu-001",)},
    "node": {"ask": "drain", "nodes": ("gpu-001", "gpu-002\nDecision-Id: x")},
    "queue": {"ask": "freeze", "queue": "nlp\nInputs-Digest: 0"},
    "cluster": {"cluster": "lab\nGeneration: 99"},
}


def test_names_that_would_be_lines_of_a_state_commit_are_refused_and_stop_nothing(lab: Lab) -> None:
    """Signed by a member or by nobody: whoever may push a branch of this name gets as far as this."""
    people = People(lab)
    lab.begin(**{**people.files, **jobs("a")})
    desk = lab.desk()
    desk.settle()
    for name, hostile in NAMES.items():
        wish = people.wish(**hostile)  # type: ignore[arg-type]  # fields by name
        key = people.keys["kim"] if name != "line" else None
        people.plant(name, {"request.yaml": wish_bytes(name, wish)}, key)
    told = people.wish(reason="late\nGeneration: 99")
    people.plant("reason", {"request.yaml": wish_bytes("reason", told)}, people.keys["kim"])
    desk.settle()
    assert desk.reconciler.last is not None
    known = desk.reconciler.last.generation.observed.requests
    assert {name: known[name].refusal for name in NAMES} == dict.fromkeys(NAMES, Refusal.NOT_A_REQUEST)
    assert known["reason"].standing is Standing.IN_FORCE
    line = allowed_signers_line("gangops@lab", lab.writer.signer.public_key())
    verdict = verify(lab.remote.git, lab.tip, signers=line.encode())
    assert [(one.code, one.told) for one in verdict.findings] == []
