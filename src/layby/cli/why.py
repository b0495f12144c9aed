"""`layby why`: what really holds something up, in one sentence."""

from typing import Any

import click

from layby.cli import showing
from layby.cli.connection import Place, ask, now_at
from layby.cli.expected_replies import expect, explained
from layby.cli.options import as_json, reaching
from layby.cli.waiting import reason_json
from layby.client.interface import Client
from layby.core.model import Millis
from layby.core.queries import ExplainPromise
from layby.core.replies import Explanation
from layby.workflow.short_ids import quoted, short_id
from layby.workflow.why import Why, find_why, told


@click.command(
    epilog="""\b
Examples:
  layby why order-7              a run
  layby why order-7:approve      a task of it
  layby why paid-7               any promise"""
)
@click.argument("asked", metavar="ID")
@reaching
@as_json
def why(place: Place, asked: str, *, as_json: bool) -> None:
    """Say why ID has not settled: what for, since when, and who can unblock it.

    Follows the chain of waits to what really holds it up.
    """
    now = now_at(place)
    found = ask(place, lambda client: _find(client, asked, now))
    if as_json:
        showing.print_json(_document(found, now))
        return
    showing.print_line(told(found, now))
    for failure in found.failures[: showing.TRACEBACKS]:
        beside = "" if failure is found.cause else f"\n{failure.subject}:"
        showing.print_line(f"{beside}\n{failure.traceback}")
    verbose = place.sent_here(f"layby tree {quoted(short_id(found.cause.id))} --verbose")
    if more := showing.more_tracebacks(len(found.failures), verbose):
        showing.print_line(f"\n{more}")
    if found.cause.command is not None:
        _print_command(place.sent_here(found.cause.command))
    if found.cause.otherwise is not None:
        showing.print_line("or, to let all workers try it again as they are:")
        _print_command(place.sent_here(found.cause.otherwise))
    if commands := [each for each in _by_hand(found) if each != found.cause.command]:
        showing.print_line("by hand:" if found.cause.command is None else "or by hand:")
        for each in commands:
            _print_command(place.sent_here(each))


def _by_hand(found: Why) -> list[str]:
    """Of the cause, and of every wait on the way to it that a person can end as well."""
    return list(dict.fromkeys(line for each in reversed(found.chain) for line in each.by_hand))


def _print_command(command: str) -> None:
    showing.new_console().print(f"  {showing.dim('$')} {showing.bold(command)}")


async def _find(client: Client, asked: str, now: Millis) -> Why:
    first = await explained(client, asked)

    async def look(promise_id: str) -> Explanation | None:
        if promise_id == first.promise.id:
            return first
        reply = await client.send(ExplainPromise(id=promise_id))
        return None if reply.status == 404 else expect(reply, Explanation, promise_id)

    found = await find_why(look, first.promise.id, now)
    assert found is not None
    return found


def _document(found: Why, now: Millis) -> dict[str, Any]:
    cause = reason_json(found.cause)
    return {
        "id": found.chain[0].id,
        "sentence": told(found, now),
        "cause": cause,
        "other_causes": found.others,
        "more_causes": found.is_cut,
        "tracebacks": {each.id: each.traceback for each in found.failures},
        "chain": [reason_json(each) for each in found.chain],
    }
