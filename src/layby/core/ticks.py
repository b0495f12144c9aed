"""What the passage of time does: commands that nobody sends, found by the store's `due`."""

from collections.abc import Iterator, Sequence
from itertools import chain

from layby.core import join_limits, joins, values
from layby.core.address import inbox_of
from layby.core.draft import Draft
from layby.core.footprint import Footprint
from layby.core.kinds import Command, Sender, declare, handles
from layby.core.model import HeldKey, Holder, Message, Millis, Promise, Task, Wait, later
from layby.core.replies import OK, Empty, Reply
from layby.core.settlement import (
    Settler,
    let_go,
    make_ready,
    resume_waiting,
    settle,
    settle_all,
    tell_listeners,
)


class Tick(Command, frozen=True):
    """An internal command. Each handler checks again: late or duplicate firing is harmless."""


class IdsTick(Tick, frozen=True):
    ids: tuple[str, ...]

    def footprint(self, into: Footprint) -> None:
        into.ids.update(self.ids)


@declare("tick.expire_promises", sender=Sender.INTERNAL, answer=Empty)
class ExpirePromises(IdsTick, frozen=True):
    """Promises have reached their deadlines."""


@handles(ExpirePromises)
def expire_promises(d: Draft, c: ExpirePromises) -> Reply:
    stored = (d.rows.promises.get(promise_id) for promise_id in c.ids)
    due = [p.timed_out() for p in stored if p is not None and p.at(d.now) is not p]
    settle_all(d, due)
    return OK


@declare("tick.retry_tasks", sender=Sender.INTERNAL, answer=Empty)
class RetryTasks(IdsTick, frozen=True):
    """Nobody has claimed these in time."""


@handles(RetryTasks)
def retry_tasks(d: Draft, c: RetryTasks) -> Reply:
    """Dispatch again what nobody has claimed; a delayed task is dispatched for the first time.

    A join has nobody to claim it: it is settled here.
    """
    for task in map(d.task, c.ids):
        if task is None or task.state != "pending" or not _is_due(task, d.now):
            continue
        if task.is_join:
            _end_join(d, task)
        else:
            make_ready(d, task)
    return OK


def _end_join(d: Draft, join: Task) -> None:
    """One that was halted, or made ready by hand, may have to go on waiting."""
    promise = d.promise(join.id)
    if promise is None or not joins.is_over(join):
        d.put_task(join.suspended())
        return
    settle(d, promise, *joins.outcome(join))


@declare("tick.expire_leases", sender=Sender.INTERNAL, answer=Empty)
class ExpireLeases(IdsTick, frozen=True):
    """`heard_since`: nobody could renew a lease before; None when there was no such gap."""

    heard_since: Millis | None = None


@handles(ExpireLeases)
def expire_leases(d: Draft, c: ExpireLeases) -> Reply:
    for task in map(d.task, c.ids):
        if task is None or task.state != "acquired" or not _is_due(task, d.now):
            continue
        until = _extended_until(c.heard_since, task.ttl or 0)
        if until > d.now:
            d.put_task(task.leased_until(until))
        else:
            make_ready(d, task)
    return OK


@declare("tick.finish_settlement", sender=Sender.INTERNAL, answer=Empty)
class FinishSettlement(Tick, frozen=True):
    """Go on with the effects of a settlement that were too many for one transaction."""

    id: str
    nodes: tuple[str, ...] = ()

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        into.ids.update(self.nodes)
        into.pairs.update((node, self.id) for node in self.nodes)


@handles(FinishSettlement)
def finish_settlement(d: Draft, c: FinishSettlement) -> Reply:
    """The next chunk of waits on a settled promise, and of those who listen to it; of a run that
    ended early, its nodes.

    Those that clean up outlive the run: it merely stops waiting for them. Child runs end as well,
    those of a task that was cancelled too; a task waits for others that have nothing to do with it.
    """
    promise = d.promise(c.id)
    if promise is None or promise.tail_at is None:
        return OK
    d.put(promise.with_tail(None))
    resume_waiting(d, promise)
    tell_listeners(d, promise)
    waits = {each: d.rows.wait(each, c.id) for each in c.nodes}
    task = d.task(c.id)
    is_run = task is not None and task.has_parts  # what is said of a run holds for a join
    by: Settler = "its run" if task is not None and task.is_root else "somebody else"
    d.drop_waits(wait for wait in waits.values() if wait is not None and _is_left(wait, is_run))
    ending = [each for each in _unsettled(d, c.nodes) if _ends_it(waits[each.id], is_run)]
    settle_all(d, [_cancelled(each, promise, d.now, is_run) for each in ending], by=by)
    if c.nodes:
        d.put(d.promises[c.id].with_tail(d.now))  # look again whether nodes are left
    else:
        d.forget_waits_of(c.id)
        join_limits.end_limit(d, promise, is_last=True)
    return OK


@declare("tick.expire_holders", sender=Sender.INTERNAL, answer=Empty)
class ExpireHolders(Tick, frozen=True):
    """`opening`: embedded holders have died with the last owner of the store.

    `heard_since`: nobody could renew a lease before; None when there was no such gap.
    """

    pids: tuple[str, ...]
    opening: bool = False
    heard_since: Millis | None = None

    def footprint(self, into: Footprint) -> None:
        into.pids.update(self.pids)
        if self.opening:
            into.leases_of.update(self.pids)


@handles(ExpireHolders)
def expire_holders(d: Draft, c: ExpireHolders) -> Reply:
    for holder in chain.from_iterable(map(d.holders_of, c.pids)):
        if not holder.is_alive:
            continue
        if c.opening and holder.embedded:
            _lose(d, holder)
            _free_leases(d, holder.pid)
        elif holder.expires_at <= d.now:
            _expire(d, holder, _extended_until(c.heard_since, holder.ttl))
    return OK


@declare("tick.lose_holders", sender=Sender.INTERNAL, answer=Empty)
class LoseHolders(Tick, frozen=True):
    """Their processes have died, so nobody waits for the ends of their leases."""

    keys: tuple[HeldKey, ...]

    def footprint(self, into: Footprint) -> None:
        into.pids.update(pid for pid, _ in self.keys)


@handles(LoseHolders)
def lose_holders(d: Draft, c: LoseHolders) -> Reply:
    for holder in (d.holder(*key) for key in c.keys):
        if holder is not None and holder.is_alive:
            _lose(d, holder)
    return OK


@declare("tick.free_tasks", sender=Sender.INTERNAL, answer=Empty)
class FreeTasks(IdsTick, frozen=True):
    """Hand back the tasks of a holder that is gone."""

    pid: str
    incarnation: str

    def footprint(self, into: Footprint) -> None:
        into.ids.update(self.ids)
        into.pids.add(self.pid)


@handles(FreeTasks)
def free_tasks(d: Draft, c: FreeTasks) -> Reply:
    holder = d.holder(c.pid, c.incarnation)
    if holder is None or holder.is_alive:
        return OK
    for task_id in c.ids:
        task = d.task(task_id)
        if task is not None and (task.pid, task.holder) == (c.pid, c.incarnation):
            _free(d, task, lost=holder.standing == "lost")
    return OK


@declare("tick.forget_messages", sender=Sender.INTERNAL, answer=Empty)
class ForgetMessages(Tick, frozen=True):
    """Messages that have been delivered (or can never be)."""

    messages: tuple[Message, ...]

    def footprint(self, into: Footprint) -> None:
        """Touches the outbox only."""


@handles(ForgetMessages)
def forget_messages(d: Draft, c: ForgetMessages) -> Reply:
    d.delivered.extend(c.messages)
    return OK


def _extended_until(heard_since: Millis | None, ttl: Millis) -> Millis:
    """A lease that could not be renewed in time starts afresh when renewing became possible."""
    return 0 if heard_since is None else later(heard_since, ttl)


def _expire(d: Draft, holder: Holder, spared_until: Millis) -> None:
    if spared_until > d.now:
        d.put_holder(holder.leased_until(spared_until))
    else:
        _lose(d, holder)


def _lose(d: Draft, holder: Holder) -> None:
    d.put_holder(holder.gone("lost", d.now))
    d.silence(inbox_of(holder.group, holder.pid))


def _free(d: Draft, task: Task, *, lost: bool) -> None:
    """A worker lost while the slot was held counts as a crash; parked losses do not.

    Neither does the loss of a claim ahead, or of one whose body had been told to end. Nobody knows
    whether one ahead had begun: it counts as a try, so that no two tries share a number.
    """
    if task.is_kept:
        let_go(d, task)
        return
    if lost and not task.ahead and task.sub_status != "Deferred":
        task = task.crashed()
    task = task.begun()
    promise = d.promise(task.id)
    if promise is not None and task.crashes >= d.settings.max_crashes:
        d.put_task(task)
        settle(d, promise, "rejected", values.worker_lost(task.id, task.crashes), by="holder")
        d.given_up.append(task.id)
    else:
        make_ready(d, task)


def _free_leases(d: Draft, pid: str) -> None:
    """Tasks that a dead process had acquired by the protocol."""
    for task in map(d.task, d.rows.leases_of[pid]):
        if task is not None and task.state == "acquired" and task.pid == pid:
            make_ready(d, task)


def _is_left(wait: Wait, is_run: bool) -> bool:  # noqa: FBT001 - of its awaiter
    """Whether no settlement consumes it: of what outlives its run, of children, and of tasks."""
    return wait.is_for_end or wait.is_child or not is_run


def _ends_it(wait: Wait | None, is_run: bool) -> bool:  # noqa: FBT001 - of its awaiter
    """Whether the end of the awaiter ends the awaited; a later life may have adopted a child."""
    return wait is not None and (wait.is_child or (is_run and not wait.is_for_end))


def _unsettled(d: Draft, ids: Sequence[str]) -> Iterator[Promise]:
    for promise in map(d.promise, ids):
        if promise is not None and promise.is_pending:
            yield promise


def _cancelled(ended: Promise, with_it: Promise, now: Millis, is_run: bool) -> Promise:  # noqa: FBT001
    """A node or a child, with its run or with the task that has started it."""
    tell = values.run_has_ended if is_run else values.task_was_cancelled
    if joins.mapped_by(with_it) is not None:
        tell = values.map_has_ended
    return ended.settled("rejected_canceled", tell(with_it.id), now)


def _is_due(task: Task, now: int) -> bool:
    return task.wake_at is not None and task.wake_at <= now
