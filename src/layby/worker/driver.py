"""Drives the main coroutine of a body: it is resumed only while the body has its slot.

Whatever main awaits, its resume comes through here. Without the slot the body stands in line
first; what main was to hear (a failure of what it awaited, a cancel by `asyncio.timeout` or a
TaskGroup) is remembered and thrown when the slot is held. Asyncio has kept its own books by then:
`Task.cancelling()` counts each cancel, and one error is thrown for all that came meanwhile, as
asyncio itself does between two steps of a Task. A body that is being ended hears it at once.

It is an object and no coroutine: a frame more for every parked task would cost memory.
"""

import asyncio
from typing import Any, Self

from layby.worker.shared_slot import SharedSlot, SlotFuture


class ExitRequested(Exception):
    """What a Task is told in place of `SystemExit`."""


class BodyDriver:
    """Awaitable once; a Task may also have it as its coroutine, after `begin` of the slot."""

    __slots__ = ("_body", "_error", "_shared", "_slot_future")

    def __init__(self, body: Any, shared: SharedSlot) -> None:
        self._body = body if hasattr(body, "send") else body.__await__()
        self._shared = shared
        self._slot_future: SlotFuture | None = None
        """What it waits for in line; then the body has not been resumed yet."""
        self._error: BaseException | None = None
        """What is thrown when the slot is held."""

    def __await__(self) -> Any:
        self._shared.set_main()
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        if self._slot_future is not None or not self._shared.slot.is_held():
            return self._resume_with_slot()
        try:
            return self._body.send(value)
        except BaseException as error:
            self._ended(error)
            raise

    def throw(self, kind: Any, value: BaseException | None = None, _: Any = None, /) -> Any:
        error = _error_of(kind, value)
        if self._slot_future is not None and not isinstance(error, asyncio.CancelledError):
            self._error = self._error or error  # the line itself has failed: there is no slot
            return self._resume()
        if not isinstance(self._error, asyncio.CancelledError):
            self._error = error
        return self._resume_with_slot()

    def close(self) -> None:
        try:
            self._body.close()
        finally:
            self._shared.close()

    # --- for those who look where a Task waits -------------------------------------------

    @property
    def cr_frame(self) -> Any:
        return getattr(self._body, "cr_frame", None)

    @property
    def cr_await(self) -> Any:
        return getattr(self._body, "cr_await", None)

    # --- the slow way --------------------------------------------------------------------

    def _resume_with_slot(self) -> Any:
        """Resume the body, or wait until it has its slot."""
        slot_future = self._shared.slot_future_of_main()
        if slot_future is None:
            if self._slot_future is not None:
                self._shared.abandon(self._slot_future)
            return self._resume()
        if slot_future.done():
            self._error = self._error or slot_future.exception()  # there is no line to stand in
            return self._resume()
        self._slot_future = slot_future
        return next(slot_future.__await__())

    def _resume(self) -> Any:
        error, self._error, self._slot_future = self._error, None, None
        try:
            return self._body.send(None) if error is None else self._body.throw(error)
        except BaseException as end:
            self._ended(end)
            raise

    def _ended(self, end: BaseException) -> None:
        self._shared.close(None if isinstance(end, StopIteration) else end)
        if isinstance(end, SystemExit):  # a Task would let it end the loop, and all others with it
            raise ExitRequested from end


def _error_of(kind: Any, value: BaseException | None) -> BaseException:
    if isinstance(kind, BaseException):
        return kind
    return kind() if value is None else value
