"""What the engine asks of a store. Synchronous, owned by one thread."""

from contextlib import AbstractContextManager
from typing import Protocol

from layby.core.changes import Changes
from layby.core.footprint import Footprint
from layby.core.model import Message, Millis
from layby.core.queries import OfferMessages, Reader
from layby.core.rows import Rows
from layby.core.ticks import Tick


class Store(Reader, Protocol):
    def transaction(self, *, lazily: bool = False) -> AbstractContextManager[None]:
        """All or nothing; an exception inside rolls back.

        `lazily`: it is on disk with the next one that is not; a power cut may take it back.
        """
        ...

    def load(self, footprint: Footprint, now: Millis) -> Rows:
        """The rows a batch declares plus one hop; a constant number of statements."""
        ...

    def save(self, changes: Changes, now: Millis = 0) -> None:
        """Write them, and how far store time has come: it never goes back."""
        ...

    def store_time(self) -> Millis:
        """How far store time has come; 0 in a new store."""
        ...

    def due(self, now: Millis, limit: int, wall: Millis | None = None) -> list[Tick]:
        """What is due by `now`, at most `limit` rows of each sort.

        Occurrences of schedules also wait for the `wall` clock, if that is behind.
        """
        ...

    def earliest(self) -> Millis:
        """The earliest deadline of any row except schedules; FAR when there is none."""
        ...

    def next_occurrence(self) -> Millis:
        """When the next schedule is due; FAR when there is none."""
        ...

    def living_pids(self) -> tuple[str, ...]:
        """Pids of holders that are not known to be gone."""
        ...

    def messages(self, offer: OfferMessages) -> list[Message]:
        """A page of the outbox, by address, id and kind."""
        ...

    def clear(self) -> None: ...

    def close(self) -> None: ...
