"""Lists, counts and snapshots from a whole state; where SQL has indexes, they scan."""

from collections.abc import Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from layby.core.flows import FindFlow
from layby.core.joins import counted
from layby.core.limit import PRIVATE
from layby.core.model import EMPTY, FAR, Millis
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
from layby.store import by_time, index_counts, list_pages
from layby.store.neighbours import MemoryNeighbours, standings
from layby.store.page_bounds import Pair, Room, Shown, fitting, lean, size_of, weight


class MemoryReads:
    """Reads a state that nobody changes."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._neighbours = MemoryNeighbours(state)

    def search_promises(self, query: SearchPromises, now: Millis) -> PromisePage:
        return list_pages.promises(self._after(query.cursor), self._fill, query, now)

    def search_tasks(self, query: SearchTasks, now: Millis) -> TaskPage:
        return list_pages.tasks(self._after(query.cursor), query, now)

    def search_schedules(self, query: SearchSchedules) -> SchedulePage:
        rows = (
            replace(schedule, promise_param=EMPTY, nodes="[]")
            for key, schedule in sorted(self._state.schedules.items())
            if key > (query.cursor or "")
        )
        return list_pages.schedules(rows, self._fill_schedules, query)

    def find_flow(self, query: FindFlow) -> FlowData:
        flows = self._state.flows
        key = (query.group, query.name)
        groups = sorted(group for group, name in flows if name == query.name)
        names = sorted(name for group, name in flows if group == query.group)
        return list_pages.flow(
            query,
            [flows[key]] if key in flows else [],
            groups[: list_pages.GROUPS_TOLD],
            names[: query.names],
            list(self._state.holders.values()),
        )

    def get_run(self, query: GetRun, now: Millis) -> RowPage:
        rows = (
            row
            for row in self._after(query.cursor)
            if row[0].root == query.id and query.shows(row[0].id)
        )
        return list_pages.records(rows, self._fill, query, now)

    def get_records(self, query: GetRecords, now: Millis) -> RowPage:
        below = f"{query.id}."
        rows = (
            row
            for row in self._after(query.cursor)
            if row[0].id == query.id or row[0].id.startswith(below)
        )
        return list_pages.records(rows, self._fill, query, now)

    def count_items(self, query: CountItems) -> ItemCounts:
        below = f"{query.id}:"
        return counted(
            (promise.state, task.state, task.sub_status, 1)
            for promise, task in self._after(None)
            if promise.id.startswith(below) and ":" not in promise.id[len(below) :]
            if task is not None and task.kind == "node"
        )

    def read_items(self, query: ReadItems, now: Millis) -> PromisePage:
        return list_pages.items(self._neighbours.pairs, self._fill, query, now)

    def list_runs(self, query: ListRuns, now: Millis) -> RowPage:
        if query.newest_first:
            rows_before = by_time.newest_of(list(self._after(None)))
            return by_time.newest_runs(rows_before, self._fill, query, now)
        return list_pages.runs(self._after(query.cursor), self._fill, query, now)

    def list_held(self, query: ListHeld) -> TaskPage:
        by = (query.pid, query.incarnation)
        rows = (
            row
            for row in self._after(query.cursor)
            if row[1] is not None and (row[1].pid, row[1].holder) == by
        )
        return list_pages.held(rows, query)

    def list_waiting(self, query: ListWaiting, now: Millis) -> WaitingPage:
        rows_after = by_time.waiting_of(list(self._after(None)))
        return by_time.waiting(rows_after, self._neighbours, query, now)

    def explain(self, query: ExplainPromise, now: Millis) -> Explanation | None:
        return by_time.explanation(self._neighbours, self._fill, query, now)

    def stats(self, now: Millis) -> StatsData:
        return index_counts.of_state(self._state, now)

    def limit_names(self, after: str, limit: int) -> list[str]:
        listed = (name for name in sorted(self._state.limits) if name > after)
        return [name for name in listed if not name.startswith(PRIVATE)][:limit]

    def limit_standings(
        self, names: Sequence[str], holders: int, now: Millis
    ) -> list[LimitStanding]:
        return standings(self._neighbours, names, holders, now)

    def dump(self, most: int = FAR) -> State:
        if most < FAR:
            room = Room(most)
            state = self._state
            by_key = (state.promises, state.tasks, state.waits, state.messages, state.holders)
            more = (state.schedules, state.flows, state.limits)
            for row in chain(state.listeners, *(each.values() for each in (*by_key, *more))):
                room.take(weight(row))
        return self._state

    def _after(self, cursor: str | None) -> Iterator[Pair]:
        """Lean rows in id order."""
        tasks = self._state.tasks
        for key, promise in sorted(self._state.promises.items()):
            if key > (cursor or ""):
                yield lean((promise, tasks.get(key)))

    def _fill(self, rows: Sequence[Pair], shown: Shown) -> list[Pair]:
        columns = [name for name, is_shown in shown._asdict().items() if is_shown]
        stored = (self._state.promises[promise.id] for promise, _ in rows)
        texts = [{name: getattr(each, name) for name in columns} for each in stored]
        count = fitting(sum(map(size_of, each.values())) for each in texts)
        return [
            (replace(promise, **cells), task)
            for (promise, task), cells in zip(rows[:count], texts, strict=False)
        ]

    def _fill_schedules(self, rows: Sequence[Schedule]) -> list[Schedule]:
        params = [self._state.schedules[each.id].promise_param for each in rows]
        count = fitting(map(size_of, params))
        return [
            replace(schedule, promise_param=param)
            for schedule, param in zip(rows[:count], params, strict=False)
        ]
