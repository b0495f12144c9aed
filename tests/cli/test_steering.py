"""What people do to runs, tasks and promises, and what is kept of it."""

import json

import pytest
from msgspec.structs import replace

from layby.core.commands import AddItems, AnnotateTask, BlockTask, EnsurePromise, PinRun, Value
from layby.workflow.history import History, Try
from tests.cli.test_runs import start
from tests.cli.test_waiting import take
from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed

ANNA = ("--by", "anna", "--reason", "asked for")


def test_resolve_makes_what_is_not_there_yet(desk: Desk):
    """An event before its wait is not lost; who did it and why is kept beside the value."""
    said = typed("resolve", "paid", "--value", '{"a": 1}', *ANNA).lines
    assert said == ["paid is resolved; it is new: nobody has waited for it yet"]
    read = typed("promises", "get", "paid", "--json").json["promise"]
    assert (read["state"], read["value"]) == ("resolved", {"a": 1})
    assert read["headers"] == {"layby:by": "anna", "layby:reason": "asked for"}
    assert "layby:by      anna" in typed("promises", "get", "paid").lines


def test_who_did_it_is_known_without_saying(desk: Desk, monkeypatch):
    """The login name."""
    monkeypatch.setenv("LOGNAME", "berta")
    typed("resolve", "paid", "--null")
    assert typed("promises", "get", "paid", "--json").json["promise"]["headers"] == {
        "layby:by": "berta"
    }


def test_reject_says_the_reason_as_an_error(desk: Desk):
    """Who waits gets it as an exception."""
    assert typed("reject", "paid", *ANNA).lines[0].startswith("paid is rejected; it is new")
    value = typed("promises", "get", "paid", "--json").json["promise"]["value"]
    assert value == {"__type": "error", "name": "Rejected", "message": "asked for"}
    typed("reject", "other", "--value", '{"code": 7}')
    read = typed("promises", "get", "other", "--json").json["promise"]
    assert (read["state"], read["value"]) == ("rejected", {"code": 7})


def test_the_first_outcome_stays(desk: Desk):
    """And whoever comes second is told so, with exit code 1."""
    typed("resolve", "paid", "--value", "1", *ANNA)
    typed("resolve", "paid", "--value", "2", *ANNA).complains(
        1, "promise 'paid' was settled before by anna: it stays resolved with 1"
    )
    typed("reject", "paid", *ANNA).complains(1, "it stays resolved")
    desk.do(r.promise("other"), r.settle("other"))
    assert typed("reject", "other", *ANNA).err.endswith("before: it stays resolved\n")


def test_an_equal_outcome_of_somebody_else_has_not_won(desk: Desk):
    """Two people who approve the same thing: the second is told."""
    typed("resolve", "paid", "--value", "1", *ANNA)
    said = typed("resolve", "paid", "--value", "1", *ANNA, "--json")
    assert said.code == 1
    told = json.loads(said.out)
    assert (told["won"], told["promise"]["value"]) == (False, 1)
    assert "settled before by anna" in said.err


@pytest.mark.parametrize("verb", [("resolve", "--value", "1"), ("reject",), ("cancel",)])
def test_who_wins_is_told_in_json_too(desk: Desk, verb):
    """The promise as it stands, and whether it was this command's doing."""
    desk.do(r.promise("p"))
    assert typed(verb[0], "p", *verb[1:], "--json").json["won"] is True
    again = typed(verb[0], "p", *verb[1:], "--json")
    assert (again.code, json.loads(again.out)["won"]) == (1, False)


@pytest.mark.parametrize("given", [("--null",), ("--value", "null")])
def test_null_has_to_be_said(desk: Desk, given):
    """A forgotten value must not settle anything: it could not be taken back."""
    forgotten = typed("resolve", "paid")
    assert forgotten.code == 2
    assert "--value JSON" in forgotten.err
    assert "--null" in forgotten.err
    typed("promises", "get", "paid").complains(1, "there is no promise 'paid'")
    assert "not both" in typed("resolve", "paid", "--null", "--value", "1").err
    typed("resolve", "paid", *given)
    assert typed("promises", "get", "paid", "--json").json["promise"]["value"] is None


@pytest.mark.parametrize(("verb", "state"), [("resolve", "resolved"), ("reject", "rejected")])
def test_what_a_task_has_made_is_known_without_its_prefix(desk: Desk, verb, state):
    """Only an id that is not there at all is a new event's, whatever it looks like."""
    desk.do(start("o-7"), r.promise("run/o-7:first.c.promise.ok"), r.promise("a:b"))
    for each in ("o-7:first.c.promise.ok", "a:b", "o-7:first.c.promise.other"):
        typed(verb, each, "--value", "1")
    found = typed("promises", "search", "--state", state, "--json").json["promises"]
    ids = {each["id"] for each in found}
    assert ids == {"run/o-7:first.c.promise.ok", "a:b", "o-7:first.c.promise.other"}


def test_a_promise_without_a_task_cannot_be_halted(desk: Desk):
    """It says what is missing."""
    desk.do(r.promise("p"))
    typed("halt", "p").complains(1, "promise 'p' has no task that could be halted")


def test_runs_are_not_made_by_resolving(desk: Desk):
    """Ids below run/ belong to runs."""
    typed("resolve", "run/x", "--null").complains(1, "run 'run/x' not found")


def test_cancel_a_run_with_all_its_tasks(desk: Desk):
    """By its own id; who and why is kept."""
    desk.do(start("o-7"))
    assert typed("cancel", "o-7", *ANNA).lines == ["o-7 is cancelled"]
    assert "cancelled by anna: asked for" in typed("why", "o-7").out
    assert typed("runs", "--json").json["runs"][0]["state"] == "Cancelled"
    typed("cancel", "o-7").complains(
        1, "o-7 was settled before by anna: it stays rejected_canceled"
    )


def test_cancel_a_task_or_a_promise(desk: Desk):
    """Whatever the id names."""
    desk.do(start("o-7"), r.promise("p"))
    assert typed("cancel", "o-7:first").lines == ["o-7:first is cancelled"]
    assert typed("cancel", "p", "--json").json["promise"]["state"] == "rejected_canceled"


def test_halt_and_continue_a_run(desk: Desk):
    """Everything in it that has not settled, and back."""
    desk.do(start("o-7"), r.settle("run/o-7:first"))
    assert typed("halt", "o-7", *ANNA).lines == ["o-7 is halted", "o-7:second is halted"]
    assert "is halted by anna (asked for)" in typed("why", "o-7").out
    assert typed("continue", "o-7", "--json").json == {"continued": ["run/o-7", "run/o-7:second"]}
    typed("continue", "o-7").complains(1, "none of its tasks can be continued: none is halted")
    typed("halt", "o-7")
    typed("halt", "o-7").complains(1, "all have settled or are halted")


def test_halt_and_continue_a_task(desk: Desk):
    """One by one; a refusal is told."""
    desk.do(start("o-7"))
    assert typed("halt", "o-7:first", "--json").json == {"halted": ["run/o-7:first"]}
    assert typed("continue", "o-7:first").lines == ["o-7:first is continued"]
    typed("continue", "o-7:first").complains(1, "o-7:first: task is not halted")
    desk.do(r.settle("run/o-7:first"))
    typed("halt", "o-7:first").complains(1, "task is fulfilled")


@pytest.mark.parametrize("verb", ["cancel", "halt", "continue"])
def test_an_unknown_id(desk: Desk, verb):
    """With the one that may have been meant."""
    desk.do(start("order-7"))
    typed(verb, "order-77").complains(1, "'order-77'", "did you mean 'order-7'?")
    typed(verb, "order-7:frist").complains(1, "did you mean 'order-7:first'?")


@pytest.mark.parametrize("verb", ["resolve", "reject"])
def test_bad_values(desk: Desk, verb):
    """Nothing is settled with half a value."""
    said = typed(verb, "paid", "--value", "yes")
    assert said.code == 2
    assert "a string needs quotes" in said.err
    typed("promises", "get", "paid").complains(1, "there is no promise 'paid'")


def test_a_run_is_not_resolved_by_hand(desk: Desk):
    """A promise of its id would be created, and every command would mean that one from then on."""
    told = '{"kind":"promise","sentence":"waiting for promise paid","since":1,"awaited":"paid"}'
    desk.do(
        EnsurePromise(id="paid"),
        start("o-7"),
        take(),
        AnnotateTask(id="run/o-7:first", version=1, sub_status="Deferred", waiting_on=told),
        start("o-8"),
    )
    for command in ("resolve", "reject"):
        said = typed(command, "o-7", "--value", "1")
        said.complains(said.code, "'o-7' is a run", "it waits for paid", "layby why o-7")
        assert said.code != 0
    said = typed("resolve", "o-8", "--value", "1")
    said.complains(said.code, "none of its promises is open")
    assert typed("promises", "get", "o-7").code != 0
    assert typed("resolve", "paid", "--value", "1").code == 0


def test_an_id_that_means_two_things_is_refused_where_something_is_done(desk: Desk):
    """And told where something is only shown."""
    desk.do(start("o-7"), r.promise("o-7"))
    for command in ("cancel", "halt", "continue"):
        said = typed(command, "o-7")
        assert said.code != 0
        said.complains(said.code, "'o-7' is a promise, and a run", "'run/o-7'", "layby promises")
    assert "run or a task of one too: 'run/o-7'" in typed("why", "o-7").err
    assert typed("why", "run/o-7").err == ""
    assert typed("cancel", "run/o-7").code == 0
    assert typed("promises", "get", "o-7", "--json").json["promise"]["state"] == "pending"
    assert typed("resolve", "o-7", "--value", "1").code == 0


# --- tasks that are blocked by their code ----------------------------------------------------


def blocked(desk: Desk, pin: str | None = None) -> None:
    names = ("order", "order/first")
    take = replace(r.take(1, names=names, group="default"), codes=(("order", "v2"),))
    why = "sleep(90) is new"
    history = History(tries=(Try(1, "first", outcome="Blocked", error=why),)).to_text()
    claim = BlockTask(id="run/o-7:first", version=1, code="v2", why=why, pin=pin, history=history)
    desk.do(start("o-7"), take, claim)


def test_a_block_is_not_a_halt(desk: Desk):
    """`continue` says what it is, and `continue --code` lets the same code try again."""
    blocked(desk)
    for asked in ("o-7", "o-7:first"):
        typed("continue", asked).complains(1, "not halted but blocked", f"--code {asked}")
    assert typed("continue", "--code", "o-7").lines == ["o-7:first is continued"]
    typed("continue", "--code", "o-7").complains(1, "none is blocked")
    typed("continue", "--code", "o-7:first").complains(1, "task is not blocked")


def test_whoever_asks_is_told_what_a_blocked_task_waits_for(desk: Desk):
    """Which code refused it and why, whether another is there, and what to type."""
    blocked(desk)
    told = typed("why", "o-7").out
    assert "is blocked until a worker with other code than 'v2' takes it: sleep(90) is new" in told
    assert "no worker of group 'default' with such code is connected" in told
    assert "a worker with other code can unblock it" in told
    (listed,) = typed("waiting", "--kind", "code", "--json").json["waiting"]
    assert (listed["kind"], listed["id"]) == ("code", "run/o-7:first")
    assert listed["command"] == "layby worker MODULE --group default"
    assert listed["otherwise"] == "layby continue --code o-7:first"
    assert told.index("$ layby worker MODULE") < told.index("$ layby continue --code o-7:first")
    assert "other code than 'v2'" in typed("tree", "o-7").out


def test_what_a_pinned_run_waits_for(desk: Desk):
    """The version is named."""
    blocked(desk, pin="v1")
    told = typed("why", "o-7").out
    assert "until a worker with code 'v1' takes it" in told
    assert "a worker with code 'v1' can unblock it" in told
    assert "--group default --version-tag v1" in told


def test_the_tree_of_a_pinned_run_shows_the_codes_that_touched_it(desk: Desk):
    """What it is pinned to, and who else has tried."""
    take = r.take(1, names=("order", "order/first"), group="default")
    tries = (Try(1, "first", outcome="Released", code="v1"), Try(2, "released", code="v2"))
    pin = PinRun(id="run/o-7:first", version=1, code="v1")
    note = AnnotateTask(id="run/o-7:first", version=1, history=History(tries).to_text())
    desk.do(start("o-7"), take, pin, note)
    assert "order; pinned to code v1; codes v1, v2" in typed("tree", "o-7").lines[0]


def test_why_it_is_blocked_is_known_after_a_halt_too(desk: Desk):
    """Its history has what the row does not say any more."""
    blocked(desk)
    typed("halt", "o-7:first")
    typed("continue", "o-7:first")
    told = typed("why", "o-7").out
    assert "is blocked until a worker with other code than 'v2' takes it: sleep(90) is new" in told


def test_the_items_of_a_map_are_counted(desk: Desk):
    """They may be thousands: one line for all of them."""
    taken = r.take(1, names=("order", "order/first"), group="default")
    caller = {"id": "run/o:first", "version": 1, "join_id": "run/o:first:map/1", "task": "m:f"}
    add = AddItems(items=tuple(Value(data="1") for _ in range(3)), is_last=True, **caller)
    desk.do(start("o"), taken, add)
    lines = typed("halt", "o").lines
    assert lines[-1] == "o:first:map/1: 3 items are halted"
    assert not any("map/1:" in line for line in lines[:-1])
    assert "first:map/1  Halted  " in typed("tree", "o").out
    assert typed("continue", "o").lines[-1] == "o:first:map/1: 3 items are continued"
    assert typed("halt", "o:first:map/1:2").lines == ["o:first:map/1:2 is halted"]
