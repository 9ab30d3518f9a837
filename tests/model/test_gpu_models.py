"""Names of GPUs: what drivers report is known for what documents say, and for nothing else."""

from __future__ import annotations

import pytest

from reconciler.model.gpu_models import KNOWN_AS, as_reported, models_of

SAME: dict[str, tuple[str, str]] = {
    "an SXM H100": ("H100-SXM5-80GB", "NVIDIA H100 80GB HBM3"),
    "a PCIe A100, blanks elsewhere": ("A100-PCIe-80GB", "NVIDIA A100 80GB PCIe"),
    "a card from before the maker's name was printed": ("V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
    "a tray of NVL72": ("GB200-NVL72", "NVIDIA GB200"),
    "the family alone": ("H100", "NVIDIA H100 NVL"),
    "the family of an old card": ("V100", "Tesla V100-SXM2-16GB"),
}


@pytest.mark.parametrize(("gpu_type", "printed"), SAME.values(), ids=SAME)
def test_a_type_goes_by_what_the_driver_prints(gpu_type: str, printed: str) -> None:
    assert as_reported(printed) in models_of(gpu_type)


@pytest.mark.parametrize(
    ("gpu_type", "printed"),
    [
        ("H100-SXM5-80GB", "NVIDIA H100 PCIe"),
        ("H100-SXM5-80GB", "NVIDIA H200"),
        ("H100", "NVIDIA H200"),
        ("A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"),
        ("A10", "NVIDIA A100-SXM4-80GB"),
        ("L4", "NVIDIA L40"),
        ("B200", "NVIDIA GB200"),
        ("house-special", "NVIDIA H100 80GB HBM3"),
    ],
)
def test_a_type_goes_by_no_other_card(gpu_type: str, printed: str) -> None:
    assert as_reported(printed) not in models_of(gpu_type)


def test_a_profile_may_name_further_models_as_the_driver_prints_them() -> None:
    assert models_of("house-special", ("NVIDIA H100 80GB HBM3",)) == ("H100-80GB-HBM3",)


def test_no_name_stands_for_two_cards() -> None:
    names = [name for known in KNOWN_AS.values() for name in known] + list(KNOWN_AS)
    assert sorted(names) == sorted(set(names))
