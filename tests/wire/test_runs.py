"""What `layby.run.get` shows of a run on the wire."""

from layby.core import commands as c
from tests.core import requests as r
from tests.worlds import World


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
