"""What the holder of a task writes while its body runs."""

from layby.core import commands as c
from tests.helpers import requests as r
from tests.helpers.worlds import World


def test_annotations_are_fenced_and_end_with_the_claim(world: World) -> None:
    """Only the holder of the version annotates; whoever comes next starts clean."""
    world.ok(r.run(a=""))
    world.ok(r.take())
    note = c.AnnotateTask(id="run/a:a", version=1, sub_status="Deferred", waiting_on="{}")
    assert world.ok(note).task.sub_status == "Deferred"
    stale = c.AnnotateTask(id="run/a:a", version=0)
    missing = c.AnnotateTask(id="none", version=0)
    assert [world.send(each).status for each in (stale, missing)] == [409, 404]
    world.ok(c.ReleaseTask(id="run/a:a", version=1))
    task = world.task("run/a:a")
    assert (task.sub_status, task.waiting_on) == (None, None)


def test_a_record_stands_as_it_was_first_told() -> None:
    """A settled promise below the task; whoever tells it again reads what is there."""
    with World() as world:
        world.ok(r.run(a=""))
        world.ok(r.take())
        note = c.AnnotateTask(
            id="run/a:a", version=1, record_id="run/a:a.1", record=c.Value(data="eA==")
        )
        first = world.ok(note).record
        assert (first.state, first.value) == ("resolved", '{"data":"eA=="}')
        again = c.AnnotateTask(id="run/a:a", version=1, record_id="run/a:a.1")
        assert world.ok(again).record == first
        outside = c.AnnotateTask(id="run/a:a", version=1, record_id="other")
        assert world.send(outside).status == 400
