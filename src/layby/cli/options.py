"""Options that many commands share, and how their values are parsed."""

import functools
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from layby.cli.connection import find_place
from layby.core.commands import Tags
from layby.core.fields import MAX_PRIORITY
from layby.core.model import FAR
from layby.engine.opening import shown
from layby.errors import LaybyError
from layby.wire import durations

Function = Callable[..., Any]


def reaching(command: Function) -> Function:
    """Adds `--url`, `--token`, `--db` and `--wait`, passed to the command as one `place`."""
    return click.option(
        "--wait", "waits", is_flag=True, help="Wait for a server that does not answer yet."
    )(placed(command))


def placed(command: Function) -> Function:
    """The same for a command with an option `waits` of its own."""

    @click.option("--url", metavar="URL", help="Ask this server.  [env: LAYBY_URL]")
    @click.option("--token", metavar="TOKEN", help="The server's token.  [env: LAYBY_TOKEN]")
    @click.option(
        "--db",
        metavar="ADDRESS",
        help="Use this file or database: sqlite:PATH or postgresql://USER@HOST/DATABASE.  "
        "[env: LAYBY_DB; default: ./layby.db if it "
        "exists, else the server http://127.0.0.1:8001]",
    )
    @functools.wraps(command)
    def reached(
        url: str | None, token: str | None, db: str | None, *, waits: bool, **given: Any
    ) -> Any:
        place = find_place(url, token, db)
        place = replace(place, flags=_flags_as_typed(url, db), waits=waits)
        return command(place=place, **given)

    return reached


def _flags_as_typed(url: str | None, db: str | None) -> str:
    named = (("--url", url), ("--db", db))
    """For a message, so without a password."""
    return " ".join(
        f"{flag} {shlex.quote(shown(text))}" for flag, text in named if text is not None
    )


def as_json(command: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


slotted = click.option(
    "--slots",
    default=4,
    show_default=True,
    type=click.IntRange(min=1),
    help="Task bodies that run at a time.",
)


prioritised = click.option(
    "--priority",
    default=0,
    show_default=True,
    type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
    help="Of tasks that are ready, those of higher priority begin first.",
)


version_tagged = click.option(
    "--version-tag",
    metavar="NAME",
    help="What to call this code.  [default: for each workflow a digest of its source files]",
)


def limited(default: int) -> Callable[[Function], Function]:
    return click.option(
        "--limit",
        default=default,
        show_default=True,
        type=click.IntRange(min=0),
        help="List at most this many; 0 for all.",
    )


class DurationParam(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - none before click 8.4
    name = "duration"

    def __init__(self, least: int = 1, most: int = FAR) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        try:
            return durations.parse(value, self._least, self._most)
        except LaybyError as error:
            self.fail(str(error), param, ctx)


class JsonParam(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - none before click 8.4
    """JSON, or `@FILE` with JSON in it (`@-`: on stdin)."""

    name = "json"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = self._text(value, param, ctx)
        try:
            return json.loads(text)
        except ValueError as error:
            where = f"the content of {value}" if value.startswith("@") else repr(value)
            hint = "" if value.startswith(("@", "{", "[")) else self._hint(value)
            self.fail(f"{where} is not JSON ({error}){hint}", param, ctx)

    def _text(self, value: str, param: Any, ctx: Any) -> str:
        if not value.startswith("@"):
            return value
        try:
            return sys.stdin.read() if value == "@-" else _read(value[1:])
        except (OSError, UnicodeError) as error:
            self.fail(f"{value[1:]} cannot be read: {error}", param, ctx)

    @staticmethod
    def _hint(value: str) -> str:
        return f"; a string needs quotes: '{json.dumps(value, ensure_ascii=False)}'"


class TagParam(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - none before click 8.4
    """`KEY=VALUE`."""

    name = "key=value"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]
        key, equals, text = value.partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not a tag: write KEY=VALUE", param, ctx)
        return key, text


DURATION = DurationParam()
JSON = JsonParam()
graced = click.option(
    "--grace",
    type=DurationParam(least=0),
    default="25s",
    show_default=True,
    help="How long plain `def` and process bodies may take to end at shutdown.",
)


def tagged(help_text: str) -> Callable[[Function], Function]:
    return click.option(
        "--tag", "tags", type=TagParam(), multiple=True, metavar="KEY=VALUE", help=help_text
    )


def tags_of(pairs: tuple[tuple[str, str], ...]) -> Tags:
    return dict(pairs)


def json_or_text(text: str) -> Any:
    """JSON if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
