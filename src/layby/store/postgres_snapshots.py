"""Reads of a PostgreSQL database beside its writers: neither waits for the other."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import inf
from time import monotonic

from layby.errors import ReadRefused, StoreBusy
from layby.store.postgres_answers import AnswerWatch
from layby.store.postgres_connection import BY_INDEX, Connector
from layby.store.postgres_session import Arguments, Cursor, ReadingSession
from layby.store.sql_reads import SqlReads
from layby.store.statements import Statements


class TimedSession(ReadingSession):
    """Ends what it is asked when its time is over: between two statements, and within one."""

    def __init__(self, url: str, give_way: Callable[[], None], watch: AnswerWatch) -> None:
        super().__init__(Connector(url, watch, BY_INDEX))
        self._give_way = give_way
        self.until = inf

    def begin_for(self, seconds: float) -> None:
        self.until = monotonic() + seconds
        limit = f"SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}"
        self._run([(limit, None)])

    def _run(self, statements: Sequence[tuple[str, Arguments]]) -> list[Cursor]:
        if monotonic() >= self.until:
            raise StoreBusy("its time is over")
        found = super()._run(statements)
        self._give_way()
        return found


class PostgresSnapshots(SqlReads):
    """See `api.StoreReader`."""

    def __init__(
        self,
        url: str,
        sql: Statements,
        name: str,
        give_way: Callable[[], None],
        watch: AnswerWatch,
    ) -> None:
        self._timed = TimedSession(url, give_way, watch)
        super().__init__(self._timed, sql, name)

    @contextmanager
    def snapshot(self, seconds: float) -> Generator["PostgresSnapshots"]:
        try:
            with self._within():
                self._timed.begin_for(seconds)
                yield self
                self._timed.until = inf
        except StoreBusy as busy:
            raise ReadRefused(f"It took longer than {seconds:g} s: ask for less") from busy
        finally:
            self._timed.until = inf
