"""Policies of a folder: what they say of its documents, and of the examples beside them. Reads files, decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reconciler.documents.cache import ParseCache
from reconciler.documents.desired import SourceFile, load_desired
from reconciler.documents.examples import read_examples
from reconciler.documents.judged import Cluster, cluster_of, read_files
from reconciler.documents.layout import EXAMPLES, POLICIES, is_job
from reconciler.errors import Diagnostic, NotFound, sorted_by_place
from reconciler.model.units import CommitId
from reconciler.policy.examples import Tried, try_examples, untried
from reconciler.policy.rules import lint_policies, policies_of
from reconciler.policy.verdicts import Memory, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Tests:
    """What came of all examples. `untried`: (policy, rule) that no example of its file expects to fail."""

    tried: tuple[Tried, ...]
    untried: tuple[tuple[str, str], ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def passed(self) -> bool:
        """All examples came out as expected, and nothing is wrong with the files."""
        return not any(d.is_error for d in self.diagnostics) and not any(t.differs for t in self.tried)


def policy_problems(files: Sequence[SourceFile], cache: ParseCache | None = None) -> list[Diagnostic]:
    """Expressions that do not compile, and what the policies of these files say of their documents, as a proposal.

    Who brought what is not known here, so nothing is said of approvals.
    """
    loaded = load_desired(files, CommitId(""), cache=cache)
    if loaded.cluster is None or loaded.desired is None:
        return []
    found = list(lint_policies(loaded.cluster.documents.of("Policy")))
    verdicts = Verdicts(loaded.cluster, loaded.items, loaded.desired.job_of, Memory())
    return [*found, *verdicts.diagnostics(None, proposal=True)]


def run_examples(files: Mapping[str, bytes], only: Sequence[str] = ()) -> Tests:
    """All examples among these files (path to content), or those in the paths `only`.

    Examples are tried against the policies of the file they stand beside. Raises NotFound (PathNotFound) when there
    are none.
    """
    cluster = cluster_of_files(files)
    tried: list[Tried] = []
    left: list[tuple[str, str]] = []
    problems: list[Diagnostic] = list(lint_policies(cluster.documents.of("Policy")))
    paths = [path for path in sorted(files) if path.startswith(POLICIES) and path.endswith(EXAMPLES)]
    paths = [path for path in paths if not only or path in only or _policy_file(path) in only]
    if not paths:
        raise NotFound(
            f"there are no files {POLICIES}*{EXAMPLES}",
            code="PathNotFound",
            remedy="write examples beside each policy; policies/README.md shows how",
        )
    for path in paths:
        examples, wrong = read_examples(files[path], path)
        problems += wrong
        items = [item for item in cluster.documents.of("Policy") if item.file == _policy_file(path)]
        policies = policies_of(items)
        tried += try_examples(policies, examples, cluster.around, cluster.desired.quotas)
        left += untried(policies, examples)
    return Tests(tried=tuple(tried), untried=tuple(left), diagnostics=sorted_by_place(problems))


def _policy_file(examples: str) -> str:
    return f"{examples.removesuffix(EXAMPLES)}.yaml"


def cluster_of_files(files: Mapping[str, bytes]) -> Cluster:
    """The cluster of these files, however incomplete: an example needs its defaults, not its soundness."""
    sources = [SourceFile(path, path, content) for path, content in files.items() if not is_job(path)]
    tree = read_files(sources, ParseCache())
    return cluster_of(item for checked in tree.checked.values() for item in checked.items)


def files_below(base: Path) -> dict[str, bytes]:
    """The YAML files of `cluster-state/` and `policies/` below a folder, by path from there."""
    found = {}
    for top in ("cluster-state", "policies"):
        for path in sorted((base / top).rglob("*.yaml")):
            if path.is_file() and not path.is_symlink():
                found[path.relative_to(base).as_posix()] = path.read_bytes()
    return found
