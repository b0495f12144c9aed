"""Holders, and what layby's own workers do: heartbeat, leave, release, finish, fail, annotate.

A holder is one worker process with one lease for everything it has taken. A pid has at most
one living incarnation: a new one puts an end to the old, whose tasks are then freed.
"""

from layby.core import birth, promises, waits
from layby.core.address import inbox_of
from layby.core.commands import (
    AnnotateTask,
    CheckHolder,
    CreateBelow,
    FailTask,
    FinishTask,
    HeartbeatWorker,
    LeaveWorker,
    Released,
    ReleaseTasks,
)
from layby.core.draft import Draft
from layby.core.model import NEVER, Promise, Task, deadline, later
from layby.core.promises import add_wait, settle_state
from layby.core.replies import (
    OK,
    AnnotateData,
    FailData,
    FinishData,
    HeartbeatData,
    Reply,
    ok,
    refuse,
)
from layby.core.settlement import let_go, make_ready, settle
from layby.core.takes import gone, take_next
from layby.core.tasks import NOT_FOUND, holds

STALE = "Task is not acquired or version mismatch"


def heartbeat(d: Draft, c: HeartbeatWorker) -> Reply:
    holder = d.holder(c.pid, c.incarnation)
    if holder is None or not holder.is_alive:
        return gone(c.pid, c.incarnation)
    d.put_holder(holder.renewed(d.now, holder.ttl))
    lost = d.rows.notices[c.pid]
    for notice in lost:
        d.unsend(notice.key)
    agrees = c.held is None or c.held == holder.held
    return ok(HeartbeatData(lost, agrees, d.now))


def check(d: Draft, c: CheckHolder) -> Reply:
    holder = d.holder(c.pid, c.incarnation)
    if holder is None or not holder.is_alive or holder.group != c.group:
        return gone(c.pid, c.incarnation)
    return OK


def leave(d: Draft, c: LeaveWorker) -> Reply:
    holder = d.holder(c.pid, c.incarnation)
    if holder is not None and holder.is_alive:
        d.put_holder(holder.gone("left"))
        d.silence(inbox_of(holder.group, holder.pid))
    return OK


def release(d: Draft, c: ReleaseTasks) -> Reply:
    """What is not held as they say is skipped in silence: it has moved on already."""
    for each in c.tasks:
        task = d.task(each.id)
        if task is not None and task.is_claim_of(c.pid, c.incarnation, each.version):
            _release(d, task.with_history(each.history), each)
    return OK


def finish(d: Draft, c: FinishTask) -> Reply:
    """Fulfil and take the next task in one transaction, preferring the same run."""
    task, promise = d.task(c.id), d.promise(c.id)
    if task is None or promise is None:
        return NOT_FOUND
    if not holds(task, c.version):
        return refuse(409, STALE)
    state, value = settle_state(c.state), birth.encoded(c.value)
    root = _open_root(d, c)
    d.put_task(task.begun().with_history(c.history))
    settled = settle(d, promise, state, value, by_holder=True)
    return ok(FinishData(settled, root=_ended(d, c, root), taken=take_next(d, c.take)))


def fail(d: Draft, c: FailTask) -> Reply:
    """Count the failure and keep the error; then back off, or settle rejected and take."""
    task, promise = d.task(c.id), d.promise(c.id)
    if task is None or promise is None:
        return NOT_FOUND
    if not holds(task, c.version):
        return refuse(409, STALE)
    error = birth.encoded(c.error)
    failed = task.begun().failed(error).with_history(c.history)
    d.put_task(failed)
    root = None
    if c.retry_in is None:
        open_root = _open_root(d, c)
        promise = settle(d, promise, "rejected", error, by_holder=True)
        root = _ended(d, c, open_root)
    else:
        _back_off(d, failed, c.backoff_id, deadline(d.now, c.retry_in))
    taken = take_next(d, c.take)
    return ok(FailData(promise, d.tasks[c.id], taken, root))


def annotate(d: Draft, c: AnnotateTask) -> Reply:
    task = d.task(c.id)
    if task is None:
        return NOT_FOUND
    if not holds(task, c.version):
        return refuse(409, STALE)
    annotated = task.begun().annotated(c.sub_status, c.waiting_on, c.progress, c.history)
    annotated = annotated.waiting_until(c.waits, c.ended, d.now)
    d.put_task(annotated)
    return ok(AnnotateData(annotated, _recorded(d, c)))


def _release(d: Draft, task: Task, how: Released) -> None:
    if task.is_kept:
        let_go(d, task if how.begun else task.never_begun())
        return
    task = task.begun() if how.begun else task.never_begun()
    if how.delay > 0:
        make_ready(d, task, not_before=later(d.now, how.delay))
    else:
        ready_at = d.now if how.ready_at is None else min(how.ready_at, d.now)
        d.put_task(task.pending(NEVER, ready_at))


def _open_root(d: Draft, c: FinishTask | FailTask) -> Task | None:
    """The root of the run, if a verdict on it came along and it waits for its nodes."""
    root = None if c.root is None else d.task(c.root_id)
    if root is None or not root.is_root or root.state != "suspended":
        return None
    return root


def _ended(d: Draft, c: FinishTask | FailTask, root: Task | None) -> Promise | None:
    """Settle the root with the verdict, if this very step has ended the last of its nodes."""
    if root is None or c.root is None or not _is_last(root, d.tasks.get(root.id, root)):
        return None
    promise = d.promise(root.id)
    assert promise is not None
    return settle(d, promise, settle_state(c.root.state), birth.encoded(c.root.value))


def _is_last(before: Task, after: Task) -> bool:
    return before.waits_left > 0 and after.waits_left == 0 and after.state == "pending"


def create_below(d: Draft, c: CreateBelow) -> Reply:
    """Whoever works on a task says how long something may last; what time it is we know here."""
    task, promise = d.task(c.id), d.promise(c.id)
    if task is None or promise is None:
        return NOT_FOUND
    if not holds(task, c.version):
        return refuse(409, STALE)
    if task.ahead:
        d.put_task(task.begun())
    timeout_at = deadline(d.now, c.timeout)
    if c.capped:
        timeout_at = min(timeout_at, promise.timeout_at)
    return promises.create(d, c.creating(timeout_at))


def _recorded(d: Draft, c: AnnotateTask) -> Promise | None:
    if c.record_id is None:
        return None
    recorded = d.promise(c.record_id)
    if recorded is None:
        created = birth.create(d, c.record_id, NEVER, birth.EMPTY, {})
        recorded = settle(d, created, "resolved", birth.encoded(c.record))
    return recorded


def _back_off(d: Draft, task: Task, timer_id: str, retry_at: int) -> None:
    """A back-off is a wait like any other: suspended on a timer promise."""
    if birth.is_absent(d.promise(timer_id)):
        birth.create(d, timer_id, retry_at, birth.EMPTY, {birth.TIMER: "true"})
    timer = d.promise(timer_id)
    if timer is not None and timer.is_armed:
        add_wait(d, timer_id, task.id)
        d.put_task(task.suspended(waits.backing_off(task.failures, timer.timeout_at, d.now)))
    else:
        make_ready(d, task)
