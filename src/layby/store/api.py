"""What the engine asks of a store. Synchronous, owned by one thread."""

from contextlib import AbstractContextManager
from typing import Protocol

from layby.core.changes import Changes
from layby.core.flows import FindFlow
from layby.core.footprint import Footprint
from layby.core.model import Message, Millis
from layby.core.queries import (
    ExplainPromise,
    GetRecords,
    GetRun,
    ListHeld,
    ListRuns,
    ListWaiting,
    OfferMessages,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
)
from layby.core.replies import (
    Explanation,
    FlowData,
    PromisePage,
    RowPage,
    SchedulePage,
    TaskPage,
    WaitingPage,
)
from layby.core.rows import Rows
from layby.core.state import State
from layby.core.stats import StatsData
from layby.core.ticks import Tick


class Store(Protocol):
    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing; an exception inside rolls back."""
        ...

    def load(self, footprint: Footprint, now: Millis) -> Rows:
        """The rows a batch declares plus one hop; a constant number of statements."""
        ...

    def save(self, changes: Changes, now: Millis = 0) -> None:
        """Write them, and how far store time has come: it never goes back."""
        ...

    def store_time(self) -> Millis:
        """How far store time has come; 0 in a new store."""
        ...

    def due(self, now: Millis, limit: int, wall: Millis | None = None) -> list[Tick]:
        """What is due by `now`, at most `limit` rows of each sort.

        Occurrences of schedules also wait for the `wall` clock, if that is behind.
        """
        ...

    def earliest(self) -> Millis:
        """The earliest deadline of any row except schedules; FAR when there is none."""
        ...

    def next_occurrence(self) -> Millis:
        """When the next schedule is due; FAR when there is none."""
        ...

    def search_promises(self, query: SearchPromises, now: Millis) -> PromisePage: ...

    def search_tasks(self, query: SearchTasks, now: Millis) -> TaskPage: ...

    def search_schedules(self, query: SearchSchedules) -> SchedulePage: ...

    def find_flow(self, query: FindFlow) -> FlowData: ...

    def get_run(self, query: GetRun, now: Millis) -> RowPage: ...

    def get_records(self, query: GetRecords, now: Millis) -> RowPage: ...

    def list_runs(self, query: ListRuns, now: Millis) -> RowPage: ...

    def list_held(self, query: ListHeld) -> TaskPage: ...

    def list_waiting(self, query: ListWaiting, now: Millis) -> WaitingPage: ...

    def explain(self, query: ExplainPromise, now: Millis) -> Explanation | None: ...

    def stats(self, now: Millis) -> StatsData: ...

    def living_pids(self) -> tuple[str, ...]:
        """Pids of holders that are not known to be gone."""
        ...

    def messages(self, offer: OfferMessages) -> list[Message]:
        """A page of the outbox, by address, id and kind."""
        ...

    def dump(self) -> State: ...

    def clear(self) -> None: ...

    def close(self) -> None: ...
