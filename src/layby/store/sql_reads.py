"""Lists, counts and snapshots from SQL tables: every read that is not by id."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from layby.core.flows import FindFlow
from layby.core.joins import counted
from layby.core.limit import Limit
from layby.core.model import FAR, Holder, Listener, Message, Millis, Pruning, PublishedFlow, Wait
from layby.core.queries import (
    CountItems,
    ExplainPromise,
    GetRecords,
    GetRun,
    ListHeld,
    ListRuns,
    ListWaiting,
    ReadItems,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
)
from layby.core.replies import (
    Explanation,
    FlowData,
    ItemCounts,
    LimitStanding,
    PromisePage,
    RowPage,
    SchedulePage,
    TaskPage,
    WaitingPage,
)
from layby.core.schedule_row import Schedule
from layby.core.state import State
from layby.core.stats import StatsData
from layby.errors import StoreUnreadable
from layby.store import by_time, index_counts, list_pages, page_bounds, searches
from layby.store.neighbours import SqlNeighbours, standings
from layby.store.page_bounds import CHUNK, Pair, Room, Shown, next_chunk, size_of
from layby.store.session import Session, packed
from layby.store.statements import LAST, Statements, without
from layby.store.tables import (
    FLOWS,
    HOLDERS,
    LIMITS,
    LISTENERS,
    MESSAGES,
    PROMISES,
    PRUNING,
    SCHEDULES,
    WAITS,
    Table,
)

T = TypeVar("T")

_pairs = msgspec.json.Decoder(list[Pair])
_schedules = msgspec.json.Decoder(list[Schedule])
_flows = msgspec.json.Decoder(list[PublishedFlow])
_texts = msgspec.json.Decoder(list[str])
_item_states = msgspec.json.Decoder(list[tuple[str, str, str | None, int]])


@cache
def _decoder_of(sort: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(sort)


def _key_of(table: Table, row: Any) -> list[Any]:
    """Of a row, or of the promise of a pair."""
    first = row[0] if table is PROMISES else row
    return [getattr(first, name) for name in table.key]


class SqlReads:
    """Reads by one connection. Use it within a transaction, so that all of a list fits together."""

    def __init__(self, session: Session, sql: Statements, name: str) -> None:
        self._session = session
        self._sql = sql
        self._name = name
        self._neighbours = SqlNeighbours(session, sql)

    @contextmanager
    def _within(self) -> Generator[None]:
        session = self._session
        try:
            self._begin()
            yield
            self._commit()
        except session.errors as error:
            session.roll_back()
            raise session.explained(error, self._name) from error
        except msgspec.DecodeError as error:
            session.roll_back()
            why = f"{self._name}: it holds a row that layby never writes ({error})"
            raise StoreUnreadable(f"{why}: repair that row or restore a backup") from error
        except BaseException:
            session.roll_back()
            raise

    def _begin(self) -> None:
        self._session.begin()

    def _commit(self) -> None:
        self._session.commit()

    def close(self) -> None:
        self._session.close()

    # --- lists ---------------------------------------------------------------------------

    def search_promises(self, query: SearchPromises, now: Millis) -> PromisePage:
        rows = searches.searched(self._read_lean, query, "state", query.state, now)
        return list_pages.promises(rows, self._fill, query, now)

    def search_tasks(self, query: SearchTasks, now: Millis) -> TaskPage:
        rows = searches.searched(self._read_lean, query, "task_state", query.state, now)
        return list_pages.tasks(rows, query, now)

    def search_schedules(self, query: SearchSchedules) -> SchedulePage:
        return list_pages.schedules(self._lean_schedules(query), self._fill_schedules, query)

    def find_flow(self, query: FindFlow) -> FlowData:
        sql = self._sql
        return list_pages.flow(
            query,
            self._one(sql.flow, _flows, query.group, query.name),
            self._one(sql.flow_groups, _texts, query.name, list_pages.GROUPS_TOLD),
            self._one(sql.flow_names, _texts, query.group, query.names),
            self._neighbours.holders(()),
        )

    def get_run(self, query: GetRun, now: Millis) -> RowPage:
        return list_pages.records(searches.of_run(self._read_lean, query), self._fill, query, now)

    def get_records(self, query: GetRecords, now: Millis) -> RowPage:
        return list_pages.records(searches.of_task(self._read_lean, query), self._fill, query, now)

    def count_items(self, query: CountItems) -> ItemCounts:
        below = f"{query.id}:"
        given = (below, f"{query.id};", len(below) + 1, "%:%")
        return counted(self._one(self._sql.item_states, _item_states, *given))

    def read_items(self, query: ReadItems, now: Millis) -> PromisePage:
        return list_pages.items(self._neighbours.pairs, self._fill, query, now)

    def list_runs(self, query: ListRuns, now: Millis) -> RowPage:
        if query.newest_first:
            rows_before = by_time.newest_by_index(self._read_lean, query.schedule)
            return by_time.newest_runs(rows_before, self._fill, query, now)
        return list_pages.runs(searches.roots(self._read_lean, query), self._fill, query, now)

    def list_held(self, query: ListHeld) -> TaskPage:
        return list_pages.held(searches.held(self._read_lean, query), query)

    def list_waiting(self, query: ListWaiting, now: Millis) -> WaitingPage:
        rows_after = by_time.waiting_by_index(self._read_lean)
        return by_time.waiting(rows_after, self._neighbours, query, now)

    def explain(self, query: ExplainPromise, now: Millis) -> Explanation | None:
        return by_time.explanation(self._neighbours, self._fill, query, now)

    def stats(self, now: Millis) -> StatsData:
        counts = self._session.row(index_counts.COUNTS, {"most": index_counts.COUNTED})
        return index_counts.by_index(counts, self._read_lean, now)

    def limit_names(self, after: str, limit: int) -> list[str]:
        return self._one(self._sql.limit_names, _texts, after, "", LAST, limit)

    def limit_standings(
        self, names: Sequence[str], holders: int, now: Millis
    ) -> list[LimitStanding]:
        return standings(self._neighbours, names, holders, now)

    # --- everything ----------------------------------------------------------------------

    def dump(self, most: int = FAR) -> State:
        room = Room(most)
        pairs = list(chain.from_iterable(self._whole_pairs(room)))
        waits = self._everything(WAITS, Wait, room)
        messages = self._everything(MESSAGES, Message, room)
        holders = self._everything(HOLDERS, Holder, room)
        flows = self._everything(FLOWS, PublishedFlow, room)
        return State(
            promises={promise.id: promise for promise, _ in pairs},
            tasks={task.id: task for _, task in pairs if task is not None},
            waits={(wait.awaited, wait.awaiter): wait for wait in waits},
            listeners=set(self._everything(LISTENERS, Listener, room)),
            messages={message.key: message for message in messages},
            holders={(holder.pid, holder.incarnation): holder for holder in holders},
            schedules={each.id: each for each in self._everything(SCHEDULES, Schedule, room)},
            flows={(each.group, each.name): each for each in flows},
            pruning={each.id: each for each in self._everything(PRUNING, Pruning, room)},
            limits={each.name: each for each in self._everything(LIMITS, Limit, room)},
        )

    def _whole_pairs(self, room: Room) -> Iterator[list[Pair]]:
        statement = self._sql.next_rows(PROMISES, self._sql.lean_pair)
        for pairs in self._pages(PROMISES, list[Pair], statement, room):
            left = pairs
            while left:
                whole = self._fill(left, page_bounds.WHOLE)
                room.take(sum(size_of(each.param) + size_of(each.value) for each, _ in whole))
                yield whole
                left = left[len(whole) :]

    def _everything(self, table: Table, row: type[T], room: Room) -> list[T]:
        statement = self._sql.next_rows(table)
        return list(chain.from_iterable(self._pages(table, list[row], statement, room)))

    def _pages(
        self, table: Table, sort: type[list[T]], statement: str, room: Room
    ) -> Iterator[list[T]]:
        """All rows in the order of their key, a few at a time."""
        key: Sequence[Any] = [""] * len(table.key)
        chunk = CHUNK
        decoder: msgspec.json.Decoder[list[T]] = _decoder_of(sort)
        while True:
            rows, size = self._session.read_sized(statement, decoder, *key, chunk)
            room.take(size)
            yield rows
            if len(rows) < chunk:
                return
            key, chunk = _key_of(table, rows[-1]), next_chunk(rows)

    # --- rows ----------------------------------------------------------------------------

    def _read_lean(self, source: str, arguments: Sequence[object], limit: int) -> list[Pair]:
        statement = self._sql.dialect.page_of(self._sql.lean_pair, source)
        return self._one(statement, _pairs, *arguments, limit)

    def _fill(
        self, rows: Sequence[Pair], shown: Shown, most: int = page_bounds.PAGE_BYTES
    ) -> list[Pair]:
        columns = tuple(name for name, is_shown in shown._asdict().items() if is_shown)
        found = self._texts_of("promises", columns, [promise.id for promise, _ in rows], most)
        if shown == page_bounds.WHOLE:  # nearly always, and for each of many rows
            return [
                (replace(promise, param=param, value=value), task)
                for (promise, task), (param, value) in zip(rows, found, strict=False)
            ]
        return [
            (replace(promise, **dict(zip(columns, texts, strict=True))), task)
            for (promise, task), texts in zip(rows, found, strict=False)
        ]

    def _lean_schedules(self, query: SearchSchedules) -> Iterator[Schedule]:
        every = self._sql.dialect.packed(SCHEDULES.columns, SCHEDULES.name)
        lean = without(every, SCHEDULES.name, promise_param="{}", nodes="[]")
        statement, cursor = self._sql.next_rows(SCHEDULES, lean), query.cursor or ""
        while rows := self._one(statement, _schedules, cursor, CHUNK):
            yield from rows
            cursor = rows[-1].id

    def _fill_schedules(self, rows: Sequence[Schedule]) -> list[Schedule]:
        found = self._texts_of("schedules", ("promise_param",), [each.id for each in rows])
        return [
            replace(schedule, promise_param=param)
            for schedule, (param,) in zip(rows, found, strict=False)
        ]

    def _texts_of(
        self,
        table: str,
        columns: tuple[str, ...],
        ids: Sequence[str],
        most: int = page_bounds.PAGE_BYTES,
    ) -> list[tuple[str, ...]]:
        """These columns of the first of these rows, until they have so many bytes."""
        given = {"ids": packed(ids), "most": most}
        statement = self._sql.filled(table, columns)
        return self._session.texts_of(table, columns, statement, given)

    def _one(self, statement: str, decoder: "msgspec.json.Decoder[T]", *arguments: Any) -> T:
        return self._session.read(statement, decoder, *arguments)
