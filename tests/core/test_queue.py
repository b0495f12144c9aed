"""The queue of a batch: in the order of time as far as it is known."""

from layby.core.queue import Queue
from tests.helpers import requests as r
from tests.helpers.worlds import World


def test_what_a_step_made_ready_comes_first_among_equals() -> None:
    """Older entries come before it, whatever their ids."""
    queue = Queue([(0, 1, "z"), (0, 2, "a"), (0, 3, "b")])
    assert list(queue.merged([(0, 2, "own"), (0, 9, "last")])) == [
        (0, 1, "z"),
        (0, 2, "own"),
        (0, 2, "a"),
        (0, 3, "b"),
        (0, 9, "last"),
    ]


def test_nothing_is_handed_out_beyond_what_was_loaded() -> None:
    """Between the last one that was loaded and what came since there may be others."""
    queue = Queue([(0, 1, "a"), (0, 2, "b")], limit=2)
    assert queue.is_cut
    queue.add((0, 5, "new"))
    assert list(queue.merged([(0, 2, "own"), (0, 4, "later")])) == [
        (0, 1, "a"),
        (0, 2, "own"),
        (0, 2, "b"),
    ]
    queue.drop_first(2)
    assert list(queue.merged([(0, 2, "own"), (0, 4, "later")])) == [(0, 2, "own")]


def test_a_queue_that_was_loaded_as_a_whole_is_not_cut() -> None:
    """An entry stands in it once."""
    queue = Queue([(0, 1, "a")], limit=2)
    queue.add((0, 1, "a"))
    queue.add((0, 0, "b"))
    assert (queue.is_cut, queue.entries) == (False, [(0, 0, "b"), (0, 1, "a")])
    assert not Queue([], limit=0).is_cut


def test_entries_that_went_stale_in_a_batch_are_passed_over() -> None:
    """Settled by somebody else under way: at the front, and behind what is still ready."""
    for backend in ("memory", "sqlite"):
        with World(backend) as world:
            world.ok(r.run(a="", b="", d=""))
            replies = world.batch(
                [(r.settle("run/a:b"), 0), (r.take(2), 0), (r.take(2, pid="q"), 0)]
            )
            taken = [[claim.task.id for claim in reply.data.claims] for reply in replies[1:]]
            assert taken == [["run/a:a", "run/a:d"], []]
            world.check()


def test_who_has_left_within_a_batch_hears_nothing() -> None:
    """As if each command had been alone."""
    with World() as world:
        world.ok(r.take(0))
        world.ok(r.promise("x"))
        world.ok(r.c.RegisterListener(awaited="x", address="poll://uni@layby.g/p"))
        leave = r.c.LeaveWorker(pid="p", incarnation="1")
        world.batch([(leave, 0), (r.settle("x"), 0)])
        assert world.dump().messages == {}


def test_what_is_over_by_the_time_of_the_take_hides_nobody() -> None:
    """An earlier command of the batch still sees it alive; the take is asked once more."""
    for backend in ("memory", "sqlite"):
        with World(backend) as world:
            for dead in "bcd":
                world.ok(r.run(f"run/{dead}", timeout=10, a=""))
            world.clock.advance(1)
            world.ok(r.run("run/live", a=""))
            replies = world.batch([(r.c.GetPromise(id="run/b"), 5), (r.take(1), 10)])
            assert [claim.task.id for claim in replies[1].data.claims] == ["run/live:a"]
            world.check(10)
