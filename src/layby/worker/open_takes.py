"""Which requests that may bring tasks have not been answered yet.

A task that the store has given to this worker, and that the worker does not know, is on its way as
long as such a request is open that was sent before the store was asked.
"""

from typing import Any


class OpenTakes:
    """A request counts as the object it is: it must live until it is answered."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        """In order of sending."""
        self.sent = 0
        """How many there have been: a mark for `are_answered`."""

    def begin(self, request: Any) -> None:
        self.sent += 1
        self._numbers[id(request)] = self.sent

    def end(self, request: Any) -> None:
        """It was answered, and what it brought has been accepted; or nobody waits for it now."""
        self._numbers.pop(id(request), None)

    def are_answered(self, mark: int) -> bool:
        """Whether all are over that had been sent when `sent` was `mark`."""
        oldest = next(iter(self._numbers.values()), None)
        return oldest is None or oldest > mark
