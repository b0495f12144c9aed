"""Which rows a search shows: decided here, on the deadline-aware view, not in SQL."""

import msgspec

from layby.core import tag_names
from layby.core.fields import Tags
from layby.core.model import Millis, Promise, Task
from layby.core.queries import (
    ListRuns,
    ListWaiting,
    Search,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
)
from layby.core.schedule_row import Schedule
from layby.core.waits import waiting_of


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
    """A run that was run again is shown once, by the root of its latest life."""
    if task is None or not task.is_root or task.lives is not None:
        return False
    if query.state not in (None, promise.state):
        return False
    wanted = {} if query.schedule is None else {tag_names.SCHEDULE: query.schedule}
    return query.name in (None, task.name) and has_tags(promise.tags, wanted)


def matches_waiting(query: ListWaiting, promise: Promise, task: Task | None, now: Millis) -> bool:
    """Of the projected row. Whether somebody waits for a promise without a task is not asked."""
    waiting = waiting_of(promise, task, now)
    return (
        waiting is not None
        and waiting.is_listed
        and query.wait_kind in (None, waiting.kind)
        and (query.prefix is None or promise.id.startswith(query.prefix))
        and (query.until is None or waiting.since <= query.until)
    )


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
