"""Which rows a search shows: decided here, on the deadline-aware view, not in SQL."""

import msgspec

from layby.core import birth
from layby.core.fields import Tags
from layby.core.model import Millis, Promise, Schedule, Task
from layby.core.queries import (
    ListRuns,
    ListWaiting,
    Search,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
)


class _Told(msgspec.Struct):
    """Of what a worker says about a wait, all that is looked at here."""

    kind: str
    awaited: str | None = None


_read_told = msgspec.json.Decoder(_Told).decode


def matches_promise(query: SearchPromises, promise: Promise, task: Task | None) -> bool:
    """`promise` is the projected row."""
    if query.state is not None and promise.state != query.state:
        return False
    return _matches(query, promise, task)


def matches_task(query: SearchTasks, promise: Promise, task: Task) -> bool:
    """`task` is the projected row."""
    if query.state is not None and task.state != query.state:
        return False
    return _matches(query, promise, task)


def matches_run(query: ListRuns, promise: Promise, task: Task | None) -> bool:
    if task is None or not task.is_root or query.state not in (None, promise.state):
        return False
    wanted = {} if query.schedule is None else {birth.SCHEDULE: query.schedule}
    return query.name in (None, task.name) and has_tags(promise.tags, wanted)


def matches_waiting(query: ListWaiting, promise: Promise, task: Task | None, now: Millis) -> bool:
    """Of the projected row. Whether somebody waits for a promise without a task is not asked."""
    kind = wait_kind(promise, task, now)
    return (
        kind is not None
        and query.wait_kind in (None, kind)
        and (query.prefix is None or promise.id.startswith(query.prefix))
        and (query.until is None or waits_since(promise, task) <= query.until)
    )


def wait_kind(promise: Promise, task: Task | None, now: Millis) -> str | None:
    """What sort of thing a row waits for; None when it does not wait, or only for its deadline."""
    if not promise.is_pending or promise.timer:
        return None
    if task is None:
        return "promise"
    if not task.is_waiting:
        return None
    if task.state == "halted":
        return "manual"
    if task.state == "pending":
        return "worker" if task.ready_at is None or task.ready_at <= now else "sleep"
    told = _told(task.waiting_on)
    return _kind_of_suspension(task) if told is None else told.kind


def waits_since(promise: Promise, task: Task | None) -> Millis:
    since = None if task is None else task.waiting_since
    return promise.created_at if since is None else since


def awaited_in_memory(task: Task) -> str | None:
    """The promise a parked body waits for: there is no row for that, only what its worker says."""
    told = _told(task.waiting_on)
    return None if told is None else told.awaited


def matches_schedule(query: SearchSchedules, schedule: Schedule) -> bool:
    return has_tags(schedule.promise_tags, query.tags)


def projected(promise: Promise, task: Task | None, now: Millis) -> tuple[Promise, Task | None]:
    shown = promise.at(now)
    over = not shown.is_pending and task is not None and task.state != "fulfilled"
    return shown, task.fulfilled() if over and task is not None else task


def has_tags(encoded: str, wanted: Tags) -> bool:
    return not wanted or wanted.items() <= msgspec.json.decode(encoded, type=Tags).items()


def _matches(query: Search, promise: Promise, task: Task | None) -> bool:
    return (
        query.root in (None, promise.root)
        and (query.prefix is None or promise.id.startswith(query.prefix))
        and (query.target is None or (task is not None and task.target == query.target))
        and (query.name is None or (task is not None and task.name == query.name))
        and (query.group is None or (task is not None and task.group == query.group))
        and has_tags(promise.tags, query.tags)
    )


def _told(waiting_on: str | None) -> _Told | None:
    try:
        return _read_told(waiting_on) if waiting_on else None
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _kind_of_suspension(task: Task) -> str:
    """A body of ours that waits says for what; one that failed was made to wait."""
    if not task.is_ours:
        return "promise"
    return "backoff" if task.failures > 0 else "trigger"
