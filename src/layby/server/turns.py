"""Who may go on with what is large: callers take turns, whatever the size of what each asks.

A request with a large answer has a turn until that is encoded. A large batch is carried out in
slices, and each slice needs a turn. Only a few have one at once, so a small request waits for as
many large answers or slices at most, however many were asked for. The next turn goes to the caller
who has waited longest for one; a caller with a hundred batches waits in line a hundred times, but
its batches only take turns with each other.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from typing import Final

AT_ONCE: Final = 1
"""Eight who ask for what is large cost the others no more than one of them."""
PAUSE_S: Final = 0.001
"""After a piece of something large: with nothing to do in between, the loop is idle this long, and
small requests go through it, and through the writer, as if they were alone.
"""


class Turns:
    """Use it in one event loop."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = at_once
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, caller: Hashable) -> AsyncGenerator[None]:
        await self._wait(caller)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, caller: Hashable) -> None:
        if self._free:
            self._free -= 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._leave(caller, mine)
            else:
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        if not self._waiting:
            self._free += 1
            return
        caller, line = self._waiting.popitem(last=False)
        line.popleft().set_result(None)
        if line:
            self._waiting[caller] = line  # behind all others

    def _leave(self, caller: Hashable, mine: "asyncio.Future[None]") -> None:
        line = self._waiting[caller]
        line.remove(mine)
        if not line:
            del self._waiting[caller]
