"""Which changes of the desired tree are not acted on, because nobody with the authority they take stands behind them?

`frozen/withheld.yaml` of the state tree: a record a file, beside the last forms of these files. It holds facts alone
(who brought it, who agreed, how that is proven, what it takes), so that a replay comes to the same verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.documents.canonical import to_yaml
from reconciler.documents.layout import is_job
from reconciler.documents.loader import STATE_LIMITS, load
from reconciler.documents.values import Codec
from reconciler.errors import Diagnostic, Place, Severity, StoreError
from reconciler.model.desired import PolicyHold
from reconciler.model.observed import Person, Proof
from reconciler.model.units import CommitId

WITHHELD: Final = "withheld.yaml"
"""Among frozen files; no document has this path."""
ACKNOWLEDGE_CHANGE: Final = "Acknowledge-Change"
"""The trailer by which somebody stands behind a change that is in the tree already."""
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """One authority that a change takes: its name, the queue it is of ("" for none), who has it, and why it is taken."""

    need: str
    queue: str
    who: tuple[str, ...]
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """One file that differs from its last authorised form. `blob` is what it is now, "" where it was removed.

    `needs` is what author and approvers lack, `required` the proof that would be enough.
    """

    path: str
    blob: str
    commit: CommitId
    author: Person
    needs: tuple[Needed, ...]
    pull_request: str = ""
    approvers: tuple[Person, ...] = ()
    proven: Proof = Proof.NONE
    required: Proof = Proof.FORGE

    @property
    def brought(self) -> str:
        """Where it came from, in a few words."""
        names = (self.author.user, self.author.login, self.author.email, "somebody unknown")
        who = next(name for name in names if name)
        pull = f", pull request #{self.pull_request}" if self.pull_request else ""
        return f"brought by {who} in {self.commit[:_SHOWN]}{pull} (proven: {self.proven})"

    @property
    def remedy(self) -> str:
        """What whoever has the authority may do."""
        how = "signed" if self.required is Proof.SIGNATURE else "signed or merged by the forge"
        return f"a commit of theirs, {how}, may end with `{ACKNOWLEDGE_CHANGE}: {self.commit[:_SHOWN]}`"

    @property
    def who(self) -> tuple[str, ...]:
        """Who could agree to what is lacking, each once."""
        return tuple(dict.fromkeys(name for need in self.needs for name in need.who))

    @property
    def hold(self) -> PolicyHold:
        """What keeps a new job from starting."""
        first = self.needs[0]
        return PolicyHold(
            policy="authority",
            rule=first.need,
            message=f"{self.brought}; {self.remedy}",
            approvers=self.who or (f"an admin of {first.queue or 'the root queue'}",),
        )

    @property
    def diagnostic(self) -> Diagnostic:
        """What is told beside the file."""
        told = " ".join(need.told for need in self.needs)
        who = f" It takes one of {', '.join(self.who)}." if self.who else ""
        return Diagnostic(
            code="AuthorityMissing",
            summary="Change waits for somebody with authority",
            detail=f"It is {self.brought}. {told}{who} Until then the file counts as it was before.",
            place=Place(self.path),
            remedy=f"{self.remedy[:1].upper()}{self.remedy[1:]}.",
            severity=Severity.WARNING,
        )


_CODEC = Codec()


def withheld_bytes(records: Iterable[Withheld]) -> bytes:
    """The content of `frozen/withheld.yaml`."""
    rows = [_CODEC.tree_of(one) for one in sorted(records, key=lambda one: one.path)]
    return to_yaml({"withheld": rows})


def withheld_of(frozen: Mapping[str, bytes]) -> tuple[Withheld, ...]:
    """The changes that were withheld, by path. Raises StoreError (BadRecord)."""
    content = frozen.get(WITHHELD)
    if content is None:
        return ()
    loaded = load(content, f"frozen/{WITHHELD}", STATE_LIMITS)
    tree = loaded.documents[0].value if len(loaded.documents) == 1 and loaded.ok else None
    rows = tree.get("withheld") if isinstance(tree, dict) else None
    if not isinstance(rows, list):
        raise StoreError(f"frozen/{WITHHELD} in the state branch is not a record of ours", code="BadRecord")
    return tuple(_CODEC.value_of(Withheld, row) for row in rows)


def blocks(records: Iterable[Withheld]) -> str:
    """The first file that defines the cluster and is withheld, "" when there is none."""
    return next((one.path for one in records if not is_job(one.path)), "")
