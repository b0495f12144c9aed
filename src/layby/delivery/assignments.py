"""Messages that have been assigned to a receiver and are still in the outbox."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from layby.core.model import Message, MessageKey
from layby.engine.outbox import Outgoing


class Receiver(Protocol):
    group: str
    id: str

    @property
    def has_room(self) -> bool: ...

    def receive(self, outgoing: Outgoing) -> None:
        """Must not block. Call `Router.arrived` once the message has arrived."""
        ...


class Assignment(NamedTuple):
    outgoing: Outgoing
    receiver: Receiver


class Assignments:
    """At most one receiver per message; indexed by message and by receiver."""

    def __init__(self) -> None:
        self._by_key: dict[MessageKey, Assignment] = {}
        self._keys_of: dict[Receiver, set[MessageKey]] = {}

    def __contains__(self, message: object) -> bool:
        """This version of it."""
        if not isinstance(message, Message):
            return False
        there = self._by_key.get(message.key)
        return there is not None and there.outgoing.message == message

    def __iter__(self) -> Iterator[Message]:
        return iter([each.outgoing.message for each in self._by_key.values()])

    def get(self, key: MessageKey) -> Assignment | None:
        return self._by_key.get(key)

    def put(self, outgoing: Outgoing, receiver: Receiver) -> None:
        self.drop(outgoing.key)
        self._by_key[outgoing.key] = Assignment(outgoing, receiver)
        self._keys_of.setdefault(receiver, set()).add(outgoing.key)

    def drop(self, key: MessageKey) -> None:
        assignment = self._by_key.pop(key, None)
        if assignment is None:
            return
        keys = self._keys_of[assignment.receiver]
        keys.discard(key)
        if not keys:
            del self._keys_of[assignment.receiver]

    def drop_all_to(self, receiver: Receiver) -> Sequence[Outgoing]:
        """Returns the messages that have no receiver now."""
        keys = self._keys_of.pop(receiver, ())
        return [self._by_key.pop(key).outgoing for key in keys]
