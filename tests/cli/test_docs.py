"""docs/cli.md tells the truth: what it says to type can be typed."""

import re
import shlex
from pathlib import Path

import click
import pytest

from layby.cli.main import SECTIONS, cli
from layby.core.invariants import INVARIANTS

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
TYPED = re.findall(r"^\$ layby (.+)$", PAGE, re.MULTILINE) + re.findall(r"`layby ([^`]+)`", PAGE)


def found(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command, and what is typed behind its name."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        below = command.get_command(context, words[0])
        assert below is not None, words
        command, words = below, words[1:]
    return command, words


@pytest.mark.parametrize("line", sorted(set(TYPED)))
def test_what_the_page_types_exists(line):
    """Commands and options have these names."""
    if line.startswith("COMMAND"):
        return
    command, rest = found(shlex.split(line))
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    options |= {"--help", "-h"}
    assert [word for word in rest if word.startswith("-") and word not in options] == []


def test_every_command_is_on_the_page():
    """A command nobody can read about is not there."""
    for section in SECTIONS.values():
        for each in section:
            assert f"layby {each.name}" in PAGE or f"`{each.name}`" in PAGE, each.name


def test_the_number_of_invariants():
    """As the doctor would say it."""
    assert set(re.findall(r"(\d+) invariants hold", PAGE)) == {str(len(INVARIANTS))}
