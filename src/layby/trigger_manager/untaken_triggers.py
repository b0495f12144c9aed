"""Tells of triggers that wait because no process may run them. Nothing fails meanwhile, and nobody
has to ask why: so whoever watches over the store says so by itself, once for all that ask the same.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from layby.core.model import Millis, Task
from layby.core.queries import ExplainPromise, SearchTasks
from layby.core.replies import Explanation, TaskPage
from layby.core.resumption import TRIGGER_GROUP
from layby.core.waits import waiting_of
from layby.errors import LaybyError
from layby.triggers.built_in import BUILT_IN

logger = logging.getLogger(__name__)

LOOK_S: Final = 10.0
"""Between two looks, at least."""
RESTS: Final = 200
"""So many times as long as a look took: beside tens of thousands that run it is a tenth of a
second.
"""
PATIENCE_MS: Final = 10_000
"""A process that may run it may just be starting."""
PAGE: Final = 20
"""Of each class, for each look that finds new ones: the next look goes on behind them."""
PAGES: Final = 50
"""Of those that are known, for each look."""
MOST_KNOWN: Final = 10_000


class UntakenTriggers:
    """`send` asks the store, as an admin may."""

    def __init__(self, send: Callable[[Any], Awaitable[Any]], now: Callable[[], Millis]) -> None:
        self._send = send
        self._now = now
        self._cursors: dict[str, str | None] = {}
        self._known: set[str] = set()
        """Triggers that were told of, or ask what others ask."""
        self._told: set[tuple[str, str]] = set()

    async def watch(self) -> None:
        now, took = asyncio.get_running_loop().time, 0.0
        while True:
            await asyncio.sleep(max(LOOK_S, RESTS * took))
            began = now()
            await self.look()
            took = now() - began

    async def look(self) -> None:
        with suppress(LaybyError):  # the store is away, which others tell
            for trigger in BUILT_IN:
                await self._look_at(trigger.kind())

    async def _look_at(self, kind: str) -> None:
        """Those that are known cost little, and another may wait behind thousands of them."""
        for _ in range(PAGES):
            page = await self._next_page(kind)
            new = [task for task in page.tasks if task.id not in self._known]
            for task in new:
                await self._explain_safely(task)
            if new or page.cursor is None:
                return

    async def _next_page(self, kind: str) -> TaskPage:
        cursor = self._cursors.get(kind)
        query = SearchTasks(
            group=TRIGGER_GROUP, name=kind, state="pending", limit=PAGE, cursor=cursor
        )
        found = (await self._send(query)).data
        page = found if isinstance(found, TaskPage) else TaskPage([])
        self._cursors[kind] = page.cursor
        return page

    async def _explain_safely(self, task: Task) -> None:
        """Whoever looks serves others, and anybody may have made it."""
        try:
            await self._explain(task)
        except LaybyError:
            raise
        except Exception:
            self._remember(task.id)
            logger.exception("a bug: why trigger %s waits could not be told", task.id)

    async def _explain(self, task: Task) -> None:
        about = (await self._send(ExplainPromise(id=task.id))).data
        if isinstance(about, Explanation) and self._is_left(about):
            self._remember(task.id)
            # Sentences about what waits: most processes that look need none of that code.
            await asyncio.to_thread(import_module, "layby.workflow.reasons")
            self._tell(about)

    def _is_left(self, about: Explanation) -> bool:
        """Whether it has waited for a while, and no process takes its class."""
        waiting = waiting_of(about.promise, about.task, self._now())
        if waiting is None or waiting.form != "untaken" or about.able_workers:
            return False
        return (waiting.since or 0) + PATIENCE_MS <= self._now()

    def _remember(self, trigger_id: str) -> None:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known.add(trigger_id)

    def _tell(self, about: Explanation) -> None:
        from layby.workflow.reasons import reason_of  # noqa: PLC0415 - see above
        from layby.workflow.trigger_reasons import what_is_polled  # noqa: PLC0415 - see above

        assert about.task is not None
        same = (about.task.name or "", what_is_polled(about.promise, about.task))
        if same in self._told or len(self._told) >= MOST_KNOWN:
            return
        self._told.add(same)
        reason = reason_of(about, self._now())
        logger.warning(
            "%s waits for trigger %s, which %s: it waits until that is changed by %s "
            "(said once for all that ask the same)",
            next(iter(about.awaiters), "nobody"),
            about.promise.id,
            reason.sentence,
            reason.unblock,
        )
