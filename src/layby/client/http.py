"""The client of a server: the same answers as from an engine in this process.

Commands of one process apply in the order in which they were sent: they leave in line, one batch
at a time, and whatever is sent while a batch is under way goes with the next. Requests that wait
on the server, and reads that may take long, have a connection each.

A request without an answer is sent again. If an earlier copy of it may have arrived and it is
then refused, reading shows whether that was our own doing (`doubt`).
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from layby.client.api import Listener, Watching
from layby.client.claims import releases
from layby.client.doubt import resolved
from layby.client.inbox import Inbox
from layby.client.transport import Transport, Unreachable
from layby.core.commands import Command, Take, WatchPromise
from layby.core.pauses import Pauses
from layby.core.queries import Query
from layby.core.replies import Reply, refuse
from layby.errors import EngineStopped, LaybyError, StoreUnavailable, WireError
from layby.wire import answers
from layby.wire.ask import ask, ask_all

PATIENCE_S: Final = 30.0
"""How long a request is sent again before its sender hears that nobody answers."""
ANSWER_S: Final = 30.0
"""How long one answer may take, beyond what its request asked to wait."""
PAUSES: Final = Pauses(0.02, longest=1.0)
BATCH: Final = 500
BATCH_BYTES: Final = 1_000_000
LAST_S: Final = 1.0
"""How long a client that is closed lets its line move on."""
A_DAY_MS: Final = 86_400_000
NO_TEXT: Final = refuse(400, "Invalid request: a text in it is not valid Unicode")


class Letter:
    """A request on its way."""

    __slots__ = ("answer", "body", "is_doubtful", "request")

    def __init__(self, request: Command | Query, token: str | None) -> None:
        self.request = request
        self.body = ask(request, "0", token)
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.is_doubtful = False
        """An earlier copy may have arrived."""

    @property
    def reply(self) -> Reply | None:
        """What its sender was told, if it was told anything."""
        is_told = self.answer.done() and not self.answer.cancelled()
        return self.answer.result() if is_told and self.answer.exception() is None else None

    def tell(self, reply: Reply | BaseException) -> None:
        if self.answer.done():
            return
        if isinstance(reply, Reply):
            self.answer.set_result(reply)
        else:
            self.answer.set_exception(reply)


class HttpClient:
    """Belongs to the event loop it is created in. `url`: `http://host:port` or `unix:/a.sock`."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        patience: float = PATIENCE_S,
        answer_within: float = ANSWER_S,
    ) -> None:
        self.transport = Transport(url, token)
        self.inbox: Inbox | None = None
        """Who has one hears of settled promises there; others let a request wait for each."""
        self._token = token
        self._patience = patience
        self._answer_within = answer_within
        self._line: deque[Letter] = deque()
        self._carrying: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    async def send(self, request: Command | Query) -> Reply:
        if self._closed.is_set():
            raise _stopped()
        if isinstance(request, WatchPromise) and self.inbox is not None:
            return await self.inbox.watch(request.id)
        try:
            letter = Letter(request, self._token)
        except UnicodeEncodeError:
            return NO_TEXT
        if isinstance(request, Query) or _waits_ms(request):
            return await self._alone(letter)
        self._line_up(letter)
        try:
            return await letter.answer
        except asyncio.CancelledError:
            self._hand_back(letter.request, letter.reply)
            raise

    def ask(self, request: Command | Query) -> "asyncio.Future[Reply]":
        """As `send`, for who does not wait: it stands in line when this returns."""
        if self._closed.is_set() or isinstance(request, Query) or _waits_ms(request):
            return asyncio.ensure_future(self.send(request))
        try:
            letter = Letter(request, self._token)
        except UnicodeEncodeError:
            return asyncio.ensure_future(self.send(request))  # which says so
        self._line_up(letter)
        return letter.answer

    def watch(self, promise_id: str, listener: Listener) -> Watching:
        if self.inbox is not None and not self._closed.is_set():
            return self.inbox.listen_for(promise_id, listener)
        asked = asyncio.ensure_future(self.send(WatchPromise(id=promise_id)))
        asked.add_done_callback(partial(_told, listener))
        return asked

    async def close(self) -> None:
        """What is in line leaves first, if that takes no time."""
        self._closed.set()
        if self._carrying is not None:
            await asyncio.wait([self._carrying], timeout=LAST_S)
            self._carrying.cancel()
            await asyncio.wait([self._carrying])
        await self.transport.close()

    # --- in line -------------------------------------------------------------------------

    def _line_up(self, letter: Letter) -> None:
        self._line.append(letter)
        if self._carrying is None or self._carrying.done():
            self._carrying = asyncio.create_task(self._carry())

    async def _carry(self) -> None:
        try:
            while self._line:
                await self._carry_batch(self._next_batch())
        finally:
            _tell(self._line, _stopped())

    async def _carry_batch(self, batch: Sequence[Letter]) -> None:
        try:
            await self._deliver(batch)
        except Exception as failure:  # noqa: BLE001 - whatever it was, whoever asked is answered
            _tell(batch, failure)
        finally:
            _tell(batch, _stopped())

    def _next_batch(self) -> list[Letter]:
        batch = [self._line.popleft()]
        size = len(batch[0].body)
        while self._line and len(batch) < BATCH and size + len(self._line[0].body) <= BATCH_BYTES:
            batch.append(self._line.popleft())
            size += len(batch[-1].body)
        return batch

    def _hand_back(self, request: Command | Query, reply: Reply | None) -> None:
        """Its sender is gone: tasks that came with the answer are released, never forgotten."""
        for release in releases(request, reply):
            letter = Letter(release, self._token)
            letter.answer.add_done_callback(_look_at)
            self._line_up(letter)

    # --- alone or together ---------------------------------------------------------------

    async def _alone(self, letter: Letter) -> Reply:
        await self._deliver([letter])
        return await letter.answer

    async def _deliver(self, batch: Sequence[Letter]) -> None:
        """Until each has its answer; those that could not be served are sent again, in order."""
        left, pauses = batch, _pauses(self._patience)
        while True:
            began = asyncio.get_running_loop().time()
            left, failure = await self._try(left)
            if not left:
                return
            if _waits_ms(batch[0].request) and asyncio.get_running_loop().time() > began + 1:
                pauses = _pauses(self._patience)  # the server was there, and let it wait
            pause = next(pauses, None)
            if pause is None or self._closed.is_set():
                _tell(left, _stopped() if self._closed.is_set() else failure)
                return
            await self._rest(pause)

    async def _try(self, batch: Sequence[Letter]) -> tuple[Sequence[Letter], LaybyError]:
        """Those that are left without an answer, and why."""
        try:
            replies = await self._exchange(batch)
        except Unreachable as failure:
            for letter in batch:
                letter.is_doubtful |= failure.may_have_arrived
            return batch, failure
        if len(batch) > 1 and all(reply.status == 413 for reply in replies):
            for letter in batch:
                await self._deliver([letter])
            return (), _stopped()
        for letter, reply in zip(batch, replies, strict=True):
            if reply.status != 503:
                await self._conclude(letter, reply)
        left = [each for each, reply in zip(batch, replies, strict=True) if reply.status == 503]
        return left, StoreUnavailable(f"the server at {self.transport.url} cannot serve now")

    async def _exchange(self, batch: Sequence[Letter]) -> list[Reply]:
        alone = len(batch) == 1
        body = batch[0].body if alone else ask_all([each.body for each in batch], "0", self._token)
        within = self._answer_within + max(_waits_ms(each.request) for each in batch) / 1000
        status, answer = await self.transport.post(body, within)
        try:
            return _replies(batch, answer)
        except WireError as error:
            if status < 500:
                raise
            raise Unreachable(self.transport.url, str(error), may_have_arrived=True) from None

    async def _conclude(self, letter: Letter, reply: Reply) -> None:
        try:
            if letter.is_doubtful and reply.status in (404, 409):
                reply = await resolved(self._read, letter.request, reply)
        except LaybyError as failure:
            letter.tell(failure)
            return
        if letter.answer.cancelled():
            self._hand_back(letter.request, reply)
        letter.tell(reply)

    async def _read(self, request: Command | Query) -> Reply:
        return await self._alone(Letter(request, self._token))

    async def _rest(self, pause: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), pause)


def _replies(batch: Sequence[Letter], answer: bytes) -> list[Reply]:
    if len(batch) == 1:
        return [answers.read(batch[0].request, answer)]
    parts = answers.read_batch(answer)
    if isinstance(parts, Reply):
        return [parts for _ in batch]
    return [answers.read(each.request, part) for each, part in zip(batch, parts, strict=True)]


def _waits_ms(request: Command | Query) -> int:
    """How long a request may wait on the server."""
    if isinstance(request, WatchPromise):
        return A_DAY_MS
    return request.wait_ms if isinstance(request, Take) else 0


def _pauses(patience: float) -> Iterator[float]:
    """Ever longer, from the first failure until the patience ends; what hangs uses it up, too."""
    now = asyncio.get_running_loop().time
    began = now()
    for pause in PAUSES:
        if now() - began >= patience:
            return
        yield pause


def _told(listener: Listener, answer: "asyncio.Future[Reply]") -> None:
    if not answer.cancelled():
        listener.heard(answer.exception() or answer.result())


def _tell(letters: Iterable[Letter], failure: BaseException) -> None:
    """Those that have not been told anything yet."""
    for letter in letters:
        letter.tell(failure)


def _stopped() -> EngineStopped:
    return EngineStopped("the connection to the server has been closed")


def _look_at(answer: "asyncio.Future[Reply]") -> None:
    """Nobody waits for it; what went wrong with it is no secret of the garbage collector."""
    if not answer.cancelled():
        answer.exception()
