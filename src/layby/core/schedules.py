"""Handlers of schedule.*, and what happens when a schedule's time has come."""

import msgspec

from layby.core import birth
from layby.core.commands import CreateSchedule, DeleteSchedule, FireSchedule, GetSchedule, Tags
from layby.core.draft import Draft
from layby.core.model import Millis, Schedule, later
from layby.core.replies import OK, Reply, ScheduleData, ok, refuse
from layby.core.rows import Calendar

NOT_FOUND = refuse(404, "Schedule not found")
STRAY_MS = 60_000
"""When the next occurrence cannot be computed, look again after this long."""


def get(d: Draft, c: GetSchedule) -> Reply:
    schedule = d.schedule(c.id)
    return NOT_FOUND if schedule is None else ok(ScheduleData(schedule))


def create(d: Draft, c: CreateSchedule) -> Reply:
    next_run_at = d.rows.calendar(c.cron, d.now)
    if next_run_at is None:
        return refuse(400, "Invalid cron expression")
    schedule = d.schedule(c.id)
    if schedule is None:
        schedule = Schedule(
            id=c.id,
            cron=c.cron,
            promise_id=c.promise_id,
            promise_timeout=c.promise_timeout,
            promise_param=birth.encoded(c.promise_param),
            promise_tags=birth.encoded(c.promise_tags),
            created_at=d.now,
            next_run_at=next_run_at,
        )
        d.put_schedule(schedule)
    return ok(ScheduleData(schedule))


def delete(d: Draft, c: DeleteSchedule) -> Reply:
    if d.schedule(c.id) is None:
        return NOT_FOUND
    d.delete_schedule(c.id)
    return OK


def occurrences(
    schedule: Schedule, now: Millis, calendar: Calendar, limit: int
) -> tuple[tuple[Millis, str], ...]:
    """Every instant that has come, oldest first, with the promise id it makes."""
    due: list[tuple[Millis, str]] = []
    at = schedule.next_run_at
    while at <= now and len(due) < limit:
        due.append((at, schedule.promise_id_at(at)))
        at = _after(schedule, at, calendar)
    return tuple(due)


def fire(d: Draft, c: FireSchedule) -> Reply:
    for at, promise_id in c.occurrences:
        schedule = d.schedule(c.id)
        if schedule is None or schedule.next_run_at != at or at > d.now:
            break  # deleted or fired by somebody else meanwhile
        if birth.is_absent(d.promise(promise_id)):
            _create_promise(d, schedule, at, promise_id)
        d.put_schedule(schedule.fired(at, _after(schedule, at, d.rows.calendar)))
    return OK


def _create_promise(d: Draft, schedule: Schedule, at: Millis, promise_id: str) -> None:
    tags = msgspec.json.decode(schedule.promise_tags, type=Tags)
    own = ("resonate:origin", "resonate:branch", "resonate:parent", "resonate:prefix")
    tags |= {"resonate:schedule": schedule.id} | dict.fromkeys(own, promise_id)
    timeout_at = later(at, schedule.promise_timeout)
    birth.create(d, promise_id, timeout_at, schedule.promise_param, tags, at)


def _after(schedule: Schedule, at: Millis, calendar: Calendar) -> Millis:
    return calendar(schedule.cron, at) or at + STRAY_MS
