"""Pages of the outbox with what they are about: all of it, once, and never too much at a time."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import pytest

from layby.core.commands import CreatePromise, RegisterListener, SettlePromise, Value
from layby.core.model import NEVER, Message
from layby.core.queries import OfferMessages
from layby.engine.outbox import AT_ONCE, PAGE_CHARS, announced_outbox, stored_outbox
from layby.store.api import Store
from tests.helpers.worlds import BACKENDS, Backend, World


def filled(backend: Backend, count: int, chars: int) -> World:
    """So many settled promises that somebody wants to hear of."""
    world = World(backend)
    for number in range(count):
        world.ok(CreatePromise(id=f"p{number}", timeout_at=NEVER))
        world.ok(RegisterListener(awaited=f"p{number}", address="poll://uni@g/w"))
        value = Value(data="x" * chars)
        world.ok(SettlePromise(id=f"p{number}", state="resolved", value=value))
    return world


def pages(world: World, limit: int) -> list[list[str]]:
    found: list[list[str]] = []
    page = OfferMessages(limit=limit)
    while True:
        with world.store.transaction():
            outgoing, last = stored_outbox(world.store, page, world.engine.clock.now())
        found.append([each.promise.id for each in outgoing if each.promise is not None])
        if last is None:
            return found
        page = OfferMessages(limit=limit, after=(last.address, last.id, last.kind))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("limit", [1, AT_ONCE, 35, 1_000])
@pytest.mark.parametrize("chars", [1, PAGE_CHARS // AT_ONCE])
def test_pages_hold_everything_once(backend: Backend, limit: int, chars: int) -> None:
    with filled(backend, 35, chars) as world:
        told = [each for page in pages(world, limit) for each in page]
        assert sorted(told) == sorted(f"p{number}" for number in range(35))


def test_a_page_of_large_values_is_short() -> None:
    """A hundred of them, each of megabytes, are not read at once."""
    with filled("sqlite", 4 * AT_ONCE, PAGE_CHARS // AT_ONCE) as world:
        assert [len(page) for page in pages(world, 1_000)] == [AT_ONCE] * 4
    with filled("sqlite", 4 * AT_ONCE, 1) as world:
        assert [len(page) for page in pages(world, 1_000)] == [4 * AT_ONCE]


class _Leases:
    """Of a store that others share: how each transaction that leases a message was committed."""

    def __init__(self) -> None:
        self.lazily: list[bool] = []

    def transaction(self, *, lazily: bool = False) -> AbstractContextManager[None]:
        self.lazily.append(lazily)
        return nullcontext()

    def lease_messages(self, messages: Sequence[Message], _: int) -> list[tuple[Message, None]]:
        return [(each, None) for each in messages]


def test_a_lease_on_an_announced_message_does_not_wait_for_the_disk() -> None:
    """Somebody waits for the message; a database that crashes forgets the lease, and no more."""
    store, message = _Leases(), Message("p", "unblock", "poll://any@default")
    ((outgoing,),) = announced_outbox(cast("Store", store), [message], 0)
    assert outgoing.message == message
    assert store.lazily == [True]
