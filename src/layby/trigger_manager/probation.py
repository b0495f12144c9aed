"""Finds triggers that kill their process, without suspecting those that died with it for long.

Core counts a crash for a claim that is lost with its holder, unless it was shown as `Deferred`; at
`max_crashes` the trigger has failed, and its task hears why. So a trigger counts as running code
only while it is new: once it has survived a few seconds it is shown as waiting, which it does.

When a process dies, all that were new in it are suspects. Suspects begin in small groups, after a
second death in smaller ones, and then alone; those whose turn has not come are shown as waiting.
So each death clears most of the innocent, and soon the only one that is counted is the culprit.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from layby.core.waits import WaitingOn
from layby.worker.annotations import ShownWait
from layby.worker.attempt import Attempt

SURVIVED_S: Final = 3.0
ROOM: Final = 32
SHARES: Final = {0: 0, 1: 1, 2: 8}
"""How much of the room one takes that has crashed so often; with more crashes, all of it."""
KIND: Final = "trigger"


class ProbationHost(Protocol):
    """What it needs of the worker that runs the triggers."""

    attempts: dict[str, Attempt]


class Probation:
    def __init__(self, host: ProbationHost, sentence_of: Callable[[Attempt], str]) -> None:
        self._host = host
        self._sentence_of = sentence_of
        self._room = ROOM
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._new: deque[tuple[float, int, Attempt]] = deque()
        """When each has survived, and the share of the room that it gives back then."""
        self._timer: asyncio.TimerHandle | None = None

    async def admit(self, task_id: str, crashes: int) -> None:
        """Return when it may begin."""
        held, share = self._host.attempts[task_id], SHARES.get(crashes, ROOM)
        if share:
            held.annotations.show_waiting(WaitingOn(KIND, _suspected(crashes)))
            await self._enter(share)
            try:
                await held.annotations.show_running()
            except BaseException:
                self._leave(share)
                raise
        self._begins(held, share)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._new.clear()

    async def _enter(self, share: int) -> None:
        """First come, first served: a big one is not passed by small ones for ever."""
        if not self._line and self._room >= share:
            self._room -= share
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((share, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(share)
            raise

    def _leave(self, share: int) -> None:
        self._room += share
        while self._line and (self._line[0][1].done() or self._line[0][0] <= self._room):
            wanted, turn = self._line.popleft()
            if not turn.done():
                self._room -= wanted
                turn.set_result(None)

    def _begins(self, held: Attempt, share: int) -> None:
        loop = asyncio.get_running_loop()
        self._new.append((loop.time() + SURVIVED_S, share, held))
        if self._timer is None:
            self._timer = loop.call_later(SURVIVED_S, self._look)

    def _look(self) -> None:
        """One timer for all: they survive in the order in which they began."""
        loop = asyncio.get_running_loop()
        self._timer = None
        shown: dict[str, ShownWait] = {}  # equal ones are one object: there may be many
        while self._new and self._new[0][0] <= loop.time():
            _, share, held = self._new.popleft()
            if held.is_open and not held.is_ending:
                sentence = self._sentence_of(held)
                if sentence not in shown:
                    shown[sentence] = held.new_wait(WaitingOn(KIND, sentence), None)
                held.annotations.show(shown[sentence])
            if share:
                self._leave(share)
        if self._new:
            self._timer = loop.call_at(self._new[0][0], self._look)


def _suspected(crashes: int) -> str:
    times = "once" if crashes == 1 else f"{crashes} times"
    return f"waits to begin apart from others, because a process died {times} soon after it began"
