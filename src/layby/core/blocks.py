"""Blocked tasks: what their worker's code cannot go on with waits for other code.

`layby.task.block` puts a task back to pending with its place; it is neither a failure nor a crash,
and not a halt: `task.continue` does not touch it. Workers with other code are offered it by
themselves, and `layby.task.continue` offers it to everybody again. `layby.run.pin` keeps a run on
the code that began it: workers with other code block its tasks.
"""

from typing import Final

from layby.core import validate, waits
from layby.core.codes import read_refusals, refused_by
from layby.core.draft import Draft
from layby.core.fields import Int64
from layby.core.footprint import Footprint
from layby.core.ids import life_root_of
from layby.core.kinds import Ids, Problems, Sender, declare, handles
from layby.core.model import Promise, Task
from layby.core.replies import OK, Empty, PinData, Reply, ok, refuse
from layby.core.tasks import NOT_FOUND, FencedCommand, TaskCommand, handles_claim

MAX_WHY_CHARS: Final = 4_000


@declare("layby.task.block", sender=Sender.CLIENT, answer=Empty, unqueues=False)
class BlockTask(FencedCommand, frozen=True):
    """The code of its worker does not fit: back to pending, for workers with other code.

    `pin`: the code that the run is pinned to, if that is the reason. `ready_at`: its place in the
    queue. `begun`: whether its body ever ran; if not, the claim was not a try.
    """

    code: str
    why: str
    pin: str | None = None
    ready_at: Int64 | None = None
    begun: bool = True
    history: str | None = None

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.code(self.code)
        if self.pin is not None:
            yield from validate.code(self.pin)
        if len(self.why) > MAX_WHY_CHARS:
            yield f"why must not be longer than {MAX_WHY_CHARS:,} characters"
        if (self.ready_at or 0) < 0:
            yield "readyAt must be non-negative"
        yield from validate.history(self.history)


@handles_claim(BlockTask)
def block(d: Draft, c: BlockTask, task: Task, _: Promise) -> Reply:
    if task.kind != "node" or task.holder is None:
        return refuse(422, "Only a task of a run that was taken can be blocked")
    task = (task.begun() if c.begun else task.never_begun()).with_history(c.history)
    ready_at = d.now if c.ready_at is None else min(c.ready_at, d.now)
    refused = refused_by(task, c.code, c.pin)
    waiting_on = waits.blocked(read_refusals(refused).codes, c.why, c.pin, d.now)
    d.put_task(task.blocked(ready_at, refused, c.pin, waiting_on))
    return OK


@declare("layby.task.continue", sender=Sender.CLIENT, answer=Empty)
class ContinueBlocked(TaskCommand, frozen=True):
    """Offer a blocked task to all workers again, whatever they have refused; unpins its run."""

    def footprint(self, into: Footprint) -> None:
        into.ids.update((self.id, life_root_of(self.id)))

    def named_ids(self) -> Ids:
        return (self.id, life_root_of(self.id))


@handles(ContinueBlocked)
def continue_blocked(d: Draft, c: ContinueBlocked) -> Reply:
    task, root = d.task(c.id), d.task(life_root_of(c.id))
    if task is None:
        return NOT_FOUND
    if task.state == "fulfilled":
        return refuse(409, "Task is fulfilled")
    if task.refused is None and task.pin is None:
        return refuse(409, "Task is not blocked")
    for each in (task, root):
        if each is not None and (each.refused is not None or each.pin is not None):
            d.put_task(each.for_any_code())
    return OK


@declare("layby.run.pin", sender=Sender.CLIENT, answer=PinData, unqueues=False)
class PinRun(FencedCommand, frozen=True):
    """The holder of one of its tasks pins a run to its code, unless it is pinned already."""

    code: str

    def footprint(self, into: Footprint) -> None:
        into.ids.update((self.id, self.root_id))

    def named_ids(self) -> Ids:
        return (self.id, self.root_id)

    @property
    def root_id(self) -> str:
        return life_root_of(self.id)

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.code(self.code)


@handles_claim(PinRun)
def pin(d: Draft, c: PinRun, _: Task, __: Promise) -> Reply:
    root = d.task(c.root_id)
    if root is None or not root.is_root:
        return refuse(422, f"'{c.id}' is not a task of a run")
    if root.pin is None and root.state != "fulfilled":  # what cleans up outlives it
        root = root.pinned(c.code)
        d.put_task(root)
    return ok(PinData(root.pin or c.code))
