"""How people end or prolong the wait of a task. Who did it, and why, is kept with it."""

from collections.abc import Sequence

from msgspec.structs import replace

from layby.core import birth, promises, tag_names, validate, values, waits
from layby.core.deferral import TriggerSpec, create_deadline, create_trigger
from layby.core.draft import Draft
from layby.core.exit_refusals import why_not_waiting
from layby.core.fields import NOTHING, Int64, Value
from layby.core.footprint import Footprint
from layby.core.held_exits import ExitDecision, HeldExit, extend_held, keep, kept_id, wake_held
from layby.core.kinds import Ids, Problems, Sender, declare, handles
from layby.core.model import EMPTY, NEVER, Millis, Promise, Task, Wait, deadline
from layby.core.questions import BY, REASON
from layby.core.replies import ExitData, Reply, ok, refuse
from layby.core.resumption import Resumption, clean_up_id, deadline_id, own_id, principal_of
from layby.core.settlement import end_deferral, settle, settle_all, stop_waiting
from layby.core.tasks import NOT_FOUND, TaskCommand

MAX_TOLD_CHARS = 1_000


class ExitCommand(TaskCommand, frozen=True, kw_only=True):
    """`exit_id` is made by the caller, once per call: a copy of the call changes nothing."""

    exit_id: str
    by: str = ""
    reason: str = ""
    wait: str = ""
    """Which wait, by what it is called: nothing happens if that is over. Without it, the one that
    the task is shown in.
    """

    def footprint(self, into: Footprint) -> None:
        own = self.own_id
        if self.wait:
            into.ids.add(self.wait)
        into.ids.update((self.id, own, deadline_id(own), clean_up_id(own), kept_id(own)))
        into.exits.add(self.id)
        into.pairs.update((each, self.id) for each in (own, deadline_id(own)))

    def named_ids(self) -> Ids:
        return (self.id, self.wait) if self.wait else (self.id,)

    @property
    def own_id(self) -> str:
        return own_id(self.id, _in_an_id(self.exit_id))

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.settlement_id(self.exit_id, "exitId")
        if self.wait:
            yield from validate.identifier(self.wait, "ID of a wait")
            if not self.wait.startswith(f"{self.id}."):
                yield f"ID of a wait must begin with '{self.id}.'"
        yield from validate.words(by=self.by, reason=self.reason)
        for what, text in (("by", self.by), ("reason", self.reason)):
            yield from validate.count(len(text), MAX_TOLD_CHARS, f"characters of {what}")


def _in_an_id(exit_id: str) -> str:
    """Another text for each, which is no version, and has no end that an id of ours may have."""
    escaped = exit_id.replace("%", "%25").replace(".", "%2E")
    return f"%3{escaped}" if escaped.isdecimal() else escaped


@declare("layby.task.wake", sender=Sender.CLIENT, answer=ExitData)
class WakeTask(ExitCommand, frozen=True):
    """End the wait of a task now. That of a deferred one as if its trigger had fired with this
    value, or failed; a sleep or a condition of a body that is parked as if it were over, or failed.
    One that backs off after a failure is tried again.

    A promise that others may wait for as well is not settled by this.
    """

    state: str = "resolved"
    value: Value = NOTHING

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.settlement(self.state, self.value)


@handles(WakeTask)
def wake(d: Draft, c: WakeTask) -> Reply:
    if (task := _in_body(d, c)) is not None:
        decided = _decided(c, _signed(c), c.state)
        return _copy_of(d, c, task) or wake_held(d, task, decided, c.wait)
    found = _waiting(d, c)
    return found if isinstance(found, Reply) else wake_deferred(d, c, *found)


def wake_deferred(d: Draft, c: WakeTask, task: Task, waited: Resumption) -> Reply:
    told = replace(waited, exit_id=c.exit_id)
    state, value = promises.settle_state(c.state), birth.encoded(_signed(c))
    if waited.own:
        d.put_task(task.resuming(told))
        settle(d, _there(d, waited.trigger), state, value)
    else:
        created = birth.create(d, c.own_id, NEVER, EMPTY, {})
        settle(d, created, state, value)
        end_deferral(d, task, told.ended(c.own_id))
    return ok(ExitData(d.tasks[c.id]))


def _signed(c: WakeTask) -> Value:
    """Who did it, and why, stays with the promise: the task forgets its wait when it goes on."""
    return _with_headers(c, c.value)


def _with_headers(c: ExitCommand, value: Value) -> Value:
    told = {name: text for name, text in ((BY, c.by), (REASON, c.reason)) if text}
    return replace(value, headers={**(value.headers or {}), **told}) if told else value


def _kept(c: ExitCommand) -> ExitDecision:
    """Beside the trigger or the timer that may have been made for it."""
    return replace(_decided(c, _with_headers(c, NOTHING)), promise_id=kept_id(c.own_id))


def _decided(c: ExitCommand, value: Value, state: str = "resolved") -> ExitDecision:
    return ExitDecision(c.own_id, c.by, birth.encoded(value), promises.settle_state(state))


def _in_body(d: Draft, c: ExitCommand) -> Task | None:
    """The task, if a wait of its body is meant, or its back-off: not if its trigger is."""
    task = d.task(c.id)
    if task is None or task.state == "acquired" or waits.is_backing_off(task):
        return task
    waited = task.open_resumption
    is_trigger = waited is not None and c.wait in _names_of(task.id, waited)
    return task if c.wait and not is_trigger else None


def _names_of(task_id: str, waited: Resumption) -> tuple[str, ...]:
    """What a person may call the wait of a deferred task."""
    return (waits.deferral_id(task_id, waited), *waited.awaited)


def _copy_of(d: Draft, c: ExitCommand, task: Task) -> Reply | None:
    """The answer, if a copy of this call was here before."""
    waited = task.resumption
    is_copy = waited is not None and waited.exit_id == c.exit_id
    is_copy = is_copy or not birth.is_absent(d.promise(c.own_id))
    return ok(ExitData(task)) if is_copy else None


@declare("layby.task.extend", sender=Sender.CLIENT, answer=ExitData)
class ExtendWait(ExitCommand, frozen=True):
    """Move the deadline of a wait, or the end of a sleep: it ends `timeout` from now, or never.

    Deadlines of promises never change, but for those that a body has made to wait for, and which
    say so: a deferred task gets a new timer, or a new trigger.
    """

    timeout: Int64 | None = None

    def problems(self) -> Problems:
        yield from super().problems()
        if self.timeout is not None and self.timeout < 0:
            yield "timeout must be non-negative"


@handles(ExtendWait)
def extend(d: Draft, c: ExtendWait) -> Reply:
    until = NEVER if c.timeout is None else deadline(d.now, c.timeout)
    ends_at = None if until >= NEVER else until
    if (task := _in_body(d, c)) is not None:
        decided = _decided(c, _with_headers(c, NOTHING))
        return _copy_of(d, c, task) or extend_held(d, task, decided, until, c.wait)
    found = _waiting(d, c)
    return found if isinstance(found, Reply) else extend_deferred(d, c, *found, ends_at)


def extend_deferred(
    d: Draft, c: ExtendWait, task: Task, waited: Resumption, ends_at: Millis | None
) -> Reply:
    moved = _moved(d, c, replace(waited, exit_id=c.exit_id, by=c.by, reason=c.reason), ends_at)
    for each in moved.awaited:
        if each not in waited.awaited:
            promises.add_wait(d, each, task.id)
    shown = task.suspended(waits.deferred(task.id, moved)) if task.state == "suspended" else task
    d.put_task(shown.resuming(moved))
    _replace(d, task.id, [each for each in waited.awaited if each not in moved.awaited])
    until = NEVER if ends_at is None else ends_at
    keep(d, task, _kept(c), HeldExit(moved.trigger, until))
    won = _winner(d, moved)
    if won is not None:
        end_deferral(d, d.tasks[task.id], moved.ended(won))
    return ok(ExitData(d.tasks[c.id]))


def _moved(d: Draft, c: ExtendWait, waited: Resumption, ends_at: Millis | None) -> Resumption:
    """What the task waits for from now on; what is new of it is created. Time without a deadline is
    a sleep: it is over at another time.
    """
    trigger = _there(d, waited.trigger)
    if waited.own and not trigger.timer:
        spec = TriggerSpec(waited.kind, waited.args, waited.on_cancel)
        create_trigger(d, c.own_id, ends_at, spec, c.id, principal_of(trigger.tags))
        return replace(waited, trigger=c.own_id, until=ends_at)
    if waited.own and waited.deadline is None:
        fires_at = NEVER if ends_at is None else ends_at
        birth.create(d, c.own_id, fires_at, EMPTY, {tag_names.TIMER: "true"})
        return replace(waited, trigger=c.own_id, until=ends_at)
    fires_at = trigger.timeout_at if waited.own else None
    if ends_at is None or (fires_at is not None and fires_at <= ends_at):
        return replace(waited, deadline=None, until=fires_at)
    create_deadline(d, c.own_id, ends_at)
    return replace(waited, deadline=deadline_id(c.own_id), until=ends_at)


def _replace(d: Draft, task_id: str, ids: Sequence[str]) -> None:
    """These end without waking anybody, and without anything to clean up."""
    for each in ids:
        stop_waiting(d, Wait(each, task_id))
    value = values.error("Replaced", "its deadline was moved: another one has taken its place")
    pending = [each for each in map(d.promise, ids) if each is not None and each.is_pending]
    settle_all(d, [each.settled("rejected", value, d.now) for each in pending])


def _waiting(d: Draft, c: ExitCommand) -> tuple[Task, Resumption] | Reply:
    """The task and what it waits for, or why there is nothing to do."""
    task = d.task(c.id)
    if task is None:
        return NOT_FOUND
    waited = task.resumption
    if waited is not None and waited.exit_id == c.exit_id:
        return ok(ExitData(task))  # a copy of this call was here before
    if waited is None or waited.is_over:
        return refuse(409, why_not_waiting(task))
    if _winner(d, waited) is not None:
        return refuse(409, "Its trigger has fired, or its time is up: the task goes on already")
    if not birth.is_absent(d.promise(c.own_id)) or d.promise(deadline_id(c.own_id)) is not None:
        return refuse(409, f"exitId '{c.exit_id}' was used before: give each call one of its own")
    return task, waited


def _winner(d: Draft, waited: Resumption) -> str | None:
    late = None if waited.deadline is None else d.promise(waited.deadline)
    return waited.winner(d.promise(waited.trigger), late)


def _there(d: Draft, promise_id: str) -> Promise:
    promise = d.promise(promise_id)
    assert promise is not None  # what a task waits for is not pruned
    return promise
