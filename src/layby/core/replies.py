"""Answers as values, refusals included: an exception in core is a bug, never an answer."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from layby.core.limit import Limit
from layby.core.model import EMPTY, Holder, Message, Millis, Promise, PromiseState, Task
from layby.core.queue import TaskPlace
from layby.core.schedule_row import Schedule


class Reply(Struct, frozen=True):
    """`status` as on the wire; `data` is a text for refusals."""

    status: int
    data: object

    @property
    def is_ok(self) -> bool:
        return self.status < 400


class PromiseData(Struct, frozen=True):
    promise: Promise


class SettlementData(PromiseData, frozen=True):
    """The promise as it stands; `won`: whether the call that is answered has settled it."""

    won: bool = False


class LinkData(Struct, frozen=True):
    """A URL with which somebody without a token can settle one promise."""

    url: str
    expires_at: Millis


class TaskData(Struct, frozen=True):
    task: Task


class TriggerEvent(Struct, frozen=True):
    """What has ended the wait of a deferred task: its trigger fired or failed, or time was up.

    `by` and `reason`: who ended it, or moved its deadline, if that was a person.
    """

    id: str
    state: PromiseState
    value: str
    settled_at: Millis
    by: str = ""
    reason: str = ""


class Resumed(Struct, frozen=True):
    """How a task goes on that had deferred. `kwargs` and `context` are encoded JSON."""

    kind: str
    at: int
    """The version of the claim that deferred."""
    event: TriggerEvent
    name: str | None = None
    """The function to go on with; None: that of the task, from its beginning."""
    kwargs: str = EMPTY
    context: str | None = None
    key: str | None = None
    bare: bool = False
    """Whether the task has kept nothing below its id: there is nothing to recall."""


class ClaimData(Struct, frozen=True):
    """A claimed task with its promise and the settled neighbours worth knowing."""

    task: Task
    promise: Promise
    preload: Sequence[Promise] = ()
    resumed: Resumed | None = None


class PreloadData(Struct, frozen=True):
    """`preload`: None when the task is suspended, so there is nothing to preload."""

    preload: Sequence[Promise] | None = None


class FenceData(Struct, frozen=True):
    kind: str
    reply: Reply
    preload: Sequence[Promise] = ()


class ScheduleData(Struct, frozen=True):
    schedule: Schedule


class Empty(Struct, frozen=True):
    pass


class AnnotateData(Struct, frozen=True):
    """`record`: the settled promise of the requested record, new or as it already was."""

    task: Task
    record: Promise | None = None


class Claim(Struct, frozen=True):
    """A task handed out; `ready_at` is since when it had been waiting for that."""

    task: Task
    promise: Promise
    ready_at: int = 0
    root_param: str | None = None
    """The param of the run's root, for workers that are not embedded: saves them a round trip."""
    resumed: Resumed | None = None


class TakeData(Struct, frozen=True):
    """`again`: nothing more to hand out now, but the queue changed under the take: ask again.

    `oldest_left`: since when the oldest ready node left for this worker has been waiting, and
    `oldest_slots`: how many slots it needs, if several. `next_left`: the place of the one left
    whose turn is first, unless that is the oldest, without a priority, and needs one slot.
    `look_at`: when to look again for a blocked task that this worker may try then.
    """

    claims: Sequence[Claim] = ()
    again: bool = False
    oldest_left: Millis | None = None
    look_at: Millis | None = None
    oldest_slots: int | None = None
    next_left: TaskPlace | None = None

    @property
    def oldest_place(self) -> TaskPlace | None:
        """Of the oldest that is left; its priority is not told."""
        if self.oldest_left is None:
            return None
        return TaskPlace(self.oldest_left, slots=self.oldest_slots or 1)

    @property
    def next_place(self) -> TaskPlace | None:
        """Of the one left whose turn is first."""
        return self.next_left or self.oldest_place


class FinishData(Struct, frozen=True):
    """`root`: the run's root, if the verdict in the request settled it; otherwise None."""

    promise: Promise
    taken: TakeData = TakeData()
    root: Promise | None = None


class FailData(Struct, frozen=True):
    """`promise` is settled when the task failed for good; otherwise the task backs off."""

    promise: Promise
    task: Task
    taken: TakeData = TakeData()
    root: Promise | None = None


class DeferData(Struct, frozen=True):
    """The task is deferred; pending, if its trigger had fired already."""

    task: Task
    taken: TakeData = TakeData()


class LimitedData(Struct, frozen=True):
    """The task whose limits were named: pending, until there is a permit for it."""

    task: Task
    taken: TakeData = TakeData()


class RegainData(Struct, frozen=True):
    """`promise`: settles when the body has its permits; None if it has them now."""

    promise: Promise | None = None


class ExitData(Struct, frozen=True):
    """The task whose wait a person has ended or prolonged."""

    task: Task


class WaitData(Struct, frozen=True):
    """The wait that somebody means by an id."""

    task: str
    """The task that waits."""
    wait: str = ""
    """What its wait is called; empty if it is in none that has a name."""


class PinData(Struct, frozen=True):
    """`code`: what the run is pinned to now."""

    code: str


class RunData(Struct, frozen=True):
    promise: Promise
    created: bool
    taken: TakeData = TakeData()
    lives: int | None = None
    """How many it has had, if more than one; the promise is that of the first."""


class JoinData(Struct, frozen=True):
    """The promise of a call of `map`, without its param.

    `items`: how many it has, once all of them are there.
    """

    promise: Promise
    items: int | None = None


class ItemCounts(Struct, frozen=True):
    """How many items of a join there are in each state. `running` ones hold a slot, or nearly."""

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0
    waiting: int = 0
    """Parked, suspended, backing off or halted."""
    ready: int = 0


class NowData(Struct, frozen=True):
    now: Millis


class RunWatchData(Struct, frozen=True):
    """The root of a run, and how many lives the run has had.

    `promise` is that of the first life; if there is another, the caller watches that one.
    """

    promise: Promise
    lives: int = 1


class PruneData(Struct, frozen=True):
    """What a batch has pruned: roots with `rows` rows below them, ids, placeholders, holders.

    `kept`: roots that ended long enough ago, but that somebody waits for or that are not cleaned
    up. `cursor`: where the next batch goes on; None when the pass is over.
    """

    roots: int = 0
    rows: int = 0
    ids: int = 0
    placeholders: int = 0
    holders: int = 0
    kept: int = 0
    cursor: str | None = None


class RenewedInPart(Struct, frozen=True):
    """Leases up to this id are renewed. Nobody gets this answer: the engine goes on."""

    until: str


class HeartbeatData(Struct, frozen=True):
    """`lost`: tasks taken away since the last heartbeat; `agrees`: both sides have the same count.

    `now` is store time: all times that workers report are in store time.
    """

    lost: Sequence[Message]
    agrees: bool
    now: Millis | None = None


class PromisePage(Struct, frozen=True):
    promises: Sequence[Promise]
    cursor: str | None = None


class TaskPage(Struct, frozen=True):
    tasks: Sequence[Task]
    cursor: str | None = None


class RowPage(Struct, frozen=True):
    """Promises with their tasks."""

    rows: Sequence[tuple[Promise, Task | None]]
    cursor: str | None = None


class LimitStanding(Struct, frozen=True):
    """A limit as people see it.

    `rule`: whose numbers count, its own or those of a pattern; None if nobody has defined it.
    `holders`: the first of those that hold its permits, by id. `waiting`: how many wait for one, as
    far as they were counted. `next_at`: when its rate allows the next one to begin, if not now.
    """

    name: str
    rule: str | None = None
    concurrency: int | None = None
    rate: str | None = None
    burst: int = 1
    count_parked: bool = False
    held: int = 0
    holders: tuple[str, ...] = ()
    waiting: int = 0
    next_at: Millis | None = None


def standing_of(
    limit: Limit,
    rule: Limit | None,
    now: Millis,
    holders: tuple[str, ...] = (),
    waiting: int = 0,
) -> LimitStanding:
    if rule is None:
        return LimitStanding(limit.name, held=limit.held, holders=holders, waiting=waiting)
    is_paced = rule.free_begins(limit, now) <= 0
    return LimitStanding(
        limit.name,
        rule.name,
        rule.concurrency,
        rule.rate,
        rule.burst,
        rule.count_parked,
        limit.held,
        holders,
        waiting,
        rule.next_begin_at(limit, now) if is_paced else None,
    )


class LimitPage(Struct, frozen=True):
    standings: Sequence[LimitStanding]
    cursor: str | None = None


class Explanation(Struct, frozen=True):
    """A promise with everything around it; lists that were cut off say so."""

    promise: Promise
    task: Task | None = None
    awaited: Sequence[tuple[Promise, Task | None]] = ()
    """What its task is suspended on, or waits for in memory, by id."""
    more_awaited: bool = False
    awaiters: Sequence[str] = ()
    """Tasks that are suspended on this promise, by id."""
    more_awaiters: bool = False
    listeners: int = 0
    holder: Holder | None = None
    """The worker process that holds the task, if it got it by a take."""
    workers: int = 0
    """Living worker processes of the task's group."""
    able_workers: int = 0
    """Those of them that have its code."""
    limit: LimitStanding | None = None
    """The limit whose permit the task waits for."""


class WaitingPage(Struct, frozen=True):
    entries: Sequence[Explanation]
    cursor: str | None = None


class SchedulePage(Struct, frozen=True):
    schedules: Sequence[Schedule]
    cursor: str | None = None


class FlowData(Struct, frozen=True):
    """`layout` is None if nobody has published this workflow in this group.

    `able_workers`: living workers of the group that have its code; `groups`: other groups in which
    it was published; `names`: what else was published in this one.
    """

    able_workers: int
    groups: Sequence[str] = ()
    names: Sequence[str] = ()
    layout: str | None = None


TakingData = FinishData | FailData | DeferData | RunData | LimitedData
"""Answers that may bring tasks besides, because their requests have carried a take."""
OK: Final = Reply(200, Empty())
UNAVAILABLE: Final = 503
"""The status of what cannot be served now; whether it has happened may be unknown."""
ASK_AGAIN: Final = 429
"""The status of a request of a batch that is not wrong, and to which nothing has happened."""
DEBUG_IS_OFF: Final = Reply(403, "Debug operations are disabled")


def ok(data: object) -> Reply:
    return Reply(200, data)


def refuse(status: int, why: str) -> Reply:
    return Reply(status, why)
