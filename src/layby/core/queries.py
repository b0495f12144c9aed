"""Reads that are not by id, and what controls the engine or the delivery."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Protocol

import msgspec
from msgspec import Meta, Struct, field

from layby.core import snapshot, validate
from layby.core.fields import Int64, Tags
from layby.core.joins import MAX_EARLIER, MAX_ITEMS, is_below_join, item_id
from layby.core.kinds import (
    DeliveryControl,
    EngineControl,
    Ids,
    Problems,
    Query,
    Sender,
    declare,
)
from layby.core.model import FAR, Millis, PromiseState, TaskState
from layby.core.promises import NOT_FOUND
from layby.core.replies import (
    OK,
    Empty,
    Explanation,
    FlowData,
    ItemCounts,
    LimitStanding,
    NowData,
    PromiseData,
    PromisePage,
    Reply,
    RowPage,
    SchedulePage,
    TaskPage,
    WaitingPage,
    ok,
)
from layby.core.state import State

if TYPE_CHECKING:
    from layby.core.flows import FindFlow
    from layby.core.stats import StatsData

TimedKey = tuple[Millis, str]
"""Where a list ordered by time continues: an instant, and an id at that instant."""


SNAPSHOT_BYTES: Final = 16 * 2**20
"""What `debug.snap` answers at most: its answer has no pages."""


class Reader(Protocol):
    """What queries ask of a store.

    Every page is bounded in bytes and in the rows it looks at: it may be short, even empty, and
    still have a cursor. Params and values are read only where an answer shows them.
    """

    def search_promises(self, query: "SearchPromises", now: Millis) -> PromisePage: ...

    def search_tasks(self, query: "SearchTasks", now: Millis) -> TaskPage: ...

    def search_schedules(self, query: "SearchSchedules") -> SchedulePage: ...

    def find_flow(self, query: "FindFlow") -> FlowData: ...

    def get_run(self, query: "GetRun", now: Millis) -> RowPage: ...

    def get_records(self, query: "GetRecords", now: Millis) -> RowPage: ...

    def count_items(self, query: "CountItems") -> ItemCounts: ...

    def read_items(self, query: "ReadItems", now: Millis) -> PromisePage: ...

    def list_runs(self, query: "ListRuns", now: Millis) -> RowPage: ...

    def list_held(self, query: "ListHeld") -> TaskPage: ...

    def list_waiting(self, query: "ListWaiting", now: Millis) -> WaitingPage: ...

    def explain(self, query: "ExplainPromise", now: Millis) -> Explanation | None: ...

    def stats(self, now: Millis) -> "StatsData": ...

    def limit_names(self, after: str, limit: int) -> list[str]:
        """Of limits that are defined or in use, in order; without private ones."""
        ...

    def limit_standings(
        self, names: Sequence[str], holders: int, now: Millis
    ) -> list[LimitStanding]:
        """Those that exist, with so many of their holders."""
        ...

    def dump(self, most: int = FAR) -> State:
        """Everything; refused if that is more than so many bytes."""
        ...


class ControlledEngine(Protocol):
    """What the debug surface and the delivery ask of an engine, between two batches."""

    def pause(self) -> None: ...

    def unpause(self) -> None: ...

    def reset(self) -> None: ...

    def tick_until_idle(self, now: Millis) -> None: ...

    def offer(self, page: "OfferMessages") -> "OfferMessages": ...


class ControlledDelivery(Protocol):
    def decline(self, task_id: str, version: int, target: str, receiver_id: str) -> None: ...


_read_instant = msgspec.json.Decoder(Int64).decode


class Search(Query, frozen=True):
    limit: Int64 = 100
    cursor: str | None = None
    tags: Tags = field(default_factory=dict)
    root: str | None = None
    prefix: str | None = None
    """Only ids with this prefix."""
    target: str | None = None
    name: str | None = None
    group: str | None = None

    def problems(self) -> Problems:
        return validate.page(self.limit)


@declare("promise.search", sender=Sender.ADMIN, answer=PromisePage)
class SearchPromises(Search, frozen=True):
    """Promises by state, tags and other marks, ordered by id."""

    state: PromiseState | None = None

    def read(self, reader: Reader, now: Millis, /) -> Reply:
        return ok(reader.search_promises(self, now))


@declare("task.search", sender=Sender.ADMIN, answer=TaskPage)
class SearchTasks(Search, frozen=True):
    """Tasks by state, tags and other marks, ordered by id."""

    state: TaskState | None = None

    def read(self, reader: Reader, now: Millis, /) -> Reply:
        return ok(reader.search_tasks(self, now))


class RowsQuery(Query, frozen=True):
    """A promise and what belongs to it, with their tasks."""

    is_quick = True
    what: ClassVar[str]
    id: str
    limit: Int64 = 1000
    cursor: str | None = None

    def named_ids(self) -> Ids:
        return (self.id,)

    def problems(self) -> Problems:
        yield from validate.identifier(self.id, f"{self.what} ID")
        yield from validate.page(self.limit)


@declare("layby.run.get", sender=Sender.CLIENT, answer=RowPage)
class GetRun(RowsQuery, frozen=True):
    """Every row of a run, root first: promises with their tasks, in their current state.

    `items`: whether items of maps are among them; there may be very many.
    """

    what = "Run"
    items: bool = True

    def shows(self, promise_id: str) -> bool:
        return self.items or not is_below_join(promise_id)

    def read(self, reader: Reader, now: Millis, /) -> Reply:
        return ok(reader.get_run(self, now))


@declare("layby.task.records", sender=Sender.CLIENT, answer=RowPage)
class GetRecords(RowsQuery, frozen=True):
    """A task, then what it keeps below its id, in id order: for a worker that goes on with it."""

    what = "Task"

    def read(self, reader: Reader, now: Millis, /) -> Reply:
        return ok(reader.get_records(self, now))


def read_promise(reader: Reader, promise_id: str, now: Millis) -> Reply:
    """What `promise.get` answers, read beside the writer: for promises that are large."""
    page = reader.get_records(GetRecords(id=promise_id, limit=1), now)
    found = [promise for promise, _ in page.rows if promise.id == promise_id]
    return ok(PromiseData(found[0])) if found else NOT_FOUND


@declare("layby.map.read", sender=Sender.CLIENT, answer=PromisePage)
class ReadItems(Query, frozen=True):
    """The items of a join by their numbers, `first` and those after it, up to a `count` of them.

    `earlier`: those that were named when they were added, the latest first: an item that had
    succeeded there is not in the later one. A cursor is the number to go on at.
    """

    is_quick = True
    id: str
    first: Int64 = 0
    count: Int64 = 1000
    earlier: Annotated[tuple[str, ...], Meta(max_length=MAX_EARLIER)] = ()

    def named_ids(self) -> Ids:
        return (self.id, *self.earlier)

    def problems(self) -> Problems:
        yield from validate.page(self.count)
        yield from validate.count(len(self.earlier), MAX_EARLIER, "earlier joins")
        for each in (self.id, *self.earlier):
            yield from validate.identifier(each, "Join ID")
        if not 0 <= self.first <= MAX_ITEMS:
            yield f"first must be between 0 and {MAX_ITEMS:,}"

    def ids_of(self, index: int) -> tuple[str, ...]:
        """Where an item may be, the latest first."""
        return tuple(item_id(each, index) for each in (self.id, *self.earlier))

    def read(self, reader: Reader, now: Millis, /) -> Reply:
        return ok(reader.read_items(self, now))


@declare("layby.map.count", sender=Sender.CLIENT, answer=ItemCounts)
class CountItems(Query, frozen=True):
    """How many items of a join have ended, run or wait."""

    is_quick = True
    id: str

    def named_ids(self) -> Ids:
        return (self.id,)

    def problems(self) -> Problems:
        return validate.identifier(self.id, "Join ID")

    def read(self, reader: Reader, _: Millis, /) -> Reply:
        return ok(reader.count_items(self))


@declare("layby.run.list", sender=Sender.ADMIN, answer=RowPage)
class ListRuns(Query, frozen=True):
    """Roots of runs: by id, or the newest first; all, or those of a schedule."""

    state: PromiseState | None = None
    name: str | None = None
    schedule: str | None = None
    newest_first: bool = False
    limit: Int64 = 100
    cursor: str | None = None

    def problems(self) -> Problems:
        yield from validate.page(self.limit)
        if self.newest_first:
            yield from _cursor_problems(self.cursor)

    def read(self, reader: Reader, now: Millis, /) -> Reply:
        return ok(reader.list_runs(self, now))


@declare("layby.waiting.list", sender=Sender.ADMIN, answer=WaitingPage)
class ListWaiting(Query, frozen=True):
    """What waits now, the longest first.

    Tasks that are ready, parked, suspended or halted, and promises without a task that somebody
    waits for. A page may be short, even empty, and still have a cursor: there is more behind it.
    """

    until: Int64 | None = None
    """Only what has been waiting since this moment or longer."""
    wait_kind: str | None = None
    prefix: str | None = None
    limit: Int64 = 100
    cursor: str | None = None

    def problems(self) -> Problems:
        yield from validate.page(self.limit)
        yield from _cursor_problems(self.cursor)

    def read(self, reader: Reader, now: Millis, /) -> Reply:
        return ok(reader.list_waiting(self, now))


@declare("layby.promise.explain", sender=Sender.ADMIN, answer=Explanation)
class ExplainPromise(Query, frozen=True):
    """Everything the store knows about why this promise has not settled."""

    is_quick = True
    id: str

    def problems(self) -> Problems:
        return validate.identifier(self.id, "Promise ID")

    def read(self, reader: Reader, now: Millis, /) -> Reply:
        explanation = reader.explain(self, now)
        return NOT_FOUND if explanation is None else ok(explanation)


@declare("schedule.search", sender=Sender.ADMIN, answer=SchedulePage)
class SearchSchedules(Query, frozen=True):
    """Schedules by tags, ordered by id."""

    limit: Int64 = 10
    cursor: str | None = None
    tags: Tags = field(default_factory=dict)

    def problems(self) -> Problems:
        return validate.page(self.limit)

    def read(self, reader: Reader, _: Millis, /) -> Reply:
        return ok(reader.search_schedules(self))


@declare("layby.now", sender=Sender.CLIENT, answer=NowData)
class GetNow(Query, frozen=True):
    """Store time, for whoever sends absolute times: the clock of its own machine may be wrong."""

    is_quick = True

    def named_ids(self) -> Ids:
        return ()

    def read(self, _: Reader, now: Millis, /) -> Reply:
        return ok(NowData(now))


@declare("layby.worker.list", sender=Sender.WORKER, answer=TaskPage)
class ListHeld(Query, frozen=True):
    """What a holder holds, by id: for a worker whose own count disagrees."""

    is_quick = True
    pid: str
    incarnation: str
    limit: Int64 = 1000
    cursor: str | None = None

    def named_ids(self) -> Ids:
        """Its own tasks, by the incarnation that only it knows."""
        return ()

    def problems(self) -> Problems:
        return validate.page(self.limit)

    def read(self, reader: Reader, _: Millis, /) -> Reply:
        return ok(reader.list_held(self))


class Execute(Struct, frozen=True):
    """What an `execute` has said, and the address it went to."""

    id: str
    version: Int64
    target: str


@declare("layby.task.decline", sender=Sender.CLIENT, answer=Empty)
class DeclineTasks(DeliveryControl, frozen=True):
    """The receiver of these executes does not take the tasks (now): others may be told.

    Nothing in the store changes; the receiver that declined may still acquire them.
    """

    pid: str
    tasks: tuple[Execute, ...]

    def named_ids(self) -> Ids:
        return (task.id for task in self.tasks)

    def problems(self) -> Problems:
        yield from validate.identifier(self.pid, "Process ID")
        for each in self.tasks:
            yield from validate.fence(each.id, each.version)

    def control(self, controlled: ControlledDelivery) -> Reply:
        for each in self.tasks:
            controlled.decline(each.id, each.version, each.target, self.pid)
        return OK


@declare("debug.start", sender=Sender.DEBUGGER, answer=Empty)
class StartDebug(EngineControl, frozen=True):
    """Stop time: nothing is due and nothing is delivered."""

    def control(self, controlled: ControlledEngine) -> Reply:
        controlled.pause()
        return OK


@declare("debug.stop", sender=Sender.DEBUGGER, answer=Empty)
class StopDebug(EngineControl, frozen=True):
    """Let time go on."""

    def control(self, controlled: ControlledEngine) -> Reply:
        controlled.unpause()
        return OK


@declare("debug.reset", sender=Sender.DEBUGGER, answer=Empty)
class ResetDebug(EngineControl, frozen=True):
    """Delete everything."""

    def control(self, controlled: ControlledEngine) -> Reply:
        controlled.reset()
        return OK


@declare("debug.tick", sender=Sender.DEBUGGER, answer=list)
class TickDebug(EngineControl, frozen=True):
    """Do what is due at this instant."""

    time: Int64

    def problems(self) -> Problems:
        return iter(())

    def control(self, controlled: ControlledEngine) -> Reply:
        controlled.tick_until_idle(self.time)
        return ok([])


@declare("debug.snap", sender=Sender.DEBUGGER, answer=State)
class SnapDebug(Query, frozen=True):
    """The whole state."""

    def read(self, reader: Reader, now: Millis, /) -> Reply:
        return ok(snapshot.at(reader.dump(SNAPSHOT_BYTES), now))


@declare("tick.offer_messages", sender=Sender.INTERNAL, answer=object)
class OfferMessages(EngineControl, frozen=True):
    """Offer a page of the outbox once more: addresses from `start` to before `end`, in order.

    Answered with the key to continue `after`, or None when that was the last page.
    """

    start: str = ""
    end: str = "\U0010ffff"
    after: tuple[str, str, str] = ("", "", "")
    """Address, id and kind of the last message of the previous page."""
    limit: Int64 = 500

    @classmethod
    def to(cls, address: str, limit: int = 500) -> "OfferMessages":
        """Those to one address: nothing sorts between it and itself with the least character."""
        return cls(start=address, end=f"{address}\1", limit=limit)

    def problems(self) -> Problems:
        return iter(())

    def control(self, controlled: ControlledEngine) -> Reply:
        return ok(controlled.offer(self))


def timed_key(cursor: str) -> TimedKey | None:
    """What a cursor says; None when layby did not make it."""
    instant, colon, key = cursor.partition(":")
    try:
        return (_read_instant(instant), key) if colon else None
    except (msgspec.MsgspecError, UnicodeError):
        return None


def timed_cursor(key: TimedKey) -> str:
    return f"{key[0]}:{key[1]}"


def _cursor_problems(cursor: str | None) -> Problems:
    if cursor is not None and timed_key(cursor) is None:
        yield "cursor must be one that an answer gave"
