"""One request in, one answer out: decode, authenticate, ask the engine, encode."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import NamedTuple

from layby.core.commands import ReleaseTask, Take, WatchPromise
from layby.core.kinds import DeliveryControl, Query, Sender
from layby.core.replies import DEBUG_IS_OFF, Reply, refuse
from layby.delivery.routing import Router
from layby.engine.items import Allowance
from layby.errors import EngineStopped, StoreError
from layby.local import LocalClient
from layby.server.auth import UNAUTHORIZED, Gate, Identity
from layby.server.batch_answers import LOADED_CHARS, BatchAnswers, Serving
from layby.server.rate_limited_log import RateLimitedLog
from layby.server.turns import Turns
from layby.wire.decode import KINDS, Batch, Request, decode
from layby.wire.encode import encode

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


class HttpAnswer(NamedTuple):
    status: int
    body: bytes | BatchAnswers


class RequestHandler:
    def __init__(
        self, client: LocalClient, router: Router, gate: Gate, count: Count, *, debug: bool
    ) -> None:
        self._client = client
        self._router = router
        self._gate = gate
        self._count = count
        self._debug = debug
        self._turns = Turns()
        self._failure_log = RateLimitedLog("requests are refused", logger)

    async def answer(self, body: bytes, token: str | None, peer: Peer) -> HttpAnswer:
        """`token` comes from the HTTP header; one in the envelope takes precedence."""
        request = decode(body)
        if not request.has_envelope:
            return _answer(request, request.body)
        who = self._gate.identify(request.auth or token)
        if isinstance(who, Reply):
            return self._counted(request, who)
        if isinstance(request.body, Batch):
            return self._answer_batch(request, request.body, who, peer)
        return await self._answer_one(request, who, peer)

    async def _answer_one(self, request: Request, who: Identity, peer: Peer) -> HttpAnswer:
        began = perf_counter()
        asked = self._ask(request, who)
        if isinstance(asked, Reply):
            return self._counted(request, asked, began)
        if _may_wait(request) and not await self._wait_for_answer(asked, peer, who):
            return self._counted(request, UNAUTHORIZED, began)
        return self._counted(request, await self._reply(asked), began)

    def _answer_batch(self, outer: Request, batch: Batch, who: Identity, peer: Peer) -> HttpAnswer:
        """The requests of a slice are submitted in one turn of the loop, so they share a commit."""
        encode_each = partial(self._encoded, perf_counter())
        service = Serving(partial(self._ask_in_batch, who), self._reply, encode_each)
        turn = partial(self._turns.turn, who.subject)
        parts = BatchAnswers(outer.corr_id, batch.requests, service, turn, peer.is_gone)
        return HttpAnswer(200, parts)

    def _encoded(self, began: float, request: Request, reply: Reply) -> bytes:
        body = self._counted(request, reply, began).body
        assert isinstance(body, bytes)
        return body

    def _ask_in_batch(
        self, who: Identity, request: Request, allowance: Allowance
    ) -> "asyncio.Future[Reply] | Reply":
        refused = self._gate.permit(who, request.kind, request.body) or _refused_in_batch(request)
        return refused or self._ask_permitted(request, who, allowance)

    def _ask(self, request: Request, who: Identity) -> "asyncio.Future[Reply] | Reply":
        forbidden = self._gate.permit(who, request.kind, request.body)
        return forbidden or self._ask_permitted(request, who, Allowance(LOADED_CHARS))

    def _ask_permitted(
        self, request: Request, who: Identity, allowance: Allowance
    ) -> "asyncio.Future[Reply] | Reply":
        declared, body = KINDS.get(request.kind), request.body
        if not self._debug and declared is not None and declared.sender is Sender.DEBUGGER:
            return DEBUG_IS_OFF  # even if it is invalid
        if isinstance(body, DeliveryControl):
            return body.control(self._router)
        if isinstance(body, ReleaseTask):
            self._router.note_hand_back(body.id, body.version)
        if isinstance(body, Reply):
            return body
        assert not isinstance(body, Batch)  # it was taken apart, or refused within another
        if body.asks is not None and body.asks.embedded:
            return NOT_EMBEDDED
        now = request.debug_time if self._debug else None
        return self._client.ask(self._gate.bounded(who, body), now, who, allowance)

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
    return HttpAnswer(reply.status, encode(request.kind, request.corr_id, reply))


def _refused_in_batch(request: Request) -> Reply | None:
    """Refuses what would make the rest of a batch wait, or may have a huge answer."""
    body = request.body
    if isinstance(body, Batch):
        return refuse(400, "Invalid request: a batch cannot contain a batch")
    if _may_wait(request):
        return refuse(400, "Invalid request: a batch cannot contain a request that waits")
    if isinstance(body, Query) and not isinstance(body, DeliveryControl):
        return refuse(400, "Invalid request: a batch cannot contain a search")
    return None


def _may_wait(request: Request) -> bool:
    body = request.body
    is_watch = isinstance(body, WatchPromise) and body.waits
    return is_watch or (isinstance(body, Take) and body.wait_ms > 0)
