"""Triggers that other languages ask for, over the wire: refused before anything is stored."""

from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from layby.core.model import NEVER
from tests.helpers.listeners import fronting
from tests.helpers.raw_http import Line


@pytest.fixture
def line() -> Generator[Line]:
    """With a task `job` that a worker of any language has acquired."""
    with fronting() as here, Line(here.port) as line:
        data = {"id": "job", "timeoutAt": NEVER, "tags": {"resonate:target": "poll://any@g"}}
        assert line.ask("promise.create", data).status == 200
        claim = {"id": "job", "version": 0, "pid": "w", "ttl": 60_000}
        assert line.ask("task.acquire", claim).status == 200
        yield line


def deferred(line: Line, kind: str, args: Any) -> tuple[int, Any]:
    """Status and data of the answer."""
    asked = {"id": "job", "version": 1, "trigger": {"kind": kind, "args": args}}
    answer = line.ask("layby.task.defer", asked)
    return answer.status, msgspec.json.decode(answer.body)["data"]


def state(line: Line) -> str:
    answer = line.ask("task.get", {"id": "job"})
    return msgspec.json.decode(answer.body)["data"]["task"]["state"]


@pytest.mark.parametrize(
    ("kind", "args", "told"),
    [
        ("HttpPoll", {"url": "http://h/", "headers": {"X\nY": "x"}}, "the header 'X\\nY'"),
        ("HttpPoll", {"url": "http://h/", "headers": {"X": "a\nb"}}, "value of the header 'X'"),
        ("HttpPoll", {"url": "http://h/", "method": "BREW"}, "method"),
        ("HttpPoll", {"url": "ftp://h/"}, "HttpPoll needs an http:// or https:// URL"),
        ("FileExists", {"path": "here"}, "FileExists needs an absolute path"),
        ("Delay", {"ms": -1}, "ms of Delay must be non-negative, got -1"),
        ("Delay", {"ms": 1.5}, "args of Delay"),
        ("Delay", {"ms": "1"}, "args of Delay"),
        ("Delay", {"ms": None}, "args of Delay"),
        ("Delay", {"ms": True}, "args of Delay"),
        ("Delay", {"ms": 2**63}, "args of Delay"),
        ("At", {"at": 1.5}, "args of At"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(line: Line, kind: str, args: Any, told: str) -> None:
    """With the sentence that Python says, and the task is still its worker's."""
    status, data = deferred(line, kind, args)
    assert status == 400
    assert told in data
    assert state(line) == "acquired"


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999"])
def test_numbers_that_are_none_are_refused(line: Line, number: bytes) -> None:
    """JSON has no such number; what no number of the machine can hold is none either."""
    request = (
        b'{"kind":"layby.task.defer","head":{"corrId":"1","version":"2026-04-01"},"data":'
        b'{"id":"job","version":1,"trigger":{"kind":"Delay","args":{"ms":%b}}}}' % number
    )
    assert line.post(request).status == 400
    assert state(line) == "acquired"


@pytest.mark.parametrize("kind", [b"Event", b"Delay", b"OfSomebodyElse"])
@pytest.mark.parametrize("args", [b'{"name":"\xff"}', b'{"\xff":1}'])
def test_bytes_that_are_no_text_are_refused(line: Line, kind: bytes, args: bytes) -> None:
    """Whoever else was in the batch with it was never answered."""
    request = (
        b'{"kind":"layby.task.defer","head":{"corrId":"1","version":"2026-04-01"},"data":'
        b'{"id":"job","version":1,"trigger":{"kind":"%b","args":%b}}}' % (kind, args)
    )
    answer = line.post(request)
    assert (answer.status, b"must be valid Unicode" in answer.body) == (400, True)
    assert state(line) == "acquired"


def test_a_class_that_is_not_known_here_is_accepted(line: Line) -> None:
    """Whoever runs it may have it."""
    status, data = deferred(line, "OfSomebodyElse", {"url": 7, "headers": {"a b": 1}})
    assert (status, data["task"]["state"]) == (200, "deferred")


@pytest.mark.parametrize(
    ("kind", "args"), [("At", {"at": 0}), ("At", {"at": -5}), ("Delay", {"ms": 0})]
)
def test_a_moment_that_is_past_has_come(line: Line, kind: str, args: Any) -> None:
    """It is 1 ms past the beginning, and the task is dispatched again at once."""
    assert deferred(line, kind, args)[0] == 200
    assert state(line) == "pending"


@pytest.mark.parametrize("report", [{"polls": 10**30}, {"lastPollAt": 2**63}, {"nextPollAt": 1.5}])
def test_a_report_of_polls_that_no_view_could_show(line: Line, report: dict[str, Any]) -> None:
    """The view `triggers` reads them as numbers of 64 bits, for everybody who looks."""
    beat = {"pid": "m", "incarnation": "1", "polling": {"job": report}}
    answer = line.ask("layby.worker.heartbeat", beat)
    assert answer.status == 400
    assert b"Expected `int" in answer.body


def test_what_a_worker_tells_cannot_spoil_a_list(line: Line) -> None:
    """It is a part of answers to others."""
    told = {"id": "job", "version": 1, "subStatus": "Deferred", "waitingOn": '{"kind":"sleep"}],'}
    assert line.ask("layby.task.annotate", told).status == 400
    listed = line.ask("layby.waiting.list", {})
    assert listed.status == 200
    assert isinstance(msgspec.json.decode(listed.body)["data"]["entries"], list)
