"""Holders, and what layby's own workers do: take, heartbeat, leave, finish, fail, annotate.

A holder is one worker process with one lease for everything it has taken. A pid has at most
one living incarnation: a new one puts an end to the old, whose tasks are then freed.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from layby.core import birth
from layby.core.address import inbox_of
from layby.core.commands import (
    AnnotateTask,
    CheckHolder,
    FailTask,
    FinishTask,
    HeartbeatWorker,
    LeaveWorker,
    Take,
)
from layby.core.draft import Draft
from layby.core.model import NEVER, Holder, Promise, Task
from layby.core.promises import add_wait, settle_state
from layby.core.replies import (
    OK,
    AnnotateData,
    Claim,
    FailData,
    FinishData,
    HeartbeatData,
    Reply,
    TakeData,
    ok,
    refuse,
)
from layby.core.settlement import make_ready, settle
from layby.core.tasks import NOT_FOUND, holds

STALE = "Task is not acquired or version mismatch"


def take(d: Draft, c: Take) -> Reply:
    holder = _registered(d, c)
    if not holder.is_alive:
        return _gone(c.pid, c.incarnation)
    return ok(take_ready(d, c, holder, prefer=()))


def heartbeat(d: Draft, c: HeartbeatWorker) -> Reply:
    holder = d.holder(c.pid, c.incarnation)
    if holder is None or not holder.is_alive:
        return _gone(c.pid, c.incarnation)
    d.put_holder(holder.renewed(d.now, holder.ttl))
    lost = d.rows.notices[c.pid]
    for notice in lost:
        d.unsend(notice.key)
    agrees = c.held is None or c.held == holder.held
    return ok(HeartbeatData(lost, agrees, d.now))


def check(d: Draft, c: CheckHolder) -> Reply:
    holder = d.holder(c.pid, c.incarnation)
    if holder is None or not holder.is_alive or holder.group != c.group:
        return _gone(c.pid, c.incarnation)
    return OK


def leave(d: Draft, c: LeaveWorker) -> Reply:
    holder = d.holder(c.pid, c.incarnation)
    if holder is not None and holder.is_alive:
        d.put_holder(holder.gone("left"))
        d.silence(inbox_of(holder.group, holder.pid))
    return OK


def finish(d: Draft, c: FinishTask) -> Reply:
    """Fulfil and take the next task in one transaction, preferring the same run."""
    task, promise = d.task(c.id), d.promise(c.id)
    if task is None or promise is None:
        return NOT_FOUND
    if not holds(task, c.version):
        return refuse(409, STALE)
    state, value = settle_state(c.state), birth.encoded(c.value)
    d.put_task(task.with_history(c.history))
    settled = settle(d, promise, state, value, by_holder=True)
    return ok(FinishData(settled, take_next(d, c.take)))


def fail(d: Draft, c: FailTask) -> Reply:
    """Count the failure and keep the error; then back off, or settle rejected and take."""
    task, promise = d.task(c.id), d.promise(c.id)
    if task is None or promise is None:
        return NOT_FOUND
    if not holds(task, c.version):
        return refuse(409, STALE)
    error = birth.encoded(c.error)
    failed = task.failed(error).with_history(c.history)
    d.put_task(failed)
    if c.retry_at is None:
        promise = settle(d, promise, "rejected", error, by_holder=True)
    else:
        _back_off(d, failed, c.backoff_id, c.retry_at)
    taken = take_next(d, c.take)
    return ok(FailData(promise, d.tasks[c.id], taken))


def annotate(d: Draft, c: AnnotateTask) -> Reply:
    task = d.task(c.id)
    if task is None:
        return NOT_FOUND
    if not holds(task, c.version):
        return refuse(409, STALE)
    annotated = task.annotated(c.sub_status, c.waiting_on, c.progress, c.history)
    d.put_task(annotated)
    return ok(AnnotateData(annotated, _recorded(d, c)))


def _recorded(d: Draft, c: AnnotateTask) -> Promise | None:
    if c.record_id is None:
        return None
    recorded = d.promise(c.record_id)
    if recorded is None:
        created = birth.create(d, c.record_id, NEVER, birth.EMPTY, {})
        recorded = settle(d, created, "resolved", birth.encoded(c.record))
    return recorded


def take_next(d: Draft, c: Take | None) -> TakeData:
    """The take that rides on another command; what this very step made ready comes first."""
    if c is None:
        return TakeData()
    holder = _registered(d, c)
    return take_ready(d, c, holder, prefer=tuple(d.readied)) if holder.is_alive else TakeData()


def take_ready(d: Draft, c: Take, holder: Holder, prefer: Iterable[str]) -> TakeData:
    claims: list[Claim] = []
    room = {"root": d.settings.roots_per_take, "node": c.free}
    put_back = False
    for task, promise in _candidates(d, c, prefer, room):
        kind = "root" if task.is_root else "node"
        if task.waits_left > 0:
            d.put_task(task.suspended())  # made pending early by somebody else: not its turn
            put_back = True
        elif room[kind] > 0:
            room[kind] -= 1
            claims.append(_claimed(d, task, promise, holder))
    return TakeData(claims, again=put_back and room["node"] > 0)


def _candidates(
    d: Draft, c: Take, prefer: Iterable[str], room: Mapping[str, int]
) -> Iterator[tuple[Task, Promise]]:
    """Those there is room for by the time they are reached, and those that must be put back."""
    queue = d.rows.ready[c.key]
    _drop_taken(d, queue)
    for task_id in chain(prefer, [task_id for _, task_id in queue]):
        row = d.tasks.get(task_id) or d.rows.task(task_id)
        if row is None or row.state != "pending" or _is_too_many(row, room):
            continue  # most of a long queue, for a worker with few slots
        task, promise = d.task(task_id), d.promise(task_id)
        if task is not None and promise is not None and _fits(task, c, d.now):
            yield task, promise


def _is_too_many(row: Task, room: Mapping[str, int]) -> bool:
    return row.waits_left == 0 and room["root" if row.is_root else "node"] <= 0


def _drop_taken(d: Draft, queue: list[tuple[int, str]]) -> None:
    """Earlier takes of this batch have emptied the queue from the front."""
    taken = 0
    for _, task_id in queue:
        row = d.rows.task(task_id)
        if row is not None and row.state == "pending":
            break
        taken += 1
    del queue[:taken]


def _fits(task: Task, c: Take, now: int) -> bool:
    return (
        task.state == "pending"
        and task.group == c.group
        and task.name in c.names
        and task.id.startswith(c.prefix)
        and task.ready_at is not None
        and task.ready_at <= now
    )


def _claimed(d: Draft, task: Task, promise: Promise, holder: Holder) -> Claim:
    claimed = task.acquired(holder.pid, holder.ttl, None, holder.incarnation)
    d.put_task(claimed)
    return Claim(claimed, promise, task.ready_at or d.now)


def _registered(d: Draft, c: Take) -> Holder:
    """The caller's holder, renewed; an incarnation that is gone stays gone."""
    holder = d.holder(c.pid, c.incarnation)
    if holder is None:
        holder = Holder(c.pid, c.incarnation, c.group, c.embedded, c.ttl, expires_at=0)
        alive = [old for old in d.holders_of(c.pid) if old.is_alive]
        if alive and c.prefix:
            return holder.gone("lost")  # a token of small reach does not end somebody's worker
        for old in alive:
            d.put_holder(old.gone("lost"))
    if holder.is_alive and (holder.wants_renewal(d.now, c.ttl) or holder.names != c.names):
        holder = holder.renewed(d.now, c.ttl).knowing(c.names)
        d.put_holder(holder)
    return holder


def _back_off(d: Draft, task: Task, timer_id: str, retry_at: int) -> None:
    """A back-off is a wait like any other: suspended on a timer promise."""
    if birth.is_absent(d.promise(timer_id)):
        birth.create(d, timer_id, retry_at, birth.EMPTY, {birth.TIMER: "true"})
    timer = d.promise(timer_id)
    if timer is not None and timer.is_armed:
        add_wait(d, timer_id, task.id)
        d.put_task(task.suspended())
    else:
        make_ready(d, task)


def _gone(pid: str, incarnation: str) -> Reply:
    why = f"Holder '{pid}' ({incarnation}) is gone: drop its tasks and register a new incarnation"
    return refuse(409, why)
