"""User code that a thread calls for an event loop."""

from collections.abc import Callable
from typing import Any


def thread_call(call: Callable[..., Any], *args: Any) -> Any:
    """A future takes no StopIteration, and who awaits it would wait for ever: as in a coroutine,
    it becomes a RuntimeError.
    """
    try:
        return call(*args)
    except StopIteration as error:
        raise RuntimeError("it raised StopIteration") from error
