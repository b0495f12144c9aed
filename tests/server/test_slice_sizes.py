"""Large slices for who is alone, small ones as soon as somebody else is there."""

import asyncio

import msgspec

from layby.core.model import NEVER
from layby.core.settings import Settings
from layby.delivery.routing import Router
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.local import LocalClient
from layby.server.auth import Gate
from layby.server.auth_config import AuthConfig
from layby.server.batch_answers import BatchAnswers
from layby.server.request_handler import Peer, RequestHandler
from layby.server.slice_sizes import ALONE, LONELY, SLICE, SliceSizes
from layby.store.memory import MemoryStore
from layby.wire.decode import VERSION
from tests.helpers.clocks import ManualClock


def test_who_is_alone_gets_large_slices_until_somebody_else_asks() -> None:
    sizes = SliceSizes()
    assert [sizes.next("a") for _ in range(LONELY + 2)] == [SLICE] * LONELY + [ALONE] * 2
    sizes.note("b")
    assert [sizes.next("a") for _ in range(LONELY + 1)] == [SLICE] * LONELY + [ALONE]


def test_two_who_take_turns_get_small_ones() -> None:
    sizes = SliceSizes()
    assert {sizes.next(caller) for _ in range(3 * LONELY) for caller in "ab"} == {SLICE}


def test_what_its_own_caller_asks_beside_it_does_not_count() -> None:
    sizes = SliceSizes()
    for _ in range(LONELY):
        sizes.next("a")
    sizes.note("a")
    assert sizes.next("a") == ALONE


def test_whatever_somebody_else_asks_makes_slices_small_again() -> None:
    assert asyncio.run(_commits()) == [11, 4, 11]


async def _commits() -> list[int]:
    """Of three batches of 1,000 writes; before the third another connection asks for something."""
    engine = Engine(MemoryStore(Settings(), next_after), ManualClock())
    engine.start_inline()
    client, found = LocalClient(engine), list[int]()
    gate = Gate(AuthConfig())
    handler = RequestHandler(client, Router(), gate, lambda *_: None, debug=False)
    for number in range(3):
        before = engine.commits
        many = [_ask("promise.create", f"{number}/{n}", timeoutAt=NEVER) for n in range(1_000)]
        body = msgspec.json.encode(_ask("layby.batch", "", requests=many))
        answers = (await handler.answer(body, None, _peer("a"))).body
        assert isinstance(answers, BatchAnswers)
        while not answers.is_done:
            await answers.next()
        found.append(engine.commits - before)
        if number == 1:
            await handler.answer(msgspec.json.encode(_ask("promise.get", "x")), None, _peer("b"))
    await client.close()
    engine.stop()
    return found


def _ask(kind: str, promise_id: str, **more: object) -> dict[str, object]:
    head = {"corrId": "c", "version": VERSION}
    return {"kind": kind, "head": head, "data": {"id": promise_id, **more}}


def _peer(connection: str) -> Peer:
    async def stays() -> None:
        await asyncio.Event().wait()

    return Peer(stays, lambda: False, connection)
