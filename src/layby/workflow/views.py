"""The views of one run, worked out once per task from what the tasks before it changed."""

from collections.abc import Iterable

from layby.workflow.merge import UNCHANGED, Delta, Merge, View
from layby.workflow.shape import Shape


class RunViews:
    """Learns what settled tasks changed; answers what a task sees, and what is left at the end.

    A task that failed, was skipped or cancelled changed nothing: what it was given passes on.
    """

    def __init__(self, shape: Shape, initial: View) -> None:
        self.shape = shape
        self._initial = initial
        self._deltas: dict[str, Delta] = {}
        self._before: dict[str, Merge] = {}
        self._after: dict[str, View] = {}

    def learn(self, task_id: str, delta: Delta = UNCHANGED) -> None:
        self._deltas.setdefault(task_id, delta)

    def unknown(self, tasks: Iterable[str]) -> list[str]:
        """Which of these, and of the tasks before them, still have to be learned."""
        seen: set[str] = set()
        waiting = list(tasks)
        while waiting:
            task_id = waiting.pop()
            if task_id not in seen and task_id not in self._after:
                seen.add(task_id)
                waiting += self.shape.after[task_id]
        return sorted(seen - self._deltas.keys(), key=self.shape.position.__getitem__)

    def before(self, task_id: str) -> Merge:
        """What the task is given. Everything before it must have been learned."""
        for each in self._not_worked_out(task_id):
            self._before[each] = self._joined(self.shape.after[each])
        return self._before[task_id]

    def after(self, task_id: str) -> View:
        """What the task passes on; one and the same view for all who depend on it."""
        view = self._after.get(task_id)
        if view is None:
            view = self.before(task_id).view.after(self._deltas[task_id], task_id)
            self._after[task_id] = view
        return view

    def final(self) -> Merge:
        """The context of the finished run: all leaves, in the order of the workflow."""
        return self._joined(self.shape.leaves)

    def _joined(self, tasks: tuple[str, ...]) -> Merge:
        if not tasks:
            return Merge(self._initial)
        return View.merged([self.after(each) for each in tasks], self.shape.precedes)

    def _not_worked_out(self, task_id: str) -> list[str]:
        """The task and those before it, earliest first.

        A list and no recursion, for a chain may be longer than Python's stack.
        """
        found: set[str] = set()
        waiting = [task_id]
        while waiting:
            each = waiting.pop()
            if each not in found and each not in self._before:
                found.add(each)
                waiting += self.shape.after[each]
        return sorted(found, key=self.shape.position.__getitem__)
