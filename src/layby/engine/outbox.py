"""The outbox: messages written with the change that caused them, and how they are offered."""

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct

from layby.core.changes import Changes
from layby.core.model import Message, MessageKey, Promise
from layby.core.queries import OfferMessages
from layby.store.api import Store

PAGE_CHARS: Final = 4 * 2**20
AT_ONCE: Final = 10


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
        """Messages that are already in the outbox; some may be under way."""
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


def stored_outbox(store: Store, offer: OfferMessages) -> tuple[list[Outgoing], bool]:
    """A page of undelivered messages with what they are about, and whether there is more.

    The page is shorter when its messages are large: a value may have megabytes.
    """
    messages = store.messages(offer)
    outgoing: list[Outgoing] = []
    for start in range(0, len(messages), AT_ONCE):
        outgoing += _with_promises(store, messages[start : start + AT_ONCE])
        if sum(map(_size, outgoing)) > PAGE_CHARS and len(outgoing) < len(messages):
            return outgoing, True
    return outgoing, len(messages) == offer.limit


def _with_promises(store: Store, messages: Sequence[Message]) -> list[Outgoing]:
    about = {message.id for message in messages if message.kind == "unblock"}
    promises = {each.id: each for each in store.stored_promises(about)} if about else {}
    return [
        Outgoing(message, promises.get(message.id) if message.kind == "unblock" else None)
        for message in messages
    ]


def _size(outgoing: Outgoing) -> int:
    promise = outgoing.promise
    return 0 if promise is None else len(promise.param) + len(promise.value)


class Nobody:
    """No receiver: messages stay in the outbox."""

    def committed(self, outgoing: Sequence[Outgoing], withdrawn: Sequence[MessageKey]) -> None:
        del outgoing, withdrawn

    def offered(self, outgoing: Sequence[Outgoing]) -> None:
        del outgoing
