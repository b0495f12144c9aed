"""`layby schedules`: cron rules that create promises, by the protocol."""

from typing import Any

import click

from layby.cli import record_views, showing
from layby.cli.command_groups import CommandGroup
from layby.cli.connection import Place, ask, now_at
from layby.cli.expected_replies import expect
from layby.cli.listing import listed
from layby.cli.options import DURATION, JSON, as_json, limited, reaching, tagged, tags_of
from layby.cli.promises import value_of
from layby.client.interface import Client
from layby.core.commands import Command, CreateSchedule, DeleteSchedule, GetSchedule
from layby.core.model import Schedule
from layby.core.queries import SearchSchedules
from layby.core.replies import Reply, ScheduleData, SchedulePage
from layby.errors import NotFound
from layby.workflow.names import close_match


@click.group(cls=CommandGroup)
def schedules() -> None:
    """Schedules: cron rules that create promises, or start runs."""


@schedules.command(epilog="Example:  layby schedules get nightly")
@click.argument("schedule_id", metavar="ID")
@reaching
@as_json
def get(place: Place, schedule_id: str, *, as_json: bool) -> None:
    """Show one schedule."""
    _show(place, GetSchedule(id=schedule_id), schedule_id, as_json=as_json)


@schedules.command(
    epilog="""\b
Example:
  layby schedules create nightly --cron '0 3 * * *' --timeout 1h \\
      --param '{"func": "clean", "args": []}' --tag resonate:target=poll://any@default"""
)
@click.argument("schedule_id", metavar="ID")
@click.option("--cron", required=True, help="Five fields, in UTC: minute hour day month weekday.")
@click.option(
    "--promise-id",
    default="{{.id}}-{{.timestamp}}",
    show_default=True,
    help="The id of each promise; {{.id}} and {{.timestamp}} are filled in.",
)
@click.option(
    "--timeout", type=DURATION, default="1h", show_default=True, help="Deadline of each promise."
)
@click.option("--param", type=JSON, help="The parameter of each promise, as JSON or @FILE.")
@tagged("A tag of each promise; resonate:target=ADDRESS is needed.")
@reaching
@as_json
def create(
    place: Place,
    schedule_id: str,
    cron: str,
    promise_id: str,
    timeout: int,
    param: Any,
    tags: Any,
    *,
    as_json: bool,
) -> None:
    """Create a schedule; one that exists is shown as it is."""
    command = CreateSchedule(
        id=schedule_id,
        cron=cron,
        promise_id=promise_id,
        promise_timeout=timeout,
        promise_param=value_of(param),
        promise_tags=tags_of(tags),
    )
    _show(place, command, schedule_id, as_json=as_json)


@schedules.command(epilog="Example:  layby schedules delete nightly")
@click.argument("schedule_id", metavar="ID")
@reaching
@as_json
def delete(place: Place, schedule_id: str, *, as_json: bool) -> None:
    """Delete a schedule; promises it has created stay."""
    ask(place, lambda client: _reply(client, DeleteSchedule(id=schedule_id), schedule_id))
    if as_json:
        showing.print_json({"ok": True})
    else:
        showing.print_line(f"{schedule_id} is deleted")


@schedules.command(epilog="Example:  layby schedules search")
@tagged("Only those whose promises have this tag; give it again for more.")
@limited(100)
@reaching
@as_json
def search(place: Place, tags: Any, limit: int, *, as_json: bool) -> None:
    """List schedules by id."""
    rows, is_cut = listed(place, SearchSchedules(tags=tags_of(tags)), limit)
    found: list[Schedule] = rows
    if as_json:
        showing.print_json({"schedules": [record_views.schedule_json(each) for each in found]})
        return
    now = now_at(place)
    showing.print_found(
        "schedules",
        ("SCHEDULE", "CRON", "NEXT", "LAST", "CREATES"),
        (
            (
                showing.plain(each.id),
                showing.plain(record_views.rule_of(each)),
                showing.coming(each.next_run_at, now),
                showing.passed(each.last_run_at, now),
                showing.plain(record_views.made_by(each)),
            )
            for each in found
        ),
        cut_at=limit if is_cut else None,
    )


def _show(place: Place, command: Command, schedule_id: str, *, as_json: bool) -> None:
    reply = ask(place, lambda client: _reply(client, command, schedule_id))
    schedule = expect(reply, ScheduleData, f"schedule '{schedule_id}'").schedule
    if as_json:
        showing.print_json({"schedule": record_views.schedule_json(schedule)})
    else:
        showing.print_fields(record_views.schedule_fields(schedule, now_at(place)))


async def _reply(client: Client, command: Command, schedule_id: str) -> Reply:
    reply = await client.send(command)
    if reply.status == 404:
        known = (await client.send(SearchSchedules(limit=1_000))).data
        ids = [each.id for each in known.schedules] if isinstance(known, SchedulePage) else []
        hint = close_match(schedule_id, ids) or ": look with `layby schedules search`"
        raise NotFound(f"there is no schedule '{schedule_id}'{hint}")
    cron = command.cron if isinstance(command, CreateSchedule) else ""
    expect(reply, object, f"schedule '{schedule_id}'", cron)
    return reply
