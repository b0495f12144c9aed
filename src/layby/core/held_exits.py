"""How people end or prolong the wait of a body that is parked in the memory of its worker.

What they decide is stored below the task's id, so that it counts for every later run of the body
too; its holder is told by a message about the promise that has it.
"""

from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from layby.core import birth, values, waits
from layby.core.address import inbox_of
from layby.core.draft import Draft
from layby.core.model import NEVER, Message, Millis, Promise, PromiseState, Task
from layby.core.replies import ExitData, Reply, ok, refuse
from layby.core.settlement import settle
from layby.core.waits import WaitingOn

EXIT: Final = "layby:exit"
"""On a promise below a task: what a person has decided about one of its waits. The task."""
GOES_ON: Final = "Its wait is over: the task goes on already"
NOT_WAITING: Final = "Task does not wait"
NOT_TOLD: Final = "Nobody can tell its body: it serves a call. Cancel the call, or let it end"


class HeldExit(Struct, frozen=True, omit_defaults=True):
    """The param of such a promise: which wait, and until when it lasts now.

    If that is not said, it is over, as the promise was settled.
    """

    wait: str
    until: Millis | None = None


class ExitDecision(Struct, frozen=True):
    """What a person wants, and the promise that keeps it."""

    promise_id: str
    by: str
    value: str
    state: PromiseState = "resolved"


def wake_held(d: Draft, task: Task, decision: ExitDecision) -> Reply:
    """A sleep ends, and a condition counts as met; a failure is raised where the body waits."""
    told, record_id = waits.held_wait(task), waits.held_record(task)
    if told is None:
        return refuse(409, NOT_WAITING)
    if record_id is None or told.kind not in ("sleep", "condition"):
        return refuse(409, _instead_of_waking(told))
    standing = d.promise(record_id)
    if told.kind == "sleep":
        ended = _end_sleep(d, standing, decision)
    else:
        ended = _end_condition(d, task, record_id, standing, decision)
    if isinstance(ended, Reply):
        return ended
    _keep(d, task, ended, HeldExit(record_id))
    return ok(ExitData(d.tasks.get(task.id, task)))


def _end_sleep(d: Draft, timer: Promise | None, decision: ExitDecision) -> ExitDecision | Reply:
    if timer is None or not timer.is_pending:
        return refuse(409, GOES_ON)
    settle(d, timer, decision.state, decision.value)
    return decision


def _end_condition(
    d: Draft, task: Task, record_id: str, standing: Promise | None, decision: ExitDecision
) -> ExitDecision | Reply:
    """If somebody was here before, that counts; but the holder is told again, as the first message
    may have been lost with a connection.
    """
    if not _may_be_told(task):
        return refuse(409, NOT_TOLD)
    if standing is not None and is_exit(standing):
        return replace(decision, state=standing.state, value=standing.value)
    if not birth.is_absent(standing):
        return refuse(409, GOES_ON)
    created = birth.create(d, record_id, NEVER, birth.EMPTY, {EXIT: task.id})
    settle(d, created, decision.state, decision.value)
    return decision


def extend_held(d: Draft, task: Task, decision: ExitDecision, until: Millis) -> Reply:
    """The store fixed the deadline when the wait began; now it fixes another one."""
    told, record_id = waits.held_wait(task), waits.held_record(task)
    if told is None:
        return refuse(409, NOT_WAITING)
    if record_id is None or record_id not in task.deadlines_by_id:
        return refuse(409, _why_not_extended(told))
    if not _may_be_told(task):
        return refuse(409, NOT_TOLD)
    shown = replace(
        told,
        deadline=None if until >= NEVER else until,
        sentence=waits.moved_sentence(told.sentence, decision.by),
    )
    d.put_polled(task.waiting_later(record_id, until, shown.to_text()))
    _keep(d, task, decision, HeldExit(record_id, until))
    return ok(ExitData(d.tasks[task.id]))


def exit_of(promise: Promise) -> HeldExit | None:
    """What a person has decided about a wait; None if the promise is about something else."""
    if f'"{EXIT}":' not in promise.tags or promise.param == birth.EMPTY:
        return None
    return msgspec.json.decode(values.data_of(promise.param), type=HeldExit)


def exit_task(promise: Promise) -> str:
    """Whose wait it is."""
    return msgspec.json.decode(promise.tags, type=dict[str, str])[EXIT]


def is_exit(promise: Promise) -> bool:
    """Whether a person has ended the wait whose record this is."""
    return f'"{EXIT}":' in promise.tags


def _keep(d: Draft, task: Task, decision: ExitDecision, exit_: HeldExit) -> None:
    """Who did it and why stays, and a copy of the call finds it; the holder is told of it."""
    param = values.text_of(values.wrap(msgspec.json.encode(exit_)))
    kept = birth.create(d, decision.promise_id, NEVER, param, {EXIT: task.id})
    settle(d, kept, decision.state, decision.value)
    if _may_be_told(task):
        d.send(Message(kept.id, "unblock", inbox_of(task.group or "", task.pid or "")))


def _may_be_told(task: Task) -> bool:
    return task.holder is not None and bool(task.pid) and bool(task.group)


def _instead_of_waking(told: WaitingOn) -> str:
    """What ends it instead."""
    if told.kind in ("slot", "limit"):
        return GOES_ON
    if told.kind == "approval":
        return f"It waits for an answer to '{told.awaited}': approve or deny that"
    if told.kind == "map":
        return "It waits for the items of a map: cancel the map, or end what its items wait for"
    if told.kind == "bundle":
        named = ", ".join(f"'{each}'" for each in (told.awaited, *told.also_awaited) if each)
        return f"It waits for several at once: settle one of {named or 'its promises'}, or cancel"
    if told.awaited is None:
        return "Its worker has not said how this wait can be ended: cancel the task"
    return (
        f"It waits for '{told.awaited}' and goes on with its value, so it cannot be woken without "
        "one: resolve that promise to skip the wait with a value, reject it to let the wait fail"
    )


def _why_not_extended(told: WaitingOn) -> str:
    if told.kind == "sleep":
        return "A sleep has no deadline, it ends at its time: wake it to end it now"
    if told.kind in ("rpc", "approval") and told.deadline is not None:
        return f"Its deadline is that of promise '{told.awaited}', which never changes"
    return "It waits without a deadline: there is nothing to move"
