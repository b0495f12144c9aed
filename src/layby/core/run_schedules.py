"""Schedules that start runs: creating and replacing, pausing, starting a run by hand."""

from typing import get_args

import msgspec

from layby.core import birth, runs, validate
from layby.core.draft import Draft
from layby.core.fields import NOTHING, Int64, Value
from layby.core.footprint import Footprint
from layby.core.kinds import Ids, Problems, Sender, declare, handles
from layby.core.model import NEVER, Millis
from layby.core.replies import Reply, RunData, ScheduleData, ok, refuse
from layby.core.runs import Nodes
from layby.core.schedule_differences import differences
from layby.core.schedule_row import RUN_OF_SCHEDULE, Overlap, Schedule, occurrence_id
from layby.core.schedules import NOT_FOUND, ScheduleCommand, next_after, run_of
from layby.core.settings import NoInstant

LONGEST_KEY = 20
_encoder = msgspec.json.Encoder()
_OVERLAPS: tuple[str, ...] = get_args(Overlap)


@declare("layby.schedule.create", sender=Sender.ADMIN, answer=ScheduleData)
class CreateRunSchedule(ScheduleCommand, frozen=True):
    """Start a run at every occurrence, with what `layby.run.start` needs.

    `timeout`: how long after its occurrence a run may take. Without `catch_up` only the latest
    of several missed occurrences has a run. `overlap`: what becomes of an occurrence while an
    earlier run is open. `replace`: whether it takes the place of a different one of the same id.
    `priority`: of its runs.
    """

    cron: str
    name: str
    group: str
    nodes: Nodes
    timeout: Int64 = NEVER
    param: Value = NOTHING
    timezone: str = "UTC"
    catch_up: bool = False
    overlap: str = "allow"
    replace: bool = False
    priority: Int64 = 0

    def footprint(self, into: Footprint) -> None:
        super().footprint(into)
        into.node_ids.setdefault(self.id, set()).update(node.id for node in self.nodes)
        into.limits.update(each for node in self.nodes for each in node.limits)

    def problems(self) -> Problems:
        yield from super().problems()
        for text, what in ((self.cron, "Cron expression"), (self.timezone, "Time zone")):
            yield from validate.identifier(text, what) if text else ()  # the calendar says more
        yield from runs.plan_problems(self, occurrence_id(RUN_OF_SCHEDULE, self.id, NEVER))
        if self.timeout < 1:
            yield "timeout must be positive"
        if self.overlap not in _OVERLAPS:
            yield f"overlap '{self.overlap}' is not known: use {', '.join(_OVERLAPS)}"
        for separator in (each for each in ":./" if each in self.id):
            yield f"Schedule ID '{self.id}' must not contain '{separator}' (it is part of run IDs)"


@handles(CreateRunSchedule)
def create_for_runs(d: Draft, c: CreateRunSchedule) -> Reply:
    """An identical schedule is answered with the existing one; a different one is replaced if that
    was asked for, else refused.
    """
    next_run_at = d.rows.calendar(c.cron, d.now, c.timezone)
    if isinstance(next_run_at, NoInstant):
        return refuse(400, f"Schedule '{c.id}': {next_run_at.why}")
    wanted = _wanted(c, d.now, next_run_at)
    existing = d.schedule(c.id)
    if existing is None:
        return _put(d, wanted)
    different = ", ".join(differences(existing, wanted))
    if not different:
        return ok(ScheduleData(existing))
    if c.replace and existing.flow is not None:
        return _put(d, existing.replaced_by(wanted))
    remedy = "delete it, or use" if existing.flow is None else "use replace to change it, or"
    why = f"Schedule '{c.id}' already exists and differs in {different}"
    return refuse(409, f"{why}: {remedy} another id")


@declare("layby.schedule.pause", sender=Sender.CLIENT, answer=ScheduleData)
class PauseSchedule(ScheduleCommand, frozen=True):
    """Start nothing until it is unpaused. Runs that it has started, or queued, go on."""


@handles(PauseSchedule)
def pause(d: Draft, c: PauseSchedule) -> Reply:
    """What has not started by now is not caught up with, either."""
    schedule = d.schedule(c.id)
    if schedule is None or schedule.flow is None:
        return _not_ours(c.id, schedule)
    if schedule.paused_at is not None:
        return ok(ScheduleData(schedule))
    return _put(d, schedule.paused(d.now))


@declare("layby.schedule.unpause", sender=Sender.CLIENT, answer=ScheduleData)
class UnpauseSchedule(ScheduleCommand, frozen=True):
    """Go on with the first occurrence after now."""


@handles(UnpauseSchedule)
def unpause(d: Draft, c: UnpauseSchedule) -> Reply:
    schedule = d.schedule(c.id)
    if schedule is None or schedule.flow is None:
        return _not_ours(c.id, schedule)
    if schedule.paused_at is None:
        return ok(ScheduleData(schedule))
    return _put(d, schedule.unpaused(next_after(schedule, d.now, d.rows.calendar)))


@declare("layby.schedule.start", sender=Sender.ADMIN, answer=RunData, unqueues=False)
class StartScheduled(ScheduleCommand, frozen=True):
    """Start a run now, as an occurrence would, whatever else runs and even if it is paused.

    `at`, when the caller asked, and `key`, which nobody else uses, are part of the run's id. Asked
    again for the same, it answers with the same run.
    """

    at: Int64
    key: str

    @property
    def root_id(self) -> str:
        """Sorted among the runs of occurrences, but never one of theirs."""
        return occurrence_id(RUN_OF_SCHEDULE, self.id, f"{self.at}-now-{self.key}")

    def footprint(self, into: Footprint) -> None:
        super().footprint(into)
        into.starts.add((self.id, self.root_id))

    def named_ids(self) -> Ids:
        """Nodes have ids that begin with the root's."""
        return (self.id, self.root_id)

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.identifier(self.root_id, "Run ID")
        if self.at < 0:
            yield "at must be non-negative"
        if not (self.key.isascii() and self.key.isalnum() and len(self.key) <= LONGEST_KEY):
            yield f"key must be 1 to {LONGEST_KEY} letters and digits"


@handles(StartScheduled)
def start_now(d: Draft, c: StartScheduled) -> Reply:
    existing = d.promise(c.root_id)
    if existing is not None and not birth.is_absent(existing):
        return ok(RunData(existing, created=False))
    schedule = d.schedule(c.id)
    if schedule is None or schedule.flow is None:
        return _not_ours(c.id, schedule)
    runs.start_scheduled(d, run_of(schedule, schedule.flow, c.root_id), d.now, c.id)
    started = d.promises.get(c.root_id)
    if started is None:
        return refuse(409, f"Run '{c.root_id}': ids of its nodes are in use")
    return ok(RunData(started, created=True))


def _put(d: Draft, schedule: Schedule) -> Reply:
    d.put_schedule(schedule)
    return ok(ScheduleData(schedule))


def _not_ours(schedule_id: str, schedule: Schedule | None) -> Reply:
    if schedule is None:
        return NOT_FOUND
    why = f"Schedule '{schedule_id}' creates promises, and does not start runs of a workflow"
    return refuse(409, f"{why}: it can be deleted, but not paused, unpaused or started now")


def _wanted(c: CreateRunSchedule, now: Millis, next_run_at: Millis) -> Schedule:
    return Schedule(
        id=c.id,
        cron=c.cron,
        promise_id=RUN_OF_SCHEDULE,
        promise_timeout=c.timeout,
        promise_param=birth.encoded(c.param),
        promise_tags=birth.encoded(runs.root_tags(c)),
        created_at=now,
        next_run_at=next_run_at,
        timezone=c.timezone,
        catch_up=c.catch_up,
        flow=c.name,
        nodes=_encoder.encode(c.nodes).decode(),
        overlap=msgspec.convert(c.overlap, Overlap),
    )
