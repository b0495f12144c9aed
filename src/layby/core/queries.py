"""Reads that are not by id: they change nothing and never enter `step`."""

from typing import ClassVar

from msgspec import Struct

from layby.core.fields import Int64, Tags
from layby.core.model import PromiseState, TaskState


class Query(Struct, frozen=True, rename="camel", kw_only=True):
    kind: ClassVar[str]


class Search(Query, frozen=True):
    limit: Int64 = 100
    cursor: str | None = None
    tags: Tags = {}
    root: str | None = None
    prefix: str | None = None
    """Only ids that begin so."""
    target: str | None = None
    name: str | None = None
    group: str | None = None


class SearchPromises(Search, frozen=True):
    kind = "promise.search"
    state: PromiseState | None = None


class SearchTasks(Search, frozen=True):
    kind = "task.search"
    state: TaskState | None = None


class GetRun(Query, frozen=True):
    """Every row of a run, root first: promises with their tasks, as they stand now."""

    kind = "layby.run.get"
    id: str
    limit: Int64 = 1000
    cursor: str | None = None


class GetRecords(Query, frozen=True):
    """A task and what it keeps below its id, by id, itself first: for who goes on with it."""

    kind = "layby.task.records"
    id: str
    limit: Int64 = 1000
    cursor: str | None = None


class ListRuns(Query, frozen=True):
    """Roots of runs: by id, or the newest first; all, or those of a schedule."""

    kind = "layby.run.list"
    state: PromiseState | None = None
    name: str | None = None
    schedule: str | None = None
    newest_first: bool = False
    limit: Int64 = 100
    cursor: str | None = None


class ListWaiting(Query, frozen=True):
    """What waits now, the longest first.

    Tasks that are ready, parked, suspended or halted, and promises without a task that somebody
    waits for. A page may be short, even empty, and still have a cursor: there is more behind it.
    """

    kind = "layby.waiting.list"
    until: Int64 | None = None
    """Only what has waited since this moment, or longer."""
    wait_kind: str | None = None
    prefix: str | None = None
    limit: Int64 = 100
    cursor: str | None = None


class ExplainPromise(Query, frozen=True):
    """Everything the store knows about why this promise has not settled."""

    kind = "layby.promise.explain"
    id: str


class SearchSchedules(Query, frozen=True):
    kind = "schedule.search"
    limit: Int64 = 10
    cursor: str | None = None
    tags: Tags = {}


class ListHeld(Query, frozen=True):
    """What a holder holds, by id: for a worker whose own count disagrees."""

    kind = "layby.worker.list"
    pid: str
    incarnation: str
    limit: Int64 = 1000
    cursor: str | None = None


class Execute(Struct, frozen=True):
    """What an `execute` has said, and the address it went to."""

    id: str
    version: Int64
    target: str


class DeclineTasks(Query, frozen=True):
    """The receiver of these executes does not take the tasks (now): others may be told.

    Nothing of the store changes; whoever declined may still acquire them.
    """

    kind = "layby.task.decline"
    pid: str
    tasks: tuple[Execute, ...]


class StartDebug(Query, frozen=True):
    kind = "debug.start"


class StopDebug(Query, frozen=True):
    kind = "debug.stop"


class ResetDebug(Query, frozen=True):
    kind = "debug.reset"


class TickDebug(Query, frozen=True):
    kind = "debug.tick"
    time: Int64


class SnapDebug(Query, frozen=True):
    kind = "debug.snap"


class OfferMessages(Query, frozen=True):
    """Offer a page of the outbox once more: addresses from `start` to before `end`, in order.

    Answered with the place to go on `after`, or None when that was all.
    """

    kind = "tick.offer_messages"
    start: str = ""
    end: str = "\U0010ffff"
    after: tuple[str, str, str] = ("", "", "")
    """Address, id and kind of the last message of the page before."""
    limit: Int64 = 500
