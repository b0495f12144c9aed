"""The outbox: messages written with the change that caused them, and what is offered of it."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from layby.core.changes import Changes
from layby.core.commands import OfferMessages
from layby.core.model import Message, MessageKey, Millis, Promise
from layby.core.rows import Footprint
from layby.store.api import Store


class Outgoing(Struct, frozen=True):
    """A message and, for an unblock, the settled promise it is about."""

    message: Message
    promise: Promise | None = None

    @property
    def key(self) -> MessageKey:
        return self.message.key


class Delivery(Protocol):
    """Called on the writer's thread after commit: must not block.

    What it has delivered it reports with `Engine.forget`; the rest stays in the outbox.
    """

    def committed(self, outgoing: Sequence[Outgoing], withdrawn: Sequence[MessageKey]) -> None:
        """New messages, and keys whose messages have become stale."""
        ...

    def offered(self, outgoing: Sequence[Outgoing]) -> None:
        """Messages that are in the outbox already; some may be under way."""
        ...


def outgoing_of(changes: Changes) -> list[Outgoing]:
    """What a commit has added to the outbox."""
    return [
        Outgoing(message, changes.promises.get(message.id) if message.kind == "unblock" else None)
        for message in changes.messages.values()
        if message is not None
    ]


def withdrawn_by(changes: Changes) -> list[MessageKey]:
    return [key for key, message in changes.messages.items() if message is None]


def stored_outbox(store: Store, offer: OfferMessages, now: Millis) -> list[Outgoing]:
    """A page of undelivered messages, with the promises their unblocks are about."""
    messages = store.messages(offer)
    about = {message.id for message in messages if message.kind == "unblock"}
    promises = store.load(Footprint(ids=about), now).promises if about else {}
    return [
        Outgoing(message, promises.get(message.id) if message.kind == "unblock" else None)
        for message in messages
    ]


class Nobody:
    """No receiver: messages stay in the outbox."""

    def committed(self, outgoing: Sequence[Outgoing], withdrawn: Sequence[MessageKey]) -> None:
        del outgoing, withdrawn

    def offered(self, outgoing: Sequence[Outgoing]) -> None:
        del outgoing
