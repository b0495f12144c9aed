"""Why something has not settled, who can do something about it, and with which command.

Pure: an explanation and `now` in, a reason out. Its sentence is made by `wait_sentences`.
"""

from typing import Final

from msgspec import Struct

from layby.core.birth import schedule_of
from layby.core.model import Millis, Promise, Task
from layby.core.questions import asker_of, question_of
from layby.core.replies import Explanation
from layby.core.waits import Waiting, waiting_of
from layby.wire import json_values
from layby.workflow import plan
from layby.workflow.by_hand import approving, by_hand, resolving
from layby.workflow.code_names import is_digest
from layby.workflow.history import read_history
from layby.workflow.limit_reasons import FullLimit, defining_command, full_limit, who_gives_permit
from layby.workflow.moments import FOREVER, ago, ahead
from layby.workflow.outcome import failure_of, moment, read, read_run
from layby.workflow.short_ids import quoted, short_id
from layby.workflow.trigger_reasons import is_trigger, who_mends_trigger, who_runs_trigger
from layby.workflow.wait_sentences import (
    counted,
    error_in_words,
    fitting,
    previous_run,
    previous_runs,
    sentence_of,
    subject_of,
    task_of,
)

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
    full: FullLimit | None = None
    """Of what waits for a permit: the limit, if it is known who holds them all."""
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
        full=_full_limit(about, waiting),
    )


def _causes_of(about: Explanation) -> tuple[str, ...]:
    """What it waits for; the deadline of a deferral only ends that."""
    deferred = None if about.task is None else about.task.open_resumption
    deadline = None if deferred is None else deferred.deadline
    return tuple(each.id for each, _ in about.awaited if each.id != deadline)


# --- what is not a wait --------------------------------------------------------------------


def _settled(about: Explanation, now: Millis) -> Reason:
    promise, task = about.promise, about.task
    word, why = _SETTLED[promise.state], ""
    word = "timed out" if promise.is_timed_out else word
    if promise.state == "rejected_timedout" and task is not None and task.is_ours:
        why = f"the run's deadline passed, {moment(promise.timeout_at)}"
    elif promise.state != "resolved":
        why = error_in_words(promise.value)
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
    task = task_of(about)
    sentence = f"is running on worker {task.pid}" + _lease(about, task, now)
    since, unblock = _running_since(task), f"worker {task.pid}"
    return _reason(about, "running", sentence, unblock=unblock, since=since)


def _lost(about: Explanation, waiting: Waiting | None) -> Reason:
    sentence = f"was held by worker {task_of(about).pid}, which is gone; another worker will get it"
    since = None if waiting is None else waiting.since
    return _reason(about, "worker", sentence, unblock="a worker of its group", since=since)


# --- who can do what about a wait -------------------------------------------------------------


def _unblock(about: Explanation, waiting: Waiting) -> str:
    worker = "" if about.task is None else f"worker {about.task.pid}"
    match waiting.form:
        case "open":
            return "whoever settles it"
        case "dependency":
            if task_of(about).is_join:
                return "its items"
            return "the run before it" if previous_runs(about) else "the tasks before it"
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
        return defining_command(task_of(about).gate or "", about.limit)
    if waiting.form == "open":
        return _resolve(about.promise)
    if waiting.form == "halted":
        return f"layby continue {quoted(short_id(about.promise.id))}"
    if about.task is not None and is_trigger(about.task):
        return None  # what to change depends on its class: see `who_runs_trigger`
    if waiting.form == "blocked" and not about.able_workers:
        return f"{_start_worker(about)}{_version_tag(task_of(about))}"
    if waiting.form == "untaken" and task_of(about).is_ours and not about.able_workers:
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


def _full_limit(about: Explanation, waiting: Waiting) -> FullLimit | None:
    is_for_permit = waiting.kind == "limit"
    return full_limit(task_of(about).gate or "", about.limit) if is_for_permit else None


def _has_trigger(about: Explanation) -> bool:
    return any(task is not None and task.is_trigger for _, task in about.awaited)


def _start_worker(about: Explanation) -> str:
    return f"layby worker MODULE --group {quoted(task_of(about).group or 'default')}"


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
    task = task_of(about)
    if not task.is_ours:
        return f"a worker at {task.target}"
    if is_trigger(task):
        return who_runs_trigger(task, about.able_workers)
    return "a free slot of such a worker" if about.able_workers else "a worker with its code"


def _who_fits(about: Explanation) -> str:
    if about.able_workers:
        return "a free slot of such a worker"
    if is_trigger(task_of(about)):
        return who_mends_trigger(task_of(about))
    return fitting(task_of(about))


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
    return resolving(promise.id)


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
    full: FullLimit | None = None,
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
        full=full,
        schedule=schedule_of(promise.tags),
    )


def _awaited_by(about: Explanation) -> str:
    """Who waits for it; empty when nobody is known to."""
    told: list[str] = []
    if about.awaiters:
        more = " or more" if about.more_awaiters else ""
        told.append(f"{counted(len(about.awaiters), 'task')}{more}")
    if about.listeners:
        told.append(counted(about.listeners, "listener"))
    verb = "waits" if told in (["1 task"], ["1 listener"]) else "wait"
    return f"{' and '.join(told)} {verb} for it" if told else ""


def _lease(about: Explanation, task: Task, now: Millis) -> str:
    """Of an unknown holder we know only when its lease ends."""
    if about.holder is not None or task.wake_at is None:
        return ""
    return f", whose lease ends {ahead(task.wake_at, now)} unless it is renewed"


def _running_since(task: Task) -> Millis | None:
    last = read_history(task.history).last
    is_told = last is not None and last.number == task.try_number and last.spans
    return last.spans[-1].start if last is not None and is_told else None


def _last_stack(about: Explanation) -> str:
    """Of the try that failed last."""
    return json_values.read_error(task_of(about).error).stack


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
