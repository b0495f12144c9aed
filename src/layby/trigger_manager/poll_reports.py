"""Tells the store how polls go: with heartbeats, for many triggers at once, never one write a poll.

An error that comes or goes is told with the next heartbeat; counts that merely grow, once in a
while.
"""

import asyncio
import heapq
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from layby.core.waits import PollReport
from layby.errors import LaybyError
from layby.trigger_manager.shared_polls import SharedPolls
from layby.trigger_manager.trigger_program import LoadedTrigger
from layby.worker.renewal import apply_heartbeat
from layby.worker.worker import Worker

BEAT_S: Final = 5.0
COUNTS_S: Final = 60.0
MOST: Final = 1_000
"""With one heartbeat."""


class PollReports:
    """Its timer runs while something is polled, and not before."""

    def __init__(self, worker: Worker, polls: SharedPolls) -> None:
        self._worker = worker
        self._polls = polls
        polls.on_join = self._start
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_under_way = False

    def close(self) -> None:
        self._polls.on_join = lambda: None
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        self._timer = None
        if len(self._polls) > 0:
            self._start()
        if self._is_under_way:
            return
        due = heapq.nsmallest(MOST, self._due(), key=lambda each: each[0])
        if due:
            self._is_under_way = True
            self._worker.spawn(self._tell([(task_id, loaded) for _, task_id, loaded in due]))

    def _due(self) -> Iterator[tuple[tuple[bool, float], str, LoadedTrigger]]:
        """Errors that are news come first, then what was told longest ago."""
        now = self._loop.time()
        for task_id, held in self._worker.attempts.items():
            loaded = held.loaded
            if not isinstance(loaded, LoadedTrigger) or loaded.poll is None:
                continue
            watched = loaded.poll.watched
            is_news = watched.last_error != loaded.told_error
            if is_news or (watched.polls and now - loaded.told_at >= COUNTS_S):
                yield (not is_news, loaded.told_at), task_id, loaded

    async def _tell(self, due: list[tuple[str, LoadedTrigger]]) -> None:
        worker, now = self._worker, self._loop.time()
        reports: dict[str, PollReport] = {}
        for task_id, loaded in due:
            if loaded.poll is not None:
                reports[task_id] = loaded.poll.report(worker.now(), now)
                loaded.told_error, loaded.told_at = loaded.poll.watched.last_error, now
        try:
            beat = replace(worker.heartbeat(), polling=reports)
            reply = await worker.client.send(beat)
            apply_heartbeat(worker, beat.incarnation, reply)
        except LaybyError:
            return  # the next one tells more
        finally:
            self._is_under_way = False
