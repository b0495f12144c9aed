"""Receivers that do not take a message, at least not now: they are not asked again for a while."""

from collections.abc import Callable, Collection
from typing import Final

from msgspec import Struct

from layby.core.model import Message, MessageKey
from layby.delivery.assignments import Receiver

REMEMBERED_S: Final = 30.0
"""By then a task that nobody has taken is dispatched again."""


class Decline(Struct):
    version: int
    until: float
    receivers: set[Receiver]


class Declines:
    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed
        self._by_key: dict[MessageKey, Decline] = {}

    def add(self, message: Message, receiver: Receiver) -> None:
        there = self._by_key.get(message.key)
        if there is None or there.version != message.version:
            there = self._by_key[message.key] = Decline(message.version, 0.0, set())
        there.receivers.add(receiver)
        there.until = self._elapsed() + REMEMBERED_S

    def of(self, message: Message) -> Collection[Receiver]:
        there = self._by_key.get(message.key)
        return () if there is None or there.version != message.version else there.receivers

    def forget(self, key: MessageKey) -> None:
        self._by_key.pop(key, None)

    def forget_receiver(self, receiver: Receiver) -> None:
        for each in self._by_key.values():
            each.receivers.discard(receiver)

    def forget_old(self) -> None:
        """Nobody says here that another process has dispatched a task again."""
        now = self._elapsed()
        self._by_key = {key: each for key, each in self._by_key.items() if now < each.until}
