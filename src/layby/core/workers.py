"""Holders: the worker processes. What they say of themselves, and how they hand tasks back.

A holder is one worker process with one lease for everything it has taken. A pid has at most
one living incarnation: a new one puts an end to the old, whose tasks are then freed.
"""

from typing import Annotated

from msgspec import Meta, Struct, field

from layby.core import validate, waits
from layby.core.address import inbox_of
from layby.core.draft import Draft
from layby.core.fields import MAX_CLAIMS, MAX_WAITS, Int64
from layby.core.footprint import Footprint
from layby.core.kinds import Command, Ids, Problems, Sender, declare, handles
from layby.core.model import NEVER, Task, later
from layby.core.replies import OK, Empty, HeartbeatData, Reply, ok
from layby.core.settlement import let_go, make_ready
from layby.core.takes import gone

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
            yield from validate.history(each.history)
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
