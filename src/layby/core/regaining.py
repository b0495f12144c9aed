"""layby.task.regain: a parked body gets its permits back before it goes on.

Parking gives up what does not count parked bodies (`permits`). If the permits are not there at
once, the body waits for a promise of its own, which is settled in the step that frees them: it
holds no slot meanwhile.
"""

from layby.core import birth, permits, validate, waits
from layby.core.draft import Draft
from layby.core.fields import Int64
from layby.core.footprint import Footprint
from layby.core.kinds import Problems, Sender, declare
from layby.core.model import EMPTY, NEVER, Promise, Task
from layby.core.replies import RegainData, Reply, ok
from layby.core.settlement import settle
from layby.core.tasks import FencedCommand, handles_claim


@declare("layby.task.regain", sender=Sender.CLIENT, answer=RegainData, unqueues=False)
class RegainPermits(FencedCommand, frozen=True):
    """Stand in line for the permits of a parked body. `place`: when its wait ended, as its worker
    counts; no two of one claim are equal.
    """

    place: Int64

    def footprint(self, into: Footprint) -> None:
        into.ids.update((self.id, self.promise_id))

    @property
    def promise_id(self) -> str:
        return f"{self.id}.permit.{self.version}.{self.place}"

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.identifier(self.promise_id, "ID of the promise")
        if not 0 <= self.place <= NEVER:
            yield f"place must be between 0 and {NEVER}"


@handles_claim(RegainPermits)
def regain(d: Draft, c: RegainPermits, task: Task, _: Promise) -> Reply:
    if set(task.limit_names) <= set(task.permit_names):
        if waits.is_parked(task) and not waits.is_for_slot(task):
            d.put_task(task.regained(waits.to_go_on(d.now)))  # it keeps them, whatever changes
        return ok(RegainData())
    existing = d.promise(c.promise_id)
    if existing is not None:  # a copy of this call was here before
        return ok(RegainData(existing if existing.is_pending else None))
    promise = birth.create(d, c.promise_id, NEVER, EMPTY, {})
    permits.stand_in_line(d, task, c.place)
    is_granted = d.tasks[c.id].gate is None
    return ok(RegainData(None if is_granted else promise))


def tell_regained(d: Draft) -> None:
    while d.regained:
        promise = d.promise(d.regained.pop())
        if promise is not None and promise.is_pending:
            settle(d, promise, "resolved", EMPTY, by="holder")
