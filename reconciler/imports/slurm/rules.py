"""Which queues, classes, people and past use does Slurm's accounting amount to?

An account becomes a queue: its parent the parent, its fair-share the weight, its group limit the ceiling. A QOS becomes
a priority class. Slurm guarantees nobody anything, so no guarantee is made up: what nobody is guaranteed, all may
borrow by weight, as before. What does not come along is noted by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.documents.loader import Tree
from reconciler.documents.schema.base import API_VERSION
from reconciler.errors import Diagnostic, Place, Severity, sorted_by_place
from reconciler.imports.slurm.tables import Row, duration_of, gpus_in, name_of
from reconciler.model.counting import counted

_ROOT: Final = "root"
_MOST_WEIGHT: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Documents by kind, each list in the order of its file; `usage` is GPU-seconds by queue and GPU type."""

    queues: tuple[dict[str, Tree], ...]
    classes: tuple[dict[str, Tree], ...]
    users: tuple[dict[str, Tree], ...]
    usage: Mapping[str, Mapping[str, int]]
    notes: tuple[Diagnostic, ...]


def rules_of(
    associations: Sequence[Row], qos: Sequence[Row], shares: Sequence[Row], types: Sequence[str], mail_domain: str
) -> Rules:
    """The rules of these tables. `types` are the GPU types of the cluster; `mail_domain` "" makes no users."""
    notes: list[Diagnostic] = []
    accounts = _accounts(associations, notes)
    leaves = accounts.keys() - {str(row.get("parentname", "")) for row in accounts.values()}
    queues = [_queue(account, row, accounts, types, notes) for account, row in accounts.items()]
    if mail_domain:
        for account, queue in zip(accounts, queues, strict=True):
            _add_members(queue, account, associations, mail_domain)
    return Rules(
        queues=tuple(queues),
        classes=tuple(_classes(qos, notes)),
        users=tuple(_users(associations, mail_domain, notes)),
        usage=_usage(shares, leaves, types, notes),
        notes=sorted_by_place(notes),
    )


# --- queues ---


def _accounts(associations: Sequence[Row], notes: list[Diagnostic]) -> dict[str, Row]:
    """The rows that stand for whole accounts, by account, parents before children."""
    found: dict[str, Row] = {}
    for row in associations:
        account = row.get("account", "")
        if not account or row.get("user"):
            continue
        if not name_of(account):
            notes.append(_note("accounts", "NameNotUsable", "Account has no usable name", f"{account!r} was left out."))
        elif row.get("partition"):
            notes.append(
                _note("accounts", "PartitionShare", "Share of one partition is not carried over", f"{account!r}.")
            )
        else:
            found.setdefault(account, row)
    return dict(sorted(found.items(), key=lambda item: (_depth(item[0], found), item[0] != _ROOT, item[0])))


def _depth(account: str, rows: Mapping[str, Row]) -> int:
    depth, at = 0, account
    while depth <= len(rows) and (parent := rows[at].get("parentname", "")) in rows and parent != at:
        depth, at = depth + 1, parent
    return depth


def _queue(
    account: str, row: Row, accounts: Mapping[str, Row], types: Sequence[str], notes: list[Diagnostic]
) -> dict[str, Tree]:
    spec: dict[str, Tree] = {}
    parent = row.get("parentname", "")
    if parent in accounts and parent != account:
        spec["parent"] = name_of(parent)
    weight = row.get("fairshare", row.get("share", ""))
    if weight.isdecimal() and int(weight) > 1:
        spec["weight"] = min(_MOST_WEIGHT, int(weight))
    ceiling = _typed(gpus_in(row.get("grptres", "")), types)
    if ceiling:
        spec["ceiling"] = dict(sorted(ceiling.items()))
    limits: dict[str, Tree] = {}
    if longest := duration_of(row.get("maxwall", "")):
        limits["timeLimit"] = longest
    if most := max(gpus_in(row.get("maxtres", row.get("maxtresperjob", ""))).values(), default=0):
        limits["gpusPerJob"] = most
    if row.get("maxsubmit", row.get("maxsubmitjobs", "")).isdecimal():
        limits["pendingJobs"] = int(row.get("maxsubmit", row.get("maxsubmitjobs", "")))
    if limits:
        spec["limits"] = limits
    for column in ("grptresmins", "grpjobs", "grpwall", "maxjobs"):
        if row.get(column):
            told = f"{column}={row[column]} of account {account!r} has no counterpart."
            notes.append(_note("accounts", "LimitNotCarriedOver", "A limit of an account is not carried over", told))
    return _document("Queue", name_of(account), spec)


def _add_members(queue: dict[str, Tree], account: str, associations: Iterable[Row], domain: str) -> None:
    people = sorted(
        {row["user"] for row in associations if row.get("account") == account and row.get("user")} - {_ROOT}
    )
    spec = queue["spec"]
    if people and isinstance(spec, dict):
        spec["members"] = {"users": [f"{user}@{domain}" for user in people]}


def _typed(counts: Mapping[str, int], types: Sequence[str]) -> dict[str, int]:
    """Counts by our types. What was said without a type counts for every type that was not named."""
    if not counts:
        return {}
    known = {kind.lower(): kind for kind in types}
    found = {known[kind.lower()]: count for kind, count in counts.items() if kind.lower() in known}
    if "" in counts and not found:
        found = dict.fromkeys(types, counts[""])
    return found


# --- classes ---


def _classes(qos: Iterable[Row], notes: list[Diagnostic]) -> Iterable[dict[str, Tree]]:
    rows = {row["name"]: row for row in qos if row.get("name") and name_of(row["name"])}
    for name, row in sorted(rows.items()):
        priority = row.get("priority", "0")
        spec: dict[str, Tree] = {"value": min(1_000_000, int(priority)) if priority.isdecimal() else 0}
        if name == "normal" or len(rows) == 1:
            spec["default"] = True
        if not row.get("preempt"):
            spec["preempts"] = "never"
        if grace := duration_of(row.get("gracetime", "")):
            spec["grace"] = grace
        if spared := duration_of(row.get("preemptexempttime", "")):
            spec["minRuntime"] = spared
        if most := max(gpus_in(row.get("maxtrespu", "")).values(), default=0):
            spec["maxGpusPerUser"] = most
        factor = row.get("usagefactor", "1")
        if _is_share(factor):
            spec["countsTowardsFairShare"] = f"{round(float(factor) * 100)}%"
        yield _document("PriorityClass", name_of(name), spec)
        for column in ("grptres", "maxtres", "maxjobspu", "maxwall", "flags"):
            if row.get(column):
                told = f"{column}={row[column]} of QOS {name!r} has no counterpart."
                notes.append(_note("qos", "LimitNotCarriedOver", "A limit of a QOS is not carried over", told))


def _is_share(text: str) -> bool:
    """A factor below 1, which our classes have as a share."""
    try:
        return 0 <= float(text) < 1
    except ValueError:
        return False


# --- people ---


def _users(associations: Iterable[Row], domain: str, notes: list[Diagnostic]) -> Iterable[dict[str, Tree]]:
    people: dict[str, list[str]] = {}
    for row in associations:
        if row.get("user") and row["user"] != _ROOT:
            people.setdefault(row["user"], []).append(row.get("account", ""))
    if people and not domain:
        told = f"{counted(len(people), 'person has', 'people have')} no address: name their domain with --mail-domain to write User documents."
        notes.append(_note("accounts", "NoMailDomain", "People were left out", told))
        return
    for user in sorted(people):
        if name := name_of(user):
            yield _document("User", name, {"emails": [f"{user}@{domain}"], "unixUser": user})


# --- use ---


def _usage(
    shares: Iterable[Row], leaves: Iterable[str], types: Sequence[str], notes: list[Diagnostic]
) -> dict[str, dict[str, int]]:
    """GPU-seconds that still count in Slurm, by queue: of GPUs where they are counted, else of whatever it bills."""
    wanted, found = {*leaves}, dict[str, dict[str, int]]()
    billed = False
    for row in shares:
        account = row.get("account", "").strip()
        if account not in wanted or row.get("user", "").strip() or not types:
            continue
        gpus = gpus_in(row.get("grptresraw", ""))
        if gpus:  # minutes
            counts = {
                kind: count * 60 for kind, count in _typed(gpus, types[:1] if set(gpus) == {""} else types).items()
            }
        else:
            billed = billed or row.get("rawusage", "").isdecimal()
            counts = {types[0]: int(row["rawusage"])} if row.get("rawusage", "").isdecimal() else {}
        counts = {kind: count for kind, count in counts.items() if count}
        if counts:
            found[name_of(account)] = counts
    if billed:
        told = "sshare has no gres/gpu in GrpTRESRaw: what Slurm bills was taken for GPU-seconds. Only ratios matter."
        notes.append(_note("shares", "UsageIsBilling", "Past use is in Slurm's billing units", told))
    return dict(sorted(found.items()))


# --- small parts ---


def _document(kind: str, name: str, spec: dict[str, Tree]) -> dict[str, Tree]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _note(source: str, code: str, summary: str, detail: str) -> Diagnostic:
    return Diagnostic(code, summary, detail, Place(source), "", Severity.WARNING)
