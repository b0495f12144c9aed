"""promise.* and layby's own commands on promises: each kind, and below it what it does."""

from collections.abc import Mapping
from typing import Final

from msgspec import field

from layby.core import birth, strict, tag_names, validate, values
from layby.core.draft import Draft
from layby.core.fields import NOTHING, Int64, Tags, Value
from layby.core.footprint import Footprint
from layby.core.kinds import ById, Command, Ids, Problems, Sender, declare, handles
from layby.core.model import EMPTY, NEVER, Listener, NodeKind, Promise, PromiseState, Task, Wait
from layby.core.questions import misfit
from layby.core.replies import PromiseData, Reply, SettlementData, ok, refuse
from layby.core.settlement import is_deferral, is_elsewhere, make_ready, note_read, settle

NOT_FOUND = refuse(404, "Promise not found")
RUN_PREFIX = "run/"
MADE_BY_TASKS: Final[Mapping[NodeKind, Reply]] = {
    "root": refuse(409, "It is a run, and its tasks make its outcome: cancel it to end it"),
    "node": refuse(409, "It is a task of a run, and makes its outcome itself: cancel it to end it"),
}
"""What is settled from outside would end while its tasks run, and clean-up would be misinformed."""
SELF_AWAITED = "Awaited and awaiter must be different promises"


class PromiseCommand(ById, frozen=True):
    def problems(self) -> Problems:
        return validate.identifier(self.id, "Promise ID")


@declare("promise.get", sender=Sender.CLIENT, answer=PromiseData, reads=True)
class GetPromise(PromiseCommand, frozen=True):
    """The promise as it stands."""


@declare("layby.promise.watch", sender=Sender.CLIENT, answer=PromiseData, reads=True)
class WatchPromise(PromiseCommand, frozen=True):
    """Read the promise; the engine holds the answer back until it is settled."""

    @property
    def waits(self) -> bool:
        """Whether the answer may be held back."""
        return True


@handles(GetPromise)
def get(d: Draft, c: GetPromise | WatchPromise) -> Reply:
    promise = d.promise(c.id)
    return NOT_FOUND if promise is None else ok(PromiseData(promise))


@declare("promise.create", sender=Sender.CLIENT, answer=PromiseData)
class CreatePromise(PromiseCommand, frozen=True):
    """Create the promise; one that exists is answered as it is."""

    timeout_at: Int64
    param: Value = NOTHING
    tags: Tags = field(default_factory=dict)

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        if branch := self.tags.get(tag_names.BRANCH):
            into.born_into.add((self.id, branch))

    def named_ids(self) -> Ids:
        """A branch is an id too: creating a promise in a branch shows what else is in it."""
        branch = self.tags.get(tag_names.BRANCH)
        return (self.id, branch) if branch else (self.id,)

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.size(self.param, "param")
        if self.timeout_at < 0:
            yield "timeoutAt must be non-negative"
        if self.tags:
            yield from validate.delay(self.tags, self.timeout_at)
            yield from validate.tags(self.tags)

    def lineage_problems(self, separator: str, /) -> Problems:
        return strict.lineage(self.id, self.tags, separator)

    def external_problems(self) -> Problems:
        return strict.one_kind(self.tags)


@handles(CreatePromise)
def create(d: Draft, c: CreatePromise) -> Reply:
    promise = d.promise(c.id)
    if promise is None or birth.is_absent(promise):
        # Placeholders are layby's own: their awaiters were promised to hear of the end, so an
        # adopted one is external. layby's own kinds create nothing internal and do not get here.
        internal = promise is None and d.settings.strict_external and not birth.is_external(c.tags)
        make = birth.create_internal if internal else birth.create
        promise = make(d, c.id, c.timeout_at, birth.encoded(c.param), c.tags)
    return ok(PromiseData(promise))


@declare("promise.settle", sender=Sender.CLIENT, answer=PromiseData)
class SettlePromise(PromiseCommand, frozen=True):
    """Settle the promise, unless it is settled."""

    state: str
    value: Value = NOTHING

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.settlement(self.state, self.value)


@handles(SettlePromise)
def settle_by_id(d: Draft, c: SettlePromise) -> Reply:
    promise = d.promise(c.id)
    if promise is None:
        return NOT_FOUND
    if promise.is_pending:
        promise = settle(d, promise, settle_state(c.state), birth.encoded(c.value))
    return ok(PromiseData(promise))


@declare("promise.register_callback", sender=Sender.CLIENT, answer=PromiseData)
class RegisterCallback(Command, frozen=True):
    """The task `awaiter` resumes when `awaited` settles."""

    awaited: str
    awaiter: str

    def footprint(self, into: Footprint) -> None:
        into.ids.update((self.awaited, self.awaiter))
        into.pairs.add((self.awaited, self.awaiter))

    def named_ids(self) -> Ids:
        return (self.awaited, self.awaiter)

    def problems(self) -> Problems:
        yield from validate.identifier(self.awaited, "Awaited promise ID")
        yield from validate.identifier(self.awaiter, "Awaiter promise ID")
        if self.awaited == self.awaiter:
            yield SELF_AWAITED

    def lineage_problems(self, separator: str, /) -> Problems:
        return strict.same_origin(self.awaiter, self.awaited, separator)


@handles(RegisterCallback)
def register_callback(d: Draft, c: RegisterCallback) -> Reply:
    awaited, awaiter = d.promise(c.awaited), d.promise(c.awaiter)
    if awaited is None:
        return refuse(404, "Awaited promise not found")
    if awaiter is None:
        return refuse(422, "Awaiter promise not found")
    task = d.task(c.awaiter)
    if task is None:
        return refuse(422, "Awaiter promise has no resonate:target tag")
    if awaited.internal:
        return not_external(awaited)
    if awaited.is_pending and awaiter.is_pending:
        add_wait(d, c.awaited, c.awaiter)
    elif awaiter.is_pending:
        note_read(d, c.awaited, c.awaiter)
        _resume_at_once(d, task, c.awaited)
    return ok(PromiseData(awaited))


@declare("promise.register_listener", sender=Sender.CLIENT, answer=PromiseData, unqueues=False)
class RegisterListener(Command, frozen=True):
    """The address is told when `awaited` settles."""

    awaited: str
    address: str

    def footprint(self, into: Footprint) -> None:
        into.beside.add(self.awaited)

    def named_ids(self) -> Ids:
        return (self.awaited,)

    def problems(self) -> Problems:
        yield from validate.identifier(self.awaited, "Awaited promise ID")
        if not validate.is_address(self.address):
            yield "Invalid listener address"


@handles(RegisterListener)
def register_listener(d: Draft, c: RegisterListener) -> Reply:
    awaited = d.promise(c.awaited)
    if awaited is None:
        return refuse(404, "Awaited promise not found")
    if awaited.internal:
        return not_external(awaited)
    if awaited.is_pending:
        d.listen(Listener(c.awaited, c.address))
    return ok(PromiseData(awaited))


class SettlingCommand(PromiseCommand, frozen=True):
    """It is answered with what stands, and whether that is this call's doing."""

    settlement_id: str | None = None
    """Made by the caller, once per call: all copies of a call have the same, no other call has."""

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.settlement_id(self.settlement_id)


@declare("layby.promise.resolve", sender=Sender.CLIENT, answer=SettlementData)
class ResolvePromise(SettlingCommand, frozen=True):
    """Settle, or create settled: an event before its wait is never lost."""

    value: Value = NOTHING
    state: str = "resolved"

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.settlement(self.state, self.value)


@handles(ResolvePromise)
def resolve(d: Draft, c: ResolvePromise) -> Reply:
    """Settle, or create settled in one step. Runs are neither created nor ended by resolving."""
    promise = d.promise(c.id)
    task = d.task(c.id)
    if task is not None and task.kind is not None and not task.is_trigger:
        return MADE_BY_TASKS[task.kind]
    if promise is None:
        if c.id.startswith(RUN_PREFIX):
            return no_such_run(c.id)
        promise = birth.create(d, c.id, NEVER, EMPTY, {})
    if c.state == "resolved" and (refused := misfit(promise, c.value)) is not None:
        return refused
    return settlement(d, promise, c, settle_state(c.state), birth.encoded(c.value))


@declare("layby.promise.ensure", sender=Sender.CLIENT, answer=PromiseData, unqueues=False)
class EnsurePromise(PromiseCommand, frozen=True):
    """The promise of this id; if there is none, a placeholder is created.

    `awaiter`: the task whose body awaits it. It is not pruned before that task has ended.
    """

    awaiter: str | None = None

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        if self.awaiter is not None and is_elsewhere(self.id, self.awaiter):
            into.ids.add(self.awaiter)
            into.pairs.add((self.id, self.awaiter))

    def named_ids(self) -> Ids:
        return (self.id,) if self.awaiter is None else (self.id, self.awaiter)

    def problems(self) -> Problems:
        yield from super().problems()
        if self.awaiter is not None:
            yield from validate.identifier(self.awaiter, "Awaiter promise ID")


@handles(EnsurePromise)
def ensure(d: Draft, c: EnsurePromise) -> Reply:
    promise = d.promise(c.id)
    if promise is None and c.id.startswith(RUN_PREFIX):
        return no_such_run(c.id)
    if c.awaiter is not None and is_elsewhere(c.id, c.awaiter):
        note_read(d, c.id, c.awaiter)
    return ok(PromiseData(birth.placeholder(d, c.id) if promise is None else promise))


@handles(WatchPromise)
def watch(d: Draft, c: WatchPromise) -> Reply:
    """Waiting for an internal promise could last forever; one that has settled is just read."""
    promise = d.promise(c.id)
    if promise is not None and promise.is_pending and promise.internal:
        return not_external(promise)
    return get(d, c)


@declare("layby.promise.cancel", sender=Sender.CLIENT, answer=SettlementData)
class CancelPromise(SettlingCommand, frozen=True):
    """Settle as cancelled, keeping who and why. Cancelling a run cancels its nodes."""

    by: str = ""
    reason: str = ""

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.words(by=self.by, reason=self.reason)


@handles(CancelPromise)
def cancel(d: Draft, c: CancelPromise) -> Reply:
    promise = d.promise(c.id)
    if promise is None:
        return NOT_FOUND
    return settlement(d, promise, c, "rejected_canceled", values.cancelled(c.by, c.reason))


def not_external(awaited: Promise) -> Reply:
    remedy = "create it with resonate:target, resonate:timer=true or resonate:external=true"
    return refuse(422, f"Awaited promise '{awaited.id}' is internal: {remedy}")


def add_wait(d: Draft, awaited: str, awaiter: str) -> None:
    """An *any* wait; an existing wait of the same pair that counts keeps counting.

    One for the end of a body stays as it is: it says who outlives whom, and lasts longer.
    """
    stored = d.rows.wait(awaited, awaiter)
    if stored is not None and stored.is_for_end:
        return
    if stored is not None and stored.is_child:
        d.wait(Wait(awaited, awaiter, "child_any"))
        return
    counts = stored is not None and stored.counts
    d.wait(Wait(awaited, awaiter, "both" if counts else "any"))


def settle_state(state: str) -> PromiseState:
    """Validation has refused every other word before the handler runs."""
    if state == "resolved":
        return "resolved"
    return "rejected" if state == "rejected" else "rejected_canceled"


def settlement(
    d: Draft, promise: Promise, c: SettlingCommand, state: PromiseState, value: str
) -> Reply:
    """Settle unless it is settled. An earlier copy of the same call may have won already."""
    if promise.is_pending:
        settled = settle(d, promise, state, value, settlement_id=c.settlement_id)
        return ok(SettlementData(settled, won=True))
    is_ours = c.settlement_id is not None and c.settlement_id == promise.settlement_id
    return ok(SettlementData(promise, won=is_ours))


def _resume_at_once(d: Draft, task: Task, awaited: str) -> None:
    """The awaited promise is settled already: the caller must not wait for nothing.

    A deferred task goes on when its trigger fires, and not before.
    """
    if task.state == "suspended" and is_deferral(d, task):
        return
    if task.state == "suspended":
        make_ready(d, task)
    elif task.state in ("pending", "acquired"):
        d.put_task(task.resumed_by(awaited))


def no_such_run(promise_id: str) -> Reply:
    why = f"Run '{promise_id}' not found: a run is created by starting it, not by waiting"
    return refuse(404, why)
