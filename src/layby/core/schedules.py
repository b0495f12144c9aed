"""Schedules: the protocol's, which create promises, and layby's own, which start runs.

When a schedule is due, the store asks here which occurrences have come and which rows they may
touch (`due`); the tick that follows makes them (`fire`). Missed ones come in bounded portions.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import field

from layby.core import birth, runs, strict, validate
from layby.core.address import group_of
from layby.core.draft import Draft
from layby.core.fields import NOTHING, Int64, Tags, Value
from layby.core.footprint import Footprint
from layby.core.kinds import Command, Ids, Problems, Sender, declare, handles
from layby.core.model import NEVER, RUN_OF_SCHEDULE, Millis, Schedule, later, occurrence_id
from layby.core.replies import OK, Empty, Reply, ScheduleData, ok, refuse
from layby.core.runs import Node, Nodes, StartRun
from layby.core.settings import Calendar, NoInstant
from layby.core.ticks import Tick

NOT_FOUND = refuse(404, "Schedule not found")
STRAY_MS = 60_000
"""When the next occurrence cannot be computed, look again after this long."""

_encoder = msgspec.json.Encoder()
_NOT_SHOWN: Final = ("tasks", "context", "deadline")
"""Differences in these are named but not shown: they are too long."""


class ScheduleCommand(Command, frozen=True):
    id: str

    def footprint(self, into: Footprint) -> None:
        into.schedules.add(self.id)

    def named_ids(self) -> Ids:
        return (self.id,)

    def problems(self) -> Problems:
        return validate.identifier(self.id, "Schedule ID")


@declare("schedule.get", sender=Sender.CLIENT, answer=ScheduleData)
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
        if birth.TARGET not in self.promise_tags:
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


@declare("layby.schedule.create", sender=Sender.ADMIN, answer=ScheduleData)
class CreateRunSchedule(ScheduleCommand, frozen=True):
    """Start a run at every occurrence, with what `layby.run.start` needs.

    `timeout`: how long after its occurrence a run may take. Without `catch_up` only the latest
    of several missed occurrences has a run.
    """

    cron: str
    name: str
    group: str
    nodes: Nodes
    timeout: Int64 = NEVER
    param: Value = NOTHING
    timezone: str = "UTC"
    catch_up: bool = False

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.identifier(self.cron, "Cron expression")
        yield from validate.identifier(self.timezone, "Time zone")
        yield from runs.plan_problems(self, occurrence_id(RUN_OF_SCHEDULE, self.id, NEVER))
        if self.timeout < 1:
            yield "timeout must be positive"
        for separator in (each for each in ":./" if each in self.id):
            yield f"Schedule ID '{self.id}' must not contain '{separator}' (it is part of run IDs)"


@handles(CreateRunSchedule)
def create_for_runs(d: Draft, c: CreateRunSchedule) -> Reply:
    """An identical schedule is answered with the existing one; a different one is refused."""
    next_run_at = d.rows.calendar(c.cron, d.now, c.timezone)
    if isinstance(next_run_at, NoInstant):
        return refuse(400, f"Schedule '{c.id}': {next_run_at.why}")
    wanted = _for_runs(c, d.now, next_run_at)
    existing = d.schedule(c.id)
    if existing is None:
        d.put_schedule(wanted)
        return ok(ScheduleData(wanted))
    if differences := ", ".join(_differences(existing, wanted)):
        why = f"Schedule '{c.id}' already exists and differs in {differences}"
        return refuse(409, f"{why}: delete it first, or use another id")
    return ok(ScheduleData(existing))


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
    """`occurrences`: each missed instant and the promise id it makes, oldest first.

    `nodes`: of the runs it starts.
    """

    id: str
    occurrences: tuple[tuple[Millis, str], ...]
    nodes: tuple[str, ...] = ()

    def footprint(self, into: Footprint) -> None:
        into.schedules.add(self.id)
        for _, promise_id in self.occurrences:
            into.ids.add(promise_id)
            into.ids.update(f"{promise_id}:{node}" for node in self.nodes)


def due(
    schedules: Iterable[Schedule], now: Millis, calendar: Calendar, limit: int
) -> Iterator[FireSchedule]:
    """What these schedules have to create by `now`: about `limit` rows, the rest next time."""
    room = limit
    for schedule in schedules:
        if room <= 0:
            return
        nodes = _node_ids(schedule)
        rows_each = 1 + len(nodes)
        found = occurrences(schedule, now, calendar, max(1, room // rows_each))
        room -= rows_each * len(found)
        yield FireSchedule(id=schedule.id, occurrences=found, nodes=nodes)


def occurrences(
    schedule: Schedule, now: Millis, calendar: Calendar, limit: int
) -> tuple[tuple[Millis, str], ...]:
    """The instants that are due and fire, oldest first, with the promise id each creates."""
    at = schedule.next_run_at if schedule.catch_up else _latest(schedule, now, calendar)
    found: list[tuple[Millis, str]] = []
    while at <= now and len(found) < limit:
        found.append((at, schedule.promise_id_at(at)))
        at = _after(schedule, at, calendar)
    return tuple(found)


@handles(FireSchedule)
def fire(d: Draft, c: FireSchedule) -> Reply:
    for at, promise_id in c.occurrences:
        schedule = d.schedule(c.id)
        if schedule is None or not schedule.next_run_at <= at <= d.now:
            break  # deleted or fired by someone else in the meantime
        if _node_ids(schedule) != c.nodes:
            break  # replaced by another one of that id in the meantime: its turn will come
        if schedule.flow is not None:
            run = _run(schedule, schedule.flow, promise_id)
            runs.start_scheduled(d, run, at, schedule.id)
        elif birth.is_absent(d.promise(promise_id)):
            _create_promise(d, schedule, at, promise_id)
        d.put_schedule(schedule.fired(at, _after(schedule, at, d.rows.calendar)))
    return OK


def _for_runs(c: CreateRunSchedule, now: Millis, next_run_at: Millis) -> Schedule:
    return Schedule(
        id=c.id,
        cron=c.cron,
        promise_id=RUN_OF_SCHEDULE,
        promise_timeout=c.timeout,
        promise_param=birth.encoded(c.param),
        promise_tags=birth.encoded(runs.tags_of(c.group, c.name, "root")),
        created_at=now,
        next_run_at=next_run_at,
        timezone=c.timezone,
        catch_up=c.catch_up,
        flow=c.name,
        nodes=_encoder.encode(c.nodes).decode(),
    )


def _differences(existing: Schedule, wanted: Schedule) -> Iterator[str]:
    if existing.flow is None:
        yield "kind (it creates promises)"
        return
    before, after = _compared(existing), _compared(wanted)
    for name in (each for each in before if before[each] != after[each]):
        yield name if name in _NOT_SHOWN else f"{name} ({before[name]!r}, not {after[name]!r})"


def _compared(schedule: Schedule) -> dict[str, object]:
    """What makes two schedules of runs the same, under the names users know."""
    return {
        "cron": schedule.cron,
        "time zone": schedule.timezone,
        "catch_up": schedule.catch_up,
        "workflow": schedule.flow,
        "group": _group(schedule),
        "tasks": _nodes(schedule.nodes),
        "context": schedule.promise_param,
        "deadline": schedule.promise_timeout,
    }


def _create_promise(d: Draft, schedule: Schedule, at: Millis, promise_id: str) -> None:
    tags = msgspec.json.decode(schedule.promise_tags, type=Tags)
    own = ("resonate:origin", "resonate:branch", "resonate:parent", "resonate:prefix")
    tags |= {birth.SCHEDULE: schedule.id} | dict.fromkeys(own, promise_id)
    timeout_at = later(at, schedule.promise_timeout)
    birth.create(d, promise_id, timeout_at, schedule.promise_param, tags, at)


def _run(schedule: Schedule, flow: str, run_id: str) -> StartRun:
    return StartRun(
        id=run_id,
        name=flow,
        group=_group(schedule),
        nodes=_nodes(schedule.nodes),
        timeout=schedule.promise_timeout,
        param=msgspec.json.decode(schedule.promise_param, type=Value),
    )


def _group(schedule: Schedule) -> str:
    tags = msgspec.json.decode(schedule.promise_tags, type=Tags)
    return group_of(tags[birth.TARGET]) or ""


def _node_ids(schedule: Schedule) -> tuple[str, ...]:
    return tuple(node.id for node in _nodes(schedule.nodes))


@lru_cache(maxsize=64)
def _nodes(encoded: str) -> tuple[Node, ...]:
    return msgspec.json.decode(encoded, type=tuple[Node, ...])


def _latest(schedule: Schedule, now: Millis, calendar: Calendar) -> Millis:
    """The last occurrence that is due. Bisects the time left, since there may be millions."""
    latest, quiet_since = schedule.next_run_at, now
    while _after(schedule, latest, calendar) <= now:
        middle = (latest + quiet_since) // 2
        at = _after(schedule, middle, calendar)
        if at <= now:
            latest = at
        else:
            quiet_since = middle
    return latest


def _after(schedule: Schedule, at: Millis, calendar: Calendar) -> Millis:
    """A layby rule without a next occurrence is over; the protocol looks again after a while."""
    found = calendar(schedule.cron, at, schedule.timezone)
    if not isinstance(found, NoInstant):
        return found
    return at + STRAY_MS if schedule.flow is None else NEVER
