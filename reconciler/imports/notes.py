"""What became of a foreign job: Job documents, a note for whatever was not carried over as it was, and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from reconciler.documents.check import check_file
from reconciler.errors import Diagnostic, Place, Severity, sorted_by_place
from reconciler.imports.layout import job_files

_SUMMARIES: Final[Mapping[str, str]] = {
    # notes
    "NotCarriedOver": "Not carried over",
    "CarriedOverChanged": "Carried over in another form",
    "ValueAssumed": "A value was assumed",
    "BodyChanged": "The script was changed",
    "BodyNeedsSlurm": "The script needs a command of Slurm",
    # refusals
    "NoGpus": "Nothing asks for a GPU",
    "NoQueue": "No queue to charge",
    "NoCommand": "There is nothing to run",
    "CannotBecomeJob": "This cannot be one Job",
    "UnknownWorkload": "This kind of object is not read",
    "ScriptRefused": "sbatch would refuse this script",
    "NotExported": "This cannot be exported",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """`jobs` are Job documents as trees, in the order of the schema. With `errors` there are none.

    `corrected` is the input with known damage undone, when it was refused for that damage. `hints` are remarks that
    hold for the whole input; they are no notes.
    """

    jobs: tuple[dict[str, Any], ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    errors: tuple[Diagnostic, ...] = ()
    hints: tuple[str, ...] = ()
    corrected: str | None = None

    def strict(self) -> Imported:
        """The same with every note as an error, and therefore without jobs when there is any."""
        if not self.notes:
            return self
        raised = [replace(note, severity=Severity.ERROR) for note in self.notes]
        return replace(self, jobs=(), notes=(), errors=sorted_by_place([*self.errors, *raised]))


@dataclass(slots=True, kw_only=True)
class Notes:
    """Gathers what is to be told about one file while it is translated."""

    file: str
    notes: list[Diagnostic] = field(default_factory=list)
    errors: list[Diagnostic] = field(default_factory=list)

    def note(self, code: str, detail: str, *, line: int = 0, at: str = "", remedy: str = "") -> None:
        """Something that did not come along, or not as it was; `at` is the option or path in the input."""
        place = _place(self.file, line, at)
        self.add(Diagnostic(code, _SUMMARIES[code], _printable(detail), place, _printable(remedy), Severity.WARNING))

    def refuse(self, code: str, detail: str, *, line: int = 0, at: str = "", remedy: str = "") -> None:
        """Why there will be no Job."""
        place = _place(self.file, line, at)
        self.add(Diagnostic(code, _SUMMARIES[code], _printable(detail), place, _printable(remedy)))

    def add(self, diagnostic: Diagnostic) -> None:
        """A diagnostic made elsewhere."""
        (self.errors if diagnostic.is_error else self.notes).append(diagnostic)

    def imported(self, *jobs: dict[str, Any], hints: tuple[str, ...] = ()) -> Imported:
        """The result: the jobs, unless something was refused. Nothing that our own schema refuses is handed out."""
        if jobs and not self.errors:
            self.errors += _invalid(jobs, self.file)
        return Imported(
            jobs=() if self.errors else jobs,
            notes=sorted_by_place(self.notes),
            errors=sorted_by_place(self.errors),
            hints=() if self.errors else hints,
        )


def _invalid(jobs: Sequence[dict[str, Any]], file: str) -> list[Diagnostic]:
    """What the schema has against these jobs; their lines are of no file, so only the path is told."""
    found = check_file(job_files(jobs, []), file).diagnostics
    return [replace(d, place=Place(file, path=_printable(d.place.path))) for d in found if d.is_error]


def _place(file: str, line: int, at: str) -> Place:
    return Place(file, line, 1 if line else 0, _printable(at))


def _printable(text: str) -> str:
    """One line that a terminal shows as it is: other people's names are among these words."""
    cut = text if len(text) <= 400 else f"{text[:400]}..."
    return "".join(sign if sign.isprintable() else "?" for sign in cut)
