"""A small house for policy tests: one cluster, policies and jobs as text, and people."""

from __future__ import annotations

from collections.abc import Mapping

from reconciler.documents.cache import ParseCache
from reconciler.documents.desired import LoadedDesired, load_desired
from reconciler.documents.judged import cluster_of, read_files
from reconciler.model.observed import Person, Proof, Provenance
from reconciler.model.units import CommitId, Digest, JobKey
from reconciler.policy.authority import Rules
from reconciler.policy.rules import Policy, policies_of
from reconciler.policy.verdicts import Memory, Verdicts
from tests.documents.trees import sources, starter

POLICY = "policies/house.yaml"
KEY = JobKey("research/x")


def policy_text(*validations: str, match: str = "kinds: [Job]", variables: str = "[]", name: str = "house") -> str:
    """A policy; each validation is one line of flow YAML."""
    rows = "".join(f"    - {row}\n" for row in validations)
    return (
        f"apiVersion: gangops/v1\nkind: Policy\nmetadata: {{name: {name}}}\nspec:\n  match: {{{match}}}\n"
        f"  variables: {variables}\n  validations:\n{rows}"
    )


def rule(expression: str, *, action: str = "Deny", approvers: str = "", reason: str = "Rule") -> str:
    """A validation whose message is `no`."""
    asked = f", approvers: {approvers}" if approvers else ""
    return f"{{expression: {expression!r}, message: 'no', reason: {reason}, action: {action}{asked}}}"


def policies(*texts: str) -> tuple[Policy, ...]:
    """Compiled policies of one file."""
    tree = read_files(sources({POLICY: "---\n".join(texts)}), ParseCache())
    assert [str(d) for checked in tree.checked.values() for d in checked.diagnostics] == []
    return policies_of(item for checked in tree.checked.values() for item in checked.items)


def loaded(policy: str, jobs: Mapping[str, str]) -> LoadedDesired:
    """The starter without its own job, with these jobs of queue research (name to text) and one policy file."""
    tree = {path: text for path, text in starter().items() if "/jobs/" not in path and not path.startswith("policies/")}
    tree |= {f"cluster-state/jobs/research/{name}.yaml": text for name, text in jobs.items()}
    found = load_desired(sources({**tree, POLICY: policy}), CommitId("c"))
    assert found.desired is not None
    return found


def verdicts(policy: str, jobs: Mapping[str, str]) -> Verdicts:
    found = loaded(policy, jobs)
    assert found.desired is not None
    assert found.cluster is not None
    return Verdicts(found.cluster, found.items, found.desired.job_of, Memory())


def person(login: str, *teams: str) -> Person:
    return Person(user=login, email=f"{login}@acme.org", login=login, teams=teams)


def brought(author: Person, *approvers: Person, proven: Proof = Proof.SIGNATURE) -> Provenance:
    return Provenance(
        job=KEY, digest=Digest("d"), file="f", commit=CommitId("c"), author=author, approvers=approvers, proven=proven
    )  # fmt: skip


def rules_of(files: Mapping[str, str]) -> Rules:
    """What a base tree says of people."""
    tree = read_files(sources(files), ParseCache())
    assert [str(d) for checked in tree.checked.values() for d in checked.diagnostics] == []
    cluster = cluster_of(item for path, c in tree.checked.items() if "/jobs/" not in path for item in c.items)
    return Rules(documents=cluster.documents, quotas=cluster.desired.quotas, around=cluster.around)
