"""Priorities, the turn of the oldest, and tasks that need several slots."""

from typing import Any

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core import tag_names
from layby.core.fields import MAX_PRIORITY, MAX_SLOTS
from layby.core.queue import TaskPlace
from tests.helpers import requests as r
from tests.helpers.worlds import World


def take(free: int = 0, **fields: Any) -> c.Take:
    pid = fields.pop("pid", "p")
    return replace(r.take(free, pid=pid), **fields)


def ids(taken: Any) -> list[str]:
    return [claim.task.id for claim in taken.claims]


def start(world: World, *kinds: tuple[int, int]) -> None:
    """Runs of one node each, a millisecond apart, by priority and slots."""
    for at, (priority, slots) in enumerate(kinds):
        node = c.Node(id="a", name="f", priority=priority, slots=slots)
        world.ok(c.StartRun(id=f"run/{at}", name="root", group="g", nodes=(node,)))
        world.clock.advance(1)


def test_a_higher_priority_comes_first_and_turns_hold_within_one(world: World) -> None:
    start(world, (0, 1), (5, 1), (-1, 1), (0, 1), (5, 1))
    assert ids(world.ok(take(9))) == ["run/1:a", "run/4:a", "run/0:a", "run/3:a", "run/2:a"]
    world.check()


def test_an_answer_tells_whose_turn_is_next_and_which_is_the_oldest(world: World) -> None:
    """One number is enough while priorities do not matter."""
    start(world, (0, 1), (5, 1), (5, 3))
    taken = world.ok(take(1))
    assert (ids(taken), taken.oldest_left, taken.next_left) == (["run/1:a"], 0, TaskPlace(2, 5, 3))
    assert (taken.next_place, taken.oldest_place) == (TaskPlace(2, 5, 3), TaskPlace(0))
    taken = world.ok(take(3))
    assert (ids(taken), taken.oldest_left, taken.next_left) == (["run/2:a"], 0, None)
    world.check()


def test_the_oldest_can_be_asked_for_whatever_its_priority(world: World) -> None:
    """One task, and none ahead; what is left is told as always."""
    start(world, (0, 1), (-2, 1), (5, 1), (5, 1))
    taken = world.ok(take(3, oldest=True, ahead=3))
    assert ids(taken) == ["run/0:a"]
    assert (taken.next_left, taken.oldest_left) == (TaskPlace(2, 5), 1)
    assert ids(world.ok(take(3, oldest=True, before=1))) == []
    assert ids(world.ok(take(3, oldest=True, before=2))) == ["run/1:a"]
    world.check()


def test_several_takes_of_a_batch_get_the_oldest_one_after_the_other(world: World) -> None:
    start(world, (0, 1), (-2, 1), (5, 1), (0, 1))
    taken = world.batch([(take(1, oldest=True, pid=pid), 9) for pid in "pqs"] + [(take(9), 9)])
    assert [ids(reply.data) for reply in taken] == [
        ["run/0:a"],
        ["run/1:a"],
        ["run/2:a"],
        ["run/3:a"],
    ]
    assert [reply.data.oldest_left for reply in taken] == [1, 2, 3, None]
    world.check(9)


def test_the_oldest_is_known_when_a_priority_comes_within_the_batch(world: World) -> None:
    """The store had loaded no queue of the oldest: nobody had a priority then."""
    start(world, (0, 1), (0, 1))
    node = c.Node(id="a", name="f", priority=5)
    run = c.StartRun(id="run/new", name="root", group="g", nodes=(node,))
    replies = world.batch([(run, 5), (take(1), 5), (take(1, oldest=True, pid="q"), 5)])
    assert [ids(reply.data) for reply in replies[1:]] == [["run/new:a"], ["run/0:a"]]
    assert replies[1].data.oldest_left == 0
    world.check(5)


def test_before_compares_priorities_first(world: World) -> None:
    start(world, (0, 1), (1, 1), (2, 1))
    assert ids(world.ok(take(9, before=0, before_priority=2))) == []
    assert ids(world.ok(take(9, before=3, before_priority=2))) == ["run/2:a"]
    assert ids(world.ok(take(9, before=0, before_priority=0))) == ["run/1:a"]
    assert ids(world.ok(take(9, before=1, before_priority=0))) == ["run/0:a"]


def test_what_is_finished_makes_way_for_the_first_not_for_its_own_run(world: World) -> None:
    """What a step makes ready itself comes first among equals only."""
    nodes = (c.Node(id="a", name="f"), c.Node(id="b", name="f", after=("a",)))
    world.ok(c.StartRun(id="run/x", name="root", group="g", nodes=nodes))
    world.ok(take(1))
    start(world, (1, 1))
    finished = world.ok(r.finish("run/x:a", with_take=take(1)))
    assert ids(finished.taken) == ["run/0:a"]
    assert ids(world.ok(take(1))) == ["run/x:b"]


# --- several slots -------------------------------------------------------------------------


def test_a_task_is_given_as_many_slots_as_it_needs(world: World) -> None:
    start(world, (0, 2), (0, 1), (0, 2))
    taken = world.ok(take(3))
    assert (ids(taken), taken.next_left) == (["run/0:a", "run/1:a"], TaskPlace(2, slots=2))
    assert (taken.oldest_left, taken.oldest_slots) == (2, 2)


def test_nobody_passes_a_task_that_needs_more_than_is_free(world: World) -> None:
    """Nor is it, or what comes after it, claimed ahead."""
    start(world, (0, 3), (0, 1), (0, 1))
    taken = world.ok(take(2, ahead=5))
    assert (ids(taken), taken.next_place) == ([], TaskPlace(0, slots=3))
    assert ids(world.ok(take(3))) == ["run/0:a"]


def test_a_higher_priority_passes_a_task_that_needs_more(world: World) -> None:
    start(world, (0, 3), (1, 1), (0, 1))
    assert ids(world.ok(take(2))) == ["run/1:a"]


def test_a_task_that_needs_more_than_a_worker_has_needs_all_of_it(world: World) -> None:
    """Its workflow was changed after the run had begun: it must not wait for ever."""
    start(world, (0, 3))
    assert ids(world.ok(take(1, slots=2))) == []
    assert ids(world.ok(take(2, slots=2))) == ["run/0:a"]


# --- where they come from ------------------------------------------------------------------


def test_the_priority_of_a_run_is_added_to_that_of_each_node(world: World) -> None:
    """And stays with both: a later life has the same."""
    nodes = (
        c.Node(id="a", name="f", priority=3, slots=2),
        c.Node(id="b", name="f", priority=-7),
        c.Node(id="d", name="f", priority=-5),
    )
    world.ok(c.StartRun(id="run/x", name="root", group="g", nodes=nodes, priority=5))
    tasks = {each: world.task(f"run/x:{each}") for each in "abd"}
    assert {key: (task.priority, task.slots) for key, task in tasks.items()} == {
        "a": (8, 2),
        "b": (-2, 1),
        "d": (0, 1),
    }
    assert world.task("run/x").priority == 0  # roots need no slot, so they have no turn
    assert tag_names.PRIORITY in world.promise("run/x").tags
    world.ok(take(9))
    for each in "abd":
        world.ok(r.fail(f"run/x:{each}"))
    world.tick(1)
    again = tuple(c.NodeAgain(id=each) for each in "abd")
    world.ok(r.settle("run/x", "rejected"))
    world.ok(c.RerunRun(id="run/x", life=2, nodes=again))
    lives = [task for key, task in world.dump().tasks.items() if key.endswith(":a")]
    assert {(task.priority, task.slots) for task in lives} == {(8, 2)}
    world.check()


def test_a_schedule_gives_its_runs_their_priority(world: World) -> None:
    nodes = (c.Node(id="a", name="f", priority=1, slots=2),)
    world.ok(r.nightly(nodes=nodes, priority=4))
    world.ok(c.StartScheduled(id="nightly", at=7, key="x"))
    (node,) = [task for task in world.dump().tasks.values() if task.kind == "node"]
    assert (node.priority, node.slots) == (5, 2)
    refused = world.send(r.nightly(nodes=nodes, priority=3))
    assert refused.status == 409
    assert "priority (4, not 3)" in str(refused.data)


@pytest.mark.parametrize("text", ["", "x", "201", "-201", "1e3", "--1", "1.5", "٣"])
def test_a_tag_that_is_no_priority_counts_as_none(world: World, text: str) -> None:
    tags = {
        "resonate:target": "poll://any@layby.g",
        tag_names.PRIORITY: text,
        tag_names.SLOTS: text,
    }
    world.ok(c.CreatePromise(id="x", timeout_at=9, tags=tags))
    assert (world.task("x").priority, world.task("x").slots in (1, 201)) == (0, True)


def test_what_is_out_of_range_is_refused(world: World) -> None:
    node = c.Node(id="a", name="f")
    for wrong in (
        c.StartRun(id="run/x", name="r", group="g", nodes=(node,), priority=MAX_PRIORITY + 1),
        c.StartRun(
            id="run/x", name="r", group="g", nodes=(replace(node, priority=-MAX_PRIORITY - 1),)
        ),
        c.StartRun(id="run/x", name="r", group="g", nodes=(replace(node, slots=0),)),
        c.StartRun(id="run/x", name="r", group="g", nodes=(replace(node, slots=MAX_SLOTS + 1),)),
        r.nightly(priority=-MAX_PRIORITY - 1),
    ):
        assert world.send(wrong).status == 400


# --- what a take that waits hears ----------------------------------------------------------


NEXT, OLDER, HEAVY = TaskPlace(5, 1), TaskPlace(3, 1), TaskPlace(5, 1, 2)


@pytest.mark.parametrize(
    ("known", "oldest", "left", "oldest_left", "is_news"),
    [
        (None, False, None, None, False),
        (None, False, NEXT, NEXT, True),
        (NEXT, False, NEXT, TaskPlace(1), False),
        (NEXT, False, None, None, False),
        (NEXT, False, OLDER, OLDER, True),
        (NEXT, False, TaskPlace(0), TaskPlace(0), False),
        (HEAVY, False, HEAVY, HEAVY, False),
        (HEAVY, False, TaskPlace(6, 1), TaskPlace(6, 1), True),
        (HEAVY, False, None, None, True),
        (HEAVY, True, OLDER, HEAVY, False),
        (HEAVY, True, OLDER, OLDER, True),
        (HEAVY, True, None, None, True),
        (NEXT, True, OLDER, TaskPlace(5), False),
        (NEXT, True, OLDER, TaskPlace(6, 0, 2), False),
        (NEXT, True, None, None, False),
        (NEXT, True, NEXT, TaskPlace(4), True),
    ],
)
def test_what_is_news_for_whom(
    known: TaskPlace | None,
    oldest: bool,
    left: TaskPlace | None,
    oldest_left: TaskPlace | None,
    is_news: bool,
) -> None:
    """What comes before what it knows; and that a task is gone which it keeps slots for."""
    asked = take(0, in_line=True, left=known, oldest=oldest)
    assert asked.has_news(left, oldest_left) is is_news
    assert not replace(asked, in_line=False).has_news(left, oldest_left)
