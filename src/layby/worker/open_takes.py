"""Which requests that may bring tasks have not been answered yet.

A task that the store has given to this worker, and that the worker does not know, is on its way as
long as such a request is open that was sent before the store was asked: unless that lasts so long
that the task is given up, and handed back.
"""

from typing import Any, Final

MOST_GIVEN_UP: Final = 1_000
"""How many tasks are remembered whose answers may still come: the oldest are forgotten."""


class OpenTakes:
    """A request counts as the object it is: it must live until it is answered."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        """In order of sending."""
        self.sent = 0
        """How many there have been: a mark for `are_answered`."""
        self.given_up: dict[str, int] = {}
        """Versions of tasks that were handed back as their answer did not come; it may still."""

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

    def give_up(self, task_id: str, version: int) -> None:
        """Its answer is not waited for any longer: the task is handed back."""
        self.given_up.pop(task_id, None)
        self.given_up[task_id] = version
        if len(self.given_up) > MOST_GIVEN_UP:
            del self.given_up[next(iter(self.given_up))]
