"""What takes long to make, beside the event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def made_beside(make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Made in a thread for which nobody waits, neither who is cancelled nor a process that ends.

    `undo`: called with what was made when nobody waited for it any more.
    """
    made = Future[T]()
    made.set_running_or_notify_cancel()  # a call that has begun cannot be cancelled
    threading.Thread(target=_make, args=(make, made), name="layby-opening", daemon=True).start()
    try:
        return await asyncio.wrap_future(made)
    except asyncio.CancelledError:
        made.add_done_callback(partial(_undo, undo))
        raise


def _make(make: Callable[[], T], made: Future[T]) -> None:
    try:
        found = make()
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        made.set_exception(error)
    else:
        made.set_result(found)


def _undo(undo: Callable[[T], object], made: Future[T]) -> None:
    if made.exception() is None:
        undo(made.result())
