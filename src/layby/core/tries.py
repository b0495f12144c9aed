"""How a try ends: the task is finished, or has failed. Either may bring the next task with it."""

from msgspec import Struct

from layby.core import birth, tag_names, validate, waits
from layby.core.draft import Draft
from layby.core.fields import NOTHING, Int64, Value
from layby.core.footprint import Footprint
from layby.core.ids import life_root_of
from layby.core.kinds import Ids, Problems, Sender, declare
from layby.core.model import EMPTY, Promise, Task, deadline
from layby.core.promises import add_wait, settle_state
from layby.core.replies import FailData, FinishData, Reply, ok
from layby.core.settlement import Settler, make_ready, settle
from layby.core.takes import Take, take_next
from layby.core.tasks import FencedCommand, handles_claim

MAX_VERDICT_CHARS = 2**16


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
        yield from validate.history(self.history)


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
        is_kept = self.retry_in is not None
        most = validate.MAX_RETRIED_ERROR_CHARS if is_kept else validate.MAX_VALUE_CHARS
        yield from validate.size(self.error, "error", most)
        yield from validate.history(self.history)
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


def _back_off(d: Draft, task: Task, timer_id: str, retry_at: int) -> None:
    """A back-off is a wait like any other: suspended on a timer promise."""
    if birth.is_absent(d.promise(timer_id)):
        birth.create(d, timer_id, retry_at, EMPTY, {tag_names.TIMER: "true"})
    timer = d.promise(timer_id)
    if timer is not None and timer.is_armed:
        add_wait(d, timer_id, task.id)
        why = waits.backing_off(task.failures, timer.timeout_at, d.now, timer_id)
        d.put_task(task.suspended(why))
    else:
        make_ready(d, task)
