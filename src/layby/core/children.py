"""Child runs: a run that a task of another run has started, and what ends the one with the other.

A child is a run of its own, with a tree of its own. Two notes among the waits (mode *child*) say
whose it is: one of the task that started it, its caller, and one of that task's run, its parent.
Whatever cuts one of the two short, a cancellation or a deadline, cancels the child by these notes,
in the tail of that settlement, as a run's nodes are cancelled. A parent that merely ends forgets
them: its children go on. Until then they also keep a child that has ended from being pruned.
"""

from collections.abc import Iterator

from msgspec import Struct

from layby.core import birth, validate
from layby.core.draft import Draft
from layby.core.fields import Int64, Tags
from layby.core.footprint import Footprint
from layby.core.ids import life_id, life_number, life_root_of, root_of
from layby.core.kinds import Ids, Problems
from layby.core.model import Millis, Promise, Wait
from layby.core.replies import Reply, refuse
from layby.core.tag_names import CALLER, DETACHED, PARENT, has_tag, tag_of
from layby.core.tasks import holds


class Caller(Struct, frozen=True, rename="camel"):
    """The task that starts a run, as it was claimed at `version`; nobody else starts it a child.

    `detach`: nothing that ends the caller or its run ends the child.
    """

    id: str
    version: Int64
    detach: bool = False

    @property
    def run(self) -> str:
        """The root of the run, or of the life of it, that the caller belongs to."""
        return life_root_of(self.id)

    @property
    def parent(self) -> str:
        """The same, whatever the life."""
        return root_of(self.id)

    @property
    def earlier(self) -> Iterator[str]:
        """The same task, and its run, in earlier lives."""
        task = self.id.removeprefix(self.run)
        for life in range(1, life_number(self.run)):
            yield from (life_id(self.parent, life), life_id(self.parent, life) + task)

    def footprint(self, into: Footprint, child: str) -> None:
        into.ids.update((self.id, self.run, self.parent))
        into.pairs.update(((self.id, self.run), (child, self.id), (child, self.run)))

    def named_ids(self) -> Ids:
        """Its run begins the same way."""
        return (self.id,)

    def problems(self, child: str) -> Problems:
        yield from validate.fence(self.id, self.version)
        if self.run == self.id:
            yield f"caller '{self.id}' must be a task of a run: only those have child runs"
        if self.parent == root_of(child):
            yield f"Run '{child}' cannot be a child of itself"

    @property
    def tags(self) -> Tags:
        """What the root of the child keeps of it."""
        own = {PARENT: self.parent, CALLER: self.id}
        return own | {DETACHED: "true"} if self.detach else own


def parent_of(child: Promise) -> str | None:
    """The (first) root of the run that this root is a child of; None if it is not one."""
    return tag_of(child.tags, PARENT)


def caller_of(child: Promise) -> str | None:
    """The task that has started this root; None if no task has."""
    return tag_of(child.tags, CALLER)


def is_detached(child: Promise) -> bool:
    return has_tag(child.tags, DETACHED)


def without_caller(tags: Tags) -> Tags:
    """Of a child that is run again by somebody else than its caller."""
    return {key: each for key, each in tags.items() if key not in (CALLER, DETACHED)}


def refusal(d: Draft, caller: Caller | None) -> Reply | None:
    """Why this caller starts nothing; None if it does."""
    if caller is None:
        return None
    task = d.task(caller.id)
    if task is None or not holds(task, caller.version):
        return refuse(409, "Task is not acquired or version mismatch")
    if not _is_life(d, caller):
        return refuse(
            409, f"'{caller.run}' is not a life of '{caller.parent}': nobody has begun that"
        )
    return refuse(409, f"Run '{caller.run}' has ended") if _is_over(d, caller) else None


def _is_life(d: Draft, caller: Caller) -> bool:
    """Anybody may create a task that is called like one of a life, of any number."""
    first = d.task(caller.parent)
    return life_number(caller.run) <= ((first and first.lives) or 1)


def _is_over(d: Draft, caller: Caller) -> bool:
    """Its run has ended, and it is about to be ended with it: unlike a task that cleans up."""
    if _run_is_open(d, caller):
        return False
    wait = d.rows.wait(caller.id, caller.run)
    return wait is not None and wait.counts and not wait.is_for_end


def begun(d: Draft, caller: Caller | None) -> None:
    """Only a body starts runs: a claim that was ahead of its slot is a try from now on."""
    task = None if caller is None else d.task(caller.id)
    if task is not None and task.ahead:
        d.put_task(task.begun())


def capped(d: Draft, caller: Caller | None, timeout_at: Millis) -> Millis:
    """A child does not outlast its parent's deadline."""
    if caller is None or caller.detach or not _run_is_open(d, caller):
        return timeout_at
    run = d.promise(caller.run)
    return timeout_at if run is None else min(timeout_at, run.timeout_at)


def bind(d: Draft, caller: Caller | None, child: str) -> None:
    """From now on the root `child` ends with the caller and with its run.

    After the end of the run only those that clean up start anything: that is theirs alone. An
    earlier life of the run, which may be about to end what it had started, has lost it; so has the
    earlier item that the caller is the same as.
    """
    if caller is None or caller.detach:
        return
    d.drop_waits(Wait(child, each) for each in (*caller.earlier, *_kept_by(d, caller)))
    awaiters = [caller.id, *([caller.run] if _run_is_open(d, caller) else [])]
    for awaiter in awaiters:
        stored = d.waits.get((child, awaiter)) or d.rows.wait(child, awaiter)
        wakes = stored is not None and stored.wakes
        d.wait(Wait(child, awaiter, "child_any" if wakes else "child"))


def _kept_by(d: Draft, caller: Caller) -> Iterator[str]:
    task = d.promise(caller.id)
    source = None if task is None else birth.keeps(task)
    if source is not None:
        yield source


def is_child_of(child: Promise, caller: Caller) -> bool:
    """Whether the same run has started it, in this life or an earlier one, and holds on to it."""
    return parent_of(child) == caller.parent and not is_detached(child)


def _run_is_open(d: Draft, caller: Caller) -> bool:
    run = d.promise(caller.run)
    return run is not None and run.is_pending
