"""What waits, and why: the two questions people ask most."""

import pytest

from layby.core.commands import (
    AnnotateTask,
    CreateBelow,
    EnsurePromise,
    ExtendWait,
    FailTask,
    HaltTask,
    RegisterListener,
    SettlePromise,
    Take,
    WakeTask,
)
from layby.core.tag_names import MOVABLE
from layby.core.waits import WaitingOn
from layby.wire import json_values
from tests.cli.test_runs import start
from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed

TOLD = '{"kind":"promise","sentence":"waiting for promise paid","since":1,"awaited":"paid"}'


def take(**fields) -> Take:
    names = ("order", "order/first", "order/second")
    return Take(
        **{"pid": "w", "incarnation": "1", "group": "default", "names": names, "free": 9} | fields
    )


@pytest.fixture
def waits(desk: Desk) -> Desk:
    """A parked task, a halted one, a suspended call, a promise somebody listens to."""
    desk.do(
        EnsurePromise(id="paid"),
        start("o-7"),
        take(),
        AnnotateTask(id="run/o-7:first", version=1, sub_status="Deferred", waiting_on=TOLD),
        r.target("call"),
        HaltTask(id="call", by="anna", reason="too dear"),
        r.promise("p1"),
        RegisterListener(awaited="p1", address="http://example.org"),
        r.promise("nobody-waits-for-this"),
    )
    return desk


def test_an_id_with_colons_is_printed_as_it_is(desk: Desk):
    """`:m:` in an id is not a picture of a letter: the command can be pasted."""
    desk.do(r.promise("o-7:m:map/1:ship:2"), EnsurePromise(id="x:m:y"))
    assert "  $ layby resolve x:m:y --value JSON" in typed("why", "x:m:y").lines
    assert "o-7:m:map/1:ship:2" in typed("promises", "get", "o-7:m:map/1:ship:2").out


def test_each_wait_says_what_for_and_who_can_unblock_it(waits: Desk):
    """A table that fits on a screen, and can be pasted from."""
    lines = typed("waiting").lines
    assert lines[0].split() == ["WAITING", "WHAT", "WHY", "DEADLINE", "WHO", "CAN", "UNBLOCK", "IT"]
    text = "\n".join(lines)
    for part in (
        "o-7:first  is parked, waiting for promise paid",
        "layby resolve paid --value JSON",
        "is halted by anna (too dear) until somebody continues it",
        "layby continue call",
        "p1         has not been settled by anybody; 1 listener waits for it",
    ):
        assert part in text
    assert "nobody-waits" not in text
    assert len(lines) == 4


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_on_a_terminal_no_command_and_no_id_is_folded(desk: Desk, monkeypatch, columns: int):
    """They are there to be pasted: a terminal that is too narrow for the table gets none."""
    name = "the-payment-of-a-customer-with-a-long-name-4711"
    said = TOLD.replace("paid", name)
    desk.do(
        EnsurePromise(id=name),
        start("o-7"),
        take(),
        AnnotateTask(id="run/o-7:first", version=1, sub_status="Deferred", waiting_on=said),
    )
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = typed("waiting").out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if "o-7:first" in line]
    assert any(f"layby resolve {name} --value JSON" in line for line in lines[at:])
    assert ("WHO CAN UNBLOCK IT" in lines[0]) == (columns == 140)


def test_on_a_narrow_terminal_ids_are_whole_in_every_table(desk: Desk, monkeypatch):
    """Words are folded first; where that is not enough, the terminal folds the line."""
    long = "order-of-a-customer-with-a-very-long-name-4711"
    desk.do(start(long))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    assert any(long in line for line in typed("runs").out.splitlines())


def test_waiting_as_json(waits: Desk):
    """Stable keys; the command to type is a field of its own."""
    found = typed("waiting", "--kind", "manual", "--json").json["waiting"]
    assert [list(each) for each in found] == [
        [
            "id",
            "what",
            "kind",
            "sentence",
            "unblock",
            "command",
            "otherwise",
            "by_hand",
            "awaited",
            "since",
            "since_ms",
            "deadline",
            "deadline_ms",
        ]
    ]
    assert (found[0]["id"], found[0]["command"]) == ("call", "layby continue call")


def test_only_what_has_waited_long(waits: Desk):
    """Nothing here is an hour old."""
    said = typed("waiting", "--older-than", "1h30m").lines
    assert said == ["nothing waits for 1h30m or longer"]
    assert typed("waiting", "--older-than", "1h", "--json").json == {"waiting": []}
    assert len(typed("waiting", "--older-than", "1ms").lines) == 4


def test_bad_filters(waits: Desk):
    """Named, with what can be given."""
    assert "is not a duration" in typed("waiting", "--older-than", "long").err
    assert "'condition'" in typed("waiting", "--kind", "love").err
    assert typed("waiting", "--kind", "dependency").code == 2


# --- why ---------------------------------------------------------------------------------


def why(*arguments: str) -> str:
    return typed("why", *arguments).lines[0]


def test_a_run_waits_for_what_its_task_waits_for(waits: Desk):
    """To the leaf, with the command that would end it on a line of its own, and other exits."""
    sentence, command, *by_hand = typed("why", "o-7").lines
    assert sentence == (
        "run 'o-7' waits for task 'first', which waits for promise paid, which has not been "
        "settled by anybody; whoever settles it can unblock it"
    )
    assert command == "  $ layby resolve paid --value JSON"
    assert by_hand == ["or by hand:", "  $ layby reject paid"]


def test_each_command_is_named_once(desk: Desk):
    """Also for a promise of the task's own, whose id may be typed with a prefix and without."""
    own = "run/o-7:first.ok"
    told = WaitingOn("promise", f"waiting for promise {own}", since=1, awaited=own)
    desk.do(
        start("o-7"),
        take(),
        CreateBelow(id="run/o-7:first", version=1, promise_id=own),
        AnnotateTask(
            id="run/o-7:first", version=1, sub_status="Deferred", waiting_on=told.to_text()
        ),
    )
    commands = [line for line in typed("why", "o-7:first").lines if "$" in line]
    assert commands == [
        "  $ layby resolve o-7:first.ok --value JSON",
        "  $ layby reject o-7:first.ok",
    ]


@pytest.mark.parametrize("asked", ["o-7:second", "run/o-7:second"])
def test_ids_with_and_without_the_prefix(waits: Desk, asked):
    """Both are typed, both are meant."""
    assert why(asked).startswith("task 'second' of run 'o-7' waits for task 'first', which")


def test_promises_and_calls(waits: Desk):
    """Any id that is stored has a why."""
    assert why("p1").startswith("promise p1 has not been settled by anybody; 1 listener waits")
    assert why("call").startswith("task call is halted by anna (too dear)")


def test_ready_without_a_worker(desk: Desk):
    """The most common reason of all says which code is missing, and where."""
    desk.do(start("o-8"))
    assert why("o-8:first").startswith(
        "task 'first' of run 'o-8' is ready, but no worker of group 'default' with the code of "
        "'order/first' is connected"
    )
    desk.do(take(names=("other",)))
    assert "(1 worker without it)" in why("o-8:first")


STACK = "Traceback (most recent call last):\n  File x, line 1, in first\nValueError: no"


def test_what_failed_says_where(desk: Desk):
    """The task, and the run that failed because of it; a try that is repeated as well."""
    error = json_values.named_error_value("ValueError", "no", stack=STACK)
    desk.do(
        *(start("o-8"), start("o-9"), take()),
        FailTask(id="run/o-8:first", version=1, error=error),
        FailTask(id="run/o-9:first", version=1, error=error, retry_in=600_000),
    )
    sentence, *lines = typed("why", "o-9:first").lines
    assert "it is tried again" in sentence
    assert lines == ["", *STACK.splitlines(), "by hand:", "  $ layby wake o-9:first.backoff.1"]
    assert typed("why", "o-8:first").lines[1:] == ["", *STACK.splitlines()]
    failed = json_values.named_error_value("RunFailed", "it", failed={"first": "ValueError: no"})
    desk.do(SettlePromise(id="run/o-8", state="rejected", value=failed))
    sentence, *lines = typed("why", "o-8").lines
    assert sentence.startswith("run 'o-8' is settled: rejected just now (RunFailed: it)")
    again = "  $ layby rerun o-8"
    assert lines == ["", "task 'first' of run 'o-8':", *STACK.splitlines(), again]
    assert typed("why", "o-8", "--json").json["tracebacks"] == {"run/o-8:first": STACK}


def test_tasks_without_a_traceback_do_not_hide_the_others(desk: Desk):
    """The first three of those that have one are shown, and the others counted."""
    error = json_values.named_error_value("ValueError", "no", stack=STACK)
    names = [f"t{number}" for number in range(8)]
    desk.do(
        r.dag(dict.fromkeys(names, ""), "run/many"),
        *(r.settle(f"run/many:{each}", "rejected") for each in names[:4]),
        *(
            SettlePromise(id=f"run/many:{each}", state="rejected", value=error)
            for each in names[4:]
        ),
    )
    failed = json_values.named_error_value("RunFailed", "it", failed=dict.fromkeys(names, "no"))
    desk.do(SettlePromise(id="run/many", state="rejected", value=failed))
    said = typed("why", "many")
    shown = [line for line in said.lines if line.endswith("of run 'many':")]
    assert shown == [f"task '{each}' of run 'many':" for each in names[4:7]]
    assert said.lines[-3:] == [
        *("", "and 1 more: layby tree many --verbose", "  $ layby rerun many")
    ]


def test_running_and_settled(desk: Desk):
    """Not everything waits."""
    desk.do(start("o-8"), take())
    assert why("o-8:first") == "task 'first' of run 'o-8' is running on worker w"
    desk.do(r.settle("run/o-8:first"), r.settle("run/o-8:second"), r.settle("run/o-8"))
    assert why("o-8") == "run 'o-8' is settled: resolved just now"


def test_why_as_json(waits: Desk):
    """The sentence, the cause and the way to it."""
    told = typed("why", "o-7", "--json").json
    assert list(told) == [
        *("id", "sentence", "cause", "other_causes", "more_causes", "tracebacks", "chain")
    ]
    assert [each["id"] for each in told["chain"]] == ["run/o-7", "run/o-7:first", "paid"]
    assert told["cause"]["command"] == "layby resolve paid --value JSON"


def test_an_unknown_id(waits: Desk):
    """The nearest one is offered in the form that was typed."""
    typed("why", "o-77").complains(1, "no run, task or promise 'o-77'", "did you mean 'o-7'?")
    typed("why", "o-7:frist").complains(1, "did you mean 'o-7:first'?")
    typed("why", "xyz").complains(1, "layby runs")


def test_the_tree_says_who_ended_or_prolonged_waits(desk: Desk):
    node, timer = "run/o-8:first", {"resonate:timer": "true", MOVABLE: "true"}
    nap = f"{node}.w0.sleep-1"
    waiting = WaitingOn("sleep", "sleeping 60 s", deadline=60_000, record_id=nap).to_text()
    desk.do(
        *(start("o-8"), take()),
        CreateBelow(id=node, version=1, promise_id=nap, timeout=60_000, tags=timer),
        AnnotateTask(id=node, version=1, sub_status="Deferred", waiting_on=waiting),
        ExtendWait(id=node, exit_id="x", timeout=90_000, by="anna"),
        WakeTask(id=node, exit_id="y", by="bob", reason="now"),
    )
    drawn = " ".join(typed("tree", "o-8").lines)
    assert "w0.sleep-1 was extended by anna" in drawn
    assert "w0.sleep-1 was ended by bob (now)" in drawn
