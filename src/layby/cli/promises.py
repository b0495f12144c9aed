"""`layby promises`: every operation of the protocol on promises."""

from typing import Any

import click

from layby.cli import record_views, showing
from layby.cli.command_groups import CommandGroup
from layby.cli.connection import Place, ask, now_at
from layby.cli.expected_replies import expect, unknown
from layby.cli.listing import listed
from layby.cli.options import DURATION, JSON, as_json, limited, reaching, tagged, tags_of
from layby.client.interface import Client
from layby.core.commands import (
    NOTHING,
    Command,
    CreatePromise,
    GetPromise,
    RegisterCallback,
    RegisterListener,
    SettlePromise,
    Value,
)
from layby.core.model import NEVER, Promise
from layby.core.queries import SearchPromises
from layby.core.replies import PromiseData
from layby.wire import json_values

STATES = ("pending", "resolved", "rejected", "rejected_canceled", "rejected_timedout")


@click.group(cls=CommandGroup)
def promises() -> None:
    """Promises, by the protocol: ids are used as given, and must exist."""


@promises.command(epilog="Example:  layby promises get order-7.paid")
@click.argument("promise_id", metavar="ID")
@reaching
@as_json
def get(place: Place, promise_id: str, *, as_json: bool) -> None:
    """Show one promise."""
    show(place, GetPromise(id=promise_id), promise_id, as_json=as_json)


@promises.command(
    epilog="""\b
Examples:
  layby promises create paid-7 --timeout 2d
  layby promises create call-7 --timeout 1h --param '{"func": "charge", "args": [7]}' \\
      --tag resonate:target=poll://any@default"""
)
@click.argument("promise_id", metavar="ID")
@click.option("--timeout", type=DURATION, help="How long it may stay pending.  [default: forever]")
@click.option("--param", type=JSON, help="Its parameter, as JSON or @FILE.")
@tagged("A tag; give it again for more.")
@reaching
@as_json
def create(
    place: Place, promise_id: str, timeout: int | None, param: Any, tags: Any, *, as_json: bool
) -> None:
    """Create a promise; one that exists is shown as it is."""
    timeout_at = NEVER if timeout is None else now_at(place) + timeout
    command = CreatePromise(
        id=promise_id, timeout_at=timeout_at, param=value_of(param), tags=tags_of(tags)
    )
    show(place, command, promise_id, as_json=as_json)


def _settling(name: str, state: str, told: str) -> None:
    short = f"{name.capitalize()} a promise that exists."

    @promises.command(
        name,
        help=told,
        short_help=short,
        epilog=f"Example:  layby promises {name} paid-7 --value 42",
    )
    @click.argument("promise_id", metavar="ID")
    @click.option("--value", "given", type=JSON, help="The outcome, as JSON or @FILE.")
    @reaching
    @as_json
    def settle(place: Place, promise_id: str, given: Any, *, as_json: bool) -> None:
        command = SettlePromise(id=promise_id, state=state, value=value_of(given))
        show(place, command, promise_id, as_json=as_json)

    del settle  # the group has it


_settling("resolve", "resolved", "Resolve a promise that exists; a settled one stays as it is.")
_settling("reject", "rejected", "Reject a promise that exists; a settled one stays as it is.")
_settling(
    "cancel", "rejected_canceled", "Cancel a promise that exists; a settled one stays as it is."
)


@promises.command(epilog="Example:  layby promises search --state pending --tag kind=order")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@tagged("Only those with this tag; give it again for more.")
@click.option("--prefix", help="Only ids that begin with this.")
@limited(100)
@reaching
@as_json
def search(
    place: Place, state: Any, tags: Any, prefix: str | None, limit: int, *, as_json: bool
) -> None:
    """List promises by id."""
    query = SearchPromises(state=state, tags=tags_of(tags), prefix=prefix)
    rows, is_cut = listed(place, query, limit)
    found: list[Promise] = rows
    if as_json:
        showing.print_json({"promises": [record_views.promise_json(each) for each in found]})
        return
    now = now_at(place)
    showing.print_found(
        "promises",
        ("PROMISE", "STATE", "CREATED", "SETTLED", "DEADLINE", "VALUE"),
        (
            (
                showing.plain(each.id),
                showing.state(each.state),
                showing.passed(each.created_at, now),
                showing.passed(each.settled_at, now),
                showing.coming(each.timeout_at if each.is_pending else None, now),
                showing.plain(showing.value(each.value)),
            )
            for each in found
        ),
        cut_at=limit if is_cut else None,
        prose=("VALUE",),
    )


@promises.command(
    short_help="Let a task resume when a promise settles.",
    epilog="Example:  layby promises register-callback paid-7 order-7",
)
@click.argument("awaited")
@click.argument("awaiter")
@reaching
@as_json
def register_callback(place: Place, awaited: str, awaiter: str, *, as_json: bool) -> None:
    """Resume the task AWAITER when the promise AWAITED settles."""
    show(place, RegisterCallback(awaited=awaited, awaiter=awaiter), awaited, as_json=as_json)


@promises.command(
    short_help="Let an address be told when a promise settles.",
    epilog="Example:  layby promises register-listener paid-7 http://me:9000/told",
)
@click.argument("awaited")
@click.argument("address")
@reaching
@as_json
def register_listener(place: Place, awaited: str, address: str, *, as_json: bool) -> None:
    """Notify ADDRESS when the promise AWAITED settles."""
    show(place, RegisterListener(awaited=awaited, address=address), awaited, as_json=as_json)


def show(place: Place, command: Command, promise_id: str, *, as_json: bool) -> None:
    """Send the command and show the promise it returns."""

    async def sent(client: Client) -> Promise:
        reply = await client.send(command)
        if reply.status == 404:
            raise await unknown(client, promise_id, "promise")
        address = command.address if isinstance(command, RegisterListener) else ""
        return expect(reply, PromiseData, f"promise '{promise_id}'", address).promise

    print_promise(place, ask(place, sent), as_json=as_json)


def print_promise(place: Place, promise: Promise, *, as_json: bool) -> None:
    if as_json:
        showing.print_json({"promise": record_views.promise_json(promise)})
    else:
        showing.print_fields(record_views.promise_fields(promise, now_at(place)))


def value_of(given: Any) -> Value:
    return NOTHING if given is None else json_values.to_value(given)
