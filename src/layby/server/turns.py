"""Who may go on with what is large: callers take turns, whatever the size of what each asks.

A request with a large answer has a turn until that is encoded. A large batch is carried out in
slices, and each slice needs a turn. Only a few have one at once, so a small request waits for as
many large answers or slices at most, however many were asked for. The next turn goes to the caller
who has waited longest for one; a caller with a hundred batches waits in line a hundred times, but
its batches only take turns with each other.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from contextlib import asynccontextmanager, contextmanager
from math import inf
from time import monotonic
from typing import Final

AT_ONCE: Final = 1
"""Eight who ask for what is large cost the others no more than one of them."""
PAUSE_S: Final = 0.001
"""After a piece of something large: with nothing to do in between, the loop is idle this long, and
small requests go through it, and through the writer, as if they were alone.
"""
REST: Final = 3
"""How many times as long as a piece has taken the loop rests from large ones: large work has a
quarter of it at most.
"""
GIVE_WAY_S: Final = 0.004
"""How long something large waits for small ones at most: where these never end it goes on too."""


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


class PacedTurns:
    """Turns for what takes the loop itself, one at a time, with a rest after each.

    Reading a large request, and sending a piece of a large answer: eight such pieces one after the
    other would keep a small request waiting, and the writer too, which needs the interpreter.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._turns = Turns(1)
        self._free_at = -inf
        self._small = 0
        self._no_small: asyncio.Future[None] | None = None

    @contextmanager
    def giving_way(self) -> Generator[None]:
        """While something small is under way: until its end nothing large takes the loop."""
        self.begin_small()
        try:
            yield
        finally:
            self.end_small()

    def begin_small(self) -> None:
        self._small += 1

    def end_small(self) -> None:
        self._small -= 1
        if not self._small and self._no_small is not None and not self._no_small.done():
            self._no_small.set_result(None)

    @asynccontextmanager
    async def turn(self, caller: Hashable) -> AsyncGenerator[None]:
        """For work that awaits nothing."""
        async with self._turns.turn(caller):
            await asyncio.sleep(max(0.0, self._free_at - self._now()))
            await self._give_way()
            began = self._now()
            try:
                yield
            finally:
                ended = self._now()
                self._free_at = ended + max(PAUSE_S, REST * (ended - began))

    async def _give_way(self) -> None:
        if self._small:
            self._no_small = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._no_small,), timeout=GIVE_WAY_S)
            self._no_small = None
