"""Runs and calls, drawn."""

import base64
import json
from collections.abc import Iterator

import pytest

from layby.cli.tree import Branch, call_branches, call_of
from layby.core.commands import CreatePromise, FailTask, SettlePromise, Take
from layby.core.model import NEVER, Promise
from layby.wire import json_values
from layby.wire.call_format import Call
from layby.workflow.history import History, Try
from layby.workflow.merge import Delta
from layby.workflow.outcome import encode_completed
from layby.workflow.plan import plan
from layby.workflow.task import task
from layby.workflow.workflow import Workflow
from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed


@task
async def fetch(context): ...


@task(dependencies=["fetch"])
async def left(context): ...


@task(dependencies=["fetch"])
async def right(context): ...


@task(dependencies=["left", "right"])
async def join(context): ...


DIAMOND = Workflow("diamond", tasks=[fetch, left, right, join])


@pytest.fixture
def diamond(desk: Desk) -> Desk:
    names = ("diamond", *(f"diamond/{each}" for each in DIAMOND.tasks))
    desk.do(
        plan(DIAMOND, "d", {}, "default", NEVER),
        r.settle("run/d:fetch"),
        Take(pid="w", incarnation="1", group="default", names=names, free=1),
        FailTask(id="run/d:left", version=1, retry_in=NEVER),
        CreatePromise(id="run/d:right.promise.ok", timeout_at=NEVER),
        CreatePromise(id="run/d:right.checkpoint.x", timeout_at=NEVER),
        r.settle("run/d:right.checkpoint.x"),
    )
    return desk


def test_who_resumed_a_task_is_told(diamond: Desk):
    """Also when it has gone on since."""
    resumed = Try(2, "resumed", outcome="Failed", by="ann", reason="it is paid")
    told = History((Try(1, "first", outcome="Suspended"), resumed))
    ended = FailTask(id="run/d:right", version=1, retry_in=NEVER, history=told.to_text())
    diamond.do(
        Take(pid="w", incarnation="1", group="default", names=("diamond/right",), free=1), ended
    )
    assert "try 2 was resumed by ann (it is paid)" in " ".join(typed("tree", "d").lines)


def test_a_run_is_drawn_once_and_whole(diamond: Desk):
    """Each task below the last one it waits for; what tasks wait for is said."""
    lines = typed("tree", "d").lines
    names = [line.strip("├└│─ ").split("  ")[0] for line in lines]
    assert names == ["run/d", "fetch", "left", "right", "join", "right.promise.ok"]
    assert lines[0] == "run/d  Running  diamond"
    assert lines[1] == "└── fetch  Completed"
    assert "backs off" in lines[2]
    assert "join  Pending  after left, right; waits for 'left', 'right'" in lines[4]


def test_what_is_told_stays_in_its_line(diamond: Desk):
    """An error of several lines does not tear the drawing."""
    error = json_values.named_error_value("ValueError", "the bank\nsays no")
    desk_take = Take(pid="w", incarnation="1", group="default", names=("diamond/right",), free=1)
    diamond.do(desk_take, FailTask(id="run/d:right", version=1, error=error))
    assert "right  Failed  ValueError: the bank says no" in typed("tree", "d").out


def test_where_a_task_failed_is_drawn_on_request(diamond: Desk):
    """Below its line, as it was raised; without the option there is only the error."""
    stack = "Traceback (most recent call last):\n  File x, line 1, in right\nValueError: no"
    error = json_values.named_error_value("ValueError", "no", stack=stack)
    take = Take(pid="w", incarnation="1", group="default", names=("diamond/right",), free=1)
    diamond.do(take, FailTask(id="run/d:right", version=1, error=error))
    assert "Traceback" not in typed("tree", "d").out
    lines = [line.strip("├└│─ ") for line in typed("tree", "d", "--verbose").lines]
    at = lines.index("right  Failed  ValueError: no")
    assert lines[at + 1 : at + 4] == [each.strip() for each in stack.splitlines()]
    (fetch,) = typed("tree", "d", "-v", "--json").json["tree"]["children"]
    assert {each["id"]: each["traceback"] for each in fetch["children"]} == {
        "run/d:left": "",
        "run/d:right": stack,
    }


def test_what_a_task_returned_is_drawn(diamond: Desk):
    """If it is not in the context already; a long result is cut."""
    value = encode_completed(Delta(), result=json.dumps(["x" * 1_000]).encode())
    diamond.do(SettlePromise(id="run/d:right", state="resolved", value=value))
    line = next(line for line in typed("tree", "d").lines if "right  " in line)
    assert 'Completed  returned ["xxx' in line
    assert len(line) < 300


def test_a_deep_run_is_drawn_whole_on_a_narrow_terminal(desk: Desk, monkeypatch):
    """The terminal folds lines that are too long: nothing is left out."""
    tasks = [
        task(id=f"t{n}", dependencies=[f"t{n - 1}"] if n else [])(fetch.call) for n in range(40)
    ]
    desk.do(plan(Workflow("deep", tasks=tasks), "deep", {}, "default", NEVER))
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")
    drawn = typed("tree", "deep").out
    assert "\x1b" in drawn
    assert [f"t{n}  " in drawn for n in range(40)] == [True] * 40


def test_records_are_shown_on_request(diamond: Desk):
    """They are many, and seldom the question."""
    assert "checkpoint" not in typed("tree", "d").out
    assert "right.checkpoint.x  resolved" in typed("tree", "d", "--all").out


def test_a_task_is_drawn_with_what_comes_after_it(diamond: Desk):
    """From there downwards."""
    assert typed("tree", "d:right").lines[0].startswith("run/d:right  Ready")


def test_json_is_nested(diamond: Desk):
    """For programs that draw it otherwise."""
    tree = typed("tree", "d", "--json").json["tree"]
    assert list(tree) == ["id", "state", "told", "traceback", "children"]
    assert [each["id"] for each in tree["children"][0]["children"]] == ["run/d:left", "run/d:right"]


def test_an_unknown_id(diamond: Desk):
    """As everywhere."""
    typed("tree", "dd").complains(1, "no run, task or promise 'dd'")


# --- calls -------------------------------------------------------------------------------


def call(key: str, parent: str, at: int = 0, func: str = "", **tags: str) -> Promise:
    lineage = {"resonate:origin": "root", "resonate:parent": parent} | {
        f"resonate:{name}": text for name, text in tags.items()
    }
    data = base64.b64encode(json.dumps({"func": func, "args": []}).encode()).decode()
    param = json.dumps({"headers": {}, "data": data}) if func else "{}"
    return Promise(key, "root", param, json.dumps(lineage), NEVER, at)


def flattened(branch: Branch) -> Iterator[Branch]:
    """The branch and all below it, as they are drawn."""
    yield branch
    for child in branch.children:
        yield from flattened(child)


def drawn(*promises: Promise, top: str = "root") -> dict[str, list[str]]:
    branches = flattened(call_branches(promises, top))
    return {each.id: [child.id for child in each.children] for each in branches}


def test_calls_hang_below_their_parents_in_the_order_they_were_made():
    """By the SDKs' tags."""
    assert drawn(
        call("root", "root", target="poll://any@g"),
        call("root:2", "root", at=5),
        call("root:1", "root", at=9),
        call("root:2.1", "root:2", at=7),
    ) == {"root": ["root:2", "root:1"], "root:2": ["root:2.1"], "root:2.1": [], "root:1": []}


def test_a_subtree_is_drawn_by_itself():
    """From the call that was asked for."""
    rows = (call("root", "root"), call("root:1", "root"), call("root:1.1", "root:1"))
    assert drawn(*rows, top="root:1") == {"root:1": ["root:1.1"], "root:1.1": []}


def test_circles_and_lost_parents_end():
    """Tags are what somebody wrote: they may say anything."""
    rows = (
        call("root", "root"),
        call("a", "b"),
        call("b", "a"),
        call("lost", "gone"),
    )
    assert drawn(*rows) == {"root": ["lost"], "lost": []}
    assert drawn(*rows, top="a") == {"a": ["b"], "b": []}


def test_calls_of_a_run_are_drawn_below_its_tasks(diamond: Desk):
    """And below them what those functions call in their turn; a call is a tree by itself, too."""
    at = {"resonate:target": "poll://any@ts", "resonate:origin": "run/d"}
    made = "run/d:right.x.rpc-1"
    diamond.do(
        CreatePromise(
            id=made,
            timeout_at=NEVER,
            param=Call("hello").to_value(),
            tags=at | {"resonate:parent": "run/d:right"},
        ),
        CreatePromise(
            id=f"{made}.0",
            timeout_at=NEVER,
            param=Call("inner").to_value(),
            tags=at | {"resonate:parent": made},
        ),
        r.settle(f"{made}.0"),
    )
    told = [line.strip("├└│─ ") for line in typed("tree", "d").lines]
    assert "right.x.rpc-1  pending  rpc hello" in told
    assert "right.x.rpc-1.0  resolved  rpc inner" in told
    assert typed("tree", made).lines == [
        "run/d:right.x.rpc-1  pending  rpc hello",
        "└── run/d:right.x.rpc-1.0  resolved  rpc inner",
    ]


@pytest.mark.parametrize(
    ("promise", "said"),
    [
        (call("x", "root", func="hello", target="poll://any@g"), "rpc hello"),
        (call("x", "root", func="hello", scope="local"), "run hello"),
        (call("x", "root", scope="local"), "run"),
        (call("x", "root", scope="global"), ""),
        (call("x", "root", timer="true", target="poll://any@g"), "sleep"),
        (call("x", "root", target="poll://any@g"), "rpc"),
        (call("x", "root"), ""),
    ],
)
def test_what_a_call_is(promise, said):
    """As far as its promise says."""
    assert call_of(promise) == said


def test_calls_are_found_in_the_store(desk: Desk):
    """All of one origin, however deep, from any of them."""
    tags = {"resonate:origin": "hello-1"}
    root = {"resonate:parent": "hello-1", "resonate:target": "poll://any@default"}
    desk.do(
        CreatePromise(id="hello-1", timeout_at=NEVER, tags=tags | root),
        CreatePromise(id="hello-1:1", timeout_at=NEVER, tags=tags | {"resonate:parent": "hello-1"}),
        CreatePromise(
            id="hello-1:1.1", timeout_at=NEVER, tags=tags | {"resonate:parent": "hello-1:1"}
        ),
        r.settle("hello-1:1.1"),
        r.promise("other"),
    )
    assert typed("tree", "hello-1").lines == [
        "hello-1  pending  rpc",
        "└── 1  pending",
        "    └── 1.1  resolved",
    ]
    assert typed("tree", "hello-1:1").lines[0] == "hello-1:1  pending"
    assert typed("tree", "other").lines == ["other  pending"]
