"""The deadlines of the waits of one task: fixed by the store when each wait first begins.

The worker sends the length together with `Deferred`, and uses its own estimate until the answer
gives the deadline. What the store has not acknowledged is sent again with the next annotation.
"""

from collections.abc import Awaitable, Callable, Mapping

from layby.core.model import Millis

AskLater = Callable[[str, Millis], Awaitable[Millis | None]]


async def _nobody_moves_it(_: str, __: Millis) -> None:
    """Of waits that no store knows."""


class WaitDeadline:
    """Of one wait. `moved` is called when the store's deadline differs from our estimate."""

    __slots__ = ("_ask", "_end", "deadline", "moved", "record_id")

    def __init__(
        self, record_id: str, deadline: Millis, end: Callable[[str], None], ask: AskLater
    ) -> None:
        self._ask = ask
        self._end = end
        self.record_id = record_id
        self.deadline = deadline
        self.moved: Callable[[Millis], None] | None = None

    def ended(self) -> None:
        self._end(self.record_id)

    async def later(self, at: Millis) -> Millis | None:
        """By our clock its time is up. Where the deadline is, if it was moved; else None."""
        return await self._ask(self.record_id, at)


class WaitDeadlines:
    """`send_soon` is called when there is something that no annotation has carried yet."""

    __slots__ = ("_begun", "_ended", "_fixed", "_heard", "_moved", "_send_soon", "has_unsent")

    def __init__(
        self,
        fixed: Mapping[str, Millis],
        send_soon: Callable[[], None],
        moved: frozenset[str] = frozenset(),
    ) -> None:
        """`moved`: waits whose deadlines people have moved before this run of the body."""
        self._fixed = dict(fixed)
        self._moved = moved
        self._heard = frozenset[str]()
        """Waits of which we have heard where their deadlines are: an answer may be older."""
        self._send_soon = send_soon
        self._begun: dict[str, WaitDeadline] = {}
        self._ended: tuple[str, ...] = ()
        self.has_unsent = False

    def fixed(self, record_id: str) -> Millis | None:
        return self._fixed.get(record_id)

    def begin(
        self,
        record_id: str,
        estimate: Millis,
        end: Callable[[str], None],
        ask: AskLater = _nobody_moves_it,
    ) -> WaitDeadline:
        """A wait begins, or continues if an earlier run of the body began it."""
        fixed = self._fixed.get(record_id)
        deadline = WaitDeadline(record_id, estimate if fixed is None else fixed, end, ask)
        if fixed is None:
            self._begun[record_id] = deadline
            self._changed()
        return deadline

    def move(self, record_id: str, at: Millis) -> bool:
        """A person has moved its deadline in the store; False if the wait has ended here."""
        if record_id not in self._fixed and record_id not in self._begun:
            return False
        self._begun.pop(record_id, None)
        self._fixed[record_id] = at
        self._moved |= {record_id}
        return True

    def heard(self, record_id: str) -> None:
        """From now on, whoever moves this deadline says so."""
        self._heard |= {record_id}

    def moved_unheard(self, stored: Mapping[str, Millis]) -> list[tuple[str, Millis]]:
        """What people have moved in the store, of which the word has overtaken the task, or got
        lost.
        """
        known = self._fixed
        return [
            (key, at)
            for key, at in stored.items()
            if key not in self._heard and known.get(key, at) != at
        ]

    def is_moved(self, record_id: str) -> bool:
        """Whether it does not last as long as its call says: a person has decided otherwise."""
        return record_id in self._moved

    def end(self, record_id: str) -> None:
        was_begun = self._begun.pop(record_id, None) is not None
        was_fixed = self._fixed.pop(record_id, None) is not None
        if was_begun or was_fixed:
            self._ended = (*self._ended, record_id)
            self._changed()

    def begun(self, now: Millis) -> dict[str, Millis]:
        """What is left of each wait that the store does not know yet."""
        return {key: max(0, each.deadline - now) for key, each in self._begun.items()}

    def ended(self) -> tuple[str, ...]:
        return self._ended

    def acknowledge(self, stored: Mapping[str, Millis], ended: tuple[str, ...]) -> None:
        """The store knows now what an annotation has carried."""
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
