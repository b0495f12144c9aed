"""layby.task.limit: the limits of a task, if they follow from its context.

Its worker knows them only when it has read that. So it takes the task as one without limits, names
them, and gives it back with its place: from then on it is like any task that has limits.
"""

from layby.core.draft import Draft
from layby.core.fields import Int64
from layby.core.footprint import Footprint
from layby.core.kinds import Problems, Sender, declare
from layby.core.limit import limit_names
from layby.core.model import NEVER, Promise, Task
from layby.core.replies import LimitedData, Reply, ok, refuse
from layby.core.takes import take_next
from layby.core.tasks import handles_claim
from layby.core.tries import GiveUpClaim


@declare("layby.task.limit", sender=Sender.CLIENT, answer=LimitedData, unqueues=False)
class LimitTask(GiveUpClaim, frozen=True, kw_only=True):
    """Name the limits of a task before its body has begun: it waits for their permits.

    `ready_at`: its place in the queue.
    """

    limits: tuple[str, ...]
    ready_at: Int64 = 0

    def footprint(self, into: Footprint) -> None:
        super().footprint(into)
        into.limits.update(self.limits)

    def problems(self) -> Problems:
        yield from super().problems()
        yield from limit_names(self.limits, f"task '{self.id}'")
        if not self.limits:
            yield "limits is required"
        if self.ready_at < 0:
            yield "readyAt must be non-negative"


@handles_claim(LimitTask)
def limit(d: Draft, c: LimitTask, task: Task, _: Promise) -> Reply:
    if task.kind != "node" or task.holder is None or task.limits is not None:
        return refuse(422, "Only a task of a run that was taken, and has no limits, can get some")
    named = task.never_begun().limited(c.limits)
    d.put_task(named.pending(NEVER, min(c.ready_at, d.now)))
    return ok(LimitedData(d.tasks[c.id], take_next(d, c.take)))
