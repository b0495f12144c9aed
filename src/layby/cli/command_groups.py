"""Groups of commands: loaded when used, listed by purpose, suggested when mistyped."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple

import click

from layby.errors import UsageError, nearest_name

OF_COMMANDS: Final = ("--json", "--db", "--url", "--token", "--wait", "--limit")
"""What most commands take, and the group does not."""


class LazyCommand(NamedTuple):
    """A command's module, and its line in the list, so that listing loads nothing."""

    name: str
    module: str
    told: str


class CommandGroup(click.Group):
    """`aliases`: other names, not listed by help. `sections`: commands loaded when used.

    `default`: the command that is meant if none is named. `meant`: names that are none, and what
    to type instead.
    """

    def __init__(
        self,
        *args: Any,
        aliases: Mapping[str, str] | None = None,
        sections: Mapping[str, Sequence[LazyCommand]] | None = None,
        default: str | None = None,
        meant: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._meant = meant or {}
        self._default = default
        self._aliases = aliases or {}
        self._sections = sections or {}
        self._lazy = {each.name: each for section in self._sections.values() for each in section}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names_none = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        if self._default is not None and names_none:
            args = [self._default, *args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._misplaced(ctx, error) from None

    def _misplaced(self, ctx: click.Context, error: click.NoSuchOption) -> click.UsageError:
        """Many people type the options of a command before it."""
        if self._sections and error.option_name in OF_COMMANDS:
            where = f"{ctx.command_path} COMMAND {error.option_name}"
            told = f"Option '{error.option_name}' belongs to a command, and follows it: {where}"
            return click.UsageError(told, ctx)
        return error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self._aliases.get(cmd_name, cmd_name)
        lazy = self._lazy.get(name)
        if name in self.commands or lazy is None:
            return super().get_command(ctx, name)
        module = _loaded(lazy)
        found = (each for each in vars(module).values() if isinstance(each, click.Command))
        return next(each for each in found if each.name == name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max((len(name) for name in self._lazy), default=0)
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(each.name.ljust(width), each.told) for each in section])
        if not self._sections:
            super().format_commands(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = self._meant.get(args[0]) or nearest_name(args[0], self.list_commands(ctx))
            if not near or "did you mean" in error.message.lower():
                raise
            hint = f"{error.message.rstrip('.')}. Did you mean '{near}'?"
            raise click.UsageError(hint, ctx) from None


def _loaded(lazy: LazyCommand) -> ModuleType:
    try:
        return import_module(f"layby.cli.{lazy.module}")
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("layby"):
            raise
        raise UsageError(
            f"`layby {lazy.name}` needs {missing.name}, which a plain install does not include: "
            "pip install 'layby[server]'"
        ) from None
