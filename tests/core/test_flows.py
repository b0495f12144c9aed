"""What workers publish of their workflows: the last one wins, and anybody may look."""

import pytest

from layby.core.commands import LeaveWorker
from layby.core.flows import MAX_LAYOUT_CHARS, FindFlow, PublishFlow
from layby.core.replies import FlowData
from tests.helpers import requests as r
from tests.helpers.worlds import World


def found(world: World, name: str, group: str = "g", names: int = 10) -> FlowData:
    data = world.send(FindFlow(group=group, name=name, names=names)).data
    assert isinstance(data, FlowData), data
    return data


def test_the_last_one_wins(world: World):
    """One row for each group and name: two workers of different code do not add up."""
    for layout in ("one", "two", "one"):
        assert world.send(PublishFlow(group="g", name="order", layout=layout)).is_ok
        assert found(world, "order").layout == layout
    assert len(world.dump().flows) == 1


def test_a_layout_that_postgres_cannot_store_is_refused(world: World):
    reply = world.send(PublishFlow(group="g", name="order", layout="{}\0"))
    assert (reply.status, reply.data) == (400, "layout must not contain NUL")


def test_a_name_is_known_in_its_group(world: World):
    """Elsewhere only that there is one; a mistake can be told from what there is."""
    world.send(PublishFlow(group="g", name="order", layout="{}"))
    world.send(PublishFlow(group="g", name="refund", layout="{}"))
    assert found(world, "order", "other") == FlowData(0, ["g"], [])
    assert found(world, "ordr") == FlowData(0, [], ["order", "refund"])
    assert found(world, "ordr", names=1).names == ["order"]
    assert found(world, "order") == FlowData(0, [], ["order", "refund"], "{}")


def test_living_workers_with_its_code_are_counted(world: World):
    """Of the group, and until they leave."""
    world.send(r.take(pid="w-1", group="g", names=("order", "order/pack")))
    world.send(r.take(pid="w-2", group="g", names=("refund",)))
    world.send(r.take(pid="w-3", group="h", names=("order",)))
    assert found(world, "order").able_workers == 1
    world.ok(LeaveWorker(pid="w-1", incarnation="1"))
    assert found(world, "order").able_workers == 0


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (PublishFlow(group="a/b", name="order", layout=""), "Group must not"),
        (PublishFlow(group="g", name="", layout=""), "Name of a workflow is required"),
        (PublishFlow(group="g", name="n", layout="x" * (MAX_LAYOUT_CHARS + 1)), "layout"),
        (FindFlow(group="g", name=""), "Name of a workflow is required"),
        (FindFlow(group="g", name="n", names=-1), "names must be between"),
    ],
    ids=lambda each: None if isinstance(each, str) else type(each).__name__,
)
def test_bad_fields(world: World, request_: PublishFlow | FindFlow, why: str):
    """Refused before anything is written."""
    reply = world.send(request_)
    assert (reply.status, why in str(reply.data)) == (400, True), reply
