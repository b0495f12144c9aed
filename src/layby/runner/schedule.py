"""A schedule of a workflow, for code that created it or looked it up."""

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, get_args
from zoneinfo import ZoneInfo

from layby.client.paging import pages
from layby.core import schedules
from layby.core.commands import (
    Command,
    CreateRunSchedule,
    DeleteSchedule,
    PauseSchedule,
    StartScheduled,
    UnpauseSchedule,
)
from layby.core.model import NEVER, Millis
from layby.core.queries import ListRuns, SearchSchedules
from layby.core.replies import Reply, RowPage, RunData, ScheduleData, SchedulePage
from layby.core.schedule_row import Overlap
from layby.core.schedule_row import Schedule as ScheduleRow
from layby.errors import NotAllowed, NotFound, UsageError, error_for
from layby.runner.run import Run
from layby.wire.durations import limit_of, millis_of, true_or_false, whole_number
from layby.workflow import plan
from layby.workflow.duration_checks import Duration
from layby.workflow.names import check_schedule_id, close_match
from layby.workflow.turn_checks import check_priority
from layby.workflow.workflow import Workflow

if TYPE_CHECKING:
    from layby.runner.runner import Runner

PAGE = 1_000


class Schedule:
    """A snapshot of when it was read, or last paused or unpaused by this object;
    `runner.schedules()` reads it again.
    """

    def __init__(self, runner: "Runner", row: ScheduleRow) -> None:
        self._runner = runner
        self._row = row

    @property
    def id(self) -> str:
        return self._row.id

    @property
    def flow(self) -> str:
        """The name of the workflow."""
        return self._row.flow or ""

    @property
    def cron(self) -> str:
        return self._row.cron

    @property
    def timezone(self) -> str:
        return self._row.timezone

    @property
    def catch_up(self) -> bool:
        return self._row.catch_up

    @property
    def overlap(self) -> Overlap:
        """What becomes of an occurrence that comes while an earlier run has not ended."""
        return self._row.overlap

    @property
    def priority(self) -> int:
        """Of its runs."""
        return schedules.priority(self._row)

    @property
    def skipped(self) -> int:
        """How many occurrences have no run because of `overlap`."""
        return self._row.skipped

    @property
    def paused_at(self) -> Millis | None:
        """Milliseconds since 1970; None if it is not paused."""
        return self._row.paused_at

    @property
    def next_run_at(self) -> Millis | None:
        """Milliseconds since 1970; None while it is paused, and if its rule has no further
        occurrence.
        """
        return None if self._row.next_run_at >= NEVER else self._row.next_run_at

    @property
    def last_run_at(self) -> Millis | None:
        """None until it has started a run."""
        return self._row.last_run_at

    async def runs(self, limit: int = 100) -> list[Run]:
        """The runs it has started, newest first; works after it was deleted, too."""
        whole_number(limit, "limit", 1)
        query = ListRuns(schedule=self.id, newest_first=True, limit=min(limit, PAGE))
        found: list[str] = []
        async for page in pages(partial(self._runner.page, kind=RowPage), query):
            found += [root.id for root, _ in page.rows]
            if len(found) >= limit:
                break
        ids = (plan.parse_root_id(each) for each in found[:limit])
        return [Run(self._runner, each) for each in ids if each is not None]

    async def pause(self) -> None:
        """Start no runs until it is unpaused. Those that were started, or queued, continue."""
        self._row = await _changed(self._runner, PauseSchedule(id=self.id))

    async def unpause(self) -> None:
        """Go on with the next occurrence. Those that passed meanwhile are never caught up."""
        self._row = await _changed(self._runner, UnpauseSchedule(id=self.id))

    async def start_now(self) -> Run:
        """Start a run at once, whatever `overlap` says, and even if the schedule is paused."""
        return await start_now(self._runner, self.id)

    async def delete(self) -> None:
        """Start no more runs. Those that were started continue."""
        await self._runner.unschedule(self.id)

    def __repr__(self) -> str:
        zone = "" if self.timezone == "UTC" else f" {self.timezone}"
        paused = "" if self.paused_at is None else ", paused"
        return f"<schedule '{self.id}' of '{self.flow}': {self.cron}{zone}{paused}>"


async def create(runner: "Runner", command: CreateRunSchedule) -> Schedule:
    reply = await runner.send(command)
    if isinstance(reply.data, ScheduleData):
        return Schedule(runner, reply.data.schedule)
    named = f"schedule '{command.id}': " if reply.status in NotAllowed.statuses else ""
    raise error_for(reply.status, f"{named}{reply.data}")


async def list_all(runner: "Runner") -> list[Schedule]:
    """Sorted by id, without schedules of the protocol, which create single promises."""
    ask = partial(runner.page, kind=SchedulePage)
    return [
        Schedule(runner, each)
        async for page in pages(ask, SearchSchedules(limit=PAGE))
        for each in page.schedules
        if each.flow is not None
    ]


async def delete(runner: "Runner", schedule_id: str) -> None:
    await _sent(runner, DeleteSchedule(id=check_schedule_id(schedule_id)), schedule_id)


async def start_now(runner: "Runner", schedule_id: str) -> Run:
    """A copy of the command, sent because an answer was lost, finds the run of the first."""
    command = StartScheduled(id=schedule_id, at=runner.now(), key=uuid.uuid4().hex[:8])
    reply = await _sent(runner, command, schedule_id)
    assert isinstance(reply.data, RunData)
    return Run(runner, plan.run_id_of(reply.data.promise.id), is_new=True)


async def _changed(runner: "Runner", command: PauseSchedule | UnpauseSchedule) -> ScheduleRow:
    reply = await _sent(runner, command, command.id)
    assert isinstance(reply.data, ScheduleData)
    return reply.data.schedule


async def _sent(runner: "Runner", command: Command, schedule_id: str) -> Reply:
    reply = await runner.send(command)
    if reply.status == 404:
        known = tuple(each.id for each in await list_all(runner))
        hint = close_match(schedule_id, known) or "; runner.schedules() lists what there is"
        raise NotFound(f"there is no schedule '{schedule_id}'{hint}")
    if reply.status == 409:
        raise error_for(reply.status, str(reply.data))  # it names the schedule or the run itself
    if not reply.is_ok:
        raise error_for(reply.status, f"schedule '{schedule_id}': {reply.data}")
    return reply


def command_for(
    flow: Workflow | plan.Layout,
    cron: str,
    group: str,
    *,
    schedule_id: str | None,
    context: Any,
    timezone: str | ZoneInfo,
    catch_up: bool,
    deadline: Duration | None,
    overlap: Overlap,
    replace: bool,
    priority: int,
) -> CreateRunSchedule:
    """The command, with every check that needs neither the store nor a calendar."""
    return plan.schedule(
        flow,
        _schedule_id(schedule_id, flow),
        _check_text(cron, "cron", "'0 9 * * mon-fri'"),
        context,
        group,
        _timeout_ms(deadline),
        _check_text(_zone_name(timezone), "timezone", "'Europe/Berlin'"),
        catch_up=true_or_false(catch_up, "catch_up"),
        overlap=_check_overlap(overlap),
        replace=true_or_false(replace, "replace"),
        priority=check_priority(priority, "priority of a scheduled run"),
    )


def _schedule_id(schedule_id: str | None, flow: Workflow | plan.Layout) -> str:
    if schedule_id is not None:
        return check_schedule_id(schedule_id)
    try:
        return check_schedule_id(flow.name)
    except UsageError as error:
        raise UsageError(
            f"pass id= to schedule(), since the workflow's name cannot be one: {error}"
        ) from None


def _zone_name(timezone: object) -> object:
    return timezone.key if isinstance(timezone, ZoneInfo) else timezone


def _timeout_ms(deadline: Duration | None) -> Millis:
    return max(1, millis_of(limit_of(deadline, "deadline of a scheduled run", positive=True)))


def _check_text(given: object, what: str, example: str) -> str:
    if not isinstance(given, str):
        raise UsageError(f"{what} must be a string such as {example}, got {given!r}")
    return given


def _check_overlap(given: Overlap) -> Overlap:
    policies = get_args(Overlap)
    if given not in policies:
        known = ", ".join(repr(each) for each in policies)
        raise UsageError(f"overlap must be one of {known}, got {given!r}")
    return given
