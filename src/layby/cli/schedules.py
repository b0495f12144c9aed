"""`layby schedules`: cron rules that start runs, or create promises by the protocol."""

from typing import Any

import click

from layby.cli import record_views, showing
from layby.cli.command_groups import CommandGroup
from layby.cli.connection import Place, ask, now_at
from layby.cli.listing import listed
from layby.cli.options import DURATION, JSON, as_json, limited, reaching, tagged, tags_of
from layby.cli.promises import value_of
from layby.cli.schedule_changes import add, pause, show_schedule, start_now, told, unpause
from layby.core.commands import CreateSchedule, DeleteSchedule, GetSchedule
from layby.core.queries import SearchSchedules
from layby.core.schedule_row import Schedule


@click.group(cls=CommandGroup, default="list", aliases={"get": "show", "search": "list"})
def schedules() -> None:
    """Schedules: cron rules that start runs, or create promises. Alone it lists them."""


@schedules.command(
    "list",
    epilog="""\b
Examples:
  layby schedules
  layby schedules list --tag layby:name=report --json""",
)
@tagged("Only those whose promises have this tag; give it again for more.")
@limited(100)
@reaching
@as_json
def list_schedules(place: Place, tags: Any, limit: int, *, as_json: bool) -> None:
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
                record_views.next_of(each, now),
                showing.passed(each.last_run_at, now),
                showing.plain(record_views.made_by(each)),
            )
            for each in found
        ),
        cut_at=limit if is_cut else None,
        prose=("CREATES",),
    )


@schedules.command(epilog="Example:  layby schedules show nightly")
@click.argument("schedule_id", metavar="ID")
@reaching
@as_json
def show(place: Place, schedule_id: str, *, as_json: bool) -> None:
    """Show one schedule."""
    show_schedule(place, GetSchedule(id=schedule_id), schedule_id, as_json=as_json)


schedules.add_command(add)
schedules.add_command(pause)
schedules.add_command(unpause)
schedules.add_command(start_now)


@schedules.command(epilog="Example:  layby schedules delete nightly")
@click.argument("schedule_id", metavar="ID")
@reaching
@as_json
def delete(place: Place, schedule_id: str, *, as_json: bool) -> None:
    """Delete a schedule; runs and promises it has created stay."""
    ask(place, lambda client: told(client, DeleteSchedule(id=schedule_id), schedule_id))
    if as_json:
        showing.print_json({"ok": True})
    else:
        showing.print_line(f"{schedule_id} is deleted")


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
    """Create a schedule of promises, by the protocol.

    One that exists is shown as it is. For workflows there is `layby schedules add`.
    """
    command = CreateSchedule(
        id=schedule_id,
        cron=cron,
        promise_id=promise_id,
        promise_timeout=timeout,
        promise_param=value_of(param),
        promise_tags=tags_of(tags),
    )
    show_schedule(place, command, schedule_id, as_json=as_json)
