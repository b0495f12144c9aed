"""How people end or prolong the wait of a body that is parked in the memory of its worker.

What they decide is stored below the task's id, so that it counts for every later run of the body
too; its holder is told by a message about the promise that has it.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from layby.core import birth, values, waits
from layby.core.address import inbox_of
from layby.core.draft import Draft
from layby.core.exit_refusals import (
    NO_FAILED_BACKOFF,
    NO_LATER_TRY,
    NOT_TOLD,
    TOO_LATE,
    goes_on,
    instead_of_waking,
    why_it_goes_on,
    why_not_extended,
    why_not_waiting,
)
from layby.core.model import EMPTY, NEVER, Message, Millis, Promise, PromiseState, Task
from layby.core.replies import ExitData, Reply, ok, refuse
from layby.core.settlement import settle
from layby.core.tag_names import EXIT, has_tag, tag_of
from layby.core.waits import WaitingOn


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


class MeantWait(Struct, frozen=True):
    """The wait that a person means: what its worker has said of it, and what its end is stored as.

    Nobody has said anything of a wait that is named while no worker has the task.
    """

    told: WaitingOn | None
    record_id: str | None
    standing: Promise | None


def wake_held(d: Draft, task: Task, decision: ExitDecision, wait: str = "") -> Reply:
    """A sleep or a back-off ends, and a condition counts as met; a failure is raised where the body
    waits.
    """
    meant = _meant(d, task, wait)
    if isinstance(meant, Reply):
        return meant
    if meant.told is not None and meant.told.kind == "condition" and meant.record_id is not None:
        ended = _end_condition(d, task, meant.record_id, meant.standing, decision)
    elif _is_timer(meant):
        ended = _end_timer(d, task, meant.standing, decision)
    elif meant.told is None and meant.standing is None and task.state in ("halted", "pending"):
        return refuse(409, why_not_waiting(task))  # nobody can tell which waits it is in
    else:
        return refuse(409, instead_of_waking(meant.told, meant.standing))
    if isinstance(ended, Reply):
        return ended
    keep(d, task, ended, HeldExit(meant.record_id or ""))
    return ok(ExitData(d.tasks.get(task.id, task)))


def _meant(d: Draft, task: Task, wait: str) -> MeantWait | Reply:
    if task.state == "fulfilled":
        return refuse(409, why_not_waiting(task))
    held = waits.held_waits(task)
    if wait:
        return MeantWait(held.get(wait), wait, d.promise(wait))
    if waits.is_backing_off(task):
        backoff = waits.backoff_id(task.id, task.version)
        return MeantWait(None, backoff, d.promise(backoff))
    told = waits.held_wait(task)
    if told is None:
        return refuse(409, why_not_waiting(task))
    if task.gate is not None or told.kind in ("slot", "limit"):
        return refuse(409, why_it_goes_on(task.gate))
    record_id = told.record_id if told.record_id in held else None
    return MeantWait(told, record_id, None if record_id is None else d.promise(record_id))


def _is_timer(meant: MeantWait) -> bool:
    is_sleep = meant.told is not None and meant.told.kind == "sleep"
    is_known = meant.told is None and meant.standing is not None and meant.standing.timer
    return meant.record_id is not None and (is_sleep or is_known)


def _end_timer(
    d: Draft, task: Task, timer: Promise | None, decision: ExitDecision
) -> ExitDecision | Reply:
    """Whoever lets a back-off fail has nobody to tell it to."""
    if timer is None or not timer.is_pending:
        return refuse(409, goes_on(timer))
    if waits.is_backing_off(task) and decision.state != "resolved":
        return refuse(409, NO_FAILED_BACKOFF)
    settle(d, timer, decision.state, decision.value)
    return decision


def _end_condition(
    d: Draft, task: Task, record_id: str, standing: Promise | None, decision: ExitDecision
) -> ExitDecision | Reply:
    """If somebody was here before, that counts; but whoever wants the same lets the holder be told
    again, as the first message may have been lost with a connection.
    """
    if _inbox(d, task) is None:
        return refuse(409, NOT_TOLD)
    if standing is not None and is_exit(standing) and _wants_the_same(decision, standing):
        return replace(decision, state=standing.state, value=standing.value)
    if not birth.is_absent(standing):
        return refuse(409, goes_on(standing))
    if _is_past(d, task, record_id):
        return refuse(409, TOO_LATE)
    created = birth.create(d, record_id, NEVER, EMPTY, {EXIT: task.id})
    settle(d, created, decision.state, decision.value)
    return decision


def _is_past(d: Draft, task: Task, record_id: str) -> bool:
    """Its body gives up, or has given up, though its record may be on its way."""
    return task.deadlines_by_id.get(record_id, NEVER) <= d.now


def _wants_the_same(decision: ExitDecision, standing: Promise) -> bool:
    """Whoever decided it, and why."""
    is_same_state = decision.state == standing.state
    return is_same_state and values.data_of(decision.value) == values.data_of(standing.value)


def extend_held(
    d: Draft, task: Task, decision: ExitDecision, until: Millis, wait: str = ""
) -> Reply:
    """A deadline is where it was fixed when the wait began: with the task, or with a promise that
    the task has made to wait for. There another one is fixed.
    """
    if waits.is_backing_off(task) and wait in ("", waits.backoff_id(task.id, task.version)):
        return refuse(409, NO_LATER_TRY)
    meant = _meant(d, task, wait)
    if isinstance(meant, Reply):
        return meant
    record_id, standing = meant.record_id or "", meant.standing
    if record_id in task.deadlines_by_id:
        if not birth.is_absent(standing):
            return refuse(409, goes_on(standing))
        if _is_past(d, task, record_id):
            return refuse(409, TOO_LATE)
        if task.state == "acquired" and _inbox(d, task) is None:
            return refuse(409, NOT_TOLD)
        d.put_polled(task.waiting_later(record_id, until))
    elif standing is not None and standing.is_pending and standing.is_movable:
        until = until if standing.timer else _capped(d, task, until)
        d.move(standing, until)
    else:
        return refuse(409, why_not_extended(meant.told, standing))
    _show_moved(d, d.tasks.get(task.id, task), record_id, until, decision.by)
    keep(d, task, decision, HeldExit(record_id, until))
    return ok(ExitData(d.tasks.get(task.id, task)))


def _capped(d: Draft, task: Task, until: Millis) -> Millis:
    """What a task asks of others does not outlast it."""
    own = d.promise(task.id)
    return until if own is None else min(until, own.timeout_at)


def _show_moved(d: Draft, task: Task, record_id: str, until: Millis, by: str) -> None:
    """As its worker will say it from now on."""
    told = waits.held_wait(task)
    if told is None:
        return
    own = task.deadlines_by_id.get(told.record_id or "")
    shown = waits.moved(told, record_id, None if until >= NEVER else until, by, own)
    d.put_polled(replace(task, waiting_on=shown.to_text()))


def exit_of(promise: Promise) -> HeldExit | None:
    """What a person has decided about a wait; None if the promise is about something else.

    It is below the task. Requests may not name the tag, but earlier ones may have: whoever could
    create a promise elsewhere has decided nothing.
    """
    if not is_exit(promise) or promise.param == EMPTY:
        return None
    if not promise.id.startswith(f"{exit_task(promise)}."):
        return None
    return msgspec.json.decode(values.data_of(promise.param), type=HeldExit)


def moved_waits(promises: Iterable[Promise]) -> frozenset[str]:
    """Whose deadlines people have moved, as these promises below a task tell."""
    exits = (exit_of(each) for each in promises)
    return frozenset(each.wait for each in exits if each is not None and each.until is not None)


def kept_id(own_id: str) -> str:
    """What a person has decided about a deferred task, beside what was made for that."""
    return f"{own_id}.by"


def exit_task(promise: Promise) -> str:
    """Whose wait it is."""
    task_id = tag_of(promise.tags, EXIT)
    assert task_id is not None
    return task_id


def is_exit(promise: Promise) -> bool:
    """Whether a person has ended the wait whose record this is."""
    return has_tag(promise.tags, EXIT)


def keep(d: Draft, task: Task, decision: ExitDecision, exit_: HeldExit) -> None:
    """Who did it and why stays, and a copy of the call finds it; the holder is told of it."""
    param = values.text_of(values.wrap(msgspec.json.encode(exit_)))
    kept = birth.create(d, decision.promise_id, NEVER, param, {EXIT: task.id})
    settle(d, kept, decision.state, decision.value)
    if (inbox := _inbox(d, task)) is not None:
        d.send(Message(kept.id, "unblock", inbox))


def _inbox(d: Draft, task: Task) -> str | None:
    """Where the process that has its body is told; None if nobody has it, or only a process that
    listens nowhere. Who serves a call has it by a lease of its own, but is a holder too.
    """
    if not task.pid:
        return None
    if task.holder is not None:
        return inbox_of(task.group, task.pid) if task.group else None
    if task.state != "acquired":
        return None
    living = (each for each in d.holders_of(task.pid) if each.is_alive)
    return next((inbox_of(each.group, each.pid) for each in living), None)
