"""A client for a server. It gives the same answers as an engine in this process.

Commands of one process apply in the order in which they were sent: they are queued and sent one
batch at a time; requests made while a batch is under way go with the next one. Requests that wait
on the server, and reads that may take long, get a connection each.

A request without an answer is sent again, and before it nothing that follows it. The server stops
a batch at a request that it cannot serve now; only a read may be answered later than its place, and
show what was sent after it. If a request is then refused and an earlier copy may have arrived,
`lost_replies` reads the store to find out whether that copy succeeded.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import takewhile
from typing import Final

from msgspec.structs import replace

from layby.client.claims import releases
from layby.client.first_answer import FirstAnswer, already_heard
from layby.client.inbox import Inbox
from layby.client.interface import PromiseListener, Watching
from layby.client.lost_replies import recovered_reply
from layby.client.outage import Outage
from layby.client.transport import CONNECT_S, Transport, Unreachable
from layby.core.commands import Command, Take, WatchPromise, WatchRun
from layby.core.pauses import Pauses
from layby.core.queries import Query
from layby.core.replies import ASK_AGAIN, UNAVAILABLE, PromiseData, Reply, RunWatchData, refuse
from layby.errors import EngineStopped, LaybyError, StoreUnavailable, WireError
from layby.wire import answers
from layby.wire.ask import ask, ask_all

PATIENCE_S: Final = 30.0
"""How long a request is sent again before the caller gets an error."""
ANSWER_S: Final = 30.0
"""How long one answer may take, on top of the time its request asked to wait."""
READ_S: Final = 300.0
"""How long it may then take to arrive: one that drips is given up as well."""
PAUSES: Final = Pauses(0.02, longest=1.0)
BATCH: Final = 500
BATCH_BYTES: Final = 1_000_000
CLOSING_S: Final = 1.0
"""How long `close` lets the queue be sent."""
DAY_MS: Final = 86_400_000
NOT_UNICODE: Final = refuse(400, "Invalid request: a text in it is not valid Unicode")


class PendingRequest:
    """A request that is queued or under way."""

    __slots__ = ("answer", "body", "is_behind", "may_have_arrived", "request")

    def __init__(self, request: Command | Query, token: str | None) -> None:
        self.request = request
        self.body = ask(request, "0", token)
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.may_have_arrived = False
        """An earlier copy may have arrived."""
        self.is_behind = False
        """It was not begun when it was sent last, because of one before it."""

    @property
    def reply(self) -> Reply | None:
        """The reply its caller got, if any."""
        is_answered = self.answer.done() and not self.answer.cancelled()
        return self.answer.result() if is_answered and self.answer.exception() is None else None

    def answer_with(self, reply: Reply | BaseException) -> None:
        if self.answer.done():
            return
        if isinstance(reply, Reply):
            self.answer.set_result(reply)
        else:
            self.answer.set_exception(reply)


class HttpClient:
    """Use it in the event loop it is created in. `url`: `http://host:port` or `unix:/a.sock`."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        patience: float = PATIENCE_S,
        answer_within: float = ANSWER_S,
        first: FirstAnswer | None = None,
    ) -> None:
        """`first`: what holds until the server has answered once; None: nothing else than later."""
        self.transport = Transport(url, token)
        self.inbox: Inbox | None = None
        """If set, it reports settled promises; otherwise each watch is a request that waits."""
        self._token = token
        self._patience = patience
        self._answer_within = answer_within
        self._first = first or already_heard(url)
        self._outage = Outage(url)
        self._queue: deque[PendingRequest] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    async def send(self, request: Command | Query) -> Reply:
        if self._closed.is_set():
            raise _stopped()
        if self.inbox is not None and isinstance(request, WatchPromise) and request.waits:
            return await self._watch_in_inbox(self.inbox, request)
        try:
            pending = PendingRequest(request, self._token)
        except UnicodeEncodeError:
            return NOT_UNICODE
        if isinstance(request, Query) or _server_wait_ms(request):
            return await self._send_alone(pending)
        self._enqueue(pending)
        try:
            return await pending.answer
        except asyncio.CancelledError:
            self._hand_back(pending.request, pending.reply)
            raise

    def ask(self, request: Command | Query) -> "asyncio.Future[Reply]":
        """Like `send`, without waiting: the request is queued when this returns."""
        if self._closed.is_set() or isinstance(request, Query) or _server_wait_ms(request):
            return asyncio.ensure_future(self.send(request))
        try:
            pending = PendingRequest(request, self._token)
        except UnicodeEncodeError:
            return asyncio.ensure_future(self.send(request))  # which returns the refusal
        self._enqueue(pending)
        return pending.answer

    def watch(self, promise_id: str, listener: PromiseListener) -> Watching:
        if self.inbox is not None and not self._closed.is_set():
            return self.inbox.listen_for(promise_id, listener)
        asked = asyncio.ensure_future(self.send(WatchPromise(id=promise_id)))
        asked.add_done_callback(partial(_notify, listener))
        return asked

    async def _watch_in_inbox(self, inbox: Inbox, request: WatchPromise) -> Reply:
        """A run that has ended may have another life: that is asked before, not after the wait."""
        if isinstance(request, WatchRun):
            reply = await self.send(replace(request, hold=False))
            if not (isinstance(reply.data, RunWatchData) and reply.data.promise.is_pending):
                return reply
        reply = await inbox.watch(request.id)
        if isinstance(request, WatchRun) and isinstance(reply.data, PromiseData):
            return Reply(reply.status, RunWatchData(reply.data.promise))
        return reply

    async def close(self) -> None:
        """Sends what is queued first, if that takes no longer than a second."""
        self._closed.set()
        self._first.close()
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=CLOSING_S)
            self._sending.cancel()
            await asyncio.wait([self._sending])
        await self.transport.close()

    # --- the queue -----------------------------------------------------------------------

    def _enqueue(self, pending: PendingRequest) -> None:
        self._queue.append(pending)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_batches())

    async def _send_batches(self) -> None:
        try:
            while self._queue:
                await self._send_batch(self._next_batch())
        finally:
            _fail_all(self._queue, _stopped())

    async def _send_batch(self, batch: Sequence[PendingRequest]) -> None:
        try:
            await self._deliver(batch)
        except Exception as failure:  # noqa: BLE001 - whatever it was, the callers are told
            _fail_all(batch, failure)
        finally:
            _fail_all(batch, _stopped())

    def _next_batch(self) -> list[PendingRequest]:
        batch = [self._queue.popleft()]
        size = len(batch[0].body)
        while self._queue and len(batch) < BATCH and size + len(self._queue[0].body) <= BATCH_BYTES:
            batch.append(self._queue.popleft())
            size += len(batch[-1].body)
        return batch

    def _hand_back(self, request: Command | Query, reply: Reply | None) -> None:
        """The caller is gone: release the tasks that came with the answer."""
        for release in releases(request, reply):
            pending = PendingRequest(release, self._token)
            pending.answer.add_done_callback(_retrieve_exception)
            self._enqueue(pending)

    # --- sending -------------------------------------------------------------------------

    async def _send_alone(self, pending: PendingRequest) -> Reply:
        await self._deliver([pending])
        return await pending.answer

    async def _deliver(self, batch: Sequence[PendingRequest]) -> None:
        """Send until each has its answer; those that have none again, in order.

        When patience is at its end those behind the one that cannot be served have their turn.
        """
        now = asyncio.get_running_loop().time
        unanswered, pauses, silent_since = batch, _pauses(self._retry_for()), now()
        while unanswered:
            began = now()
            with self._watched(batch[0].request, began - silent_since):
                unanswered, failure = await self._try(unanswered)
            if failure is None:
                return
            if _server_wait_ms(batch[0].request) and now() > began + 1:
                pauses = _pauses(self._patience)  # the server was up, and let the request wait
                silent_since = now()
            pause = next(pauses, None)
            if self._closed.is_set():
                _fail_all(unanswered, _stopped())
                return
            if pause is None:
                _fail_all((each for each in unanswered if not each.is_behind), failure)
                unanswered = [each for each in unanswered if each.is_behind]
                continue
            if self._first.is_heard:
                self._outage.lasts(failure, now() - silent_since)
            await self._pause(self._first.bounded(pause))

    def _watched(self, request: Command | Query, silent_for: float) -> AbstractContextManager[None]:
        """Requests that wait on the server may take long; before the first answer, others tell."""
        if _server_wait_ms(request) or not self._first.is_heard:
            return nullcontext()
        return self._outage.watch(silent_for)

    def _patient_for(self, request: Command | Query) -> float:
        """How long one answer may take. A connection may have died unnoticed, so a command without
        an answer is sent a second time before patience is at its end; a long read is not. Whoever
        has less patience than one answer may take waits for one: a busy server is not away.
        """
        if isinstance(request, Query) or self._patience < self._answer_within:
            return self._answer_within
        return min(self._answer_within, self._patience / 2)

    def _retry_for(self) -> float:
        return self._patience if self._first.is_heard else self._first.retry_for

    async def _try(
        self, batch: Sequence[PendingRequest]
    ) -> tuple[Sequence[PendingRequest], LaybyError | None]:
        """Returns the requests that have no answer yet, and why."""
        while batch:
            try:
                replies = await self._exchange(batch)
            except Unreachable as failure:
                self._first.failed(failure.why)
                for pending in batch:
                    pending.may_have_arrived |= failure.may_have_arrived
                    pending.is_behind = False
                return batch, failure
            if len(batch) > 1 and all(reply.status == 413 for reply in replies):
                for pending in batch:
                    await self._deliver([pending])
                break
            batch = await self._conclude_all(batch, replies)
            unavailable = [reply for reply in replies if reply.status == UNAVAILABLE]
            if unavailable:
                self._first.failed("it cannot serve now")
                what = f"the server at {self.transport.url} cannot serve now"
                return batch, StoreUnavailable(f"{what}: {unavailable[0].data}")
        return (), None

    async def _conclude_all(
        self, batch: Sequence[PendingRequest], replies: Sequence[Reply]
    ) -> list[PendingRequest]:
        """Returns those without an answer: fewer, if none was unavailable, since the first one is
        always served.
        """
        left: list[PendingRequest] = []
        for pending, reply in zip(batch, replies, strict=True):
            pending.is_behind = reply.status == ASK_AGAIN and pending is not batch[0]
            if reply.status == UNAVAILABLE:  # it may have lost its database in a commit
                pending.may_have_arrived = True
            elif not pending.is_behind:
                await self._conclude(pending, reply)
                continue
            left.append(pending)
        if len(left) < len(batch):
            self._first.heard()
            self._outage.over()
        return left

    async def _exchange(self, batch: Sequence[PendingRequest]) -> list[Reply]:
        alone = len(batch) == 1
        body = batch[0].body if alone else ask_all([each.body for each in batch], "0", self._token)
        server_wait_s = max(_server_wait_ms(each.request) for each in batch) / 1000
        self._first.begin()
        within = self._first.bounded(self._patient_for(batch[0].request)) + server_wait_s
        total = within + READ_S if self._first.is_heard else within
        connect_within = self._first.bounded(CONNECT_S)
        status, answer = await self.transport.post(body, within, connect_within, total)
        try:
            return _replies(batch, answer)
        except WireError as error:
            if status < 500:
                raise
            raise Unreachable(self.transport.url, str(error), may_have_arrived=True) from None

    async def _conclude(self, pending: PendingRequest, reply: Reply) -> None:
        try:
            if pending.may_have_arrived and reply.status in (404, 409):
                reply = await recovered_reply(self._read, pending.request, reply)
        except LaybyError as failure:
            pending.answer_with(failure)
            return
        if pending.answer.cancelled():
            self._hand_back(pending.request, reply)
        pending.answer_with(reply)

    async def _read(self, request: Command | Query) -> Reply:
        return await self._send_alone(PendingRequest(request, self._token))

    async def _pause(self, pause: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), pause)


def _replies(batch: Sequence[PendingRequest], answer: bytes) -> list[Reply]:
    if len(batch) == 1:
        return [answers.read(batch[0].request, answer)]
    parts = answers.read_batch(answer)
    if isinstance(parts, Reply):
        return [parts for _ in batch]
    return [answers.read(each.request, part) for each, part in zip(batch, parts, strict=True)]


def _server_wait_ms(request: Command | Query) -> int:
    """How long the request may wait on the server."""
    if isinstance(request, WatchPromise):
        return DAY_MS if request.waits else 0
    return request.wait_ms if isinstance(request, Take) else 0


def _pauses(patience: float) -> Iterator[float]:
    """Increasing pauses, until `patience` seconds have passed from now, hanging requests included.

    Counted from the call, not from the first pause: that comes after a request that may hang.
    """
    now = asyncio.get_running_loop().time
    until = now() + patience
    return takewhile(lambda _: now() < until, PAUSES)


def _notify(listener: PromiseListener, answer: "asyncio.Future[Reply]") -> None:
    if not answer.cancelled():
        listener.heard(answer.exception() or answer.result())


def _fail_all(requests: Iterable[PendingRequest], failure: BaseException) -> None:
    """Fail those that have no answer yet."""
    for each in requests:
        each.answer_with(failure)


def _stopped() -> EngineStopped:
    return EngineStopped("the connection to the server has been closed")


def _retrieve_exception(answer: "asyncio.Future[Reply]") -> None:
    """Nobody awaits it: keep asyncio from logging its exception as never retrieved."""
    if not answer.cancelled():
        answer.exception()
