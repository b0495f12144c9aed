"""How deep stored JSON may be nested: no reader of it has less room than that."""

import base64
from typing import Any

import pytest
from msgspec import Raw

from layby.core import commands as c
from layby.core.nesting import MAX_DEPTH, is_too_deep
from layby.core.questions import question_of
from layby.core.validate import problems
from layby.core.waits import read_waiting_on
from tests.helpers import requests as r
from tests.helpers.worlds import World

NODE = "run/a:a"


def nested(levels: int, inner: str = "") -> str:
    return f"{'[' * levels}{inner}{']' * levels}"


@pytest.mark.parametrize(
    "json",
    [
        nested(MAX_DEPTH),
        "[" + ",".join(["[]"] * 1_000) + "]",
        '{"a":"' + "[" * 1_000 + '"}',
        '["\\"' + "[" * 1_000 + '"]',
        '["\\\\","' + "{" * 1_000 + '"]',
        "",
    ],
)
def test_what_is_not_too_deep(json: str) -> None:
    """Brackets in texts are none, and those side by side are not deep."""
    assert not is_too_deep(json.encode())


@pytest.mark.parametrize(
    "json",
    [
        nested(MAX_DEPTH + 1),
        nested(MAX_DEPTH // 2) + nested(MAX_DEPTH + 1),
        '["\\\\",' + nested(MAX_DEPTH) + "]",
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
    ],
)
def test_what_is_too_deep(json: str) -> None:
    assert is_too_deep(json.encode())


@pytest.mark.parametrize("what", ["kwargs", "context", "args"])
def test_what_a_deferred_task_brings_with_it(what: str) -> None:
    """It is read again in every batch that its task is in: a tick of many, or somebody's event."""
    deep = Raw(f'{{"a":{nested(MAX_DEPTH)}}}'.encode())
    spec = c.TriggerSpec("Poll", deep) if what == "args" else r.trigger("Delay", ms=5)
    given: dict[str, Any] = {} if what == "args" else {what: deep}
    resume = c.ResumeSpec(**given)
    told = problems(c.DeferTask(id=NODE, version=1, trigger=spec, resume=resume))
    assert told is not None
    assert told.endswith(f"must not be nested deeper than {MAX_DEPTH} levels")


def test_waits_that_are_too_deep_are_none() -> None:
    """A row of earlier layby may have them: nobody else's list ends with it."""
    begin = '{"kind":"bundle","sentence":"x","members":['
    assert read_waiting_on(begin * 2_000 + "]}" * 2_000) is None


@pytest.mark.parametrize("depth", [MAX_DEPTH, 2_000])
def test_a_question_that_is_too_deep_is_none(world: World, depth: int) -> None:
    """Whoever lists approvals reads all of them."""
    schema = f'{{"prompt":"x","schema":{{"enum":{nested(depth)}}}}}'
    param = c.Value(data=base64.b64encode(schema.encode()).decode())
    tags = {"layby:approval": "true", "layby:asker": "a"}
    world.ok(c.CreatePromise(id="a.q", timeout_at=10, param=param, tags=tags))
    assert question_of(world.promise("a.q")) is None


def test_an_answer_that_is_too_deep_is_refused(world: World) -> None:
    param = c.Value(data=base64.b64encode(b'{"prompt":"x","schema":{}}').decode())
    tags = {"layby:approval": "true", "layby:asker": "a"}
    world.ok(c.CreatePromise(id="a.q", timeout_at=10, param=param, tags=tags))
    deep = c.Value(data=base64.b64encode(nested(2_000).encode()).decode())
    reply = world.send(c.ResolvePromise(id="a.q", value=deep))
    assert (reply.status, "nested deeper" in reply.data) == (400, True)
