"""Pages of the outbox: every message of a range of addresses once, in order, on either store."""

import pytest

from layby.core.commands import CreatePromise
from layby.core.model import NEVER
from layby.core.queries import OfferMessages
from layby.store.sql import SqlStore
from tests.helpers.worlds import EVERY_BACKEND, Backend, World

ADDRESSES = ("poll://any@f", "poll://any@g", "poll://any@g/w", "poll://any@gg", "poll://uni@g/w")


def filled(backend: Backend) -> World:
    world = World(backend)
    for number in range(20):
        tags = {"resonate:target": ADDRESSES[number % len(ADDRESSES)]}
        world.ok(CreatePromise(id=f"t{number}", timeout_at=NEVER, tags=tags))
    return world


def pages(world: World, start: str, end: str, limit: int) -> list[tuple[str, str]]:
    """Address and id of everything from `start` to before `end`."""
    page, found = OfferMessages(start=start, end=end, limit=limit), []
    while rows := world.store.messages(page):
        found += [(row.address, row.id) for row in rows]
        after = (rows[-1].address, rows[-1].id, rows[-1].kind)
        page = OfferMessages(start=start, end=end, limit=limit, after=after)
    return found


@pytest.mark.parametrize("backend", EVERY_BACKEND)
@pytest.mark.parametrize("limit", [1, 3, 4, 100])
def test_pages_hold_a_range_of_addresses_once(backend: Backend, limit: int) -> None:
    with filled(backend) as world:
        every = sorted((ADDRESSES[n % len(ADDRESSES)], f"t{n}") for n in range(20))
        assert pages(world, "", "\U0010ffff", limit) == every
        for start, end in (("poll://any@g", "poll://any@g0"), ("poll://any@g/w", "poll://uni")):
            assert pages(world, start, end, limit) == [e for e in every if start <= e[0] < end]


def test_a_page_is_found_without_reading_those_before_it() -> None:
    """Its place is where the index is entered: a long outbox is not read over and over."""
    with filled("sqlite") as world:
        assert isinstance(world.store, SqlStore)
        plan = world.store._connection.execute(
            f"EXPLAIN QUERY PLAN {world.store._sql.outbox}", ("a", "b", "c", "d", 9)
        ).fetchall()
        assert any("(address,id,kind)>(?,?,?) AND address<?" in row[-1] for row in plan), plan
