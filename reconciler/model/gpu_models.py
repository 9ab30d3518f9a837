"""By which names do drivers report a GPU that documents call by another one?

`H100-SXM5-80GB` is what people write, `NVIDIA H100 80GB HBM3` what the driver prints: one card. Names are compared in
the form in which agents report them: without `NVIDIA `, dashes for blanks. Source: product names in the list of
supported GPUs of NVIDIA's driver (570), as `nvidia-smi -L` prints them. What is not here, a profile says itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

KNOWN_AS: Final[Mapping[str, tuple[str, ...]]] = {
    "Tesla-V100-SXM2-16GB": ("V100-SXM2-16GB",),
    "Tesla-V100-SXM2-32GB": ("V100-SXM2-32GB",),
    "Tesla-V100-SXM3-32GB": ("V100-SXM3-32GB",),
    "Tesla-V100-PCIE-16GB": ("V100-PCIE-16GB", "V100-PCIe-16GB"),
    "Tesla-V100-PCIE-32GB": ("V100-PCIE-32GB", "V100-PCIe-32GB"),
    "Tesla-T4": ("T4", "T4-16GB"),
    "A10": ("A10-24GB",),
    "A10G": ("A10G-24GB",),
    "A30": ("A30-24GB", "A30-PCIe-24GB"),
    "A40": ("A40-48GB",),
    "A100-SXM4-40GB": ("A100-SXM-40GB",),
    "A100-SXM4-80GB": ("A100-SXM-80GB",),
    "A100-PCIE-40GB": ("A100-PCIe-40GB",),
    "A100-80GB-PCIe": ("A100-PCIE-80GB", "A100-PCIe-80GB"),
    "A800-SXM4-80GB": ("A800-SXM-80GB",),
    "L4": ("L4-24GB",),
    "L40": ("L40-48GB",),
    "L40S": ("L40S-48GB",),
    "H100-80GB-HBM3": ("H100-SXM5-80GB", "H100-SXM-80GB", "H100-SXM5", "H100-SXM"),
    "H100-PCIe": ("H100-PCIE-80GB", "H100-PCIe-80GB", "H100-PCIE"),
    "H100-NVL": ("H100-NVL-94GB",),
    "H200": ("H200-SXM5-141GB", "H200-SXM-141GB", "H200-141GB", "H200-SXM5", "H200-SXM"),
    "H200-NVL": ("H200-NVL-141GB",),
    "H800": ("H800-SXM5-80GB", "H800-SXM-80GB"),
    "H20": ("H20-SXM5-96GB", "H20-96GB"),
    "GH200-480GB": ("GH200-96GB",),
    "B200": ("B200-SXM6-180GB", "B200-SXM-180GB", "B200-180GB", "B200-SXM"),
    "B300-SXM6-AC": ("B300-SXM6-288GB", "B300-SXM-288GB", "B300-288GB", "B300-SXM"),
    "GB200": ("GB200-NVL72", "GB200-186GB", "GB200-192GB"),
    "GB300": ("GB300-NVL72", "GB300-288GB"),
}
"""The names people use for each name that is reported."""


def as_reported(printed: str) -> str:
    """A name as the driver prints it in the form agents report it in."""
    return printed.replace("NVIDIA ", "").replace(" ", "-")


def models_of(gpu_type: str, declared: Iterable[str] = ()) -> tuple[str, ...]:
    """The names that GPUs of a type may be reported by, sorted, beside the type itself.

    `declared` are further ones as the driver prints them. A type that names a family alone (`H100`) goes by every
    name of that family: which of its cards it is was not said.
    """
    found = {as_reported(name) for name in declared}
    found |= {name for name, known in KNOWN_AS.items() if gpu_type in known or gpu_type == _family(name)}
    return tuple(sorted(found - {gpu_type}))


def _family(name: str) -> str:
    return name.removeprefix("Tesla-").partition("-")[0]
