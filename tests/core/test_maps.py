"""The rule of `map`: a join waits for the tasks of its items, and core itself settles it."""

import json
from base64 import b64decode

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core import queries as q
from layby.core.footprint import Footprint
from layby.core.joins import MAX_ITEM_BYTES, MAX_ITEMS
from layby.core.maps import MAX_PORTION
from layby.core.pruning import PACE_MS
from layby.core.settings import Settings
from layby.core.values import wrap
from tests.core.test_pruning import prune
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, World

CALLER = "run/a:a"
JOIN = f"{CALLER}:map/1"


def add(count: int = 2, first: int = 0, *, is_last: bool = True, **options) -> c.AddItems:
    given = {"id": CALLER, "version": 1, "join_id": JOIN, "task": "m:f"} | options
    items = tuple(c.Value(data=f"item{first + each}") for each in range(count))
    return c.AddItems(items=items, first=first, is_last=is_last, **given)


def begun(world: World, timeout: int = 1_000_000, **after: str) -> None:
    """The caller runs."""
    world.ok(r.dag({"a": ""} | after, timeout=timeout))
    world.ok(r.take(1))


def item(index: int, join: str = JOIN) -> str:
    return f"{join}:{index}"


def finish_all(world: World, free: int = 10) -> list[str]:
    """Take whatever is ready, and finish it; the ids in order."""
    claims = world.ok(r.take(free)).claims
    for claim in claims:
        world.ok(r.finish(claim.task.id, claim.task.version))
    return [claim.task.id for claim in claims]


def read(world: World, *earlier: str, **options) -> list[tuple[str, str]]:
    page = world.ok(q.ReadItems(id=JOIN, earlier=earlier, **options))
    return [(each.id, each.state) for each in page.promises]


def told(world: World, join: str = JOIN) -> dict:
    return json.loads(b64decode(json.loads(world.promise(join).value)["data"]))


def test_items_are_tasks_below_their_join(world: World) -> None:
    begun(world)
    made = world.ok(add(2, param=c.Value(data="once")))
    assert (made.promise.id, made.items, made.promise.param) == (JOIN, 2, "{}")
    state = world.dump()
    join, one = state.tasks[JOIN], state.tasks[item(1)]
    assert (join.kind, join.state, join.waits_left, join.name) == ("join", "suspended", 2, None)
    assert (one.kind, one.state, one.name, one.group) == ("node", "pending", "f", "g")
    assert "once" in state.promises[JOIN].param
    assert state.promises[item(1)].param == '{"data":"item1"}'
    assert {state.promises[each].timeout_at for each in (JOIN, item(0), item(1))} == {1_000_000}
    assert world.ok(r.take(0)).claims == []
    world.check()


def test_an_item_is_as_large_as_the_docs_say(world: World) -> None:
    """A million bytes as JSON, and no more, whoever sends it."""
    begun(world)
    largest = wrap(b"1" * MAX_ITEM_BYTES)
    world.ok(replace(add(1), items=(largest,)))
    larger = replace(add(1), items=(wrap(b"1" * (MAX_ITEM_BYTES + 3)),))
    reply = world.send(larger)
    assert reply.status == 400
    assert "item 0 has" in str(reply.data)


def test_items_are_counted_by_how_they_are(world: World) -> None:
    """Without what items have below them: another map has its own count."""
    begun(world)
    world.ok(add(3))
    claim = world.ok(r.take(1)).claims[0]
    world.ok(add(2, id=claim.task.id, version=claim.task.version, join_id=f"{item(0)}:map/1"))
    counts = world.ok(q.CountItems(id=JOIN))
    assert (counts.running, counts.ready, counts.done) == (1, 2, 0)
    assert world.ok(q.CountItems(id=f"{item(0)}:map/1")).ready == 2


def test_a_join_ends_when_all_items_have(world: World) -> None:
    """A tick settles it, and no take ever finds it."""
    begun(world)
    world.ok(add(2))
    assert finish_all(world, 1) == [item(0)]
    world.tick()
    assert world.promise(JOIN).is_pending
    assert finish_all(world) == [item(1)]
    assert [each.task.id for each in world.ok(r.take(10)).claims] == []
    world.tick()
    assert (world.promise(JOIN).state, told(world)) == ("resolved", {"items": 2})
    assert world.task(CALLER).state == "acquired"
    world.check()


def test_portions_may_come_late_and_twice(world: World) -> None:
    """What is there already stays; the join ends only when the last portion is there."""
    begun(world)
    world.ok(add(2, is_last=False))
    assert finish_all(world) == [item(0), item(1)]
    world.tick()
    assert (world.promise(JOIN).is_pending, world.task(JOIN).state) == (True, "suspended")
    world.check()
    before = world.dump()
    world.ok(add(2, is_last=False))
    assert world.dump() == before
    assert world.ok(add(1, first=2)).items == 3
    assert world.ok(add(1, first=3)).items == 3
    assert finish_all(world) == [item(2)]
    world.tick()
    assert told(world) == {"items": 3}
    assert item(3) not in world.dump().promises


def test_a_map_over_nothing_ends_at_once(world: World) -> None:
    begun(world)
    world.ok(add(0))
    world.check()
    world.tick()
    assert told(world) == {"items": 0}
    assert read(world) == []


@pytest.mark.parametrize("collects", [False, True])
def test_a_failed_item(world: World, collects: bool) -> None:
    """It ends the join and what is left of it, unless failures are collected."""
    begun(world)
    world.ok(add(3, collects=collects))
    claims = world.ok(r.take(2)).claims
    world.ok(r.fail(claims[0].task.id, claims[0].task.version))
    world.tick()
    world.check()
    states = [world.promise(item(each)).state for each in range(3)]
    if collects:
        assert states == ["rejected", "pending", "pending"]
        world.ok(r.finish(claims[1].task.id, claims[1].task.version))
        assert finish_all(world) == [item(2)]
        world.tick()
        assert (world.promise(JOIN).state, told(world)) == ("resolved", {"items": 3})
        return
    assert states == ["rejected", "rejected_canceled", "rejected_canceled"]
    assert (world.promise(JOIN).state, told(world)["item"]) == ("rejected", item(0))
    assert world.promise(CALLER).is_pending
    lost = world.ok(c.HeartbeatWorker(pid="p", incarnation="1")).lost
    assert [each.id for each in lost] == [item(1)]


@pytest.mark.parametrize("how", ["cancelled", "finished", "run cancelled", "too late", "crashed"])
def test_a_join_ends_with_its_caller(world: World, how: str) -> None:
    """Unless the caller is only taken again: then it finds its join."""
    begun(world, timeout=100_000)
    world.ok(add(3, is_last=False))
    world.ok(r.take(1))
    if how == "cancelled":
        world.ok(r.settle(CALLER, "rejected_canceled"))
    elif how == "finished":
        world.ok(r.finish(CALLER))
    elif how == "run cancelled":
        world.ok(r.settle("run/a", "rejected_canceled"))
    elif how == "too late":
        world.tick(100_000)
    else:
        world.tick(60_000)
        assert world.task(CALLER).state == "pending"
        assert world.promise(JOIN).is_pending
        world.check()
        return
    world.tick()
    world.check()
    late = how == "too late"
    ended = "rejected_timedout" if late else "rejected_canceled"
    assert {world.promise(each).state for each in (JOIN, *map(item, range(3)))} == {ended}
    assert not [wait for wait in world.dump().waits.values() if wait.awaiter == JOIN]


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_items_end_in_portions(backend) -> None:
    """A join that ends early cancels its items as a run cancels its nodes: chunk by chunk."""
    settings = Settings(hop_limit=3)
    with World(backend, settings=settings, chunk=4) as world:
        begun(world)
        world.ok(add(30))
        world.ok(r.settle(JOIN, "rejected_canceled"))
        world.check()
        world.tick()
        world.check()
        states = {world.promise(item(each)).state for each in range(30)}
        assert states == {"rejected_canceled"}
        assert world.promise(CALLER).is_pending
        assert world.promise(JOIN).tail_at is None


def test_the_next_join_of_a_call_leaves_out_what_has_succeeded(world: World) -> None:
    begun(world)
    world.ok(add(3))
    claims = world.ok(r.take(3)).claims
    world.ok(r.finish(claims[0].task.id))
    world.ok(r.fail(claims[1].task.id))
    world.tick()
    again = f"{CALLER}:map/1+2"
    assert world.ok(add(3, join_id=again, earlier=(JOIN,))).items == 3
    state = world.dump()
    assert item(0, again) not in state.promises
    assert (state.tasks[again].waits_left, state.promises[item(2, again)].state) == (2, "pending")
    assert finish_all(world) == [item(1, again), item(2, again)]
    world.tick()
    assert told(world, again) == {"items": 3}
    page = world.ok(q.ReadItems(id=again, earlier=(JOIN,)))
    assert [each.id for each in page.promises] == [item(0), item(1, again), item(2, again)]
    assert {each.state for each in page.promises} == {"resolved"}
    world.check()


def test_another_item_with_the_number_of_one_that_has_succeeded_runs(world: World) -> None:
    """What one item gave is not the result of another, wherever that stands in the list now."""
    begun(world)
    world.ok(add(3))
    claims = world.ok(r.take(3)).claims
    world.ok(r.finish(claims[0].task.id))
    world.ok(r.finish(claims[1].task.id))
    world.ok(r.fail(claims[2].task.id))
    world.tick()
    again = f"{CALLER}:map/1+2"
    others = (c.Value(data="item0"), c.Value(data="other"))
    world.ok(replace(add(join_id=again, earlier=(JOIN,)), items=others))
    assert finish_all(world) == [item(1, again)]
    world.tick()
    page = world.ok(q.ReadItems(id=again, count=2, earlier=(JOIN,)))
    assert [each.id for each in page.promises] == [item(0), item(1, again)]
    world.check()


def failed_once(world: World, began: int = 3) -> str:
    """A map of three items has failed, after so many of them had begun; the id of the next join."""
    begun(world)
    world.ok(add(3))
    claims = world.ok(r.take(began)).claims
    released = [c.Released(each.task.id, each.task.version) for each in claims[1:]]
    world.ok(r.fail(claims[0].task.id))
    world.tick()
    world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=tuple(released)))
    return f"{CALLER}:map/1+2"


def kept_from(world: World, key: str) -> str | None:
    return json.loads(world.promise(key).tags).get("layby:keeps")


def test_an_item_that_runs_again_keeps_what_it_had_recorded(world: World) -> None:
    """If it had begun: of one that had not there is nothing to recall."""
    again = failed_once(world, began=2)
    world.ok(add(3, join_id=again, earlier=(JOIN,), keeps=(JOIN,)))
    kept = [kept_from(world, item(each, again)) for each in range(3)]
    assert kept == [item(0), item(1), None]
    third = f"{CALLER}:map/1+3"
    world.ok(add(3, join_id=third, keeps=(again, JOIN)))
    assert kept_from(world, item(0, third)) == item(0, again)  # it has not begun, but keeps
    world.check()


def test_another_item_with_its_number_keeps_nothing(world: World) -> None:
    again = failed_once(world)
    others = (c.Value(data="item1"), c.Value(data="item0"), c.Value(data="item2"))
    world.ok(replace(add(join_id=again, earlier=(JOIN,), keeps=(JOIN,)), items=others))
    kept = [kept_from(world, item(each, again)) for each in range(3)]
    assert kept == [None, None, item(2)]


def test_a_result_that_does_not_count_leaves_what_was_recorded(world: World) -> None:
    """The item runs again, and goes on with it."""
    begun(world)
    world.ok(add(1))
    finish_all(world)
    world.tick()
    again = f"{CALLER}:map/1+2"
    world.ok(add(1, join_id=again, keeps=(JOIN,)))
    assert kept_from(world, item(0, again)) == item(0)
    assert finish_all(world) == [item(0, again)]


@pytest.mark.parametrize("limit", [None, 3])
def test_an_item_does_not_begin_beside_its_earlier_body(world: World, limit) -> None:
    """Its earlier join has ended; its body may not have, nor need the tick have come so far."""
    begun(world)
    world.ok(add(3, limit=limit))
    claims = world.ok(r.take(3)).claims
    world.ok(r.fail(claims[0].task.id))
    again = f"{CALLER}:map/1+2"
    world.ok(add(3, join_id=again, earlier=(JOIN,), keeps=(JOIN,), limit=limit))
    assert finish_all(world) == [item(0, again)]
    world.tick()
    world.check()
    assert finish_all(world) == []
    ended = tuple(c.Released(each.task.id, each.task.version) for each in claims[1:])
    world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=ended[:1]))
    assert finish_all(world) == [item(1, again)]
    world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=ended[1:]))
    assert finish_all(world) == [item(2, again)]
    world.tick()
    assert told(world, again) == {"items": 3}
    world.check()


def test_a_later_life_names_joins_of_an_earlier_one(world: World) -> None:
    begun(world)
    world.ok(add(2))
    claims = world.ok(r.take(2)).claims
    world.ok(r.finish(claims[0].task.id))
    world.ok(r.fail(claims[1].task.id))
    world.ok(r.fail(CALLER))
    world.tick()
    finish_all(world)
    life = "run/a:life/2"
    world.ok(c.RerunRun(id="run/a", life=2, nodes=(c.NodeAgain("a", 1),)))
    (claim,) = world.ok(r.take(1)).claims
    later = {"id": f"{life}:a", "version": claim.task.version, "join_id": f"{life}:a:map/1"}
    world.ok(add(2, earlier=(JOIN,), keeps=(JOIN,), **later))
    assert kept_from(world, f"{life}:a:map/1:1") == item(1)
    assert finish_all(world) == [f"{life}:a:map/1:1"]
    world.tick()
    assert told(world, f"{life}:a:map/1") == {"items": 2}
    world.check()


def test_items_are_read_in_order_and_in_pages(world: World) -> None:
    begun(world)
    world.ok(add(250))
    everything = read(world)
    assert [key for key, _ in everything] == [item(each) for each in range(250)]
    assert read(world, first=200) == everything[200:]
    page = world.ok(q.ReadItems(id=JOIN, count=100))
    assert (len(page.promises), page.cursor) == (100, "100")
    assert world.ok(q.ReadItems(id=JOIN, first=200, count=50)).cursor is None


def test_a_halted_join_counts_on(world: World) -> None:
    """Somebody halts and continues the join itself: it ends when its items have."""
    begun(world)
    world.ok(add(2))
    world.ok(c.HaltTask(id=JOIN))
    assert finish_all(world) == [item(0), item(1)]
    world.tick()
    assert (world.promise(JOIN).state, world.task(JOIN).state) == ("pending", "halted")
    world.ok(c.ContinueTask(id=JOIN))
    world.tick()
    assert told(world) == {"items": 2}
    world.check()


def test_nobody_claims_a_join(world: World) -> None:
    """Not even while a tick is about to settle it."""
    begun(world)
    world.ok(add(0))
    assert world.task(JOIN).state == "pending"
    assert world.send(r.acquire(JOIN, 0)).status == 409
    action = c.CreateAction("promise.create", {}, r.target(JOIN))
    assert world.send(c.CreateTask(pid="p", ttl=1, action=action)).status == 409
    world.tick()
    assert told(world) == {"items": 0}


def test_a_join_made_ready_by_hand_goes_on_waiting(world: World) -> None:
    begun(world)
    world.ok(add(2))
    world.ok(c.HaltTask(id=JOIN))
    world.ok(c.ContinueTask(id=JOIN))
    world.tick()
    assert (world.promise(JOIN).state, world.task(JOIN).state) == ("pending", "suspended")
    world.check()


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (add(version=2), 409, "version"),
        (add(join_id="run/a:b:map/1"), 400, "Join ID must be 'run/a:a:'"),
        (add(join_id=f"{CALLER}:a:map/1"), 400, "without ':'"),
        (add(earlier=("elsewhere",)), 400, "Join ID"),
        (add(keeps=("run/b:a:map/1",)), 400, "one of the run 'run/a'"),
        (add(keeps=(JOIN,) * 1_001), 400, "earlier joins"),
        (add(first=-1), 400, "first"),
        (add(first=MAX_ITEMS), 400, "first"),
        (add(MAX_PORTION + 1), 400, "items: 1,001 are more than 1,000"),
        (
            add(11, earlier=tuple(f"{CALLER}:map/{each}" for each in range(1_000))),
            400,
            "11 items with 1,000 earlier joins: send at most 10 at a time",
        ),
        (add(task=""), 400, "mapped task"),
        (add(group="a/b"), 400, "Group"),
        (add(id="plain", join_id="plain:map/1"), 422, "not a task of a run"),
        (add(join_id=f"{CALLER}:taken"), 409, "is not a join"),
        (q.ReadItems(id=JOIN, first=-1), 400, "first"),
        (q.ReadItems(id=JOIN, count=0), 400, "limit"),
    ],
)
def test_what_is_refused_changes_nothing(world: World, request_, status, why) -> None:
    begun(world)
    world.ok(r.claimed("plain"))
    world.ok(r.promise(f"{CALLER}:taken"))
    before = world.dump()
    reply = world.send(request_)
    assert (reply.status, why in str(reply.data)) == (status, True), reply
    assert world.dump() == before


def test_what_is_refused_for_its_size_is_not_looked_for() -> None:
    """What a batch needs is loaded before any of it is checked."""
    earlier = tuple(f"{CALLER}:map/{each}" for each in range(1_000))
    looked_at = Footprint()
    add(10, earlier=earlier).footprint(looked_at)
    assert len(looked_at.valueless) == 10_000
    refused = Footprint()
    add(11, earlier=earlier).footprint(refused)
    assert refused == Footprint()


def test_tags_alone_do_not_make_a_join(world: World) -> None:
    """Nobody would ever end it."""
    tags = {"resonate:target": "poll://any@layby.g", "layby:kind": "join", "layby:name": "f"}
    world.ok(c.CreatePromise(id="x", timeout_at=10**9, tags=tags))
    assert world.task("x").kind == "node"
    world.tick()
    world.check()


def test_a_tree_with_items_is_pruned_as_a_whole(world: World) -> None:
    begun(world)
    world.ok(add(20))
    finish_all(world, 20)
    world.tick()
    world.ok(r.finish(CALLER))
    claims = world.ok(r.take(1)).claims
    world.ok(r.finish("run/a", claims[0].task.version))
    world.tick(10)
    prune(world, completed=1)
    for _ in range(5):
        world.tick(PACE_MS)
    assert {key for key in world.dump().promises if key.startswith("run/a")} <= {"run/a"}


# --- the limit of a map ------------------------------------------------------------------------

OWN = f".{JOIN}"


def names_taken(world: World, free: int = 10) -> list[str]:
    return [claim.task.id for claim in world.ok(r.take(free)).claims]


def test_a_limit_of_a_map_lets_in_so_many(world: World) -> None:
    begun(world)
    world.ok(add(10, limit=3))
    assert world.dump().limits[OWN].concurrency == 3
    first = names_taken(world)
    assert len(first) == 3
    assert names_taken(world) == []
    world.check()
    world.ok(r.finish(first[0]))
    assert len(names_taken(world)) == 1
    world.check()


@pytest.mark.parametrize("how", ["all done", "cancelled", "an item failed"])
def test_the_limit_ends_with_its_join(world: World, how: str) -> None:
    """Nothing is left of it, even if bodies run on after the join has ended."""
    begun(world)
    world.ok(add(5, limit=2, is_last=True))
    claims = world.ok(r.take(10)).claims
    assert len(claims) == 2
    if how == "all done":
        while claims:
            for claim in claims:
                world.ok(r.finish(claim.task.id))
            claims = world.ok(r.take(10)).claims
            world.check()
        world.tick()
    elif how == "cancelled":
        world.ok(r.settle(JOIN, "rejected_canceled"))
        world.check()
        world.tick()
        assert names_taken(world) == []
        world.check()
        assert world.dump().limits[OWN].held == 2
        tasks = tuple(c.Released(each.task.id, each.task.version) for each in claims)
        world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=tasks))
    else:
        world.ok(r.fail(claims[0].task.id))
        world.tick()
        tasks = (c.Released(claims[1].task.id, claims[1].task.version),)
        world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=tasks))
    world.tick()
    world.check()
    assert world.dump().limits == {}
    assert not world.promise(JOIN).is_pending


def test_a_take_without_room_does_not_come_across_items_for_ever(world: World) -> None:
    """They were let in, and then their limit ended: without a permit they are nobody's."""
    begun(world)
    world.ok(add(4, limit=2))
    world.ok(r.settle(JOIN, "rejected_canceled"))
    for _ in range(3):
        taken = world.ok(r.take(0))
    assert (taken.claims, taken.again) == ([], False)
    world.check()


def test_the_limit_holds_over_portions_and_other_limits(world: World) -> None:
    begun(world)
    world.ok(c.SetLimit(name="api", concurrency=1))
    world.ok(add(2, limit=2, limits=("api",), is_last=False))
    world.ok(add(2, first=2, limit=2, limits=("api",)))
    (only,) = names_taken(world)
    assert names_taken(world) == []
    assert world.task(only).permit_names == (OWN, "api")
    world.ok(r.finish(only))
    assert len(names_taken(world)) == 1
    world.check()


@pytest.mark.parametrize("limit", [0, -1, 10**9])
def test_a_wrong_limit_is_refused(world: World, limit: int) -> None:
    begun(world)
    assert world.send(add(1, limit=limit)).status == 400
