"""One request in, one answer out: decode, authenticate, ask the engine, encode."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

from layby.core.commands import DeferTask, ReleaseTask, Take, WatchPromise
from layby.core.kinds import DeliveryControl, Query, Sender, ServerControl
from layby.core.links import LinkMaker
from layby.core.replies import DEBUG_IS_OFF, Reply, refuse
from layby.delivery.routing import Router
from layby.engine.items import NOT_BEGUN, Allowance
from layby.errors import EngineStopped, StoreError
from layby.local import LocalClient
from layby.rate_limited_log import RateLimitedLog
from layby.server.auth import UNAUTHORIZED, Gate, Identity
from layby.server.batch_answers import (
    HESITATION_S,
    HURRIED_BYTES,
    LOADED_CHARS,
    UNTURNED_CHARS,
    BatchAnswers,
    Serving,
)
from layby.server.slice_sizes import SliceSizes
from layby.server.turns import PAUSE_S, PacedTurns, Turns
from layby.triggers.registry import problem_of
from layby.wire.decode import KINDS, Batch, Request, decode
from layby.wire.encode import encode_in_pieces
from layby.wire.large_texts import Encoded

logger = logging.getLogger(__name__)

Count = Callable[[str, int, float, str], None]
"""Called with kind, status, seconds and, for a refusal, the reason of every answer."""

NOT_EMBEDDED = refuse(400, "Only a worker in the server's own process can be embedded")
SHUTTING_DOWN = refuse(503, "The server is shutting down: try again at once, elsewhere or here")


class Peer(NamedTuple):
    """Whoever reads the answer."""

    disconnected: Callable[[], Awaitable[None]]
    """Returns when it has hung up, or the server is about to."""
    is_gone: Callable[[], bool]
    """Whether it has hung up."""
    connection: Hashable


class HttpAnswer(NamedTuple):
    status: int
    body: Encoded | BatchAnswers


class Asking(NamedTuple):
    """Who sent a request, and when it arrived."""

    who: Identity
    peer: Peer
    caller: Hashable
    began: float


NOBODY: Final = HttpAnswer(503, b"")
"""For a peer that has hung up: nothing was done for it, and nothing is sent."""


class RequestHandler:
    def __init__(
        self,
        client: LocalClient,
        router: Router,
        gate: Gate,
        count: Count,
        links: LinkMaker | None = None,
        *,
        debug: bool,
    ) -> None:
        self._client = client
        self._router = router
        self._gate = gate
        self._count = count
        self._links = links
        self._debug = debug
        self._turns = Turns()
        self.loop_turns = PacedTurns()
        """Whose turn it is to take the loop for something large."""
        self._slices = SliceSizes()
        self._failure_log = RateLimitedLog("requests are refused", logger)

    async def answer(self, body: bytes, token: str | None, peer: Peer) -> HttpAnswer:
        """`token` comes from the HTTP header; one in the envelope takes precedence."""
        request = await self._decoded(body, peer)
        if request is None:
            return NOBODY
        if not request.has_envelope:
            return _answer(request, request.body)
        who = self._gate.identify(request.auth or token)
        if isinstance(who, Reply):
            return self._counted(request, who)
        asking = Asking(who, peer, self._caller(who, peer), perf_counter())
        self._slices.note(asking.caller)
        if isinstance(request.body, Batch):
            return self._answer_batch(request, request.body, asking)
        if _may_wait(request):
            return await self._answer_when_ready(request, asking)
        if len(body) <= UNTURNED_CHARS:
            answered = await self._answer_small(request, asking)
            if answered is not None or peer.is_gone():
                return answered or NOBODY
        return await self._answer_large(request, asking)

    async def _decoded(self, body: bytes, peer: Peer) -> Request | None:
        """None if its peer has hung up. Large ones in turn: reading them takes its time too."""
        if len(body) <= HURRIED_BYTES:
            return decode(body)
        await asyncio.sleep(HESITATION_S)
        async with self.loop_turns.turn(peer.connection):
            return None if peer.is_gone() else decode(body)

    async def _answer_small(self, request: Request, asking: "Asking") -> HttpAnswer | None:
        """A query may read many rows, and take long: nothing large gives way to it."""
        if isinstance(request.body, Query):
            return await self._answer_one(request, asking, _small())
        self.loop_turns.begin_small()  # not by a context manager: every small request comes here
        try:
            return await self._answer_one(request, asking, _small())
        finally:
            self.loop_turns.end_small()

    async def _answer_one(
        self, request: Request, asking: "Asking", allowance: Allowance
    ) -> HttpAnswer | None:
        """None if it was not begun: its answer is too large, or its peer has hung up."""
        asked = self._ask(request, asking, allowance)
        reply = asked if isinstance(asked, Reply) else await self._reply(asked)
        return None if reply is NOT_BEGUN else self._counted(request, reply, asking.began)

    async def _answer_large(self, request: Request, asking: "Asking") -> HttpAnswer:
        """In turn, until it is encoded: from then on it is counted among what waits to be read."""
        async with self._turns.turn(asking.caller):
            await asyncio.sleep(PAUSE_S)
            if asking.peer.is_gone():
                return NOBODY
            return await self._answer_one(request, asking, Allowance(LOADED_CHARS)) or NOBODY

    async def _answer_when_ready(self, request: Request, asking: "Asking") -> HttpAnswer:
        asked = self._ask(request, asking, Allowance(LOADED_CHARS))
        if isinstance(asked, Reply):
            return self._counted(request, asked, asking.began)
        if not await self._wait_for_answer(asked, asking.peer, asking.who):
            return self._counted(request, UNAUTHORIZED, asking.began)
        reply = await self._reply(asked)
        return NOBODY if reply is NOT_BEGUN else self._counted(request, reply, asking.began)

    def _caller(self, who: Identity, peer: Peer) -> Hashable:
        """Whose turn it is: without tokens everybody would be the same."""
        return peer.connection if self._gate.is_open else who

    def _answer_batch(self, outer: Request, batch: Batch, asking: "Asking") -> HttpAnswer:
        """The requests of a slice are submitted in one turn of the loop, so they share a commit."""
        encode_each = partial(self._encoded, asking.began)
        ask, sizes = partial(self._ask_in_batch, asking), partial(self._slices.next, asking.caller)
        service = Serving(ask, self._reply, encode_each, sizes, self.loop_turns.giving_way)
        turn = partial(self._turns.turn, asking.caller)
        parts = BatchAnswers(outer.corr_id, batch.requests, service, turn, asking.peer.is_gone)
        return HttpAnswer(200, parts)

    def _encoded(self, began: float, request: Request, reply: Reply) -> Encoded:
        body = self._counted(request, reply, began).body
        assert not isinstance(body, BatchAnswers)
        return body

    def _ask_in_batch(
        self, asking: "Asking", request: Request, allowance: Allowance
    ) -> "asyncio.Future[Reply] | Reply":
        forbidden = self._gate.permit(asking.who, request.kind, request.body)
        refused = forbidden or _refused_in_batch(request)
        return refused or self._ask_permitted(request, asking, allowance)

    def _ask(
        self, request: Request, asking: "Asking", allowance: Allowance
    ) -> "asyncio.Future[Reply] | Reply":
        forbidden = self._gate.permit(asking.who, request.kind, request.body)
        return forbidden or self._ask_permitted(request, asking, allowance)

    def _ask_permitted(
        self, request: Request, asking: "Asking", allowance: Allowance
    ) -> "asyncio.Future[Reply] | Reply":
        declared, body = KINDS.get(request.kind), request.body
        if not self._debug and declared is not None and declared.sender is Sender.DEBUGGER:
            return DEBUG_IS_OFF  # even if it is invalid
        if isinstance(body, DeliveryControl):
            return body.control(self._router)
        if isinstance(body, ServerControl) and self._links is not None:
            return body.control(self._links)
        if isinstance(body, ReleaseTask):
            self._router.note_hand_back(body.id, body.version)
        if isinstance(body, Reply):
            return body
        assert not isinstance(body, Batch)  # it was taken apart, or refused within another
        if body.asks is not None and body.asks.embedded:
            return NOT_EMBEDDED
        if isinstance(body, DeferTask):
            wrong = problem_of(body.trigger.kind, bytes(body.trigger.given))
            if wrong is not None:
                return refuse(400, wrong)
        now = request.debug_time if self._debug else None
        bounded = self._gate.bounded(asking.who, body)
        return self._client.ask(bounded, now, asking.caller, allowance, asking.peer.is_gone)

    async def _wait_for_answer(
        self, asked: "asyncio.Future[Reply]", peer: Peer, who: Identity
    ) -> bool:
        """Wait for the answer, or until the caller disconnects; False if the token expires first.

        Without an answer the request is dropped.
        """
        hung_up = asyncio.ensure_future(peer.disconnected())
        left = self._gate.seconds_left(who)
        try:
            either = asyncio.wait((asked, hung_up), timeout=left, return_when="FIRST_COMPLETED")
            return bool((await either)[0])
        finally:
            hung_up.cancel()
            if not asked.done():
                asked.cancel()

    async def _reply(self, asked: "asyncio.Future[Reply]") -> Reply:
        """If the store failed, nothing was written: the answer is 503."""
        try:
            return await asked
        except EngineStopped:
            return SHUTTING_DOWN
        except StoreError as failure:
            self._failure_log.tell(str(failure))
            return refuse(503, str(failure))
        except asyncio.CancelledError:
            if asked.cancelled():
                return SHUTTING_DOWN  # nobody reads it
            raise

    def _counted(self, request: Request, reply: Reply, began: float | None = None) -> HttpAnswer:
        seconds = 0.0 if began is None else perf_counter() - began
        if request.has_envelope:
            why = str(reply.data) if reply.status >= 400 else ""
            self._count(request.kind, reply.status, seconds, why)
        return _answer(request, reply)


def _answer(request: Request, reply: object) -> HttpAnswer:
    assert isinstance(reply, Reply)
    return HttpAnswer(reply.status, encode_in_pieces(request.kind, request.corr_id, reply))


def _small() -> Allowance:
    return Allowance(UNTURNED_CHARS, strict=True)


def _refused_in_batch(request: Request) -> Reply | None:
    """Refuses what would make the rest of a batch wait, or may have a huge answer."""
    body = request.body
    if isinstance(body, Batch):
        return refuse(400, "Invalid request: a batch cannot contain a batch")
    if _may_wait(request):
        return refuse(400, "Invalid request: a batch cannot contain a request that waits")
    if isinstance(body, Query) and not isinstance(body, DeliveryControl | ServerControl):
        return refuse(400, "Invalid request: a batch cannot contain a search")
    return None


def _may_wait(request: Request) -> bool:
    body = request.body
    is_watch = isinstance(body, WatchPromise) and body.waits
    return is_watch or (isinstance(body, Take) and body.wait_ms > 0)
