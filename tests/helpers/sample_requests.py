"""One good request of every kind, by the prefix of the ids it names."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from layby.core.kinds import Command, Query
from layby.wire.decode import decode_data

GROUP: Final = "g"
Data = dict[str, Any]


def _take(group: str = GROUP) -> Data:
    return {"pid": "w", "incarnation": "i", "group": group, "names": ["f"], "free": 1}


def _action(kind: str, data: Data) -> Data:
    return {"kind": kind, "head": {}, "data": data}


def _promise(p: str) -> Data:
    tags = {"resonate:target": "poll://any@default", "resonate:branch": f"{p}root"}
    return {"id": f"{p}new", "timeoutAt": 2**53 - 2, "tags": tags}


def _wait(p: str) -> Data:
    return {"awaiter": f"{p}x", "awaited": f"{p}y"}


SAMPLES: Final[dict[str, Callable[[str], Data]]] = {
    "promise.get": lambda p: {"id": f"{p}x"},
    "promise.create": _promise,
    "promise.settle": lambda p: {"id": f"{p}x", "state": "resolved"},
    "promise.register_callback": _wait,
    "promise.register_listener": lambda p: {"awaited": f"{p}x", "address": "poll://uni@g/w"},
    "promise.search": lambda p: {"prefix": p},
    "task.get": lambda p: {"id": f"{p}x"},
    "task.create": lambda p: {
        "pid": "w",
        "ttl": 1000,
        "action": _action("promise.create", _promise(p)),
    },
    "task.acquire": lambda p: {"id": f"{p}x", "version": 0, "pid": "w", "ttl": 1000},
    "task.release": lambda p: {"id": f"{p}x", "version": 1},
    "task.fulfill": lambda p: {
        "id": f"{p}x",
        "version": 1,
        "action": _action("promise.settle", {"id": f"{p}x", "state": "resolved"}),
    },
    "task.suspend": lambda p: {
        "id": f"{p}x",
        "version": 1,
        "actions": [_action("promise.register_callback", _wait(p))],
    },
    "task.fence": lambda p: {
        "id": f"{p}x",
        "version": 1,
        "action": _action("promise.create", _promise(p)),
    },
    "task.heartbeat": lambda p: {
        "pid": "w",
        "tasks": [{"id": f"{p}x", "version": 1}, {"id": f"{p}y", "version": 1}],
    },
    "task.halt": lambda p: {"id": f"{p}x"},
    "task.continue": lambda p: {"id": f"{p}x"},
    "task.search": lambda p: {"prefix": p},
    "schedule.get": lambda p: {"id": f"{p}s"},
    "schedule.create": lambda p: {
        "id": f"{p}s",
        "cron": "* * * * *",
        "promiseId": f"{p}{{{{.timestamp}}}}",
        "promiseTimeout": 1000,
        "promiseTags": {"resonate:target": "poll://any@default"},
    },
    "schedule.delete": lambda p: {"id": f"{p}s"},
    "schedule.search": lambda _: {},
    "debug.start": lambda _: {},
    "debug.stop": lambda _: {},
    "debug.reset": lambda _: {},
    "debug.tick": lambda _: {"time": 1},
    "debug.snap": lambda _: {},
    "layby.worker.take": lambda _: _take(),
    "layby.worker.heartbeat": lambda _: {"pid": "w", "incarnation": "i"},
    "layby.worker.leave": lambda _: {"pid": "w", "incarnation": "i"},
    "layby.worker.release": lambda p: {
        "pid": "w",
        "incarnation": "i",
        "tasks": [{"id": f"{p}x", "version": 1}],
    },
    "layby.worker.list": lambda _: {"pid": "w", "incarnation": "i"},
    "layby.task.finish": lambda p: {"id": f"{p}x", "version": 1, "take": _take()},
    "layby.task.defer": lambda p: {
        "id": f"{p}x",
        "version": 1,
        "trigger": {"kind": "Event", "args": {"name": f"{p}y"}},
        "resume": {"name": "m:f", "kwargs": {"n": 1}},
        "timeout": 1000,
        "take": _take(),
    },
    "layby.task.wake": lambda p: {"id": f"{p}x", "exitId": "e", "by": "me"},
    "layby.task.extend": lambda p: {"id": f"{p}x", "exitId": "e", "timeout": 1000},
    "layby.wait.find": lambda p: {"id": f"{p}x"},
    "layby.task.fail": lambda p: {"id": f"{p}x", "version": 1, "take": _take()},
    "layby.task.block": lambda p: {"id": f"{p}x", "version": 1, "code": "v1", "why": "new"},
    "layby.task.limit": lambda p: {
        "id": f"{p}x",
        "version": 1,
        "limits": ["api"],
        "take": _take(),
    },
    "layby.task.regain": lambda p: {"id": f"{p}x", "version": 1, "place": 1},
    "layby.limit.set": lambda p: {"name": f"{p}l", "concurrency": 2, "rate": "10/min"},
    "layby.limit.get": lambda p: {"name": f"{p}l"},
    "layby.limit.delete": lambda p: {"name": f"{p}l"},
    "layby.limit.list": lambda _: {},
    "layby.task.continue": lambda p: {"id": f"{p}x"},
    "layby.run.pin": lambda p: {"id": f"{p}x:y", "version": 1, "code": "v1"},
    "layby.task.annotate": lambda p: {
        "id": f"{p}x",
        "version": 1,
        "recordId": f"{p}x.r",
        "withdrawn": [f"{p}x.w"],
    },
    "layby.task.expire": lambda p: {
        "id": f"{p}x",
        "version": 1,
        "wait": f"{p}x.w",
        "deadline": 1,
    },
    "layby.task.create": lambda p: {"id": f"{p}x", "version": 1, "promiseId": f"{p}x.y"},
    "layby.promise.resolve": lambda p: {"id": f"{p}x"},
    "layby.promise.ensure": lambda p: {"id": f"{p}x"},
    "layby.promise.watch": lambda p: {"id": f"{p}x"},
    "layby.promise.cancel": lambda p: {"id": f"{p}x"},
    "layby.promise.answer": lambda p: {"id": f"{p}x", "approved": False},
    "layby.promise.link": lambda p: {"id": f"{p}x", "expiresAt": 2**53 - 2},
    "layby.run.start": lambda p: {
        "id": f"{p}r",
        "name": "flow",
        "group": GROUP,
        "nodes": [{"id": "n", "name": "f"}],
        "timeout": 2**53 - 2,
        "take": _take(),
    },
    "layby.map.add": lambda p: {
        "id": f"{p}x",
        "version": 1,
        "joinId": f"{p}x:map/1",
        "task": "m:f",
        "items": [{"data": "MQ=="}],
        "earlier": [f"{p}x:map/2"],
    },
    "layby.map.count": lambda p: {"id": f"{p}x:map/1"},
    "layby.map.read": lambda p: {"id": f"{p}x:map/1", "earlier": [f"{p}x:map/2"]},
    "layby.run.rerun": lambda p: {
        "id": f"{p}r",
        "life": 2,
        "nodes": [{"id": "a"}, {"id": "b", "after": ["a"]}],
    },
    "layby.run.watch": lambda p: {"id": f"{p}r", "hold": False},
    "layby.schedule.create": lambda _: {
        "id": "nightly",
        "cron": "* * * * *",
        "name": "flow",
        "group": GROUP,
        "nodes": [{"id": "n", "name": "f"}],
    },
    "layby.schedule.pause": lambda p: {"id": f"{p}s"},
    "layby.schedule.unpause": lambda p: {"id": f"{p}s"},
    "layby.schedule.start": lambda _: {"id": "nightly", "at": 1, "key": "k"},
    "layby.flow.publish": lambda _: {"group": GROUP, "name": "flow", "layout": "{}"},
    "layby.flow.find": lambda _: {"group": GROUP, "name": "flow"},
    "layby.run.get": lambda p: {"id": f"{p}r"},
    "layby.task.records": lambda p: {"id": f"{p}x"},
    "layby.task.decline": lambda p: {
        "pid": "w",
        "tasks": [{"id": f"{p}x", "version": 0, "target": "poll://any@default"}],
    },
    "layby.run.list": lambda _: {},
    "layby.waiting.list": lambda p: {"prefix": p},
    "layby.promise.explain": lambda p: {"id": f"{p}x"},
    "layby.stats": lambda _: {},
    "layby.prune": lambda _: {"completed": 10**12},
    "layby.now": lambda _: {},
}

UNBOUNDED: Final = frozenset(
    kind
    for kind in SAMPLES
    if kind.endswith(
        (
            *(".search", "run.list", "waiting.list", "limit.list", ".explain", ".stats", ".prune"),
            *("layby.schedule.create", "layby.schedule.start"),
        )
    )
    or kind.startswith("debug.")
)
"""Kinds that no prefix can bound: written here by their names, not by what the server thinks."""

NAMELESS: Final = frozenset({"layby.flow.find", "layby.now"})
"""Name no id: neither the tasks of a workflow nor the time are a secret."""

TAKING: Final = frozenset(
    {
        "layby.worker.take",
        "layby.task.finish",
        "layby.task.fail",
        "layby.task.defer",
        "layby.task.limit",
        "layby.run.start",
    }
)
HOLDING: Final = frozenset(
    {
        "layby.worker.take",
        "layby.worker.heartbeat",
        "layby.worker.leave",
        "layby.worker.release",
        "layby.worker.list",
        "layby.flow.publish",
    }
)


HANDING_BACK: Final = frozenset({"layby.worker.release"})
"""Of those that act for a worker, the ones that name tasks."""


def request(kind: str, prefix: str) -> Command | Query:
    return read(kind, SAMPLES[kind](prefix))


def read(kind: str, data: Data) -> Command | Query:
    body = decode_data(kind, msgspec.json.encode(data))
    assert isinstance(body, Command | Query), body
    return body
