"""What the holder of a task writes and asks while its body runs: notes, records, promises below."""

from typing import Annotated

from msgspec import Meta, field

from layby.core import birth, promises, strict, tag_names, validate, values
from layby.core.draft import Draft
from layby.core.fields import MAX_WAITS, NOTHING, Int64, Tags, Value, Waits
from layby.core.footprint import Footprint
from layby.core.held_exits import is_exit
from layby.core.kinds import Ids, Problems, Sender, declare
from layby.core.model import EMPTY, NEVER, Millis, Promise, Task, deadline
from layby.core.promises import CreatePromise
from layby.core.replies import AnnotateData, PromiseData, Reply, ok
from layby.core.settlement import settle
from layby.core.tasks import FencedCommand, handles_claim


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
        if self.sub_status:
            yield from validate.identifier(self.sub_status, "subStatus")
        yield from validate.waiting_on(self.waiting_on)
        yield from validate.annotation(self.progress, "progress")
        yield from validate.history(self.history)
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
        if branch := self.tags.get(tag_names.BRANCH):
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
        if tag_names.DELAY in self.tags:
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
        created = birth.create(d, c.record_id, NEVER, EMPTY, {})
        recorded = settle(d, created, "resolved", birth.encoded(c.record))
    return recorded


def _withdraw(d: Draft, promise_ids: tuple[str, ...]) -> None:
    """Together with the record of who won: a crash in between would leave them open for ever."""
    for each in promise_ids:
        promise = d.promise(each)
        if promise is not None and promise.is_pending:
            settle(d, promise, "rejected_canceled", values.given_up())
