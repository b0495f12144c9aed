"""Messages after commit: who takes them, and how those nobody takes are kept."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from msgspec import Struct

from layby.core.changes import Changes
from layby.core.model import Message, MessageKey, Millis, Promise
from layby.core.rows import Footprint
from layby.store.api import Store


class Outgoing(Struct, frozen=True):
    """A message and, for an unblock, the settled promise it is about."""

    message: Message
    promise: Promise | None = None


class Delivery(Protocol):
    """Called on the writer's thread: must not block. What it returns is removed from the outbox."""

    def __call__(self, outgoing: Sequence[Outgoing], /) -> Collection[MessageKey]: ...


class Inboxes:
    """Delivery inside this process: an open inbox takes everything sent to its address."""

    def __init__(self) -> None:
        self._inboxes: dict[str, Callable[[Outgoing], None]] = {}

    def open(self, address: str, receive: Callable[[Outgoing], None]) -> None:
        self._inboxes[address] = receive

    def close(self, address: str) -> None:
        self._inboxes.pop(address, None)

    def __call__(self, outgoing: Sequence[Outgoing]) -> Collection[MessageKey]:
        return [each.message.key for each in outgoing if self._deliver(each)]

    def _deliver(self, outgoing: Outgoing) -> bool:
        receive = self._inboxes.get(outgoing.message.address)
        if receive is None:
            return False
        receive(outgoing)
        return True


def outgoing_of(changes: Changes) -> list[Outgoing]:
    """What a commit has added to the outbox."""
    return [
        Outgoing(message, changes.promises.get(message.id) if message.kind == "unblock" else None)
        for message in changes.messages.values()
        if message is not None
    ]


def stored_outbox(store: Store, limit: int, now: Millis) -> list[Outgoing]:
    """The oldest undelivered messages, with the promises their unblocks are about."""
    messages = store.messages(limit)
    about = {message.id for message in messages if message.kind == "unblock"}
    promises = store.load(Footprint(ids=about), now).promises if about else {}
    return [
        Outgoing(message, promises.get(message.id) if message.kind == "unblock" else None)
        for message in messages
    ]


def nobody(_: Sequence[Outgoing], /) -> Collection[MessageKey]:
    """No receiver: messages stay in the outbox."""
    return ()
