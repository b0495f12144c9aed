"""`layby limits`: how many tasks run at once on all machines, and how many begin in a time."""

from typing import Any

import click
import msgspec

from layby.cli import showing
from layby.cli.command_groups import CommandGroup
from layby.cli.connection import Place, ask, now_at
from layby.cli.expected_replies import expect
from layby.cli.listing import listed
from layby.cli.options import as_json, limited, reaching
from layby.client.interface import Client
from layby.core.commands import DeleteLimit, SetLimit
from layby.core.limits import GetLimit, ListLimits
from layby.core.model import Millis
from layby.core.replies import Empty, LimitStanding
from layby.errors import NotFound, UsageError
from layby.workflow.limit_reasons import how_to_define
from layby.workflow.moments import ahead


@click.group(cls=CommandGroup, default="list", aliases={"get": "show"})
def limits() -> None:
    """Limits: how many tasks run at once on all machines. Alone it lists them."""


@limits.command(
    "list",
    epilog="""\b
Examples:
  layby limits
  layby limits list --json""",
)
@limited(100)
@reaching
@as_json
def list_limits(place: Place, limit: int, *, as_json: bool) -> None:
    """List limits that are defined or in use, by name."""
    rows, is_cut = listed(place, ListLimits(), limit)
    found: list[LimitStanding] = rows
    if as_json:
        showing.print_json({"limits": [_json(each) for each in found]})
        return
    now = now_at(place)
    showing.print_found(
        "limits",
        ("LIMIT", "HELD", "RATE", "WAITING", "HOLDERS"),
        (
            (
                showing.plain(each.name),
                _held(each),
                showing.plain(_rate(each, now)),
                str(each.waiting) if each.waiting else "",
                showing.plain(", ".join(each.holders)),
            )
            for each in found
        ),
        cut_at=limit if is_cut else None,
        prose=("HOLDERS",),
    )


@limits.command(epilog="Example:  layby limits show api")
@click.argument("name")
@reaching
@as_json
def show(place: Place, name: str, *, as_json: bool) -> None:
    """Show one limit: its numbers, who holds its permits, how many wait."""
    _print(place, ask(place, lambda client: _found(client, name)), as_json=as_json)


@limits.command(
    "set",
    epilog="""\b
Examples:
  layby limits set api --concurrency 2
  layby limits set api --rate 10/min --burst 3
  layby limits set 'tenant-*' --concurrency 1""",
)
@click.argument("name")
@click.option("--concurrency", type=int, help="How many may run at once, on all machines.")
@click.option("--rate", metavar="N/TIME", help="How many may begin in a time: 10/min, 5/s, 100/h.")
@click.option(
    "--burst", type=int, default=1, show_default=True, help="How many of the rate begin at once."
)
@click.option("--count-parked", is_flag=True, help="Tasks that wait in memory count as well.")
@reaching
@as_json
def set_(
    place: Place,
    name: str,
    concurrency: int | None,
    rate: str | None,
    burst: int,
    *,
    count_parked: bool,
    as_json: bool,
) -> None:
    """Define a limit, or change it: it counts at once.

    This sets all its numbers: what you leave out is not limited. A name that ends in * counts for
    every limit whose name begins like it and that is not defined itself.
    """
    if concurrency is None and rate is None:
        raise UsageError("give --concurrency, --rate or both: else it limits nothing")
    command = SetLimit(
        name=name, concurrency=concurrency, rate=rate, burst=burst, count_parked=count_parked
    )

    async def change(client: Client) -> LimitStanding:
        expect(await client.send(command), LimitStanding, f"limit '{name}'")
        return await _found(client, name)

    _print(place, ask(place, change), as_json=as_json)


@limits.command(epilog="Example:  layby limits delete api")
@click.argument("name")
@reaching
@as_json
def delete(place: Place, name: str, *, as_json: bool) -> None:
    """Delete a limit.

    Tasks that name it wait until it is defined again.
    """

    async def forget(client: Client) -> Empty:
        reply = await client.send(DeleteLimit(name=name))
        if reply.status == 404:
            raise NotFound(f"limit '{name}' is not defined: look with `layby limits`")
        return expect(reply, Empty, f"limit '{name}'")

    ask(place, forget)
    if as_json:
        showing.print_json({"ok": True})
    else:
        showing.print_line(f"limit {name} is deleted")


async def _found(client: Client, name: str) -> LimitStanding:
    reply = await client.send(GetLimit(name=name))
    if reply.status == 404:
        raise NotFound(f"there is no limit '{name}': look with `layby limits`")
    return expect(reply, LimitStanding, f"limit '{name}'")


def _print(place: Place, limit: LimitStanding, *, as_json: bool) -> None:
    if as_json:
        showing.print_json({"limit": _json(limit)})
        return
    print_line = showing.print_line
    print_line(limit.name)
    if limit.rule is None:
        print_line(f"  is not defined: {how_to_define(limit.name)}")
    elif limit.rule != limit.name:
        print_line(f"  as {limit.rule} says")
    print_line(f"  held     {_held(limit)}")
    for holder in limit.holders:
        print_line(f"           {holder}")
    if limit.held > len(limit.holders) > 0:
        print_line(f"           and {limit.held - len(limit.holders)} more")
    if limit.rate is not None:
        print_line(f"  rate     {_rate(limit, now_at(place))}")
    print_line(f"  waiting  {limit.waiting}")
    if limit.count_parked:
        print_line("  tasks that wait in memory count as well")


def _held(limit: LimitStanding) -> str:
    return str(limit.held) if limit.concurrency is None else f"{limit.held} of {limit.concurrency}"


def _rate(limit: LimitStanding, now: Millis) -> str:
    if limit.rule is None:
        return "not defined"
    if limit.rate is None:
        return ""
    burst = f", burst {limit.burst}" if limit.burst > 1 else ""
    after = "" if limit.next_at is None else f", next {ahead(limit.next_at, now)}"
    return f"{limit.rate}{burst}{after}"


def _json(limit: LimitStanding) -> dict[str, Any]:
    return msgspec.to_builtins(limit)
