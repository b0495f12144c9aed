"""What waits for what, in sentences. Pure: an explanation and `now` in, words out.

Every sentence that people read about a wait is made here, for the command line and for pages,
around what is stored with the wait: that is said by core (`core/waits.py`) or by the worker whose
body waits (`worker/tell.py`, `worker/handle.py`), since only they know it.
A sentence begins where its subject ends: "task 'pay' of run 'o-7'" + "is halted until ...".
"""

from collections.abc import Iterable, Sequence
from typing import Final

from layby.core.birth import schedule_of
from layby.core.codes import refusing_codes
from layby.core.joins import MAP, mapped_by
from layby.core.model import Millis, Promise, Task
from layby.core.replies import Explanation
from layby.core.waits import Waiting, WaitingOn, blocked_sentence, halted_sentence
from layby.wire import json_values
from layby.wire.call_format import read_call
from layby.workflow import plan
from layby.workflow.history import read_history
from layby.workflow.limit_reasons import no_permit
from layby.workflow.moments import ahead
from layby.workflow.outcome import moment
from layby.workflow.short_ids import short_id
from layby.workflow.trigger_reasons import is_trigger, refused_trigger, untaken_trigger

LISTED: Final = 3


def sentence_of(
    about: Explanation, waiting: Waiting, now: Millis, *, knows_workers: bool = True
) -> str:
    """`knows_workers`: whether `about` says who could run it."""
    told, until = waiting.told, waiting.until or 0
    match waiting.form:
        case "timer":
            return f"settles by itself {ahead(until, now)} ({moment(until)})"
        case "open":
            return "has not been settled by anybody"
        case "dependency":
            if previous := previous_runs(about):
                return queued_sentence(*previous)
            if task_of(about).is_join:
                return f"waits for {items_left(about.promise, task_of(about))}"
            return f"waits for {_listed(about) or counted(task_of(about).waits_left, 'task')}"
        case "delayed":
            return f"is due {ahead(until, now)} ({moment(until)})"
        case "untaken":
            return _untaken(about, knows_workers=knows_workers)
        case "kept":
            pid = task_of(about).pid
            return f"starts again once worker {pid} reports that the halted body has ended"
        case "in_slot" | "parked":
            if told is not None and told.kind == "trigger":
                return _polled(told)  # said by its manager: a trigger has no slot to give away
            if waiting.kind == "limit":
                return f"is parked, {no_permit(task_of(about).gate or '', about.limit, now)}"
            where = "keeps its slot" if waiting.form == "in_slot" else "is parked"
            return f"{where}, {_said(told)}"
        case "suspended":
            if told is not None and told.kind == "trigger":
                return f"is {told.sentence}"
            on = _listed(about) or "a promise"
            return f"is suspended on {on}" if told is None else f"is suspended, {told.sentence}"
        case "backoff":
            why = error_in_words(task_of(about).error) or "unknown"
            return f"{_said(told)}: {why}; it is tried again {ahead(until, now)}"
        case "halted":
            return halted_sentence() if told is None else told.sentence
        case "blocked":
            return _blocked(about, told, now, knows_workers=knows_workers)
        case "limited":
            return no_permit(task_of(about).gate or "", about.limit, now)


def _polled(told: WaitingOn) -> str:
    if told.last_error is None:
        return told.sentence
    return f"{told.sentence}, and raised when it was last polled: {told.last_error}"


def queued_sentence(schedule_id: str, run_ids: Sequence[str]) -> str:
    """Of a run of a schedule that begins when earlier ones have ended."""
    return f"waits for {previous_run(schedule_id, run_ids)}"


def previous_run(schedule_id: str, run_ids: Sequence[str]) -> str:
    runs = "run" if len(run_ids) == 1 else "runs"
    named = " and ".join(f"'{each}'" for each in run_ids[:LISTED])
    more = f" and {len(run_ids) - LISTED} more" if len(run_ids) > LISTED else ""
    return f"the previous {runs} of schedule '{schedule_id}' ({named}{more})"


def previous_runs(about: Explanation) -> tuple[str, list[str]] | None:
    """The schedule and the runs that the first tasks of a queued run wait for; else None.

    A task awaits the root of another run only if that run is the previous one of its schedule.
    """
    roots = [each for each, task in about.awaited if task is not None and task.is_root]
    schedule_id = schedule_of(roots[0].tags) if roots else None
    return None if schedule_id is None else (schedule_id, [plan.run_id_of(p.id) for p in roots])


def items_left(promise: Promise, join: Task) -> str:
    """What a join waits for."""
    total = "" if join.items is None else f" of {join.items:,}"
    more = ", and for more to be added" if join.items is None else ""
    return f"{join.waits_left:,}{total} items of {mapped_name(promise)}{more}"


def mapped_name(join: Promise) -> str:
    """The function that a join runs for each item."""
    return (mapped_by(join) or "").rpartition(":")[2] or "a task"


def old_body_sentence(task: Task) -> str:
    """`task`: the same task in an earlier life of its run, which has settled."""
    return f"waits until its body of life {plan.life_of(task.id)} has ended on worker {task.pid}"


def _untaken(about: Explanation, *, knows_workers: bool) -> str:
    task, able = task_of(about), about.able_workers
    if is_trigger(task):
        return untaken_trigger(about.promise, task, able, knows_managers=knows_workers)
    if not task.is_ours:
        again = f" again, after {counted(task.tries, 'try', 'tries')}" if task.tries else ""
        return f"is ready{again}, and no worker at {task.target} has taken it yet"
    if able:
        has = f"{counted(able, 'worker')} of group '{task.group}' {'has' if able == 1 else 'have'}"
        return f"is ready, and waits for {_free_slots(task)}: {has} its code"
    worker = f"no worker of group '{task.group}' with the code of '{task.name}'"
    if not knows_workers:
        return f"is ready: {worker} had a free slot yet"
    others = f" ({counted(about.workers, 'worker')} without it)" if about.workers else ""
    return f"is ready, but {worker} is connected{others}"


def _free_slots(task: Task) -> str:
    slots = "a free slot" if task.slots == 1 else f"{task.slots} free slots of one worker"
    if not task.priority:
        return slots
    return f"{slots} with priority {task.priority}, after tasks of a higher one"


def _blocked(
    about: Explanation, told: WaitingOn | None, now: Millis, *, knows_workers: bool
) -> str:
    """What its code did not fit, whose turn it is now, and which of its waits go on meanwhile."""
    task, able = task_of(about), about.able_workers
    if is_trigger(task) and told is not None and not able:
        return refused_trigger(told.sentence)
    if told is not None:
        sentence = told.sentence
    else:  # it was halted, or held by another worker, in between
        sentence = blocked_sentence(refusing_codes(task), task.pin, _why_refused(task))
    if able:
        has = f"{counted(able, 'worker')} of group '{task.group}' {'has' if able == 1 else 'have'}"
        sentence += f"; {has} such code"
    elif knows_workers:
        others = f" ({counted(about.workers, 'worker')} without it)" if about.workers else ""
        sentence += f"; no worker of group '{task.group}' with such code is connected{others}"
    return sentence + _waits_that_go_on(task, now)


def _why_refused(task: Task) -> str:
    """What the code that refused it last has said, as far as its history tells."""
    tries = reversed(read_history(task.history).tries)
    return next((each.error or "" for each in tries if each.outcome == "Blocked"), "")


def _waits_that_go_on(task: Task, now: Millis) -> str:
    """Blocking does not stop the clock of a wait that has begun."""
    ends_at = min(task.deadlines_by_id.values(), default=None)
    if ends_at is None:
        return ""
    return f"; the timeout of its wait goes on and ends {ahead(ends_at, now)} ({moment(ends_at)})"


def not_halted(
    what: str, promise_id: str, rows: Iterable[tuple[Promise, Task | None]], command: str
) -> str | None:
    """For whoever continues a task, or a run, of which nothing is halted: what is blocked instead.

    `rows`: those of its run; `command` lets the same code try again. None if nothing is blocked.
    """
    mine = (t for _, t in rows if t is not None and f"{t.id}:".startswith(f"{promise_id}:"))
    task = next((each for each in mine if each.refused is not None), None)
    if task is None:
        return None
    return (
        f"{what} is not halted but blocked: it continues when {fitting(task)} is connected. "
        f"To let the same code try again: {command}"
    )


def fitting(task: Task) -> str:
    return "a worker with other code" if task.pin is None else f"a worker with code '{task.pin}'"


def subject_of(promise: Promise, task: Task | None) -> str:
    """What people call it."""
    if task is not None and task.is_trigger:
        return f"trigger {task.name} ({short_id(promise.id)})"
    if (run_id := plan.parse_root_id(promise.id)) is not None and task is not None:
        return f"run '{run_id}'"
    node = plan.parse_node_id(promise.id)
    if node is not None and task is not None and task.is_ours:
        if (called := _map_subject(node)) is not None:
            return called
        return f"task '{node.task_id}' of run '{node.run_id}'"
    if promise.timer:
        return f"timer {promise.id}"
    if task is None:
        return f"promise {promise.id}"
    call = read_call(promise)
    return f"task {promise.id}" if call is None else f"call {promise.id} of {call.func}()"


def _map_subject(node: plan.NodeId) -> str | None:
    """What people call an item, or a join; None if it is neither."""
    caller, found, below = node.task_id.rpartition(f":{MAP}")
    if not found:
        return None
    name, _, index = below.partition(":")
    what = f"item {index} of map" if index else "map"
    caller = caller.replace(f":{MAP}", " map ")
    return f"{what} '{name}' of task '{caller}' of run '{node.run_id}'"


def _listed(about: Explanation) -> str:
    """What it waits for, the first few by name; empty when that is not known."""
    names = [_name_beside(about.promise, *row) for row in about.awaited[:LISTED]]
    known = len(about.awaited)
    left = known - LISTED
    more = f" and {left}{' or more' if about.more_awaited else ''} others" if left > 0 else ""
    return ", ".join(names) + more


def _name_beside(waiting: Promise, promise: Promise, task: Task | None) -> str:
    """Inside a run a task's own id is enough."""
    node, mine = plan.parse_node_id(promise.id), plan.parse_node_id(waiting.id)
    run_id = plan.parse_root_id(waiting.id) or (mine and mine.run_id)
    is_beside = node is not None and task is not None and node.run_id == run_id
    name = f"'{node.task_id}'" if node is not None and is_beside else subject_of(promise, task)
    return name if promise.is_pending else f"the end of the body of {name}"


def task_of(about: Explanation) -> Task:
    assert about.task is not None
    return about.task


def _said(told: WaitingOn | None) -> str:
    assert told is not None
    return told.sentence


def error_in_words(text: str | None) -> str:
    told = json_values.read_error(text)
    return "" if told.name == "Error" and not told.message else " ".join(str(told).split())


def counted(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or f'{noun}s'}"
