"""Golden records: exactly these bytes, omitted keys omitted, never null."""

import msgspec
import pytest

from layby.core import commands as c
from layby.core import queries as q
from layby.wire.decode import Request, decode
from layby.wire.encode import encode
from layby.wire.records import PromiseRecord
from tests.helpers import requests as r
from tests.helpers.worlds import World

HEAD = '"head":{"corrId":"c","status":%d,"version":"2026-04-01"}'


def told(world: World, request: c.Command | q.Query, corr_id: str = "c") -> str:
    return encode(request.kind, corr_id, world.engine.call(request, world.now)).decode()


def data_of(world: World, request: c.Command | q.Query) -> str:
    text = told(world, request)
    assert "null" not in text
    return text.partition(',"data":')[2][:-1]


def test_an_answer_repeats_kind_and_corr_id() -> None:
    """And carries status and version in its head."""
    with World() as world:
        assert told(world, r.promise("x", 9)) == (
            '{"kind":"promise.create",' + HEAD % 200 + ',"data":{"promise":{"id":"x",'
            '"state":"pending","param":{},"value":{},"tags":{},"timeoutAt":9,"createdAt":0}}}'
        )


def test_a_refusal_is_a_plain_string() -> None:
    """TS rejects anything else."""
    with World() as world:
        assert told(world, c.GetPromise(id="x")) == (
            '{"kind":"promise.get",' + HEAD % 404 + ',"data":"Promise not found"}'
        )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (c.Value(), "{}"),
        (c.Value(headers={}), '{"headers":{}}'),
        (c.Value(headers={"k": "v"}, data=""), '{"headers":{"k":"v"},"data":""}'),
        (c.Value(data="eA=="), '{"data":"eA=="}'),
    ],
)
def test_values_are_echoed_as_given(value: c.Value, shown: str) -> None:
    """Missing stays missing, and headers given empty stay empty."""
    with World() as world:
        request = c.CreatePromise(id="x", timeout_at=9, param=value)
        assert f'"param":{shown},' in data_of(world, request)
        settled = data_of(world, c.SettlePromise(id="x", state="resolved", value=value))
        assert f'"value":{shown},' in settled
        assert settled.endswith('"createdAt":0,"settledAt":0}}')


def test_task_records() -> None:
    """`ttl` and `pid` exactly while acquired; `resumes` always, as a number."""
    with World() as world:
        world.ok(r.promise("x"))
        world.ok(r.target("t"))
        pending = '{"task":{"id":"t","state":"pending","version":0,"resumes":0}}'
        assert data_of(world, c.GetTask(id="t")) == pending
        claim = data_of(world, r.acquire("t", 0))
        acquired = '"task":{"id":"t","state":"acquired","version":1,"resumes":0,'
        assert claim.startswith("{" + acquired + '"ttl":5000,"pid":"p"},"promise":{')
        assert claim.endswith(',"preload":[]}')
        assert data_of(world, r.suspend("t", 1, "x")) == "{}"
        world.ok(r.settle("x"))
        woken = '{"task":{"id":"t","state":"pending","version":1,"resumes":1}}'
        assert data_of(world, c.GetTask(id="t")) == woken


def test_schedule_records() -> None:
    """`lastRunAt` is omitted until it has run."""
    with World() as world:
        request = c.CreateSchedule(
            id="s",
            cron="* * * * *",
            promise_id="x",
            promise_timeout=5,
            promise_tags={"resonate:target": r.OTHER},
        )
        shown = (
            '{"schedule":{"id":"s","cron":"* * * * *","promiseId":"x","promiseTimeout":5,'
            '"promiseParam":{},"promiseTags":{"resonate:target":"poll://any@other"},'
            '"createdAt":0,"nextRunAt":60000%s}}'
        )
        assert data_of(world, request) == shown % ""
        world.tick(60_000)
        again = data_of(world, c.GetSchedule(id="s"))
        assert again == shown.replace("60000", "120000") % ',"lastRunAt":60000'


def test_records_of_schedules_that_start_runs() -> None:
    """The protocol's record, and behind it what only these have."""
    with World() as world:
        request = r.nightly(timezone="Europe/Berlin", timeout=5)
        assert data_of(world, request) == (
            '{"schedule":{"id":"nightly","cron":"0 3 * * *",'
            '"promiseId":"run/{{.id}}-{{.timestamp}}","promiseTimeout":5,"promiseParam":{},'
            '"promiseTags":{"resonate:target":"poll://any@layby.g","layby:name":"root",'
            '"layby:kind":"root"},"createdAt":0,"nextRunAt":7200000,'
            '"flow":"root","timezone":"Europe/Berlin","catchUp":false,"overlap":"allow","skipped":0}}'
        )
        shown = data_of(world, c.GetSchedule(id="nightly"))
        assert shown == data_of(world, request)
        assert data_of(world, q.SearchSchedules()) == f'{{"schedules":[{shown[12:-1]}]}}'


def test_fence_wraps_the_inner_answer() -> None:
    """With the outer corrId; a missing inner promise is an inner 404."""
    with World() as world:
        world.ok(r.claimed("t"))
        fence = c.FenceTask(id="t", version=1, inner=r.settle("none"))
        assert data_of(world, fence) == (
            '{"action":{"kind":"promise.settle",' + HEAD % 404 + ',"data":"Promise not found"},'
            '"preload":[]}'
        )
        made = data_of(world, c.FenceTask(id="t", version=1, inner=r.promise("x", 9)))
        assert made.startswith('{"action":{"kind":"promise.create",' + HEAD % 200)


def test_pages_have_a_cursor_only_when_there_is_more() -> None:
    """For promises, tasks and schedules alike."""
    with World() as world:
        world.ok(r.target("a"))
        world.ok(r.target("b"))
        assert data_of(world, q.SearchPromises(limit=1)).endswith('],"cursor":"a"}')
        assert data_of(world, q.SearchPromises(limit=2)).endswith("}]}")
        assert data_of(world, q.SearchTasks(limit=1)).endswith('],"cursor":"a"}')
        assert data_of(world, q.SearchSchedules()) == '{"schedules":[]}'


def test_snapshot_records() -> None:
    """Everything by id; executes before unblocks; layby's own notices are not shown."""
    with World() as world:
        world.ok(r.run(a=""))
        world.ok(r.take())
        world.ok(c.HaltTask(id="run/a:a"))
        world.ok(r.target("t"))
        world.ok(r.promise("x", 500))
        world.ok(c.RegisterListener(awaited="x", address=r.WORKER))
        world.ok(c.RegisterListener(awaited="x", address=r.OTHER))
        world.ok(r.settle("x"))
        _, snap = world.ask("debug.snap", {}, 0)
        assert [each["message"]["kind"] for each in snap["messages"]] == [
            "execute",
            "unblock",
            "unblock",
        ]
        assert snap["messages"][0] == {
            "address": r.OTHER,
            "message": {"kind": "execute", "head": {}, "data": {"task": {"id": "t", "version": 0}}},
        }
        unblock = snap["messages"][1]
        assert unblock["message"]["data"]["promise"]["settledAt"] == 0
        assert snap["callbacks"] == [{"awaiter": "run/a", "awaited": "run/a:a"}]
        assert [each["id"] for each in snap["promises"]] == ["run/a", "run/a:a", "t", "x"]
        assert snap["promiseTimeouts"][-1]["id"] == "t"
        assert snap["listeners"] == []
        assert snap["taskTimeouts"] == [{"id": "t", "type": 0, "timeout": 30_000}]


def test_our_own_kinds_show_claims() -> None:
    """A claim shows more of a task than the protocol does, and never null."""
    with World() as world:
        started = data_of(world, r.run(with_take=r.take(), a="", b="a"))
        assert '"created":true' in started
        assert '"name":"f","kind":"node"' in started
        finished = data_of(world, r.finish("run/a:a", with_take=r.take()))
        assert '"id":"run/a:b"' in finished
        failed = data_of(world, r.fail("run/a:b", retry_in=5))
        assert '"state":"suspended"' in failed
        beat = data_of(world, c.HeartbeatWorker(pid="p", incarnation="1", held=0))
        assert beat == '{"lost":[],"agrees":true,"now":0}'
        world.ok(c.HaltTask(id="run/a:b"))
        assert data_of(world, r.take()) == '{"claims":[]}'
        held = data_of(world, q.ListHeld(pid="p", incarnation="1"))
        assert held == '{"tasks":[]}'


OURS: dict[str, tuple[str, c.Command]] = {
    "take": (
        '{"pid":"p","incarnation":"1","group":"g","names":["f"],"free":1,"ttl":5,"waitMs":9}',
        c.Take(pid="p", incarnation="1", group="g", names=("f",), free=1, ttl=5, wait_ms=9),
    ),
    "finish": (
        '{"id":"x","version":1,"value":{"data":"eA=="},"take":null}',
        c.FinishTask(id="x", version=1, value=c.Value(data="eA==")),
    ),
    "fail": (
        '{"id":"x","version":1,"retryIn":5.0}',
        c.FailTask(id="x", version=1, retry_in=5),
    ),
    "start": (
        '{"id":"run/a","name":"n","group":"g","timeout":9,"nodes":[{"id":"a","name":"f"}]}',
        c.StartRun(id="run/a", name="n", group="g", timeout=9, nodes=(c.Node(id="a", name="f"),)),
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_our_own_kinds_are_read(name: str) -> None:
    """Field names in camel case; null is absent; an integral float is an integer."""
    data, expected = OURS[name]
    head = '{"corrId":"c","version":"2026-04-01","resonate:debug_time":7,"auth":"t","x":1}'
    body = f'{{"kind":"{expected.kind}","head":{head},"data":{data},"more":[]}}'
    assert decode(body.encode()) == Request(expected.kind, "c", "t", 7, expected)


@pytest.mark.parametrize(
    ("tags", "is_timer"),
    [
        (b'{"resonate:timer":"true"}', True),
        (b'{ "resonate:timer" : "true" }', True),
        (b'{"resonate:timer":"yes"}', False),
        (b'{"x":"resonate:timer"}', False),
        (b"{}", False),
    ],
)
def test_a_timer_is_known_by_its_tag(tags: bytes, *, is_timer: bool) -> None:
    """However a peer spaces its JSON."""
    record = (
        b'{"id":"x","state":"pending","param":{},"value":{},"tags":%b,"timeoutAt":9,"createdAt":0}'
    )
    assert msgspec.json.decode(record % tags, type=PromiseRecord).row().timer == is_timer
