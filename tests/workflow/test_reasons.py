"""Every way not to be settled has its sentence: what for, since when, who can unblock it."""

from typing import Any

import pytest
from msgspec.structs import replace

from layby.core import values, waits
from layby.core.model import NEVER, Holder, Promise, Task
from layby.core.replies import Explanation
from layby.core.waits import WaitingOn
from layby.wire.call_format import Call
from layby.wire.json_values import error_value, text_of
from layby.workflow.history import TaskHistory
from layby.workflow.outcome import encode_skipped
from layby.workflow.reasons import reason_of
from layby.workflow.rules import Skip
from layby.workflow.short_ids import short_id
from layby.workflow.wait_sentences import subject_of

NOW = 100_000
OURS = "poll://any@layby.default"
NODE = Task("run/r:t", OURS, "default", "flow/t", "node", waiting_since=40_000)
ROOT = Task("run/r", OURS, "default", "flow", "root", state="suspended", waits_left=2)
FOREIGN = Task("foo.1", "poll://any@workers", waiting_since=40_000)
LONG = text_of(error_value(ValueError("bad\n  and worse")))
SKIPPED = text_of(encode_skipped(Skip("all_success: 'a' is Failed", blocked=True)))
FAILED = text_of(error_value(ValueError("bad")))
HELD = {
    "state": "acquired",
    "version": 1,
    "tries": 1,
    "pid": "w1",
    "ttl": 60_000,
    "waiting_since": None,
}


def promise(key: str, **fields: Any) -> Promise:
    return replace(Promise(key, key, "{}", "{}", NEVER, 10_000), **fields)


def explained(task: Task | None, **around: Any) -> Explanation:
    key = "p" if task is None else task.id
    return Explanation(around.pop("promise", promise(key)), task, **around)


def holder(standing: Any = "alive") -> Holder:
    return Holder("w1", "1", "default", embedded=True, ttl=1, expires_at=NEVER, standing=standing)


def parked(told: WaitingOn, sub_status: str | None = "Deferred") -> Explanation:
    task = replace(NODE, **HELD | {"waiting_since": 40_000}, waiting_on=told.to_text())
    return explained(replace(task, sub_status=sub_status), holder=holder())


def parked_on(*awaited: tuple[Promise, Task | None]) -> Explanation:
    told = WaitingOn("promise", "waiting for promise x", 40_000, awaited="x")
    return replace(parked(told), awaited=awaited)


def suspended_on(*keys: str, task: Task = FOREIGN, **around: Any) -> Explanation:
    awaited = [(promise(key), None) for key in keys]
    return explained(replace(task, state="suspended"), awaited=awaited, **around)


TABLE: dict[str, tuple[Explanation, str, str]] = {
    "an open promise": (
        explained(None),
        "has not been settled by anybody",
        "whoever settles it: layby resolve p --value JSON",
    ),
    "an open promise that is awaited": (
        explained(None, awaiters=["a", "b"], more_awaiters=True, listeners=1),
        "has not been settled by anybody; 2 tasks or more and 1 listener wait for it",
        "whoever settles it: layby resolve p --value JSON",
    ),
    "an open promise with one listener": (
        explained(None, listeners=1),
        "has not been settled by anybody; 1 listener waits for it",
        "whoever settles it: layby resolve p --value JSON",
    ),
    "a timer": (
        explained(None, promise=promise("p", timer=True, timeout_at=160_000)),
        "settles by itself in 1 min (1970-01-01 00:02:40 UTC)",
        "",
    ),
    "a sleep of an SDK": (
        explained(FOREIGN, promise=promise("foo.1", timer=True, timeout_at=160_000)),
        "settles by itself in 1 min (1970-01-01 00:02:40 UTC)",
        "",
    ),
    "a sleep that a worker of an SDK has taken": (
        explained(
            replace(FOREIGN, **HELD), promise=promise("foo.1", timer=True, timeout_at=160_000)
        ),
        "settles by itself in 1 min (1970-01-01 00:02:40 UTC)",
        "",
    ),
    "resolved": (
        explained(None, promise=promise("p").settled("resolved", "{}", 40_000)),
        "is settled: resolved 1 min ago",
        "",
    ),
    "rejected": (
        explained(NODE, promise=promise("run/r:t").settled("rejected", FAILED, 99_999)),
        "is settled: rejected just now (ValueError: bad)",
        "",
    ),
    "an error of several lines": (
        explained(NODE, promise=promise("run/r:t").settled("rejected", LONG, 99_999)),
        "is settled: rejected just now (ValueError: bad and worse)",
        "",
    ),
    "a task that was skipped": (
        explained(NODE, promise=promise("run/r:t").settled("resolved", SKIPPED, 40_000)),
        "is settled: skipped 1 min ago (all_success: 'a' is Failed)",
        "",
    ),
    "rejected with nothing": (
        explained(None, promise=promise("p").settled("rejected", "{}", 40_000)),
        "is settled: rejected 1 min ago",
        "",
    ),
    "cancelled": (
        explained(
            None,
            promise=promise("p").settled(
                "rejected_canceled", values.cancelled("anna", "no more"), 40_000
            ),
        ),
        "is settled: cancelled 1 min ago (Cancelled: cancelled by anna: no more)",
        "",
    ),
    "timed out": (
        explained(None, promise=promise("p", timeout_at=40_000).timed_out()),
        "is settled: timed out 1 min ago",
        "",
    ),
    "nobody can run it": (
        explained(NODE),
        "is ready, but no worker of group 'default' with the code of 'flow/t' is connected",
        "a worker with its code: layby worker MODULE --group default",
    ),
    "others cannot run it": (
        explained(NODE, workers=2),
        (
            "is ready, but no worker of group 'default' with the code of 'flow/t' is connected"
            " (2 workers without it)"
        ),
        "a worker with its code: layby worker MODULE --group default",
    ),
    "all slots are busy": (
        explained(NODE, workers=2, able_workers=1),
        "is ready, and waits for a free slot: 1 worker of group 'default' has its code",
        "a free slot of such a worker",
    ),
    "it needs several slots": (
        explained(replace(NODE, slots=3), workers=2, able_workers=2),
        (
            "is ready, and waits for 3 free slots of one worker: "
            "2 workers of group 'default' have its code"
        ),
        "a free slot of such a worker",
    ),
    "others may have a higher priority": (
        explained(replace(NODE, priority=-5), workers=1, able_workers=1),
        (
            "is ready, and waits for a free slot with priority -5, after tasks of a higher one: "
            "1 worker of group 'default' has its code"
        ),
        "a free slot of such a worker",
    ),
    "not due yet": (
        explained(replace(NODE, ready_at=160_000)),
        "is due in 1 min (1970-01-01 00:02:40 UTC)",
        "",
    ),
    "continued while its body ends": (
        explained(replace(NODE, pid="w1", holder="1"), holder=holder()),
        "starts again once worker w1 reports that the halted body has ended",
        "worker w1",
    ),
    "nobody at the target": (
        explained(FOREIGN),
        "is ready, and no worker at poll://any@workers has taken it yet",
        "a worker at poll://any@workers",
    ),
    "given back by all at the target": (
        explained(replace(FOREIGN, version=7, tries=7)),
        "is ready again, after 7 tries, and no worker at poll://any@workers has taken it yet",
        "a worker at poll://any@workers",
    ),
    "running": (
        explained(replace(NODE, **HELD), holder=holder()),
        "is running on worker w1",
        "worker w1",
    ),
    "running elsewhere": (
        explained(replace(FOREIGN, **HELD, wake_at=112_000)),
        "is running on worker w1, whose lease ends in 12 s unless it is renewed",
        "worker w1",
    ),
    "its worker is gone": (
        explained(replace(NODE, **HELD), holder=holder("lost")),
        "was held by worker w1, which is gone; another worker will get it",
        "a worker of its group",
    ),
    "parked on a condition": (
        parked(WaitingOn("condition", "waiting until done() is true", 40_000)),
        "is parked, waiting until done() is true",
        "the outside world (worker w1 keeps looking)",
    ),
    "a trigger that runs": (
        parked(WaitingOn("trigger", "waits for its event", 40_000)),
        "waits for its event",
        "worker w1",
    ),
    "parked on a promise": (
        parked_on((promise("x"), None)),
        "is parked, waiting for promise x",
        "whoever settles that promise: layby resolve x --value JSON",
    ),
    "parked on a promise with a task": (
        parked_on((promise("x"), FOREIGN)),
        "is parked, waiting for promise x",
        "whoever settles that promise",
    ),
    "parked in a sleep": (
        parked(WaitingOn("sleep", "sleeping 5 s", 40_000, 103_000)),
        "is parked, sleeping 5 s",
        "",
    ),
    "parked for a slot": (
        parked(WaitingOn("slot", "ready to go on, waiting for a slot", 40_000)),
        "is parked, ready to go on, waiting for a slot",
        "a slot of worker w1",
    ),
    "waits with its slot": (
        parked(WaitingOn("condition", "waiting; too many are parked", 40_000), sub_status=None),
        "keeps its slot, waiting; too many are parked",
        "the outside world (worker w1 keeps looking)",
    ),
    "halted": (
        explained(replace(NODE, state="halted")),
        "is halted until somebody continues it",
        "whoever continues it: layby continue r:t",
    ),
    "halted by somebody": (
        explained(replace(NODE, state="halted", waiting_on=waits.halted("anna", "look", 5))),
        "is halted by anna (look) until somebody continues it",
        "whoever continues it: layby continue r:t",
    ),
    "behind others of its run": (
        explained(
            replace(NODE, state="suspended", waits_left=1, waiting_since=None),
            awaited=[(promise("run/r:a"), NODE)],
        ),
        "waits for 'a'",
        "the tasks before it",
    ),
    "a run": (
        explained(ROOT, awaited=[(promise(f"run/r:{key}"), NODE) for key in "abcde"]),
        "waits for 'a', 'b', 'c' and 2 others",
        "the tasks before it",
    ),
    "backing off": (
        explained(
            replace(
                NODE,
                state="suspended",
                failures=2,
                error=FAILED,
                waiting_on=waits.backing_off(2, 105_000, 40_000),
            ),
            awaited=[(promise("run/r:t.backoff.3", timer=True, timeout_at=105_000), None)],
        ),
        "backs off after failure 2: ValueError: bad; it is tried again in 5 s",
        "",
    ),
    "asleep": (
        replace(
            suspended_on(),
            awaited=[(promise("foo.1.1", timer=True, timeout_at=160_000), FOREIGN)],
        ),
        "is suspended on timer foo.1.1",
        "",
    ),
    "suspended": (
        suspended_on("foo.1.1", "foo.1.2"),
        "is suspended on promise foo.1.1, promise foo.1.2",
        "whoever settles that",
    ),
    "suspended on many": (
        suspended_on("a", "b", "c", "d", "e", more_awaited=True),
        "is suspended on promise a, promise b, promise c and 2 or more others",
        "whoever settles that",
    ),
    "suspended by a trigger": (
        suspended_on(
            "x", task=replace(NODE, waiting_on=WaitingOn("trigger", "deferred for x", 5).to_text())
        ),
        "is deferred for x",
        "whoever settles that: layby resolve x --value JSON",
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_sentence_and_who_can_unblock_it(case):
    """What people read."""
    about, sentence, unblock = TABLE[case]
    reason = reason_of(about, NOW)
    told = reason.unblock if reason.command is None else f"{reason.unblock}: {reason.command}"
    said = f"{reason.sentence}; {reason.aside}" if reason.aside else reason.sentence
    assert (said, told) == (sentence, unblock)


@pytest.mark.parametrize(
    ("case", "kind", "since", "deadline"),
    [
        ("an open promise", "promise", 10_000, None),
        ("a timer", "sleep", 10_000, 160_000),
        ("resolved", "settled", 40_000, None),
        ("nobody can run it", "worker", 40_000, None),
        ("not due yet", "sleep", 40_000, 160_000),
        ("running", "running", None, None),
        ("parked in a sleep", "sleep", 40_000, 103_000),
        ("halted", "manual", 40_000, None),
        ("a run", "dependency", 10_000, None),
        ("backing off", "backoff", 40_000, 105_000),
        ("suspended", "promise", 40_000, None),
        ("asleep", "promise", 40_000, 160_000),
        ("suspended by a trigger", "trigger", 40_000, None),
    ],
)
def test_kind_and_times(case, kind, since, deadline):
    """Since when it waits as it does, and when that ends by itself."""
    reason = reason_of(TABLE[case][0], NOW)
    assert (reason.kind, reason.since, reason.deadline) == (kind, since, deadline)


def test_a_deadline_of_its_own_is_a_deadline_of_the_wait():
    """A promise that will time out does not wait for ever."""
    about = explained(None, promise=promise("p", timeout_at=160_000))
    assert reason_of(about, NOW).deadline == 160_000


def test_a_running_task_runs_since_its_span_began():
    """Only its worker knows; what it told is used."""
    history = TaskHistory(replace(NODE, version=1, tries=1), 500)
    history.started(70_000)
    about = explained(replace(NODE, **HELD, history=history.text), holder=holder())
    assert reason_of(about, NOW).since == 70_000


@pytest.mark.parametrize(
    ("case", "awaited"),
    [
        ("parked on a promise", ("x",)),
        ("parked on a condition", ()),
        ("a run", ("run/r:a", "run/r:b", "run/r:c", "run/r:d", "run/r:e")),
        ("backing off", ()),
        ("suspended", ("foo.1.1", "foo.1.2")),
        ("halted", ()),
    ],
)
def test_what_to_look_at_next(case, awaited):
    """A back-off needs no further look; everything else awaited has a reason of its own."""
    assert reason_of(TABLE[case][0], NOW).awaited == awaited


@pytest.mark.parametrize(
    ("key", "task", "timer", "subject"),
    [
        ("run/r", ROOT, False, "run 'r'"),
        ("run/r:t", NODE, False, "task 't' of run 'r'"),
        ("run/r:t.promise.ok", None, False, "promise run/r:t.promise.ok"),
        ("foo.1", FOREIGN, False, "task foo.1"),
        ("foo.2", None, True, "timer foo.2"),
        ("foo.1", FOREIGN, True, "timer foo.1"),
        ("run/r", None, False, "promise run/r"),
    ],
)
def test_what_people_call_it(key, task, timer, subject):
    """Runs and their tasks by their own names, all else by its id."""
    assert subject_of(promise(key, timer=timer), task) == subject


def test_a_call_is_told_from_a_task_of_its_run():
    """By the function it is for."""
    called = replace(promise("run/r:t.x.rpc-1"), param=text_of(Call("hello").to_value()))
    assert subject_of(called, FOREIGN) == "call run/r:t.x.rpc-1 of hello()"


def test_short_ids_are_those_of_runs_and_their_tasks():
    """Only there can the prefix be found again."""
    assert [short_id(each) for each in ("run/r", "run/r:t", "foo.1")] == ["r", "r:t", "foo.1"]


def test_ids_in_commands_can_be_pasted_into_a_shell():
    """A space or a quote in an id must not become two words."""
    about = explained(None, promise=promise("it's ok"))
    assert reason_of(about, NOW).command == "layby resolve 'it'\\''s ok' --value JSON"


def test_what_another_version_wrote_is_no_error():
    """An unknown wait is a running task, not a traceback."""
    task = replace(NODE, **HELD, waiting_on='{"kind":"novel"}')
    assert reason_of(explained(task, holder=holder()), NOW).kind == "running"
