"""Owns the values that travel through a graph, and their history."""

from typing import Any, NamedTuple

from msgspec import Struct


class Lineage(NamedTuple):
    """What a publication inherits from the invocation that made it."""

    correlation_id: str = ""
    transaction_id: str = ""
    epoch: int = 0


NO_LINEAGE = Lineage()

Entry = tuple[Any, Lineage]
"""A payload on its way, with its lineage; the channel knows the rest of the history."""


class MessageMetadata(Struct, frozen=True):
    """Where a message comes from. Only the last two are of the one edge it came by."""

    correlation_id: str = ""
    """Of the first message of the chain, kept by all that follow from it."""
    transaction_id: str = ""
    epoch_id: int = 0
    """The epoch of the invocation that published it, or submitted the work; 0: outside."""
    source_component: str = ""
    source_port: str = ""
    causation_id: str = ""
    """This message itself, `channel#sequence`: the cause of whatever its reader does."""
    trigger_kind: str = ""
    """The kind of graph trigger by which its reader runs."""


class Message(Struct, frozen=True):
    payload: Any
    metadata: MessageMetadata = MessageMetadata()
    sequence: int = 0


class PublishResult(NamedTuple):
    """The answer to a publication. Its truth is `accepted`."""

    accepted: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.accepted


ACCEPTED = PublishResult(accepted=True)


class TaskFailed(Struct, frozen=True):
    """On an error port: the work for `port` raised."""

    component: str
    port: str
    task_id: int
    error: str


class PublicationRefused(Struct, frozen=True):
    """On an error port: what was published on `port` was not accepted by every edge of it."""

    component: str
    port: str
    reason: str
    payload: Any = None


Failure = TaskFailed | PublicationRefused
FAILURES = (TaskFailed, PublicationRefused)
