"""Connections to PostgreSQL: how they are set up, and what happens while it is away."""

import random
import threading
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from layby.core.pauses import Pauses
from layby.errors import StoreAway, StoreUnavailable, StoreUnreadable
from layby.store.postgres_address import without_password
from layby.store.postgres_answers import UNKNOWN, AnswerWatch, Backend, StoreConnection
from layby.store.postgres_failures import explained, told

OLDEST_POSTGRES: Final = 140_000
NEWER_LIMITS: Final = 170_000
"""From this version on a transaction as a whole may have a limit."""
CONNECT_S: Final = 5
LOOK_UP_S: Final = 10.0
"""How long we try to find out what became of a commit."""
PAUSES: Final = Pauses(0.05, longest=2.0)

SESSION: Final = {
    "search_path": "layby",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "30s",
    # Shorter than PostgreSQL looks for deadlocks (1 s): a batch that waits is replayed before.
    "lock_timeout": "800ms",
    # Nobody waits for the locks of a process that was stopped within a transaction.
    "idle_in_transaction_session_timeout": "15s",
    # Between two requests, or two announcements, a connection is idle for as long as it likes.
    "idle_session_timeout": "0",
    "jit": "off",
}
"""What every connection has."""
BY_INDEX: Final = {
    # Statements name rows by their keys. On a new table, of which nothing is known, the planner
    # would rather read it all, and the prepared plan would stay when the table has grown.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "random_page_cost": "0.01",
    "seq_page_cost": "0.01",
    "plan_cache_mode": "force_generic_plan",
}
"""What the writer has besides."""
_SET: Final = "SELECT set_config(key, value, false) FROM json_each_text(CAST(%s AS json))"

Connection = StoreConnection


class Connector:
    """Makes connections to one database. While that is away it does not try again at once."""

    def __init__(
        self, url: str, watch: AnswerWatch, settings: Mapping[str, str] | None = None
    ) -> None:
        """`watch`: everything waits for answers, so everything may wait for one that is lost."""
        self._url = url
        self._watch = watch
        self.name = without_password(url)
        """What messages call it."""
        self._settings = {**SESSION, **(settings or {})}
        self._pauses = iter(PAUSES)
        self._again_at = 0.0
        self._failure: StoreUnavailable | StoreUnreadable | None = None

    def connect(self) -> Connection:
        """A new connection; while the database is away, the same failure until it is time."""
        if self._failure is not None and monotonic() < self._again_at:
            raise type(self._failure)(*self._failure.args)
        try:
            connection = self._connect()
        except psycopg.Error as error:
            failure = explained(error, self.name, self._url, connecting=True)
            self._failure = failure if isinstance(failure, StoreUnreadable) else _away(failure)
            self._again_at = monotonic() + next(self._pauses) * random.uniform(0.5, 1.0)  # noqa: S311
            raise self._failure from None  # psycopg repeats the address
        self._failure, self._pauses = None, iter(PAUSES)
        return connection

    def ask_again(
        self,
        statement: str,
        arguments: Sequence[Any],
        unless: str | None = None,
        former: Backend = UNKNOWN,
    ) -> Any:
        """One cell, asked through new connections until there is an answer; None in the end.

        `former`: ended before, as nobody but it could go on with what is asked about.
        A transaction of the future is "aborted": the database has forgotten it in a crash.
        """
        until = monotonic() + LOOK_UP_S
        pause = threading.Event()
        while monotonic() < until:
            try:
                with self.connect() as connection:
                    connection.end(former)
                    row = connection.execute(statement, arguments).fetchone()  # pyright: ignore[reportArgumentType] - a text of our own
                if row is not None and row[0] != unless:
                    return row[0]
            except psycopg.errors.InvalidParameterValue:
                return "aborted"
            except (psycopg.Error, StoreUnavailable):
                pass
            pause.wait(0.05)
        return None

    def _connect(self) -> Connection:
        connection = StoreConnection.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_S,
            fallback_application_name="layby",
            client_encoding="UTF8",  # whatever the environment or the role say
            keepalives_idle=30,
            tcp_user_timeout=30_000,
        )
        connection.watch = self._watch
        try:
            self._check_version(connection.info.server_version)
            self._check_encoding(connection.info.parameter_status("server_encoding"))
            connection.prepared_max = 1_000
            connection.adapters.register_dumper(int, Int8Dumper)
            connection.adapters.register_dumper(int, Int8BinaryDumper)
            settings = settings_of(connection.info.server_version, self._settings)
            connection.execute(_SET, (_json(settings),))
            connection.look_at_backend()
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_version(self, version: int) -> None:
        if version < OLDEST_POSTGRES:
            why = f"PostgreSQL {version // 10_000} is too old: 14 or later is needed"
            raise StoreUnreadable(f"{self.name}: {why}")

    def _check_encoding(self, encoding: str | None) -> None:
        if encoding != "UTF8":
            remedy = "make one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
            raise StoreUnreadable(
                f"{self.name}: it keeps texts as {encoding}, and layby's can only be kept as UTF8: "
                f"{remedy}"
            )


def settings_of(version: int, settings: Mapping[str, str]) -> Mapping[str, str]:
    """With what this PostgreSQL has besides; each kind of connection has limits of its own."""
    return {**settings, "transaction_timeout": "0"} if version >= NEWER_LIMITS else settings


def _json(settings: Mapping[str, str]) -> str:
    cells = ", ".join(f'"{key}": "{value}"' for key, value in settings.items())
    return f"{{{cells}}}"


def _away(failure: Exception) -> StoreUnavailable:
    return failure if isinstance(failure, StoreUnavailable) else StoreAway(told(failure))
