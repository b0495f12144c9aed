"""Holders, and what layby's own workers do: heartbeat, leave, release, finish, fail, annotate.

A holder is one worker process with one lease for everything it has taken. A pid has at most
one living incarnation: a new one puts an end to the old, whose tasks are then freed.
"""

from typing import Annotated

from msgspec import Meta, Struct, field

from layby.core import birth, promises, strict, validate, values, waits
from layby.core.address import inbox_of
from layby.core.draft import Draft
from layby.core.fields import MAX_CLAIMS, MAX_WAITS, NOTHING, Int64, Tags, Value, Waits
from layby.core.footprint import Footprint
from layby.core.held_exits import is_exit
from layby.core.kinds import Command, Ids, Problems, Sender, declare, handles
from layby.core.model import NEVER, Millis, Promise, Task, deadline, later, life_root_of
from layby.core.promises import CreatePromise, add_wait, settle_state
from layby.core.replies import (
    OK,
    AnnotateData,
    Empty,
    FailData,
    FinishData,
    HeartbeatData,
    PromiseData,
    Reply,
    ok,
)
from layby.core.settlement import Settler, let_go, make_ready, settle
from layby.core.takes import Take, gone, take_next
from layby.core.tasks import FencedCommand, handles_claim

MAX_VERDICT_CHARS = 2**16
PollReport = waits.PollReport


class WorkerCommand(Command, frozen=True):
    """A command of a worker process, which proves itself by its incarnation."""

    pid: str
    incarnation: str

    def footprint(self, into: Footprint) -> None:
        into.pids.add(self.pid)

    def named_ids(self) -> Ids:
        return ()

    def problems(self) -> Problems:
        yield from validate.identifier(self.pid, "Process ID")
        yield from validate.identifier(self.incarnation, "Incarnation")


@declare("layby.worker.heartbeat", sender=Sender.WORKER, answer=HeartbeatData, unqueues=False)
class HeartbeatWorker(WorkerCommand, frozen=True):
    """Renew one row, however many tasks are held. `held` is what the worker believes.

    `polling`: how the polls of triggers went that it runs, by their ids: those that have changed.
    """

    held: Int64 | None = None
    polling: Annotated[dict[str, PollReport], Meta(max_length=MAX_WAITS)] = field(
        default_factory=dict
    )

    def footprint(self, into: Footprint) -> None:
        into.pids.add(self.pid)
        into.notices.add(self.pid)
        into.beside.update(self.polling)

    def named_ids(self) -> Ids:
        return self.polling

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.count(len(self.polling), MAX_WAITS, "polls")
        for each in self.polling:
            yield from validate.identifier(each, "Trigger ID")


@handles(HeartbeatWorker)
def heartbeat(d: Draft, c: HeartbeatWorker) -> Reply:
    holder = d.holder(c.pid, c.incarnation)
    if holder is None or not holder.is_alive:
        return gone(d, c.pid, c.incarnation)
    d.put_holder(holder.renewed(d.now, holder.ttl))
    for task_id, report in c.polling.items():
        _note_polls(d, c, task_id, report)
    lost = d.rows.notices[c.pid]
    for notice in lost:
        d.unsend(notice.key)
    agrees = c.held is None or c.held == holder.held
    return ok(HeartbeatData(lost, agrees, d.now))


def _note_polls(d: Draft, c: HeartbeatWorker, task_id: str, report: PollReport) -> None:
    """What somebody else runs by now is left alone."""
    task = d.task(task_id)
    if task is None or not task.is_claim_of(c.pid, c.incarnation, task.version):
        return
    if task.state == "acquired" and task.is_trigger:
        told = waits.read_waiting_on(task.waiting_on) or waits.running(d.now)
        d.put_polled(task.told(told.reported(report).to_text()))


@declare("layby.worker.check", sender=Sender.INTERNAL, answer=Empty, unqueues=False, reads=True)
class CheckHolder(WorkerCommand, frozen=True):
    """Whether this is a living holder of the group; changes nothing."""

    group: str


@handles(CheckHolder)
def check(d: Draft, c: CheckHolder) -> Reply:
    holder = d.holder(c.pid, c.incarnation)
    if holder is None or not holder.is_alive or holder.group != c.group:
        return gone(d, c.pid, c.incarnation)
    return OK


@declare("layby.worker.leave", sender=Sender.WORKER, answer=Empty, unqueues=False)
class LeaveWorker(WorkerCommand, frozen=True):
    """The holder leaves in order: its tasks are handed back and do not count as crashes."""


@handles(LeaveWorker)
def leave(d: Draft, c: LeaveWorker) -> Reply:
    holder = d.holder(c.pid, c.incarnation)
    if holder is not None and holder.is_alive:
        d.put_holder(holder.gone("left", d.now))
        d.silence(inbox_of(holder.group, holder.pid))
    return OK


class Released(Struct, frozen=True, rename="camel"):
    """A claim that is handed back.

    `ready_at`: its place in the queue, if it keeps it; `delay`: how long nobody may take it;
    `begun`: whether its body ever ran; if not, the claim was not a try.
    """

    id: str
    version: Int64
    ready_at: Int64 | None = None
    begun: bool = True
    delay: Int64 = 0
    history: str | None = None


@declare("layby.worker.release", sender=Sender.WORKER, answer=Empty, unqueues=False)
class ReleaseTasks(WorkerCommand, frozen=True):
    """Hand claims back in order: neither failures nor crashes.

    For a task that was halted or settled in the meantime, this says that its body has ended.
    """

    tasks: Annotated[tuple[Released, ...], Meta(max_length=MAX_CLAIMS)]

    def footprint(self, into: Footprint) -> None:
        into.ids.update(task.id for task in self.tasks)

    def named_ids(self) -> Ids:
        return (task.id for task in self.tasks)

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.claims(self.tasks)
        for each in self.tasks:
            if each.delay < 0 or (each.ready_at or 0) < 0:
                yield "delay and readyAt must be non-negative"


@handles(ReleaseTasks)
def release(d: Draft, c: ReleaseTasks) -> Reply:
    """Claims that do not match are skipped silently: those tasks have already moved on."""
    for each in c.tasks:
        task = d.task(each.id)
        if task is not None and task.is_claim_of(c.pid, c.incarnation, each.version):
            _release(d, task, each)
    return OK


class RootVerdict(Struct, frozen=True):
    """How the whole run ends, if this is its last node."""

    state: str
    value: Value = NOTHING


class GiveUpClaim(FencedCommand, frozen=True):
    """The claim is over. It may carry a take of the next task."""

    take: Take | None = None

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        if self.take is not None:
            self.take.footprint(into)

    def named_ids(self) -> Ids:
        yield self.id
        if self.take is not None:
            yield from self.take.named_ids()

    def problems(self) -> Problems:
        yield from super().problems()
        if self.take is not None:
            yield from self.take.problems()

    @property
    def asks(self) -> Take | None:
        return self.take


class EndTry(GiveUpClaim, frozen=True):
    """The try is over. It may also carry a verdict on the run."""

    root: RootVerdict | None = None

    def footprint(self, into: Footprint) -> None:
        super().footprint(into)
        if self.root is not None:
            into.ids.add(self.root_id)

    def named_ids(self) -> Ids:
        """Ids of back-off timers begin with the named id; those of roots do not."""
        yield from super().named_ids()
        if self.root is not None:
            yield self.root_id

    def problems(self) -> Problems:
        """Every finish may carry a verdict though few use it, so a large one is sent separately."""
        yield from super().problems()
        if self.root is not None:
            verdict, most = self.root, MAX_VERDICT_CHARS
            yield from validate.settlement(verdict.state, verdict.value, "value of root", most)

    @property
    def root_id(self) -> str:
        return life_root_of(self.id)


@declare("layby.task.finish", sender=Sender.CLIENT, answer=FinishData, unqueues=False)
class FinishTask(EndTry, frozen=True):
    """Settle the promise of the task."""

    value: Value = NOTHING
    state: str = "resolved"
    history: str | None = None

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.settlement(self.state, self.value)


@handles_claim(FinishTask)
def finish(d: Draft, c: FinishTask, task: Task, promise: Promise) -> Reply:
    """Fulfil and take the next task in one transaction, preferring the same run."""
    state, value = settle_state(c.state), birth.encoded(c.value)
    root = _open_root(d, c)
    d.put_task(task.begun().with_history(c.history))
    settled = settle(d, promise, state, value, by="holder")
    return ok(FinishData(settled, root=_ended(d, c, root), taken=take_next(d, c.take)))


@declare("layby.task.fail", sender=Sender.CLIENT, answer=FailData, unqueues=False)
class FailTask(EndTry, frozen=True):
    """`retry_in` None settles the promise rejected; otherwise the task backs off for that long.

    `still_running`: the body goes on, past its timeout. When it has ended, that is said by
    `layby.worker.release`, as for a task that others have settled.
    """

    error: Value = NOTHING
    retry_in: Int64 | None = None
    history: str | None = None
    still_running: bool = False

    def footprint(self, into: Footprint) -> None:
        super().footprint(into)
        into.ids.add(self.backoff_id)
        into.pairs.add((self.backoff_id, self.id))

    @property
    def backoff_id(self) -> str:
        return waits.backoff_id(self.id, self.version)

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.size(self.error, "error")
        if self.retry_in is not None and self.retry_in < 0:
            yield "retryIn must be non-negative"


@handles_claim(FailTask)
def fail(d: Draft, c: FailTask, task: Task, promise: Promise) -> Reply:
    """Count the failure and keep the error, once; then back off, or settle rejected and take."""
    error = birth.encoded(c.error)
    kept = None if c.retry_in is None else error  # else the promise keeps it
    failed = task.begun().failed(kept).with_history(c.history)
    d.put_task(failed)
    root = None
    if c.retry_in is None:
        open_root = _open_root(d, c)
        by: Settler = "holder that goes on" if c.still_running else "holder"
        promise = settle(d, promise, "rejected", error, by=by)
        root = _ended(d, c, open_root)
    else:
        _back_off(d, failed, c.backoff_id, deadline(d.now, c.retry_in))
    taken = take_next(d, c.take)
    return ok(FailData(promise, d.tasks[c.id], taken, root))


@declare("layby.task.annotate", sender=Sender.CLIENT, answer=AnnotateData, unqueues=False)
class AnnotateTask(FencedCommand, frozen=True):
    """What the holder reports about its task; with `record` also something it must not do again.

    A record is a settled promise below the task's id. The first one wins: recording the same id
    again is answered with the existing record.

    `waits`: how long waits that begin may last, by their record ids; the first length of each
    counts, until it is among the `ended`. `awaits`: what waits for promises are for, by their keys.
    `withdrawn`: promises that the task made for waits that it has given up; they are cancelled.
    """

    sub_status: str | None = None
    waiting_on: str | None = None
    progress: str | None = None
    history: str | None = None
    record_id: str | None = None
    record: Value = NOTHING
    waits: Waits = field(default_factory=dict)
    ended: Annotated[tuple[str, ...], Meta(max_length=MAX_WAITS)] = ()
    awaits: Annotated[dict[str, str], Meta(max_length=MAX_WAITS)] = field(default_factory=dict)
    withdrawn: Annotated[tuple[str, ...], Meta(max_length=MAX_WAITS)] = ()

    def footprint(self, into: Footprint) -> None:
        into.ids.update(self.named_ids())
        if self.waiting_on is not None:
            into.told.setdefault(self.id, []).append(self.waiting_on)

    def named_ids(self) -> Ids:
        recorded = () if self.record_id is None else (self.record_id,)
        return (self.id, *recorded, *self.withdrawn)

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.size(self.record, "record")
        if self.record_id is not None:
            yield from validate.identifier(self.record_id, "Record ID")
            if not self.record_id.startswith(self.id + "."):
                yield f"Record ID must begin with '{self.id}.'"
        yield from validate.count(len(self.waits), MAX_WAITS, "waits")
        yield from validate.count(len(self.ended), MAX_WAITS, "ended waits")
        for key, length in self.waits.items():
            yield from validate.identifier(key, "ID of a wait")
            if length < 0:
                yield f"The length of wait '{key}' must be non-negative"
        yield from validate.count(len(self.awaits), MAX_WAITS, "awaits")
        for key, digest in self.awaits.items():
            yield from validate.identifier(key, "Key of a wait")
            yield from validate.identifier(digest, f"What wait '{key}' is for")
        yield from validate.count(len(self.withdrawn), MAX_WAITS, "withdrawn promises")
        for each in self.withdrawn:
            yield from validate.identifier(each, "ID of a withdrawn promise")
            if not each.startswith((f"{self.id}.", f"{self.id}:")):
                yield f"ID of a withdrawn promise must begin with '{self.id}.'"


@handles_claim(AnnotateTask)
def annotate(d: Draft, c: AnnotateTask, task: Task, _: Promise) -> Reply:
    annotated = task.begun().annotated(c.sub_status, c.waiting_on, c.progress, c.history)
    annotated = annotated.waiting_until(c.waits, c.ended, d.now).awaiting(c.awaits)
    d.put_task(annotated)
    recorded = _recorded(d, c)
    _withdraw(d, c.withdrawn)
    return ok(AnnotateData(annotated, recorded))


@declare("layby.task.expire", sender=Sender.CLIENT, answer=AnnotateData, unqueues=False)
class ExpireWait(FencedCommand, frozen=True):
    """By the clock of the holder, the time of a wait is up: it asks before it gives up.

    If nobody has moved that deadline, it has passed from now on, and it is too late to move it.
    Else the answer says where it is; what a person has ended the wait with comes with it.
    """

    wait: str
    deadline: Int64

    def footprint(self, into: Footprint) -> None:
        into.ids.update(self.named_ids())

    def named_ids(self) -> Ids:
        return (self.id, self.wait)

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.identifier(self.wait, "ID of a wait")
        if not self.wait.startswith(f"{self.id}."):
            yield f"ID of a wait must begin with '{self.id}.'"


@handles_claim(ExpireWait)
def expire(d: Draft, c: ExpireWait, task: Task, _: Promise) -> Reply:
    """The clock of the holder may be ahead of ours, so its word is kept as the deadline."""
    record = d.promise(c.wait)
    if d.now < task.deadlines_by_id.get(c.wait, d.now) <= c.deadline:
        task = task.waiting_later(c.wait, d.now)
        d.put_polled(task)
    ended = record if record is not None and is_exit(record) else None
    return ok(AnnotateData(task, ended))


def _release(d: Draft, task: Task, how: Released) -> None:
    if task.state != "fulfilled":  # then its outcome says how the try ended
        task = task.with_history(how.history)
    if task.is_kept:
        let_go(d, task if how.begun else task.never_begun())
        return
    task = task.begun() if how.begun else task.never_begun()
    if how.delay > 0:
        make_ready(d, task, not_before=later(d.now, how.delay))
    else:
        ready_at = d.now if how.ready_at is None else min(how.ready_at, d.now)
        d.put_task(task.pending(NEVER, ready_at))


def _open_root(d: Draft, c: EndTry) -> Task | None:
    """The root of the run, if the command carries a verdict on it and it waits for its nodes."""
    root = None if c.root is None else d.task(c.root_id)
    if root is None or not root.is_root or root.state != "suspended":
        return None
    return root


def _ended(d: Draft, c: EndTry, root: Task | None) -> Promise | None:
    """Settle the root with the verdict, if this very step has ended the last of its nodes."""
    if root is None or c.root is None:
        return None
    after = d.tasks.get(root.id, root)
    if root.waits_left == 0 or after.waits_left > 0 or after.state != "pending":
        return None
    promise = d.promise(root.id)
    assert promise is not None
    return settle(d, promise, settle_state(c.root.state), birth.encoded(c.root.value))


@declare("layby.task.create", sender=Sender.CLIENT, answer=PromiseData)
class CreateBelow(FencedCommand, frozen=True):
    """The holder of a task creates a promise that ends `timeout` from now, or reads the existing.

    `capped`: it does not outlast the task's own promise.
    """

    promise_id: str
    timeout: Int64 = NEVER
    param: Value = NOTHING
    tags: Tags = field(default_factory=dict)
    capped: bool = False

    def footprint(self, into: Footprint) -> None:
        into.ids.update((self.id, self.promise_id))
        if branch := self.tags.get(birth.BRANCH):
            into.born_into.add((self.promise_id, branch))

    def creating(self, timeout_at: Millis) -> CreatePromise:
        return CreatePromise(
            id=self.promise_id, timeout_at=timeout_at, param=self.param, tags=self.tags
        )

    def named_ids(self) -> Ids:
        yield self.id
        yield from self.creating(NEVER).named_ids()

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.identifier(self.promise_id, "Promise ID")
        yield from validate.size(self.param, "param")
        if self.promise_id == self.id:
            yield "Promise ID must not equal the task ID"
        if self.timeout < 0:
            yield "timeout must be non-negative"
        if birth.DELAY in self.tags:
            yield "resonate:delay is an instant: create the promise by promise.create"
        yield from validate.tags(self.tags)

    def lineage_problems(self, separator: str, /) -> Problems:
        return strict.lineage(self.promise_id, self.tags, separator)

    def external_problems(self) -> Problems:
        return strict.one_kind(self.tags)


@handles_claim(CreateBelow)
def create_below(d: Draft, c: CreateBelow, task: Task, promise: Promise) -> Reply:
    """The worker says how long something may last; what time it is, only the store knows."""
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


def _withdraw(d: Draft, promise_ids: tuple[str, ...]) -> None:
    """Together with the record of who won: a crash in between would leave them open for ever."""
    for each in promise_ids:
        promise = d.promise(each)
        if promise is not None and promise.is_pending:
            settle(d, promise, "rejected_canceled", values.given_up())


def _back_off(d: Draft, task: Task, timer_id: str, retry_at: int) -> None:
    """A back-off is a wait like any other: suspended on a timer promise."""
    if birth.is_absent(d.promise(timer_id)):
        birth.create(d, timer_id, retry_at, birth.EMPTY, {birth.TIMER: "true"})
    timer = d.promise(timer_id)
    if timer is not None and timer.is_armed:
        add_wait(d, timer_id, task.id)
        why = waits.backing_off(task.failures, timer.timeout_at, d.now, timer_id)
        d.put_task(task.suspended(why))
    else:
        make_ready(d, task)
