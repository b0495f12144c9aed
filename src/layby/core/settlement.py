"""What a settlement does to others, and how a task becomes ready: the rules shared by all kinds.

One transaction: the promise is written, its own task is fulfilled, tasks that wait for it
resume, listeners are told. When several promises settle together, all are written before
anyone is resumed, so that a parent expiring with its child is not woken. More waits or listeners
than `hop_limit` (or a run with unsettled nodes) arm `tail_at`, and ticks do the rest.

A node whose body may still run is kept by its holder. What cleans up after it waits on, until
the holder has said that the body has ended, or is gone.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Literal

from msgspec.structs import replace

from layby.core import join_limits, joins, trigger_ends
from layby.core.address import inbox_of
from layby.core.draft import Draft
from layby.core.ids import root_of
from layby.core.model import (
    NEVER,
    Listener,
    Message,
    Millis,
    Promise,
    PromiseState,
    Task,
    Wait,
    later,
)
from layby.core.questions import settled_by
from layby.core.resumption import Resumption

MAX_WHO_CHARS: Final = 1_000
TOLD_CHARS: Final = 2**17
"""Of addresses that one transaction tells of a settlement; the one that reaches it is the last."""
Settler = Literal["holder", "holder that goes on", "somebody else", "its run"]
"""Who settles: the task's holder, whose body has ended unless it says otherwise, or another; the
end of its run, which sees to everything else that ends with it.
"""


def settle(
    d: Draft,
    promise: Promise,
    state: PromiseState,
    value: str,
    *,
    by: Settler = "somebody else",
    settlement_id: str | None = None,
) -> Promise:
    """Settle one pending promise now, with all effects."""
    settled = promise.settled(state, value, d.now, settlement_id)
    settle_all(d, [settled], by=by)
    return settled


def settle_all(d: Draft, settled: Sequence[Promise], *, by: Settler = "somebody else") -> None:
    """Write promises that have just settled, then tell everyone who waits or listens.

    What a deferred task has of its own to wait for ends with it.
    """
    settled = [*settled, *trigger_ends.ended_with(d, settled)]
    for promise in settled:
        d.put(promise)
        d.settled.append(promise.id)
        _fulfill_own_task(d, promise, by)
    for promise in settled:
        resume_waiting(d, promise)
        tell_listeners(d, promise)


def resume_waiting(d: Draft, promise: Promise) -> None:
    """Consume the first waits on a settled promise; arm a tick when there are more.

    Waits for the end of its body stay while its holder keeps the task.
    """
    task = d.tasks.get(promise.id) or d.rows.tasks.get(promise.id)
    is_kept = task is not None and task.is_kept
    stored = sorted(d.rows.waits_on(promise.id).items())
    loaded = [
        wait
        for awaiter, wait in stored
        if awaiter not in d.rows.forgotten and not (is_kept and wait.is_for_end)
        if not wait.is_note
    ]
    waits = loaded[: d.settings.hop_limit]
    for wait in waits:
        resume(d, wait)
    d.drop_waits([wait for wait in waits if not _leaves_note(wait)])
    for wait in filter(_leaves_note, waits):
        d.wait(Wait(wait.awaited, wait.awaiter, "child" if wait.is_child else "read"))
    if len(waits) < len(loaded) or promise.id in d.rows.more_waits:
        arm_tail(d, promise.id)


def tell_listeners(d: Draft, promise: Promise) -> None:
    """Tell the first who listen to a settled promise; arm a tick when there are more."""
    listening = sorted(d.rows.listeners.get(promise.id, ()))
    told = _short_enough(listening[: d.settings.hop_limit])
    for address in told:
        d.send(Message(promise.id, "unblock", address))
    d.drop_listeners(Listener(promise.id, address) for address in told)
    if len(told) < len(listening) or promise.id in d.rows.more_listeners:
        arm_tail(d, promise.id)


def _short_enough(addresses: Sequence[str]) -> Sequence[str]:
    """The first of them: they are written into the outbox, and may have 1 KB each."""
    ends = accumulate(map(len, addresses))
    return addresses[: 1 + sum(end < TOLD_CHARS for end in ends)]


def resume(d: Draft, wait: Wait) -> None:
    """The awaited promise has settled. A task past its own deadline reads as fulfilled: skipped."""
    task = d.task(wait.awaiter)
    if task is None or task.state == "fulfilled":
        return
    if wait.counts:
        task = task.one_wait_fewer()
    if task.is_join:
        _resume_join(d, joins.told(d, task, wait))
    elif task.resume is not None and is_deferral(d, task):
        _end_deferral(d, task, wait.awaited)
    elif task.state == "suspended" and (wait.wakes or task.waits_left == 0):
        make_ready(d, task.resumed_by(wait.awaited))
    elif wait.wakes:
        d.put_task(task.resumed_by(wait.awaited))
    else:
        d.put_task(task)


def _resume_join(d: Draft, join: Task) -> None:
    """A tick settles it: what waits for the join itself is not loaded here."""
    if join.state == "suspended" and joins.is_over(join):
        make_ready(d, join)
    else:
        d.put_task(join)


def is_deferral(d: Draft, task: Task) -> bool:
    """Whether it waits for a trigger, or did when this step began: nothing else can wake it."""
    stored = d.rows.tasks.get(task.id)
    was_open = stored is not None and stored.open_resumption is not None
    return task.open_resumption is not None or was_open


def _end_deferral(d: Draft, task: Task, awaited: str) -> None:
    resumption = task.open_resumption
    if resumption is None or awaited not in resumption.awaited:
        d.put_task(task)
        return
    deadline = None if resumption.deadline is None else d.promise(resumption.deadline)
    won = resumption.winner(d.promise(resumption.trigger), deadline)
    end_deferral(d, task, resumption.ended(won or awaited), awaited)


def end_deferral(d: Draft, task: Task, ended: Resumption, awaited: str = "") -> None:
    """The wait is over: its other waits must not wake the task later, when it waits for another.

    The wait for `awaited` is dropped by whoever has settled that.
    """
    won = ended.won or ""
    ended = _with_who(d, ended)
    for other in ended.awaited:
        if other != awaited:
            stop_waiting(d, Wait(other, task.id))
    resumed = task.resuming(ended).resumed_by(won)
    if task.state == "suspended":
        make_ready(d, resumed)
    else:
        d.put_task(resumed)
    settle_all(d, [*trigger_ends.cancelled(d, trigger_ends.losers(ended, won), "its wait is over")])


def _with_who(d: Draft, ended: Resumption) -> Resumption:
    """Who has ended it stands in what it ended with; who moved its deadline before has not."""
    won = d.promise(ended.won or "")
    by, reason = ("", "") if won is None else settled_by(won)
    return replace(ended, by=by[:MAX_WHO_CHARS], reason=reason[:MAX_WHO_CHARS])


def stop_waiting(d: Draft, wait: Wait) -> None:
    """What it was for may be read again, if it is of another tree; a child run stays one."""
    if is_elsewhere(wait.awaited, wait.awaiter):
        stored = d.rows.wait(wait.awaited, wait.awaiter)
        is_child = stored is not None and stored.is_child
        d.wait(Wait(wait.awaited, wait.awaiter, "child" if is_child else "read"))
    else:
        d.drop_waits([wait])


def note_read(d: Draft, awaited: str, awaiter: str) -> None:
    """The body of an open task awaits this, settled or not: a replay is to find it again.

    A tree is pruned as a whole, so what is in the task's own needs no note.
    """
    task = d.task(awaiter)
    if is_elsewhere(awaited, awaiter) and task is not None and task.state != "fulfilled":
        drafted = d.waits.get((awaited, awaiter))
        if drafted is None and d.rows.wait(awaited, awaiter) is None:
            d.wait(Wait(awaited, awaiter, "read"))


def is_elsewhere(awaited: str, awaiter: str) -> bool:
    """Whether they are in different trees, and so are not pruned together."""
    return root_of(awaited) != root_of(awaiter)


def _leaves_note(wait: Wait) -> bool:
    return wait.wakes and is_elsewhere(wait.awaited, wait.awaiter)


def make_ready(d: Draft, task: Task, not_before: Millis = 0) -> None:
    """Back to pending: layby's own tasks wait for a take, others are dispatched by `execute`.

    A join waits for the next tick.
    """
    delayed = d.now < not_before
    if task.is_join:
        wake_at = d.now
    elif task.is_ours:
        wake_at = not_before if delayed else NEVER
    else:
        wake_at = not_before if delayed else later(d.now, d.settings.retry_ms)
    d.put_task(task.pending(wake_at, max(d.now, not_before)))
    if not task.is_ours and not delayed:
        d.send(execute(task))


def let_go(d: Draft, task: Task) -> None:
    """The body of a kept task has ended: a halted one may go on as soon as it is continued; what
    cleans up after a settled one has waited for this.
    """
    if task.state == "pending":
        make_ready(d, task)
        return
    d.put_task(task.let_go())
    promise = d.promise(task.id)
    if task.state == "fulfilled" and promise is not None:
        resume_waiting(d, promise)


def leave_ready(d: Draft, task: Task) -> None:
    """The task is no longer pending: an undelivered `execute` would be stale."""
    if task.state == "pending" and not task.is_ours:
        d.unsend((task.id, "execute", task.target))


def execute(task: Task) -> Message:
    return Message(task.id, "execute", task.target, task.version)


def tell_holder(d: Draft, task: Task) -> None:
    """A held task is taken away by someone else: its worker must be told."""
    if task.state == "acquired" and task.holder is not None and task.pid and task.group:
        d.send(Message(task.id, "lost", inbox_of(task.group, task.pid), task.version))


def arm_tail(d: Draft, promise_id: str) -> None:
    promise = d.promises.get(promise_id) or d.rows.promises[promise_id]
    d.put(promise.with_tail(d.now))


def _fulfill_own_task(d: Draft, promise: Promise, by: Settler) -> None:
    task = d.tasks.get(promise.id) or d.rows.tasks.get(promise.id)
    if task is None or task.state == "fulfilled":
        return
    leave_ready(d, task)
    if by in ("somebody else", "its run"):
        tell_holder(d, task)
    over = task.fulfilled() if by == "holder" else task.fulfilled_kept()
    d.put_task(over)
    if task.is_trigger:
        trigger_ends.clean_up_after(d, promise, over)
    if task.is_join:
        join_limits.end_limit(d, promise, is_last=task.waits_left == 0)
    if _ends_others(task, promise, by):
        arm_tail(d, promise.id)  # its waits name what still has to be cancelled
    else:
        d.forget_waits_of(task.id)


def _ends_others(task: Task, promise: Promise, by: Settler) -> bool:
    """Whether nodes, items or child runs may have to be cancelled with it."""
    if task.is_join:
        return task.waits_left > 0
    if task.is_root:
        is_cut_short = promise.state in ("rejected_canceled", "rejected_timedout")
        return task.waits_left > 0 or is_cut_short
    is_cancelled = promise.state == "rejected_canceled" and by == "somebody else"
    return is_cancelled and task.is_node and task.try_number > 0
