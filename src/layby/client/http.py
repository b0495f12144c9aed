"""The client of a server: the same answers as from an engine in this process.

Commands of one process apply in the order in which they were sent: they leave in line, one batch
at a time, and whatever is sent while a batch is under way goes with the next. Requests that wait
on the server, and reads that may take long, have a connection each.

A request without an answer is sent again. If an earlier copy of it may have arrived and it is
then refused with 409, reading shows whether that was our own doing (`doubt`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from layby.client.claims import releases
from layby.client.doubt import resolved
from layby.client.inbox import Inbox
from layby.client.transport import ANSWER_S, Transport, Unreachable
from layby.core.commands import Command, Query, Take, WatchPromise
from layby.core.replies import Reply
from layby.errors import EngineStopped, StoreUnavailable
from layby.wire import answers
from layby.wire.ask import ask, ask_all

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 30.0
"""How long a request is sent again before its sender hears that nobody answers."""
PAUSES_S: Final = (0.02, 0.1, 0.25, 0.5, 1.0)
BATCH: Final = 500
BATCH_BYTES: Final = 1_000_000


class Letter:
    """A request on its way."""

    __slots__ = ("answer", "body", "is_doubtful", "request")

    def __init__(self, request: Command | Query, token: str | None) -> None:
        self.request = request
        self.body = ask(request, "0", token)
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.is_doubtful = False
        """An earlier copy may have arrived."""

    def tell(self, reply: Reply | BaseException) -> None:
        if self.answer.done():
            return
        if isinstance(reply, Reply):
            self.answer.set_result(reply)
        else:
            self.answer.set_exception(reply)


class HttpClient:
    """Belongs to the event loop it is created in. `url`: `http://host:port` or `unix:/a.sock`."""

    def __init__(self, url: str, token: str | None = None, patience: float = PATIENCE_S) -> None:
        self.transport = Transport(url, token)
        self.inbox: Inbox | None = None
        """Who has one hears of settled promises there; others let a request wait for each."""
        self._token = token
        self._patience = patience
        self._line: deque[Letter] = deque()
        self._carrying: asyncio.Task[None] | None = None
        self._is_closed = False

    async def send(self, request: Command | Query) -> Reply:
        if self._is_closed:
            raise EngineStopped("the connection to the server has been closed")
        if isinstance(request, WatchPromise) and self.inbox is not None:
            return await self.inbox.watch(request.id)
        letter = Letter(request, self._token)
        if isinstance(request, Query | WatchPromise) or _waits(request):
            return await self._alone(letter)
        self._line.append(letter)
        if self._carrying is None:
            self._carrying = asyncio.create_task(self._carry())
        return await letter.answer

    async def close(self) -> None:
        """What is in line leaves first, if that takes no time."""
        self._is_closed = True
        if self._carrying is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._carrying), 1.0)
            self._carrying.cancel()
        for letter in self._line:
            letter.tell(EngineStopped("the connection to the server has been closed"))
        await self.transport.close()

    # --- in line -------------------------------------------------------------------------

    async def _carry(self) -> None:
        try:
            while self._line:
                await self._deliver(self._next_batch())
        finally:
            self._carrying = None

    def _next_batch(self) -> list[Letter]:
        batch = [self._line.popleft()]
        size = len(batch[0].body)
        while self._line and len(batch) < BATCH and size + len(self._line[0].body) <= BATCH_BYTES:
            batch.append(self._line.popleft())
            size += len(batch[-1].body)
        return batch

    async def _deliver(self, batch: Sequence[Letter]) -> None:
        try:
            body = await self._patiently(batch, ANSWER_S)
            replies = _split(body, batch)
            for letter, reply in zip(batch, replies, strict=True):
                await self._conclude(letter, reply)
        except Exception as failure:  # noqa: BLE001 - whatever it was, whoever asked is answered
            for letter in batch:
                letter.tell(failure)

    async def _conclude(self, letter: Letter, reply: Reply) -> None:
        if reply.status == 503:
            reply = await self._alone(letter)  # nothing was written: once more, in its turn
        elif reply.status == 409 and letter.is_doubtful:
            reply = await resolved(self._read, letter.request, reply)
        if letter.answer.cancelled():
            for release in releases(reply):
                self._line.append(Letter(release, self._token))
        letter.tell(reply)

    # --- one by one ----------------------------------------------------------------------

    async def _read(self, request: Command | Query) -> Reply:
        return await self._alone(Letter(request, self._token))

    async def _alone(self, letter: Letter) -> Reply:
        patience = ANSWER_S + _waits(letter.request) / 1000
        if isinstance(letter.request, WatchPromise):
            patience = 86_400.0
        for pause in _pauses(self._patience):
            body = await self._patiently([letter], patience)
            reply = answers.read(letter.request, body)
            if reply.status == 409 and letter.is_doubtful:
                return await resolved(self._read, letter.request, reply)
            if reply.status != 503:
                return reply
            await asyncio.sleep(pause)
        raise StoreUnavailable(f"the server at {self.transport.url} cannot serve now")

    async def _patiently(self, batch: Sequence[Letter], patience: float) -> bytes:
        """The answer's bytes; sent again until there is one."""
        body = batch[0].body if len(batch) == 1 else _together(batch, self._token)
        failure: Unreachable | None = None
        for pause in _pauses(self._patience):
            try:
                return await self.transport.post(body, patience)
            except Unreachable as unreachable:
                failure = unreachable
                for letter in batch:
                    letter.is_doubtful |= failure.may_have_arrived
            await asyncio.sleep(pause)
        assert failure is not None
        raise failure


def _together(batch: Sequence[Letter], token: str | None) -> bytes:
    return ask_all([letter.body for letter in batch], "0", token)


def _split(body: bytes, batch: Sequence[Letter]) -> list[Reply]:
    if len(batch) == 1:
        return [answers.read(batch[0].request, body)]
    parts = answers.read_batch(body)
    if isinstance(parts, Reply):
        return [parts for _ in batch]
    return [answers.read(each.request, part) for each, part in zip(batch, parts, strict=True)]


def _waits(request: Command | Query) -> int:
    """Milliseconds a request may wait on the server."""
    return request.wait_ms if isinstance(request, Take) else 0


def _pauses(patience: float) -> Sequence[float]:
    """Ever longer, until together they are as long as the patience; once at least."""
    pauses = [PAUSES_S[0]]
    while sum(pauses) < patience:
        pauses.append(PAUSES_S[min(len(pauses), len(PAUSES_S) - 1)])
    return pauses
