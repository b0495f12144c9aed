"""What a worker holds, compared with what the store believes it holds.

An answer that got lost on its way may have carried tasks. Such a task is handed back; one that
the store has given to somebody else is ended here. Requests under way make the two differ for a
moment, so only what differs twice in the same way counts; versions make a mistake harmless.
"""

import logging

from layby.core.commands import ListHeld, ReleaseTask
from layby.core.replies import TaskPage
from layby.errors import LaybyError
from layby.worker.worker import Worker

logger = logging.getLogger(__name__)

Claimed = tuple[str, int]
"""The id and version of a task."""


class Stock:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._strangers: set[Claimed] = set()
        self._missing: set[Claimed] = set()

    def is_wanted(self, *, agrees: bool) -> bool:
        return not agrees or bool(self._strangers or self._missing)

    async def take(self) -> None:
        before = set(self._worker.holds.items())
        try:
            listed = await self._listed()
        except LaybyError as failure:
            logger.warning("the worker could not compare what it holds: %s", failure)
            return
        now = set(self._worker.holds.items())
        strangers, missing = listed - now, (before & now) - listed
        await self._hand_back(strangers & self._strangers)
        for task_id, version in missing & self._missing:
            self._worker.lost(task_id, version)
        self._strangers, self._missing = strangers - self._strangers, missing - self._missing

    async def _hand_back(self, strangers: set[Claimed]) -> None:
        for task_id, version in sorted(strangers):
            logger.warning("%s was given to this worker in an answer that got lost", task_id)
            await self._worker.client.send(ReleaseTask(id=task_id, version=version))

    async def _listed(self) -> set[Claimed]:
        worker, found, cursor = self._worker, set[Claimed](), None
        while True:
            query = ListHeld(pid=worker.config.pid, incarnation=worker.incarnation, cursor=cursor)
            page = (await worker.client.send(query)).data
            if not isinstance(page, TaskPage):
                return found
            found |= {(task.id, task.version) for task in page.tasks}
            cursor = page.cursor
            if cursor is None:
                return found
