"""`layby invoke`: call a function of any worker, in the form the SDKs call each other."""

from typing import Any

import click

from layby.cli import showing
from layby.cli.connection import Place, ask, is_served, now_at
from layby.cli.expected_replies import Refused, expect
from layby.cli.options import DURATION, JSON, as_json, json_or_text, placed
from layby.cli.promises import print_promise
from layby.client.interface import Client
from layby.core.commands import CreatePromise, WatchPromise
from layby.core.model import Promise
from layby.core.replies import PromiseData
from layby.core.tag_names import DELAY, TARGET
from layby.errors import UsageError
from layby.wire import json_values


@click.command(
    epilog="""\b
Examples:
  layby invoke hello-1 -f hello --arg Anna --arg 42 --wait
  layby invoke report-7 -f report --json-args '[{"month": 7}]' --timeout 1h --delay 10m"""
)
@click.argument("promise_id", metavar="ID")
@click.option("-f", "--func", required=True, help="The name the function is registered under.")
@click.option("--arg", "args", multiple=True, help="An argument: JSON, or else plain text.")
@click.option("--json-args", type=JSON, help="All arguments as a JSON array, instead of --arg.")
@click.option("--version", default=1, show_default=True, help="The version of the function.")
@click.option("-t", "--timeout", type=DURATION, default="1h", show_default=True, help="Deadline.")
@click.option(
    "--target",
    default="poll://any@default",
    show_default=True,
    help="The address of the workers that have it.",
)
@click.option("--delay", type=DURATION, help="Start no earlier than this long from now.")
@click.option(
    "--wait",
    "waits",
    is_flag=True,
    help="Wait for the result and print it; wait for the server, too.",
)
@placed
@as_json
def invoke(
    place: Place,
    promise_id: str,
    func: str,
    args: tuple[str, ...],
    json_args: Any,
    version: int,
    timeout: int,
    target: str,
    delay: int | None,
    *,
    as_json: bool,
) -> None:
    """Call the function FUNC of a worker; the promise ID gets its result.

    The same ID is the same call: it is made once, however often you run this.
    """
    call = {"func": func, "args": _arguments(args, json_args), "version": version}
    now = now_at(place)
    tags = {TARGET: target} | ({} if delay is None else {DELAY: str(now + delay)})
    command = CreatePromise(
        id=promise_id,
        timeout_at=now + timeout + (delay or 0),
        param=json_values.to_value(call),
        tags=tags,
    )
    wait = place.waits
    if wait and place.file is not None and not is_served(place.file):
        raise UsageError(
            f"--wait: no process serves {place.file}, so nothing would run it; start "
            f"`layby serve --db {place.address}` and a worker, or leave out --wait"
        )
    promise = ask(place, lambda client: _called(client, command, wait=wait))
    _show(place, promise, wait=wait, as_json=as_json)


async def _called(client: Client, command: CreatePromise, *, wait: bool) -> Promise:
    what = f"call '{command.id}'"
    promise = expect(await client.send(command), PromiseData, what).promise
    if wait and promise.is_pending:
        with showing.new_console(stderr=True).status(f"waiting for {what} ..."):
            watched = await client.send(WatchPromise(id=command.id))
        promise = expect(watched, PromiseData, what).promise
    return promise


def _show(place: Place, promise: Promise, *, wait: bool, as_json: bool) -> None:
    if wait and not as_json and promise.state == "resolved":
        showing.print_json(json_values.from_text(promise.value))
        return
    if as_json or not wait:
        print_promise(place, promise, as_json=as_json)
    if wait and promise.state != "resolved":
        raise Refused(f"call '{promise.id}' {_how_it_ended(promise)}")


def _how_it_ended(promise: Promise) -> str:
    if promise.state == "rejected_timedout":
        return "has timed out: nobody answered it before its deadline"
    told = "was cancelled" if promise.state == "rejected_canceled" else "is rejected"
    return (
        told
        if showing.value(promise.value) == "-"
        else f"{told}: {json_values.read_error(promise.value)}"
    )


def _arguments(args: tuple[str, ...], json_args: Any) -> list[Any]:
    if json_args is None:
        return [json_or_text(each) for each in args]
    if args:
        raise UsageError("--arg and --json-args exclude each other: give all arguments one way")
    if not isinstance(json_args, list):
        raise UsageError("--json-args takes a JSON array, for example '[1, \"two\"]'")
    return json_args  # pyright: ignore[reportUnknownVariableType] - JSON is what it is
