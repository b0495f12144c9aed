"""Why something has not settled, in words. Pure: an explanation and `now` in, a reason out.

Every sentence that people read about a wait is made here, for the command line and for pages,
around what is stored with the wait: that is said by core (`core/waits.py`) or by the worker whose
body waits (`worker/tell.py`, `worker/handle.py`), since only they know it.
A reason begins where its subject ends: "task 'pay' of run 'o-7'" + "is halted until ...".
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from layby.core.birth import schedule_of
from layby.core.codes import refusing_codes
from layby.core.joins import MAP, mapped_by
from layby.core.model import Millis, Promise, Task
from layby.core.questions import asker_of, question_of
from layby.core.replies import Explanation
from layby.core.waits import (
    Waiting,
    WaitingOn,
    blocked_sentence,
    halted_sentence,
    waiting_of,
)
from layby.wire import json_values
from layby.wire.call_format import read_call
from layby.workflow import plan
from layby.workflow.by_hand import approving, by_hand
from layby.workflow.code_names import is_digest
from layby.workflow.history import read_history
from layby.workflow.limit_reasons import defining_command, no_permit, who_gives_permit
from layby.workflow.moments import FOREVER, ago, ahead
from layby.workflow.outcome import failure_of, moment, read, read_run
from layby.workflow.short_ids import quoted, short_id
from layby.workflow.trigger_reasons import (
    is_trigger,
    refused_trigger,
    untaken_trigger,
    who_mends_trigger,
    who_runs_trigger,
)

LISTED: Final = 3
_SETTLED: Final = {
    "resolved": "resolved",
    "rejected": "rejected",
    "rejected_canceled": "cancelled",
    "rejected_timedout": "timed out",
}


class Reason(Struct, frozen=True, kw_only=True):
    """What holds one promise up, since when, and who can do something about it."""

    id: str
    subject: str
    kind: str
    """The kind of the wait; or `running`, `settled` or `circle`."""
    sentence: str
    aside: str = ""
    """Who waits for it, where that is known."""
    traceback: str = ""
    """Where it failed, if it did; or its last try, if there will be another."""
    failed: tuple[str, ...] = ()
    """Of a failed run: the promises of the tasks that failed, or may have when it was too late.

    Of a run of which only the clean-up is left: of all other tasks, any of which may have failed.
    """
    since: Millis | None = None
    deadline: Millis | None = None
    """When the wait ends by itself, one way or another."""
    unblock: str = ""
    """Who can unblock it; empty when only time can, or nobody needs to."""
    command: str | None = None
    """The command they would type."""
    otherwise: str | None = None
    """The command for when that is not possible, such as when the old code is gone for good."""
    by_hand: tuple[str, ...] = ()
    """Commands that end this very wait by hand, or give it more time."""
    awaited: tuple[str, ...] = ()
    """Promises it waits for: each has a reason of its own."""
    more_awaited: bool = False
    schedule: str | None = None
    """Of a run: the schedule that has started it, if one has."""

    def subject_after(self, other: "Reason") -> str:
        """Its name as that of what the other waits for."""
        if self.schedule is not None and self.is_previous_of(other):
            return previous_run(self.schedule, [plan.run_id_of(self.id)])
        return self.subject_beside(other.id)

    def is_previous_of(self, other: "Reason") -> bool:
        """Whether it is a run for which a run of the same schedule waits that was queued."""
        is_run = self.schedule is not None and plan.parse_root_id(self.id) is not None
        return is_run and other.kind == "dependency"

    def subject_beside(self, other_id: str) -> str:
        """Its name in a sentence that has already named something of the same run."""
        node, other = plan.parse_node_id(self.id), plan.parse_node_id(other_id)
        run_id = plan.parse_root_id(other_id) or (other and other.run_id)
        is_same = node is not None and node.run_id == run_id
        return self.subject.removesuffix(f" of run '{run_id}'") if is_same else self.subject


def reason_of(about: Explanation, now: Millis) -> Reason:
    """`about` shows rows as they are at `now`."""
    if not about.promise.is_pending:
        return _settled(about, now)
    waiting = waiting_of(about.promise, about.task, now)
    is_held = waiting is None or waiting.is_held
    if is_held and about.holder is not None and not about.holder.is_alive:
        return _lost(about, waiting)
    if waiting is None:
        return _running(about, now)
    return _reason(
        about,
        waiting.kind,
        sentence_of(about, waiting, now),
        aside=_awaited_by(about) if waiting.form == "open" else "",
        since=waiting.since,
        deadline=waiting.until or _ends_at(about, waiting),
        unblock=_unblock(about, waiting),
        command=_command(about, waiting),
        otherwise=_otherwise(about, waiting),
        by_hand=by_hand(about.promise.id, waiting),
        awaited=_causes_of(about) if waiting.has_awaited else (),
        traceback=_last_stack(about) if waiting.form == "backoff" else "",
        failed=_before_clean_up(about),
    )


def _causes_of(about: Explanation) -> tuple[str, ...]:
    """What it waits for; the deadline of a deferral only ends that."""
    deferred = None if about.task is None else about.task.open_resumption
    deadline = None if deferred is None else deferred.deadline
    return tuple(each.id for each, _ in about.awaited if each.id != deadline)


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
            if previous := _previous_runs(about):
                return queued_sentence(*previous)
            if _task(about).is_join:
                return f"waits for {items_left(about.promise, _task(about))}"
            return f"waits for {_listed(about) or _count(_task(about).waits_left, 'task')}"
        case "delayed":
            return f"is due {ahead(until, now)} ({moment(until)})"
        case "untaken":
            return _untaken(about, knows_workers=knows_workers)
        case "kept":
            pid = _task(about).pid
            return f"starts again once worker {pid} reports that the halted body has ended"
        case "in_slot" | "parked":
            if told is not None and told.kind == "trigger":
                return _polled(told)  # said by its manager: a trigger has no slot to give away
            if waiting.kind == "limit":
                return f"is parked, {no_permit(_task(about).gate or '', about.limit, now)}"
            where = "keeps its slot" if waiting.form == "in_slot" else "is parked"
            return f"{where}, {_said(told)}"
        case "suspended":
            if told is not None and told.kind == "trigger":
                return f"is {told.sentence}"
            on = _listed(about) or "a promise"
            return f"is suspended on {on}" if told is None else f"is suspended, {told.sentence}"
        case "backoff":
            why = _error(_task(about).error) or "unknown"
            return f"{_said(told)}: {why}; it is tried again {ahead(until, now)}"
        case "halted":
            return halted_sentence() if told is None else told.sentence
        case "blocked":
            return _blocked(about, told, now, knows_workers=knows_workers)
        case "limited":
            return no_permit(_task(about).gate or "", about.limit, now)


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
        f"{what} is not halted but blocked: it continues when {_fitting(task)} is connected. "
        f"To let the same code try again: {command}"
    )


# --- what is not a wait --------------------------------------------------------------------


def _settled(about: Explanation, now: Millis) -> Reason:
    promise, task = about.promise, about.task
    word, why = _SETTLED[promise.state], ""
    word = "timed out" if promise.is_timed_out else word
    if promise.state == "rejected_timedout" and task is not None and task.is_ours:
        why = f"the run's deadline passed, {moment(promise.timeout_at)}"
    elif promise.state != "resolved":
        why = _error(promise.value)
    elif task is not None and task.is_node and (skipped := read(promise)).reason:
        word, why = "skipped", skipped.reason
    when = ago(promise.settled_at or 0, now)
    sentence = f"is settled: {word} {when}" + (f" ({why})" if why else "")
    failure = failure_of(promise, task)
    traceback = "" if failure is None else failure.stack
    if task is not None and task.is_kept:
        return _reason(
            about,
            "running",
            f"{sentence}, but its body still runs on worker {task.pid}",
            unblock=f"worker {task.pid}",
            since=promise.settled_at,
            traceback=traceback,
        )
    has_failed = promise.state in ("rejected", "rejected_timedout")
    is_failed_run = has_failed and task is not None and task.is_root
    run_id, life = plan.run_id_of(promise.id), plan.life_of(promise.id)
    return _reason(
        about,
        "settled",
        sentence,
        since=promise.settled_at,
        traceback=traceback,
        failed=_failed_ids(promise) if is_failed_run else (),
        command=f"layby rerun {quoted(run_id)}" if is_failed_run else None,
        awaited=tuple(plan.node_id(run_id, each, life) for each in plan.cleanups_of(promise)),
    )


def _running(about: Explanation, now: Millis) -> Reason:
    task = _task(about)
    sentence = f"is running on worker {task.pid}" + _lease(about, task, now)
    since, unblock = _running_since(task), f"worker {task.pid}"
    return _reason(about, "running", sentence, unblock=unblock, since=since)


def _lost(about: Explanation, waiting: Waiting | None) -> Reason:
    sentence = f"was held by worker {_task(about).pid}, which is gone; another worker will get it"
    since = None if waiting is None else waiting.since
    return _reason(about, "worker", sentence, unblock="a worker of its group", since=since)


# --- who can do what about a wait -------------------------------------------------------------


def _unblock(about: Explanation, waiting: Waiting) -> str:
    worker = "" if about.task is None else f"worker {about.task.pid}"
    match waiting.form:
        case "open":
            return "whoever settles it"
        case "dependency":
            if _task(about).is_join:
                return "its items"
            return "the run before it" if _previous_runs(about) else "the tasks before it"
        case "untaken":
            return _who_takes_it(about)
        case "kept":
            return worker
        case "limited":
            return who_gives_permit(about.limit)
        case "in_slot" | "parked":
            return {
                "limit": who_gives_permit(about.limit),
                "condition": f"the outside world ({worker} keeps looking)",
                "sleep": "",
                "rpc": "whoever serves that function",
                "approval": "whoever answers it",
                "map": "its items",
                "bundle": "whoever settles what it waits for" if about.awaited else "",
                "slot": f"a slot of {worker}",
            }.get(waiting.kind, _who_settles(about) if about.awaited else worker)
        case "suspended":
            if waiting.kind == "trigger" and _has_trigger(about):
                return "the outside world (its trigger keeps looking)"
            return "whoever settles that" if _ends_at(about, waiting) is None else ""
        case "halted":
            return "whoever continues it"
        case "blocked":
            return _who_fits(about)
        case "timer" | "delayed" | "backoff":
            return ""


def _command(about: Explanation, waiting: Waiting) -> str | None:
    """The command they would type."""
    if waiting.kind == "limit":
        return defining_command(_task(about).gate or "", about.limit)
    if waiting.form == "open":
        return _resolve(about.promise)
    if waiting.form == "halted":
        return f"layby continue {quoted(short_id(about.promise.id))}"
    if about.task is not None and is_trigger(about.task):
        return None  # what to change depends on its class: see `who_runs_trigger`
    if waiting.form == "blocked" and not about.able_workers:
        return f"{_start_worker(about)}{_version_tag(_task(about))}"
    if waiting.form == "untaken" and _task(about).is_ours and not about.able_workers:
        return _start_worker(about)
    settling = _settling(about) if waiting.is_held or waiting.form == "suspended" else None
    if settling is None and waiting.form == "suspended" and waiting.kind == "trigger":
        named = waiting.told and waiting.told.record_id
        return f"layby wake {quoted(short_id(named or about.promise.id))}"
    return settling


def _otherwise(about: Explanation, waiting: Waiting) -> str | None:
    """Not the first advice for what is blocked: the code may refuse it again, and pins are lost."""
    if waiting.form == "blocked" and not about.able_workers:
        return f"layby continue --code {quoted(short_id(about.promise.id))}"
    return None


def _has_trigger(about: Explanation) -> bool:
    return any(task is not None and task.is_trigger for _, task in about.awaited)


def _start_worker(about: Explanation) -> str:
    return f"layby worker MODULE --group {quoted(_task(about).group or 'default')}"


def _version_tag(task: Task) -> str:
    """For a pin that somebody chose; a digest comes with the code itself."""
    return "" if task.pin is None or is_digest(task.pin) else f" --version-tag {quoted(task.pin)}"


def _ends_at(about: Explanation, waiting: Waiting) -> Millis | None:
    """When a suspension on nothing but timers is over; None for any other wait."""
    is_timed = all(promise.timer for promise, _ in about.awaited) and not about.more_awaited
    if waiting.form != "suspended" or not is_timed:
        return None
    return min((promise.timeout_at for promise, _ in about.awaited), default=None)


def _who_settles(about: Explanation) -> str:
    """A run settles by itself, when what it waits for has come."""
    runs = [task for _, task in about.awaited if task is not None and task.is_root]
    return "whatever that run waits for" if runs else "whoever settles that promise"


def _who_takes_it(about: Explanation) -> str:
    task = _task(about)
    if not task.is_ours:
        return f"a worker at {task.target}"
    if is_trigger(task):
        return who_runs_trigger(task, about.able_workers)
    return "a free slot of such a worker" if about.able_workers else "a worker with its code"


# --- words --------------------------------------------------------------------------------


def _reason(
    about: Explanation,
    kind: str,
    sentence: str,
    *,
    aside: str = "",
    unblock: str = "",
    since: Millis | None = None,
    deadline: Millis | None = None,
    command: str | None = None,
    otherwise: str | None = None,
    by_hand: tuple[str, ...] = (),
    awaited: tuple[str, ...] = (),
    traceback: str = "",
    failed: tuple[str, ...] = (),
) -> Reason:
    promise = about.promise
    if deadline is None and promise.is_pending and promise.timeout_at < FOREVER:
        deadline = promise.timeout_at
    return Reason(
        id=promise.id,
        subject=subject_of(promise, about.task),
        kind=kind,
        sentence=sentence,
        aside=aside,
        since=since,
        deadline=deadline,
        unblock=unblock,
        command=command,
        otherwise=otherwise,
        by_hand=by_hand,
        awaited=awaited,
        more_awaited=about.more_awaited,
        traceback=traceback,
        failed=failed,
        schedule=schedule_of(promise.tags),
    )


def _task(about: Explanation) -> Task:
    assert about.task is not None
    return about.task


def _said(told: WaitingOn | None) -> str:
    assert told is not None
    return told.sentence


def _untaken(about: Explanation, *, knows_workers: bool) -> str:
    task, able = _task(about), about.able_workers
    if is_trigger(task):
        return untaken_trigger(task, able, knows_managers=knows_workers)
    if not task.is_ours:
        again = f" again, after {_count(task.tries, 'try', 'tries')}" if task.tries else ""
        return f"is ready{again}, and no worker at {task.target} has taken it yet"
    if able:
        has = f"{_count(able, 'worker')} of group '{task.group}' {'has' if able == 1 else 'have'}"
        return f"is ready, and waits for {_free_slots(task)}: {has} its code"
    worker = f"no worker of group '{task.group}' with the code of '{task.name}'"
    if not knows_workers:
        return f"is ready: {worker} had a free slot yet"
    others = f" ({_count(about.workers, 'worker')} without it)" if about.workers else ""
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
    task, able = _task(about), about.able_workers
    if is_trigger(task) and told is not None and not able:
        return refused_trigger(told.sentence)
    if told is not None:
        sentence = told.sentence
    else:  # it was halted, or held by another worker, in between
        sentence = blocked_sentence(refusing_codes(task), task.pin, _why_refused(task))
    if able:
        has = f"{_count(able, 'worker')} of group '{task.group}' {'has' if able == 1 else 'have'}"
        sentence += f"; {has} such code"
    elif knows_workers:
        others = f" ({_count(about.workers, 'worker')} without it)" if about.workers else ""
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


def _who_fits(about: Explanation) -> str:
    if about.able_workers:
        return "a free slot of such a worker"
    if is_trigger(_task(about)):
        return who_mends_trigger(_task(about))
    return _fitting(_task(about))


def _fitting(task: Task) -> str:
    return "a worker with other code" if task.pin is None else f"a worker with code '{task.pin}'"


def _awaited_by(about: Explanation) -> str:
    """Who waits for it; empty when nobody is known to."""
    told: list[str] = []
    if about.awaiters:
        more = " or more" if about.more_awaiters else ""
        told.append(f"{_count(len(about.awaiters), 'task')}{more}")
    if about.listeners:
        told.append(_count(about.listeners, "listener"))
    verb = "waits" if told in (["1 task"], ["1 listener"]) else "wait"
    return f"{' and '.join(told)} {verb} for it" if told else ""


def _previous_runs(about: Explanation) -> tuple[str, list[str]] | None:
    """The schedule and the runs that the first tasks of a queued run wait for; else None.

    A task awaits the root of another run only if that run is the previous one of its schedule.
    """
    roots = [each for each, task in about.awaited if task is not None and task.is_root]
    schedule_id = schedule_of(roots[0].tags) if roots else None
    return None if schedule_id is None else (schedule_id, [plan.run_id_of(p.id) for p in roots])


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


def _settling(about: Explanation) -> str | None:
    """The command to type, if only one promise is awaited and a person could settle it."""
    if len(about.awaited) != 1:
        return None
    (promise, task) = about.awaited[0]
    return _resolve(promise) if task is None and promise.is_pending and not promise.timer else None


def _resolve(promise: Promise) -> str:
    if asker_of(promise) is not None:
        question = question_of(promise)
        asks_value = question is not None and question.schema is not None
        return approving(promise.id, asks_value=asks_value)
    return f"layby resolve {quoted(short_id(promise.id))} --value JSON"


def _lease(about: Explanation, task: Task, now: Millis) -> str:
    """Of an unknown holder we know only when its lease ends."""
    if about.holder is not None or task.wake_at is None:
        return ""
    return f", whose lease ends {ahead(task.wake_at, now)} unless it is renewed"


def _running_since(task: Task) -> Millis | None:
    last = read_history(task.history).last
    is_told = last is not None and last.number == task.try_number and last.spans
    return last.spans[-1].start if last is not None and is_told else None


def _error(text: str | None) -> str:
    told = json_values.read_error(text)
    return "" if told.name == "Error" and not told.message else " ".join(str(told).split())


def _last_stack(about: Explanation) -> str:
    """Of the try that failed last."""
    return json_values.read_error(_task(about).error).stack


def _before_clean_up(about: Explanation) -> tuple[str, ...]:
    """All tasks but those that clean up, if a run waits only for these."""
    root, cleanups = about.promise, plan.cleanups_of(about.promise)
    if not cleanups or not about.awaited or about.more_awaited:
        return ()
    run_id, life = plan.run_id_of(root.id), plan.life_of(root.id)
    cleaning = {plan.node_id(run_id, each, life) for each in cleanups}
    if any(each.id not in cleaning for each, _ in about.awaited):
        return ()
    others = (each for each in plan.task_ids_of(root) if each not in cleanups)
    return tuple(plan.node_id(run_id, each, life) for each in others)


def _failed_ids(root: Promise) -> tuple[str, ...]:
    """A deadline ends a run from outside: which tasks kept failing, only they know."""
    run_id, life = plan.run_id_of(root.id), plan.life_of(root.id)
    is_too_late = root.state == "rejected_timedout"
    failed = plan.task_ids_of(root) if is_too_late else read_run(root).failed
    return tuple(plan.node_id(run_id, each, life) for each in failed)


def _count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or f'{noun}s'}"
