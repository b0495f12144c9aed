"""task.*: each kind, and below it what it does.

Handlers have their guards in protocol order (404, 409, 422), then a straight path.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct

from layby.core import birth, promises, strict, tag_names, validate, waits
from layby.core.draft import Draft
from layby.core.fields import MAX_CLAIMS, MAX_WAITS, Int64, Unread
from layby.core.footprint import Footprint
from layby.core.kinds import ById, Command, Ids, Problems, Sender, declare, handles
from layby.core.model import EMPTY, Millis, Promise, Task, later
from layby.core.promises import CreatePromise, RegisterCallback, SettlePromise
from layby.core.replies import (
    OK,
    ClaimData,
    Empty,
    FenceData,
    PreloadData,
    PromiseData,
    RenewedInPart,
    Reply,
    Resumed,
    TaskData,
    TriggerEvent,
    ok,
    refuse,
)
from layby.core.settlement import leave_ready, make_ready, note_read, settle, tell_holder

NOT_FOUND = refuse(404, "Task not found")


class TaskCommand(ById, frozen=True):
    def problems(self) -> Problems:
        return validate.identifier(self.id, "Task ID")


class FencedCommand(TaskCommand, frozen=True):
    """A command of the holder of the task at this version."""

    version: Int64

    def problems(self) -> Problems:
        return validate.fence(self.id, self.version)


ClaimHandler = Callable[[Draft, Any, Task, Promise], Reply]


def handles_claim(command: type[FencedCommand]) -> Callable[[ClaimHandler], ClaimHandler]:
    """Attach the rule of a command that only the holder of the claim may send."""

    def attached(handler: ClaimHandler) -> ClaimHandler:
        @handles(command)
        def guarded(d: Draft, c: FencedCommand) -> Reply:
            task, promise = d.task(c.id), d.promise(c.id)
            if task is None or promise is None:
                return NOT_FOUND
            if not holds(task, c.version):
                return refuse(409, "Task is not acquired or version mismatch")
            return handler(d, c, task, promise)

        return handler

    return attached


@declare("task.get", sender=Sender.CLIENT, answer=TaskData, reads=True)
class GetTask(TaskCommand, frozen=True):
    """The task as it stands."""


@handles(GetTask)
def get(d: Draft, c: GetTask) -> Reply:
    task = d.task(c.id)
    return NOT_FOUND if task is None else ok(TaskData(task))


class CreateAction(Struct, frozen=True):
    kind: str
    head: Unread
    data: CreatePromise


@declare("task.create", sender=Sender.CLIENT, answer=ClaimData)
class CreateTask(Command, frozen=True):
    """Create a promise and acquire its task."""

    pid: str
    ttl: Int64
    action: CreateAction

    def footprint(self, into: Footprint) -> None:
        promise = self.action.data
        into.claims = True
        into.ids.add(promise.id)
        into.leasing.add((promise.id, self.pid))
        into.branches_of.add(promise.id)
        if branch := promise.tags.get(tag_names.BRANCH):
            into.branches.add(branch)

    def named_ids(self) -> Ids:
        return self.action.data.named_ids()

    def problems(self) -> Problems:
        yield from validate.claim(self.pid, self.ttl)
        yield from self.action.data.problems()
        if tag_names.TARGET not in self.action.data.tags:
            yield "Action must have a resonate:target tag"

    def lineage_problems(self, separator: str, /) -> Problems:
        return self.action.data.lineage_problems(separator)

    def external_problems(self) -> Problems:
        return self.action.data.external_problems()


@handles(CreateTask)
def create(d: Draft, c: CreateTask) -> Reply:
    action = c.action.data
    promise = d.promise(action.id)
    if promise is None or birth.is_absent(promise):
        return _create_claimed(d, c, action)
    task = d.task(action.id)
    if task is None and promise.is_expired:  # it had one
        target = action.tags[tag_names.TARGET]
        return ok(ClaimData(Task(promise.id, target).fulfilled(), promise))
    if task is None:
        return refuse(422, "The promise does not have a resonate:target tag")
    if task.state == "fulfilled":
        return ok(ClaimData(task, promise))
    if task.state != "pending" or task.is_join:
        return refuse(409, "Already exists")
    return _claim(d, task, promise, c.pid, c.ttl)


@declare("task.acquire", sender=Sender.CLIENT, answer=ClaimData)
class AcquireTask(FencedCommand, frozen=True):
    """Claim the task: a lease of its own, and the next version."""

    pid: str
    ttl: Int64

    def footprint(self, into: Footprint) -> None:
        into.claims = True
        into.ids.add(self.id)
        into.branches_of.add(self.id)
        into.leasing.add((self.id, self.pid))

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.claim(self.pid, self.ttl)


@handles(AcquireTask)
def acquire(d: Draft, c: AcquireTask) -> Reply:
    task, promise = d.task(c.id), d.promise(c.id)
    if task is None or promise is None:
        return NOT_FOUND
    if task.state != "pending" or task.is_join:  # there is no code for a join
        return refuse(409, "Task is not pending")
    if task.version != c.version:
        return refuse(409, "Version mismatch")
    return _claim(d, task, promise, c.pid, c.ttl)


@declare("task.release", sender=Sender.CLIENT, answer=Empty)
class ReleaseTask(FencedCommand, frozen=True):
    """Give the claim up."""


@handles(ReleaseTask)
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


@declare("task.fulfill", sender=Sender.CLIENT, answer=PromiseData)
class FulfillTask(FencedCommand, frozen=True):
    """End the task by settling its promise."""

    action: SettleAction

    def named_ids(self) -> Ids:
        return (self.id, self.action.data.id)

    def problems(self) -> Problems:
        yield from super().problems()
        settle = self.action.data
        if settle.id != self.id:
            yield "Action ID must match the task ID"
        yield from validate.settlement(settle.state, settle.value)


@handles_claim(FulfillTask)
def fulfill(d: Draft, c: FulfillTask, _: Task, promise: Promise) -> Reply:
    action = c.action.data
    state, value = promises.settle_state(action.state), birth.encoded(action.value)
    return ok(PromiseData(settle(d, promise, state, value, by="holder")))


class SuspendAction(Struct, frozen=True):
    kind: str
    head: Unread
    data: RegisterCallback


@declare("task.suspend", sender=Sender.CLIENT, answer=PreloadData)
class SuspendTask(FencedCommand, frozen=True):
    """Wait for the first of these promises; status 300 when one is settled already."""

    actions: Annotated[list[SuspendAction], Meta(max_length=MAX_WAITS)]

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        into.ids.update(action.data.awaited for action in self.actions)
        into.pairs.update((action.data.awaited, self.id) for action in self.actions)
        into.branches_of.add(self.id)

    def named_ids(self) -> Ids:
        yield self.id
        for action in self.actions:
            yield from action.data.named_ids()

    def problems(self) -> Problems:
        yield from super().problems()
        if not self.actions:
            yield "Actions array cannot be empty"
        yield from validate.count(len(self.actions), MAX_WAITS, "actions")
        for action in self.actions:
            yield from validate.identifier(action.data.awaited, "Awaited promise ID")
            if action.data.awaiter != self.id:
                yield "Awaiter must match the task ID"
            if action.data.awaited == self.id:
                yield promises.SELF_AWAITED

    def lineage_problems(self, separator: str, /) -> Problems:
        for action in self.actions:
            yield from action.data.lineage_problems(separator)

    def external_problems(self) -> Problems:
        return strict.each_once(action.data.awaited for action in self.actions)


@handles_claim(SuspendTask)
def suspend(d: Draft, c: SuspendTask, task: Task, promise: Promise) -> Reply:
    awaited = [d.promise(action.data.awaited) for action in c.actions]
    if None in awaited:
        return refuse(422, "Awaited promise not found")
    for each in awaited:
        if each is not None and each.internal:
            return promises.not_external(each)
    settled = [each for each in awaited if each is not None and not each.is_pending]
    if settled:
        for each in settled:
            note_read(d, each.id, task.id)
        return _redirect(d, task, promise)
    for action in c.actions:
        promises.add_wait(d, action.data.awaited, task.id)
    d.put_task(task.begun().suspended())
    return ok(PreloadData())


@declare("task.fence", sender=Sender.CLIENT, answer=FenceData)
class FenceTask(FencedCommand, frozen=True):
    """`inner` is None when the action's kind is neither create nor settle of a promise."""

    inner: CreatePromise | SettlePromise | None

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        if self.inner is not None:
            self.inner.footprint(into)

    def named_ids(self) -> Ids:
        yield self.id
        if self.inner is not None:
            yield from self.inner.named_ids()

    def problems(self) -> Problems:
        yield from super().problems()
        if self.inner is None:
            yield "Invalid fence action kind"
            return
        if self.inner.id == self.id:
            yield "Action ID must not equal the task ID"
        yield from self.inner.problems()

    def lineage_problems(self, separator: str, /) -> Problems:
        return iter(()) if self.inner is None else self.inner.lineage_problems(separator)

    def external_problems(self) -> Problems:
        return iter(()) if self.inner is None else self.inner.external_problems()


@handles(FenceTask)
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


@declare("task.heartbeat", sender=Sender.CLIENT, answer=Empty)
class HeartbeatTasks(Command, frozen=True):
    """Renew the leases of these tasks, or of all that the process has."""

    pid: str
    tasks: Annotated[list[TaskVersion], Meta(max_length=MAX_CLAIMS)]

    def footprint(self, into: Footprint) -> None:
        into.ids.update(task.id for task in self.tasks)
        into.pids.add(self.pid)
        if not self.tasks:
            into.renew(self.pid, "")

    def named_ids(self) -> Ids:
        return (task.id for task in self.tasks)

    def problems(self) -> Problems:
        yield from validate.identifier(self.pid, "Process ID")
        yield from validate.claims(self.tasks)


@handles(HeartbeatTasks)
def heartbeat(d: Draft, c: HeartbeatTasks) -> Reply:
    """Mismatches are skipped silently; an empty list renews everything this pid leases."""
    if not c.tasks:
        return _renew_all(d, c.pid, "")
    renewed = [_renew_lease(d, c.pid, each) for each in c.tasks]
    if "holder" in renewed:
        _renew_holders(d, c.pid)
    return OK


@declare("tick.renew_leases", sender=Sender.INTERNAL, answer=Empty)
class RenewLeases(Command, frozen=True):
    """Go on with a heartbeat that renews more leases than one batch may: those after this id."""

    pid: str
    after: str

    def footprint(self, into: Footprint) -> None:
        into.pids.add(self.pid)
        into.renew(self.pid, self.after)

    def named_ids(self) -> Ids:
        return ()

    def problems(self) -> Problems:
        return ()


@handles(RenewLeases)
def renew_rest(d: Draft, c: RenewLeases) -> Reply:
    return _renew_all(d, c.pid, c.after)


def _renew_all(d: Draft, pid: str, after: str) -> Reply:
    """What was loaded of all that the process leases; the engine goes on if there is more."""
    ids = (each for each in d.rows.leases_of[pid] if each > after)
    for task in map(d.task, ids):
        if task is not None:
            _renew_lease(d, pid, TaskVersion(task.id, task.version))
    _renew_holders(d, pid)
    end = d.rows.leases_end.get(pid)
    return OK if end is None else ok(RenewedInPart(max(end, after)))


class SteeringCommand(TaskCommand, frozen=True):
    """A command sent by people: they give a version if they mean that claim only."""

    version: Int64 | None = None

    def problems(self) -> Problems:
        return validate.fence(self.id, self.version or 0)


@declare("task.halt", sender=Sender.CLIENT, answer=Empty)
class HaltTask(SteeringCommand, frozen=True):
    """`by` and `reason` are layby's: who stopped the task and why, kept until it goes on."""

    by: str = ""
    reason: str = ""

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.kept_words(by=self.by, reason=self.reason)


@handles(HaltTask)
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
        d.put_task(task.halted(waits.halted(c.by, c.reason, d.now)))
    return OK


@declare("task.continue", sender=Sender.CLIENT, answer=Empty)
class ContinueTask(SteeringCommand, frozen=True):
    """Go on with a task that was halted."""


@handles(ContinueTask)
def resume_halted(d: Draft, c: ContinueTask) -> Reply:
    task = d.task(c.id)
    if task is None:
        return NOT_FOUND
    if task.state != "halted":
        return refuse(409, "Task is not halted")
    if _other_version(task, c.version):
        return refuse(409, "Version mismatch")
    waited = task.open_resumption
    if waited is not None:
        d.put_task(task.suspended(waits.deferred(task.id, waited)))
    elif task.is_kept:
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
    preload = d.branch(promise.branch, but=promise.id)
    return ok(ClaimData(claimed, promise, preload, resumed(d, claimed)))


def resumed(d: Draft, task: Task) -> Resumed | None:
    """How a task that was just claimed goes on, if it had deferred."""
    resumption = task.resumption
    if resumption is None or resumption.won is None:
        return None
    won = d.promise(resumption.won)
    is_late = resumption.won == resumption.deadline
    return Resumed(
        kind=resumption.kind,
        at=resumption.at,
        name=resumption.name,
        kwargs=bytes(resumption.kwargs).decode(),
        context=None if resumption.context is UNSET else bytes(resumption.context).decode(),
        key=resumption.key,
        bare=resumption.bare and task.version == resumption.at + 1,  # nobody has begun it since
        event=TriggerEvent(
            id=resumption.trigger if is_late else resumption.won,
            state="rejected_timedout" if is_late or won is None else won.state,
            value=EMPTY if is_late or won is None else won.value,
            settled_at=0 if won is None else won.settled_at or 0,
            by=resumption.by,
            reason=resumption.reason,
        ),
    )


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
