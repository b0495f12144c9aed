"""Handlers of promise.* and of layby's own promise commands."""

from msgspec import field

from layby.core import birth, values
from layby.core.draft import Draft
from layby.core.fields import NOTHING, Int64, Tags, Value
from layby.core.footprint import Footprint
from layby.core.kinds import ById, Command
from layby.core.model import EMPTY, NEVER, Listener, Promise, PromiseState, Task, Wait
from layby.core.replies import PromiseData, Reply, ok, refuse
from layby.core.settlement import make_ready, settle

NOT_FOUND = refuse(404, "Promise not found")
RUN_PREFIX = "run/"


class GetPromise(ById, frozen=True):
    kind = "promise.get"
    unqueues = False


class WatchPromise(ById, frozen=True):
    """Read the promise; the engine holds the answer back until it is settled."""

    kind = "layby.promise.watch"
    unqueues = False


def get(d: Draft, c: GetPromise | WatchPromise) -> Reply:
    promise = d.promise(c.id)
    return NOT_FOUND if promise is None else ok(PromiseData(promise))


class CreatePromise(ById, frozen=True):
    kind = "promise.create"
    timeout_at: Int64
    param: Value = NOTHING
    tags: Tags = field(default_factory=dict)

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        if branch := self.tags.get("resonate:branch"):
            into.born_into.add((self.id, branch))


def create(d: Draft, c: CreatePromise) -> Reply:
    promise = d.promise(c.id)
    if promise is None or birth.is_absent(promise):
        # Placeholders are ours: whoever waits for one was promised to hear of its end, so that
        # adopted it is external. layby's own kinds make nothing internal and do not come by here.
        internal = promise is None and d.settings.strict_external and not birth.is_external(c.tags)
        make = birth.create_internal if internal else birth.create
        promise = make(d, c.id, c.timeout_at, birth.encoded(c.param), c.tags)
    return ok(PromiseData(promise))


class SettlePromise(ById, frozen=True):
    kind = "promise.settle"
    state: str
    value: Value = NOTHING


def settle_by_id(d: Draft, c: SettlePromise) -> Reply:
    promise = d.promise(c.id)
    if promise is None:
        return NOT_FOUND
    if promise.is_pending:
        promise = settle(d, promise, settle_state(c.state), birth.encoded(c.value))
    return ok(PromiseData(promise))


class RegisterCallback(Command, frozen=True):
    kind = "promise.register_callback"
    awaited: str
    awaiter: str

    def footprint(self, into: Footprint) -> None:
        into.ids.update((self.awaited, self.awaiter))
        into.pairs.add((self.awaited, self.awaiter))


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
        _resume_at_once(d, task, c.awaited)
    return ok(PromiseData(awaited))


class RegisterListener(Command, frozen=True):
    kind = "promise.register_listener"
    unqueues = False
    awaited: str
    address: str

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.awaited)


def register_listener(d: Draft, c: RegisterListener) -> Reply:
    awaited = d.promise(c.awaited)
    if awaited is None:
        return refuse(404, "Awaited promise not found")
    if awaited.internal:
        return not_external(awaited)
    if awaited.is_pending:
        d.listen(Listener(c.awaited, c.address))
    return ok(PromiseData(awaited))


class ResolvePromise(ById, frozen=True):
    """Settle, or create settled: an event before its wait is never lost."""

    kind = "layby.promise.resolve"
    value: Value = NOTHING
    state: str = "resolved"


def resolve(d: Draft, c: ResolvePromise) -> Reply:
    """Settle, or create settled in one step. Runs are never created by resolving."""
    promise = d.promise(c.id)
    if promise is None:
        if c.id.startswith(RUN_PREFIX):
            return _no_such_run(c.id)
        promise = birth.create(d, c.id, NEVER, EMPTY, {})
    if promise.is_pending:
        promise = settle(d, promise, settle_state(c.state), birth.encoded(c.value))
    return ok(PromiseData(promise))


class EnsurePromise(ById, frozen=True):
    """The promise of this id; a placeholder comes into being when there is none."""

    kind = "layby.promise.ensure"
    unqueues = False


def ensure(d: Draft, c: EnsurePromise) -> Reply:
    promise = d.promise(c.id)
    if promise is None and c.id.startswith(RUN_PREFIX):
        return _no_such_run(c.id)
    return ok(PromiseData(birth.placeholder(d, c.id) if promise is None else promise))


def watch(d: Draft, c: WatchPromise) -> Reply:
    """Waiting for an internal promise could last for ever; one that has settled is just read."""
    promise = d.promise(c.id)
    if promise is not None and promise.is_pending and promise.internal:
        return not_external(promise)
    return get(d, c)


class CancelPromise(ById, frozen=True):
    """Settle as cancelled, keeping who and why. Cancelling a run cancels its nodes."""

    kind = "layby.promise.cancel"
    by: str = ""
    reason: str = ""


def cancel(d: Draft, c: CancelPromise) -> Reply:
    promise = d.promise(c.id)
    if promise is None:
        return NOT_FOUND
    if promise.is_pending:
        promise = settle(d, promise, "rejected_canceled", values.cancelled(c.by, c.reason))
    return ok(PromiseData(promise))


def not_external(awaited: Promise) -> Reply:
    remedy = "create it with resonate:target, resonate:timer=true or resonate:external=true"
    return refuse(422, f"Awaited promise '{awaited.id}' is internal: {remedy}")


def add_wait(d: Draft, awaited: str, awaiter: str) -> None:
    """An *any* wait; one that already counts for the same pair goes on counting."""
    stored = d.rows.wait(awaited, awaiter)
    counts = stored is not None and stored.counts
    d.wait(Wait(awaited, awaiter, "both" if counts else "any"))


def settle_state(state: str) -> PromiseState:
    """Validation has refused every other word before the handler runs."""
    if state == "resolved":
        return "resolved"
    return "rejected" if state == "rejected" else "rejected_canceled"


def _resume_at_once(d: Draft, task: Task, awaited: str) -> None:
    """The awaited promise is settled already: the caller must not wait for nothing."""
    if task.state == "suspended":
        make_ready(d, task)
    elif task.state in ("pending", "acquired"):
        d.put_task(task.resumed_by(awaited))


def _no_such_run(promise_id: str) -> Reply:
    why = f"Run '{promise_id}' not found: a run is created by starting it, not by waiting"
    return refuse(404, why)
