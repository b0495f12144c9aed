"""Why something has not settled, in words. Pure: an explanation and `now` in, a reason out.

Every sentence that people read about a wait is made here, for the command line and for pages.
A reason begins where its subject ends: "task 'pay' of run 'o-7'" + "is halted until ...".
"""

import re
from typing import Final, Literal

from msgspec import Struct

from layby.core.model import Millis, Promise, Task
from layby.core.replies import Explanation
from layby.core.search import waits_since
from layby.core.waits import WaitingOn, WaitKind, read_waiting_on
from layby.wire import encoding
from layby.wire.call_format import read_call
from layby.workflow import plan
from layby.workflow.history import read_history
from layby.workflow.moments import FOREVER, ago, ahead
from layby.workflow.outcome import moment, read

ReasonKind = WaitKind | Literal["running", "settled", "circle"]

LISTED: Final = 3
_BACKOFF: Final = re.compile(r"\.backoff\.\d+$")
_SETTLED: Final = {
    "resolved": "resolved",
    "rejected": "rejected",
    "rejected_canceled": "cancelled",
    "rejected_timedout": "timed out",
}


class Reason(Struct, frozen=True, kw_only=True):
    """Of one promise: what holds it up, since when, and who can do something about it."""

    id: str
    subject: str
    kind: ReasonKind
    sentence: str
    aside: str = ""
    """Who would notice, where that is known."""
    since: Millis | None = None
    deadline: Millis | None = None
    """When the wait ends by itself, one way or the other."""
    unblock: str = ""
    """Who can unblock it; empty when only time can, or nobody needs to."""
    command: str | None = None
    """What they would type."""
    awaited: tuple[str, ...] = ()
    """Promises it waits for: each has a reason of its own."""
    more_awaited: bool = False

    def subject_beside(self, other_id: str) -> str:
        """As it is called after something of the same run has been named."""
        node, other = plan.parse_node_id(self.id), plan.parse_node_id(other_id)
        run_id = plan.parse_root_id(other_id) or (other and other.run_id)
        is_same = node is not None and node.run_id == run_id
        return self.subject.removesuffix(f" of run '{run_id}'") if is_same else self.subject


def reason_of(about: Explanation, now: Millis) -> Reason:
    """`about` shows rows as they stand at `now`."""
    promise, task = about.promise, about.task
    if not promise.is_pending:
        return _settled(about, now)
    if promise.timer:  # SDKs give their sleeps a task, which nobody has to take
        return _timer(about, now)
    if task is None:
        return _open(about)
    if task.state == "acquired":
        return _held(about, now)
    if task.state == "halted":
        return _halted(about)
    if task.state == "suspended":
        return _suspended(about, task, now)
    return _ready(about, task, now)


def subject_of(promise: Promise, task: Task | None) -> str:
    """What people call it."""
    if (run_id := plan.parse_root_id(promise.id)) is not None and task is not None:
        return f"run '{run_id}'"
    node = plan.parse_node_id(promise.id)
    if node is not None and task is not None and task.is_ours:
        return f"task '{node.task_id}' of run '{node.run_id}'"
    if promise.timer:
        return f"timer {promise.id}"
    if task is None:
        return f"promise {promise.id}"
    call = read_call(promise)
    return f"task {promise.id}" if call is None else f"call {promise.id} of {call.func}()"


# --- one function for each way to be ------------------------------------------------------


def _settled(about: Explanation, now: Millis) -> Reason:
    promise, task = about.promise, about.task
    word, why = _SETTLED[promise.state], ""
    if promise.state != "resolved":
        why = _error(promise.value)
    elif task is not None and task.kind == "node" and (skipped := read(promise)).reason:
        word, why = "skipped", skipped.reason
    when = ago(promise.settled_at or 0, now)
    sentence = f"is settled: {word} {when}" + (f" ({why})" if why else "")
    return _reason(about, "settled", sentence, since=promise.settled_at)


def _timer(about: Explanation, now: Millis) -> Reason:
    until = about.promise.timeout_at
    sentence = f"settles by itself {ahead(until, now)} ({moment(until)})"
    return _reason(about, "sleep", sentence, deadline=until)


def _open(about: Explanation) -> Reason:
    return _reason(
        about,
        "promise",
        "has not been settled by anybody",
        aside=_awaited_by(about),
        unblock="whoever settles it",
        command=_resolve(about.promise),
    )


def _held(about: Explanation, now: Millis) -> Reason:
    task = about.task
    assert task is not None
    told = read_waiting_on(task.waiting_on)
    if about.holder is not None and not about.holder.is_alive:
        sentence = f"was held by worker {task.pid}, which is gone: it is given to another one"
        return _reason(about, "worker", sentence, unblock="a worker of its group")
    if told is not None:
        return _parked(about, told)
    sentence = f"is running on worker {task.pid}" + _lease(about, task, now)
    return _reason(
        about, "running", sentence, unblock=f"worker {task.pid}", since=_running_since(task)
    )


def _parked(about: Explanation, told: WaitingOn) -> Reason:
    assert about.task is not None
    is_parked = about.task.sub_status == "Deferred"
    sentence = f"is parked, {told.sentence}" if is_parked else f"keeps its slot, {told.sentence}"
    worker = f"worker {about.task.pid}"
    return _reason(
        about,
        told.kind,
        sentence,
        deadline=told.deadline,
        unblock={
            "condition": f"the outside world ({worker} keeps looking)",
            "sleep": "",
            "promise": "whoever settles that promise",
            "rpc": "whoever serves that function",
            "slot": f"a slot of {worker}",
        }.get(told.kind, worker),
        command=_settling(about),
        awaited=_awaited_ids(about),
    )


def _halted(about: Explanation) -> Reason:
    assert about.task is not None
    told = read_waiting_on(about.task.waiting_on)
    return _reason(
        about,
        "manual",
        "is halted until somebody continues it" if told is None else told.sentence,
        unblock="whoever continues it",
        command=f"layby continue {_quoted(short_id(about.promise.id))}",
    )


def _suspended(about: Explanation, task: Task, now: Millis) -> Reason:
    if task.waits_left > 0:
        return _behind(about, task)
    backoff = [promise for promise, _ in about.awaited if _BACKOFF.search(promise.id)]
    if backoff:
        return _backing_off(about, task, backoff[0], now)
    told = read_waiting_on(task.waiting_on)
    sentence = f"is suspended, {told.sentence}" if told else f"is suspended on {_listed(about)}"
    ends_at = _ends_at(about)
    return _reason(
        about,
        told.kind if told else "promise",
        sentence,
        deadline=told.deadline if told else ends_at,
        unblock="whoever settles that" if ends_at is None else "",
        command=_settling(about),
        awaited=_awaited_ids(about),
    )


def _ends_at(about: Explanation) -> Millis | None:
    """When a wait for nothing but timers is over; None for any other wait."""
    if about.more_awaited or not all(promise.timer for promise, _ in about.awaited):
        return None
    return min((promise.timeout_at for promise, _ in about.awaited), default=None)


def _behind(about: Explanation, task: Task) -> Reason:
    others = "task" if task.waits_left == 1 else "tasks"
    sentence = f"waits for {task.waits_left} {others}: {_listed(about)}"
    return _reason(
        about,
        "dependency",
        sentence,
        since=about.promise.created_at,
        unblock="the tasks before it",
        awaited=_awaited_ids(about),
    )


def _backing_off(about: Explanation, task: Task, timer: Promise, now: Millis) -> Reason:
    until = timer.timeout_at
    why = f" after failure {task.failures}: {_error(task.error) or 'unknown'}"
    sentence = f"backs off{why}; it is tried again {ahead(until, now)}"
    return _reason(about, "backoff", sentence, deadline=until)


def _ready(about: Explanation, task: Task, now: Millis) -> Reason:
    if task.ready_at is not None and task.ready_at > now:
        sentence = f"is due {ahead(task.ready_at, now)} ({moment(task.ready_at)})"
        return _reason(about, "sleep", sentence, deadline=task.ready_at)
    if task.ready_at is None and about.holder is not None:
        worker = f"worker {about.holder.pid}"
        sentence = f"goes on when {worker} has ended the body that was halted"
        return _reason(about, "worker", sentence, unblock=worker)
    if not task.is_ours:
        again = f" again, after {_count(task.tries, 'try', 'tries')}" if task.tries else ""
        sentence = f"is ready{again}, and no worker at {task.target} has taken it yet"
        return _reason(about, "worker", sentence, unblock=f"a worker at {task.target}")
    if about.able_workers:
        return _reason(about, "worker", _queued(about), unblock="a free slot of such a worker")
    sentence = (
        f"is ready, but no worker of group '{task.group}' with the code of '{task.name}' "
        f"is connected"
    )
    others = f" ({_count(about.workers, 'worker')} without it)" if about.workers else ""
    return _reason(
        about,
        "worker",
        sentence + others,
        unblock="a worker with its code",
        command=f"layby worker MODULE --group {_quoted(task.group or 'default')}",
    )


# --- words --------------------------------------------------------------------------------


def _reason(
    about: Explanation,
    kind: ReasonKind,
    sentence: str,
    *,
    aside: str = "",
    unblock: str = "",
    since: Millis | None = None,
    deadline: Millis | None = None,
    command: str | None = None,
    awaited: tuple[str, ...] = (),
) -> Reason:
    promise, task = about.promise, about.task
    if since is None and promise.is_pending and (task is None or task.is_waiting):
        since = waits_since(promise, task)
    if deadline is None and promise.is_pending and promise.timeout_at < FOREVER:
        deadline = promise.timeout_at
    return Reason(
        id=promise.id,
        subject=subject_of(promise, task),
        kind=kind,
        sentence=sentence,
        aside=aside,
        since=since,
        deadline=deadline,
        unblock=unblock,
        command=command,
        awaited=awaited,
        more_awaited=about.more_awaited,
    )


def _queued(about: Explanation) -> str:
    assert about.task is not None
    able = _count(about.able_workers, "worker")
    has = "has" if about.able_workers == 1 else "have"
    return (
        f"is ready, and waits for a free slot: {able} of group '{about.task.group}' {has} its code"
    )


def _awaited_by(about: Explanation) -> str:
    """Who would notice; empty when nobody is known to."""
    told: list[str] = []
    if about.awaiters:
        more = " or more" if about.more_awaiters else ""
        told.append(f"{_count(len(about.awaiters), 'task')}{more}")
    if about.listeners:
        told.append(_count(about.listeners, "listener"))
    verb = "waits" if told in (["1 task"], ["1 listener"]) else "wait"
    return f"{' and '.join(told)} {verb} for it" if told else ""


def _listed(about: Explanation) -> str:
    """What it waits for, the first few by name."""
    names = [_name_beside(about.promise, *row) for row in about.awaited[:LISTED]]
    known = len(about.awaited)
    left = known - LISTED
    more = f" and {left}{' or more' if about.more_awaited else ''} others" if left > 0 else ""
    return (", ".join(names) + more) or "something"


def _name_beside(waiting: Promise, promise: Promise, task: Task | None) -> str:
    """Inside a run a task's own id is enough."""
    node, mine = plan.parse_node_id(promise.id), plan.parse_node_id(waiting.id)
    run_id = plan.parse_root_id(waiting.id) or (mine and mine.run_id)
    if node is not None and task is not None and node.run_id == run_id:
        return f"'{node.task_id}'"
    return subject_of(promise, task)


def _settling(about: Explanation) -> str | None:
    """The command that would do, where only one promise is awaited and a person could settle it."""
    if len(about.awaited) != 1:
        return None
    (promise, task) = about.awaited[0]
    return _resolve(promise) if task is None and promise.is_pending and not promise.timer else None


def _resolve(promise: Promise) -> str:
    return f"layby resolve {_quoted(promise.id)} --value JSON"


def _awaited_ids(about: Explanation) -> tuple[str, ...]:
    return tuple(promise.id for promise, _ in about.awaited)


def _lease(about: Explanation, task: Task, now: Millis) -> str:
    """Of who is not known to us, all that is known is until when it has the task."""
    if about.holder is not None or task.wake_at is None:
        return ""
    return f", whose lease ends {ahead(task.wake_at, now)} unless it is renewed"


def _running_since(task: Task) -> Millis | None:
    last = read_history(task.history).last
    is_told = last is not None and last.number == task.try_number and last.spans
    return last.spans[-1].start if last is not None and is_told else None


def _error(text: str | None) -> str:
    told = encoding.read_error(text)
    return "" if told.name == "Error" and not told.message else " ".join(str(told).split())


def _count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or f'{noun}s'}"


def short_id(promise_id: str) -> str:
    """As people may type it: the commands find runs and their tasks without the prefix."""
    is_ours = plan.parse_root_id(promise_id) or plan.parse_node_id(promise_id)
    return promise_id.removeprefix(plan.ROOT_PREFIX) if is_ours else promise_id


def _quoted(text: str) -> str:
    """Safe to paste into a shell."""
    return text if re.fullmatch(r"[\w@%+=:,./-]+", text) else "'" + text.replace("'", "'\\''") + "'"
