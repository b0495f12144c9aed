"""Rows of which no step reads the value are loaded without it, however large it is."""

import pytest

from layby.core import commands as c
from layby.core.footprint import Footprint
from layby.core.joins import item_id
from layby.core.model import EMPTY
from tests.core.test_maps import CALLER, JOIN, add, begun
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, Backend, World

AGAIN = f"{CALLER}:map/1+2"
LARGE = c.Value(data="x" * 300_000)


@pytest.mark.parametrize("backend", [each for each in EVERY_BACKEND if each != "memory"])
def test_what_items_have_returned_is_not_loaded_to_take_it_over(backend: Backend) -> None:
    """Five hundred of them may have 1.3 MB each, and one command asks what they were."""
    with World(backend) as world:
        begun(world)
        world.ok(add(2))
        for claim in world.ok(r.take(2)).claims:
            world.ok(c.FinishTask(id=claim.task.id, version=claim.task.version, value=LARGE))
        again = add(3, join_id=AGAIN, earlier=(JOIN,), keeps=(JOIN,))
        footprint = Footprint()
        again.footprint(footprint)
        with world.store.transaction():
            rows = world.store.load(footprint, 0)
        earlier = [rows.promise(item_id(JOIN, index)) for index in range(3)]
        assert earlier[2] is None
        assert [each.value for each in earlier[:2] if each is not None] == [EMPTY, EMPTY]
        assert [each.param for each in earlier[:2] if each is not None] == [
            '{"data":"item0"}',
            '{"data":"item1"}',
        ]
        assert world.ok(again).items == 3
        assert item_id(AGAIN, 0) not in world.dump().promises
        assert len(world.promise(item_id(JOIN, 0)).value) > 300_000
        world.check()


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_who_reads_the_value_in_the_same_batch_has_it(backend: Backend) -> None:
    """A task that was deferred until an item has ended is handed out with what the item said."""
    with World(backend) as world:
        world.ok(r.dag({"a": "", "b": ""}))
        world.ok(r.take(2))
        world.ok(add(1))
        (claim,) = world.ok(r.take(1)).claims
        done = r.trigger("PromiseSettled", id=claim.task.id)
        world.ok(r.defer("run/a:b", 1, done, None, "go_on"))
        world.ok(c.FinishTask(id=claim.task.id, version=claim.task.version, value=LARGE))
        again = add(1, join_id=AGAIN, earlier=(JOIN,), keeps=(JOIN,))
        added, taken = world.batch([(again, world.now), (r.take(1), world.now)])
        assert added.data.items == 1
        (resumed,) = taken.data.claims
        assert len(resumed.resumed.event.value) > len(LARGE.data or "")
        world.check()
