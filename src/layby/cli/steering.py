"""`layby resolve|reject|cancel|halt|continue`: what a person does to runs, tasks and promises."""

import getpass
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click
from msgspec.structs import replace

from layby.cli import record_views, showing
from layby.cli.connection import Place, ask
from layby.cli.expected_replies import expect, found, open_promises, run_rows
from layby.cli.options import JSON, as_json, reaching
from layby.client.interface import Client
from layby.client.many_requests import send_all
from layby.client.request_ids import new_request_id
from layby.core.commands import (
    CancelPromise,
    Command,
    ContinueBlocked,
    ContinueTask,
    GetPromise,
    HaltTask,
    ResolvePromise,
    Value,
)
from layby.core.ids import root_of
from layby.core.model import Promise
from layby.core.questions import BY, REASON
from layby.core.replies import Reply, SettlementData
from layby.errors import Conflict, NotFound
from layby.wire import json_values
from layby.workflow import plan
from layby.workflow.mapped_tasks import parse_item_id
from layby.workflow.short_ids import quoted, short_id
from layby.workflow.wait_sentences import not_halted


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return ""


by_whom = click.option("--by", default=_user, help="Who is doing this.  [default: your login name]")
why = click.option("--reason", default="", help="Why, for the record.")


@click.command(
    epilog="""\b
Examples:
  layby resolve paid-7 --value '{"amount": 42}'
  layby resolve order-7:approve.c.promise.ok --value true --reason 'called the customer'
  layby resolve door-opened --null          it has happened; there is nothing else to say"""
)
@click.argument("promise_id", metavar="ID")
@click.option("--value", "given", type=JSON, help="The outcome, as JSON or @FILE.")
@click.option("--null", "is_null", is_flag=True, help="The outcome is null.")
@by_whom
@why
@reaching
@as_json
def resolve(
    place: Place,
    promise_id: str,
    given: Any,
    by: str,
    reason: str,
    *,
    is_null: bool,
    as_json: bool,
) -> None:
    """Resolve the promise ID; tasks that wait for it continue.

    A promise that does not exist yet is created: an event that comes before its wait is not lost.
    The headers of the value record who did it and why. If it was settled before, by whomever and
    with whatever, that stands, and the exit code is 1.
    """
    value = _signed(json_values.to_value(_outcome(given, is_null=is_null)), by, reason)
    _settle(place, ResolvePromise(id=promise_id, value=value), promise_id, as_json=as_json)


@click.command(
    epilog="Example:  layby reject paid-7 --reason 'the bank refused'",
)
@click.argument("promise_id", metavar="ID")
@click.option("--value", "given", type=JSON, help="The error, as JSON or @FILE.")
@by_whom
@why
@reaching
@as_json
def reject(
    place: Place, promise_id: str, given: Any, by: str, reason: str, *, as_json: bool
) -> None:
    """Reject the promise ID; tasks that wait for it get an error with the reason."""
    told = json_values.named_error_value("Rejected", reason or f"rejected by {by or 'somebody'}")
    value = told if given is None else json_values.to_value(given)
    command = ResolvePromise(id=promise_id, value=_signed(value, by, reason), state="rejected")
    _settle(place, command, promise_id, as_json=as_json)


@click.command(
    epilog="""\b
Examples:
  layby cancel order-7 --reason 'ordered twice'
  layby cancel order-7:ship          one task of it"""
)
@click.argument("asked", metavar="ID")
@by_whom
@why
@reaching
@as_json
def cancel(place: Place, asked: str, by: str, reason: str, *, as_json: bool) -> None:
    """Cancel a run with all its tasks, one task, or any promise.

    Tasks of a run that have rule="finally" are not cancelled with it: they clean up when the bodies
    of the others have ended.
    """

    async def work(client: Client) -> SettlementData:
        promise = await found(client, asked)
        cancel = CancelPromise(id=promise.id, by=by, reason=reason, settlement_id=new_request_id())
        return expect(await client.send(cancel), SettlementData, asked)

    settled = ask(place, work)
    cleanups = [repr(each) for each in plan.cleanups_of(settled.promise)]
    told = f"; {' and '.join(cleanups)} will clean up" if cleanups else ""
    _print_settlement(settled, asked, f"is cancelled{told}", as_json=as_json)


@click.command(
    epilog="""\b
Examples:
  layby halt order-7 --reason 'until the price is right'
  layby halt order-7:ship"""
)
@click.argument("asked", metavar="ID")
@by_whom
@why
@reaching
@as_json
def halt(place: Place, asked: str, by: str, reason: str, *, as_json: bool) -> None:
    """Stop a task, or every task of a run that has not settled, until it is continued."""
    _steer(place, asked, HaltTask(id="", by=by, reason=reason), "halted", as_json=as_json)


@click.command(
    "continue",
    epilog="""\b
Examples:
  layby continue order-7
  layby continue order-7:ship
  layby continue --code order-7      let every worker try again, whatever its code""",
)
@click.argument("asked", metavar="ID")
@click.option(
    "--code",
    is_flag=True,
    help="Instead, continue what is blocked by its code; a pinned run is no longer pinned.",
)
@reaching
@as_json
def continue_(place: Place, asked: str, *, code: bool, as_json: bool) -> None:
    """Continue a halted task, or every halted task of a run.

    Tasks that are blocked by the code of their workers are not halted: they continue by themselves
    when a worker with other code connects. With --code the same code may try again.
    """
    command = ContinueBlocked(id="") if code else ContinueTask(id="")
    _steer(place, asked, command, "continued", as_json=as_json)


def _settle(place: Place, command: ResolvePromise, promise_id: str, *, as_json: bool) -> None:
    async def work(client: Client) -> SettlementData:
        settle = replace(
            command, id=await _meant(client, promise_id), settlement_id=new_request_id()
        )
        return expect(await client.send(settle), SettlementData, f"promise '{promise_id}'")

    settled = ask(place, work)
    is_new = settled.promise.created_at == settled.promise.settled_at
    told = "; it is new: nobody has waited for it yet" if is_new else ""
    told = f"is {settled.promise.state}{told}"
    _print_settlement(settled, f"promise '{promise_id}'", told, as_json=as_json)


def _print_settlement(settled: SettlementData, asked: str, told: str, *, as_json: bool) -> None:
    """With --json, whoever lost gets the document too, beside the complaint."""
    promise = settled.promise
    if as_json:
        showing.print_json({"promise": record_views.promise_json(promise), "won": settled.won})
    elif settled.won:
        showing.print_line(f"{short_id(promise.id)} {told}")
    if not settled.won:
        raise Conflict(f"{asked} was settled before{_by_whom(promise)}: {_standing(promise)}")


def _standing(promise: Promise) -> str:
    value = showing.value(promise.value)
    return f"it stays {promise.state}" + ("" if value == "-" else f" with {value}")


def _by_whom(promise: Promise) -> str:
    """As its headers, or its cancellation, tell."""
    by = json_values.headers_of(promise.value).get(BY, "")
    if not by and promise.state == "rejected_canceled":
        by = str(json_values.read_error(promise.value).details.get("by") or "")
    return f" by {by}" if by else ""


def _outcome(given: Any, *, is_null: bool) -> Any:
    """Forgetting the value must not settle with null, since it cannot be taken back."""
    source = click.get_current_context().get_parameter_source("given")
    is_given = source is not click.core.ParameterSource.DEFAULT  # `--value null` is given
    if is_null and is_given:
        raise click.UsageError("give --value JSON or --null, not both")
    if not is_null and not is_given:
        raise click.UsageError(
            "what should it be resolved with? Give --value JSON, such as --value true or "
            "--value '\"yes\"', or --null for no value"
        )
    return given


async def _meant(client: Client, promise_id: str) -> str:
    """Promises of a task may be typed without `run/`; any other id is used as given, but not that
    of a run: a new promise of the same id would hide the run from every command. A token for ids
    that begin with `run/` may look at those only.
    """
    full = f"{plan.ROOT_PREFIX}{promise_id}"
    if (await client.send(GetPromise(id=promise_id))).status not in (403, 404):
        return promise_id
    if not (await client.send(GetPromise(id=full))).is_ok:
        return promise_id
    if ":" not in promise_id:
        raise Conflict(_not_by_hand(promise_id, await open_promises(client, full)))
    return full


def _not_by_hand(run_id: str, awaited: list[str]) -> str:
    found = ", ".join(each.removeprefix(plan.ROOT_PREFIX) for each in awaited)
    waits = f"it waits for {found}" if found else "none of its promises is open"
    typed = quoted(run_id)
    return (
        f"'{run_id}' is a run, and its tasks make its outcome: {waits}; "
        f"`layby why {typed}` says what holds it up, `layby cancel {typed}` ends it"
    )


def _steer(
    place: Place,
    asked: str,
    command: HaltTask | ContinueTask | ContinueBlocked,
    told: str,
    *,
    as_json: bool,
) -> None:
    """For a task, report a refusal; for a run, apply it to every task that allows it."""

    async def work(client: Client) -> list[str]:
        promise = await found(client, asked)
        ids = await _steered(client, promise.id, command)
        sent = await send_all(client.send, [replace(command, id=each) for each in ids])
        replies = list(zip(ids, sent, strict=True))
        if isinstance(command, ContinueTask) and not any(reply.is_ok for _, reply in replies):
            await _refuse_blocked(client, promise.id, asked)
        if len(replies) == 1:
            _expect_task(replies[0][1], asked, told)
        return [each for each, reply in replies if reply.is_ok]

    done = ask(place, work)
    if not done:
        why = "all have settled or are halted" if told == "halted" else "none is halted"
        why = "none is blocked" if isinstance(command, ContinueBlocked) else why
        raise Conflict(f"{asked}: none of its tasks can be {told}: {why}")
    if as_json:
        showing.print_json({told: done})
    else:
        for line in _told_lines(done, told):
            showing.print_line(line)


def _told_lines(done: Sequence[str], told: str) -> Iterator[str]:
    """Of each, in order; the items of a map are counted, as they may be thousands."""
    items = Counter(item.join_id for each in done if (item := parse_item_id(each)) is not None)
    for each in done:
        item = parse_item_id(each)
        if item is None or items[item.join_id] == 1:
            yield f"{short_id(each)} is {told}"
    for join_id, count in items.items():
        if count > 1:
            yield f"{short_id(join_id)}: {count:,} items are {told}"


def _expect_task(reply: Reply, asked: str, told: str) -> None:
    if reply.status == 404:
        raise NotFound(f"promise '{asked}' has no task that could be {told}")
    expect(reply, object, asked)


async def _refuse_blocked(client: Client, promise_id: str, asked: str) -> None:
    """Nothing was halted; whoever looks at a blocked task probably meant something else."""
    rows = await run_rows(client, root_of(promise_id))
    if why := not_halted(asked, promise_id, rows, f"layby continue --code {quoted(asked)}"):
        raise Conflict(why)


async def _steered(client: Client, promise_id: str, command: Command) -> list[str]:
    """The tasks of a run that it applies to, root first; else the one task."""
    run_id = plan.parse_root_id(promise_id)
    if run_id is None:
        return [promise_id]
    wanted = (
        ("halted",) if isinstance(command, ContinueTask) else ("pending", "acquired", "suspended")
    )
    rows = await run_rows(client, plan.root_id(run_id))
    tasks = [t for _, t in rows if t is not None and t.kind]
    if isinstance(command, ContinueBlocked):
        return [t.id for t in tasks if t.refused is not None or (t.pin and t.state != "fulfilled")]
    return [t.id for t in tasks if t.state in wanted]


def _signed(value: Value, by: str, reason: str) -> Value:
    headers = {name: text for name, text in ((BY, by), (REASON, reason)) if text}
    return replace(value, headers=headers)
