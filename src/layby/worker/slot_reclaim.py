"""A body's place in the line for slots, which it keeps whichever strand stops waiting for it.

If a strand awaited it, cancelling that strand would give the place up. So nobody awaits it: the
slot's `reclaim()` coroutine is advanced whenever what it waits for is done, as a Task would do, but
its first step runs at once, so that the place counts from now, and a free slot is held at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

Done = Callable[[BaseException | None], None]
"""Called once: the slot is held (None), or why there is none."""


class SlotReclaim:
    __slots__ = ("_done", "_reclaiming")

    def __init__(self, reclaiming: Coroutine[Any, Any, None], done: Done) -> None:
        self._reclaiming = reclaiming
        self._done: Done | None = done

    def begin(self) -> bool:
        """Stand in line; True when a slot was free."""
        try:
            self._wait_on(self._reclaiming.send(None))
        except StopIteration:
            return True
        return False

    def cancel(self) -> None:
        """Give the place up."""
        self._done = None
        with suppress(asyncio.CancelledError, StopIteration):
            self._reclaiming.throw(asyncio.CancelledError())
        self._reclaiming.close()

    def _advance(self, _: "asyncio.Future[Any] | None" = None) -> None:
        if self._done is None:
            return
        try:
            is_over, error = self.begin(), None
        except BaseException as refusal:  # noqa: BLE001 - passed on to whoever wants the slot
            is_over, error = True, refusal
        if is_over:
            self._done(error)

    def _wait_on(self, waits_for: Any) -> None:
        if waits_for is None:  # a bare yield
            asyncio.get_running_loop().call_soon(self._advance)
            return
        waits_for._asyncio_future_blocking = False  # noqa: SLF001 - what a Task does with a future
        waits_for.add_done_callback(self._advance)
