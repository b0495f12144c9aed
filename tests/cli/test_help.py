"""Every command explains itself: with an example, in one breath, and to programs."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from layby.cli.command_groups import OF_COMMANDS
from layby.cli.main import MEANT, SECTIONS, cli
from tests.helpers.command_line import typed

MINE = [
    "run", "graph", "runs", "waiting", "why", "tree", "doctor",
    "resolve", "reject", "cancel", "halt", "continue", "invoke",
    "promises", "tasks", "schedules", "migrate", "completion",
    "limits", "triggers", "approvals", "approve", "deny", "wake", "extend", "rerun", "prune",
]  # fmt: skip
WITHOUT_JSON = {("completion",)}


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(cli)
    for name in MINE:
        command = cli.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group):
            yield (name,), command
            continue
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield (name, below), found


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_a_sentence_and_an_example(path):
    """Somebody who has never used it can type it after reading that."""
    said = typed(*path, "--help")
    assert said.code == 0
    assert f"layby {' '.join(path)}" in said.out.split("Example", 1)[-1] or path == ("completion",)
    assert COMMANDS[path].help


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_speaks_json(path):
    """One document, on request."""
    options = {name for each in COMMANDS[path].params for name in each.opts}
    assert ("--json" in options) == (path not in WITHOUT_JSON)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_an_unknown_option_is_wrong_usage(path):
    """Exit code 2, with the way to help."""
    said = typed(*path, "--nonsense")
    assert said.code == 2
    assert "--help" in said.err
    assert "No such option" in said.err


def test_the_list_says_what_each_command_is_for():
    """One line each, and no command is forgotten."""
    said = typed("--help").out
    listed = [each for section in SECTIONS.values() for each in section]
    for each in listed:
        assert f"{each.name}" in said
        assert each.told in said
    assert {each.name for each in listed} >= set(MINE)


def test_listing_loads_no_command():
    """So that help and completion are quick, and no missing extra breaks them."""
    assert cli.commands == {}


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("wating", "waiting"),
        ("promisses", "promises"),
        ("doktor", "doctor"),
        ("ps", "runs"),
        ("help", "--help"),
    ],
)
def test_a_mistyped_command(mistyped, meant):
    """The nearest one is offered, or what other systems call so."""
    said = typed(mistyped)
    assert said.code == 2
    assert f"Did you mean '{meant}'?" in said.err


def test_every_guess_is_something_to_type():
    names = {each.name for section in SECTIONS.values() for each in section}
    assert set(MEANT.values()) <= names | {"--help"}
    assert not set(MEANT) & names


@pytest.mark.parametrize("option", OF_COMMANDS)
def test_an_option_before_its_command(option):
    """It is told where it belongs, not that it is misspelt."""
    said = typed(option, "x", "runs")
    assert said.code == 2
    assert f"'{option}' belongs to a command, and follows it: cli COMMAND {option}" in said.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell):
    """What the shell is to be told, and where to put it."""
    said = typed("completion", shell)
    assert said.code == 0
    assert said.out.startswith("# To have this in every shell, add this to ~/")
    assert "_LAYBY_COMPLETE" in said.out


def test_completion_for_another_shell():
    """Those there are, are listed."""
    assert "'bash', 'zsh', 'fish'" in typed("completion", "cmd").err


@pytest.mark.parametrize("command", ["run", "worker", "dev"])
def test_shells_complete_modules_as_paths(command):
    """As they complete what other commands take."""
    asked = {"COMP_WORDS": f"layby {command} or", "COMP_CWORD": "2"}
    said = CliRunner().invoke(
        cli, prog_name="layby", env=asked | {"_LAYBY_COMPLETE": "bash_complete"}
    )
    assert said.output == "file,or\n"


@pytest.mark.parametrize("group", ["graph", "promises", "tasks", "schedules", "limits"])
def test_no_line_of_a_list_is_cut(group):
    """Whoever reads it knows what each is for."""
    assert "..." not in typed(group, "--help").out.partition("Commands:")[2]
