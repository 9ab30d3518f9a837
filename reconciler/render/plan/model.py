"""The plan as a value: what every renderer reads, what JSON has field by field, and what a comment is made from.

A plan may come from somebody's artefact, so its text is anybody's: renderers escape all of it. What is absent is
left out, so that a reader never meets an invented zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from reconciler.documents.quantities import print_instant
from reconciler.model.units import Instant


class Step(StrEnum):
    """What becomes of one job, in the order a reader wants it: who pays first."""

    PREEMPT = "preempt"
    STOP = "stop"
    REPLACE = "replace"
    MOVE = "move"
    RESIZE = "resize"
    LOST = "lost"
    DELAY = "delay"
    PLACE = "place"
    PROMISE = "promise"
    START = "start"
    RUNNING = "running"
    KEEP = "keep"
    WAIT = "wait"
    HOLD = "hold"
    CHANGE = "change"
    RELEASE = "release"
    FINISH = "finish"
    CANCEL = "cancel"
    DROP = "drop"
    PHASE = "phase"

    @property
    def sign(self) -> str:
        """As people know it from other plans: `+` gets GPUs, `-` loses them, `~` goes on differently, `.` waits."""
        return SIGNS[self]


SIGNS: dict[Step, str] = {
    Step.PREEMPT: "-",
    Step.STOP: "-",
    Step.REPLACE: "-/+",
    Step.MOVE: "~",
    Step.RESIZE: "~",
    Step.LOST: "-",
    Step.DELAY: "!",
    Step.PLACE: "+",
    Step.PROMISE: "+",
    Step.START: "+",
    Step.RUNNING: "+",
    Step.KEEP: "=",
    Step.WAIT: ".",
    Step.HOLD: ".",
    Step.CHANGE: "~",
    Step.RELEASE: "-",
    Step.FINISH: "=",
    Step.CANCEL: "-",
    Step.DROP: "-",
    Step.PHASE: "~",
}

COUNTED: dict[Step, tuple[str, str]] = {
    Step.PREEMPT: ("preempted", "preempted"),
    Step.STOP: ("stopped", "stopped"),
    Step.REPLACE: ("replaced", "replaced"),
    Step.MOVE: ("moved", "moved"),
    Step.RESIZE: ("resized", "resized"),
    Step.LOST: ("lost", "lost"),
    Step.DELAY: ("kept from starting", "kept from starting"),
    Step.PLACE: ("placed", "placed"),
    Step.PROMISE: ("placed after victims", "placed after victims"),
    Step.START: ("started", "started"),
    Step.RUNNING: ("now running", "now running"),
    Step.KEEP: ("spared", "spared"),
    Step.WAIT: ("waiting", "waiting"),
    Step.HOLD: ("held", "held"),
    Step.CHANGE: ("changed in place", "changed in place"),
    Step.RELEASE: ("released", "released"),
    Step.FINISH: ("finished", "finished"),
    Step.CANCEL: ("cancelled", "cancelled"),
    Step.DROP: ("removed", "removed"),
    Step.PHASE: ("in progress", "in progress"),
}
"""What a headline says of one job, and of several."""

VICTIMS = frozenset({Step.PREEMPT, Step.STOP, Step.MOVE, Step.RESIZE, Step.DELAY})
"""Jobs that pay for a change; of `stop`, those whose file is still there. Never folded away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One field of a job that differs. Both values are empty where they are not to be shown."""

    field: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLine:
    """One node of a placed gang: which ranks are there, and what they use. All in the short form of a node list."""

    node: str
    ranks: str
    gpus: str
    numa: str
    nics: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """Tasks of an array to which the same happens, by number in the short form: `0-127`, and the GPUs of each."""

    step: Step
    tasks: str
    count: int
    gpus: int
    reason: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What becomes of one job. `was` is its place without the change, `own`: its file is part of the change.

    `lost_gpu_seconds` is work that is thrown away, `checkpoint` the last one before that. `starts` and `would_start`
    are forecasts with and without the change; `likely` is the first of them if all run no longer than nine in ten of
    their queue did. `victims` are those it waits for, or has evicted. An array is one row: `tasks` has what becomes of
    them, `gpus` and `lost_gpu_seconds` are those of all, `step` is the one told first.
    """

    step: Step
    job: str
    gpus: int
    priority_class: str
    reason: str
    why: str
    own: bool = False
    where: str = ""
    was: str = ""
    nodes: int = 0
    racks: int = 0
    within: str = ""
    comm_ns: int = 0
    comm_bound_ns: int = 0
    lost_gpu_seconds: int = 0
    grace_ns: int = 0
    checkpoint: Instant | None = None
    preemptor: str = ""
    victims: tuple[str, ...] = ()
    starts: Instant | None = None
    likely: Instant | None = None
    would_start: Instant | None = None
    file: str = ""
    line: int = 0
    edits: tuple[Edit, ...] = ()
    ranks: tuple[RankLine, ...] = ()
    tasks: tuple[Tasks, ...] = ()

    @property
    def jobs(self) -> int:
        """How many gangs it speaks of."""
        return sum(group.count for group in self.tasks) or 1

    @property
    def is_victim(self) -> bool:
        """It pays for what others wanted."""
        return self.step in VICTIMS and not (self.own and self.step is not Step.PREEMPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slip:
    """A waiting job whose forecast start moves; None: no start can be told."""

    job: str
    before: Instant | None = None
    after: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLine:
    """One queue and GPU type, in GPUs, once all that stops has stopped. `ceiling` None: there is no limit.

    `over_ceiling`: so many of `after` are above a ceiling that the change sets or lowers; they go on.
    """

    queue: str
    depth: int
    gpu_type: str
    guaranteed: int
    before: int
    after: int
    ceiling: int | None = None
    guaranteed_before: int | None = None
    ceiling_before: int | None = None
    over_ceiling: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """One rack, a letter a node in the order of their names: see `LEGEND`."""

    group: str
    rack: str
    nodes: str
    cells: str

    @property
    def touched(self) -> bool:
        """The change does something here."""
        return any(cell in self.cells for cell in "NPR")


LEGEND: dict[str, str] = {
    "N": "newly used",
    "P": "given up",
    "R": "given up, then newly used",
    "#": "in use",
    "x": "down",
    "d": "cordoned",
}
"""A digit is the number of free GPUs; `+` stands for ten and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem or a remark: of a file, of a policy, of the hardware. `new`: the base does not have it."""

    code: str
    severity: str
    summary: str
    detail: str
    remedy: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    path: str = ""
    new: bool = True

    @property
    def is_error(self) -> bool:
        return self.severity == "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """So much of what is live goes at once that the reconciler waits for an acknowledgement. `limit` in per cent."""

    gone: int
    of: int
    what: str
    limit: int
    acknowledge: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One gang that would leave a node, and the work that this throws away."""

    job: str
    source: str
    target: str
    lost_gpu_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidy:
    """Moves that together free the NVLink domain on these nodes: proposed, not done. Phi in millionths, of its type."""

    nodes: str
    gpus: int
    hops: tuple[Hop, ...]
    phi_before_ppm: int
    phi_after_ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The cluster in GPUs once all that stops has stopped; `phi_ppm` and `cross_rack_ppm` in millionths.

    `cross_rack_ppm`: of the GPUs of gangs on several nodes, those whose gang spans racks.
    """

    capacity: int
    busy: int
    idle: int
    stranded: int
    phi_ppm: int
    cross_rack_ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What the plan stands on. `digest` binds it to both desired trees, the state commit and the decision version;
    `inputs_digest` is that of the decision itself, time included. `base` "": compared with what holds now.
    `state` "": there is no record yet, and the cluster is taken to be empty, its nodes as declared and well.
    """

    cluster: str
    base: str
    head: str
    state: str
    generation: int
    at: Instant
    state_at: Instant
    digest: str
    decision_version: int
    package_version: str
    inputs_digest: str = ""

    @property
    def command(self) -> tuple[str, str]:
        """What prints the same plan again, in two halves: together they are wider than a terminal."""
        state = f"--state {self.state[:8]} " if self.state else ""
        return self._revisions, f"{state}--at {stamp(self.at)}"

    @property
    def assumes(self) -> str:
        """What is taken for granted, "" with a record."""
        return "" if self.state else "there is no state branch here: nothing runs, all declared nodes are well"

    @property
    def check(self) -> str:
        """What says whether the plan is still true."""
        return f"{self._revisions} --check {self.digest[:12]}"

    @property
    def _revisions(self) -> str:
        base = f"--base {self.base[:8]} " if self.base else ""
        return f"gangops plan {base}--head {self.head[:8]}"


def stamp(at: Instant) -> str:
    """An instant as `--at` takes it, nothing of it lost."""
    return print_instant(at).replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The difference a change makes. `decided` False: its files allow no decision; then only `findings` speak.

    `files` are the paths that differ between base and head.
    """

    basis: Basis
    decided: bool
    rows: tuple[Row, ...]
    unchanged: int
    before: Numbers
    after: Numbers
    lost_gpu_seconds: int
    phi_limit_ppm: int
    findings: tuple[Finding, ...] = ()
    quotas: tuple[QuotaLine, ...] = ()
    racks: tuple[Rack, ...] = ()
    slips: tuple[Slip, ...] = ()
    drift: tuple[Finding, ...] = ()
    removals: tuple[Removal, ...] = ()
    files: tuple[str, ...] = field(default=())
    tidying: tuple[Tidy, ...] = ()

    @property
    def changes(self) -> bool:
        return bool(self.rows)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What the change may not be merged with: errors that the base does not have."""
        return tuple(f for f in self.findings if f.is_error and f.new)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Remarks on what the change brings."""
        return tuple(f for f in self.findings if not f.is_error and f.new)

    @property
    def counts(self) -> dict[Step, int]:
        """Jobs by step, in the order of telling; each task of an array is one."""
        found: dict[Step, int] = {}
        for row in self.rows:
            for step, count in [(group.step, group.count) for group in row.tasks] or [(row.step, 1)]:
                found[step] = found.get(step, 0) + count
        return {step: found[step] for step in Step if step in found}

    @property
    def lines(self) -> dict[Step, int]:
        """Rows by step: a row for a job, or for all tasks of an array."""
        found: dict[Step, int] = {}
        for row in self.rows:
            found[row.step] = found.get(row.step, 0) + 1
        return found

    @property
    def victims(self) -> tuple[Row, ...]:
        """Who pays, the most lost work first."""
        return tuple(sorted((r for r in self.rows if r.is_victim), key=lambda r: (-r.lost_gpu_seconds, -r.gpus, r.job)))
