"""Options of the whole test suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-goldens` writes golden files anew and prints how they differ: a person reads that before it is kept."""
    parser.addoption("--update-goldens", action="store_true", help="write golden files anew and print the difference")
