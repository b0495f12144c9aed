"""Child runs on the command line: drawn below their callers, explained through them."""

import pytest
from msgspec.structs import replace

from layby.cli import tree
from layby.core.children import Caller
from layby.core.commands import AddItems, AnnotateTask, Command, Take, Value
from layby.core.model import NEVER
from layby.core.waits import WaitingOn
from layby.wire import json_values
from layby.workflow.plan import plan
from layby.workflow.task import task
from layby.workflow.workflow import Workflow
from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed


@task
async def ship(context): ...


ORDER = Workflow("order", tasks=[ship])


def started(run_id: str, caller: Caller | None = None) -> Command:
    return replace(plan(ORDER, run_id, {}, "default", NEVER), caller=caller)


def parked(task_id: str, awaited: str) -> Command:
    waiting = WaitingOn("promise", f"waiting for {awaited}", 1, awaited=awaited).to_text()
    return AnnotateTask(id=task_id, version=1, sub_status="Deferred", waiting_on=waiting)


TAKE = Take(pid="w", incarnation="1", group="default", names=("order/ship",), free=9)


@pytest.fixture
def family(desk: Desk) -> Desk:
    """A parent that waits for its child, which waits for its own, and a detached one."""
    desk.do(
        started("p"),
        TAKE,
        started("c", Caller("run/p:ship", 1)),
        started("d", Caller("run/p:ship", 1, detach=True)),
        TAKE,
        started("g", Caller("run/c:ship", 1)),
        TAKE,
        parked("run/p:ship", "run/c"),
        parked("run/c:ship", "run/g"),
        parked("run/g:ship", "answer"),
    )
    return desk


def names_in(lines: list[str]) -> list[tuple[int, str]]:
    """How deep each line is, and what it names."""
    found = [(len(line) - len(line.lstrip("├└│─ ")), line.strip("├└│─ ")) for line in lines]
    return [(indent // 4, text.split("  ")[0]) for indent, text in found]


def test_a_child_is_drawn_below_the_task_that_started_it(family: Desk):
    """With its own tasks, and their children."""
    lines = typed("tree", "p").lines
    assert names_in(lines) == [
        (0, "run/p"),
        (1, "ship"),
        (2, "run/c"),
        (3, "ship"),
        (4, "run/g"),
        (5, "ship"),
        (2, "run/d"),
        (3, "ship"),
    ]
    assert next(each for each in lines if "run/d" in each).endswith("order; detached")


def test_a_child_of_an_item_is_drawn_below_its_map(desk: Desk):
    """Items are drawn only if that is asked for; their children are not the run's own."""
    join = "run/p:ship:map/1"
    add = AddItems(
        id="run/p:ship", version=1, join_id=join, task="m:f", items=(Value(data="1"),), is_last=True
    )
    desk.do(started("p"), TAKE, add, TAKE, started("c", Caller(f"{join}:0", 1)))
    assert names_in(typed("tree", "p").lines)[:4] == [
        (0, "run/p"),
        (1, "ship"),
        (2, "ship:map/1"),
        (3, "run/c"),
    ]
    assert (4, "run/c") in names_in(typed("tree", "p", "--all").lines)


def test_a_child_says_whose_it_is(family: Desk):
    lines = typed("tree", "c").lines
    assert lines[0].endswith("order; child of task 'ship' of run 'p'")
    assert names_in(lines) == [(0, "run/c"), (1, "ship"), (2, "run/g"), (3, "ship")]
    assert "child of" not in typed("tree", "p").out


def test_of_very_many_only_the_first_are_drawn_whole(family: Desk, monkeypatch):
    """The others are a line each."""
    monkeypatch.setattr(tree, "MOST_DRAWN", 1)
    assert names_in(typed("tree", "p").lines) == [
        (0, "run/p"),
        (1, "ship"),
        (2, "run/c"),
        (3, "ship"),
        (4, "run/g"),
        (2, "run/d"),
    ]


def test_a_child_is_there_in_later_lives_of_its_parent(family: Desk):
    """The task that started it has run again: it is found again, too."""
    family.do(r.settle("run/p:ship", "rejected"), r.settle("run/p", "rejected"))
    assert typed("rerun", "p").code == 0
    drawn = typed("tree", "p", "--json").json["tree"]
    for life in drawn["children"]:
        (caller,) = life["children"]
        assert [each["id"] for each in caller["children"]] == ["run/c", "run/d"], life["id"]


def test_the_reason_goes_through_the_child(family: Desk):
    """To what the child of the child waits for."""
    family.do(r.promise("answer"))
    said = typed("why", "p", "--json").json
    chain = [each["id"] for each in said["chain"]]
    assert chain == ["run/p", "run/p:ship", "run/c", "run/c:ship", "run/g", "run/g:ship", "answer"]
    assert "answer" in typed("why", "p").out


def test_a_child_that_nobody_has_the_code_for(desk: Desk):
    """The reason names what is missing."""
    other = Workflow("packing", tasks=[ship])
    start = replace(plan(other, "c", {}, "default", NEVER), caller=Caller("run/p:ship", 1))
    desk.do(started("p"), TAKE, start, parked("run/p:ship", "run/c"))
    assert "packing" in typed("why", "p").out


def test_a_map_is_drawn_below_its_caller_and_its_items_on_request(desk: Desk):
    """One line for all of them, and a line each with --all."""
    join = "run/p:ship:map/1"
    items = tuple(json_values.to_value(number) for number in range(3))
    param = json_values.to_value({"task": "shop:pack"})
    add = AddItems(
        id="run/p:ship",
        version=1,
        join_id=join,
        task="shop:pack",
        items=items,
        is_last=True,
        param=param,
    )
    desk.do(started("p"), TAKE, add)
    assert [name for _, name in names_in(typed("tree", "p").lines)] == [
        "run/p",
        "ship",
        "ship:map/1",
    ]
    everything = [name for _, name in names_in(typed("tree", "p", "--all").lines)]
    assert everything[3:] == [f"ship:map/1:{index}" for index in range(3)]
    assert typed("tree", "p").lines[-1].endswith("3: 3 ready")
    desk.do(r.settle(f"{join}:0", "resolved"), replace(add, join_id=f"{join}+2", earlier=(join,)))
    assert typed("tree", "p").lines[-1].endswith("3: 1 kept, 2 ready")
