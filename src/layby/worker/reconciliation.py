"""Compares what a worker holds with what the store believes it holds.

An answer that got lost may have carried tasks. Such a task is handed back, also one that the store
has taken away since, and keeps until we say that no body of it runs here; one that the store has
given to somebody else, or that is over, is ended here: the notice that said so may have been lost
with an answer or a stream. Requests under way make the two differ for a moment, so only what
differs twice in the same way counts, and a task that is unknown here is on its way as long as a
request that may bring it is not answered. An answer may never come, so this has an end, too: if it
comes after all, the worker leaves alone what has been handed back (`Worker.give_up_answer`).
"""

import logging
from typing import Final, NamedTuple

from layby.client.paging import pages
from layby.core.commands import Released, ReleaseTasks
from layby.core.queries import ListHeld
from layby.core.replies import TaskPage
from layby.errors import LaybyError, StoreError
from layby.worker.worker import Worker

logger = logging.getLogger(__name__)

BEATS_BETWEEN_CHECKS: Final = 60
"""Heartbeats after which they are compared though the counts agree: mistakes may cancel out."""
MOST_LOOKS: Final = 7
"""Comparisons after which a task is handed back though its answer may be under way: two leases."""
Claimed = tuple[str, int]
"""The id and version of a task."""


class Sighting(NamedTuple):
    """Of a task that the store has given to us and that is unknown here."""

    mark: int
    """What had been sent when it was seen first (`OpenTakes`)."""
    looks: int


class Reconciler:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._unknown: dict[Claimed, Sighting] = {}
        self._missing: set[Claimed] = set()
        self._is_running = False
        self._beats = 0
        self._comparisons_left = 0

    def expect_lost_notices(self) -> None:
        """An answer or a stream has been lost: compare soon, though the counts may agree.

        A task that is over counts as held until its body has ended.
        """
        self._comparisons_left = 2

    def is_due(self, *, agrees: bool) -> bool:
        """Called with every heartbeat."""
        self._beats += 1
        if self._comparisons_left:
            self._comparisons_left -= 1
            return True
        is_open = bool(self._unknown or self._missing)
        return not agrees or is_open or self._beats % BEATS_BETWEEN_CHECKS == 0

    async def reconcile(self) -> None:
        """Compare once; does nothing while a comparison is under way."""
        if self._is_running:
            return
        self._is_running = True
        try:
            await self._compare()
        except LaybyError as failure:
            logger.warning("the worker could not compare what it holds with the store: %s", failure)
        finally:
            self._is_running = False

    async def _compare(self) -> None:
        before = set(self._worker.holds.items())
        held, kept = await self._listed()
        now = set(self._worker.holds.items())
        unknown, missing = (held | kept) - now, (before & now) - held
        for task_id, version in missing & self._missing:
            self._worker.lost(task_id, version)
        self._missing = missing - self._missing
        self._note_unknown(unknown)
        for task in sorted(filter(self._is_lost, unknown)):
            await self._hand_back(*task)
            del self._unknown[task]

    def _note_unknown(self, unknown: set[Claimed]) -> None:
        first, before = Sighting(self._worker.open_takes.sent, 0), self._unknown
        self._unknown = {}
        for task in unknown:
            mark, looks = before.get(task, first)
            self._unknown[task] = Sighting(mark, looks + 1)
        if not unknown <= before.keys():
            self._worker.replace_standing_take()  # else its answer may be far away

    def _is_lost(self, task: Claimed) -> bool:
        mark, looks = self._unknown[task]
        is_under_way = not self._worker.open_takes.are_answered(mark)
        return looks >= (MOST_LOOKS if is_under_way else 2)

    async def _hand_back(self, task_id: str, version: int) -> None:
        if not self._worker.give_up_answer(task_id, version):
            return  # its answer has come while others were handed back
        message = "%s was given to this worker in an answer that got lost; it is handed back"
        logger.warning(message, task_id)
        worker, task = self._worker, Released(task_id, version, begun=False)
        await worker.client.send(
            ReleaseTasks(pid=worker.config.pid, incarnation=worker.incarnation, tasks=(task,))
        )

    async def _listed(self) -> tuple[set[Claimed], set[Claimed]]:
        """What the store has given to us, and what it has taken away but keeps for its body."""
        worker, held, kept = self._worker, set[Claimed](), set[Claimed]()
        query = ListHeld(pid=worker.config.pid, incarnation=worker.incarnation)
        found = pages(self._page, query)
        async for page in found:
            for task in page.tasks:
                (held if task.state == "acquired" else kept).add((task.id, task.version))
        return held, kept

    async def _page(self, query: ListHeld) -> TaskPage:
        page = (await self._worker.client.send(query)).data
        if not isinstance(page, TaskPage):
            raise StoreError(f"the tasks of this worker could not be listed: {page}")
        return page
