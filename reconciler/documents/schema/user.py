"""User: one person's addresses, accounts and keys, so that a commit, a review and a process meet in one name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from reconciler.documents.schema.base import Account, Document, Line, Listed, Strict


class UserSpec(Strict):
    """How this person is known elsewhere."""

    emails: Annotated[Listed[Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$", max_length=254)]], Field(min_length=1)]
    """Addresses in commits; the first is where to write to."""
    github: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9]{0,38})$")] | None = None
    """Login at the forge, without @."""
    teams: Annotated[Listed[Line], Field(max_length=64)] = ()
    """Teams, spelled as in queues and policies: "@acme/nlp". Only these count: nobody asks the forge when deciding."""
    unix_user: Account | None = None
    """Account on the nodes: for `gangops shell`, and for jobs of queues with `runAs: submitter`."""
    ssh_keys: Listed[
        Annotated[str, Field(pattern=r"^(ssh-|ecdsa-|sk-)[^\s]+ [A-Za-z0-9+/=]+( .*)?$", max_length=8192)]
    ] = ()
    """Public keys that sign this person's commits and requests."""
    display_name: Line = ""
    """For people."""


class User(Document):
    """One person's addresses, accounts and keys."""

    kind: Literal["User"]
    """The kind of document."""
    spec: UserSpec
    """How this person is known elsewhere."""
