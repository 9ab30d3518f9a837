"""Policy: rules in CEL over a document, or over a plan. What the expressions mean is for the package `policy`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from reconciler.documents.schema.base import NOTHING, Document, LabelKey, Line, Listed, Name, Strict, refuse

Expression: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096)]


class Match(Strict):
    """What a policy looks at."""

    kinds: Annotated[
        Listed[Literal["Job", "Queue", "PriorityClass", "NodeSet", "Maintenance", "Plan"]], Field(min_length=1)
    ]
    """Kinds of documents; Plan is the decision itself, and stands alone."""
    queues: Listed[Name] = ()
    """Only jobs and queues in one of these or in a queue inside it. Absent: all."""
    labels: dict[LabelKey, Line] = NOTHING
    """Only documents with all of these labels. Absent: all."""

    @model_validator(mode="after")
    def _consistent(self) -> Match:
        if "Plan" in self.kinds and (len(self.kinds) > 1 or self.queues or self.labels):
            refuse("UnknownValue", "A plan is no document: a policy over plans matches kinds: [Plan] and nothing else.")
        return self


class PolicyVariable(Strict):
    """A named sub-expression, seen by those after it as `variables.NAME`."""

    name: Annotated[str, Field(pattern=r"^[a-z][A-Za-z0-9]{0,62}$")]
    """Its name."""
    expression: Expression
    """CEL."""


class Validation(Strict):
    """One rule: what must be true."""

    expression: Expression
    """CEL; anything but true is a failure."""
    message: Line = ""
    """What the author reads."""
    message_expression: Expression | None = None
    """CEL that makes the message."""
    reason: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]{0,62}$")]
    """A stable code in CamelCase."""
    action: Literal["Deny", "Warn", "RequireApproval"] = "Deny"
    """What a failure does."""
    approvers: Listed[Line] = ()
    """With RequireApproval: users or teams of whom one has to approve."""

    @model_validator(mode="after")
    def _complete(self) -> Validation:
        if not self.message and self.message_expression is None:
            refuse("MissingField", "A rule needs a message or a messageExpression: what its author will read.")
        if (self.action == "RequireApproval") != bool(self.approvers):
            refuse("MissingField", "RequireApproval and approvers need each other.")
        return self


class PolicySpec(Strict):
    """Rules over the kinds it matches."""

    match: Match
    """What it looks at."""
    variables: Annotated[Listed[PolicyVariable], Field(max_length=64)] = ()
    """Named sub-expressions."""
    validations: Annotated[Listed[Validation], Field(min_length=1, max_length=64)]
    """The rules."""


class Policy(Document):
    """Rules in CEL over documents, or over a plan."""

    kind: Literal["Policy"]
    """The kind of document."""
    spec: PolicySpec
    """The rules."""
