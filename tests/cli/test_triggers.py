"""What people see of deferred tasks, and how they end or prolong their waits."""

import pytest
from msgspec.structs import replace

from layby.core.commands import (
    AcquireTask,
    AnnotateTask,
    CreateBelow,
    HeartbeatWorker,
    PollReport,
    TriggerSpec,
)
from layby.core.tag_names import MOVABLE
from layby.core.waits import WaitingOn
from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed

NODE = "run/a:a"


def deferred(desk: Desk, spec: TriggerSpec | None = None, timeout: int | None = 60_000) -> None:
    spec = spec or r.trigger("Poll", url="u")
    desk.do(r.run(a="", with_take=r.take()), r.defer(NODE, 1, spec, timeout, "m:go_on"))


def test_triggers_says_what_each_waits_for_and_how_its_polls_went(desk: Desk):
    assert typed("triggers").lines == ["no task is deferred"]
    deferred(desk)
    (shown,) = typed("triggers", "a:a", "--json").json["triggers"]
    assert (shown["task"], shown["what"], shown["state"]) == (NODE, "Poll", "untaken")
    report = PollReport(polls=3, last_error="off")
    own = f"{NODE}.defer.1"
    desk.do(r.take_triggers(), HeartbeatWorker(pid="m", incarnation="1", polling={own: report}))
    (shown,) = typed("triggers", "--json").json["triggers"]
    assert (shown["state"], shown["pid"], shown["polls"]) == ("running", "m", 3)
    assert shown["lastError"] == "off"
    line = typed("triggers").lines[-1]
    assert "a:a" in line
    assert "running on m" in line


@pytest.mark.parametrize(
    ("spec", "sentence", "chain", "command"),
    [
        (
            r.trigger("Poll"),
            "is deferred until trigger Poll fires",
            "waits for trigger Poll (a:a.defer.1), which cannot be run: no",
            "layby wake a:a.defer.1",
        ),
        (
            r.trigger("Event", name="paid"),
            "is deferred until 'paid' settles",
            "waits for promise paid, which has not been settled by anybody",
            "layby resolve paid --value JSON",
        ),
        (
            r.trigger("Delay", ms=600_000),
            "is deferred until its time has come",
            "which settles by itself in",
            "layby wake a:a.defer.1",
        ),
    ],
    ids=("Poll", "Event", "Delay"),
)
def test_it_says_what_it_is_deferred_for(
    desk: Desk, spec: TriggerSpec, sentence: str, chain: str, command: str
):
    """The list says it of the task; `why` goes on to what holds the trigger up."""
    deferred(desk, spec, None)
    assert chain in " ".join(typed("why", "a:a").lines)
    waiting = typed("waiting", "--json").json["waiting"]
    (told,) = [each for each in waiting if each["id"] == NODE]
    assert (told["kind"], told["sentence"], told["command"]) == ("trigger", sentence, command)


def test_the_triggers_of_a_run_are_not_those_of_one_whose_name_begins_the_same(desk: Desk):
    deferred(desk)
    desk.do(r.promise("run"))
    assert typed("triggers", "run").lines == ["no task is deferred"]


def test_the_deadline_of_a_deferral_is_not_a_cause_of_its_own(desk: Desk):
    deferred(desk, r.trigger("Event", name="paid"), 60_000)
    said = typed("why", "a").out
    assert "waits for promise paid" in said
    assert "other cause" not in said


def test_wake_ends_the_wait_with_a_value(desk: Desk):
    deferred(desk)
    said = typed("wake", "a:a", "--value", '{"n": 1}', "--by", "anna", "--reason", "asked for")
    assert said.lines == ["a:a goes on"]
    (claim,) = desk.do(r.take())[0].claims
    event = claim.resumed.event
    assert (event.state, event.by, event.reason) == ("resolved", "anna", "asked for")
    typed("wake", "a:a").complains(1, "does not wait")


def test_a_run_is_enough_if_one_task_of_it_is_deferred(desk: Desk):
    desk.do(r.run(a="", b="", with_take=r.take()))
    typed("wake", "a").complains(
        1, "a: no task of this run waits in its body, or is deferred: `layby why a`"
    )
    typed("wake", "a:a").complains(1, "does not wait: `layby why a:a` says what holds it up")
    desk.do(r.defer(NODE, 1, r.trigger("Delay", ms=5_000_000)))
    assert typed("extend", "a", "--timeout", "1h").lines[0].startswith("a:a waits until ")
    desk.do(r.defer("run/a:b", 1, r.trigger("Delay", ms=5_000_000)))
    typed("wake", "a").complains(
        1, "a: several tasks of this run wait: name one, such as 'run/a:a', 'run/a:b'"
    )
    assert typed("wake", "a:b").lines == ["a:b goes on"]
    assert typed("wake", "a").lines == ["a:a goes on"]


def test_a_body_that_waits_is_woken_and_given_more_time(desk: Desk):
    record = f"{NODE}.w0.defer_until-1"
    waiting = WaitingOn("condition", "waits", deadline=60_000, record_id=record).to_text()
    parked = AnnotateTask(id=NODE, version=1, sub_status="Deferred", waiting_on=waiting)
    desk.do(r.run(a="", with_take=r.take()), replace(parked, waits={record: 60_000}))
    assert typed("extend", "a", "--timeout", "2h").lines[0].startswith("a:a waits until ")
    assert typed("extend", "a:a", "--for-ever").lines == ["a:a waits without end"]
    assert typed("wake", "a", "--by", "anna").lines == ["a:a goes on"]
    assert typed("wake", "a").lines == ["a:a goes on"]  # and its worker is told again


def test_why_says_what_the_last_poll_raised(desk: Desk):
    deferred(desk)
    own, report = f"{NODE}.defer.1", PollReport(polls=3, last_error="OSError: off")
    desk.do(r.take_triggers(), HeartbeatWorker(pid="m", incarnation="1", polling={own: report}))
    said = " ".join(typed("why", "a").lines)
    assert "raised when it was last polled: OSError: off" in said


def test_wake_with_an_error_lets_the_wait_fail(desk: Desk):
    deferred(desk)
    typed("wake", "a:a", "--error", "it is lost")
    (claim,) = desk.do(r.take())[0].claims
    assert claim.resumed.event.state == "rejected"


def test_extend_moves_the_deadline(desk: Desk):
    deferred(desk)
    assert (
        typed("extend", "a:a", "--timeout", "2h", "--by", "anna")
        .lines[0]
        .startswith("a:a waits until ")
    )
    waiting = typed("waiting", "--json").json["waiting"]
    assert any("moved by anna" in each["sentence"] for each in waiting)
    assert typed("extend", "a:a", "--for-ever").lines == ["a:a waits without end"]
    typed("extend", "a:a").complains(2, "--timeout")


def test_one_of_several_waits_has_an_id_to_type(desk: Desk):
    """`why` names the commands."""
    nap, ask = f"{NODE}.w0.of.first_of-1.0", f"{NODE}.c.approval.approval-1"
    members = (
        WaitingOn("sleep", "sleeping 60 s", deadline=60_000, record_id=nap),
        WaitingOn("approval", "an answer", deadline=60_000, awaited=ask, record_id=ask),
    )
    waiting = WaitingOn("bundle", "waiting for the first", members=members).to_text()
    timer = {"resonate:timer": "true", MOVABLE: "true"}
    desk.do(
        r.run(a="", with_take=r.take()),
        CreateBelow(id=NODE, version=1, promise_id=nap, timeout=60_000, tags=timer),
        CreateBelow(id=NODE, version=1, promise_id=ask, timeout=60_000, tags={MOVABLE: "true"}),
        AnnotateTask(id=NODE, version=1, sub_status="Deferred", waiting_on=waiting),
    )
    named = {each.strip() for each in typed("why", "a").lines}
    short = "a:a.w0.of.first_of-1.0"
    assert {f"$ layby wake {short}", f"$ layby extend {short} --timeout 1h"} <= named
    assert {
        "$ layby approve a:a.c.approval.approval-1",
        "$ layby extend a:a.c.approval.approval-1 --timeout 1h",
    } <= named
    typed("extend", "a:a", "--timeout", "2h").complains(1, "it waits without a deadline")
    for wait in (short, ask):
        moved = typed("extend", wait, "--timeout", "2h", "--by", "anna").lines
        assert moved[0].startswith("a:a waits until ")
    assert typed("wake", short, "--by", "bob", "--reason", "now").lines == ["a:a goes on"]


def test_a_call_means_its_own_wait_while_it_is_in_one(desk: Desk):
    """Its id is that of the caller's wait as well: `why` names what is done then."""
    call = f"{NODE}.x.rpc-1"
    record = f"{call}.w0.sleep-1"
    ask = WaitingOn("rpc", "a call", deadline=60_000, awaited=call, record_id=call)
    calling = WaitingOn("bundle", "waiting for the first", members=(ask,)).to_text()
    sleeping = WaitingOn("sleep", "sleeping 60 s", deadline=60_000, record_id=record).to_text()
    desk.do(
        r.run(a="", with_take=r.take()),
        CreateBelow(
            id=NODE,
            version=1,
            promise_id=call,
            timeout=60_000,
            tags={"resonate:target": "poll://any@other", MOVABLE: "true"},
        ),
        AnnotateTask(id=NODE, version=1, sub_status="Deferred", waiting_on=calling),
        AcquireTask(id=call, version=0, pid="q", ttl=60_000),
    )
    short = "a:a.x.rpc-1"
    assert typed("extend", short, "--timeout", "2h").lines[0].startswith("a:a waits until ")
    desk.do(
        CreateBelow(
            id=call,
            version=1,
            promise_id=record,
            timeout=60_000,
            tags={"resonate:timer": "true", MOVABLE: "true"},
        ),
        AnnotateTask(id=call, version=1, sub_status="Deferred", waiting_on=sleeping),
    )
    named, nap = {each.strip() for each in typed("why", short).lines}, f"{short}.w0.sleep-1"
    assert {f"$ layby wake {nap}", f"$ layby extend {nap} --timeout 1h"} <= named
    assert typed("extend", short, "--timeout", "2h").lines[0].startswith(f"{short} waits until ")
    assert typed("wake", nap).lines == [f"{short} goes on"]
