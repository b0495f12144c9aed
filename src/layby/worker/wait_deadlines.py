"""Until when the waits of one task last: fixed by the store when each of them first begins.

The worker says how long, together with `Deferred`, and goes by its own estimate until the answer
says until when. Whatever the store has not acknowledged is told again with the next annotation.
"""

from collections.abc import Callable, Mapping

from layby.core.model import Millis


class WaitDeadline:
    """Of one wait. `moved` is called when the store says something else than we believed."""

    __slots__ = ("_end", "deadline", "moved", "record_id")

    def __init__(self, record_id: str, deadline: Millis, end: Callable[[str], None]) -> None:
        self._end = end
        self.record_id = record_id
        self.deadline = deadline
        self.moved: Callable[[Millis], None] | None = None

    def ended(self) -> None:
        self._end(self.record_id)


class WaitDeadlines:
    """`tell_soon` is called when there is something that no annotation has carried yet."""

    __slots__ = ("_begun", "_ended", "_fixed", "_send_soon", "has_unsent")

    def __init__(self, fixed: Mapping[str, Millis], send_soon: Callable[[], None]) -> None:
        self._fixed = dict(fixed)
        self._send_soon = send_soon
        self._begun: dict[str, WaitDeadline] = {}
        self._ended: tuple[str, ...] = ()
        self.has_unsent = False

    def fixed(self, record_id: str) -> Millis | None:
        return self._fixed.get(record_id)

    def begin(self, record_id: str, estimate: Millis, end: Callable[[str], None]) -> WaitDeadline:
        """A wait begins, or goes on that an earlier life began."""
        fixed = self._fixed.get(record_id)
        deadline = WaitDeadline(record_id, estimate if fixed is None else fixed, end)
        if fixed is None:
            self._begun[record_id] = deadline
            self._changed()
        return deadline

    def end(self, record_id: str) -> None:
        was_begun = self._begun.pop(record_id, None) is not None
        was_fixed = self._fixed.pop(record_id, None) is not None
        if was_begun or was_fixed:
            self._ended = (*self._ended, record_id)
            self._changed()

    def begun(self, now: Millis) -> dict[str, Millis]:
        """How much is left of what the store does not know yet."""
        return {key: max(0, each.deadline - now) for key, each in self._begun.items()}

    def ended(self) -> tuple[str, ...]:
        return self._ended

    def acknowledge(self, stored: Mapping[str, Millis], ended: tuple[str, ...]) -> None:
        """What an annotation has carried is known there now."""
        for record_id, at in stored.items():
            begun = self._begun.pop(record_id, None)
            if begun is None:
                continue
            self._fixed[record_id] = at
            if begun.moved is not None and begun.deadline != at:
                begun.moved(at)
            begun.deadline = at
        if ended:
            self._ended = tuple(each for each in self._ended if each not in ended)

    def _changed(self) -> None:
        if not self.has_unsent:
            self.has_unsent = True
            self._send_soon()
