"""`layby.schedule.create` as a stranger sends it."""

from typing import Any

import pytest
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.replies import ScheduleData
from layby.core.schedule_row import Schedule
from layby.wire import answers
from layby.wire.encode import encode
from tests.helpers import requests as r
from tests.helpers.worlds import World

GOOD: dict[str, Any] = {
    "id": "nightly",
    "cron": "0 3 * * *",
    "name": "report",
    "group": "default",
    "nodes": [{"id": "fetch", "name": "report/fetch"}],
}


def test_only_the_rule_and_the_run_are_needed() -> None:
    """By default UTC, without a deadline, and nothing missed is made up for."""
    with World() as world:
        status, data = world.ask("layby.schedule.create", GOOD, world.now)
    assert status == 200
    shown = data["schedule"]
    assert (shown["flow"], shown["timezone"], shown["catchUp"]) == ("report", "UTC", False)
    assert shown["promiseTimeout"] == 2**53 - 1


def test_everything_that_can_be_said() -> None:
    """Dependencies, groups and params of nodes, a param, a deadline, a zone, catching up."""
    node = {"id": "send", "name": "report/send", "after": ["fetch"], "group": "mail"}
    full = GOOD | {
        "nodes": [*GOOD["nodes"], node | {"param": {"data": "eA=="}}],
        "param": {"headers": {}, "data": "eA=="},
        "timeout": 60_000,
        "timezone": "Europe/Berlin",
        "catchUp": True,
    }
    with World() as world:
        status, data = world.ask("layby.schedule.create", full, world.now)
        assert (status, data["schedule"]["catchUp"]) == (200, True)
        world.tick(data["schedule"]["nextRunAt"])
        assert world.task("run/nightly-7200000:send").group == "mail"
        assert world.promise("run/nightly-7200000:send").param == '{"data":"eA=="}'
        world.check()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"id": 7}, "Expected `str`, got `int`"),
        ({"cron": None}, "missing required field `cron`"),
        ({"cron": "tomorrow"}, "cron 'tomorrow' is not a valid rule (Wrong number of fields)"),
        ({"cron": ["0", "3"]}, "Expected `str`"),
        ({"timezone": "Mars/Olympus"}, "time zone 'Mars/Olympus' is not known"),
        ({"timezone": 1}, "Expected `str`"),
        ({"catchUp": "yes"}, "Expected `bool`"),
        ({"timeout": -1}, "timeout must be positive"),
        ({"timeout": "1d"}, "Expected `int`"),
        ({"timeout": 2**63}, "Expected `int` <="),
        ({"nodes": {}}, "Expected `array`"),
        ({"nodes": []}, "has no nodes"),
        ({"nodes": [{"id": "a"}]}, "missing required field `name`"),
        ({"nodes": [{"id": "a", "name": "f", "after": ["a"]}]}, "form a cycle: a -> a"),
        ({"name": ""}, "Name of run 'nightly' is required"),
        ({"group": "a?b"}, "Group must not contain '/' or '?'"),
        ({"param": "text"}, "Expected `object`"),
        ({"id": "a/b"}, "Schedule ID 'a/b' must not contain '/'"),
    ],
)
def test_rubbish_is_refused(wrong: dict[str, Any], why: str) -> None:
    """With a 400 that says why, and nothing is written."""
    with World() as world:
        status, text = world.ask("layby.schedule.create", GOOD | wrong, world.now)
        assert status == 400
        assert why in text
        assert world.dump().schedules == {}


def test_a_client_reads_back_what_an_engine_would_have_told() -> None:
    """But for the nodes, which stay where they are needed; the protocol's come back whole."""
    tags = {"resonate:target": r.OTHER}
    plain = c.CreateSchedule(
        id="p", cron="* * * * *", promise_id="x", promise_timeout=1, promise_tags=tags
    )
    with World() as world:
        for request in (plain, r.nightly(timezone="Asia/Tokyo"), r.nightly(id="z", catch_up=True)):
            told: Schedule = world.ok(request).schedule
            assert read_back(world, request) == replace(told, nodes="[]")


def read_back(world: World, request: c.Command) -> Schedule:
    reply = world.engine.call(request, world.now)
    data = answers.read(request, encode(request.kind, "c", reply)).data
    assert isinstance(data, ScheduleData)
    return data.schedule
