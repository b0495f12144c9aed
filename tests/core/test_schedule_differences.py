"""The message about a difference names what differs, and nothing else."""

import base64
from typing import Any

import msgspec
import pytest

from layby.core import commands as c
from layby.core.fields import Value
from layby.core.model import NEVER
from tests.helpers.worlds import World

CONTEXT = {"to": "ada", "copies": 2}


def value(**fields: Any) -> Value:
    return Value(data=base64.b64encode(msgspec.json.encode(fields)).decode())


def param(tasks: list[str], **changed: Any) -> Value:
    """As the workflow layer writes it: what runs begin with, and their tasks once more."""
    return value(**{"flow": "report", "context": CONTEXT, "tasks": tasks} | changed)


def report(tasks: str = "collect send", **changed: Any) -> c.CreateRunSchedule:
    names = tasks.split()
    given = {
        "id": "report",
        "cron": "0 9 * * *",
        "name": "report",
        "group": "g",
        "nodes": tuple(c.Node(each, f"report.{each}") for each in names),
        "param": param(names),
    }
    return c.CreateRunSchedule(**given | changed)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (report("collect send sign"), "tasks (added 'sign')"),
        (report("collect"), "tasks (removed 'send')"),
        (report("send collect"), "tasks (in another order)"),
        (report("a b c d e"), "tasks (added 'a', 'b', 'c' and 2 more, removed 'collect', 'send')"),
        (
            report(
                nodes=(
                    c.Node("collect", "report.collect"),
                    c.Node("send", "report.send", ("collect",)),
                )
            ),
            "tasks (changed 'send')",
        ),
        (report(param=param([])), "tasks"),
        (
            report(param=param(["collect", "send"], context={"to": "bob"})),
            "context ('to', 'copies')",
        ),
        (report(param=param(["collect", "send"], pin=True)), "pin"),
        (report(param=Value(data="???")), "context"),
        (report(param=Value()), "context"),
        (report(timeout=90_000), "deadline (none, not 90 s)"),
        (
            report(
                name="other",
                nodes=(c.Node("collect", "other.collect"), c.Node("send", "other.send")),
                param=param(["collect", "send"], flow="other"),
            ),
            "workflow ('report', not 'other')",
        ),
        (
            report(cron="* * * * *", overlap="skip", group="x"),
            (
                "cron ('0 9 * * *', not '* * * * *'), overlap ('allow', not 'skip'), "
                "group ('g', not 'x')"
            ),
        ),
    ],
)
def test_only_what_differs_is_named(changed: c.CreateRunSchedule, told: str) -> None:
    with World() as world:
        world.ok(report())
        reply = world.send(changed)
        assert reply.status == 409
        assert reply.data == (
            f"Schedule 'report' already exists and differs in {told}: "
            "use replace to change it, or another id"
        )


def test_the_same_written_differently_is_the_same() -> None:
    """A later layby may write a param with its keys in another order."""
    with World() as world:
        first = world.ok(report()).schedule
        fields = {"tasks": ["collect", "send"], "context": CONTEXT, "flow": "report"}
        assert world.ok(report(param=value(**fields), timeout=NEVER)).schedule == first


@pytest.mark.parametrize(
    ("before", "after"),
    [(1, True), (False, 0), (1, 1.0), ([1], [True]), ({"a": [0]}, {"a": [False]})],
)
def test_what_python_calls_equal_is_not_the_same(before: Any, after: Any) -> None:
    """Runs would begin with another value than the one that was asked for."""

    def with_copies(copies: Any) -> c.CreateRunSchedule:
        return report(param=param(["collect", "send"], context={"to": "ada", "copies": copies}))

    for one, other in ((before, after), (after, before)):
        with World() as world:
            world.ok(with_copies(one))
            assert "differs in context ('copies'):" in world.send(with_copies(other)).data
            replaced = world.ok(msgspec.structs.replace(with_copies(other), replace=True))
            assert (
                replaced.schedule.promise_param
                == msgspec.json.encode(with_copies(other).param).decode()
            )


def test_spaces_in_a_rule_do_not_count() -> None:
    with World() as world:
        first = world.ok(report()).schedule
        assert world.ok(report(cron=" 0  9 * *\t* ")).schedule == first
