"""A body's place in the line for slots, kept whoever of the body stops waiting for it.

Were it awaited by a strand, a cancel of that strand would give the place up. So nobody awaits it:
the slot's own coroutine is advanced by what it waits for, as a Task would do, but from the first
moment on, so that the place counts from now, and a slot that is free is had at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

Over = Callable[[BaseException | None], None]
"""Told once: the slot is held, or why there is none."""


class Line:
    __slots__ = ("_asking", "_over")

    def __init__(self, asking: Coroutine[Any, Any, None], over: Over) -> None:
        self._asking = asking
        self._over: Over | None = over

    def begin(self) -> bool:
        """Stand in line; True when the slot came at once."""
        try:
            self._listen(self._asking.send(None))
        except StopIteration:
            return True
        return False

    def quit(self) -> None:
        """Give the place up."""
        self._over = None
        with suppress(asyncio.CancelledError, StopIteration):
            self._asking.throw(asyncio.CancelledError())
        self._asking.close()

    def _advance(self, _: "asyncio.Future[Any] | None" = None) -> None:
        if self._over is None:
            return
        try:
            is_over, error = self.begin(), None
        except BaseException as refusal:  # noqa: BLE001 - whoever wants the slot hears it
            is_over, error = True, refusal
        if is_over:
            self._over(error)

    def _listen(self, waits_for: Any) -> None:
        if waits_for is None:  # it let others go first
            asyncio.get_running_loop().call_soon(self._advance)
            return
        waits_for._asyncio_future_blocking = False  # noqa: SLF001 - says that it was heard
        waits_for.add_done_callback(self._advance)
