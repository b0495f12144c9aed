"""Tasks by the protocol: a worker's life, by hand."""

import pytest

from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed

TARGET = ("--tag", "resonate:target=poll://any@default")


def test_a_workers_life_by_hand(desk: Desk):
    """Claim, create a child under the fence, suspend on it, resume, complete."""
    desk.do(r.target("t"))
    claimed = typed("tasks", "claim", "t", "--version", 0, "--pid", "me", "--json").json
    assert claimed["task"] == {
        "id": "t",
        "state": "acquired",
        "version": 1,
        "pid": "me",
        "ttl_ms": 60_000,
    }
    action = '{"kind": "promise.create", "data": {"id": "t.1", "timeoutAt": 9007199254740991}}'
    child = typed("tasks", "fence", "t", "--version", 1, "--action", action, "--json").json
    assert child["promise"]["id"] == "t.1"
    assert typed("tasks", "heartbeat", "--pid", "me", "--task", "t=1").lines == ["renewed for me"]
    suspended = typed("tasks", "suspend", "t", "--version", 1, "--on", "t.1").lines
    assert suspended == ["t is suspended"]
    typed("promises", "resolve", "t.1")
    typed("tasks", "acquire", "t", "--version", 1, "--pid", "me", "--ttl", "5s")
    done = typed("tasks", "complete", "t", "--version", 2, "--value", "[1]", "--json").json
    assert (done["promise"]["state"], done["promise"]["value"]) == ("resolved", [1])


def test_create_is_born_acquired(desk: Desk):
    """With its promise, in one command."""
    lines = typed("tasks", "create", "t", "--pid", "me", "--ttl", "30s", *TARGET).lines
    assert [line.split() for line in lines] == [
        ["task", "t"],
        ["state", "acquired"],
        ["version", "1"],
        ["pid", "me"],
        ["ttl", "30s"],
        ["param", "-"],
    ]


def test_release_halt_and_continue(desk: Desk):
    """Each says what has happened."""
    desk.do(r.claimed("t"))
    assert typed("tasks", "release", "t", "--version", 1).lines == ["t is released"]
    assert typed("tasks", "halt", "t").lines == ["t is halted"]
    assert typed("tasks", "continue", "t").lines == ["t is continued"]
    assert typed("tasks", "get", "t", "--json").json["task"]["state"] == "pending"
    assert typed("tasks", "halt", "t", "--json").json == {"ok": True}


def test_suspending_on_what_is_settled_says_so(desk: Desk):
    """The task stays yours: exit code 1."""
    desk.do(r.claimed("t"), r.promise("p"), r.settle("p"))
    said = typed("tasks", "suspend", "t", "--version", 1, "--on", "p")
    said.complains(1, "not suspended", "already settled")


def test_rejected_by_complete(desk: Desk):
    """The outcome is a choice."""
    desk.do(r.claimed("t"))
    arguments = ("t", "--version", 1, "--state", "rejected", "--value", '"bad"', "--json")
    assert typed("tasks", "fulfill", *arguments).json["promise"]["state"] == "rejected"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("claim", "t", "--version", 7, "--pid", "me"), "version mismatch"),
        (("complete", "t", "--version", 1), "not acquired or version mismatch"),
        (("release", "t", "--version", 1), "version mismatch or invalid state"),
        (("continue", "t"), "not halted"),
        (("create", "p", "--pid", "me", *TARGET), "does not have a resonate:target"),
    ],
)
def test_the_protocols_refusals_are_exit_code_1(desk: Desk, arguments, said):
    """In one line that names the task."""
    desk.do(r.target("t"), r.promise("p"))
    typed("tasks", *arguments).complains(1, f"task '{arguments[1]}'", said)


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "tsk-7"),
        ("claim", "tsk-7", "--version", 0, "--pid", "me"),
        ("halt", "tsk-7"),
        ("continue", "tsk-7"),
        ("release", "tsk-7", "--version", 1),
        ("complete", "tsk-7", "--version", 1),
        ("suspend", "tsk-7", "--version", 1, "--on", "x"),
    ],
)
def test_an_unknown_task(desk: Desk, arguments):
    """With the id that may have been meant."""
    desk.do(r.target("task-7"))
    typed("tasks", *arguments).complains(1, "there is no task 'tsk-7'", "did you mean 'task-7'")


def test_a_promise_without_a_task(desk: Desk):
    """Nobody is asked whether they meant what they have typed."""
    desk.do(r.promise("p"))
    typed("tasks", "get", "p").complains(1, "promise 'p' has no task")


@pytest.mark.parametrize("group", ["promises", "tasks"])
def test_a_run_is_suggested_by_its_whole_id(desk: Desk, group):
    """The protocol's commands take ids as they are."""
    desk.do(r.target("run/o-7"))
    typed(group, "get", "o-7").complains(1, "'o-7'; did you mean 'run/o-7'?")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("claim", "t", "--pid", "me"), "Missing option '--version'"),
        (("claim", "t", "--version", "x", "--pid", "me"), "not a valid integer"),
        (("claim", "t", "--version", "-1", "--pid", "me"), "version must be non-negative"),
        (("claim", "t", "--version", 0, "--pid", "me", "--ttl", "5"), "not a duration"),
        (("heartbeat", "--pid", "me", "--task", "t"), "write ID=VERSION"),
        (("suspend", "t", "--version", 1), "Missing option '--on'"),
        (("fence", "t", "--version", 1, "--action", "{}"), "missing required field"),
        (("fence", "t", "--version", 1, "--action", "nonsense"), "is not JSON"),
        (("create", "t2", "--pid", "me"), "must have a resonate:target tag"),
        (("complete", "t", "--version", 1, "--state", "done"), "is not one of"),
    ],
)
def test_bad_input_is_exit_code_2(desk: Desk, arguments, said):
    """Nothing was done."""
    desk.do(r.target("t"))
    result = typed("tasks", *arguments)
    assert result.code == 2, result
    assert said.lower() in " ".join(result.err.split()).lower()


def test_search_by_state_target_and_tag(desk: Desk):
    """A table, or one document."""
    desk.do(r.target("a", k="v"), r.target("b"), r.claimed("c"))
    table = typed("tasks", "search").lines
    assert [line.split() for line in table] == [
        ["TASK", "STATE", "VERSION", "PID"],
        ["a", "pending", "0", "-"],
        ["b", "pending", "0", "-"],
        ["c", "acquired", "1", "p"],
    ]
    pending = typed("tasks", "search", "--state", "pending", "--tag", "resonate:k=v", "--json").json
    assert [each["id"] for each in pending["tasks"]] == ["a"]
    assert typed("tasks", "search", "--target", "poll://any@none", "--json").json == {"tasks": []}


def test_a_heartbeat_of_nothing_renews_everything(desk: Desk):
    """The empty list, as an SDK sends it."""
    assert typed("tasks", "heartbeat", "--pid", "me", "--json").json == {"ok": True}


CLAIM = ("tasks", "claim", "t", "--pid", "me")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            ("tasks", "complete", "t", "--version", 7),
            (
                "task 't': task is not acquired or version mismatch: "
                "it is acquired by p at version 1, see `layby tasks get t`"
            ),
        ),
        (
            (*CLAIM, "--version", 0),
            (
                "task 't': task is not pending: it is acquired by p at version 1, "
                "see `layby tasks get t`"
            ),
        ),
        (
            ("tasks", "claim", "other", "--pid", "me", "--version", 0),
            "there is no task 'other': look with `layby tasks search`",
        ),
        (
            ("tasks", "create", "new", "--pid", "me"),
            (
                "task 'new': action must have a resonate:target tag: "
                "give --tag resonate:target=ADDRESS, for example poll://any@default"
            ),
        ),
        (
            ("tasks", "fence", "t", "--version", 1, "--action", "{}"),
            (
                "--action: Object missing required field `kind` - at `$.action`: "
                "write a promise.create or promise.settle, see `layby tasks fence --help`"
            ),
        ),
        (
            ("schedules", "create", "s", "--cron", "x", *TARGET),
            (
                "schedule 's': invalid cron expression 'x': "
                "write five fields, for example '0 3 * * *' for every day at 3:00 UTC"
            ),
        ),
        (
            ("schedules", "create", "s", "--cron", "0 3 * * *"),
            (
                "schedule 's': promiseTags must include a resonate:target tag: "
                "give --tag resonate:target=ADDRESS, for example poll://any@default"
            ),
        ),
        (
            ("promises", "register-listener", "t", "nowhere"),
            (
                "promise 't': invalid listener address 'nowhere': "
                "give an http:// URL, or poll://any@GROUP"
            ),
        ),
        (
            ("promises", "get", "other"),
            "there is no promise 'other': look with `layby promises search`",
        ),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_refusals_say_what_to_do(desk: Desk, given: tuple[object, ...], told: str):
    """The protocol's own texts do not; the command line knows its options."""
    desk.do(r.claimed("t", pid="p", ttl=600_000))
    assert typed(*given).err == f"layby: {told}\n"
