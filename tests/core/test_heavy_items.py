"""What `layby.map.add` reads of items that are there: however large they are, nothing of those of
its own join, and of those of earlier joins only whether they are the same.
"""

from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.rows import Rows
from layby.store.api import Store
from layby.store.page_bounds import LIGHT
from tests.core.test_maps import CALLER, JOIN, add, begun, item, names_taken
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, World

AGAIN = f"{CALLER}:map/1+2"
SIZES = (10, LIGHT + 1, 300_000)
"""Of an item that travels with its row, of one that does not, and of one that is read in pieces."""
NOTHING = len("{}{}")
"""What is read of a promise without its texts."""


class Loads:
    """How large the texts of items were that a store has read for its last batch."""

    def __init__(self) -> None:
        self.of_items = 0

    def wrap(self, store: Store) -> Store:
        load = store.load

        def loaded(*given):
            rows = load(*given)
            self.of_items = texts_of_items(rows)
            return rows

        store.load = loaded  # pyright: ignore[reportAttributeAccessIssue] - listens to it
        return store


def texts_of_items(rows: Rows) -> int:
    items = [
        each
        for key, each in rows.promises.items()
        if key.startswith(f"{CALLER}:map/") and key[-2] == ":"
    ]
    texts = {id(text): text for each in items for text in (each.param, each.value)}
    return sum(map(len, texts.values()))


@pytest.fixture
def loads() -> Loads:
    return Loads()


@pytest.fixture(params=EVERY_BACKEND)
def world(request: pytest.FixtureRequest, loads: Loads) -> Iterator[World]:
    with World(request.param, wrap=loads.wrap) as world:
        begun(world)
        yield world


def adding(*texts: str, **options) -> c.AddItems:
    return replace(add(**options), items=tuple(c.Value(data=each) for each in texts))


def params(world: World, *after: c.Command) -> dict[str, str]:
    """Of what a take is handed that comes in one batch after these commands."""
    *replies, taken = world.batch([(each, world.now) for each in (*after, r.take(10))])
    assert all(each.is_ok for each in replies), replies
    return {claim.task.id: claim.promise.param for claim in taken.data.claims}


def as_param(text: str) -> str:
    return f'{{"data":"{text}"}}'


def succeed(world: World, ids: Sequence[str]) -> None:
    for each in ids:
        world.ok(r.finish(each))


@pytest.mark.parametrize("size", SIZES)
def test_a_portion_that_comes_again_reads_no_items(world: World, loads: Loads, size: int) -> None:
    large = "x" * size
    first = adding(large, large, large, is_last=False)
    world.ok(first)
    state = world.dump()
    for again in (first, adding("other", "other", "other", is_last=False)):
        world.ok(again)
        assert loads.of_items <= 3 * NOTHING
    assert world.dump() == state


def test_items_of_earlier_joins_are_not_read_if_they_are_others(world: World, loads: Loads) -> None:
    world.ok(adding(*(letter * 300_000 for letter in "abc")))
    succeed(world, names_taken(world))
    small = adding("a", "b", "c", join_id=AGAIN, earlier=(JOIN,), keeps=(JOIN,))
    world.ok(small)
    assert loads.of_items <= 3 * NOTHING
    assert names_taken(world) == [item(0, AGAIN), item(1, AGAIN), item(2, AGAIN)]


def test_items_that_are_the_same_are_kept_once(world: World, loads: Loads) -> None:
    earlier = tuple(f"{JOIN}.{number}" for number in range(5))
    for each in earlier:
        world.ok(adding("a" * 300_000, join_id=each))
    world.ok(adding("a" * 300_000, join_id=AGAIN, earlier=earlier, keeps=earlier))
    assert 300_000 < loads.of_items < 310_000


@pytest.mark.parametrize("size", SIZES)
def test_only_an_item_that_is_the_same_is_taken_over(world: World, size: int) -> None:
    """One that is as long is not, whatever else of it is equal."""
    same, almost = "é" * size, "é" * (size - 1) + "è"
    world.ok(adding(same, same, same))
    succeed(world, names_taken(world))
    again = adding(same, almost, same, join_id=AGAIN, earlier=(JOIN,), keeps=(JOIN,))
    world.ok(again)
    assert names_taken(world) == [item(1, AGAIN)]
    world.check()


def test_one_item_that_is_the_same_as_another_number_is_not(world: World) -> None:
    world.ok(adding("a", "b"))
    succeed(world, names_taken(world))
    world.ok(adding("b", "b", join_id=AGAIN, earlier=(JOIN,), keeps=(JOIN,)))
    assert names_taken(world) == [item(0, AGAIN)]


@pytest.mark.parametrize("size", SIZES)
def test_who_is_handed_an_item_gets_all_of_it(world: World, size: int) -> None:
    """Also in the batch that only asks whether it is there."""
    texts = [letter * size for letter in "ab"]
    world.ok(adding(*texts, is_last=False))
    found = params(world, adding(*texts, is_last=False))
    assert found == {item(0): as_param(texts[0]), item(1): as_param(texts[1])}


@pytest.mark.parametrize("size", SIZES)
def test_who_is_handed_an_earlier_item_gets_all_of_it(world: World, size: int) -> None:
    texts = [letter * size for letter in "ab"]
    world.ok(adding(*texts))
    other = adding("c", "d", join_id=AGAIN, earlier=(JOIN,), keeps=(JOIN,), is_last=False)
    found = params(world, other)
    assert {key: found[key] for key in (item(0), item(1))} == {
        item(0): as_param(texts[0]),
        item(1): as_param(texts[1]),
    }


@pytest.mark.parametrize("size", SIZES)
def test_who_is_let_in_and_handed_out_has_all_of_it(world: World, size: int) -> None:
    """The limit of the earlier map has a permit again in the same batch."""
    texts = [letter * size for letter in "abc"]
    world.ok(adding(*texts, limit=1))
    assert names_taken(world) == [item(0)]
    other = adding("c", "d", join_id=AGAIN, earlier=(JOIN,), keeps=(JOIN,), is_last=False)
    found = params(world, other, r.finish(item(0)))
    assert found[item(1)] == as_param(texts[1])
    own = params(world, adding(*texts, limit=1), r.finish(item(1)))
    assert own[item(2)] == as_param(texts[2])


@pytest.mark.parametrize("size", SIZES)
def test_who_is_resumed_and_handed_out_has_all_of_it(world: World, size: int) -> None:
    """By a promise that is settled in the same batch."""
    text = "a" * size
    world.ok(r.promise("p"))
    world.ok(adding(text))
    assert names_taken(world) == [item(0)]
    world.ok(r.suspend(item(0), 1, "p"))
    other = adding("c", join_id=AGAIN, earlier=(JOIN,), keeps=(JOIN,), is_last=False)
    found = params(world, other, r.settle("p"))
    assert found[item(0)] == as_param(text)
