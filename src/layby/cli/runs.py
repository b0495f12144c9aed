"""`layby runs`: executions of workflows, the newest first."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.text import Text

from layby.cli import showing
from layby.cli.connection import Place, ask, now_at
from layby.cli.expected_replies import PAGE
from layby.cli.listing import Listed, listed
from layby.cli.options import as_json, limited, reaching
from layby.client.interface import Client
from layby.core.commands import GetPromise
from layby.core.model import Millis, Promise, Task
from layby.core.queries import ListRuns
from layby.core.replies import PromiseData
from layby.errors import WireError
from layby.workflow import plan
from layby.workflow.moments import span
from layby.workflow.outcome import ROOT_STATES

Row = tuple[Promise, Task | None]
STATES = {name.lower(): states for name, states in ROOT_STATES.items()}
NAMES = {state: name for name, states in ROOT_STATES.items() for state in states}


@click.command(
    epilog="""\b
Examples:
  layby runs
  layby runs --state failed --flow order --limit 20
  layby runs --json | jq -r '.runs[].id'"""
)
@click.option("--state", type=click.Choice(list(STATES)), help="Only those in this state.")
@click.option("--flow", help="Only those of this workflow.")
@limited(50)
@reaching
@as_json
def runs(place: Place, state: str | None, flow: str | None, limit: int, *, as_json: bool) -> None:
    """List runs, the newest first."""
    found = _newest(place, state, flow, limit)
    rows: list[Row] = found.rows
    left = ask(place, lambda client: _open_cleanups(client, rows))
    now = now_at(place)
    if as_json:
        showing.print_json({"runs": [run_json(*row, left[row[0].id]) for row in rows]})
    elif rows:
        headings = ("RUN", "WORKFLOW", "STATE", "TASKS", "STARTED", "TOOK")
        showing.print_table(headings, (_columns(*row, left[row[0].id], now) for row in rows))
        showing.tell_cut(limit if found.is_cut else None)
    else:
        what = " ".join(each for each in (state, flow and f"'{flow}'") if each)
        showing.print_line(f"no {what} runs here" if what else "no runs here yet")


def _newest(place: Place, state: str | None, flow: str | None, limit: int) -> Listed:
    """One state of a run may be several states of its promise."""
    states = STATES[state] if state is not None else (None,)
    queries = (ListRuns(state=each, name=flow, newest_first=True) for each in states)
    lists = [listed(place, query, limit) for query in queries]
    found: list[Row] = [row for each in lists for row in each.rows]
    found.sort(key=lambda row: (row[0].created_at, row[0].id), reverse=True)
    kept = found[:limit] if limit else found
    return Listed(kept, len(kept) < len(found) or any(each.is_cut for each in lists))


async def _open_cleanups(client: Client, rows: Sequence[Row]) -> Mapping[str, int]:
    """By root: how many tasks have yet to clean up, if everything else may have ended.

    Only such runs are looked at closer: nodes that clean up outlive a run that was ended.
    """
    left = Counter({root.id: 0 for root, _ in rows})
    asked: list[tuple[str, str]] = []
    for root, task in rows:
        cleanups = () if root.state == "resolved" else plan.cleanup_ids(root)
        if _waits_left(root, task) <= len(cleanups):
            asked += [(root.id, each) for each in cleanups]
    for begin in range(0, len(asked), PAGE):
        some = asked[begin : begin + PAGE]
        replies = await asyncio.gather(*(client.send(GetPromise(id=each)) for _, each in some))
        left.update(
            root_id
            for (root_id, _), reply in zip(some, replies, strict=True)
            if isinstance(reply.data, PromiseData) and reply.data.promise.is_pending
        )
    return left


def run_json(root: Promise, task: Task | None, cleanups: int) -> dict[str, Any]:
    done, total = progress_of(root, task, cleanups)
    return {
        "id": plan.parse_root_id(root.id) or root.id,
        "promise_id": root.id,
        "life": plan.life_of(root.id),
        "workflow": None if task is None else task.name,
        "state": state_of(root, task),
        "is_cleaning_up": is_cleaning_up(root, task, cleanups),
        "tasks_settled": done,
        "tasks": total,
        **showing.times(created=root.created_at, settled=root.settled_at, deadline=root.timeout_at),
    }


def state_of(root: Promise, task: Task | None) -> str:
    is_halted = task is not None and task.state == "halted" and root.is_pending
    return "Halted" if is_halted else NAMES[root.state]


def is_cleaning_up(root: Promise, task: Task | None, cleanups: int) -> bool:
    """`cleanups`: how many tasks have yet to clean up."""
    return cleanups > 0 and _waits_left(root, task) in (0, cleanups)


def progress_of(root: Promise, task: Task | None, cleanups: int) -> tuple[int | None, int | None]:
    """Settled and all tasks; None if `layby.run.start` did not create it."""
    try:
        total = len(plan.read_root_param(root.param).shape.after)
    except WireError:
        return None, None
    return total - (_waits_left(root, task) or cleanups), total


def _waits_left(root: Promise, task: Task | None) -> int:
    """How many tasks the run waits for; none when it has ended."""
    return task.waits_left if task is not None and root.is_pending else 0


def _columns(root: Promise, task: Task | None, cleanups: int, now: Millis) -> tuple[Any, ...]:
    done, total = progress_of(root, task, cleanups)
    until = now if root.settled_at is None else root.settled_at
    state = showing.state(state_of(root, task))
    if is_cleaning_up(root, task, cleanups):
        state = Text.assemble(state, (" cleaning up", "dim"))
    return (
        showing.plain(plan.parse_root_id(root.id) or root.id),
        showing.plain("-" if task is None else task.name),
        state,
        "-" if total is None else f"{done}/{total}",
        showing.passed(root.created_at, now),
        span(until - root.created_at),
    )
