"""Which strands of a body wait through its handle, and what that means for the body's slot.

A body is one or more strands: its main coroutine, and every Task that has called the handle; for a
plain `def`, every thread that has. They share one slot. These are the rules:

1. A strand that waits through the handle needs no slot. When all do, the slot is released: at the
   moment when the last of them begins its wait, or when a strand that did not wait ends.
2. The main coroutine counts as waiting while it is suspended, whatever it awaits: it has a driver
   (see `body_driver`), so it cannot go on without the slot. Other strands and threads can, so they
   keep it.
3. A slot kept like this while another strand waits through the handle is kept for a second. Then it
   is lent: released though a strand may go on without it, because that strand may wait for
   something that only happens when somebody else has the slot. A slot that only main keeps is
   simply released then.
4. A strand whose wait is over goes on with the slot: at once if the body still holds it, else it
   stands in line. One that stands in line does not count as waiting: the slot granted to it is not
   released before it has gone on.
5. While no strand waits through the handle the slot is kept, whatever else is awaited.

This module only keeps track; whether the slot is held is up to `shared_slot`.
"""

from collections.abc import Hashable, Iterator
from enum import Enum, auto
from typing import Final

LEND_AFTER_S: Final = 1.0
"""How long a strand in a plain await keeps the slot while another waits through the handle."""

Strand = Hashable
MAIN: Final[Strand] = "main"


class MainState(Enum):
    PLAIN = auto()
    """It runs, or awaits something without the handle."""
    WAITING = auto()
    IN_LINE = auto()


PLAIN, WAITING, IN_LINE = MainState


class Strands:
    __slots__ = ("_main", "_not_waiting", "_others", "_waiting")

    def __init__(self, *, is_driven: bool) -> None:
        self._main = PLAIN if is_driven else None
        """None without a driver: then main is a strand like the others."""
        self._others: dict[Strand, bool] | None = None
        """Whether each of them waits through the handle. Most bodies have no others."""
        self._waiting = 0
        self._not_waiting = 0
        """How many others do not wait."""

    # --- what happens --------------------------------------------------------------------

    def register(self, strand: Strand) -> bool:
        """It calls the handle; True when it is new."""
        if self._is_driven(strand):
            return False
        if self._others is None:
            self._others = {}
        if strand in self._others:
            return False
        self._others[strand] = False
        self._not_waiting += 1
        return True

    def begin_wait(self, strand: Strand) -> None:
        """It begins to wait through the handle."""
        if self._is_driven(strand):
            self._waiting += self._main is not WAITING
            self._main = WAITING
        else:
            self.register(strand)
            self._set_waiting(strand, waits=True)

    def end_wait(self, strand: Strand) -> None:
        """Its wait is over: it stands in line until it goes on."""
        if self._is_driven(strand):
            self._waiting -= self._main is WAITING
            self._main = IN_LINE
        else:
            self._set_waiting(strand, waits=False)

    def join_line(self, strand: Strand) -> None:
        """It would go on after a plain await, but the body has no slot."""
        if self._is_driven(strand):
            self._main = IN_LINE
        else:
            self.register(strand)

    def resume(self, strand: Strand) -> None:
        if self._is_driven(strand):
            self._main = PLAIN

    def end(self, strand: Strand) -> None:
        """Its Task or thread has ended."""
        if self._others is not None and strand in self._others:
            self._set_waiting(strand, waits=False)
            del self._others[strand]
            self._not_waiting -= 1

    def _set_waiting(self, strand: Strand, *, waits: bool) -> None:
        if self._others is not None and self._others.get(strand, waits) is not waits:
            self._others[strand] = waits
            self._waiting += 1 if waits else -1
            self._not_waiting -= 1 if waits else -1

    def _is_driven(self, strand: Strand) -> bool:
        return strand is MAIN and self._main is not None

    # --- what it means -------------------------------------------------------------------

    @property
    def is_slot_needed(self) -> bool:
        """Whether a strand may go on at any time, or none waits; else the slot is released."""
        return self._waiting == 0 or self._not_waiting > 0 or self._main is IN_LINE

    @property
    def is_lendable(self) -> bool:
        """Whether the slot may be kept for only a second: some strand waits through the handle."""
        return self._waiting > 0

    @property
    def may_main_resume(self) -> bool:
        """Whether main may be resumed without the slot: in a wait, the handle reclaims the slot."""
        return self._main is WAITING

    def __iter__(self) -> Iterator[Strand]:
        """All strands except a main with a driver."""
        return iter(self._others or ())
