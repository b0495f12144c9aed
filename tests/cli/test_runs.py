"""The list of runs."""

import pytest

from layby.core.commands import CancelPromise, HaltTask, StartRun
from layby.core.model import NEVER
from layby.workflow.plan import plan
from layby.workflow.task import task
from layby.workflow.workflow import Workflow
from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed


@task
async def first(context): ...


@task(dependencies=["first"])
async def second(context): ...


ORDER = Workflow("order", tasks=[first, second])
OTHER = Workflow("other", tasks=[first])


def start(run_id: str, flow: Workflow = ORDER) -> StartRun:
    return plan(flow, run_id, {"n": 1}, "default", NEVER)


@pytest.fixture
def runs(desk: Desk) -> Desk:
    """One run in each state, each a commit of its own so that their order is known."""
    for number, run_id in enumerate(("done", "failed", "cancelled", "halted", "open")):
        desk.do(start(run_id, OTHER if number == 0 else ORDER))
    desk.do(
        r.settle("run/done"),
        r.settle("run/failed", "rejected"),
        CancelPromise(id="run/cancelled"),
        HaltTask(id="run/halted"),
        r.settle("run/open:first"),
    )
    return desk


def test_a_line_for_each_run(runs: Desk):
    """Its workflow, its state, how far it is and how long ago."""
    lines = typed("runs").lines
    assert lines[0].split() == ["RUN", "WORKFLOW", "STATE", "TASKS", "STARTED", "TOOK"]
    told = {line.split()[0]: line.split()[1:4] for line in lines[1:]}
    assert told == {
        "done": ["other", "Completed", "1/1"],
        "failed": ["order", "Failed", "2/2"],
        "cancelled": ["order", "Cancelled", "2/2"],
        "halted": ["order", "Halted", "0/2"],
        "open": ["order", "Running", "1/2"],
    }


def test_the_newest_comes_first(runs: Desk):
    """It is mostly the one that is looked for."""
    found = typed("runs", "--json").json["runs"]
    created = [each["created_ms"] for each in found]
    assert created == sorted(created, reverse=True)
    assert "more, beyond --limit 1 (--limit 0" in typed("runs", "--limit", 1).err
    assert typed("runs", "--limit", 5).err == ""
    assert [each["id"] for each in typed("runs", "--limit", 1, "--json").json["runs"]] == [
        found[0]["id"]
    ]


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (("--state", "running"), {"halted", "open"}),
        (("--state", "completed"), {"done"}),
        (("--state", "failed"), {"failed"}),
        (("--state", "cancelled"), {"cancelled"}),
        (("--flow", "other"), {"done"}),
        (("--flow", "order", "--state", "running"), {"halted", "open"}),
    ],
)
def test_filters(runs: Desk, filters, ids):
    """In the words of people."""
    found = typed("runs", *filters, "--json").json["runs"]
    assert {each["id"] for each in found} == ids


def test_json_has_stable_keys(runs: Desk):
    """Scripts rely on them."""
    (done,) = typed("runs", "--flow", "other", "--json").json["runs"]
    assert list(done) == [
        "id",
        "promise_id",
        "life",
        "workflow",
        "state",
        "is_cleaning_up",
        "tasks_settled",
        "tasks",
        "created",
        "created_ms",
        "settled",
        "settled_ms",
        "deadline",
        "deadline_ms",
    ]
    assert (done["promise_id"], done["deadline"]) == ("run/done", None)


def test_none(desk: Desk):
    """Said in words; an empty list for programs."""
    assert typed("runs").lines == ["no runs here yet"]
    assert typed("runs", "--state", "failed", "--flow", "x").lines == ["no failed 'x' runs here"]
    assert typed("runs", "--json").json == {"runs": []}


def test_a_state_that_is_none(desk: Desk):
    """The words are listed."""
    said = typed("runs", "--state", "broken")
    assert said.code == 2
    assert "'running', 'completed', 'failed', 'cancelled'" in said.err
