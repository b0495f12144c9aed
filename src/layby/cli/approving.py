"""`layby approvals|approve|deny`: questions of tasks to people, and what a person answers."""

from typing import Any, Final

import click

from layby.cli import record_views, showing
from layby.cli.connection import Place, ask, now_at
from layby.cli.options import JSON, as_json, limited, reaching
from layby.cli.steering import by_whom, why
from layby.client.interface import Client
from layby.client.open_approvals import (
    OpenApproval,
    answer,
    last_answered,
    open_approvals,
    told_who,
)
from layby.core.commands import GetPromise
from layby.core.model import FAR, Millis
from layby.core.questions import asker_of
from layby.core.replies import PromiseData, SettlementData
from layby.errors import Conflict, NotFound
from layby.workflow.moments import span
from layby.workflow.outcome import moment
from layby.workflow.plan import ROOT_PREFIX
from layby.workflow.short_ids import short_id

LISTED = 5
ANSWERED: Final = {"resolved": "approved", "rejected": "denied"}


@click.command(
    epilog="""\b
Examples:
  layby approvals
  layby approvals --json | jq -r '.approvals[].id'"""
)
@limited(50)
@reaching
@as_json
def approvals(place: Place, limit: int, *, as_json: bool) -> None:
    """List questions of tasks that nobody has answered yet."""
    found = ask(place, lambda client: open_approvals(client, (limit or FAR) + 1))
    shown = found[: limit or FAR]
    if as_json:
        showing.print_json({"approvals": [_json(each) for each in shown]})
    elif shown:
        now = now_at(place)
        headings = ("ASKED", "ID", "QUESTION", "DEADLINE")
        showing.print_table(headings, (_columns(each, now) for each in shown), prose=("QUESTION",))
        showing.tell_cut(limit if len(found) > len(shown) else None)
    else:
        showing.print_line("nobody is asked for an approval")


@click.command(
    epilog="""\b
Examples:
  layby approve order-7:ship                    the only question of that task
  layby approve order-7:ship.c.approval.approval-1 --by anna
  layby approve order-7:price --value '{"amount": 40}' --reason 'as agreed'"""
)
@click.argument("asked", metavar="ID")
@click.option("--value", "given", type=JSON, help="What the question asks for, as JSON or @FILE.")
@by_whom
@why
@reaching
@as_json
def approve(place: Place, asked: str, given: Any, by: str, reason: str, *, as_json: bool) -> None:
    """Say yes to an approval.

    ID is the approval, or a task or run that asks only one. A value that does not fit the question
    is refused, and the question stays open. The first answer is the only one: afterwards the exit
    code is 1, and the message says who has answered.
    """
    _answer(place, asked, given, by, reason, approved=True, as_json=as_json)


@click.command(epilog="Example:  layby deny order-7:ship --reason 'not before Monday'")
@click.argument("asked", metavar="ID")
@by_whom
@why
@reaching
@as_json
def deny(place: Place, asked: str, by: str, reason: str, *, as_json: bool) -> None:
    """Say no to an approval; the task is told who and why."""
    _answer(place, asked, None, by, reason, approved=False, as_json=as_json)


def _answer(
    place: Place, asked: str, given: Any, by: str, reason: str, *, approved: bool, as_json: bool
) -> None:
    async def work(client: Client) -> SettlementData:
        approval_id = await _meant(client, asked)
        return await answer(
            client, approval_id, approved=approved, value=given, by=by, reason=reason
        )

    settled = ask(place, work)
    promise = settled.promise
    if as_json:
        showing.print_json({"promise": record_views.promise_json(promise), "won": settled.won})
    elif settled.won:
        showing.print_line(f"{short_id(promise.id)} is {'approved' if approved else 'denied'}")
    if not settled.won:
        who, when = told_who(promise), moment(promise.settled_at or 0)
        raise Conflict(
            f"{short_id(promise.id)} was settled before{who and f' by {who}'}, {when}: "
            f"it stays {ANSWERED.get(promise.state, promise.state)}"
        )


async def _meant(client: Client, asked: str) -> str:
    """The approval of this id, or the only one that the task or run asks."""
    for each in (asked, f"{ROOT_PREFIX}{asked}"):
        reply = await client.send(GetPromise(id=each))
        if isinstance(reply.data, PromiseData):
            if asker_of(reply.data.promise) is not None:
                return each
            return await _only(client, asked, each)
    raise NotFound(f"there is no approval '{asked}': `layby approvals` lists those that are open")


async def _only(client: Client, asked: str, below: str) -> str:
    """Or, if none is open, the last one: whoever comes too late is to hear who was first."""
    found = await open_approvals(client, LISTED, below)
    if len(found) == 1:
        return found[0].id
    if found:
        names = ", ".join(short_id(each.id) for each in found)
        raise Conflict(f"'{asked}' asks for several approvals: name one of {names}")
    answered = await last_answered(client, below)
    if answered is None:
        raise NotFound(f"'{asked}' asks nobody for an approval: see `layby approvals`")
    return answered.id


def _columns(approval: OpenApproval, now: Millis) -> tuple[Any, ...]:
    return (
        span(now - approval.asked_at),
        showing.plain(short_id(approval.id)),
        showing.plain(approval.prompt),
        showing.coming(approval.deadline, now),
    )


def _json(approval: OpenApproval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "task": approval.task,
        "prompt": approval.prompt,
        "schema": approval.schema,
        **showing.times(asked_at=approval.asked_at, deadline=approval.deadline),
    }
