"""What a request names: the ids and groups that a token with a prefix is measured by.

Every kind of the wire stands in `REACH` once. A request that can reach rows it does not name by
id (a search, a list, an explanation that shows what else is waited for, the debug surface) cannot
be bounded by a prefix, and has None there.

The protocol's own table names fewer ids: of a fence only the task's, of a callback only the
awaited's. A token could then settle any promise through a fence, so here every id counts,
wherever it stands in the request.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from layby.core import birth, commands, queries
from layby.core.commands import (
    AnnotateTask,
    Command,
    CreateBelow,
    CreatePromise,
    CreateSchedule,
    CreateTask,
    FailTask,
    FenceTask,
    FinishTask,
    FulfillTask,
    HeartbeatTasks,
    RegisterCallback,
    RegisterListener,
    StartRun,
    SuspendTask,
    Take,
)
from layby.core.queries import DeclineTasks, Query
from layby.core.stats import GetStats
from layby.wire.kinds import KINDS

Rider = FinishTask | FailTask | StartRun
"""A command on which a take may ride."""


class Reach(Struct, frozen=True):
    """`as_holder`: it acts for a worker process, and proves that by its incarnation."""

    ids: tuple[str, ...] = ()
    take: Take | None = None
    as_holder: bool = False

    def is_within(self, prefix: str, groups: frozenset[str]) -> bool:
        """A worker process needs some group; a take needs its own."""
        if self.as_holder and not groups:
            return False
        if self.take is not None and self.take.group not in groups:
            return False
        return all(each.startswith(prefix) for each in self.ids)


def is_within(kind: str, body: object, prefix: str, groups: frozenset[str]) -> bool:
    """A body that could not be read names nothing and will do nothing: it may have its 400."""
    reach = REACH.get(KINDS.get(kind, object))
    if reach is None:
        return False
    return reach(body).is_within(prefix, groups) if isinstance(body, Command | Query) else True


def bounded(body: Any, prefix: str) -> Any:
    """The same request, whose takes hand out only ids with this prefix."""
    if isinstance(body, Take):
        return body if body.prefix.startswith(prefix) else replace(body, prefix=prefix)
    if isinstance(body, Rider) and body.take is not None:
        return replace(body, take=bounded(body.take, prefix))
    return body


def take_in(body: object) -> Take | None:
    """The take that a request is, or that rides on it."""
    if isinstance(body, Take):
        return body
    return body.take if isinstance(body, Rider) else None


def _by_id(c: Any) -> Reach:
    return Reach((c.id,))


def _create(c: CreatePromise) -> Reach:
    return Reach(tuple(_created(c)))


def _created(c: CreatePromise) -> Iterator[str]:
    """A branch is an id too: whoever creates in a branch is shown what else is in it."""
    yield c.id
    if branch := c.tags.get(birth.BRANCH):
        yield branch


def _callback(c: RegisterCallback) -> Reach:
    return Reach((c.awaited, c.awaiter))


def _listener(c: RegisterListener) -> Reach:
    return Reach((c.awaited,))


def _create_task(c: CreateTask) -> Reach:
    return _create(c.action.data)


def _fulfill(c: FulfillTask) -> Reach:
    return Reach((c.id, c.action.data.id))


def _suspend(c: SuspendTask) -> Reach:
    waits = [action.data for action in c.actions]
    return Reach((c.id, *(w.awaiter for w in waits), *(w.awaited for w in waits)))


def _fence(c: FenceTask) -> Reach:
    match c.inner:
        case None:
            return Reach((c.id,))
        case CreatePromise():
            return Reach((c.id, *_created(c.inner)))
        case _:
            return Reach((c.id, c.inner.id))


def _each(c: HeartbeatTasks | DeclineTasks) -> Reach:
    return Reach(tuple(task.id for task in c.tasks))


def _schedule(c: CreateSchedule) -> Reach:
    """The ids it will create are known but for their timestamps."""
    return Reach((c.id, c.promise_id.replace("{{.id}}", c.id)))


def _take(c: Take) -> Reach:
    return Reach(tuple(claim.id for claim in c.begun), take=c, as_holder=True)


def _release(c: commands.ReleaseTasks) -> Reach:
    return Reach(tuple(task.id for task in c.tasks), as_holder=True)


def _holder(_: Any) -> Reach:
    return Reach(as_holder=True)


def _rider(c: Rider) -> Reach:
    """Back-off timers and nodes have ids that begin with the one named; roots have not."""
    begun = () if c.take is None else (claim.id for claim in c.take.begun)
    roots = () if isinstance(c, StartRun) or c.root is None else (c.root_id,)
    return Reach((c.id, *roots, *begun), take=c.take)


def _annotate(c: AnnotateTask) -> Reach:
    return Reach((c.id,) if c.record_id is None else (c.id, c.record_id))


def _create_below(c: CreateBelow) -> Reach:
    branch = c.tags.get(birth.BRANCH)
    return Reach((c.id, c.promise_id, branch) if branch else (c.id, c.promise_id))


REACH: Final[dict[type[Any], Callable[[Any], Reach] | None]] = {
    commands.GetPromise: _by_id,
    CreatePromise: _create,
    commands.SettlePromise: _by_id,
    RegisterCallback: _callback,
    RegisterListener: _listener,
    queries.SearchPromises: None,
    commands.GetTask: _by_id,
    CreateTask: _create_task,
    commands.AcquireTask: _by_id,
    commands.ReleaseTask: _by_id,
    FulfillTask: _fulfill,
    SuspendTask: _suspend,
    FenceTask: _fence,
    HeartbeatTasks: _each,
    commands.HaltTask: _by_id,
    commands.ContinueTask: _by_id,
    queries.SearchTasks: None,
    commands.GetSchedule: _by_id,
    CreateSchedule: _schedule,
    commands.DeleteSchedule: _by_id,
    queries.SearchSchedules: None,
    queries.StartDebug: None,
    queries.StopDebug: None,
    queries.ResetDebug: None,
    queries.TickDebug: None,
    queries.SnapDebug: None,
    Take: _take,
    commands.HeartbeatWorker: _holder,
    commands.LeaveWorker: _holder,
    commands.ReleaseTasks: _release,
    queries.ListHeld: _holder,
    FinishTask: _rider,
    FailTask: _rider,
    AnnotateTask: _annotate,
    commands.ResolvePromise: _by_id,
    commands.EnsurePromise: _by_id,
    commands.WatchPromise: _by_id,
    commands.CancelPromise: _by_id,
    StartRun: _rider,
    commands.CreateRunSchedule: None,  # its id and those of its runs have no prefix in common
    queries.GetRun: _by_id,
    queries.GetRecords: _by_id,
    queries.DeclineTasks: _each,
    queries.ListRuns: None,
    queries.ListWaiting: None,
    queries.ExplainPromise: None,
    GetStats: None,
    CreateBelow: _create_below,
}
