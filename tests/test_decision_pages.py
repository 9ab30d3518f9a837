"""Are the pages of decisions numbered one by one, each with its number in its title?"""

from __future__ import annotations

from pathlib import Path

PAGES = Path(__file__).parents[1] / ".github" / "decisions"


def test_numbers_are_unique_and_leave_none_out() -> None:
    names = sorted(path.name for path in PAGES.glob("*.md"))
    assert [name[:4] for name in names] == [f"{number:04}" for number in range(len(names))]
    assert len(names) > 1


def test_a_title_begins_with_the_number_of_its_file() -> None:
    for path in PAGES.glob("*.md"):
        number = "NNNN" if path.name == "0000-template.md" else path.name[:4]
        assert path.read_text(encoding="utf-8").startswith(f"# {number}: "), path.name
