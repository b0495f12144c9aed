"""Large requests wait for small ones that are under way, and then their turn."""

import asyncio

import msgspec
import pytest

from layby.core.model import NEVER
from layby.core.settings import Settings
from layby.delivery.routing import Router
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.local import LocalClient
from layby.server import request_handler, turns
from layby.server.auth import Gate
from layby.server.auth_config import AuthConfig
from layby.server.batch_answers import HURRIED_BYTES, BatchAnswers
from layby.server.request_handler import Peer, RequestHandler
from layby.store.memory import MemoryStore
from layby.wire.decode import VERSION, Request, decode
from tests.helpers.clocks import ManualClock


class SlowClient(LocalClient):
    """Answers only when it is told to."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.may_answer = asyncio.Event()

    def ask(self, *given, **named):
        asked = super().ask(*given, **named)

        async def later():
            await self.may_answer.wait()
            return await asked

        return asyncio.ensure_future(later())


def envelope(kind: str, **data: object) -> bytes:
    head = {"corrId": "c", "version": VERSION}
    return msgspec.json.encode({"kind": kind, "head": head, "data": data})


def peer(connection: str) -> Peer:
    async def stays() -> None:
        await asyncio.Event().wait()

    return Peer(stays, lambda: False, connection)


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_large_request_is_not_decoded_while_a_small_one_is_under_way(
    is_batch: bool, monkeypatch
) -> None:
    """Neither beside a single one nor beside a small batch; and when that is answered, it is."""
    monkeypatch.setattr(turns, "GIVE_WAY_S", 60.0)
    decoded: list[int] = []

    def note(body: bytes) -> Request:
        decoded.append(len(body))
        return decode(body)

    monkeypatch.setattr(request_handler, "decode", note)

    async def scene() -> None:
        engine = Engine(MemoryStore(Settings(), next_after), ManualClock())
        engine.start_inline()
        client = SlowClient(engine)
        handler = RequestHandler(client, Router(), Gate(AuthConfig()), lambda *_: None, debug=False)
        small = asyncio.ensure_future(_answered(handler, _small(is_batch=is_batch)))
        large = envelope("promise.get", id="x" * HURRIED_BYTES)
        waiting = asyncio.ensure_future(handler.answer(large, None, peer("large")))
        await asyncio.wait((waiting,), timeout=0.1)
        assert max(decoded) < HURRIED_BYTES
        assert not small.done()
        client.may_answer.set()
        await small
        await waiting
        assert max(decoded) > HURRIED_BYTES
        await client.close()
        engine.stop()

    asyncio.run(asyncio.wait_for(scene(), 30))


def _small(*, is_batch: bool) -> bytes:
    if not is_batch:
        return envelope("promise.create", id="small", timeoutAt=NEVER)
    head = {"corrId": "c", "version": VERSION}
    data = {"id": "small", "timeoutAt": NEVER}
    return envelope(
        "layby.batch", requests=[{"kind": "promise.create", "head": head, "data": data}]
    )


async def _answered(handler: RequestHandler, body: bytes) -> None:
    answer = (await handler.answer(body, None, peer("small"))).body
    if isinstance(answer, BatchAnswers):
        await answer.next()
