"""HTTP push: a message is one POST to its address, repeated until it arrives or is withdrawn.

The kind of failure decides what waits. A host that cannot be reached is backed off as a whole
(`push_queue`). If a host answers, breaks off or stays silent for too long, only that message
waits: 0.2 s, then twice as long each time, up to 30 s. A refusal (a redirect, 4xx) will hardly
change within a second, so it waits 30 s from the start; but it is not final, since people deploy
the missing route or correct the token, and nothing else repeats an unblock.

Nothing is lost when this process ends: what has not arrived is still in the outbox.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from yarl import URL

from layby.client.outbound import Lookup, look_up
from layby.core.model import Message, MessageKey, MessageKind
from layby.core.pauses import Pauses
from layby.engine.outbox import Outgoing
from layby.server.push_outcome import PushOutcome
from layby.server.push_post import Poster
from layby.server.push_queue import PendingPush, PushHost, PushQueue
from layby.server.server_config import PushConfig

logger = logging.getLogger(__name__)

Status = Literal["success", "error", "dropped"]

PAUSES: Final = Pauses(0.2, longest=30.0)
RESEND_AFTER: Final = 25.0
"""A message that is offered again is sent again if it has had no answer for this long."""
_REFUSED: Final = 100  # counts as this many failures: the longest pause
_MAX_LOGGED: Final = 1_000


def pause_after(failures: int) -> float:
    """Seconds until the next try, randomized so that many retries spread out."""
    return PAUSES.after(failures) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret


class Pusher:
    """Use it in the event loop it is created in.

    `on_delivered`: the answer was 2xx. `on_dropped`: the message can never be delivered. `load`
    returns an unblock that had to wait, with its promise, or None if that is gone. `count` is
    called for every try. `prefix_of` finds the prefix of a token that
    covers an id, where there are tokens.
    """

    def __init__(
        self,
        config: PushConfig,
        *,
        encode: Callable[[Outgoing], bytes],
        load: Callable[[Message], Awaitable[Outgoing | None]],
        on_delivered: Callable[[Outgoing], None],
        on_dropped: Callable[[Outgoing], None],
        count: Callable[[MessageKind, Status], None] = lambda _kind, _status: None,
        pause: Callable[[int], float] = pause_after,
        lookup: Lookup = look_up,
        resend_after: float = RESEND_AFTER,
        prefix_of: Callable[[str], str] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_enabled = config.enabled
        self._encode = encode
        self._load = load
        self._on_delivered = on_delivered
        self._on_dropped = on_dropped
        self._count = count
        self._pause = pause
        self._resend_after = resend_after
        self._poster = Poster(config, self._connected, lookup)
        self._queue = PushQueue(config.concurrency, by_prefix=prefix_of is not None)
        self._prefix_of: Callable[[str], str] = prefix_of or (lambda _: "")
        self._pending: dict[MessageKey, PendingPush] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._logged: set[tuple[str, str]] = set()
        self._is_closing = False

    @property
    def under_way(self) -> int:
        """Messages without an answer yet."""
        return len(self._sending)

    @property
    def pending(self) -> list[Message]:
        return [each.message for each in self._pending.values()]

    def push(self, outgoing: Outgoing) -> None:
        """Never blocks. Only the newest message of a key counts."""
        known = self._pending.get(outgoing.key)
        if self._is_closing or (known is not None and self._is_same(known, outgoing.message)):
            return
        self.withdraw(outgoing.key)
        pending = self._new_pending(outgoing)
        if pending is None:
            self._drop(outgoing)
            return
        self._pending[outgoing.key] = pending
        self._queue.add(pending)
        self._send_all()
        if pending.sent_at is None:
            pending.promise = None

    def withdraw(self, key: MessageKey) -> None:
        """The message is stale. One under way is not aborted: that could harm its receiver."""
        pending = self._pending.pop(key, None)
        if pending is None:
            return
        self._queue.remove(pending)
        if pending.timer is not None:
            pending.timer.cancel()

    async def close(self, grace: float) -> None:
        """Pushes under way get `grace` seconds; the rest stays in the outbox."""
        self._is_closing = True
        for pending in list(self._pending.values()):
            if pending.sent_at is None:
                self.withdraw(pending.message.key)
        if self._sending:
            await asyncio.wait(self._sending, timeout=grace)
        late = list(self._sending)
        for sending in late:
            sending.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await self._poster.close()

    # --- sending -------------------------------------------------------------------------

    def _is_same(self, known: PendingPush, message: Message) -> bool:
        """It is the same message, and has not been under way for so long that it must be stuck."""
        if known.message != message:
            return False
        return known.sent_at is None or self._loop.time() < known.sent_at + self._resend_after

    def _new_pending(self, outgoing: Outgoing) -> PendingPush | None:
        """None if nothing can be sent to this address."""
        if not self._is_enabled:
            return None
        try:
            url = URL(outgoing.message.address)
            host = self._queue.host(str(url.origin()), self._prefix_of(outgoing.message.id))
        except (ValueError, IndexError):  # yarl fails on misplaced brackets
            self._log_once("its address", "dropped, since that is not a URL", outgoing.message)
            return None
        return PendingPush(host, url, outgoing.message, outgoing.promise)

    def _send_all(self) -> None:
        while (pending := self._queue.take()) is not None:
            pending.sent_at = self._loop.time()
            sending = self._loop.create_task(self._send(pending))
            self._sending.add(sending)
            sending.add_done_callback(self._sent)

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        error = None if sending.cancelled() else sending.exception()
        if error is not None:
            logger.error("handling the outcome of a push failed", exc_info=error)
        self._send_all()

    async def _send(self, pending: PendingPush) -> None:
        try:
            outcome = await self._try(pending)
            if outcome.kind == "out of reach":
                self._back_off(pending, outcome)
        finally:
            pending.sent_at = pending.promise = None
            self._queue.finish(pending)
        self._conclude(pending, outcome)

    async def _try(self, pending: PendingPush) -> PushOutcome:
        try:
            outgoing = await self._with_promise(pending)
            if outgoing is None:
                return PushOutcome("forbidden", "its promise is gone")
            return await self._poster.post(pending.url, self._encode(outgoing), pending.host)
        except Exception:
            logger.exception("the push of %s failed", _name(pending.message))
            return PushOutcome("failed", "an internal error")

    async def _with_promise(self, pending: PendingPush) -> Outgoing | None:
        if pending.message.kind == "unblock" and pending.promise is None:
            return await self._load(pending.message)
        return Outgoing(pending.message, pending.promise)

    # --- outcomes ------------------------------------------------------------------------

    def _conclude(self, pending: PendingPush, outcome: PushOutcome) -> None:
        message = pending.message
        is_wanted = self._pending.get(message.key) is pending
        if outcome.kind in ("arrived", "forbidden") and is_wanted:
            del self._pending[message.key]
        if outcome.kind == "arrived":
            self._count(message.kind, "success")
            if is_wanted:
                self._on_delivered(Outgoing(message))
        elif outcome.kind == "forbidden":
            self._log_once(pending.host.origin, f"dropped, since {outcome.why}", message)
            if is_wanted:
                self._drop(Outgoing(message))
        else:
            self._count(message.kind, "error")
            if is_wanted and not self._is_closing:
                self._repeat(pending, outcome)

    def _drop(self, outgoing: Outgoing) -> None:
        self._count(outgoing.message.kind, "dropped")
        self._on_dropped(outgoing)

    def _repeat(self, pending: PendingPush, outcome: PushOutcome) -> None:
        if outcome.kind == "out of reach":
            self._queue.add(pending)
            return
        self._log_once(
            pending.host.origin, f"{outcome.why}; it will be sent again", pending.message
        )
        pending.failures += 1
        failures = _REFUSED if outcome.kind == "refused" else pending.failures
        pending.timer = self._loop.call_later(self._pause(failures), self._again, pending)

    def _again(self, pending: PendingPush) -> None:
        pending.timer = None
        self._queue.add(pending)
        self._send_all()

    def _back_off(self, pending: PendingPush, outcome: PushOutcome) -> None:
        host = pending.host
        if not self._queue.back_off(pending):
            return
        if host.failures == 1:
            logger.warning("%s cannot be reached (%s): its messages wait", host.origin, outcome.why)
        self._loop.call_later(self._pause(host.failures), self._end_back_off, host)

    def _end_back_off(self, host: PushHost) -> None:
        self._queue.end_back_off(host)
        self._send_all()

    def _connected(self, host: PushHost) -> None:
        if self._queue.mark_reached(host):
            logger.info("%s can be reached again", host.origin)
            self._send_all()

    def _log_once(self, where: str, what: str, message: Message) -> None:
        """Once per host and reason; the metrics count every occurrence."""
        if (where, what) in self._logged:
            return
        if len(self._logged) >= _MAX_LOGGED:
            self._logged.clear()
        self._logged.add((where, what))
        logger.warning("%s to %s: %s", _name(message), where, what)


def _name(message: Message) -> str:
    return f"{message.kind} for '{message.id}'"
