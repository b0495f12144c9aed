"""Bounds of what turns add to the requests."""

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.takes import MAX_AHEAD
from layby.core.tries import MAX_VERDICT_CHARS
from layby.core.validate import problems
from tests.helpers import requests as r

LARGE = c.Value(data="x" * (MAX_VERDICT_CHARS + 1))


def release(**fields: object) -> c.ReleaseTasks:
    return c.ReleaseTasks(pid="p", incarnation="1", tasks=(replace(c.Released("x", 1), **fields),))


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (replace(r.take(1), ahead=-1), "ahead must be between 0 and 64"),
        (replace(r.take(1), ahead=MAX_AHEAD + 1), "ahead must be between 0 and 64"),
        (replace(r.take(1), begun=(c.TaskVersion("", 1),)), "Task ID is required"),
        (
            replace(r.take(1), begun=(c.TaskVersion("x", 1),) * (c.MAX_CLAIMS + 1)),
            "claims: 100,001 are more than 100,000",
        ),
        (replace(r.take(1), names=("f", "f\0")), "Task name must not contain NUL"),
        (replace(release(), pid=""), "Process ID is required"),
        (replace(release(), incarnation=""), "Incarnation is required"),
        (release(id=""), "Task ID is required"),
        (release(version=-1), "version must be non-negative"),
        (release(delay=-1), "delay and readyAt must be non-negative"),
        (release(ready_at=-1), "delay and readyAt must be non-negative"),
        (replace(r.finish("x"), root=c.RootVerdict("pending")), "state must be one of"),
        (
            replace(r.finish("x"), root=c.RootVerdict("resolved", LARGE)),
            "value of root has 65,537 characters, more than 65,536",
        ),
        (replace(r.fail("x"), root=c.RootVerdict("rejected", LARGE)), "value of root has"),
    ],
)
def test_what_is_out_of_bounds_is_refused(request_: c.Command, why: str) -> None:
    told = problems(request_)
    assert told is not None
    assert why in told


def test_what_is_within_them_is_not() -> None:
    value = c.Value(data="x" * MAX_VERDICT_CHARS)
    for request in (
        replace(r.take(1), ahead=MAX_AHEAD, before=0, in_line=True),
        release(ready_at=0, delay=0),
        replace(r.finish("x"), root=c.RootVerdict("rejected_canceled", value)),
    ):
        assert problems(request) is None
