"""What people are told about a run that is being cleaned up."""

import signal
from pathlib import Path

import pytest

from layby.core.commands import CancelPromise, HeartbeatWorker, Released, ReleaseTasks, Take
from layby.core.model import NEVER
from layby.workflow.plan import names, plan
from layby.workflow.task import task
from layby.workflow.workflow import Workflow
from tests.helpers import requests as r
from tests.helpers.cli_processes import Process
from tests.helpers.command_line import Desk, typed

FLOWS = Path(__file__).with_name("flows.py")


@task
async def reserve(context): ...


@task(dependencies=["reserve"])
async def charge(context): ...


@task(rule="finally", timeout=60)
async def compensate(context): ...


@task(rule="finally", timeout=60, dependencies=["compensate"])
async def report(context): ...


ORDER = Workflow("order", tasks=[reserve, charge, compensate, report])
TAKE = Take(pid="w", incarnation="1", group="default", names=names(ORDER), free=1)


@pytest.fixture
def order(desk: Desk) -> Desk:
    """`charge` is running."""
    desk.do(plan(ORDER, "o-7", {}, "default", NEVER), r.settle("run/o-7:reserve"), TAKE)
    return desk


@pytest.fixture
def cancelled(order: Desk) -> Desk:
    said = typed("cancel", "o-7", "--by", "ada", "--reason", "ordered twice").lines
    assert said == ["o-7 is cancelled; 'compensate' and 'report' will clean up"]
    return order


def test_a_run_without_such_tasks_is_just_cancelled(desk: Desk):
    desk.do(plan(Workflow("one", tasks=[reserve]), "o-8", {}, "default", NEVER))
    assert typed("cancel", "o-8").lines == ["o-8 is cancelled"]


def test_one_task_is_just_cancelled_too(order: Desk):
    assert typed("cancel", "o-7:compensate").lines == ["o-7:compensate is cancelled"]


def test_why_names_the_body_that_is_waited_for(cancelled: Desk):
    sentence = typed("why", "o-7").lines[0]
    assert sentence.startswith("run 'o-7' is settled: cancelled")
    assert "and is being cleaned up: task 'compensate' of run 'o-7' waits for task 'charge', " in (
        sentence
    )
    assert "but its body still runs on worker w" in sentence
    of_the_task = typed("why", "o-7:compensate").lines[0]
    assert "waits for task 'charge', which is settled: cancelled" in of_the_task


def test_why_goes_on_to_the_clean_up_itself(cancelled: Desk):
    ended = ReleaseTasks(pid="w", incarnation="1", tasks=(Released("run/o-7:charge", 1),))
    cancelled.do(HeartbeatWorker(pid="w", incarnation="1"), ended)
    sentence = typed("why", "o-7").lines[0]
    assert "is being cleaned up: task 'compensate' of run 'o-7' is ready" in sentence
    cancelled.do(TAKE)
    assert "'compensate' of run 'o-7' is running on worker w" in typed("why", "o-7").lines[0]


def test_why_says_nothing_of_it_when_all_is_clean(cancelled: Desk):
    cancelled.do(r.settle("run/o-7:compensate"), r.settle("run/o-7:report"))
    assert "cleaned up" not in typed("why", "o-7").lines[0]


def test_why_of_a_run_that_failed_says_that_it_is_cleaned_up(order: Desk):
    """It has not ended yet; what failed is not left out, and its clean-up is not just a wait."""
    order.do(r.settle("run/o-7:charge", "rejected"))
    sentence = typed("why", "o-7").lines[0]
    assert sentence.startswith(
        "run 'o-7' is being cleaned up after a failure, since task 'charge' is settled: rejected"
    )
    assert "; task 'compensate' of run 'o-7'" in sentence


def test_why_of_a_run_that_went_well_has_no_failure_to_tell(order: Desk):
    order.do(r.settle("run/o-7:charge"))
    assert "failure" not in typed("why", "o-7").lines[0]


def test_the_tree_shows_who_cleans_up(cancelled: Desk):
    lines = typed("tree", "o-7").lines
    assert lines[0] == "run/o-7  Cancelled  order; cleaning up"
    told = {line.strip("├└│─ ").split("  ")[0]: line for line in lines[1:]}
    assert list(told) == ["reserve", "charge", "compensate", "report"]
    assert told["compensate"].startswith("└── compensate")
    assert "finally; waits for the end of the body of 'charge'" in told["compensate"]
    assert told["report"].startswith("    └── report")


def listed() -> tuple[str, bool, int, int]:
    (run,) = typed("runs", "--json").json["runs"]
    return run["state"], run["is_cleaning_up"], run["tasks_settled"], run["tasks"]


def test_the_list_of_runs_counts_what_has_yet_to_clean_up(cancelled: Desk):
    assert typed("runs").lines[1].split()[:6] == [
        "o-7",
        "order",
        "Cancelled",
        "cleaning",
        "up",
        "2/4",
    ]
    assert listed() == ("Cancelled", True, 2, 4)
    cancelled.do(r.settle("run/o-7:compensate"))
    assert listed() == ("Cancelled", True, 3, 4)
    cancelled.do(r.settle("run/o-7:report"))
    assert listed() == ("Cancelled", False, 4, 4)


def test_a_run_that_ends_by_itself_is_listed_as_cleaning_up_too(order: Desk):
    assert listed() == ("Running", False, 1, 4)
    order.do(r.settle("run/o-7:charge"))
    assert listed() == ("Running", True, 2, 4)


def test_waiting_lists_a_clean_up_that_nobody_takes(cancelled: Desk):
    ended = ReleaseTasks(pid="w", incarnation="1", tasks=(Released("run/o-7:charge", 1),))
    cancelled.do(ended)
    assert any("o-7:compensate" in line for line in typed("waiting").lines)


def test_doctor_finds_nothing_wrong(cancelled: Desk):
    assert typed("doctor").code == 0


def test_a_run_over_its_deadline_is_cleaned_up_before_its_process_ends(tmp_path, monkeypatch):
    """It may be the only worker there is."""
    monkeypatch.chdir(tmp_path)
    arguments = ("--context", "question=never-answered", "--deadline", "300ms", "--id", "r")
    said = typed("run", f"{FLOWS}:cleaned", *arguments)
    assert said.code == 1
    assert "the run's deadline passed" in said.err
    assert "clean: Completed" in said.err.splitlines()
    assert (tmp_path / "cleaned").read_text() == "Failed"


def test_a_cancelled_run_stays_so(order: Desk):
    order.do(CancelPromise(id="run/o-7"))
    typed("cancel", "o-7").complains(1, "was settled before")


def test_interrupted_while_it_cleans_up_it_says_so(tmp_path, monkeypatch):
    """Clean-up was cut off, and may need this process again."""
    monkeypatch.chdir(tmp_path)
    options = ("--context", "question=never", "--deadline", "300ms", "--id", "r")
    with Process(["-m", "layby.cli", "run", f"{FLOWS}:cleaned_slowly", *options]) as process:
        process.hear("Deferred: waiting for promise cleaned")
        process.send(signal.SIGTERM)
        assert process.end() == 130
        told = process.hear("the run 'r'")
    again = f"layby run {FLOWS}:cleaned_slowly --id r"
    assert told == (
        "the run 'r' has failed: its deadline passed; task 'clean_slowly' still has to clean up; "
        f"continue it with: {again}"
    )
