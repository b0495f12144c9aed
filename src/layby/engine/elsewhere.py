"""What other processes commit on a store that several share.

They tell, after their commits; this comes through the writer's queue, so that it never falls
between reading a promise and watching it. Whatever is not heard is found by looking, every second.
"""

import random
from collections.abc import Sequence
from typing import Final, Protocol

from layby.core.kinds import EngineControl, Sender, declare
from layby.core.model import HeldKey, Message, Millis
from layby.core.replies import OK, Empty, Reply
from layby.engine.items import Answer, Item
from layby.engine.waiting import Watches
from layby.store.announcement import Announcement
from layby.store.api import Store

LOOK_MS: Final[Millis] = 1_000
"""How often everything is looked at again."""
WATCHED_AT_ONCE: Final = 10_000
"""Watched promises that are looked at again each time."""
ADDRESSES_AT_ONCE: Final = 32
GONE_MS: Final[Millis] = 2_000
"""A process that is not seen for this long has died."""
BUSY_MS: Final = (5, 20)
"""When what is due is looked at again after another process was busy with it."""


class HearingEngine(Protocol):
    def hear(self, announcement: Announcement) -> None: ...

    def release(self, messages: Sequence[Message]) -> None: ...


@declare("engine.hear", sender=Sender.INTERNAL, answer=Empty)
class HearCommit(EngineControl, frozen=True):
    """Another process has committed this."""

    announcement: Announcement

    def control(self, controlled: HearingEngine) -> Reply:
        controlled.hear(self.announcement)
        return OK


@declare("engine.release", sender=Sender.INTERNAL, answer=Empty)
class ReleaseMessages(EngineControl, frozen=True):
    """Nobody here can take these messages now: other processes may offer them."""

    messages: tuple[Message, ...]

    def control(self, controlled: HearingEngine) -> Reply:
        controlled.release(self.messages)
        return OK


class Vouched:
    """Processes that others can see on the database, and which of them are gone.

    Who is not seen any more may only have lost a connection, and comes back. So nobody is gone
    before `GONE_MS`; and after a time in which nobody was looked for, everything begins anew.
    """

    def __init__(self) -> None:
        self._seen: dict[HeldKey, Millis] = {}
        self._looked_at: Millis = 0

    def gone(self, there: Sequence[HeldKey], now: Millis) -> list[HeldKey]:
        """Those that were there, and have not been for a while."""
        if now - self._looked_at > 2 * LOOK_MS:
            self.begin_anew()
        self._looked_at = now
        self._seen |= dict.fromkeys(there, now)
        gone = [key for key, at in self._seen.items() if now - at >= GONE_MS]
        for key in gone:
            del self._seen[key]
        return gone

    def begin_anew(self) -> None:
        """The database is away, or was: perhaps for others too."""
        self._seen.clear()


class OtherProcesses:
    """What this one looks at for them, and does for them, on the writer's thread."""

    def __init__(self, store: Store, watches: Watches) -> None:
        self._store = store
        self._watches = watches
        self._vouched = Vouched()
        self._looked_until = ""
        """How far the promises that are watched were looked at again."""

    def next_watched(self) -> list[str]:
        """All that are watched, or the next portion of very many."""
        found = self._watches.next_watched(self._looked_until, WATCHED_AT_ONCE)
        self._looked_until = found[-1] if len(found) == WATCHED_AT_ONCE else ""
        return found

    def settled(self, ids: Sequence[str]) -> list[tuple[Item, Answer]]:
        """The answers to who watches these and need not wait any longer.

        Only what is stored as settled counts: past its deadline, somebody is about to do it.
        """
        if not ids:
            return []
        with self._store.transaction():
            found = self._store.stored_promises(ids)
        return list(self._watches.settled(each for each in found if not each.is_pending))

    def renewed_messages(self, now: Millis) -> list[Message]:
        """All that this process may go on offering: others have taken back the rest."""
        with self._store.transaction():
            return self._store.renew_messages(now)

    def release(self, messages: Sequence[Message]) -> None:
        """Nobody here can take them: let others offer them."""
        with self._store.transaction():
            self._store.release_messages(messages)
        self._store.announce(Announcement(addresses=frozenset(each.address for each in messages)))

    def gone(self, now: Millis) -> list[HeldKey]:
        """Holders that have died. A hint: without it they are lost when their leases are over."""
        with self._store.transaction():
            there = self._store.vouched()
        return self._vouched.gone(there, now)

    def begin_anew(self) -> None:
        self._vouched.begin_anew()


def busy_until(now: Millis, times: int) -> Millis:
    """Another process does what is due: look again soon, and later each time it still does."""
    return now + min(random.randint(*BUSY_MS) * 2 ** min(times, 6), LOOK_MS)  # noqa: S311
