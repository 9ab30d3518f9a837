"""The page "Coming from Slurm" stays true: click knows each command on it, with the options and arguments shown.

Nothing is run. Whole commands stand in console blocks after `$ `; code spans in the text may leave arguments out.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from reconciler.cli.root import root
from reconciler.documents.desired import load_desired, source_file
from reconciler.model.units import CommitId, NodeName, QueueName
from reconciler.runtime.demo.files import cluster_files

ROOT = Path(__file__).parents[2]
PAGE = ROOT / ".github" / "COMING_FROM_SLURM.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^```\w+\n.*?^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
WIDTH = 80


def resolved(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that words after `gangops` name, and those that are left for it. Raises click.UsageError."""
    command: click.Command = root
    while isinstance(command, click.Group):
        context = click.Context(command)
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
    return command, words


def check(line: str, *, whole: bool) -> None:
    """Does click accept this? Raises click.UsageError. `whole`: no argument may be missing."""
    program, *words = shlex.split(line)
    assert program == "gangops"
    command, words = resolved(words)
    context = click.Context(command)
    given, more, _ = command.make_parser(context).parse_args(words)
    if more:
        raise click.UsageError(f"{line}: {more} are too many")
    for parameter in command.params:
        value = given.get(parameter.name or "")
        said = isinstance(value, str | tuple | bool) and value != ()  # click has a sentinel of its own for what was not
        if said and isinstance(parameter.type, click.Choice | click.IntRange):
            parameter.type_cast_value(context, value)
        if whole and parameter.required and not said:
            raise click.MissingParameter(ctx=context, param=parameter)


def shown(text: str) -> list[str]:
    """The commands of all console blocks; one that goes on in the next line ends in a backslash."""
    blocks = "\n".join(BLOCK.findall(text)).replace("\\\n", " ")
    return [line[2:] for line in blocks.splitlines() if line.startswith("$ ")]


def sections(text: str) -> dict[str, str]:
    """Heading to text, of each numbered section."""
    parts = re.split(r"^### (\d+\. .*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def anchor(heading: str) -> str:
    """What a forge makes of a heading: lower case, punctuation gone, each space a dash."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


TEXT = PAGE.read_text()
SECTIONS = sections(TEXT)
PROSE = FENCE.sub("", TEXT)


@pytest.mark.parametrize("line", shown(TEXT))
def test_a_command_of_a_block_can_be_typed_as_it_stands(line: str) -> None:
    check(line, whole=True)


@pytest.mark.parametrize("line", sorted({s for s in SPAN.findall(PROSE) if s.startswith("gangops ")}))
def test_a_command_in_the_text_exists_with_its_options(line: str) -> None:
    check(line, whole=False)


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_section_shows_a_command_and_names_only_options_it_has(heading: str) -> None:
    text = SECTIONS[heading]
    lines = shown(text)
    assert lines, "a section without a command of ours"
    known = {opt for line in lines for p in resolved(shlex.split(line)[1:])[0].params for opt in p.opts}
    for span in SPAN.findall(FENCE.sub("", text)):
        if re.match(r"--[a-z-]+( |$)", span):  # Slurm's own are written with an equals sign
            assert {word for word in span.split() if word.startswith("--")} <= known, span


def test_at_least_twenty_commands_lead_to_their_sections() -> None:
    rows = re.findall(r"^\| (`.*`) \| \[.*\]\(#(.*)\) \|$", TEXT, re.MULTILINE)
    assert len(rows) >= 20
    assert [link for _, link in rows] == [anchor(heading) for heading in SECTIONS]
    for (typed, _), heading in zip(rows, SECTIONS, strict=True):
        assert typed.strip("`").split("`")[0].split()[0] in heading, heading


def test_the_file_on_the_page_is_valid_in_the_demo() -> None:
    (yaml,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    files = {**cluster_files(4), "cluster-state/maintenance/course.yaml": yaml}
    loaded = load_desired([source_file(path, text.encode()) for path, text in files.items()], CommitId("c" * 40))
    assert loaded.diagnostics == ()
    assert loaded.desired is not None
    windows = [(window.name, window.node, window.members) for window in loaded.desired.windows]
    vision = (QueueName("vision"),)
    assert windows == [("course", NodeName(f"gpu-00{number}"), vision) for number in (1, 2)]


def test_output_fits_a_terminal() -> None:
    blocks = "\n".join(BLOCK.findall(TEXT))
    assert [line for line in blocks.splitlines() if len(line) > WIDTH and not line.startswith("$ ")] == []


def test_readme_leads_here() -> None:
    assert "](.github/COMING_FROM_SLURM.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "line",
    [
        "gangops squeue",
        "gangops get",
        "gangops get partitions",
        "gangops new pod x",
        "gangops drain gpu-001 --never",
        "gangops logs nlp/sft --rank first",
        "gangops history nlp/sft more",
    ],
)
def test_the_check_refuses_what_does_not_exist(line: str) -> None:
    with pytest.raises(click.UsageError):
        check(line, whole=True)
