"""How things go wrong here: diagnostics, exceptions and the exit statuses they map to.

A problem in someone's file is a `Diagnostic`, a value with a place and a remedy; many are gathered
and raised together as `InvalidInput`. Everything else that can go wrong is one class of the tree
below, and the command line turns each into exactly one exit status.

This module is shared with the node agent: standard library only, Python 3.10 (so no StrEnum).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum


class ExitStatus(IntEnum):
    """What the shell sees. `gangops explain code` and the README print this table."""

    OK = 0
    ERROR = 1
    CHANGES = 2  # `plan --detailed-exitcode` only
    NOT_FOUND = 3  # also: timed out
    INVALID = 4  # invalid input, or refused by policy
    AUDIT_FAILED = 5
    LOST_RACE = 6  # also: a preview that is stale
    UNREACHABLE = 7
    MASS_REMOVAL = 8  # `plan`: more of what runs would go at once than may
    USAGE = 64
    INTERRUPTED = 130


class Severity(str, Enum):
    """An error blocks the document it stands in; a warning only speaks."""

    ERROR = "error"
    WARNING = "warning"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, order=True)
class Place:
    """Where in someone's files: `file:line:column` counted from 1, and the path inside the document.

    Line and column are 0 when the whole file is meant.
    """

    file: str
    line: int = 0
    column: int = 0
    path: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{where}  {self.path}" if self.path else where


@dataclass(frozen=True)
class Diagnostic:
    """One problem in someone's input: what is wrong, where, why it matters, what to do.

    `code` is CamelCase and stable. `summary` never contains the user's own names, so that the same
    problem always reads the same; `detail` does.
    """

    code: str
    summary: str
    detail: str
    place: Place
    remedy: str = ""
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        lines = [f"{self.severity}[{self.code}]: {self.summary}", f"  {self.place}", f"  {self.detail}"]
        return "\n".join([*lines, f"  {self.remedy}"] if self.remedy else lines)

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR


def sorted_by_place(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Diagnostics in the order a reader meets them: file, line, column, then code; repeats dropped."""
    unique = dict.fromkeys(diagnostics)
    return tuple(sorted(unique, key=lambda d: (d.place, d.code, d.detail)))


class GangOpsError(Exception):
    """Root of everything we raise on purpose. `code` is what tests and JSON output look at.

    `code` is CamelCase; `remedy` says what a tired person should do next.
    """

    exit_status = ExitStatus.ERROR
    code = "Error"

    def __init__(self, message: str, *, remedy: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        if code:
            self.code = code


class InvalidInput(GangOpsError):
    """Someone's files are wrong. Carries every problem found, sorted by place."""

    exit_status = ExitStatus.INVALID
    code = "InvalidInput"

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = sorted_by_place(diagnostics)
        super().__init__("\n\n".join(str(d) for d in self.diagnostics))


class UsageError(GangOpsError):
    """The command line or a local setting makes no sense as given."""

    exit_status = ExitStatus.USAGE
    code = "Usage"


class NotFound(GangOpsError):
    """What was asked for does not exist, or did not come in time (`code` tells which)."""

    exit_status = ExitStatus.NOT_FOUND
    code = "NotFound"


class Fenced(GangOpsError):
    """Someone else pushed first, or a newer writer exists: reload and decide again."""

    exit_status = ExitStatus.LOST_RACE
    code = "LostRace"


class StoreError(GangOpsError):
    """Git, local or remote, did not do what was asked; `code` says why.

    Codes: PushRejected, StateRewritten, StateMissing, SourceMissing, PathNotFound,
    LocalStorageFull, GitFailed, NotOurCluster; of the clone: CloneBroken, CloneBusy, CloneLocked, NotAClone,
    ForeignClone, OutputTooLarge; of this machine: GitMissing, MarkUnreadable, SigningFailed; of a commit:
    SignatureMissing, SignatureInvalid, SignerUnknown, SignerRevoked; of a proposal: BranchExists, NoPushRights.
    """

    code = "GitFailed"


class Unreachable(StoreError):
    """The remote does not answer or does not let us in. Codes: RemoteUnreachable, AuthenticationFailed."""

    exit_status = ExitStatus.UNREACHABLE
    code = "RemoteUnreachable"


class EngineUnavailable(GangOpsError):
    """The engine or an agent cannot be reached now; try again later."""

    exit_status = ExitStatus.UNREACHABLE
    code = "EngineUnavailable"


class EngineRefused(GangOpsError):
    """The engine or an agent will not do this; trying again changes nothing."""

    code = "EngineRefused"


class AuditFailed(GangOpsError):
    """The record does not prove what it claims; `generation` is the first one that is wrong."""

    exit_status = ExitStatus.AUDIT_FAILED
    code = "AuditFailed"

    def __init__(self, message: str, *, generation: int, remedy: str = "", code: str = "") -> None:
        super().__init__(message, remedy=remedy, code=code)
        self.generation = generation


class BrokenInvariant(GangOpsError):
    """Our own bug: stop, commit nothing, and print what is needed to reproduce it."""

    code = "BrokenInvariant"
