"""The views of one run, worked out once per task from what the tasks before it changed."""

from collections.abc import Iterable, Sequence

from layby.core.model import Millis
from layby.workflow.merge import UNCHANGED, Delta, Merge, View
from layby.workflow.shape import Shape


class RunViews:
    """Learns what settled tasks changed; tells what a task sees, and the final context.

    A task that failed, was skipped or was cancelled changed nothing: it passes on what it was
    given. Changes that settled only after its cancellation do not pass through it.
    """

    def __init__(self, shape: Shape, initial: View) -> None:
        self.shape = shape
        self._initial = initial
        self._deltas: dict[str, Delta] = {}
        self._settled_at: dict[str, Millis] = {}
        self._open: set[str] = set()
        self._before: dict[str, Merge] = {}
        self._after: dict[str, View] = {}

    def learn(
        self, task_id: str, delta: Delta = UNCHANGED, settled_at: Millis | None = None
    ) -> None:
        """The task has settled; without a time it counts as settled in order."""
        self._deltas.setdefault(task_id, delta)
        self._open.discard(task_id)
        if settled_at is not None:
            self._settled_at[task_id] = settled_at

    def leave_open(self, task_id: str) -> None:
        """The task has not settled, although one after it has (it was cancelled, say)."""
        self._open.add(task_id)

    def unknown(self, tasks: Iterable[str]) -> list[str]:
        """Which of these, and of the tasks before them, still have to be learned."""
        seen: set[str] = set()
        waiting = list(tasks)
        while waiting:
            task_id = waiting.pop()
            if task_id not in seen and task_id not in self._after:
                seen.add(task_id)
                waiting += self.shape.after[task_id]
        return self._in_order(seen - self._deltas.keys())

    def before(self, task_id: str) -> Merge:
        """What the task is given. Everything before it must have been learned or left open."""
        known = self._before.get(task_id)
        if known is not None:
            return known
        for each in self._not_worked_out(task_id):
            reached = [one for one in self.shape.after[each] if self._reached(one, each)]
            if each in self.shape.cleanups:
                reached = self._latest_of(reached)
            self._before[each] = self._joined(reached)
        return self._before[task_id]

    def after(self, task_id: str) -> View:
        """What the task passes on; the same view for all its dependents."""
        view = self._after.get(task_id)
        if view is None:
            view = self.before(task_id).view.after(self._deltas[task_id], task_id)
            self._after[task_id] = view
        return view

    def final(self) -> Merge:
        """The context of the finished run: all leaves, in the order of the workflow."""
        return self._joined(self.shape.leaves)

    def final_with(self, task_id: str, delta: Delta) -> Merge:
        """The same, if this leaf, the only one not settled yet, makes these changes."""
        changed = self.before(task_id).view.after(delta, task_id)
        views = [changed if each == task_id else self.after(each) for each in self.shape.leaves]
        return View.merged(views, self.shape.precedes)

    def so_far(self) -> View:
        """What a run has made that may not be over: all that settled, whoever has seen it."""
        settled = [each for each in self.shape.after if each in self._deltas]
        return self._joined(self._latest_of(settled)).view

    def _joined(self, tasks: Iterable[str]) -> Merge:
        views = [self.after(each) for each in tasks]
        return View.merged(views, self.shape.precedes) if views else Merge(self._initial)

    def _latest_of(self, tasks: Sequence[str]) -> list[str]:
        """Those whose changes did not reach another of them: the others see what these made."""
        passed_on = {
            dependency
            for each in tasks
            for dependency in self.shape.after[each]
            if self._reached(dependency, each)
        }
        return [each for each in tasks if each not in passed_on]

    def _reached(self, dependency: str, task_id: str) -> bool:
        """Whether what the dependency changed was there when the task settled."""
        if dependency in self._open:
            return False
        settled_at = self._settled_at.get(task_id)
        return settled_at is None or self._settled_at.get(dependency, settled_at) <= settled_at

    def _not_worked_out(self, task_id: str) -> list[str]:
        """The task and those before it, earliest first: a chain may be too long to recurse.

        The task itself may have been left open for one after it; what is open before it passes
        nothing on.
        """
        found = {task_id}
        waiting = list(self.shape.after[task_id])
        while waiting:
            each = waiting.pop()
            if each not in found and each not in self._before and each not in self._open:
                found.add(each)
                waiting += self.shape.after[each]
        return self._in_order(found)

    def _in_order(self, tasks: Iterable[str]) -> list[str]:
        return sorted(tasks, key=self.shape.position.__getitem__)
