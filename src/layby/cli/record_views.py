"""How commands show rows: as JSON with stable keys, and as fields for people."""

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.text import Text

from layby.cli import showing
from layby.core.commands import Tags
from layby.core.model import Millis, Promise, Task
from layby.core.schedule_row import Overlap, Schedule
from layby.core.schedules import priority as priority_of
from layby.wire import durations, json_values
from layby.workflow.moments import FOREVER
from layby.workflow.short_ids import short_id

Fields = Iterator[tuple[str, Text]]

_tags = msgspec.json.Decoder(Tags).decode


def promise_json(promise: Promise) -> dict[str, Any]:
    return {
        "id": promise.id,
        "state": promise.state,
        "param": json_values.shown(promise.param),
        "value": json_values.shown(promise.value),
        "headers": json_values.headers_of(promise.value),
        "tags": _tags(promise.tags),
        **showing.times(
            created=promise.created_at, timeout=promise.timeout_at, settled=promise.settled_at
        ),
    }


def promise_fields(promise: Promise, now: Millis) -> Fields:
    yield "promise", showing.plain(promise.id)
    yield "state", showing.state(promise.state)
    yield "created", showing.instant(promise.created_at, now)
    if promise.settled_at is not None:
        yield "settled", showing.instant(promise.settled_at, now)
    elif promise.timeout_at < FOREVER:
        yield "deadline", showing.instant(promise.timeout_at, now)
    yield from _tag_fields(promise.tags)
    yield "param", showing.plain(showing.value(promise.param))
    yield "value", showing.plain(showing.value(promise.value))
    if stack := showing.stack(promise.value):
        yield "stack", showing.plain(stack)
    for name, text in json_values.headers_of(promise.value).items():
        yield name, showing.plain(text)


def task_json(task: Task) -> dict[str, Any]:
    """What the protocol shows of a task."""
    record = {"id": task.id, "state": task.state, "version": task.version}
    if task.state != "acquired":
        return record | {"pid": None, "ttl_ms": None}
    return record | {"pid": task.pid, "ttl_ms": task.ttl}


def task_fields(task: Task) -> Fields:
    yield "task", showing.plain(task.id)
    yield "state", showing.state(task.state)
    yield "version", showing.plain(task.version)
    if task.state == "acquired":
        yield "pid", showing.plain(task.pid)
        yield "ttl", showing.plain("-" if task.ttl is None else durations.shown(task.ttl))


def schedule_json(schedule: Schedule) -> dict[str, Any]:
    return {
        "id": schedule.id,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "catch_up": schedule.catch_up,
        "workflow": schedule.flow,
        "overlap": schedule.overlap,
        "priority": priority_of(schedule),
        "skipped": schedule.skipped,
        "promise_id": schedule.promise_id,
        "promise_timeout_ms": _bounded(schedule.promise_timeout),
        "promise_param": json_values.shown(schedule.promise_param),
        "promise_tags": _tags(schedule.promise_tags),
        **showing.times(
            created=schedule.created_at,
            next=schedule.next_run_at,
            last=schedule.last_run_at,
            paused=schedule.paused_at,
        ),
    }


def schedule_fields(schedule: Schedule, now: Millis) -> Fields:
    yield "schedule", showing.plain(schedule.id)
    yield "cron", showing.plain(rule_of(schedule))
    if schedule.paused_at is None:
        yield "next", showing.instant(schedule.next_run_at, now)
    else:
        yield "paused", showing.instant(schedule.paused_at, now)
    yield "last", showing.instant(schedule.last_run_at, now)
    yield "creates", showing.plain(made_by(schedule))
    if schedule.flow is not None:
        policy = overlap_option(schedule.overlap)
        yield "overlap", showing.plain(f"{policy}, {schedule.skipped} skipped so far")
        if priority := priority_of(schedule):
            yield "priority", showing.plain(priority)
        if schedule.catch_up:
            yield "catch up", showing.plain("every missed occurrence")
    if (timeout := _bounded(schedule.promise_timeout)) is not None:
        yield "timeout", showing.plain(durations.shown(timeout))
    yield from _tag_fields(schedule.promise_tags)
    yield "param", showing.plain(showing.value(schedule.promise_param))


def overlap_option(overlap: Overlap) -> str:
    """As it is typed."""
    return overlap.replace("_", "-")


def rule_of(schedule: Schedule) -> str:
    zone = "" if schedule.timezone == "UTC" else f" ({schedule.timezone})"
    return f"{schedule.cron}{zone}"


def next_of(schedule: Schedule, now: Millis) -> Text:
    is_paused = schedule.paused_at is not None
    return showing.plain("paused") if is_paused else showing.coming(schedule.next_run_at, now)


def made_by(schedule: Schedule) -> str:
    """What each occurrence creates."""
    if schedule.flow is None:
        return schedule.promise_id
    template = short_id(schedule.promise_id)
    named = template.replace("{{.id}}", schedule.id).replace("{{.timestamp}}", "TIME")
    return f"{named}, a run of '{schedule.flow}'"


def _bounded(timeout: Millis) -> Millis | None:
    return timeout if timeout < FOREVER else None


def _tag_fields(text: str) -> Fields:
    for key, value in sorted(_tags(text).items()):
        yield "tag", showing.plain(f"{key}={value}")
