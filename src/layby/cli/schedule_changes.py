"""Schedules of workflows from the command line: add or replace, pause, unpause, start now."""

import sys
import uuid
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import Final, get_args

import click

from layby.cli import record_views, showing
from layby.cli.connection import Place, ask, now_at
from layby.cli.expected_replies import expect
from layby.cli.options import DURATION, as_json, prioritised, reaching
from layby.cli.run import read_context
from layby.cli.user_code import complete_files, find_flow, find_flow_or_name
from layby.client.interface import Client
from layby.clock import SystemClock
from layby.core.commands import (
    Command,
    CreateSchedule,
    GetSchedule,
    PauseSchedule,
    StartScheduled,
    UnpauseSchedule,
)
from layby.core.queries import SearchSchedules
from layby.core.replies import Reply, RunData, ScheduleData, SchedulePage
from layby.core.schedule_row import Overlap, Schedule
from layby.core.schedules import group as group_of
from layby.errors import NotFound, UsageError, error_for
from layby.runner.flow_directory import FlowDirectory
from layby.runner.schedule import command_for
from layby.workflow.names import close_match
from layby.workflow.short_ids import short_id
from layby.workflow.workflow import Workflow

OVERLAPS: Final[dict[str, Overlap]] = {
    record_views.overlap_option(each): each for each in get_args(Overlap)
}
_OPTIONS: Final = {
    "pass id= to schedule()": "give --id",
    "use replace to change it, or another id": "give --replace to change it, or another --id",
    "or use another id": "or give another --id",
    "catch_up (": "catch-up (",
    **{
        told.format(overlap): told.format(option)
        for option, overlap in OVERLAPS.items()
        for told in ("overlap ('{}', not ", ", not '{}')")
    },
}
"""What texts for programs say, and what is typed for it."""


@click.command(
    epilog="""\b
Examples:
  layby schedules add reports.py:report --cron '0 9 * * mon-fri' --timezone Europe/Berlin
  layby schedules add reports.py:report --cron '*/5 * * * *' --overlap skip --replace
  layby schedules add report --cron '0 9 * * *' --url http://127.0.0.1:8001
                                                 by the name its workers know"""
)
@click.argument("target", metavar="MODULE:FLOW", shell_complete=complete_files)
@click.option("--cron", required=True, help="Five fields: minute hour day month weekday.")
@click.option("--id", "schedule_id", help="The schedule's id.  [default: the workflow's name]")
@click.option("--timezone", default="UTC", show_default=True, help="The clock that counts.")
@click.option(
    "--context",
    "given",
    multiple=True,
    help="What runs begin with: KEY=VALUE (JSON, or else text), a JSON object, or @FILE.",
)
@click.option(
    "--catch-up", is_flag=True, help="Every missed occurrence gets a run, not just the last."
)
@click.option("--deadline", type=DURATION, help="How long after its occurrence a run may take.")
@prioritised
@click.option(
    "--overlap",
    type=click.Choice(list(OVERLAPS)),
    default="allow",
    show_default=True,
    help="What to do while an earlier run has not ended.",
)
@click.option("--group", default="default", show_default=True, help="Workers that share the runs.")
@click.option("--replace", is_flag=True, help="Replace a schedule of this id that differs.")
@reaching
@as_json
def add(
    place: Place,
    target: str,
    cron: str,
    schedule_id: str | None,
    timezone: str,
    given: tuple[str, ...],
    deadline: int | None,
    priority: int,
    overlap: str,
    group: str,
    *,
    catch_up: bool,
    replace: bool,
    as_json: bool,
) -> None:
    """Start runs of a workflow by a cron rule.

    MODULE is a file or an importable module, FLOW a workflow in it. To add the same schedule again
    changes nothing; --replace changes one that exists.
    Over a URL, FLOW alone may be given: the name that the workers know.
    """
    with redirect_stdout(sys.stderr):
        flow = find_flow(target) if place.url is None else find_flow_or_name(target)

    async def work(client: Client) -> Schedule:
        directory = _directory(client, place, group)
        layout = flow if isinstance(flow, Workflow) else await directory.find(flow)
        with _telling_options():
            command = command_for(
                layout,
                cron,
                group,
                schedule_id=schedule_id,
                context=read_context(given) if given else None,
                timezone=timezone,
                catch_up=catch_up,
                deadline=None if deadline is None else deadline / 1000,
                overlap=OVERLAPS[overlap],
                replace=replace,
                priority=priority,
            )
        reply = await client.send(command)
        if reply.status in (400, 409):
            raise error_for(reply.status, _as_typed(str(reply.data)))  # it names the schedule
        schedule = expect(reply, ScheduleData, f"schedule '{command.id}'").schedule
        await directory.warn_if_nobody_works(command.name)
        return schedule

    _print_schedule(place, ask(place, work), as_json=as_json)


@click.command(epilog="Example:  layby schedules pause nightly")
@click.argument("schedule_id", metavar="ID")
@reaching
@as_json
def pause(place: Place, schedule_id: str, *, as_json: bool) -> None:
    """Pause a schedule: it starts no runs until it is unpaused.

    Occurrences that pass meanwhile never get a run. Runs that were started, or queued, continue.
    """
    schedule = _changed(place, PauseSchedule(id=schedule_id), schedule_id)
    if as_json:
        showing.print_json({"schedule": record_views.schedule_json(schedule)})
    else:
        showing.print_line(f"{schedule_id} is paused")


@click.command(epilog="Example:  layby schedules unpause nightly")
@click.argument("schedule_id", metavar="ID")
@reaching
@as_json
def unpause(place: Place, schedule_id: str, *, as_json: bool) -> None:
    """Go on with the next occurrence of a paused schedule."""
    schedule = _changed(place, UnpauseSchedule(id=schedule_id), schedule_id)
    if as_json:
        showing.print_json({"schedule": record_views.schedule_json(schedule)})
    else:
        coming = showing.coming(schedule.next_run_at, now_at(place))
        showing.print_line(f"{schedule_id} is not paused; its next run comes {coming}")


@click.command("start-now", epilog="Example:  layby schedules start-now nightly")
@click.argument("schedule_id", metavar="ID")
@reaching
@as_json
def start_now(place: Place, schedule_id: str, *, as_json: bool) -> None:
    """Start a run of a schedule at once.

    It starts even beside another run, and even if the schedule is paused.
    """
    at, key = now_at(place), uuid.uuid4().hex[:8]

    async def work(client: Client) -> str:
        command = StartScheduled(id=schedule_id, at=at, key=key)
        reply = await told(client, command, schedule_id)
        started = expect(reply, RunData, f"schedule '{schedule_id}'").promise
        schedule = (await client.send(GetSchedule(id=schedule_id))).data
        if isinstance(schedule, ScheduleData) and schedule.schedule.flow is not None:
            directory = _directory(client, place, group_of(schedule.schedule))
            await directory.warn_if_nobody_works(schedule.schedule.flow)
        return short_id(started.id)

    run_id = ask(place, work)
    if as_json:
        showing.print_json({"run": run_id})
    else:
        showing.print_line(f"{schedule_id}: run {run_id} is started")


def show_schedule(place: Place, command: Command, schedule_id: str, *, as_json: bool) -> None:
    """Send the command and show the schedule it is answered with."""
    _print_schedule(place, _changed(place, command, schedule_id), as_json=as_json)


async def told(client: Client, command: Command, schedule_id: str) -> Reply:
    """The reply to a command about a schedule that must exist."""
    reply = await client.send(command)
    if reply.status == 404:
        known = (await client.send(SearchSchedules(limit=1_000))).data
        ids = [each.id for each in known.schedules] if isinstance(known, SchedulePage) else []
        hint = close_match(schedule_id, ids) or ": look with `layby schedules`"
        raise NotFound(f"there is no schedule '{schedule_id}'{hint}")
    if reply.status == 409:
        raise error_for(reply.status, str(reply.data))  # it names the schedule or the run itself
    cron = command.cron if isinstance(command, CreateSchedule) else ""
    expect(reply, object, f"schedule '{schedule_id}'", cron)
    return reply


@contextmanager
def _telling_options() -> Generator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(_as_typed(str(error))) from None


def _as_typed(text: str) -> str:
    for told, typed in _OPTIONS.items():
        text = text.replace(told, typed)
    return text


def _changed(place: Place, command: Command, schedule_id: str) -> Schedule:
    reply = ask(place, lambda client: told(client, command, schedule_id))
    return expect(reply, ScheduleData, f"schedule '{schedule_id}'").schedule


def _print_schedule(place: Place, schedule: Schedule, *, as_json: bool) -> None:
    if as_json:
        showing.print_json({"schedule": record_views.schedule_json(schedule)})
    else:
        showing.print_fields(record_views.schedule_fields(schedule, now_at(place)))


def _directory(client: Client, place: Place, group: str) -> FlowDirectory:
    return FlowDirectory(client.send, place.shown, group, SystemClock().elapsed)
