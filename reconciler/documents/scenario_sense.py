"""Do the parts of a scenario fit together? Every contradiction at its line, and all of them at once.

A scenario that contradicts itself has no right answer: it is refused before anything is decided about it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import pairwise

from reconciler.documents.check import validated
from reconciler.documents.loader import load
from reconciler.documents.positions import Path
from reconciler.documents.scenario import FORMAT, JobRow, Running, Scenario
from reconciler.documents.similar import did_you_mean
from reconciler.errors import Diagnostic, Place
from reconciler.model.counting import counted

_SUMMARIES = {
    "UnknownFormat": "Format is not known",
    "UnknownNode": "Node does not exist",
    "UnknownDomain": "Rack or spine does not exist",
    "UnknownJob": "Job does not exist",
    "UnknownQueue": "Queue does not exist",
    "NamedTwice": "Name is used twice",
    "NodeOverfull": "Node is given more GPUs than it has",
    "BadWorkers": "Workers do not match the place",
    "BadGroups": "Groups do not divide the gang",
    "InTheFuture": "Time is after the decision",
    "OneDocument": "File holds more than one document",
}


def read_scenario(content: bytes, file: str) -> tuple[Scenario | None, tuple[Diagnostic, ...]]:
    """The scenario of a file, or everything that is wrong with it."""
    loaded = load(content, file)
    if not loaded.ok or not loaded.documents:
        return None, loaded.diagnostics
    document = loaded.documents[0]
    if len(loaded.documents) > 1:
        place = Place(file, loaded.documents[1].line, 1)
        return None, (_told("OneDocument", "A scenario is a file of its own.", place),)
    written = document.value.get("format") if isinstance(document.value, dict) else None
    if written != FORMAT:
        detail = f"This version reads {FORMAT}; " + (f"found {written!r}." if written else "there is no format.")
        return None, (_told("UnknownFormat", detail, document.place_of(("format",)), f"Write format: {FORMAT}"),)
    scenario, found = validated(document, Scenario)
    if scenario is not None:
        found = tuple(_told(code, detail, document.place_of(path), remedy)
                      for code, detail, path, remedy in contradictions(scenario))  # fmt: skip
    return (scenario if not found else None), found


def _told(code: str, detail: str, place: Place, remedy: str = "") -> Diagnostic:
    return Diagnostic(code=code, summary=_SUMMARIES[code], detail=detail, place=place, remedy=remedy)


Problem = tuple[str, str, Path, str]
"""Code, detail, path of the value, remedy."""


def contradictions(scenario: Scenario) -> Iterator[Problem]:
    """What cannot be true together, in the order of the file."""
    nodes = {name: row.gpus for _, _, row, name in scenario.cluster.rows()}
    yield from _twice(scenario)
    yield from _jobs(scenario)
    for number, promise in enumerate(scenario.promises):
        at: Path = ("promises", number)
        yield from _known(promise.job, [row.job for row in scenario.pending], "UnknownJob", (*at, "job"))
        yield from _known_all(promise.nodes, nodes, "UnknownNode", (*at, "nodes"))
        yield from _known_all(
            promise.waiting_for, [row.job for row in scenario.running], "UnknownJob", (*at, "waiting_for")
        )
    yield from _places(scenario, nodes)
    yield from _promises(scenario, nodes)
    for number, pending in enumerate(scenario.pending):
        if pending.submitted > scenario.now:
            yield "InTheFuture", f"{pending.job} is submitted after now.", ("pending", number, "submitted"), ""
    yield from _answer(scenario, nodes)


def _twice(scenario: Scenario) -> Iterator[Problem]:
    spines = scenario.cluster.spines
    groups: Mapping[str, Iterable[str]] = {
        "nodes": [name for _, _, _, name in scenario.cluster.rows()],
        "racks": [rack.name for spine in spines for rack in spine.racks],
        "spines": [spine.name for spine in spines],
        "queues": [queue.name for queue in scenario.queues],
        "jobs": [row.job for row in scenario.rows],
    }
    for kind, names in groups.items():
        path: Path = {"queues": ("queues",), "jobs": ("pending" if scenario.pending else "running",)}.get(
            kind, ("cluster", "spines")
        )
        seen: set[str] = set()
        for name in names:
            if name in seen:
                yield (
                    "NamedTwice",
                    f"{name} is among the {kind} twice.",
                    path,
                    "Names are how the answer refers to them.",
                )
            seen.add(name)


def _jobs(scenario: Scenario) -> Iterator[Problem]:
    queues = [queue.name for queue in scenario.queues] or ["default"]
    for part, rows in (("running", scenario.running), ("pending", scenario.pending)):
        for number, row in enumerate(rows):
            yield from _known(row.queue, queues, "UnknownQueue", (part, number, "queue"))
            yield from _groups(row, (part, number, "rule"))
            for index, role in enumerate(row.roles):
                if role.min_workers is not None and role.min_workers > role.workers:
                    detail = f"{row.job} can be no larger than its {counted(role.workers, 'worker')}."
                    yield "BadWorkers", detail, (part, number, "roles", index, "min_workers"), ""


def _groups(row: JobRow, path: Path) -> Iterator[Problem]:
    """Each size divides the next, and the last the gang and the smallest gang; groups are of equal workers."""
    if not row.rule.groups or not row.roles:
        return
    if len({role.gpus_each for role in row.roles}) > 1:
        yield "BadGroups", f"Groups of {row.job} need workers of one size.", (*path, "groups"), ""
        return
    least = [role.min_workers for role in row.roles if role.min_workers is not None]
    sizes = sorted({group.size for group in row.rule.groups})
    for total in (sum(role.workers for role in row.roles), *least):
        for small, big in pairwise([*sizes, total]):
            if big % small:
                detail = f"{counted(total, 'worker')} of {row.job} cannot be cut into groups of {sizes}."
                yield "BadGroups", detail, (*path, "groups"), "Each size has to divide the next and the whole."
                return


def _places(scenario: Scenario, nodes: Mapping[str, int]) -> Iterator[Problem]:
    used: dict[str, int] = {}
    for number, row in enumerate(scenario.running):
        at: Path = ("running", number, "placement")
        yield from _known_all(row.placement, nodes, "UnknownNode", at)
        for name, gpus in row.placement.items():
            used[name] = used.get(name, 0) + gpus
            if name in nodes and used[name] > nodes[name]:
                yield "NodeOverfull", f"{name} has {counted(nodes[name], 'GPU')} and is given {used[name]}.", at, ""
        if row.started > scenario.now:
            yield "InTheFuture", f"{row.job} starts after now.", ("running", number, "started"), ""
        yield from _workers(row, at)


def _promises(scenario: Scenario, nodes: Mapping[str, int]) -> Iterator[Problem]:
    """What is promised is free, or is still held by those that the promise waits for."""
    left = dict(nodes)
    for row in scenario.running:
        for name, gpus in row.placement.items():
            left[name] = left.get(name, 0) - gpus
    for number, promise in enumerate(scenario.promises):
        leaving = [row.placement for row in scenario.running if row.job in promise.waiting_for]
        for name, gpus in promise.nodes.items():
            most = left.get(name, 0) + sum(placement.get(name, 0) for placement in leaving)
            if name in nodes and gpus > most:
                detail = f"{promise.job} is promised {counted(gpus, 'GPU')} of {name}, and {most} can become free."
                yield "NodeOverfull", detail, ("promises", number, "nodes"), ""
            left[name] = left.get(name, 0) - gpus


def _workers(row: Running, path: Path) -> Iterator[Problem]:
    each = {role.gpus_each for role in row.roles}
    told = {node: row.ranks.count(node) * max(each, default=0) for node in row.ranks}
    if row.ranks and (set(row.ranks) != set(row.placement) or (len(each) == 1 and told != row.placement)):
        yield "BadWorkers", f"The ranks of {row.job} are on other nodes than its placement.", path, ""
    if not row.roles:
        return
    held = sum(row.placement.values())
    whole = sum(role.workers * role.gpus_each for role in row.roles)
    least = sum((role.min_workers or role.workers) * role.gpus_each for role in row.roles)
    missing = row.missing_workers * row.roles[0].gpus_each
    if not least <= held + missing <= whole:
        need = str(whole) if least == whole else f"{least} to {whole}"
        yield "BadWorkers", f"{row.job} holds {counted(held, 'GPU')}; its roles need {need}.", path, ""


def _answer(scenario: Scenario, nodes: Mapping[str, int]) -> Iterator[Problem]:
    jobs = [row.job for row in scenario.rows]
    spines = [spine.name for spine in scenario.cluster.spines]
    racks = [rack.name for spine in scenario.cluster.spines for rack in spine.racks]
    known: Mapping[str, Container[str]] = {"node": nodes, "rack": racks, "spine": spines}
    wanted = scenario.expect.evict
    evicted = [*(wanted.exactly or ()), *(name for names in wanted.one_of or () for name in names)] if wanted else []
    yield from _known_all(evicted, jobs, "UnknownJob", ("expect", "evict"))
    for job, answer in scenario.expect.jobs.items():
        yield from _known(job, jobs, "UnknownJob", ("expect", "jobs", job))
        for number, where in enumerate(answer.where):
            at: Path = ("expect", "jobs", job, "where", number)
            yield from _known_all([*(where.nodes or ()), *(where.avoids or ())], nodes, "UnknownNode", at)
            for rule in (where.exactly, where.within, where.per):
                for tier, names in (rule or {}).items():
                    code = "UnknownNode" if tier == "node" else "UnknownDomain"
                    yield from _known_all(names, known[tier], code, at)


def _known_all(names: Iterable[str], known: Container[str], code: str, path: Path) -> Iterator[Problem]:
    for name in names:
        yield from _known(name, known, code, path)


def _known(name: str, known: Container[str], code: str, path: Path) -> Iterator[Problem]:
    if name not in known:
        guess = did_you_mean(name, known) if isinstance(known, list | dict) else ""
        yield code, f"There is no {name}.", path, guess
