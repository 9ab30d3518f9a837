"""What does `nvidia-smi topo -m` (or -mp) say about the GPUs and NICs of a node?

Reads the matrix as people paste it: behind prompts, quoted, underlined, with spaces for tabs, of any era. Values are
taken from a cell only where it is certain which column the cell belongs to. NVLink speed is not asked here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from reconciler.discovery.groups import joined
from reconciler.discovery.parsed import LONGEST_LINE, Kind, Notes, Parsed, failure, listed, shortened
from reconciler.documents.cpulist import parse_cpus, print_cpus
from reconciler.documents.loader import Tree

_MOST_DEVICES: Final = 256
_MOST_HEADERS: Final = 200
_FIRST_WORDS: Final = 8  # where a row's label may stand, behind prefixes

_ESCAPE: Final = re.compile(r"(?:\x1b|\^\[)\[[0-9;]{0,16}[A-Za-z]|\[[0-9;]{1,8}m")
_AFFINITY: Final = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_WORD: Final = re.compile(r"[^\s|>:]+")  # "host>GPU0" and "host: GPU0" have a word GPU0
_GLUED: Final = re.compile(r"(?:GPU[0-9]{1,4}|NIC[0-9]{1,4}|mlx[0-9]_(?:bond_?)?[0-9]{1,3})+")
_ONE_OF_GLUED: Final = re.compile(r"GPU[0-9]{1,4}|NIC[0-9]{1,4}|mlx[0-9]_(?:bond_?)?[0-9]{1,3}")
_GPU: Final = re.compile(r"GPU[0-9]{1,4}")
_NIC_NUMBER: Final = re.compile(r"NIC[0-9]{1,4}")
_DEVICE: Final = re.compile(r"GPU[0-9]{1,4}|NIC[0-9]{1,4}|[A-Za-z][A-Za-z0-9]*[0-9_][A-Za-z0-9_.-]*")
_LEGEND: Final = re.compile(r"\b(NIC[0-9]{1,4})\s*[:=]\s*([A-Za-z][\w.-]{0,63})")
_NVLINK: Final = re.compile(r"NV([0-9]{1,3})")
_P2P: Final = frozenset({"OK", "NS", "CNS", "GNS", "TNS", "DR", "U"})
# From near to far; SOC is what SYS was called.
_RANK: Final = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
_MESSAGES: Final = (
    ("No devices were found", "NO_DEVICES", 'nvidia-smi reported "No devices were found"'),
    ("couldn't communicate with the NVIDIA driver", "DRIVER", "nvidia-smi could not talk to the driver"),
    ("Failed to initialize NVML", "DRIVER", "nvidia-smi could not initialise NVML: driver and library do not match"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    name: str
    start: int  # in characters, for tables whose tabs became blanks


@dataclass(slots=True, kw_only=True)
class _Matrix:
    devices: tuple[str, ...]
    affinity: tuple[_Column, ...]
    rows: list[tuple[str, str, int]] = field(default_factory=list)  # label, the rest of the line, where it starts


def parse(text: str) -> Parsed:
    """The links between devices, NVLink domains, nearest NICs and affinities of one node."""
    lines = [_ESCAPE.sub("", line[:LONGEST_LINE]) for line in text.split("\n")]
    found = _matrices(lines)
    ours = [m for m in found if not _is_p2p(m)]
    if not ours:
        for message, code, reason in _MESSAGES:
            if message in text:
                return failure(Kind.NVIDIA_TOPO, code, reason)
        return failure(Kind.NVIDIA_TOPO, "NO_MATRIX", "no GPU matrix with a header line and rows was found")
    notes = Notes()
    if len(ours) > 1:
        notes.gap("EXTRA_MATRIX", f"{len(ours)} topo matrices in one text; only the first is read")
    if len(found) > len(ours):
        notes.warn("EXTRA_MATRIX", "a -p2p matrix (OK cells) stands beside it and is not part of topo -m")
    matrix = ours[0]
    cut = _cut_cell(text, lines[-1])
    gpus = [d for d in matrix.devices if _GPU.fullmatch(d)]
    links, rests = _links(matrix, notes)
    _check_rows(matrix, gpus, links, notes)
    if notes.errors:
        return notes.parsed(Kind.NVIDIA_TOPO, {})
    if not text.endswith("\n") and _LEGEND.search(lines[-1]):
        notes.gap("TRUNCATED", "the text ends inside the NIC legend: its last name may go on")
        lines.pop()
    nics = _nic_names(matrix, gpus, lines, notes)
    counts = _nvlink_counts(gpus, links)
    if not counts and _hides_nvlink(lines):
        notes.warn("NO_NV_LEGEND", "the legend has no NV# line (topo -mp): NVLink is not shown, whether there or not")
    domains = joined(gpus, counts)
    content: dict[str, Tree] = {
        "gpu_count": len(gpus),
        "gpus": [*gpus],
        "nics": {**nics},
        "links": {row: {**cells} for row, cells in links.items()},
        "nvlink_count": {f"{one}-{other}": count for (one, other), count in counts.items()},
        "nvlink_domains": [[*domain] for domain in domains],
        "nvlink_domain_all_to_all": [
            all(pair in counts for pair in itertools.combinations(domain, 2)) for domain in domains
        ],
        "nearest_nics": _nearest(gpus, [*nics], links),
        **_affinities(matrix, gpus, rests, cut, notes),
    }
    return notes.parsed(Kind.NVIDIA_TOPO, content)


def _matrices(lines: list[str]) -> list[_Matrix]:
    """Each header line with the rows below it; headers without rows are dropped."""
    found: list[_Matrix] = []
    for line in lines:
        if len(found) > _MOST_HEADERS:
            break
        header = _header(line)
        if header:
            found.append(header)
        elif found and (row := _row(line)):
            found[-1].rows.append(row)
    return [matrix for matrix in found if matrix.rows]


def _header(line: str) -> _Matrix | None:
    """The columns that a line names, when it names GPUs and nothing but devices and affinities."""
    if "GPU" not in line:
        return None
    affinity = tuple(_Column(name=m[0], start=m.start()) for m in _AFFINITY.finditer(line))
    words = line[: affinity[0].start if affinity else None].split()
    while words and not _DEVICE.fullmatch(words[0]):
        words.pop(0)  # quote marks and prefixes
    devices: list[str] = []
    for word in words:
        if _GLUED.fullmatch(word):
            devices += _ONE_OF_GLUED.findall(word)
        elif _DEVICE.fullmatch(word) and not _is_link(word):
            devices.append(word)
        else:
            return None
    if not any(_GPU.fullmatch(device) for device in devices):
        return None
    return _Matrix(devices=tuple(devices), affinity=affinity)


def _is_link(word: str) -> bool:
    return word == "X" or word in _RANK or bool(_NVLINK.fullmatch(word))


def _row(line: str) -> tuple[str, str, int] | None:
    """Label, cells and where they start, of a line whose first cell is a link or a peer-to-peer mark.

    The label need not be in the header: a row too many is an error to report, not a line to pass over.
    """
    words = list(itertools.islice(_WORD.finditer(line), _FIRST_WORDS + 1))
    for word, after in itertools.pairwise(words):
        if _DEVICE.fullmatch(word[0]) and (_is_link(after[0]) or after[0] in _P2P):
            return word[0], line[word.end() :], word.end()
    return None


def _is_p2p(matrix: _Matrix) -> bool:
    words = {word for _, rest, _ in matrix.rows for word in rest.split()}
    return bool(words & _P2P) and not any(_is_link(word) and word != "X" for word in words)


def _links(matrix: _Matrix, notes: Notes) -> tuple[dict[str, dict[str, str]], dict[str, _Rest]]:
    """Link of each row and column, and what stands in each row after the links."""
    links: dict[str, dict[str, str]] = {}
    rests: dict[str, _Rest] = {}
    if len(matrix.devices) > _MOST_DEVICES or len(set(matrix.devices)) < len(matrix.devices):
        notes.fail("BAD_HEADER", "the header names a device twice, or too many devices")
        return links, rests
    for label, line, start in matrix.rows:
        if label not in matrix.devices:
            notes.fail("UNKNOWN_ROW", f"row {shortened(label)} has no column in the header")
            continue
        if label in links:
            notes.fail("DUPLICATE_ROW", f"two rows for {label}")
            continue
        cells, rest = _cells(line, start, len(matrix.devices))
        bad = next((cell for cell in cells if cell and not _is_link(cell)), None)
        if bad is not None:
            notes.fail("UNKNOWN_LINK", f"row {label}: {shortened(bad, 20)} is no link of topo -m")
        elif len(cells) < len(matrix.devices) or "" in cells:
            notes.fail(
                "TRUNCATED", f"row {label} is incomplete: {sum(map(bool, cells))} of {len(matrix.devices)} links"
            )
        links[label] = dict(zip(matrix.devices, cells, strict=False))
        rests[label] = rest
    return links, rests


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """What follows the links: cells where tabs divide them, words with their columns otherwise."""

    cells: tuple[str, ...] | None
    words: tuple[_Column, ...]


def _cells(line: str, start: int, count: int) -> tuple[list[str], _Rest]:
    """The `count` link cells of a row, fewer when the row ends early, and the rest of it."""
    tabbed = [cell.strip() for cell in line.split("\t")]
    # The tab after the label leaves an empty first cell; a row of blanks with one stray tab is not of this form.
    if len(tabbed) > count and not tabbed[0] and not any(" " in cell for cell in tabbed[1 : count + 1]):
        return tabbed[1 : count + 1], _Rest(cells=tuple(tabbed[count + 1 :]), words=())
    words = [_Column(name=m[0], start=start + m.start()) for m in re.finditer(r"\S+", line)]
    return [word.name for word in words[:count]], _Rest(cells=None, words=tuple(words[count:]))


def _check_rows(matrix: _Matrix, gpus: list[str], links: Mapping[str, Mapping[str, str]], notes: Notes) -> None:
    """Every GPU has a row, a device is X to itself alone, and both directions agree."""
    if notes.errors and not links:
        return
    missing = [gpu for gpu in gpus if gpu not in links]
    if missing:
        notes.fail("TRUNCATED", f"{len(gpus)} GPUs in the header, no row for {listed(missing)}")
    without = [d for d in matrix.devices if d not in links and d not in missing]
    if without and not notes.errors:
        notes.gap("MISSING_ROWS", f"no row for {listed(without)}")
    position = {device: index for index, device in enumerate(matrix.devices)}
    for row, cells in links.items():
        for column, link in cells.items():
            if link and (link == "X") != (row == column):
                notes.fail("BAD_DIAGONAL", f"{row}-{column} is {link}")
            back = links.get(column, {}).get(row)
            if link and back and position[row] < position[column] and link != back:
                notes.fail("ASYMMETRIC", f"{row}-{column} is {link} but {column}-{row} is {back}")


def _nic_names(matrix: _Matrix, gpus: list[str], lines: list[str], notes: Notes) -> dict[str, str | None]:
    """RDMA device of each NIC: its label, or for `NICn` what the legend says."""
    legend: dict[str, str | None] = {}
    for line in lines:
        for label, device in _LEGEND.findall(line):
            legend[label] = device if legend.get(label, device) == device else None
    names = {d: legend.get(d) if _NIC_NUMBER.fullmatch(d) else d for d in matrix.devices if d not in gpus}
    unknown = [label for label, name in names.items() if name is None]
    if unknown:
        notes.gap("NIC_LEGEND_MISSING", f"device names of {listed(unknown)} unknown")
    return names


def _hides_nvlink(lines: list[str]) -> bool:
    """A legend that comes as far as PIX, and has no NV#."""
    starts = {line.strip(" \t>|").partition("=")[0].strip() for line in lines if "=" in line}
    return "PIX" in starts and "NV#" not in starts


def _nvlink_counts(gpus: list[str], links: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str], int]:
    return {
        (one, other): int(nvlink[1])
        for one, other in itertools.combinations(gpus, 2)
        if (nvlink := _NVLINK.fullmatch(links[one][other]))
    }


def _nearest(gpus: list[str], nics: list[str], links: Mapping[str, Mapping[str, str]]) -> dict[str, Tree]:
    """Per GPU the best link to any NIC, and all NICs at that link."""
    if not nics:
        return {}
    nearest: dict[str, Tree] = {}
    for gpu in gpus:
        best = min((links[gpu][nic] for nic in nics), key=lambda link: _RANK.get(link, 0))
        nearest[gpu] = {"link": best, "nics": [nic for nic in nics if links[gpu][nic] == best]}
    return nearest


def _cut_cell(text: str, last_line: str) -> str | None:
    """The label of a row that the text ends in, inside a cell: that cell may go on."""
    row = None if text.endswith("\n") else _row(last_line)
    return row[0] if row and last_line[-1:].isdigit() else None


def _affinities(
    matrix: _Matrix, gpus: list[str], rests: Mapping[str, _Rest], cut: str | None, notes: Notes
) -> dict[str, Tree]:
    """CPU and NUMA affinity and NUMA id of each GPU; None for a column that the table does not have."""
    columns = [column.name for column in matrix.affinity]
    cpus: dict[str, Tree] = {}
    numa: dict[str, Tree] = {}
    ids: dict[str, Tree] = {}
    for gpu in gpus:
        cells = _assigned(matrix.affinity, rests[gpu])
        if cells is None:
            notes.gap("AFFINITY_UNCLEAR", f"{gpu}: it is not certain which affinity columns its cells belong to")
            cells = {}
        if gpu == cut and cells:
            notes.gap("TRUNCATED", f"the text ends inside the row of {gpu}: its last cell may go on")
            cells = dict([*cells.items()][:-1])
        cpu_ids = _numbers(gpu, "CPU Affinity", cells, notes)
        node_ids = _numbers(gpu, "NUMA Affinity", cells, notes)
        own = _numbers(gpu, "GPU NUMA ID", cells, notes)
        cpus[gpu] = print_cpus(cpu_ids) if cpu_ids else None
        numa[gpu] = [*node_ids] if node_ids else None
        ids[gpu] = own[0] if len(own) == 1 else None
    return {
        "cpu_affinity": cpus if "CPU Affinity" in columns else None,
        "numa_affinity": numa if "NUMA Affinity" in columns else None,
        "gpu_numa_id": ids if "GPU NUMA ID" in columns else None,
    }


def _assigned(columns: tuple[_Column, ...], rest: _Rest) -> dict[str, str] | None:
    """Cell of each column; None when the row does not show which cell is whose."""
    names = [column.name for column in columns]
    if rest.cells is not None:
        # nvidia-smi puts an empty cell between "NUMA Affinity" and "GPU NUMA ID".
        cells = list(rest.cells)
        if len(names) == 3 and len(cells) == 4 and not cells[2]:
            cells.pop(2)
        whole = len(cells) >= len(names) or not any(cells)
        return dict(zip(names, cells, strict=False)) if whole and not any(cells[len(names) :]) else None
    if not rest.words or len(rest.words) == len(names):
        return dict(zip(names, (word.name for word in rest.words), strict=False))
    if len(rest.words) > len(names):
        return None
    by_start = {column.start: column.name for column in columns}
    if all(word.start in by_start for word in rest.words):
        return {by_start[word.start]: word.name for word in rest.words}
    return None


def _numbers(gpu: str, column: str, cells: Mapping[str, str], notes: Notes) -> tuple[int, ...]:
    """The numbers a cell lists; none for an empty cell, N/A, or what is no list."""
    cell = cells.get(column, "")
    if cell in {"", "N/A"}:
        return ()
    try:
        return parse_cpus(cell)
    except ValueError:
        notes.gap("BAD_AFFINITY", f"{gpu}: {shortened(cell, 40)} under {column}")
        return ()
