"""What `layby.run.get` shows of a run on the wire."""

from layby.core import commands as c
from tests.helpers import requests as r
from tests.helpers.worlds import World


def test_a_row_of_a_run_says_what_its_task_does_and_waits_for() -> None:
    """Sub-status, wait, progress and history travel beside the protocol's record."""
    with World("memory") as world:
        world.ok(r.run(a="", b="a"))
        claim = world.ok(r.take(1)).claims[0]
        waiting = '{"kind":"sleep","sentence":"sleeping","since":1}'
        world.ok(
            c.AnnotateTask(
                id=claim.task.id,
                version=1,
                sub_status="Deferred",
                waiting_on=waiting,
                progress='{"fraction":0.5}',
                history='{"tries":[]}',
            )
        )
        rows = world.ask("layby.run.get", {"id": "run/a"}, world.now)[1]["rows"]
    tasks = {row["promise"]["id"]: row["task"] for row in rows}
    assert (
        tasks["run/a:a"]
        | {
            "subStatus": "Deferred",
            "waitingOn": {"kind": "sleep", "sentence": "sleeping", "since": 1},
            "progress": {"fraction": 0.5},
            "history": {"tries": []},
        }
        == tasks["run/a:a"]
    )
    assert "subStatus" not in tasks["run/a:b"]


def test_an_explanation_shows_what_stands_around_a_promise() -> None:
    """The later pages and the command line read the same: rows, waits, holder and workers."""
    with World("memory", now=50) as world:
        world.ok(r.run(a="", b="a"))
        world.ok(r.take(1))
        told = world.ask("layby.promise.explain", {"id": "run/a:b"}, world.now)[1]
        held = world.ask("layby.promise.explain", {"id": "run/a:a"}, world.now)[1]
        assert world.ask("layby.promise.explain", {"id": "x"}, world.now)[0] == 404
    assert [row["promise"]["id"] for row in told["awaited"]] == ["run/a:a"]
    assert (told["task"]["waitsLeft"], "waitingSince" in told["task"]) == (1, False)
    assert (held["awaiters"], held["moreAwaiters"]) == (["run/a", "run/a:b"], False)
    assert (held["workers"], held["ableWorkers"], held["listeners"]) == (1, 1, 0)
    assert held["holder"] == {
        "pid": "p",
        "group": "g",
        "embedded": False,
        "ttl": 60_000,
        "expiresAt": 60_050,
        "standing": "alive",
        "held": 1,
    }


def test_the_list_of_what_waits_is_a_page_of_explanations() -> None:
    """With a cursor when there is more."""
    with World("memory", now=50) as world:
        world.ok(r.target("x"))
        world.ok(r.target("y"))
        page = world.ask("layby.waiting.list", {"limit": 1}, world.now)[1]
        rest = world.ask("layby.waiting.list", {"cursor": page["cursor"]}, world.now)[1]
    assert [entry["promise"]["id"] for entry in page["entries"]] == ["x"]
    assert page["entries"][0]["task"]["waitingSince"] == 50
    assert [entry["promise"]["id"] for entry in rest["entries"]] == ["y"]
    assert "cursor" not in rest
