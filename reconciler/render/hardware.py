"""What a captured output says, on one page: the facts a support engineer looks for first, then what is odd.

Takes the neutral formats as plain trees, so that what is printed as JSON and what is shown are the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from reconciler.documents.hostlist import fold
from reconciler.model.counting import counted
from reconciler.render.table import below, table

_Tree = Mapping[str, Any]  # as parsed from JSON


def summary(tree: _Tree, *, width: int) -> str:
    """The page, no line wider than `width` where words allow; ends without a line break."""
    name = str(tree["format"] or "unknown kind").partition("/")[0]
    lines = [f"{name}: {tree['status']}"]
    show = _SUMMARIES.get(name)
    if show and tree["status"] != "error":
        lines += show(tree, width)
    for severity in ("errors", "warnings"):
        if tree[severity]:
            lines += ["", severity.capitalize()]
            lines += [line for remark in tree[severity] for line in below(_plain(remark), width)]
    return "\n".join(lines)


def _plain(text: object) -> str:
    """Foreign text without what a terminal would act on."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def _or_dash(value: object) -> str:
    return "-" if value is None or value == "" else _plain(value)


def _folded(names: Sequence[str]) -> str:
    """Names as a host list; as they are when they are no host names."""
    try:
        return fold(names) or "-"
    except ValueError:
        return _plain(",".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else ""))


def _facts(pairs: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Name and value, a line each; long values go on below."""
    lines: list[str] = []
    for name, value in pairs:
        first, *rest = below(value, width - 14, "") or ["-"]
        lines += [f"  {name:<11} {first}", *(f"{'':14}{line}" for line in rest)]
    return lines


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, right: str = "") -> list[str]:
    return ["", *table(header, rows, width=width, right=right).split("\n")] if rows else []


def _nvidia(tree: _Tree, width: int) -> list[str]:
    nics = [f"{label} {_or_dash(name)}" if label != name else label for label, name in tree["nics"].items()]
    whole = tree["nvlink_domain_all_to_all"]
    domains = [
        f"{counted(len(group), 'GPU')} ({group[0]} to {group[-1]}), {'all to all' if full else 'NOT all to all'}"
        for group, full in zip(tree["nvlink_domains"], whole, strict=True)
    ]
    facts = [
        ("GPUs", str(tree["gpu_count"])),
        ("NICs", f"{len(nics)}: {', '.join(nics)}" if nics else "none shown"),
        ("NVLink", "; ".join(domains) or "none shown"),
    ]
    rows = []
    for gpu in tree["gpus"]:
        near = tree["nearest_nics"].get(gpu)
        numa = (tree["numa_affinity"] or {}).get(gpu)
        rows.append(
            [
                gpu,
                _or_dash(None if numa is None else ",".join(map(str, numa))),
                _or_dash((tree["cpu_affinity"] or {}).get(gpu)),
                f"{near['link']} {', '.join(near['nics'])}" if near else "-",
            ]
        )
    return _facts(facts, width) + _rows(["GPU", "NUMA", "CPUs", "NEAREST NICS"], rows, width)


def _numactl(tree: _Tree, width: int) -> list[str]:
    rows = [
        [str(n["id"]), _or_dash(n["cpu_count"]), _or_dash(n["size_mb"]), _or_dash(n["free_mb"]), _or_dash(n["cpus"])]
        for n in tree["nodes"]
    ]
    lines = _rows(["NODE", "CPUS", "MB", "FREE MB", "CPU LIST"], rows, width, "NODE CPUS MB")
    distances = tree["distances"]
    if distances:
        columns = distances.get("columns", distances["ids"])
        cells = [[str(i), *map(str, row)] for i, row in zip(distances["ids"], distances["matrix"], strict=True)]
        lines += _rows(["DISTANCE", *map(str, columns)], cells, max(width, 5 * len(columns) + 10))
    return lines


def _nccl(tree: _Tree, width: int) -> list[str]:
    facts = [
        ("GPUs", str(tree["gpu_count"])),
        ("NICs", str(tree["nic_count"])),
        ("Linked", "; ".join(f"{counted(len(group), 'GPU')}" for group in tree["link_domains"]) or "none shown"),
        ("NVSwitches", str(len(tree["nvswitches"]))),
    ]
    rows = []
    for gpu in tree["gpus"]:
        near = tree["nearest_nics"].get(gpu["busid"])
        rows.append(
            [
                gpu["busid"],
                _or_dash(gpu["dev"]),
                _or_dash(gpu["numaid"]),
                str(gpu["link_total"]),
                f"{near['link']} {', '.join(map(_or_dash, near['nics']))}" if near else "-",
            ]
        )
    lines = _facts(facts, width) + _rows(["GPU", "DEV", "NUMA", "LINKS", "NEAREST NICS"], rows, width)
    nets = [
        [_or_dash(nic["busid"]), _or_dash(nic["numaid"]), ", ".join(_net(net) for net in nic["nets"]) or "-"]
        for nic in tree["nics"]
    ]
    return lines + _rows(["NIC", "NUMA", "NETS"], nets, width)


def _net(net: _Tree) -> str:
    speed = net["speed_mbps"]
    return f"{_or_dash(net['name'])} {speed // 1000} Gb/s" if speed else _or_dash(net["name"])


def _rocm(tree: _Tree, width: int) -> list[str]:
    groups = tree["link_domains"]
    facts = [
        ("GPUs", str(tree["gpu_count"])),
        ("NUMA", ", ".join(_or_dash(node) for node in tree["numa_node"])),
        ("XGMI", "; ".join(f"GPUs {', '.join(map(str, group))}" for group in groups or ()) or "none shown"),
    ]
    return _facts(facts, width)


def _lldp(tree: _Tree, width: int) -> list[str]:
    rows = [[_plain(name), _or_dash(n["switch"]), _or_dash(n["port"])] for name, n in tree["neighbors"].items()]
    return _rows(["INTERFACE", "SWITCH", "PORT"], rows, width)


def _ibnetdiscover(tree: _Tree, width: int) -> list[str]:
    rows = [
        [_plain(name), str(len(s["hosts"])), f"hosts {_folded(s['hosts'])}; up {_folded(s['uplinks'])}"]
        for name, s in tree["switches"].items()
    ]
    return _rows(["SWITCH", "HOSTS", "WHICH"], rows, width, "HOSTS")


def _topology(tree: _Tree, width: int) -> list[str]:
    plugin = tree.get("plugin") or "none"
    if plugin == "tree":
        facts = [
            (
                "Plugin",
                f"tree, {counted(len(tree['switches']), 'switch', 'switches')}, {counted(tree['node_count'], 'node')}",
            ),
            ("Roots", _plain(", ".join(tree["roots"]) or "none")),
        ]
        rows = [
            [_plain(s["name"]), _or_dash(s["level"]), _folded(s["children"] or s["nodes"])] for s in tree["switches"]
        ]
        return _facts(facts, width) + _rows(["SWITCH", "LEVEL", "BELOW IT"], rows, width)
    groups = tree.get(f"{plugin}s", ())
    facts = [
        ("Plugin", f"{_plain(plugin)}, {counted(len(groups), 'group')}, {counted(tree.get('node_count', 0), 'node')}")
    ]
    if tree.get("block_sizes"):
        facts.append(("Sizes", ", ".join(map(str, tree["block_sizes"]))))
    rows = [[_plain(g["name"]), str(len(g["nodes"])), _folded(g["nodes"])] for g in groups]
    return _facts(facts, width) + _rows(["NAME", "NODES", "WHICH"], rows, width, "NODES")


def _topologies(tree: _Tree, width: int) -> list[str]:
    lines: list[str] = []
    for topology in tree["topologies"]:
        default = " (cluster default)" if topology["cluster_default"] else ""
        lines += ["", f"{_plain(topology['name'])}{default}", *_topology(topology, width)]
    return lines


def _gres(tree: _Tree, width: int) -> list[str]:
    rows = [
        [
            _or_dash(e["name"]),
            _or_dash(e["type"]),
            _or_dash(e["count"]),
            _or_dash(e["cores"]),
            _folded(e["nodes"]) if e["nodes"] else "all",
            _or_dash(",".join(e["files"] or ())),
        ]
        for e in tree["entries"]
    ]
    facts = [("AutoDetect", _or_dash(tree["autodetect_default"]))]
    return _facts(facts, width) + _rows(["NAME", "TYPE", "COUNT", "CORES", "NODES", "FILES"], rows, width, "COUNT")


def _nodes(tree: _Tree, width: int) -> list[str]:
    rows = [
        [
            str(len(n["names"])),
            _or_dash(n["cpus"]),
            _or_dash(n["real_memory_mb"]),
            _or_dash(n["state"]),
            _or_dash(",".join(":".join(str(p) for p in (g["name"], g["type"], g["count"]) if p) for g in n["gres"])),
            _folded(n["names"]),
        ]
        for n in tree["nodes"]
    ]
    lines = _rows(["NODES", "CPUS", "MB", "STATE", "GRES", "WHICH"], rows, width, "NODES CPUS MB")
    partitions = [
        [_plain(p["name"]) + ("*" if p["default"] else ""), _or_dash(p["max_time_s"]), _folded(p["nodes"])]
        for p in tree.get("partitions", ())
    ]
    return lines + _rows(["PARTITION", "MAX S", "NODES"], partitions, width)


def _hostlists(tree: _Tree, width: int) -> list[str]:
    rows = [[_plain(i["expr"])[:40], str(len(i["hosts"])), _plain(" ".join(i["hosts"][:200]))] for i in tree["items"]]
    return _rows(["LIST", "NAMES", "WHICH"], rows, width, "NAMES")


def _sbatch(tree: _Tree, width: int) -> list[str]:
    facts = [("Shell", _or_dash(tree["shell"]))]
    rows = [
        [
            _or_dash(c.get("job_name")),
            _span(c.get("nodes")),
            _or_dash(c.get("ntasks_total")),
            _gpus(c.get("gpus", {})),
            _or_dash(c.get("time_limit_s")),
            _or_dash(",".join(c.get("partitions", ()))),
        ]
        for c in tree["components"]
    ]
    lines = _facts(facts, width) + _rows(["JOB", "NODES", "TASKS", "GPUS", "MAX S", "PARTITIONS"], rows, width)
    for title, key in (("Not carried over", "unsupported"), ("Without effect on placement", "informational")):
        if tree[key]:
            lines += ["", title, *below(", ".join(map(_plain, tree[key])), width)]
    if tree["ignored"]:
        lines += ["", "Lines that sbatch skips"]
        lines += [row for i in tree["ignored"] for row in below(f"line {i['line']}: {_plain(i['reason'])}", width)]
    return lines


def _span(counts: _Tree | None) -> str:
    if counts is None:
        return "-"
    return str(counts["min"]) if counts["min"] == counts["max"] else f"{counts['min']}-{counts['max']}"


def _gpus(gpus: _Tree) -> str:
    """All of them, how they lie, and their type: `16 (8 a node) h100`."""
    if not gpus:
        return "none"
    total = (
        gpus["total"] if "total" in gpus else f"{gpus['total_min']}-{gpus['total_max']}" if "total_min" in gpus else ""
    )
    each = [f"{gpus[key]} a {word}" for key, word in (("per_node", "node"), ("per_task", "task")) if key in gpus]
    told = f"{total} ({', '.join(each)})" if total and each else str(total) or ", ".join(each)
    return f"{told} {_plain(gpus['type'])}" if "type" in gpus else told


_SUMMARIES: Final[Mapping[str, Callable[[_Tree, int], list[str]]]] = {
    "nvidia-smi-topo-m": _nvidia,
    "numactl-hardware": _numactl,
    "nccl-topo-xml": _nccl,
    "rocm-smi-showtopo": _rocm,
    "lldpctl-json": _lldp,
    "ibnetdiscover": _ibnetdiscover,
    "slurm-topology-conf": _topology,
    "slurm-topology-yaml": _topologies,
    "slurm-gres-conf": _gres,
    "slurm-conf-nodes": _nodes,
    "hostlist": _hostlists,
    "sbatch": _sbatch,
}
