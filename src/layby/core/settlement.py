"""What a settlement does to others, and how a task becomes ready: the rules shared by all kinds.

One transaction: the promise is written, its own task is fulfilled, tasks that wait for it
resume, listeners are told. When several promises settle together, all are written before
anyone is resumed, so that a parent expiring with its child is not woken. More waits than
`hop_limit` (or a run with unsettled nodes) arm `tail_at`, and ticks do the rest.
"""

from collections.abc import Sequence

from layby.core.address import inbox_of
from layby.core.draft import Draft
from layby.core.model import NEVER, Message, Millis, Promise, PromiseState, Task, Wait, later


def settle(
    d: Draft,
    promise: Promise,
    state: PromiseState,
    value: str,
    *,
    by_holder: bool = False,
    settlement_id: str | None = None,
) -> Promise:
    """Settle one pending promise now, with all effects."""
    settled = promise.settled(state, value, d.now, settlement_id)
    settle_all(d, [settled], by_holder=by_holder)
    return settled


def settle_all(d: Draft, settled: Sequence[Promise], *, by_holder: bool = False) -> None:
    """Write promises that have just settled, then tell everyone who waits or listens."""
    for promise in settled:
        d.put(promise)
        d.settled.append(promise.id)
        _fulfill_own_task(d, promise, by_holder=by_holder)
    for promise in settled:
        resume_waiting(d, promise)
        _unblock_listeners(d, promise)


def resume_waiting(d: Draft, promise: Promise) -> None:
    """Consume the first waits on a settled promise; arm a tick when there are more."""
    stored = sorted(d.rows.waits.get(promise.id, {}).items())
    loaded = [wait for awaiter, wait in stored if awaiter not in d.rows.forgotten]
    waits = loaded[: d.settings.hop_limit]
    for wait in waits:
        resume(d, wait)
    d.drop_waits(waits)
    if len(waits) < len(loaded) or promise.id in d.rows.more_waits:
        arm_tail(d, promise.id)


def resume(d: Draft, wait: Wait) -> None:
    """The awaited promise has settled. A task past its own deadline reads as fulfilled: skipped."""
    task = d.task(wait.awaiter)
    if task is None or task.state == "fulfilled":
        return
    if wait.counts:
        task = task.one_wait_fewer()
    if task.state == "suspended" and (wait.wakes or task.waits_left == 0):
        make_ready(d, task.resumed_by(wait.awaited))
    elif wait.wakes:
        d.put_task(task.resumed_by(wait.awaited))
    else:
        d.put_task(task)


def make_ready(d: Draft, task: Task, not_before: Millis = 0) -> None:
    """Back to pending: layby's own tasks wait for a take, others are dispatched by `execute`."""
    delayed = d.now < not_before
    if task.is_ours:
        wake_at = not_before if delayed else NEVER
    else:
        wake_at = not_before if delayed else later(d.now, d.settings.retry_ms)
    d.put_task(task.pending(wake_at, max(d.now, not_before)))
    if not task.is_ours and not delayed:
        d.send(execute(task))


def let_go(d: Draft, task: Task) -> None:
    """The body of a halted task has ended: the task may go on as soon as it is continued."""
    if task.state == "halted":
        d.put_task(task.let_go())
    else:
        make_ready(d, task)


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


def _fulfill_own_task(d: Draft, promise: Promise, *, by_holder: bool) -> None:
    task = d.tasks.get(promise.id) or d.rows.tasks.get(promise.id)
    if task is None or task.state == "fulfilled":
        return
    leave_ready(d, task)
    if not by_holder:
        tell_holder(d, task)
    d.put_task(task.fulfilled())
    if task.is_root and task.waits_left > 0:
        arm_tail(d, promise.id)  # its waits name the nodes that still have to be cancelled
    else:
        d.forget_waits_of(task.id)


def _unblock_listeners(d: Draft, promise: Promise) -> None:
    addresses = d.rows.listeners.get(promise.id)
    if not addresses:
        return
    for address in sorted(addresses):
        d.send(Message(promise.id, "unblock", address))
    d.dropped_listeners.append(promise.id)
