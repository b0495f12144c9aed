"""Reads a whole store page by page, so that memory does not grow with it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from layby.core.model import Task, Wait
from layby.store.page_bounds import Pair
from layby.store.session import Session
from layby.store.shrinking import FreeSpace, free_space
from layby.store.sqlite import SqliteReader
from layby.store.statements import Statements
from layby.store.tables import HOLDERS, LIMITS, LISTENERS, MESSAGES, SCHEDULES, WAITS

T = TypeVar("T")
Row = TypeVar("Row", bound=msgspec.Struct)

PAGE: Final = 5_000
_TABLE_OF: Final = {
    each.row: each for each in (WAITS, LISTENERS, MESSAGES, HOLDERS, SCHEDULES, LIMITS)
}


class PageReads:
    """Reads pages of rows; parameters, values and errors of tasks stay where they are."""

    _session: Session
    _sql: Statements

    def count_promises(self) -> int:
        return self._session.row("SELECT count(*) FROM promises")[0]

    def pair_pages(self) -> Iterator[list[Pair]]:
        """All promises in the order of their ids, each with its task."""
        return self._pair_pages("true")

    def _pair_pages(self, where: str) -> Iterator[list[Pair]]:
        cursor = ""
        while pairs := self._pairs(f"{where} AND id > ? ORDER BY id LIMIT {PAGE}", cursor):
            yield pairs
            cursor = pairs[-1][0].id

    def pairs(self, ids: Iterable[str]) -> list[Pair]:
        wanted = sorted(ids)
        return [
            pair
            for start in range(0, len(wanted), PAGE)
            for pair in self._pairs(
                self._sql.dialect.among("id"), _packed(wanted[start : start + PAGE])
            )
        ]

    def held_tasks(self) -> Iterator[Task]:
        for pairs in self._pair_pages("task_holder IS NOT NULL"):
            yield from (task for _, task in pairs if task is not None)

    def limited_tasks(self) -> Iterator[Task]:
        """Those that hold permits, wait for one or were let in."""
        is_limited = "(task_permits IS NOT NULL OR task_gate_at IS NOT NULL)"
        for pairs in self._pair_pages(is_limited):
            yield from (task for _, task in pairs if task is not None)

    def waits_of(self, awaiters: Iterable[str]) -> list[Wait]:
        where = self._sql.dialect.among("awaiter")
        return self._rows(Wait, where, _packed(list(awaiters)))

    def rows(self, row: type[Row]) -> list[Row]:
        return [each for page in self.pages(row) for each in page]

    def pages(self, row: type[Row]) -> Iterator[list[Row]]:
        """All rows of this struct in the order of their key."""
        table = _TABLE_OF[row]
        key = ", ".join(table.key)
        after = f"({key}) > ({', '.join('?' * len(table.key))}) ORDER BY {key} LIMIT {PAGE}"
        cursor: Sequence[str] = [""] * len(table.key)
        while page := self._rows(row, after, *cursor):
            yield page
            cursor = [getattr(page[-1], name) for name in table.key]

    def _rows(self, row: type[Row], where: str, *given: object) -> list[Row]:
        table = _TABLE_OF[row]
        packed = self._sql.dialect.packed(table.columns, "r")
        source = f"(SELECT * FROM {table.name} WHERE {where}) AS r"
        return self._decoded(self._sql.dialect.all_of(packed, source), list[row], given)

    def _pairs(self, where: str, *given: object) -> list[Pair]:
        source = f"(SELECT * FROM promises WHERE {where}) AS promises"
        return self._decoded(
            self._sql.dialect.all_of(self._sql.bare_pair, source), list[Pair], given
        )

    def _decoded(self, statement: str, sort: type[list[T]], given: Sequence[object]) -> list[T]:
        return self._session.read(statement, msgspec.json.Decoder(sort), *given)


class PageReader(PageReads, SqliteReader):
    """Of a file."""

    def damage(self) -> str | None:
        """What SQLite itself finds wrong with the file; None when nothing is."""
        found = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        return None if found == "ok" else str(found)

    def free_space(self) -> FreeSpace:
        return free_space(self._connection)


def _packed(ids: Sequence[str]) -> str:
    return msgspec.json.encode(ids).decode()
