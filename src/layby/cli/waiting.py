"""`layby waiting`: what waits now, and for what, the longest first."""

from typing import Any, Final

import click

from layby.cli import showing
from layby.cli.connection import Place, now_at
from layby.cli.listing import listed
from layby.cli.options import DURATION, as_json, limited, reaching
from layby.core.model import Millis
from layby.core.queries import ListWaiting
from layby.core.waits import WAIT_KINDS
from layby.wire import durations
from layby.workflow.moments import span
from layby.workflow.reasons import Reason, reason_of
from layby.workflow.short_ids import short_id

KINDS = [kind for kind in WAIT_KINDS if kind != "dependency"]


@click.command(
    epilog="""\b
Examples:
  layby waiting
  layby waiting --older-than 1h --kind promise
  layby waiting --json | jq -r '.waiting[].command // empty'"""
)
@click.option("--older-than", type=DURATION, help="Only what has been waiting at least this long.")
@click.option("--kind", type=click.Choice(KINDS), help="Only waits of this kind.")
@limited(50)
@reaching
@as_json
def waiting(
    place: Place, older_than: int | None, kind: str | None, limit: int, *, as_json: bool
) -> None:
    """List what waits now, the longest first: what for, and who can unblock it.

    Tasks that are parked, suspended, halted or ready, and promises that somebody outside
    listens for. Each wait is listed once: tasks that only wait for others of their run are left
    out, since those others are listed.
    """
    now = now_at(place)
    until = None if older_than is None else now - older_than
    found = listed(place, ListWaiting(until=until, wait_kind=kind), limit)
    reasons = [reason_of(each, now) for each in found.rows]
    if as_json:
        showing.print_json({"waiting": [reason_json(each) for each in reasons]})
    elif reasons:
        _print([_columns(each, place, now) for each in reasons])
        showing.tell_cut(limit if found.is_cut else None)
    else:
        since = "" if older_than is None else f" for {durations.shown(older_than)} or longer"
        showing.print_line(f"nothing{f' of kind {kind}' if kind else ''} waits{since}")


HEADINGS: Final = ("WAITING", "WHAT", "WHY", "DEADLINE", "WHO CAN UNBLOCK IT")


def _print(rows: list[tuple[Any, ...]]) -> None:
    """On a terminal that is too narrow for the table, each wait has lines of its own."""
    if showing.fits(HEADINGS, rows, prose=("WHY",)):
        showing.print_table(HEADINGS, rows, prose=("WHY",))
        return
    for waited, what, why, deadline, who in rows:
        until = "" if str(deadline) == "-" else f" (deadline {deadline})"
        showing.print_line(f"{waited}  {what}  {why}{until}\n    {who}")


def reason_json(reason: Reason) -> dict[str, Any]:
    return {
        "id": reason.id,
        "what": reason.subject,
        "kind": reason.kind,
        "sentence": _sentence(reason),
        "unblock": reason.unblock,
        "command": reason.command,
        "otherwise": reason.otherwise,
        "by_hand": reason.by_hand,
        "awaited": reason.awaited,
        **showing.times(since=reason.since, deadline=reason.deadline),
    }


def _columns(reason: Reason, place: Place, now: Millis) -> tuple[Any, ...]:
    command = reason.command and place.sent_here(reason.command)
    return (
        "-" if reason.since is None else span(now - reason.since),
        showing.plain(short_id(reason.id)),
        showing.plain(_sentence(reason)),
        showing.coming(reason.deadline, now),
        showing.plain(command or reason.unblock or "time"),
    )


def _sentence(reason: Reason) -> str:
    return f"{reason.sentence}; {reason.aside}" if reason.aside else reason.sentence
