"""Scripts of requests that lead the model, and the server judged by it, into every corner.

A script is a list of `(kind, data, now)`.  `scripts()` makes random ones with Hypothesis: an oracle
runs along while a script is written, so that versions are mostly right and time mostly jumps to
where something is due.  `coverage_scripts()` are fixed and reach every pair in `PAIRS`.

Rules every script keeps, so that each answer is determined by the protocol: `now` never decreases;
a tick's time is `now`; a snapshot follows a tick at the same `now`; the retry interval is 30 s;
`debug.stop` comes last if at all, so that nothing is delivered meanwhile.
"""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from .oracle import PROMISE_STATES, TASK_STATES, Oracle, is_pending
from .reading import COMPAT, Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Step = tuple[str, object, int]
Script = list[Step]
Data = dict[str, Any]
Path = tuple[str | int, ...]
Junk = tuple[Any, ...]
Rules = dict[Path, Junk]

START = 1_000_000
RETRY_MS = 30_000
GONE = object()  # as junk: the member is left out

# --- every answer that P section 2 names for this profile; 401, 403, 5xx are left out ---

_STATUSES: dict[str, tuple[int, ...]] = {
    "promise.get": (200, 400, 404),
    "promise.create": (200, 400),
    "promise.settle": (200, 400, 404),
    "promise.register_callback": (200, 400, 404, 422),
    "promise.register_listener": (200, 400, 404),
    "promise.search": (200, 400),
    "task.get": (200, 400, 404),
    "task.create": (200, 400, 409, 422),
    "task.acquire": (200, 400, 404, 409),
    "task.release": (200, 400, 404, 409),
    "task.fulfill": (200, 400, 404, 409),
    "task.suspend": (200, 300, 400, 404, 409, 422),
    "task.fence": (200, 400, 404, 409),
    "task.heartbeat": (200, 400),
    "task.halt": (200, 400, 404, 409),
    "task.continue": (200, 400, 404, 409),
    "task.search": (200, 400),
    "schedule.get": (200, 400, 404),
    "schedule.create": (200, 400),
    "schedule.delete": (200, 400, 404),
    "schedule.search": (200, 400),
    "debug.start": (200,),
    "debug.stop": (200,),
    "debug.reset": (200,),
    "debug.tick": (200, 400),
    "debug.snap": (200,),
}
PAIRS: frozenset[tuple[str, int]] = frozenset(
    (kind, status) for kind, statuses in _STATUSES.items() for status in statuses
)

# --- requests as data ---

ANY, UNI, WEB = "poll://any@g", "poll://uni@g/w", "http://example.org/hook"
ADDRESSES = (ANY, UNI, WEB, "poll://any@g/w", "https://example.org/", "gcps://p/t", "bash://")
BAD_ADDRESSES = (
    *("", "x", "any@g", "local://any@g", "nats://any@g", "http://", "gcps://p"),
    *("poll://", "poll://g", "poll://all@g", "poll://any@"),
)


def create(promise_id: str, timeout_at: Any, **tags: str) -> Data:
    """Data of a promise.create; tags are named without their `resonate:`."""
    named = {f"resonate:{name}": text for name, text in tags.items()}
    return {"id": promise_id, "timeoutAt": timeout_at, "param": {}, "tags": named}


def settle(promise_id: str, state: str = "resolved", text: str | None = None) -> Data:
    return {"id": promise_id, "state": state, "value": {} if text is None else {"data": text}}


def envelope(kind: str, data: Data) -> Data:
    return {"kind": kind, "head": {"corrId": "inner", "version": "2026-04-01"}, "data": data}


def task_create(data: Data, pid: str = "p", ttl: Any = 5_000) -> Data:
    return {"pid": pid, "ttl": ttl, "action": envelope("promise.create", data)}


def acquire(task_id: str, version: Any, pid: str = "p", ttl: Any = 5_000) -> Data:
    return {"id": task_id, "version": version, "pid": pid, "ttl": ttl}


def held(task_id: str, version: Any) -> Data:
    return {"id": task_id, "version": version}


def fulfill(task_id: str, version: Any, state: str = "resolved", text: str | None = None) -> Data:
    return held(task_id, version) | {
        "action": envelope("promise.settle", settle(task_id, state, text))
    }


def suspend(task_id: str, version: Any, *awaited: str) -> Data:
    waits = [{"awaiter": task_id, "awaited": one} for one in awaited]
    actions = [envelope("promise.register_callback", wait) for wait in waits]
    return held(task_id, version) | {"actions": actions}


def fence(task_id: str, version: Any, kind: str, data: Data) -> Data:
    return held(task_id, version) | {"action": envelope(kind, data)}


def callback(awaited: str, awaiter: str) -> Data:
    return {"awaited": awaited, "awaiter": awaiter}


def listener(awaited: str, address: str) -> Data:
    return {"awaited": awaited, "address": address}


def schedule(schedule_id: str, cron: str = "* * * * *", timeout: Any = 90_000, **tags: str) -> Data:
    named = {f"resonate:{name}": text for name, text in ({"target": ANY} | tags).items()}
    return {
        "id": schedule_id,
        "cron": cron,
        "promiseId": "{{.id}}.{{.timestamp}}",
        "promiseTimeout": timeout,
        "promiseParam": {},
        "promiseTags": named,
    }


def tick(now: int) -> Step:
    return "debug.tick", {"time": now}, now


def look(now: int) -> Script:
    """A snapshot, with the sweep that makes it comparable."""
    return [tick(now), ("debug.snap", {}, now)]


# --- what is malformed: a well-formed request of each kind, and what spoils its members ---

_TEXTS: Junk = (GONE, None, "", 7, True, [], {})
_STRINGS: Junk = (7, True, [], {})
_VERSIONS: Junk = (GONE, None, "1", 1.5, True, 2**63, [], {})
_INTEGERS: Junk = (*_VERSIONS, -1)
_OPTIONAL_INTEGERS: Junk = ("1", 1.5, True, [], {})
_LIMITS: Junk = (0, -1, 1001, 2**63, *_OPTIONAL_INTEGERS)
_MAPS: Junk = (7, "x", True, [], {"k": 1}, {"k": []})
_VALUES: Junk = (
    7,
    "x",
    True,
    [],
    {"data": 1},
    {"data": {}},
    {"headers": []},
    {"headers": {"k": 1}},
)
_OBJECTS: Junk = (GONE, None, 7, "x", [])
_LISTS: Junk = (GONE, None, 7, "x", {})
_SETTLE_STATES: Junk = (GONE, None, "", "pending", "rejected_timedout", "done", 7)
_STATES: Junk = ("", "done", 7, [])
_ACTION: Rules = {
    ("action",): _OBJECTS,
    ("action", "kind"): (GONE, None, 7),
    ("action", "head"): (GONE,),
    ("action", "data"): _OBJECTS,
}
_HELD: Rules = {("id",): _TEXTS, ("version",): _VERSIONS}
_ID: Rules = {("id",): _TEXTS}
_CREATE: Rules = {
    ("id",): (*_TEXTS, "a\0b"),
    ("timeoutAt",): _INTEGERS,
    ("param",): _VALUES,
    ("tags",): _MAPS,
    ("tags", "resonate:target"): BAD_ADDRESSES,
    ("tags", "resonate:delay"): ("", "x", "-1", "1.5", "9000000", "9223372036854775808"),
}
_SETTLE: Rules = {
    ("id",): _TEXTS,
    ("state",): _SETTLE_STATES,
    ("value",): _VALUES,
}
_PAGE: Rules = {("limit",): _LIMITS, ("cursor",): _STRINGS, ("tags",): _MAPS}


def _inner(rules: Rules) -> Rules:
    return _ACTION | {("action", "data", *path): junk for path, junk in rules.items()}


_GOOD_CREATE = create("v", 9_000_000, target=ANY)
WELL_FORMED: dict[str, list[Data]] = {
    "promise.get": [{"id": "v"}],
    "promise.create": [_GOOD_CREATE],
    "promise.settle": [settle("v")],
    "promise.register_callback": [callback("v", "w")],
    "promise.register_listener": [listener("v", ANY)],
    "promise.search": [{}],
    "task.get": [{"id": "v"}],
    "task.create": [task_create(_GOOD_CREATE)],
    "task.acquire": [acquire("v", 0)],
    "task.release": [held("v", 0)],
    "task.fulfill": [fulfill("v", 0)],
    "task.suspend": [suspend("v", 0, "w", "x")],
    "task.fence": [
        fence("t", 0, "promise.create", _GOOD_CREATE),
        fence("t", 0, "promise.settle", settle("v")),
    ],
    "task.heartbeat": [{"pid": "p", "tasks": [held("v", 0)]}],
    "task.halt": [{"id": "v"}],
    "task.continue": [{"id": "v"}],
    "task.search": [{}],
    "schedule.get": [{"id": "v"}],
    "schedule.create": [schedule("v")],
    "schedule.delete": [{"id": "v"}],
    "schedule.search": [{}],
    "debug.tick": [{"time": START}],
}
MALFORMED: dict[str, list[Rules]] = {
    "promise.get": [_ID],
    "promise.create": [_CREATE],
    "promise.settle": [_SETTLE],
    "promise.register_callback": [{("awaited",): (*_TEXTS, "w"), ("awaiter",): (*_TEXTS, "v")}],
    "promise.register_listener": [{("awaited",): _TEXTS, ("address",): (*_TEXTS, *BAD_ADDRESSES)}],
    "promise.search": [_PAGE | {("state",): (*_STATES, "acquired")}],
    "task.get": [_ID],
    "task.create": [
        _inner(_CREATE)
        | {
            ("pid",): _TEXTS,
            ("ttl",): (*_INTEGERS, 0),
            ("action", "data", "tags", "resonate:target"): (GONE, *BAD_ADDRESSES),
        }
    ],
    "task.acquire": [
        _HELD | {("version",): _INTEGERS, ("pid",): _TEXTS, ("ttl",): (*_INTEGERS, 0)}
    ],
    "task.release": [_HELD],
    "task.fulfill": [_HELD | _inner(_SETTLE) | {("action", "data", "id"): (*_TEXTS, "other")}],
    "task.suspend": [
        _HELD
        | {
            ("actions",): (*_LISTS, [], [7], [[]]),
            ("actions", 0, "kind"): (GONE, None, 7),
            ("actions", 0, "head"): (GONE,),
            ("actions", 1, "data"): _OBJECTS,
            ("actions", 0, "data", "awaiter"): (*_TEXTS, "other"),
            ("actions", 1, "data", "awaited"): (*_TEXTS, "v"),
        }
    ],
    "task.fence": [
        _HELD
        | {
            ("action",): _OBJECTS,
            ("action", "kind"): (GONE, None, 7, "", "promise.get", "task.create"),
            ("action", "data"): _OBJECTS,
            **{("action", "data", *path): junk for path, junk in rules.items()},
            ("action", "data", "id"): (*rules["id",], "t"),
        }
        for rules in (_CREATE, _SETTLE)
    ],
    "task.heartbeat": [
        {
            ("pid",): _TEXTS,
            ("tasks",): (*_LISTS, [7], [[]]),
            ("tasks", 0, "id"): (GONE, None, 7, []),
            ("tasks", 0, "version"): (GONE, None, "1", 1.5, True, []),
        }
    ],
    "task.halt": [_ID | {("version",): _OPTIONAL_INTEGERS}],
    "task.continue": [_ID | {("version",): _OPTIONAL_INTEGERS}],
    "task.search": [_PAGE | {("state",): (*_STATES, "resolved"), ("target",): _STRINGS}],
    "schedule.get": [_ID],
    "schedule.create": [
        {
            ("id",): _TEXTS,
            ("cron",): (*_TEXTS, "x", "* * * *", "61 * * * *", "* 25 * * *", "* * * * 8"),
            ("promiseId",): _TEXTS,
            ("promiseTimeout",): _INTEGERS,
            ("promiseParam",): _VALUES,
            ("promiseTags",): (GONE, None, {}, {"k": "v"}, *_MAPS),
            ("promiseTags", "resonate:target"): (GONE, *BAD_ADDRESSES),
        }
    ],
    "schedule.delete": [_ID],
    "schedule.search": [_PAGE],
    "debug.tick": [{("time",): (GONE, None, "1", 1.5, True, [], {})}],
}


def spoiled(data: Data, path: Path, junk: object) -> Data:
    """A copy of the data with one member replaced or left out."""
    whole = copy.deepcopy(data)
    part: Any = whole
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = junk
    if junk is GONE:
        del part[path[-1]]
    return whole


def malformed_requests() -> Iterator[tuple[str, object]]:
    """Every (kind, data) that differs from a well-formed request in one spoiled member."""
    for kind, variants in MALFORMED.items():
        for good, rules in zip(WELL_FORMED[kind], variants, strict=True):
            for path, junk in rules.items():
                yield from ((kind, spoiled(good, path, one)) for one in junk)
        no_objects: Junk = (None, 7, "x", [])
        for data in no_objects:
            yield kind, data
    without_target = create("v", 9_000_000, delay="5000000")
    yield "promise.create", without_target
    yield "task.fence", fence("t", 0, "promise.create", without_target)
    yield "promise.unknown", {}


_MALFORMED_REQUESTS = tuple(malformed_requests())

# --- fixed scripts ---


def coverage_scripts() -> dict[str, Script]:
    """Scripts by name which together reach every pair of PAIRS."""
    return {
        "malformed": [(kind, data, START) for kind, data in malformed_requests()],
        "missing": _missing(),
        "promises": _promises(),
        "claims": _claims(),
        "waits": _waits(),
        "deadlines": _deadlines(),
        "halts": _halts(),
        "schedules": _schedules(),
        "searches": _searches(),
    }


def _missing() -> Script:
    steps: list[tuple[str, Data]] = [
        ("debug.start", {}),
        ("promise.get", {"id": "no"}),
        ("promise.settle", settle("no")),
        ("promise.register_callback", callback("no", "other")),
        ("promise.register_listener", listener("no", ANY)),
        ("task.get", {"id": "no"}),
        ("task.acquire", acquire("no", 0)),
        ("task.release", held("no", 0)),
        ("task.fulfill", fulfill("no", 0)),
        ("task.suspend", suspend("no", 0, "other")),
        ("task.fence", fence("no", 0, "promise.settle", settle("other"))),
        ("task.heartbeat", {"pid": "p", "tasks": [held("no", 0)]}),
        ("task.halt", {"id": "no"}),
        ("task.continue", {"id": "no"}),
        ("schedule.get", {"id": "no"}),
        ("schedule.delete", {"id": "no"}),
        ("debug.reset", {}),
    ]
    return [(kind, data, START) for kind, data in steps] + look(START)


def _promises() -> Script:
    far = START + 1_000_000
    steps: list[tuple[str, Data]] = [
        ("promise.create", create("a", far) | {"param": {"headers": {}, "data": "eA=="}}),
        ("promise.create", create("a", far + 1, target=ANY)),
        ("promise.create", create("b", float(far)) | {"param": None, "tags": None}),
        ("promise.create", create("born.dead", START, target=ANY)),
        ("promise.create", create("born.timer", START - 5, timer="true", target=UNI)),
        ("promise.create", create("t", far, target=WEB)),
        ("promise.register_listener", listener("a", UNI)),
        ("promise.register_listener", listener("a", ANY)),
        ("promise.register_listener", listener("a", UNI)),
        ("promise.register_listener", listener("born.dead", UNI)),
        ("promise.register_callback", callback("a", "no")),
        ("promise.register_callback", callback("a", "b")),
        ("promise.register_callback", callback("a", "t")),
        ("promise.register_callback", callback("a", "born.dead")),
    ]
    settling: list[tuple[str, Data]] = [
        ("promise.settle", settle("a", "rejected", "eQ==")),
        ("promise.settle", settle("a", "resolved")),
        ("promise.settle", settle("b", "rejected_canceled") | {"value": None}),
        ("promise.settle", settle("born.dead", "resolved")),
        ("promise.register_callback", callback("b", "t")),
        ("promise.register_callback", callback("born.dead", "t")),
        ("task.get", {"id": "t"}),
    ]
    script = [(kind, data, START) for kind, data in steps] + look(START)
    return script + [(kind, data, START + 1) for kind, data in settling] + look(START + 1)


def _claims() -> Script:
    now, far = START, START + 1_000_000
    steps: list[tuple[str, Data]] = [
        ("promise.create", create("plain", far)),
        ("task.create", task_create(create("plain", far, target=ANY))),
        ("promise.create", create("t", far, target=ANY, branch="r")),
        ("promise.create", create("t.1", far, branch="r")),
        ("promise.create", create("t.0", now, branch="r")),
        ("task.release", held("t", 0)),
        ("task.acquire", acquire("t", 1)),
        ("task.acquire", acquire("t", 0)),
        ("task.acquire", acquire("t", 0)),
        ("task.create", task_create(create("t", far, target=ANY))),
        ("task.fence", fence("t", 0, "promise.create", create("t.2", far))),
        ("task.fence", fence("t", 1, "promise.create", create("t.2", far, target=UNI))),
        ("task.fence", fence("t", 1, "promise.settle", settle("t.2", "rejected", "eA=="))),
        ("task.fence", fence("t", 1, "promise.settle", settle("t.9"))),
        ("task.heartbeat", {"pid": "p", "tasks": [held("t", 1), held("t", 7)]}),
        ("task.heartbeat", {"pid": "p", "tasks": []}),
        ("task.release", held("t", 0)),
        ("task.release", held("t", 1)),
        ("task.create", task_create(create("t", far, target=UNI), pid="q")),
        ("task.fulfill", fulfill("t", 1)),
        ("task.fulfill", fulfill("t", 2, "rejected", "eA==")),
        ("task.fulfill", fulfill("t", 2)),
        ("task.create", task_create(create("t", far, target=ANY))),
        ("task.create", task_create(create("new", far, target=ANY, branch="r"))),
        ("task.create", task_create(create("late", now, target=ANY))),
        ("task.create", task_create(create("slow", far, target=ANY, delay=str(far - 1)))),
    ]
    return [(kind, data, now) for kind, data in steps] + look(now)


def _waits() -> Script:
    now, far = START, START + 1_000_000
    steps: list[tuple[str, Data]] = [
        ("task.create", task_create(create("t", far, target=ANY, branch="r"))),
        ("promise.create", create("x", far, branch="r")),
        ("promise.create", create("y", far)),
        ("promise.create", create("z", now)),
        ("task.suspend", suspend("t", 0, "x")),
        ("task.suspend", suspend("t", 1, "x", "no")),
        ("promise.register_callback", callback("z", "t")),
        ("task.suspend", suspend("t", 1, "x", "z", "x")),
        ("task.suspend", suspend("t", 1, "x", "y", "x")),
        ("task.suspend", suspend("t", 1, "x")),
        ("task.create", task_create(create("t", far, target=ANY))),
    ]
    wake: list[tuple[str, Data]] = [
        ("promise.settle", settle("x")),
        ("task.get", {"id": "t"}),
        ("promise.settle", settle("y")),
        ("task.get", {"id": "t"}),
        ("task.acquire", acquire("t", 1)),
    ]
    script = [(kind, data, now) for kind, data in steps] + look(now)
    return script + [(kind, data, now + 1) for kind, data in wake] + look(now + 1)


def _deadlines() -> Script:
    """C4 to C8: a parent and its child that die together, and one that dies before its child."""
    now, soon = START, START + 1_000
    steps: list[tuple[str, Data]] = [
        ("task.create", task_create(create("both", soon, target=ANY))),
        ("task.create", task_create(create("first", soon, target=ANY))),
        ("task.create", task_create(create("alive", soon * 9, target=ANY), ttl=500)),
        ("promise.create", create("both.1", soon, timer="true")),
        ("promise.create", create("first.1", soon * 9)),
        ("promise.create", create("slow", soon * 9, target=ANY, delay=str(soon + 10))),
        ("promise.register_listener", listener("both", UNI)),
        ("task.suspend", suspend("both", 1, "both.1")),
        ("task.suspend", suspend("first", 1, "first.1")),
        ("task.suspend", suspend("alive", 1, "both.1", "first.1")),
    ]
    dead: list[tuple[str, Data]] = [
        ("promise.get", {"id": "both"}),
        ("promise.settle", settle("both")),
        ("task.get", {"id": "both"}),
        ("task.halt", {"id": "both"}),
        ("task.create", task_create(create("first", soon, target=ANY))),
        ("promise.settle", settle("first.1")),
        ("promise.search", {"state": "pending"}),
        ("task.search", {"state": "fulfilled"}),
    ]
    script = [(kind, data, now) for kind, data in steps] + look(now)
    script += [(kind, data, soon) for kind, data in dead] + look(soon)
    script += look(soon + 10) + look(soon + RETRY_MS) + look(soon + RETRY_MS + 10)
    claim: Step = ("task.acquire", acquire("alive", 1, ttl=500), soon + 31_000)
    return [*script, claim, *look(soon + 31_500), *look(soon + 100_000)]


def _halts() -> Script:
    now, far = START, START + 1_000_000
    steps: list[tuple[str, Data]] = [
        ("task.create", task_create(create("t", far, target=ANY))),
        ("promise.create", create("x", far)),
        ("task.continue", {"id": "t"}),
        ("task.suspend", suspend("t", 1, "x")),
        ("task.halt", {"id": "t", "version": 0}),
        ("task.halt", {"id": "t", "version": 1}),
        ("task.halt", {"id": "t"}),
        ("promise.settle", settle("x")),
        ("task.get", {"id": "t"}),
        ("task.acquire", acquire("t", 1)),
        ("task.continue", {"id": "t", "version": 0}),
        ("task.continue", {"id": "t"}),
        ("task.get", {"id": "t"}),
        ("task.halt", {"id": "t"}),
        ("promise.settle", settle("t")),
        ("task.halt", {"id": "t"}),
        ("task.continue", {"id": "t"}),
    ]
    return [(kind, data, now) for kind, data in steps] + look(now)


def _schedules() -> Script:
    now = START
    many = [("schedule.create", schedule(f"m{n:02}"), now) for n in range(11)]
    steps: list[tuple[str, Data]] = [
        ("schedule.create", schedule("s")),
        ("schedule.create", schedule("s", "*/2 * * * *", 1)),
        ("schedule.create", schedule("dead", timeout=0, timer="true")),
        ("schedule.create", schedule("same") | {"promiseId": "{{.id}}"}),
        ("schedule.get", {"id": "s"}),
        ("schedule.search", {"tags": {"resonate:timer": "true"}}),
    ]
    script: Script = [(kind, data, now) for kind, data in steps]
    script += look(now + 20_000) + look(now + 200_000)
    script += [
        ("schedule.get", {"id": "s"}, now + 200_000),
        ("schedule.delete", {"id": "s"}, now + 200_000),
        *look(now + 300_000),
        ("debug.reset", {}, now + 300_000),
    ]
    script += [(kind, data, now + 300_000) for kind, data, _ in many]
    return [*script, ("schedule.search", {}, now + 300_000)]


def _searches() -> Script:
    far = START + 1_000_000
    script: Script = [
        ("promise.create", create(one, far, target=to), START)
        for one, to in (("b", ANY), ("a", UNI), ("a.1", ANY), ("B", ANY), ("é", ANY))
    ]
    searches: list[tuple[str, Data]] = [
        ("promise.search", {"limit": 2}),
        ("promise.search", {"limit": 2.0, "cursor": "a"}),
        ("promise.search", {"limit": 5, "tags": {"resonate:target": ANY}}),
        ("task.search", {"limit": 1, "target": ANY, "state": "pending"}),
        ("task.search", {"tags": {"resonate:target": UNI}, "cursor": None}),
    ]
    script += [(kind, data, START) for kind, data in searches]
    return [*script, *look(START), ("debug.stop", {}, START)]


# --- random scripts ---

_IDS = ("a", "a.1", "b", "b:1", "c", "s")
_PIDS = ("p", "q")
_SCHEDULES = ("s", "r")
_TIMEOUTS = (100_000, 10_000_000, 200_000, 40_000, 1_000, 10, 0, -5)
_NEED_A_CLAIM = ("task.suspend", "task.fence", "task.release", "task.fulfill", "task.heartbeat")
_KINDS = (
    *("promise.create",) * 5,
    *("promise.settle",) * 3,
    *("promise.register_callback",) * 3,
    *("promise.register_listener",) * 2,
    *("task.create",) * 4,
    *("task.acquire",) * 4,
    *("task.suspend",) * 5,
    *("task.fence",) * 2,
    *("task.release", "task.fulfill", "task.heartbeat", "task.halt") * 2,
    *("task.continue",),
    *("promise.get", "task.get", "promise.search", "task.search"),
    *("schedule.create", "schedule.create", "schedule.get"),
    *("schedule.delete", "schedule.search"),
    *("debug.tick",) * 5,
    *("debug.snap",) * 3,
    *("malformed",) * 2,
)


@st.composite
def scripts(draw: st.DrawFn, max_steps: int = 60) -> Script:
    """Random scripts that Hypothesis can shrink."""
    steps = draw(st.integers(1, max_steps))
    return Writer(lambda options: draw(st.sampled_from(options))).write(steps)


def seeded_script(seed: int, steps: int = 200) -> Script:
    """A long random script for a soak: evenly random, quick to make, and named by its seed."""
    return Writer(random.Random(seed).choice).write(steps)


class Writer:
    """Writes one script, choosing each step with an eye on where the oracle stands."""

    def __init__(self, pick: Callable[[Sequence[Any]], Any], profile: Profile = COMPAT) -> None:
        self._pick = pick
        self.oracle = Oracle(RETRY_MS, profile)
        self.now = START
        self.script: Script = [("debug.start", {}, START)]

    def write(self, steps: int) -> Script:
        for _ in range(3):
            self._write("promise.create")
        for _ in range(steps):
            self._pass_time()
            kind = self._pick(_KINDS)
            idle = kind in _NEED_A_CLAIM and not self._tasks_in("acquired")
            self._write("task.create" if idle and not self._chance(4) else kind)
        if self._chance(8):
            self._add("debug.reset", {})
        self._write("debug.snap")
        return self.script

    def _write(self, kind: str) -> None:
        if kind == "malformed":
            bad_kind, bad_data = self._pick(_MALFORMED_REQUESTS)
            self._add(bad_kind, bad_data)
        elif kind == "debug.snap":
            self._add("debug.tick", {"time": self.now})
            self._add(kind, {})
        else:
            self._add(kind, getattr(self, "_" + kind.replace(".", "_"))())

    def _add(self, kind: str, data: object) -> None:
        self.oracle.request(kind, data, self.now)
        self.script.append((kind, data, self.now))

    # --- choices ---

    def _chance(self, one_in: int) -> bool:
        return bool(self._pick(range(one_in)) == one_in - 1)

    def _pass_time(self) -> None:
        jump = self._pick((0, 0, 0, 0, 0, 0, 0, 0, 1, 10, 900, "due", "due", 31_000))
        if jump == "due":
            late = self._pick((0, 0, 1, -1))
            jump = max(0, self._next_deadline() + late - self.now)
        self.now += jump

    def _next_deadline(self) -> int:
        o = self.oracle
        pending = [p.timeout_at for p in o.promises.values() if p.state == "pending"]
        claims = [d for t in o.tasks.values() for d in (t.lease, t.retry) if d is not None]
        due = [*pending, *claims, *(s.next_run_at for s in o.schedules.values())]
        # Not too far, or a schedule that nobody ticked would have to catch up with ages.
        near = [d for d in due if self.now < d < self.now + 300_000]
        return min(near, default=self.now)

    def _id(self) -> str:
        """Mostly one that exists, and mostly one still pending."""
        pools = (self._pending(), self._pending(), sorted(self.oracle.promises), _IDS)
        return str(self._pick(self._pick(pools) or _IDS))

    def _new_id(self) -> str:
        """Of a pool that moves on slowly, so that ids collide but never run out."""
        return self._id() if self._chance(4) else f"{self._pick(_IDS)}{len(self.script) // 25}"

    def _pending(self) -> list[str]:
        return [p.id for p in self.oracle.promises.values() if is_pending(p, self.now)]

    def _tasks_in(self, *states: str) -> list[str]:
        tasks = self.oracle.tasks
        return [one for one in self._pending() if one in tasks and tasks[one].state in states]

    def _task_in(self, *states: str) -> str:
        """Mostly a task in one of these states, so that the step does something."""
        found = self._tasks_in(*states)
        return self._id() if not found or self._chance(6) else str(self._pick(found))

    def _version(self, task_id: str) -> int:
        task = self.oracle.tasks.get(task_id)
        if task is None or self._chance(8):
            return int(self._pick(range(5)))
        return task.version

    def _maybe_version(self, task_id: str) -> Data:
        version = self._version(task_id)
        found: Data = self._pick(({}, {}, {"version": None}, {"version": version}))
        return found

    def _held(self) -> Data:
        task_id = self._task_in("acquired")
        return held(task_id, self._version(task_id))

    def _value(self) -> object:
        return self._pick(({}, {"data": "eA=="}, {"headers": {}, "data": ""}, None))

    def _create_data(self, *, target: bool) -> Data:
        tags: dict[str, str] = self._pick(
            ({}, {"resonate:branch": "r"}, {"resonate:timer": "true"})
        )
        timeout_at = self.now + self._pick(_TIMEOUTS)
        if target:
            tags = tags | {"resonate:target": self._pick(ADDRESSES[:4])}
            if self._chance(4):
                delay = max(0, min(self.now + self._pick((0, 5, 2_000)), timeout_at - 1))
                tags = tags | {"resonate:delay": str(delay)}
        data = {"id": self._new_id(), "timeoutAt": timeout_at, "param": self._value(), "tags": tags}
        if self._chance(16):
            data["timeoutAt"] = float(timeout_at)
        return data

    # --- one builder per kind ---

    def _promise_get(self) -> Data:
        return {"id": self._id()}

    def _promise_create(self) -> Data:
        return self._create_data(target=self._pick((True, True, False)))

    def _settle_data(self, promise_id: str) -> Data:
        state = self._pick(("resolved", "rejected", "rejected_canceled"))
        return {"id": promise_id, "state": state, "value": self._value()}

    def _promise_settle(self) -> Data:
        return self._settle_data(self._id())

    def _promise_register_callback(self) -> Data:
        return callback(self._id(), self._task_in("pending", "suspended", "halted"))

    def _promise_register_listener(self) -> Data:
        return listener(self._id(), self._pick(ADDRESSES))

    def _page(self, states: tuple[str, ...]) -> Data:
        data: Data = {}
        if self._chance(2):
            data["state"] = self._pick((*states, None))
        if self._chance(2):
            data["limit"] = self._pick((1, 2, 3.0, 1000, None))
        if self._chance(2):
            data["cursor"] = self._pick((*_IDS, "", "zzz"))
        if self._chance(2):
            data["tags"] = self._pick(({}, {"resonate:branch": "r"}, {"resonate:target": ANY}))
        return data

    def _promise_search(self) -> Data:
        return self._page(PROMISE_STATES)

    def _task_get(self) -> Data:
        return {"id": self._id()}

    def _task_create(self) -> Data:
        return task_create(
            self._create_data(target=True), self._pick(_PIDS), self._pick((5_000, 1, 60_000))
        )

    def _task_acquire(self) -> Data:
        task_id = self._task_in("pending")
        return acquire(
            task_id, self._version(task_id), self._pick(_PIDS), self._pick((5_000, 1, 60_000.0))
        )

    def _task_release(self) -> Data:
        return self._held()

    def _task_fulfill(self) -> Data:
        data = self._held()
        return data | {"action": envelope("promise.settle", self._settle_data(data["id"]))}

    def _task_suspend(self) -> Data:
        data = self._held()
        awaited = [self._id() for _ in range(self._pick((1, 2, 3)))]
        found = [one for one in self._pending() if one != data["id"]]
        if found and not self._chance(3):
            awaited = [self._pick(found) for _ in awaited]
        return suspend(data["id"], data["version"], *awaited)

    def _task_fence(self) -> Data:
        data = self._held()
        if self._chance(2):
            return data | {"action": envelope("promise.settle", self._settle_data(self._id()))}
        inner = self._create_data(target=self._chance(2))
        return data | {"action": envelope("promise.create", inner)}

    def _task_heartbeat(self) -> Data:
        tasks = [self._held() for _ in range(self._pick((1, 2, 0)))]
        return {"pid": self._pick(_PIDS), "tasks": tasks}

    def _task_halt(self) -> Data:
        task_id = self._task_in("pending", "acquired", "suspended")
        return {"id": task_id} | self._maybe_version(task_id)

    def _task_continue(self) -> Data:
        task_id = self._task_in("halted")
        return {"id": task_id} | self._maybe_version(task_id)

    def _task_search(self) -> Data:
        data = self._page(TASK_STATES)
        return data | {"target": self._pick((ANY, UNI, "x"))} if self._chance(3) else data

    def _schedule_get(self) -> Data:
        return {"id": self._pick((*_SCHEDULES, *_SCHEDULES, "no"))}

    def _schedule_create(self) -> Data:
        cron = self._pick(("* * * * *", "*/2 * * * *", "0 0 1 jan *", "0 0 13 * 5"))
        timer = self._pick(({}, {"timer": "true"}))
        data = schedule(self._pick(_SCHEDULES), cron, self._pick((90_000, 0, 1, 60_000)), **timer)
        template = self._pick(("{{.id}}.{{.timestamp}}", "{{.id}}", "{{.id}}-{{ .id }}-{{.x}}"))
        return data | {"promiseId": template, "promiseParam": self._value()}

    def _schedule_delete(self) -> Data:
        return self._schedule_get()

    def _schedule_search(self) -> Data:
        data = self._page(("",))
        data.pop("state", None)
        return data

    def _debug_tick(self) -> Data:
        return {"time": self.now}
