"""`layby rerun`, and what the other commands make of a run with several lives."""

import json

from layby.core.commands import CancelPromise, SettlePromise, Value
from layby.core.model import NEVER
from layby.wire.json_values import named_error_value
from layby.workflow.merge import UNCHANGED
from layby.workflow.outcome import encode_completed
from layby.workflow.plan import plan
from tests.cli.test_clean_up import ORDER
from tests.cli.test_runs import start
from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed


def settled(promise_id: str, state: str, value: Value) -> SettlePromise:
    return SettlePromise(id=promise_id, state=state, value=value)


def failed(desk: Desk, run_id: str = "o") -> None:
    """`first` has succeeded, `second` has failed."""
    desk.do(start(run_id))
    desk.do(settled(f"run/{run_id}:first", "resolved", encode_completed(UNCHANGED)))
    desk.do(settled(f"run/{run_id}:second", "rejected", named_error_value("E", "no")))
    desk.do(settled(f"run/{run_id}", "rejected", named_error_value("RunFailed", "no")))


def test_what_was_unsuccessful_runs_again(desk: Desk):
    """And the rest keeps its result."""
    failed(desk)
    assert typed("rerun", "o").out.splitlines() == [
        "o: life 2 has begun: second runs again; first kept"
    ]
    typed("rerun", "o").complains(1, "run 'o' is still running", "cancel")


def test_from_a_task_and_everything_after_it(desk: Desk):
    failed(desk)
    said = typed("rerun", "o", "--from", "first", "--forget-checkpoints", "--deadline", "2h")
    assert said.out.splitlines() == ["o: life 2 has begun: first, second run again"]
    (run,) = typed("runs", "--json").json["runs"]
    assert run["deadline"] is not None


def test_a_life_that_nobody_can_run_is_told_of(desk: Desk):
    """As for a start, with what to type."""
    failed(desk)
    told = typed("rerun", "o").err
    assert "workflow 'order': no living worker of group 'default' has its code" in told
    assert "layby worker MODULE --url sqlite:" in told


def test_what_a_clean_up_may_have_undone_is_hinted_at(desk: Desk):
    """Nobody but its author knows whether it gave back what a kept task had got."""
    desk.do(plan(ORDER, "o", {}, "default", NEVER))
    for each in ("reserve", "charge", "compensate", "report"):
        desk.do(settled(f"run/o:{each}", "resolved", encode_completed(UNCHANGED)))
    desk.do(settled("run/o", "rejected", named_error_value("RunFailed", "no")))
    said = typed("rerun", "o", "--from", "charge")
    assert said.out.endswith("charge, compensate, report run again; reserve kept\n")
    assert (
        "compensate, report cleaned up after life 1: if that undid what reserve did, cancel this "
        "life and name that task: layby rerun o --from reserve\n"
    ) in said.err


def test_as_json(desk: Desk):
    failed(desk)
    document = json.loads(typed("rerun", "run/o", "--json").out)
    assert document == {"run": "o", "life": 2, "again": ["second"], "kept": ["first"]}


def test_what_cannot_be_run_again(desk: Desk):
    failed(desk)
    desk.do(r.promise("p"))
    typed("rerun", "o", "--from", "secnd").complains(1, "no task 'secnd'", "'second'")
    typed("rerun", "x").complains(1, "there is no run")
    typed("rerun", "p").complains(1, "p")
    typed("rerun", "o:first").complains(1, "is a task", "layby rerun o --from first")
    desk.do(start("done"), r.settle("run/done:first"), r.settle("run/done:second"))
    desk.do(r.settle("run/done"))
    typed("rerun", "done").complains(2, "has completed", "--from")


def test_the_tree_shows_all_lives(desk: Desk):
    failed(desk)
    typed("rerun", "o")
    lines = [line.strip("│├└─ ") for line in typed("tree", "o").lines]
    assert lines[0] == "run/o  Running  order, 2 lives"
    assert lines[1].startswith("life 1  Failed")
    assert lines[2].startswith("first  Completed")
    assert lines[3].startswith("second  Failed  E: no")
    assert lines[4].startswith("life 2  Running")
    assert lines[5].startswith("first  Completed  kept from life 1")
    assert lines[6].startswith("second  Ready")
    assert typed("tree", "o:life/2", "--json").json["tree"]["id"] == "run/o:life/2"
    assert typed("tree", "o", "--json").json["tree"]["children"][1]["id"] == "run/o:life/2"
    assert typed("tree", "o:second", "--json").json["tree"]["id"] == "run/o:life/2:second"


def test_the_tree_draws_each_life_once(desk: Desk):
    """The id of a later life extends that of the first, but it is not something below it."""
    failed(desk)
    typed("rerun", "o", "--from", "first")
    lines = [line.strip("│├└─ ").split("  ")[0] for line in typed("tree", "o").lines]
    assert lines == ["run/o", "life 1", "first", "second", "life 2", "first", "second"]


def test_what_waits_for_its_old_body_says_so(desk: Desk):
    """It depends on no task, so it does not wait for one."""
    take = r.take(1, names=("order", "order/first"), group="default")
    desk.do(start("o"), take, CancelPromise(id="run/o"))
    typed("rerun", "o")
    told = typed("tree", "o").out
    assert "waits until its body of life 1 has ended on worker p" in told
    assert "waits for 1 task" not in told


def test_a_run_is_listed_once(desk: Desk):
    """By its latest life."""
    failed(desk)
    typed("rerun", "o")
    (run,) = typed("runs", "--json").json["runs"]
    assert (run["id"], run["state"], run["life"]) == ("o", "Running", 2)
    assert (run["tasks_settled"], run["tasks"]) == (1, 2)
    assert typed("runs", "--state", "failed", "--json").json["runs"] == []
    desk.do(CancelPromise(id="run/o:life/2"))
    assert [
        each["id"] for each in typed("runs", "--state", "cancelled", "--json").json["runs"]
    ] == ["o"]


def test_why_and_waiting_tell_of_the_latest_life(desk: Desk):
    failed(desk)
    typed("rerun", "o")
    assert "task 'second', which" in typed("why", "o").lines[0]
    assert "'second' of run 'o' is ready, but no worker" in typed("why", "o:second").lines[0]
    waiting = typed("waiting", "--json").json["waiting"]
    assert [each["id"] for each in waiting] == ["run/o:life/2:second"]


def test_halt_continue_and_cancel_mean_the_latest_life(desk: Desk):
    failed(desk)
    typed("rerun", "o")
    assert typed("halt", "o:second").lines == ["o:life/2:second is halted"]
    assert typed("continue", "o:second").lines == ["o:life/2:second is continued"]
    assert typed("halt", "o").lines == ["o:life/2 is halted", "o:life/2:second is halted"]
    assert typed("cancel", "o").lines[-1] == "o:life/2 is cancelled"
    typed("cancel", "o").complains(1, "settled")
    assert typed("rerun", "o").out.splitlines() == [
        "o: life 3 has begun: second runs again; first kept"
    ]


def test_the_doctor_finds_nothing_wrong(desk: Desk):
    failed(desk)
    typed("rerun", "o")
    assert typed("doctor", "layby.db").code == 0
