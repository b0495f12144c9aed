"""Reads that are not by id: they change nothing and never enter `step`."""

from typing import ClassVar

import msgspec
from msgspec import Struct, field

from layby.core import validate
from layby.core.fields import Int64, Tags
from layby.core.kinds import Ids, Problems, Query, Sender, declare
from layby.core.model import Millis, PromiseState, TaskState
from layby.core.replies import (
    Empty,
    Explanation,
    NowData,
    PromisePage,
    RowPage,
    SchedulePage,
    TaskPage,
    WaitingPage,
)
from layby.core.state import State

TimedKey = tuple[Millis, str]
"""Where a list ordered by time continues: an instant, and an id at that instant."""

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


@declare("task.search", sender=Sender.ADMIN, answer=TaskPage)
class SearchTasks(Search, frozen=True):
    """Tasks by state, tags and other marks, ordered by id."""

    state: TaskState | None = None


class RowsQuery(Query, frozen=True):
    """A promise and what belongs to it, with their tasks."""

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
    """Every row of a run, root first: promises with their tasks, in their current state."""

    what = "Run"


@declare("layby.task.records", sender=Sender.CLIENT, answer=RowPage)
class GetRecords(RowsQuery, frozen=True):
    """A task, then what it keeps below its id, in id order: for a worker that goes on with it."""

    what = "Task"


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


@declare("layby.promise.explain", sender=Sender.ADMIN, answer=Explanation)
class ExplainPromise(Query, frozen=True):
    """Everything the store knows about why this promise has not settled."""

    id: str

    def problems(self) -> Problems:
        return validate.identifier(self.id, "Promise ID")


@declare("schedule.search", sender=Sender.ADMIN, answer=SchedulePage)
class SearchSchedules(Query, frozen=True):
    """Schedules by tags, ordered by id."""

    limit: Int64 = 10
    cursor: str | None = None
    tags: Tags = field(default_factory=dict)

    def problems(self) -> Problems:
        return validate.page(self.limit)


@declare("layby.now", sender=Sender.CLIENT, answer=NowData)
class GetNow(Query, frozen=True):
    """Store time, for whoever sends absolute times: the clock of its own machine may be wrong."""

    def named_ids(self) -> Ids:
        return ()


@declare("layby.worker.list", sender=Sender.WORKER, answer=TaskPage)
class ListHeld(Query, frozen=True):
    """What a holder holds, by id: for a worker whose own count disagrees."""

    pid: str
    incarnation: str
    limit: Int64 = 1000
    cursor: str | None = None

    def named_ids(self) -> Ids:
        """Its own tasks, by the incarnation that only it knows."""
        return ()

    def problems(self) -> Problems:
        return validate.page(self.limit)


class Execute(Struct, frozen=True):
    """What an `execute` has said, and the address it went to."""

    id: str
    version: Int64
    target: str


@declare("layby.task.decline", sender=Sender.CLIENT, answer=Empty)
class DeclineTasks(Query, frozen=True):
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


@declare("debug.start", sender=Sender.DEBUGGER, answer=Empty)
class StartDebug(Query, frozen=True):
    """Stop time: nothing is due and nothing is delivered."""


@declare("debug.stop", sender=Sender.DEBUGGER, answer=Empty)
class StopDebug(Query, frozen=True):
    """Let time go on."""


@declare("debug.reset", sender=Sender.DEBUGGER, answer=Empty)
class ResetDebug(Query, frozen=True):
    """Delete everything."""


@declare("debug.tick", sender=Sender.DEBUGGER, answer=list)
class TickDebug(Query, frozen=True):
    """Do what is due at this instant."""

    time: Int64

    def problems(self) -> Problems:
        return iter(())


@declare("debug.snap", sender=Sender.DEBUGGER, answer=State)
class SnapDebug(Query, frozen=True):
    """The whole state."""


@declare("tick.offer_messages", sender=Sender.INTERNAL, answer=object)
class OfferMessages(Query, frozen=True):
    """Offer a page of the outbox once more: addresses from `start` to before `end`, in order.

    Answered with the key to continue `after`, or None when that was the last page.
    """

    start: str = ""
    end: str = "\U0010ffff"
    after: tuple[str, str, str] = ("", "", "")
    """Address, id and kind of the last message of the previous page."""
    limit: Int64 = 500

    def problems(self) -> Problems:
        return iter(())


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
