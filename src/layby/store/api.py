"""What the engine asks of a store. Synchronous; a store, or a reader, is owned by one thread."""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from layby.core.changes import Changes
from layby.core.footprint import Footprint
from layby.core.model import FAR, HeldKey, Message, Millis, Promise
from layby.core.queries import OfferMessages, Reader
from layby.core.rows import Rows
from layby.core.state import State
from layby.core.ticks import Tick
from layby.store.announcement import Announcement

Heard = Callable[[Announcement], None]
"""Hears of a commit elsewhere, on a thread of its own: must not block."""
Wants = Callable[[Message], bool]
"""Whether somebody here may get a message now."""


class LeasedMessage(NamedTuple):
    message: Message
    promise: Promise | None = None
    """What an unblock is about."""
    taken_over: bool = False
    """Another process had a lease on it and has not renewed it: somebody may get it twice."""


def about(messages: Iterable[Message]) -> set[str]:
    """The promises that go out with them."""
    return {each.id for each in messages if each.kind == "unblock"}


def leased(
    messages: Iterable[Message], promises: Iterable[Promise], taken_over: Collection[Message] = ()
) -> list[LeasedMessage]:
    by_id = {each.id: each for each in promises}
    return [
        LeasedMessage(
            each, by_id.get(each.id) if each.kind == "unblock" else None, each in taken_over
        )
        for each in messages
    ]


class StoreConflict(Exception):
    """Another process changed the same rows meanwhile; nothing was written.

    Steps are pure, so the batch is replayed: with these rows locked from the start, if there are
    any.
    """

    def __init__(
        self,
        why: str = "",
        ids: Collection[str] = (),
        pids: Collection[str] = (),
        limits: Collection[str] = (),
    ) -> None:
        super().__init__(why)
        self.ids = frozenset(ids)
        self.pids = frozenset(pids)
        self.limits = frozenset(limits)


class RowLocked(StoreConflict):
    """Somebody keeps a row locked for longer than we wait; to ask again at once would not help."""


class StoreReader(Protocol):
    """Reads beside the writer, by a connection of its own. Used by one thread at a time.

    A snapshot holds everything that was committed before it began, and nothing that is committed
    later. It never waits for a write, and no write waits for it. What is read within it is
    bounded: see `page_bounds`.
    """

    def snapshot(self, seconds: float) -> AbstractContextManager[Reader]:
        """A snapshot that begins now; after so many seconds, whatever it reads raises ReadRefused.

        The limit is there because a database keeps what a snapshot may still read.
        """
        ...

    def close(self) -> None: ...


class BatchStore(Protocol):
    """What a batch of commands asks."""

    def load(self, footprint: Footprint, now: Millis) -> Rows:
        """The rows a batch declares plus one hop; a constant number of statements.

        Raises `StoreConflict` when another process is in the way, and so do `save` and the commit.
        """
        ...

    def weigh(self, ids: Sequence[str]) -> dict[str, int]:
        """Those whose param and value have more than `LIGHT` characters or bytes, and how many."""
        ...

    def save(self, changes: Changes, now: Millis = 0) -> None:
        """Write them, and how far store time has come: it never goes back."""
        ...


class Store(BatchStore, Protocol):
    def dump(self) -> State:
        """Everything, as its owner sees it: for whoever checks it as a whole."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether other processes change it too."""
        ...

    def open_reader(self, give_way: Callable[[], None], /) -> StoreReader:
        """May be called from any thread, as often as there are threads that read.

        The reader calls `give_way` after each statement, before it goes on in Python: threads of
        one interpreter take turns, and the writer comes first.
        """
        ...

    def transaction(self, *, lazily: bool = False) -> AbstractContextManager[None]:
        """All or nothing; an exception inside rolls back.

        `lazily`: it is on disk with the next one that is not; a power cut may take it back.
        """
        ...

    def store_time(self) -> Millis:
        """How far store time has come; 0 in a new store."""
        ...

    def kept_secret(self, name: str, fresh: str) -> str:
        """The secret of this name; `fresh` if there was none, from now on. No request shows it."""
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

    def stored_promises(self, ids: Collection[str]) -> list[Promise]:
        """As they are now, without keeping anybody from changing them."""
        ...

    def announce(self, announcement: Announcement) -> None:
        """Tell other processes what was committed, if there can be any."""
        ...

    def share(self, heard: Heard, wants: Wants) -> None:
        """From now on, say what others announce, and ask which messages this process may offer."""
        ...

    def offered_here(self, changes: Changes) -> list[Message]:
        """Of the messages just written, those that this process offers."""
        ...

    def lease_messages(self, messages: Sequence[Message], now: Millis) -> list[LeasedMessage]:
        """Those of them that this process offers from now on, with what they are about."""
        ...

    def renew_messages(self, now: Millis) -> list[Message]:
        """On a shared store: all that this process offers; it goes on doing so."""
        ...

    def vouch(self, holder: HeldKey) -> None:
        """This process is that holder: others may notice at once when it dies."""
        ...

    def vouched(self) -> list[HeldKey]:
        """Living holders whose processes are there; others may be there too."""
        ...

    def release_messages(self, messages: Sequence[Message]) -> None:
        """This process does not offer them any more."""
        ...

    def living_pids(self) -> tuple[str, ...]:
        """Pids of holders that are not known to be gone."""
        ...

    def messages(self, offer: OfferMessages, now: Millis = FAR) -> list[Message]:
        """A page of the outbox, by address, id and kind; without what is leased by `now`."""
        ...

    def clear(self) -> None: ...

    def close(self) -> None: ...
