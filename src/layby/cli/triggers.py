"""`layby triggers|wake|extend`: what deferred tasks wait for, and what people do about it."""

import asyncio
from typing import Any, NamedTuple

import click

from layby.cli import record_views, showing
from layby.cli.connection import Place, ask, now_at
from layby.cli.expected_replies import ambiguous, expect, found, refuse_expired, unknown
from layby.cli.listing import listed
from layby.cli.options import DURATION, JSON, as_json, limited, reaching
from layby.cli.steering import by_whom, why
from layby.client.interface import Client
from layby.client.request_ids import new_request_id
from layby.core.commands import ExtendWait, WakeTask
from layby.core.ids import ancestors_of, root_of
from layby.core.meant_waits import FindWait
from layby.core.model import Millis
from layby.core.queries import ListWaiting
from layby.core.replies import ExitData, Explanation, WaitData
from layby.core.waits import WaitingOn, read_waiting_on, shown_state
from layby.wire import json_values
from layby.workflow.moments import span
from layby.workflow.outcome import moment
from layby.workflow.plan import ROOT_PREFIX
from layby.workflow.short_ids import short_id


class ShownTrigger(NamedTuple):
    """What is known of one wait."""

    task: str
    trigger: str
    what: str
    state: str
    told: WaitingOn
    polls: WaitingOn | None
    """What its manager has said of it."""
    pid: str | None

    def to_json(self) -> dict[str, Any]:
        polls = self.polls
        return {
            "task": self.task,
            "trigger": self.trigger,
            "what": self.what,
            "state": self.state,
            "pid": self.pid,
            "polls": None if polls is None else polls.polls,
            "lastError": None if polls is None else polls.last_error,
            **showing.times(
                since=self.told.since,
                deadline=self.told.deadline,
                lastPollAt=None if polls is None else polls.last_poll_at,
                nextPollAt=None if polls is None else polls.next_poll_at,
            ),
        }


@click.command(
    epilog="""\b
Examples:
  layby triggers
  layby triggers order-7:wait_for_job"""
)
@click.argument("asked", metavar="[ID]", required=False)
@limited(50)
@reaching
@as_json
def triggers(place: Place, asked: str | None, limit: int, *, as_json: bool) -> None:
    """List what deferred tasks wait for, the longest first; with ID, of one run or task.

    A trigger that runs code is `running` on a trigger manager, or `untaken`: `layby why` says what
    is missing then. All others are promises: they are `waiting`, and nobody has to run them.
    """
    meant = None if asked is None else ask(place, lambda client: found(client, asked)).id
    prefix = f"{meant}:" if meant is not None and root_of(meant) == meant else meant
    found_rows = listed(place, ListWaiting(wait_kind="trigger", prefix=prefix), limit)
    shown = [
        each
        for each in map(_shown, found_rows.rows)
        if each is not None and (meant is None or meant in (each.task, *ancestors_of(each.task)))
    ]
    now = now_at(place)
    if as_json:
        showing.print_json({"triggers": [each.to_json() for each in shown]})
    elif shown:
        headings = ("WAITING", "TASK", "FOR", "STATE", "DEADLINE", "POLLS", "LAST ERROR")
        showing.print_table(
            headings, (_columns(each, now) for each in shown), prose=("STATE", "LAST ERROR")
        )
        showing.tell_cut(limit if found_rows.is_cut else None)
    else:
        showing.print_line("no task is deferred")


@click.command(
    epilog="""\b
Examples:
  layby wake order-7:wait_for_job --value '{"state": "done"}'
  layby wake order-7:wait_for_job --error 'the provider lost the job'"""
)
@click.argument("asked", metavar="ID")
@click.option("--value", "given", type=JSON, help="The payload, as JSON or @FILE.  [default: null]")
@click.option("--error", default=None, help="Let the wait fail with this message instead.")
@by_whom
@why
@reaching
@as_json
def wake(
    place: Place, asked: str, given: Any, error: str | None, by: str, reason: str, *, as_json: bool
) -> None:
    """End the wait of a task now: as if its trigger had fired, its sleep were over, or its
    condition met.

    ID is a task, a run in which one task waits, or one wait. `layby why` prints the id of the wait,
    which never means a later one. A task that backs off after a failure is tried again now. A
    promise that others may wait for too is not settled by this: use `layby resolve` for that.
    """
    if error is not None and given is not None:
        raise click.UsageError("give --value or --error, not both")
    failed = error is not None
    value = json_values.to_value(given)
    if error is not None:
        value = json_values.named_error_value("TriggerError", error)

    async def work(client: Client) -> ExitData:
        meant = await _meant(client, asked)
        command = WakeTask(
            id=meant.task,
            wait=meant.wait,
            exit_id=new_request_id(),
            state="rejected" if failed else "resolved",
            value=value,
            by=by,
            reason=reason,
        )
        return expect(await client.send(command), ExitData, asked, asked)

    _print(ask(place, work), "goes on: its wait has failed" if failed else "goes on", as_json)


@click.command(
    epilog="""\b
Examples:
  layby extend order-7:wait_for_job --timeout 2h
  layby extend order-7:wait_for_job --for-ever"""
)
@click.argument("asked", metavar="ID")
@click.option("--timeout", type=DURATION, help="The wait ends this long from now.")
@click.option("--for-ever", is_flag=True, help="The wait does not end by itself.")
@by_whom
@why
@reaching
@as_json
def extend(
    place: Place,
    asked: str,
    timeout: int | None,
    by: str,
    reason: str,
    *,
    for_ever: bool,
    as_json: bool,
) -> None:
    """Move the deadline of a task's wait, or the end of its sleep, later or sooner.

    ID is a task, a run in which one task waits, or one wait. `layby why` prints the id of the wait,
    which never means a later one. An approval can be answered until its new deadline.
    """
    if (timeout is None) != for_ever:
        both = "not both: " if for_ever else ""
        raise click.UsageError(f"{both}give --timeout, such as --timeout 2h, or --for-ever")

    async def work(client: Client) -> ExitData:
        meant = await _meant(client, asked)
        command = ExtendWait(
            id=meant.task,
            wait=meant.wait,
            exit_id=new_request_id(),
            timeout=timeout,
            by=by,
            reason=reason,
        )
        return expect(await client.send(command), ExitData, asked, asked)

    moved = ask(place, work)
    until = "without end" if timeout is None else f"until {moment(now_at(place) + timeout)}"
    told = read_waiting_on(moved.task.waiting_on)
    if told is not None and not told.members:
        until = "without end" if told.deadline is None else f"until {moment(told.deadline)}"
    _print(moved, f"waits {until}", as_json)


def _print(moved: ExitData, told: str, as_json: bool) -> None:  # noqa: FBT001 - as the option
    if as_json:
        state = {"state": shown_state(moved.task)}
        showing.print_json({"task": record_views.task_json(moved.task) | state})
    else:
        showing.print_line(f"{short_id(moved.task.id)} {told}")


async def _meant(client: Client, asked: str) -> WaitData:
    """The wait of this id, or of a task or run, with or without the prefix of runs."""
    ids = (asked, f"{ROOT_PREFIX}{asked}")
    replies = await asyncio.gather(*(client.send(FindWait(id=each)) for each in ids))
    waits = [reply.data for reply in replies if isinstance(reply.data, WaitData)]
    if len(waits) > 1:
        raise ambiguous(asked)
    if waits:
        return waits[0]
    if all(reply.status == 404 for reply in replies):
        refuse_expired(await found(client, asked))
        raise await unknown(client, asked, "task")
    refused = next((reply for reply in replies if reply.status == 409), replies[0])
    return expect(refused, WaitData, asked, asked)


def _shown(about: Explanation) -> ShownTrigger | None:
    """None for what waits otherwise: a trigger itself waits as well."""
    task = about.task
    if task is None or shown_state(task) != "deferred":
        return None
    told = read_waiting_on(task.waiting_on)
    assert told is not None
    runs = next((each for _, each in about.awaited if each is not None and each.is_trigger), None)
    if runs is None:
        fires = next((each for each, _ in about.awaited if each.id == told.awaited), None)
        is_timer = fires is not None and fires.timer
        what = "time" if is_timer else f"promise {told.awaited}"
        return ShownTrigger(task.id, told.awaited or "", what, "waiting", told, None, None)
    state = "running" if runs.state == "acquired" else "untaken"
    polls = read_waiting_on(runs.waiting_on)
    pid = runs.pid if runs.state == "acquired" else None
    return ShownTrigger(task.id, runs.id, runs.name or "", state, told, polls, pid)


def _columns(shown: ShownTrigger, now: Millis) -> tuple[Any, ...]:
    polls = shown.polls
    return (
        span(now - shown.told.since),
        showing.plain(short_id(shown.task)),
        showing.plain(shown.what),
        f"running on {shown.pid}" if shown.pid else shown.state,
        showing.coming(shown.told.deadline, now),
        "-" if polls is None or polls.polls is None else str(polls.polls),
        showing.plain((polls and polls.last_error) or "-"),
    )
