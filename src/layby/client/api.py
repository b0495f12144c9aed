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


class LineClient(Client, Protocol):
    """A client whose commands apply in the order in which they were handed over."""

    def ask(self, request: Command | Query) -> "asyncio.Future[Reply]":
        """As `send`, for who does not wait: the request stands in line when this returns."""
        ...


class Listener:
    """Who waits for a promise; a base class, so that it is told from a future that is one too."""

    __slots__ = ()

    def heard(self, answer: Reply | BaseException) -> None:
        raise NotImplementedError


class Watching(Protocol):
    def cancel(self) -> object: ...


class WatchingClient(LineClient, Protocol):
    """What a worker needs: many thousands may wait for promises at once, so a wait is no future."""

    def watch(self, promise_id: str, listener: Listener) -> Watching:
        """The listener hears, in the loop of the client, when the promise is settled."""
        ...
