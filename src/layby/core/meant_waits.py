"""layby.wait.find: which wait of which task a person means by an id.

That may be the id of a task, of a wait (which continues that of its task), or of a run in which one
task waits. The answer names the wait itself, so that whoever ends or prolongs it by that name never
touches a later one.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from layby.core import validate
from layby.core.ids import ancestors_of, life_id, life_root_of, root_of
from layby.core.kinds import Ids, Problems, Query, Sender, declare
from layby.core.model import Millis, Task
from layby.core.promises import NOT_FOUND
from layby.core.queries import GetRecords, GetRun, Reader
from layby.core.replies import Reply, WaitData, ok, refuse
from layby.core.waits import held_wait, is_backing_off, shown_state, wait_id

MAX_NAMED: Final = 5
"""How many tasks of a run are named, of those that wait."""
MAX_PAGES: Final = 20
"""How much of a run is looked at."""
MAX_ABOVE: Final = 100
"""How many ids above a wait are looked at: keys of waits may have dots."""
NO_WAIT: Final = "No task of this run waits in its body, or is deferred"
TOO_LARGE: Final = "This run is too large to look for the task that waits: name it"


@declare("layby.wait.find", sender=Sender.CLIENT, answer=WaitData)
class FindWait(Query, frozen=True):
    """Which wait is meant by this id.

    The id of a call is both that of the caller's wait and that of the task that serves it: it means
    the wait of that task while it is in one.
    """

    is_quick = True
    id: str

    def named_ids(self) -> Ids:
        return (self.id,)

    def problems(self) -> Problems:
        return validate.identifier(self.id, "ID of a task, a run or a wait")

    def read(self, reader: Reader, now: Millis, /) -> Reply:
        return Finding(reader, now).find(self.id)


class Finding:
    """One such question: everything is read from the same snapshot."""

    def __init__(self, reader: Reader, now: Millis) -> None:
        self._reader = reader
        self._now = now

    def find(self, asked: str) -> Reply:
        task = self._task(asked)
        if task is not None and _waits(task):
            return _found(task)
        is_of_run = task is not None and (task.is_node or task.is_root)
        if not is_of_run and (above := self._task_above(asked)) is not None:
            return ok(WaitData(above.id, asked))
        if task is None:
            return NOT_FOUND
        return self._in_run(task.id) if task.is_root else _found(self._latest(task))

    def _task_above(self, asked: str) -> Task | None:
        """The nearest, if this id is that of a wait of it."""
        for each in ancestors_of(asked)[: -MAX_ABOVE - 1 : -1]:
            if (task := self._task(each)) is not None:
                return task if asked[len(each)] == "." else None
        return None

    def _latest(self, task: Task) -> Task:
        """The same task in the latest life of its run; a life that was named is meant."""
        run = root_of(task.id)
        if task.state != "fulfilled" or not task.is_node or life_root_of(task.id) != run:
            return task
        first, node = self._task(run), task.id[len(run) + 1 :]
        for life in range((first and first.lives) or 1, 1, -1):
            if (later := self._task(f"{life_id(run, life)}:{node}")) is not None:
                return later
        return task

    def _in_run(self, root_id: str) -> Reply:
        waiting: list[Task] = []
        query = GetRun(id=root_of(root_id))
        for _ in range(MAX_PAGES):
            page = self._reader.get_run(query, self._now)
            waiting += [each for _, each in page.rows if each is not None and _waits(each)]
            if page.cursor is None or len(waiting) > 1:
                return _the_only(waiting)
            query = replace(query, cursor=page.cursor)
        return refuse(409, TOO_LARGE)

    def _task(self, promise_id: str) -> Task | None:
        page = self._reader.get_records(GetRecords(id=promise_id, limit=1), self._now)
        return next((task for promise, task in page.rows if promise.id == promise_id), None)


def _the_only(waiting: Sequence[Task]) -> Reply:
    if len(waiting) == 1:
        return _found(waiting[0])
    if not waiting:
        return refuse(409, NO_WAIT)
    names = ", ".join(f"'{each.id}'" for each in waiting[:MAX_NAMED])
    return refuse(409, f"Several tasks of this run wait: name one, such as {names}")


def _found(task: Task) -> Reply:
    return ok(WaitData(task.id, wait_id(task)))


def _waits(task: Task) -> bool:
    """In its code, or for its next try. The wait of a trigger is that of the task it is for."""
    is_in_one = shown_state(task) == "deferred" or held_wait(task) is not None
    return not task.is_trigger and (is_in_one or is_backing_off(task))
