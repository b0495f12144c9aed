"""Handlers of task.*: guards in protocol order (404, 409, 422), then a straight path."""

from collections.abc import Sequence

from msgspec import Struct

from layby.core import birth, promises, values
from layby.core.draft import Draft
from layby.core.fields import Int64, Unread
from layby.core.footprint import Footprint
from layby.core.kinds import ById, Command
from layby.core.model import Millis, Promise, Task, later
from layby.core.promises import CreatePromise, RegisterCallback, SettlePromise
from layby.core.replies import (
    OK,
    ClaimData,
    FenceData,
    PreloadData,
    PromiseData,
    Reply,
    TaskData,
    ok,
    refuse,
)
from layby.core.settlement import leave_ready, make_ready, settle, tell_holder

NOT_FOUND = refuse(404, "Task not found")


class GetTask(ById, frozen=True):
    kind = "task.get"
    unqueues = False


def get(d: Draft, c: GetTask) -> Reply:
    task = d.task(c.id)
    return NOT_FOUND if task is None else ok(TaskData(task))


class CreateAction(Struct, frozen=True):
    kind: str
    head: Unread
    data: CreatePromise


class CreateTask(Command, frozen=True):
    kind = "task.create"
    pid: str
    ttl: Int64
    action: CreateAction

    def footprint(self, into: Footprint) -> None:
        promise = self.action.data
        into.ids.add(promise.id)
        into.branches_of.add(promise.id)
        if branch := promise.tags.get("resonate:branch"):
            into.branches.add(branch)


def create(d: Draft, c: CreateTask) -> Reply:
    action = c.action.data
    promise = d.promise(action.id)
    if promise is None or birth.is_absent(promise):
        return _create_claimed(d, c, action)
    task = d.task(action.id)
    if task is None:
        return refuse(422, "The promise does not have a resonate:target tag")
    if task.state == "fulfilled":
        return ok(ClaimData(task, promise))
    if task.state != "pending":
        return refuse(409, "Already exists")
    return _claim(d, task, promise, c.pid, c.ttl)


class AcquireTask(ById, frozen=True):
    kind = "task.acquire"
    version: Int64
    pid: str
    ttl: Int64

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        into.branches_of.add(self.id)


def acquire(d: Draft, c: AcquireTask) -> Reply:
    task, promise = d.task(c.id), d.promise(c.id)
    if task is None or promise is None:
        return NOT_FOUND
    if task.state != "pending":
        return refuse(409, "Task is not pending")
    if task.version != c.version:
        return refuse(409, "Version mismatch")
    return _claim(d, task, promise, c.pid, c.ttl)


class ReleaseTask(ById, frozen=True):
    kind = "task.release"
    version: Int64


def release(d: Draft, c: ReleaseTask) -> Reply:
    task = d.task(c.id)
    if task is None:
        return NOT_FOUND
    if not holds(task, c.version):
        return refuse(409, "Task version mismatch or invalid state")
    make_ready(d, task)
    return OK


class SettleAction(Struct, frozen=True):
    kind: str
    head: Unread
    data: SettlePromise


class FulfillTask(ById, frozen=True):
    kind = "task.fulfill"
    version: Int64
    action: SettleAction


def fulfill(d: Draft, c: FulfillTask) -> Reply:
    task, promise = d.task(c.id), d.promise(c.id)
    if task is None or promise is None:
        return NOT_FOUND
    if not holds(task, c.version):
        return refuse(409, "Task is not acquired or version mismatch")
    action = c.action.data
    state, value = promises.settle_state(action.state), birth.encoded(action.value)
    return ok(PromiseData(settle(d, promise, state, value, by_holder=True)))


class SuspendAction(Struct, frozen=True):
    kind: str
    head: Unread
    data: RegisterCallback


class SuspendTask(ById, frozen=True):
    kind = "task.suspend"
    version: Int64
    actions: list[SuspendAction]

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        into.ids.update(action.data.awaited for action in self.actions)
        into.pairs.update((action.data.awaited, self.id) for action in self.actions)
        into.branches_of.add(self.id)


def suspend(d: Draft, c: SuspendTask) -> Reply:
    task, promise = d.task(c.id), d.promise(c.id)
    if task is None or promise is None:
        return NOT_FOUND
    if not holds(task, c.version):
        return refuse(409, "Task is not acquired or version mismatch")
    awaited = [d.promise(action.data.awaited) for action in c.actions]
    if None in awaited:
        return refuse(422, "Awaited promise not found")
    for each in awaited:
        if each is not None and each.internal:
            return promises.not_external(each)
    if any(each is not None and not each.is_pending for each in awaited):
        return _redirect(d, task, promise)
    for action in c.actions:
        promises.add_wait(d, action.data.awaited, task.id)
    d.put_task(task.begun().suspended())
    return OK


class FenceTask(ById, frozen=True):
    """`inner` is None when the action's kind is neither create nor settle of a promise."""

    kind = "task.fence"
    version: Int64
    inner: CreatePromise | SettlePromise | None

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        if self.inner is not None:
            self.inner.footprint(into)


def fence(d: Draft, c: FenceTask) -> Reply:
    task = d.task(c.id)
    if task is None:
        return NOT_FOUND
    if not holds(task, c.version):
        return refuse(409, "Version mismatch")
    if task.ahead:
        d.put_task(task.begun())
    if isinstance(c.inner, CreatePromise):
        return ok(FenceData(c.inner.kind, promises.create(d, c.inner)))
    assert c.inner is not None  # validation refused every other action
    return ok(FenceData(c.inner.kind, promises.settle_by_id(d, c.inner)))


class TaskVersion(Struct, frozen=True):
    id: str
    version: Int64


class HeartbeatTasks(Command, frozen=True):
    kind = "task.heartbeat"
    pid: str
    tasks: list[TaskVersion]

    def footprint(self, into: Footprint) -> None:
        into.ids.update(task.id for task in self.tasks)
        into.pids.add(self.pid)
        if not self.tasks:
            into.leases_of.add(self.pid)


def heartbeat(d: Draft, c: HeartbeatTasks) -> Reply:
    """Mismatches are skipped in silence; an empty list renews everything this pid leases."""
    named = c.tasks or [
        TaskVersion(task.id, task.version)
        for task in map(d.task, d.rows.leases_of[c.pid])
        if task is not None
    ]
    renewed = [_renew_lease(d, c.pid, each) for each in named]
    if not c.tasks or "holder" in renewed:
        _renew_holders(d, c.pid)
    return OK


class HaltTask(ById, frozen=True):
    """`by` and `reason` are ours: who stopped the task and why, kept until it goes on."""

    kind = "task.halt"
    version: Int64 | None = None
    by: str = ""
    reason: str = ""


def halt(d: Draft, c: HaltTask) -> Reply:
    task = d.task(c.id)
    if task is None:
        return NOT_FOUND
    if task.state == "fulfilled":
        return refuse(409, "Task is fulfilled")
    if _other_version(task, c.version):
        return refuse(409, "Version mismatch")
    if task.state != "halted":
        leave_ready(d, task)
        tell_holder(d, task)
        d.put_task(task.halted(values.halted(c.by, c.reason, d.now)))
    return OK


class ContinueTask(ById, frozen=True):
    kind = "task.continue"
    version: Int64 | None = None


def resume_halted(d: Draft, c: ContinueTask) -> Reply:
    task = d.task(c.id)
    if task is None:
        return NOT_FOUND
    if task.state != "halted":
        return refuse(409, "Task is not halted")
    if _other_version(task, c.version):
        return refuse(409, "Version mismatch")
    if task.is_kept:
        d.put_task(task.pending_kept())
    else:
        make_ready(d, task)
    return OK


def holds(task: Task, version: int) -> bool:
    """The fence: only the current claim may act for the task."""
    return task.state == "acquired" and task.version == version


def _create_claimed(d: Draft, c: CreateTask, action: CreatePromise) -> Reply:
    param = birth.encoded(action.param)
    promise = birth.create_claimed(
        d, action.id, action.timeout_at, param, action.tags, c.pid, c.ttl
    )
    task = d.tasks[action.id]
    preload = d.branch(promise.branch, but=promise.id) if promise.is_pending else ()
    return ok(ClaimData(task, promise, preload))


def _claim(d: Draft, task: Task, promise: Promise, pid: str, ttl: Millis) -> Reply:
    leave_ready(d, task)
    claimed = task.acquired(pid, ttl, later(d.now, ttl), None)
    d.put_task(claimed)
    return ok(ClaimData(claimed, promise, d.branch(promise.branch, but=promise.id)))


def _redirect(d: Draft, task: Task, promise: Promise) -> Reply:
    """Something awaited is settled already: the task goes on at once, with its lease."""
    d.put_task(task.without_resumes())
    preload: Sequence[Promise] = d.branch(promise.branch, but=promise.id)
    return Reply(300, PreloadData(preload))


def _renew_lease(d: Draft, pid: str, named: TaskVersion) -> str:
    task = d.task(named.id)
    if task is None or not holds(task, named.version) or task.pid != pid:
        return "skipped"
    if task.holder is not None:
        return "holder"
    assert task.ttl is not None
    d.put_task(task.leased_until(later(d.now, task.ttl)))
    return "task"


def _renew_holders(d: Draft, pid: str) -> None:
    for holder in d.holders_of(pid):
        if holder.is_alive:
            d.put_holder(holder.renewed(d.now, holder.ttl))


def _other_version(task: Task, version: int | None) -> bool:
    return version is not None and version != task.version
