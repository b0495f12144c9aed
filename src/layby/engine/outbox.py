"""The outbox: messages written with the change that caused them, and how they are offered."""

import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from msgspec import Struct

from layby.core.changes import Changes
from layby.core.model import Message, MessageKey, Millis, Promise
from layby.core.queries import OfferMessages
from layby.store.api import Store

logger = logging.getLogger(__name__)

PAGE_CHARS: Final = 4 * 2**20
AT_ONCE: Final = 10


class Outgoing(Struct, frozen=True):
    """A message and, for an unblock, the settled promise it is about."""

    message: Message
    promise: Promise | None = None
    taken_over: bool = False
    """Another process had begun to deliver it, and has gone: somebody may get it twice."""

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

    def wants(self, message: Message) -> bool:
        """Whether it can do something about this message now. Changes nothing."""
        ...

    def keep(self, messages: Sequence[Message]) -> None:
        """On a shared store: all that it may deliver now; any other is somebody else's, or gone.

        It releases those that it can do nothing about.
        """
        ...


@contextmanager
def delivering() -> Generator[None]:
    """Around whatever a `Delivery` is asked: its failure does not stop the writer."""
    try:
        yield
    except Exception:
        logger.exception("delivery failed; its messages stay in the outbox")


def outgoing_of(changes: Changes, offered: Sequence[Message]) -> list[Outgoing]:
    """What a commit has added to the outbox, as far as it is offered here."""
    return [
        Outgoing(message, changes.promises.get(message.id) if message.kind == "unblock" else None)
        for message in offered
    ]


def withdrawn_by(changes: Changes) -> list[MessageKey]:
    return [key for key, message in changes.messages.items() if message is None]


def stored_outbox(
    store: Store, offer: OfferMessages, now: Millis
) -> tuple[list[Outgoing], Message | None]:
    """A page of undelivered messages with what they are about; its last one, if there is more.

    The page is shorter when its messages are large: a value may have megabytes.
    """
    messages = store.messages(offer, now)
    outgoing: list[Outgoing] = []
    for start in range(0, len(messages), AT_ONCE):
        some = messages[start : start + AT_ONCE]
        outgoing += leased_outgoing(store, some, now)
        if sum(map(_size, outgoing)) > PAGE_CHARS and some[-1] is not messages[-1]:
            return outgoing, some[-1]
    return outgoing, messages[-1] if len(messages) == offer.limit else None


def announced_outbox(
    store: Store, messages: Iterable[Message], now: Millis
) -> Iterator[list[Outgoing]]:
    """Those of them that may be offered here, as soon as each portion is leased.

    If they are large, some are left: whoever looks at the outbox finds them within a second.
    Nobody waits until a lease is on the disk: a database that crashes forgets it at worst.
    """
    told = sorted(messages, key=lambda each: each.key)
    size = 0
    for start in range(0, len(told), AT_ONCE):
        with store.transaction(lazily=True):
            outgoing = leased_outgoing(store, told[start : start + AT_ONCE], now)
        yield outgoing
        size += sum(map(_size, outgoing))
        if size > PAGE_CHARS:
            return


def leased_outgoing(store: Store, messages: Sequence[Message], now: Millis) -> list[Outgoing]:
    """Those of them that may be offered here from now on."""
    return [Outgoing(*each) for each in store.lease_messages(messages, now)]


def _size(outgoing: Outgoing) -> int:
    promise = outgoing.promise
    return 0 if promise is None else len(promise.param) + len(promise.value)


class Nobody:
    """No receiver: messages stay in the outbox."""

    def committed(self, outgoing: Sequence[Outgoing], withdrawn: Sequence[MessageKey]) -> None:
        del outgoing, withdrawn

    def offered(self, outgoing: Sequence[Outgoing]) -> None:
        del outgoing

    def wants(self, message: Message) -> bool:
        del message
        return False

    def keep(self, messages: Sequence[Message]) -> None:
        del messages
