"""Schedules: the protocol's commands for them, and what is made when one is due.

The protocol's create promises; layby's own (`run_schedules`) start runs. When one is due, the
store asks here which occurrences have come (`due`); the tick that follows makes them (`fire`).
Missed ones come in bounded portions.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import field

from layby.core import birth, overlaps, runs, strict, tag_names, validate
from layby.core.address import group_of
from layby.core.draft import Draft
from layby.core.fields import NOTHING, Int64, Tags, Value
from layby.core.footprint import Footprint
from layby.core.kinds import Command, Ids, Problems, Sender, declare, handles
from layby.core.model import NEVER, Millis, later
from layby.core.replies import OK, Empty, Reply, ScheduleData, ok, refuse
from layby.core.runs import Node, StartRun
from layby.core.schedule_row import Schedule
from layby.core.settings import Calendar, NoInstant
from layby.core.ticks import Tick

NOT_FOUND = refuse(404, "Schedule not found")
STRAY_MS = 60_000
"""When the next occurrence cannot be computed, look again after this long."""
MADE_CHARS: Final = 2**20
"""What the occurrences that one transaction makes may have in params and tags, all together."""


class ScheduleCommand(Command, frozen=True):
    id: str

    def footprint(self, into: Footprint) -> None:
        into.schedules.add(self.id)

    def named_ids(self) -> Ids:
        return (self.id,)

    def problems(self) -> Problems:
        return validate.identifier(self.id, "Schedule ID")


@declare("schedule.get", sender=Sender.CLIENT, answer=ScheduleData, reads=True)
class GetSchedule(ScheduleCommand, frozen=True):
    """The schedule as it stands."""


@handles(GetSchedule)
def get(d: Draft, c: GetSchedule) -> Reply:
    schedule = d.schedule(c.id)
    return NOT_FOUND if schedule is None else ok(ScheduleData(schedule))


@declare("schedule.create", sender=Sender.CLIENT, answer=ScheduleData)
class CreateSchedule(ScheduleCommand, frozen=True):
    """Create a promise at every occurrence."""

    cron: str
    promise_id: str
    promise_timeout: Int64
    promise_param: Value = NOTHING
    promise_tags: Tags = field(default_factory=dict)

    def named_ids(self) -> Ids:
        """The ids it will create are known but for their timestamps."""
        return (self.id, self.promise_id.replace("{{.id}}", self.id))

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.identifier(self.cron, "Cron expression")
        yield from validate.identifier(self.promise_id, "Promise ID")
        yield from validate.size(self.promise_param, "promiseParam")
        if self.promise_timeout < 0:
            yield "promiseTimeout must be non-negative"
        if tag_names.TARGET not in self.promise_tags:
            yield "promiseTags must include a resonate:target tag"
        yield from validate.tags(self.promise_tags)

    def lineage_problems(self, separator: str, /) -> Problems:
        """What it fires is a root of that name; its lineage tags are written when it fires."""
        if separator in self.id:
            yield f"Schedule ID must not contain '{separator}'"

    def external_problems(self) -> Problems:
        return strict.one_kind(self.promise_tags)


@handles(CreateSchedule)
def create(d: Draft, c: CreateSchedule) -> Reply:
    next_run_at = d.rows.calendar(c.cron, d.now, "UTC")
    if isinstance(next_run_at, NoInstant):
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


@declare("schedule.delete", sender=Sender.CLIENT, answer=Empty)
class DeleteSchedule(ScheduleCommand, frozen=True):
    """Delete the schedule; what it has created stays."""


@handles(DeleteSchedule)
def delete(d: Draft, c: DeleteSchedule) -> Reply:
    if d.schedule(c.id) is None:
        return NOT_FOUND
    d.delete_schedule(c.id)
    return OK


@declare("tick.fire_schedule", sender=Sender.INTERNAL, answer=Empty)
class FireSchedule(Tick, frozen=True):
    """What `found`, a schedule as it was then, has to make by the time `by`.

    `occurrences`: each instant and the promise id it makes, oldest first.
    """

    found: Schedule
    occurrences: tuple[tuple[Millis, str], ...]
    by: Millis

    def footprint(self, into: Footprint) -> None:
        into.schedules.add(self.found.id)
        into.starts.update((self.found.id, promise_id) for _, promise_id in self.occurrences)
        if self.found.overlap != "allow":
            into.runs_of.add(self.found.id)


def due(
    schedules: Iterable[Schedule], now: Millis, calendar: Calendar, limit: int
) -> Iterator[FireSchedule]:
    """What these schedules have to create by `now`: about `limit` rows, of large ones about
    `MADE_CHARS`; the rest next time.
    """
    room, chars = limit, MADE_CHARS
    for schedule in schedules:
        if room <= 0 or chars <= 0:
            return
        by = now if schedule.full_until is None else schedule.full_until
        rows_each, chars_each = 1 + len(schedule.node_ids), _chars_each(schedule)
        at_least = overlaps.PLACES[schedule.overlap]
        at_most = min(room // rows_each, -(-chars // chars_each))
        found = occurrences(schedule, by, calendar, max(at_least, at_most))
        room -= rows_each * len(found)
        chars -= chars_each * len(found)
        yield FireSchedule(found=schedule, occurrences=found, by=by)


def _chars_each(schedule: Schedule) -> int:
    return len(schedule.promise_param) + len(schedule.promise_tags) + len(schedule.nodes)


def occurrences(
    schedule: Schedule, now: Millis, calendar: Calendar, limit: int
) -> tuple[tuple[Millis, str], ...]:
    """The instants that are due and fire, oldest first, with the promise id each creates."""
    at = schedule.next_run_at if schedule.catch_up else _latest(schedule, now, calendar)
    found: list[tuple[Millis, str]] = []
    while at <= now and len(found) < limit:
        found.append((at, schedule.promise_id_at(at)))
        at = next_after(schedule, at, calendar)
    return tuple(found)


@handles(FireSchedule)
def fire(d: Draft, c: FireSchedule) -> Reply:
    """A schedule that has changed since it was found due is found again, if it still is."""
    schedule = c.found
    if d.schedule(schedule.id) != schedule:
        return OK
    for at, promise_id in c.occurrences:
        if at > d.now:
            break
        next_run_at = next_after(schedule, at, d.rows.calendar)
        after = overlaps.awaited_by(d, schedule, at)
        if after is None:
            schedule = schedule.passed_over(next_run_at)
        else:
            _make(d, schedule, at, promise_id, after)
            schedule = schedule.fired(at, next_run_at)
    d.put_schedule(schedule.filled(overlaps.full_until(schedule, c.by)))
    return OK


def run_of(schedule: Schedule, flow: str, root_id: str) -> StartRun:
    """The run that it starts under this id."""
    return StartRun(
        id=root_id,
        name=flow,
        group=group(schedule),
        nodes=nodes(schedule.nodes),
        timeout=schedule.promise_timeout,
        param=msgspec.json.decode(schedule.promise_param, type=Value),
        priority=priority(schedule),
    )


def priority(schedule: Schedule) -> int:
    """The priority of its runs."""
    return birth.run_priority_of(schedule.promise_tags)


def group(schedule: Schedule) -> str:
    """The group of its runs."""
    tags = msgspec.json.decode(schedule.promise_tags, type=Tags)
    return group_of(tags[tag_names.TARGET]) or ""


@lru_cache(maxsize=64)
def nodes(encoded: str) -> tuple[Node, ...]:
    return msgspec.json.decode(encoded, type=tuple[Node, ...])


def next_after(schedule: Schedule, at: Millis, calendar: Calendar) -> Millis:
    """A layby rule without a next occurrence is over; the protocol looks again after a while."""
    found = calendar(schedule.cron, at, schedule.timezone)
    if not isinstance(found, NoInstant):
        return found
    return at + STRAY_MS if schedule.flow is None else NEVER


def _make(d: Draft, schedule: Schedule, at: Millis, promise_id: str, after: Sequence[str]) -> None:
    if schedule.flow is not None:
        run = run_of(schedule, schedule.flow, promise_id)
        runs.start_scheduled(d, run, at, schedule.id, after)
    elif birth.is_absent(d.promise(promise_id)):
        _create_promise(d, schedule, at, promise_id)


def _create_promise(d: Draft, schedule: Schedule, at: Millis, promise_id: str) -> None:
    tags = msgspec.json.decode(schedule.promise_tags, type=Tags)
    own = ("resonate:origin", "resonate:branch", "resonate:parent", "resonate:prefix")
    tags |= {tag_names.SCHEDULE: schedule.id} | dict.fromkeys(own, promise_id)
    timeout_at = later(at, schedule.promise_timeout)
    birth.create(d, promise_id, timeout_at, schedule.promise_param, tags, at)


def _latest(schedule: Schedule, now: Millis, calendar: Calendar) -> Millis:
    """The last occurrence that is due. Bisects the time left, since there may be millions."""
    latest, quiet_since = schedule.next_run_at, now
    while next_after(schedule, latest, calendar) <= now:
        middle = (latest + quiet_since) // 2
        at = next_after(schedule, middle, calendar)
        if at <= now:
            latest = at
        else:
            quiet_since = middle
    return latest
