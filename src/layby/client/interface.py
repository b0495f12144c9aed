"""The one way to ask layby for something, wherever the engine runs."""

import asyncio
from typing import Protocol

from layby.core.commands import Command
from layby.core.queries import Query
from layby.core.replies import Reply


class Client(Protocol):
    async def send(self, request: Command | Query) -> Reply:
        """Refusals are replies; an exception means the store or the connection failed."""
        ...

    async def close(self) -> None: ...


class OrderedClient(Client, Protocol):
    """A client whose commands apply in the order in which they were handed over."""

    def ask(self, request: Command | Query) -> "asyncio.Future[Reply]":
        """Like `send`, without waiting: the request is queued when this returns."""
        ...


class PromiseListener:
    """Waits for a promise. A base class, so that `isinstance` tells it from a future."""

    __slots__ = ()

    def heard(self, answer: Reply | BaseException) -> None:
        raise NotImplementedError


class Watching(Protocol):
    def cancel(self) -> object: ...


class WatchingClient(OrderedClient, Protocol):
    """What a worker needs. It may watch thousands of promises, so a watch is not a future."""

    def watch(self, promise_id: str, listener: PromiseListener) -> Watching:
        """Call `listener.heard`, in the client's event loop, when the promise is settled."""
        ...
