"""What a store that no other process writes answers where others would be asked or told."""

from collections.abc import Collection, Sequence

from layby.core.changes import Changes
from layby.core.model import HeldKey, Message, Millis, Promise
from layby.store.announcement import Announcement
from layby.store.api import Heard, LeasedMessage, Wants, about, leased


class Unshared:
    """There are no others: every message is offered here, and nothing is written for that."""

    is_shared = False

    def announce(self, announcement: Announcement) -> None: ...

    def share(self, heard: Heard, wants: Wants) -> None: ...

    def offered_here(self, changes: Changes) -> list[Message]:
        return [each for each in changes.messages.values() if each is not None]

    def lease_messages(self, messages: Sequence[Message], now: Millis) -> list[LeasedMessage]:
        del now
        ids = about(messages)
        return leased(messages, self.stored_promises(ids) if ids else ())

    def stored_promises(self, ids: Collection[str]) -> list[Promise]:
        raise NotImplementedError

    def renew_messages(self, now: Millis) -> list[Message]:
        del now
        return []

    def vouch(self, holder: HeldKey) -> None: ...

    def vouched(self) -> list[HeldKey]:
        return []

    def release_messages(self, messages: Sequence[Message]) -> None: ...
