"""Somebody at a desk: types commands, sees what they say, and has a file before them."""

import json
import os
import signal
from concurrent.futures import Future
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from layby.cli.main import cli
from layby.clock import SystemClock
from layby.core.commands import Command
from layby.core.queries import Query
from layby.core.replies import Reply
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.items import Item
from layby.store.sqlite import SqliteStore
from tests.helpers.worlds import resolve


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document of a command that worked."""
        assert (self.code, self.err) == (0, ""), self
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """What a command that worked has printed."""
        assert (self.code, self.err) == (0, ""), self
        assert "\x1b" not in self.out
        return self.out.splitlines()

    def complains(self, code: int, *parts: str) -> None:
        """One line on stderr with all of this in it, and nothing on stdout."""
        assert (self.code, self.out) == (code, ""), self
        for part in parts:
            assert part in self.err, self.err
        assert "Traceback" not in self.err
        if not self.err.startswith("Usage:"):
            assert self.err.startswith("layby: ")
            assert self.err.count("\n") == 1, self.err


def heed_interrupts() -> None:
    """For a child: whoever runs the tests in the background has told all below to ignore them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def typed(*arguments: object, **env: str) -> Said:
    """`layby` with these arguments, and only these settings in the environment."""
    clean = {name: None for name in os.environ if name.startswith("LAYBY_")}
    result = CliRunner().invoke(cli, [str(each) for each in arguments], env=clean | env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)


class Desk:
    """A folder with a file `layby.db` in it, which nobody owns."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "layby.db"
        self.do()

    def do(self, *requests: Command | Query) -> list[Any]:
        """Straight into the file, in as few commits as there can be; the data of each answer."""
        engine = self.opened()
        futures: list[Future[Any]] = [Future() for _ in requests]
        items = [Item(*each) for each in zip(requests, repeat(resolve), futures, strict=False)]
        try:
            engine.submit(items)
            engine.pump()
            return [self._ok(future.result()) for future in futures]
        finally:
            engine.stop()

    def opened(self) -> Engine:
        """Own the file for a while."""
        store = SqliteStore(self.file, Settings(), next_after, "normal")
        engine = Engine(store, SystemClock())
        engine.start_inline()
        return engine

    @staticmethod
    def _ok(reply: Reply) -> Any:
        assert reply.is_ok, reply
        return reply.data
