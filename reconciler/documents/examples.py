"""Examples that stand beside a policy: `policies/NAME.examples.yaml` holds those of the policies in `policies/NAME.yaml`.
A list under the key `examples`:

      - name: half a baseboard is denied
        document: {kind: Job, spec: {gpus: 12}}       # or  plan: {preemptions: 4, lostGpuHours: 21.5}
        author: {teams: [acme/nlp]}                   # optional, and so are approvers
        expect: {Deny: [WholeNodes]}                  # reasons by action; {} when nothing is found

What a document leaves out is filled in: apiVersion, a name, and for a job a queue and a command. What a plan leaves
out is 0 or empty; a number where a list belongs stands for so many jobs. What policies make of them is for `policy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from reconciler.documents.check import Item, check, validated
from reconciler.documents.loader import Document, load
from reconciler.documents.schema.base import API_VERSION, NOTHING, Line, Listed, Strict, refuse
from reconciler.errors import Diagnostic, Place, sorted_by_place
from reconciler.model.observed import Person

Actions = dict[Literal["Deny", "Warn", "RequireApproval"], Annotated[Listed[Line], Field(min_length=1)]]


class SaidPerson(Strict):
    """Somebody in an example; named people count as proven."""

    user: Line = ""
    email: Line = ""
    login: Line = ""
    teams: Listed[Line] = ()


class SaidExample(Strict):
    """One example as written."""

    name: Line
    document: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    author: SaidPerson | None = None
    approvers: Listed[SaidPerson] = ()
    expect: Actions = NOTHING

    @model_validator(mode="after")
    def _one(self) -> SaidExample:
        if (self.document is None) == (self.plan is None):
            refuse("MissingField", "An example has a document or a plan, and not both.")
        return self


class SaidExamples(Strict):
    """A file of examples."""

    examples: Annotated[Listed[SaidExample], Field(min_length=1, max_length=1000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example: a well-formed document, or a plan. `expect` has reasons by action."""

    name: str
    place: Place
    item: Item | None
    plan: Mapping[str, Any]
    author: Person | None
    approvers: tuple[Person, ...]
    expect: Mapping[str, tuple[str, ...]]


def read_examples(content: bytes, file: str) -> tuple[tuple[Example, ...], tuple[Diagnostic, ...]]:
    """The sound examples of a file, and all that is wrong with it and with the others."""
    loaded = load(content, file)
    found: list[Example] = []
    problems = list(loaded.diagnostics)
    for document in loaded.documents:
        model, wrong = validated(document, SaidExamples)
        problems += wrong
        for number, said in enumerate(model.examples if model is not None else ()):
            example, refused = _example(document, number, said)
            problems += refused
            found += [example] if example is not None else []
    return tuple(found), sorted_by_place(problems)


def _example(document: Document, number: int, said: SaidExample) -> tuple[Example | None, Sequence[Diagnostic]]:
    place = document.place_of(("examples", number))
    item = None
    if said.document is not None:
        filled = Document(
            file=document.file, line=document.line, value=_filled(said.document), content=document.content,
            index=document.index,
        )  # fmt: skip
        item, wrong = check(filled)
        if item is None:
            return None, [replace(d, place=replace(place, path=d.place.path)) for d in wrong]
    example = Example(
        name=said.name, place=place, item=item, plan=_numbers(said.plan or {}),
        author=_person(said.author) if said.author is not None else None,
        approvers=tuple(map(_person, said.approvers)), expect={str(k): v for k, v in said.expect.items()},
    )  # fmt: skip
    return example, ()


def _person(said: SaidPerson) -> Person:
    return Person(user=said.user, email=said.email, login=said.login, teams=said.teams)


def _filled(written: dict[str, Any]) -> dict[str, Any]:
    tree = {"apiVersion": API_VERSION, "metadata": {}, "spec": {}, **written}
    if isinstance(tree["metadata"], dict):
        tree["metadata"] = {"name": "example", **tree["metadata"]}
    if tree.get("kind") == "Job" and isinstance(tree["spec"], dict):
        tree["spec"] = {"queue": "example", "gpus": 8, "run": {"command": ["true"]}, **tree["spec"]}
    return tree


def _numbers(tree: Any) -> Any:
    """Decimals as numbers: what an expression over a plan compares."""
    if isinstance(tree, dict):
        return {key: _numbers(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_numbers(value) for value in tree]
    return float(tree) if isinstance(tree, Decimal) else tree
