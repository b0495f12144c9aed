"""Drives the main coroutine of a body: it is resumed only while the body holds its slot.

Whatever main awaits, it is resumed from here. Without the slot the body stands in line first; an
exception for main (from what it awaited, or a cancel by `asyncio.timeout` or a TaskGroup) is kept
and thrown when the slot is held. Asyncio has done its own counting by then: `Task.cancelling()`
counts each cancel, and one exception is thrown for all that came meanwhile, as asyncio itself does
between two steps of a Task. A body that is being ended is resumed at once.

It is an object and not a coroutine: another frame for every parked task would cost memory.
"""

import asyncio
from typing import Any, Self

from layby.worker.exit_requests import ExitRequested, is_exit_request
from layby.worker.shared_slot import SharedSlot, SlotFuture


class BodyDriver:
    """Can be awaited once; or be the coroutine of a Task that `set_main` is called with."""

    __slots__ = ("_body", "_error", "_shared", "_slot_future")

    def __init__(self, body: Any, shared: SharedSlot) -> None:
        self._body = body if hasattr(body, "send") else body.__await__()
        self._shared = shared
        self._slot_future: SlotFuture | None = None
        """What it waits for in line, before the body is resumed."""
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
            self._error = self._error or error  # reclaiming has failed: there is no slot
            return self._resume()
        if not isinstance(self._error, asyncio.CancelledError):
            self._error = error
        return self._resume_with_slot()

    def close(self) -> None:
        try:
            self._body.close()
        finally:
            self._shared.close()

    # --- for debuggers that show where a Task waits --------------------------------------

    @property
    def cr_frame(self) -> Any:
        return getattr(self._body, "cr_frame", None)

    @property
    def cr_await(self) -> Any:
        return getattr(self._body, "cr_await", None)

    # --- the slow path -------------------------------------------------------------------

    def _resume_with_slot(self) -> Any:
        """Resume the body, or wait until it holds its slot."""
        slot_future = self._shared.slot_future_of_main()
        if slot_future is None:
            if self._slot_future is not None:
                self._shared.abandon(self._slot_future)
            return self._resume()
        if slot_future.done():
            self._error = self._error or slot_future.exception()  # there is no slot to wait for
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
        if is_exit_request(end):  # a Task would let it end the loop, and everything on it
            raise ExitRequested from end


def _error_of(kind: Any, value: BaseException | None) -> BaseException:
    if isinstance(kind, BaseException):
        return kind
    return kind() if value is None else value
