"""The HTTP surface: which path answers what. `RequestHandler` answers the requests themselves."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from layby.core.address import own_group
from layby.core.commands import CheckHolder, GetPromise
from layby.core.replies import Reply, refuse
from layby.delivery.routing import Router
from layby.errors import LaybyError
from layby.local import LocalClient
from layby.server.answers_under_way import JSON, AnswersUnderWay, Send, hang_up, set_option, start
from layby.server.auth import Gate, Identity, bearer
from layby.server.batch_answers import BatchAnswers
from layby.server.cross_origin import ORIGIN_REFUSED, is_cross_origin
from layby.server.hook_pages import HEADERS as HOOK_HEADERS
from layby.server.hooks import MAX_BODY, Hooks
from layby.server.poll_stream import PollConnection, StreamRoom
from layby.server.request_bodies import BodyReader, header
from layby.server.request_handler import Peer, RequestHandler
from layby.wire.ask import INCARNATION
from layby.wire.encode import encode

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

STREAM: Final = b"text/event-stream"
TEXT: Final = b"text/plain; charset=utf-8"
UNREAD_BYTES: Final = 65_536
LEGACY: Final = ("promises", "schedules", "tasks")
HOOKS: Final = "/hooks/"
HOOK_METHODS: Final = ("GET", "HEAD", "POST")
PROBES: Final = ("/health", "/ready", "/metrics")
READY_S: Final = 2.0
"""As long as a probe waits for the store: many give up a moment later."""
ALLOWED: Final = {"/": ("POST",)} | dict.fromkeys(PROBES, ("GET", "HEAD"))
GONE: Final = "This endpoint is no longer supported. Please update to the latest SDK."


class HttpSettings(Struct, frozen=True):
    """The settings of the HTTP surface."""

    max_body: int = 8 * 1024 * 1024
    max_polls: int = 10_000
    poll_buffer: int = 100
    ping_every: float = 15.0
    poll_patience: float = 30.0
    origins: tuple[str, ...] = ()


class Application:
    """An ASGI application. `drain` ends streams and waits, which would not end by themselves."""

    def __init__(
        self,
        client: LocalClient,
        router: Router,
        handler: RequestHandler,
        gate: Gate,
        settings: HttpSettings,
        metrics: Callable[[], Awaitable[bytes]] | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._client = client
        self._router = router
        self._handler = handler
        self._gate = gate
        self._settings = settings
        self._body_reader = BodyReader(settings.max_body, setting="server.max_body")
        self._answers = AnswersUnderWay(handler.loop_turns)
        self._room = StreamRoom()
        self._metrics = metrics
        self._hooks = hooks
        self._hook_bodies = BodyReader(MAX_BODY)
        self._draining = asyncio.Event()
        self._reading: asyncio.Future[bool] | None = None
        """What all probes wait for that ask whether it is ready."""
        self.url = ""
        """How workers that get an `execute` reach this server; known once it listens."""
        self.polls: set[PollConnection] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/" and method == "POST":
            await self._answer(scope, receive, send)
            return
        if self._hooks is not None and path.startswith(HOOKS):
            await self._hook(self._hooks, scope, receive, send)
            return
        stream = _poll_path(scope)
        allowed = ("GET",) if stream else ALLOWED.get(path, ())
        if path.removeprefix("/").split("/")[0] in LEGACY:
            await _respond_error(send, 410, GONE)
        elif not allowed:
            await _respond_error(send, 404, f"There is nothing at {path}")
        elif method not in allowed:
            await _respond_error(
                send, 405, f"{path} does not accept {method}", allow=", ".join(allowed)
            )
        elif stream:
            await self._poll(scope, receive, send, *stream)
        else:
            await self._probe(path, send)

    def drain(self) -> None:
        """End streams and requests that wait, and refuse new ones."""
        self._draining.set()
        polls = list(self.polls)
        self._router.disconnect(*polls)  # all at once: messages of one must not go to the next
        for poll in polls:
            poll.close()

    # --- requests ------------------------------------------------------------------------

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = self._refused_origin(scope) or await self._body_reader.read(scope, receive)
        if isinstance(body, Reply):
            # A peer that sent `Expect` waits before it sends the body, so the connection is closed.
            more = () if header(scope, b"expect") is None else ((b"connection", b"close"),)
            await _respond(send, body.status, encode("unknown", "0", body), JSON, *more)
            return
        token = bearer(header(scope, b"authorization"))
        transport: asyncio.Transport = scope["state"]["transport"]
        peer = Peer(lambda: self._disconnected(receive), transport.is_closing, transport)
        status, parts = await self._handler.answer(body, token, peer)
        if isinstance(parts, BatchAnswers):
            await self._answers.send_parts(send, transport, status, parts)
        else:
            await self._answers.send(send, transport, status, parts)
        if transport.is_closing():
            await _hung_up(receive)  # not before: the answer would count as forgotten

    async def _hook(self, hooks: Hooks, scope: Scope, receive: Receive, send: Send) -> None:
        token, method = scope["path"].removeprefix(HOOKS), scope["method"]
        if method not in HOOK_METHODS:
            allow = ", ".join(HOOK_METHODS)
            await _respond_error(send, 405, f"A link does not accept {method}", allow=allow)
            return
        if method == "POST":
            body = await self._hook_bodies.read(scope, receive)
            if isinstance(body, Reply):
                await _respond_error(send, body.status, str(body.data))
                return
            given = header(scope, b"content-type") or ""
            answered = await hooks.settle(token, given, body)
        else:
            answered = await hooks.show(token)
        shown = b"" if method == "HEAD" else answered.body
        await _respond(send, answered.status, shown, answered.content_type, *HOOK_HEADERS)

    async def _disconnected(self, receive: Receive) -> None:
        """Returns when the peer has disconnected, or the server is draining."""
        draining = asyncio.ensure_future(self._draining.wait())
        hung_up = asyncio.ensure_future(_hung_up(receive))
        try:
            await asyncio.wait((draining, hung_up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()
            hung_up.cancel()

    # --- streams -------------------------------------------------------------------------

    async def _poll(
        self, scope: Scope, receive: Receive, send: Send, group: str, receiver_id: str
    ) -> None:
        who = await self._admitted(scope, group, receiver_id)
        if isinstance(who, Reply):
            await _respond(send, who.status, str(who.data).encode(), TEXT)
            return
        poll = PollConnection(
            group, receiver_id, self._router, self.url, self._settings.poll_buffer, self._room
        )
        self.polls.add(poll)
        scope["state"]["become_stream"]()
        hung_up = asyncio.ensure_future(_hung_up(receive))
        hung_up.add_done_callback(lambda _: poll.close())
        stay = asyncio.get_running_loop().call_later(self._gate.seconds_left(who), poll.close)
        try:
            await self._stream(poll, send, scope["state"]["transport"], hung_up)
        finally:
            self.polls.discard(poll)
            hung_up.cancel()
            stay.cancel()

    async def _stream(
        self,
        poll: PollConnection,
        send: Send,
        transport: asyncio.Transport,
        hung_up: Awaitable[None],
    ) -> None:
        settings = self._settings
        # Otherwise the kernel buffers megabytes for a reader that does not read, unnoticed.
        set_option(transport, socket.SO_SNDBUF, UNREAD_BYTES)
        await send(start(200, (b"cache-control", b"no-cache"), content_type=STREAM))
        write = _writer(send, transport)
        if await poll.stream(write, settings.ping_every, settings.poll_patience):
            await send({"type": "http.response.body", "body": b""})
        else:
            hang_up(transport)
            await hung_up

    def _refused_origin(self, scope: Scope) -> Reply | None:
        """Checked only without auth: where a token is needed, it is enough."""
        if not self._gate.is_open:
            return None
        is_refused = is_cross_origin(scope["headers"], self._settings.origins, self.url)
        return refuse(403, ORIGIN_REFUSED) if is_refused else None

    async def _admitted(self, scope: Scope, group: str, receiver_id: str) -> Identity | Reply:
        if (refused_origin := self._refused_origin(scope)) is not None:
            return refused_origin
        who = self._gate.identify(bearer(header(scope, b"authorization")))
        if isinstance(who, Reply):
            return who
        refused = self._gate.permit_poll(who, group)
        refused = refused or await self._refused_holder(scope, group, receiver_id)
        if self._draining.is_set():
            return refused or refuse(503, "The server is shutting down")
        if len(self.polls) >= self._settings.max_polls:
            return refused or refuse(503, "Poll registration at capacity")
        return refused or who

    async def _refused_holder(self, scope: Scope, group: str, pid: str) -> Reply | None:
        """The groups of our own workers are for registered holders, who prove it by incarnation."""
        own = own_group(group)
        if own is None:
            return None
        incarnation = header(scope, INCARNATION.lower().encode()) or ""
        check = CheckHolder(pid=pid, incarnation=incarnation, group=own)
        try:
            reply = await self._client.send(check)
        except LaybyError as failure:
            return refuse(503, str(failure))
        return None if reply.is_ok else reply

    # --- probes --------------------------------------------------------------------------

    async def _probe(self, path: str, send: Send) -> None:
        if path == "/metrics" and self._metrics is not None:
            await _respond(send, 200, await self._metrics(), TEXT)
        elif path == "/metrics":
            await _respond_error(send, 404, "Metrics are disabled")
        elif path == "/ready" and not await self._is_ready():
            await _respond(send, 503, b"", TEXT)
        else:
            await _respond(send, 200, b"", TEXT)

    async def _is_ready(self) -> bool:
        """No probe waits for a store that somebody locks, and none adds to what waits for it."""
        if self._draining.is_set():
            return False
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._can_read())
        reading = self._reading
        await asyncio.wait((reading,), timeout=READY_S)
        if not reading.done():
            logger.warning("not ready: the store has not answered for %g s", READY_S)
        return reading.done() and reading.result()

    async def _can_read(self) -> bool:
        """Reads from the store, the way every request does."""
        try:
            return (await self._client.send(GetPromise(id="layby/ready"))).status < 500
        except LaybyError as failure:
            logger.warning("not ready: %s", failure)
            return False


def _poll_path(scope: Scope) -> tuple[str, str] | None:
    """Group and id, each decoded separately: an id may contain a slash, encoded or not.

    A client that was given our URL with a trailing slash asks for `//poll/…`.
    """
    first, *place = scope["raw_path"].decode("latin-1").lstrip("/").split("/", 2)
    if first != "poll" or len(place) < 2 or not all(place):
        return None
    group, receiver_id = place
    return unquote(group), unquote(receiver_id)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _writer(send: Send, transport: asyncio.BaseTransport) -> Callable[[bytes], Awaitable[None]]:
    """Raises ConnectionError if the connection is closed, where ASGI would stay silent."""

    async def write(chunk: bytes) -> None:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if transport.is_closing():  # otherwise unnoticed: uvicorn drops it silently
            raise ConnectionResetError

    return write


async def _respond_error(send: Send, status: int, why: str, allow: str = "") -> None:
    more = ((b"allow", allow.encode()),) if allow else ()
    await _respond(send, status, msgspec.json.encode({"error": why}), JSON, *more)


async def _respond(
    send: Send, status: int, body: bytes, content_type: bytes = JSON, *more: tuple[bytes, bytes]
) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send(start(status, length, *more, content_type=content_type))
    await send({"type": "http.response.body", "body": body})
