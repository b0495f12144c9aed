"""A whole server: an engine on its store, with everything that listens and delivers."""

import asyncio
import errno
import gc
import logging
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext, suppress
from functools import partial
from secrets import token_urlsafe
from typing import Any, Final

from msgspec.structs import replace

from layby.clock import SystemClock
from layby.core.commands import GetPromise
from layby.core.model import Message
from layby.core.queries import OfferMessages
from layby.core.replies import PromiseData
from layby.core.stats import GetStats, StatsData
from layby.delivery.offering import FIRST_PAGE
from layby.delivery.routing import Router
from layby.engine.engine import Engine, EngineConfig
from layby.engine.opening import clock_of, is_file, is_url, open_store, path_of
from layby.engine.outbox import Outgoing
from layby.engine.switch_interval import lower_switch_interval, restore_switch_interval
from layby.errors import StoreUnavailable, UsageError
from layby.local import LocalClient
from layby.server import server_config as configuration
from layby.server.app import HttpSettings
from layby.server.auth import Gate
from layby.server.auth_config import AuthConfig
from layby.server.front import Front
from layby.server.hooks import Hooks
from layby.server.listener import HttpListener, Limits, allow_connections
from layby.server.logs import log_request
from layby.server.push import Pusher
from layby.server.server_config import PushConfig, ServerConfig
from layby.server.server_metrics import Live, Metrics, MetricsApp
from layby.server.signals import stop_requested
from layby.store.api import Store
from layby.store.ownership import socket_of
from layby.store.postgres_address import is_postgres, without_password
from layby.wire.encode import encode_message

logger = logging.getLogger(__name__)

LINKS: Final = "links"
"""The name of the secret that signs links, in the store."""
SWITCH_S: Final = 0.0002
"""The interpreter's switch interval. Shorter than a Runner's: the loop is busy with whoever
connects, and the writer asks for the interpreter at each statement.
"""
LOOPBACK: Final = ("127.0.0.0/8", "::1")


class Server:
    """`start`, then `stop`; in one event loop, once."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.port = config.server.port
        self._gate = Gate(config.auth)
        self._catching_up: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self.config.server.url_at(self.port)

    async def start(self) -> None:
        config = self.config
        self._metrics = Metrics(self._stats)
        self._pusher = self._new_pusher()
        self.router = Router(
            self._pusher,
            self._metrics.delivery,
            observe_wake=self._metrics.observe_wake,
            count_taken_over=self._metrics.count_taken_over,
        )
        store = _open_store(config)
        key = self._link_key(store)
        engine_config = EngineConfig(debug=config.debug)
        clock = clock_of(store, SystemClock())
        self.engine = Engine(store, clock, self.router, engine_config, self._metrics)
        try:
            self.engine.start()
        except BaseException:
            store.close()
            raise
        lower_switch_interval(SWITCH_S)
        self._lowered = ExitStack()  # restores it once, though some stop a server twice
        self._lowered.callback(restore_switch_interval, SWITCH_S)
        self.client = LocalClient(self.engine)
        self.router.attach(self.engine, self.client)
        self._hooks = Hooks(
            self.client, key, lambda: self.config.hooks.url or self.url, self.engine.clock.now
        )
        self.front = self._new_front(self._gate)
        self._private = self._new_front(Gate(AuthConfig()))
        self._metrics_listener = HttpListener(MetricsApp(self._metrics.scrape))
        self._watch()
        try:
            await self._listen()
        except BaseException:
            await self.stop()
            raise
        self._catching_up = asyncio.create_task(self._offer_pushes())

    async def stop(self) -> None:
        """Accept nothing more, answer what is under way, close the store."""
        grace = self.config.server.shutdown_timeout
        if self._catching_up is not None:
            self._catching_up.cancel()
        await asyncio.gather(self.front.close(grace), self._close_private(grace))
        await self._metrics_listener.close(0)
        await self._pusher.close(min(grace, 1.0))
        await self.client.close()
        await asyncio.get_running_loop().run_in_executor(None, self.engine.leave)
        self._lowered.close()

    async def _listen(self) -> None:
        http = self.config.server
        self.port = await _listen(self.front.listener, http.host, http.port, "--port")
        self.front.app.url = self.url
        if http.metrics_port:
            await _listen(self._metrics_listener, http.host, http.metrics_port, "--metrics-port")
        await self._listen_beside_the_file()

    async def _listen_beside_the_file(self) -> None:
        """As every owner of a file does. Without a token: its permissions are the file's."""
        self._private.app.url = self.url
        if not is_file(self.config.db):
            return
        path = socket_of(path_of(self.config.db))
        try:
            await self._private.listener.listen_on_path(path)
        except OSError as error:
            logger.warning(
                "commands can reach this server only by --url, not by its file: %s: %s", path, error
            )

    async def _close_private(self, grace: float) -> None:
        await self._private.close(grace)
        if is_file(self.config.db):
            with suppress(OSError):  # it is not ours: then we never opened one
                socket_of(path_of(self.config.db)).unlink()

    def _new_front(self, gate: Gate) -> Front:
        http, poll = self.config.server, self.config.poll
        settings = HttpSettings(
            max_body=http.max_body,
            max_polls=poll.max_connections,
            poll_buffer=poll.buffer,
            ping_every=poll.ping,
            poll_patience=poll.patience,
            origins=self.config.cors.origins,
        )
        return Front(
            self.client,
            self.router,
            settings,
            gate=gate,
            count=self._count,
            metrics=self._metrics.scrape,
            limits=Limits(http.read_timeout, http.write_timeout, http.max_connections),
            debug=self.config.debug,
            hooks=self._hooks,
        )

    # --- wiring --------------------------------------------------------------------------

    def _link_key(self, store: Store) -> bytes:
        """Signs links. All servers of one database have the same, configured or kept there."""
        given = self.config.hooks.secret
        text = store.kept_secret(LINKS, token_urlsafe(32)) if given is None else given.reveal()
        return text.encode()

    def _new_pusher(self) -> Pusher:
        return Pusher(
            self._push_config(),
            encode=lambda each: encode_message(each.message, each.promise, self.url),
            load=self._load,
            on_delivered=lambda each: self.engine.forget([each.message]),
            on_dropped=lambda each: self.engine.forget([each.message]),
            count=self._metrics.delivery,
            prefix_of=None if self._gate.is_open else self._gate.prefixes.of,
        )

    def _push_config(self) -> PushConfig:
        """Allow pushes to this machine if only its own processes can use this server, without auth.

        A configured URL, or allowed origins, suggest that others reach it through a proxy.
        """
        push, http = self.config.push, self.config.server
        is_for_others = http.url is not None or self.config.cors.origins
        if not self._gate.is_open or not http.is_local or is_for_others:
            return push
        return replace(push, allow=(*push.allow, *LOOPBACK))

    async def _load(self, message: Message) -> Outgoing | None:
        """An unblock that had to wait, with its promise."""
        reply = await self.client.send(GetPromise(id=message.id))
        if not isinstance(reply.data, PromiseData):
            return None
        return Outgoing(message, reply.data.promise)

    async def _offer_pushes(self) -> None:
        """Offer the messages that an earlier process could not push."""
        page = OfferMessages(start="http", end="http\U0010ffff")
        while True:
            reply = await self.client.send(page)
            if not isinstance(reply.data, OfferMessages) or reply.data.after == FIRST_PAGE:
                return
            page = reply.data

    async def _stats(self) -> StatsData:
        data = (await self.client.send(GetStats())).data
        if not isinstance(data, StatsData):
            raise StoreUnavailable(f"the store cannot be counted: {data}")
        return data

    def _count(self, kind: str, status: int, seconds: float, why: str) -> None:
        self._metrics.request(kind, status, seconds)
        log_request(kind, status, seconds, why)

    def watch(self, name: Live, read: Callable[[], float]) -> None:
        """Show a number among the metrics."""
        self._metrics.watch(name, read)

    def _watch(self) -> None:
        self._metrics.watch("poll_connections", self._polls)
        self._metrics.watch("backlog_requests", lambda: self.engine.backlog)
        self._metrics.watch("free_slots", lambda: self.engine.free_slots)
        self._metrics.watch("pushes_under_way", lambda: self._pusher.under_way)
        self._metrics.watch("store_time_ahead", lambda: self.engine.clock.ahead() / 1000)

    def _polls(self) -> int:
        return len(self.front.app.polls) + len(self._private.app.polls)


Beside = Callable[[Server], AbstractAsyncContextManager[Any]]
"""What else runs in the process of a server, from its start to its end."""


async def serve(
    config: ServerConfig,
    on_ready: Callable[[Server], Any],
    beside: Beside = nullcontext,
) -> None:
    """Serve until a signal to stop; a second signal ends the process at once."""
    for warning in configuration.warnings(config, os.environ):
        logger.warning(warning)
    server = Server(_limit_connections(config))
    await server.start()
    stop = stop_requested(partial(logger.info, "shutting down: finishing open requests"))
    try:
        async with beside(server):
            on_ready(server)
            _keep_collections_short()
            await stop.wait()
    finally:
        await server.stop()


def _keep_collections_short() -> None:
    """A full collection looks at every object that may be part of a cycle, and nobody is served
    meanwhile: 20 ms for the code alone. That stays as it is from here on, so leave it out.
    """
    gc.collect()
    gc.freeze()


def _open_store(config: ServerConfig) -> Store:
    """Refuse URLs, which would be taken for paths, and create a file of that name."""
    db = config.db
    is_whole = is_postgres(db) or db.startswith("sqlite:")
    if is_url(db) or ("://" in db and not is_whole) or (is_postgres(db) and "://" not in db):
        raise UsageError(
            f"db cannot be {without_password(db)}: a server keeps everything in a file or in "
            "PostgreSQL, so write for example sqlite:layby.db"
        )
    return open_store(db, config.durability, config.settings, is_server=True)


def _limit_connections(config: ServerConfig) -> ServerConfig:
    wanted = config.server.max_connections
    allowed = allow_connections(wanted)
    if allowed < wanted:
        why = "raise the limit of open files to allow more (ulimit -Hn)"
        logger.info("at most %d connections, not %d: %s", allowed, wanted, why)
    return replace(config, server=replace(config.server, max_connections=allowed))


def _why(error: OSError) -> str:
    """Without the address, which asyncio repeats; a name that is not known has its own words."""
    code = error.errno or 0
    return os.strerror(code).lower() if code > 0 else error.strerror or str(error)


async def _listen(listener: HttpListener, host: str, port: int, flag: str) -> int:
    try:
        return await listener.listen(host, port)
    except OSError as error:
        remedy = {
            errno.EADDRINUSE: f"stop the process that uses it, or choose another port with {flag}",
            errno.EACCES: f"choose a port above 1023 with {flag}, or grant the permission",
        }.get(error.errno or 0, "give an address of this machine with --host")
        raise UsageError(
            f"cannot listen on {host} port {port} ({_why(error)}): {remedy}"
        ) from error
