"""A naive whole-state model of the protocol, compat and strict, used to judge the real core.

It is written from PROTOCOL.md alone ("P" in the comments, with its section) and must never import
or imitate layby's own code: a mistake shared by both would be invisible.  Everything is a plain
dict, each request looks at the whole state, and nothing is fast.

Time is only the `now` of a request.  Deadlines are enforced by *pure projection* (P 3.1): an answer
shows a promise past its deadline as settled, but the stored state changes only when a command
settles something or a debug.tick sweeps.  Strict external (P 0, P 9) leaves some promises to
projection for ever; nothing can wait for those.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from .reading import (
    BRANCH,
    COMPAT,
    DELAY,
    INT64,
    TARGET,
    TIMER,
    Creation,
    Fields,
    Json,
    Profile,
    Refused,
    Schedule,
    Settlement,
    check_origins,
    is_address,
    is_external,
    next_run,
    parse_delay,
    read_creation,
    read_schedule,
    read_settlement,
    read_waits,
    refuse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Answer = tuple[int, object]
Row = TypeVar("Row")

PROMISE_STATES = ("pending", "resolved", "rejected", "rejected_canceled", "rejected_timedout")
TASK_STATES = ("pending", "acquired", "suspended", "halted", "fulfilled")

# The texts of 404/409/422 which P section 2 spells out.  A text of the oracle that is not in here
# is of its own making, and a server may word it as it likes.
NAMED_MESSAGES: dict[tuple[str, int], frozenset[str]] = {
    ("promise.get", 404): frozenset({"Promise not found"}),
    ("promise.settle", 404): frozenset({"Promise not found"}),
    ("promise.register_callback", 404): frozenset({"Awaited promise not found"}),
    ("promise.register_callback", 422): frozenset(
        {"Awaiter promise not found", "Awaiter promise has no resonate:target tag"}
    ),
    ("promise.register_listener", 404): frozenset({"Awaited promise not found"}),
    ("task.get", 404): frozenset({"Task not found"}),
    ("task.create", 409): frozenset({"Already exists"}),
    ("task.create", 422): frozenset({"The promise does not have a resonate:target tag"}),
    ("task.acquire", 409): frozenset({"Task is not pending", "Version mismatch"}),
    ("task.release", 409): frozenset({"Task version mismatch or invalid state"}),
    ("task.suspend", 409): frozenset({"Task is not acquired or version mismatch"}),
    ("task.suspend", 422): frozenset({"Awaited promise not found"}),
    ("task.fence", 409): frozenset({"Version mismatch"}),
    ("task.halt", 409): frozenset({"Task is fulfilled"}),
    ("task.continue", 409): frozenset({"Task is not halted"}),
    ("schedule.get", 404): frozenset({"Schedule not found"}),
}


@dataclass
class Promise:
    """A stored promise (P 3)."""

    id: str
    param: Json
    tags: dict[str, str]
    timeout_at: int
    created_at: int
    state: str = "pending"
    value: Json = field(default_factory=dict)
    settled_at: int | None = None
    callbacks: set[str] = field(default_factory=set)
    listeners: set[str] = field(default_factory=set)


@dataclass
class Task:
    """A stored task (P 3); `lease` and `retry` are its only two deadlines."""

    id: str
    state: str
    version: int = 0
    pid: str | None = None
    ttl: int | None = None
    lease: int | None = None
    retry: int | None = None
    resumes: set[str] = field(default_factory=set)


class Oracle:
    """The whole server as one value; `request` is its only verb."""

    def __init__(self, retry_ms: int = 30_000, profile: Profile = COMPAT) -> None:
        self.retry_ms = retry_ms
        self.profile = profile
        self.corr_id = ""
        self._forget()

    def request(self, kind: str, data: object, now: int, corr_id: str = "") -> Answer:
        """(status, data) exactly as the wire would show them in head.status / data."""
        self.corr_id = corr_id
        handler = self._handlers().get(kind)
        try:
            fields = Fields(data)
            if handler is None:
                refuse(400, f"Unknown operation: {kind}")  # P 1.1
            return copy.deepcopy(handler(fields, now))
        except Refused as refused:
            return refused.status, refused.message

    def _handlers(self) -> dict[str, Callable[[Fields, int], Answer]]:
        return {
            "promise.get": self._promise_get,
            "promise.create": self._promise_create,
            "promise.settle": self._promise_settle,
            "promise.register_callback": self._register_callback,
            "promise.register_listener": self._register_listener,
            "promise.search": self._promise_search,
            "task.get": self._task_get,
            "task.create": self._task_create,
            "task.acquire": self._task_acquire,
            "task.release": self._task_release,
            "task.fulfill": self._task_fulfill,
            "task.suspend": self._task_suspend,
            "task.fence": self._task_fence,
            "task.heartbeat": self._task_heartbeat,
            "task.halt": self._task_halt,
            "task.continue": self._task_continue,
            "task.search": self._task_search,
            "schedule.get": self._schedule_get,
            "schedule.create": self._schedule_create,
            "schedule.delete": self._schedule_delete,
            "schedule.search": self._schedule_search,
            "debug.start": lambda _fields, _now: (200, {}),
            "debug.stop": lambda _fields, _now: (200, {}),
            "debug.reset": self._debug_reset,
            "debug.tick": self._debug_tick,
            "debug.snap": self._debug_snap,
        }

    def _forget(self) -> None:
        self.promises: dict[str, Promise] = {}
        self.tasks: dict[str, Task] = {}
        self.schedules: dict[str, Schedule] = {}
        self.executes: dict[str, Json] = {}  # by task id (P 4.1)
        self.unblocks: dict[tuple[str, str], Json] = {}  # by promise id and address (P 4.1)

    # --- promise.* (P 2.1, 3.2) ---

    def _promise_get(self, fields: Fields, now: int) -> Answer:
        promise = self.promises.get(fields.id("id"))
        if promise is None:
            refuse(404, "Promise not found")
        return 200, {"promise": promise_record(promise, now)}

    def _promise_create(self, fields: Fields, now: int) -> Answer:
        creation = read_creation(fields, self.profile)
        promise = self.promises.get(creation.id) or self._insert(creation, now, now)
        return 200, {"promise": promise_record(promise, now)}

    def _promise_settle(self, fields: Fields, now: int) -> Answer:
        return self._settle_if_pending(read_settlement(fields), now)

    def _settle_if_pending(self, settlement: Settlement, now: int) -> Answer:
        promise = self.promises.get(settlement.id)
        if promise is None:
            refuse(404, "Promise not found")
        if is_pending(promise, now):  # timeout always wins (P 3.1)
            self._settle(promise, settlement, now)
        return 200, {"promise": promise_record(promise, now)}

    def _register_callback(self, fields: Fields, now: int) -> Answer:
        awaited_id, awaiter_id = fields.id("awaited"), fields.id("awaiter")
        if awaited_id == awaiter_id:
            refuse(400, "Awaited and awaiter must be different promises")
        check_origins(awaiter_id, awaited_id, self.profile)
        awaited, awaiter = self.promises.get(awaited_id), self.promises.get(awaiter_id)
        if awaited is None:
            refuse(404, "Awaited promise not found")
        if awaiter is None:
            refuse(422, "Awaiter promise not found")
        if TARGET not in awaiter.tags:
            refuse(422, "Awaiter promise has no resonate:target tag")
        self._check_external(awaited)  # C2, settled or not
        if is_pending(awaiter, now):  # a dead awaiter neither waits nor wakes (P 3.2, C6)
            self._await_or_wake(awaited, self.tasks[awaiter_id], now)
        return 200, {"promise": promise_record(awaited, now)}

    def _await_or_wake(self, awaited: Promise, task: Task, now: int) -> None:
        if is_pending(awaited, now):
            awaited.callbacks.add(task.id)
        elif task.state == "suspended":  # "EnqueueResume" (P 3.2 note): resumes stays 0
            self._make_pending(task, now)
        elif task.state in ("pending", "acquired"):
            task.resumes.add(awaited.id)

    def _register_listener(self, fields: Fields, now: int) -> Answer:
        awaited_id, address = fields.id("awaited"), fields.id("address")
        if not is_address(address):
            refuse(400, "Invalid listener address")
        awaited = self.promises.get(awaited_id)
        if awaited is None:
            refuse(404, "Awaited promise not found")
        self._check_external(awaited)  # C3, settled or not
        if is_pending(awaited, now):  # a settled promise takes no listener (C11)
            awaited.listeners.add(address)
        return 200, {"promise": promise_record(awaited, now)}

    def _check_external(self, awaited: Promise) -> None:
        if not self._is_enforced(awaited):  # nothing could wake whoever waits for it
            refuse(422, "Awaited promise is not external")

    def _is_enforced(self, promise: Promise) -> bool:
        """Whether its deadline is a duty of the server (C1)."""
        return not self.profile.external or is_external(promise.tags)

    def _promise_search(self, fields: Fields, now: int) -> Answer:
        state, tags = fields.choice("state", PROMISE_STATES), fields.strings("tags")
        records = [  # filtered after projecting (P 2.1, C8)
            promise_record(p, now) for p in self.promises.values() if has_tags(p.tags, tags)
        ]
        found = [r for r in records if state in (None, r["state"])]
        return 200, page("promises", found, fields, default_limit=100)

    # --- task.* (P 2.2, 3.3) ---

    def _task_get(self, fields: Fields, now: int) -> Answer:
        task = self._task(fields.id("id"))
        return 200, {"task": self._task_record(task, now)}

    def _task_create(self, fields: Fields, now: int) -> Answer:
        pid, ttl = fields.id("pid"), fields.integer("ttl", at_least=1)
        creation = read_creation(fields.action().nested("data"), self.profile)
        if TARGET not in creation.tags:
            refuse(400, "Action must have a resonate:target tag")
        promise = self.promises.get(creation.id) or self._insert(creation, now, now)
        task = self.tasks.get(promise.id)
        if task is None:
            refuse(422, "The promise does not have a resonate:target tag")
        if not is_pending(promise, now):  # C4: fulfilled, born so or grown so
            return 200, self._claim(task, now, preload=[])
        if task.state != "pending":
            refuse(409, "Already exists")
        self._acquire(task, pid, ttl, now)  # one born here counts this as its first acquire: v1
        return 200, self._claim(task, now, self._preload(task, now))

    def _task_acquire(self, fields: Fields, now: int) -> Answer:
        task_id, version = fields.id("id"), fields.integer("version")
        pid, ttl = fields.id("pid"), fields.integer("ttl", at_least=1)
        task = self._task(task_id)
        if self._state(task, now) != "pending":
            refuse(409, "Task is not pending")
        if task.version != version:
            refuse(409, "Version mismatch")
        self._acquire(task, pid, ttl, now)
        return 200, self._claim(task, now, self._preload(task, now))

    def _task_release(self, fields: Fields, now: int) -> Answer:
        task_id, version = fields.id("id"), fields.integer("version")
        task = self._held(task_id, version, now, "Task version mismatch or invalid state")
        self._make_pending(task, now)  # version and resumes kept
        return 200, {}

    def _task_fulfill(self, fields: Fields, now: int) -> Answer:
        task_id, version = fields.id("id"), fields.integer("version")
        settlement = read_settlement(fields.action().nested("data"))
        if settlement.id != task_id:
            refuse(400, "Action ID must match the task ID")
        self._held(task_id, version, now, "Task version mismatch or invalid state")
        return self._settle_if_pending(settlement, now)

    def _task_suspend(self, fields: Fields, now: int) -> Answer:
        task_id, version = fields.id("id"), fields.integer("version")
        awaited_ids = read_waits(fields.items("actions"), task_id, self.profile)
        task = self._held(task_id, version, now, "Task is not acquired or version mismatch")
        if awaited_ids - self.promises.keys():
            refuse(422, "Awaited promise not found")
        awaited = [self.promises[i] for i in awaited_ids]
        for promise in awaited:
            self._check_external(promise)  # as C2
        task.resumes = set()  # only the awaited decide; past resumes are dropped either way
        if not all(is_pending(p, now) for p in awaited):
            return 300, {"preload": self._preload(task, now)}  # same lease, nothing registered
        for promise in awaited:
            promise.callbacks.add(task.id)
        self._leave("suspended", task)
        return 200, {}

    def _task_fence(self, fields: Fields, now: int) -> Answer:
        task_id, version = fields.id("id"), fields.integer("version")
        action = fields.nested("action")
        kind, inner = action.string("kind"), action.nested("data")
        if kind not in ("promise.create", "promise.settle"):
            refuse(400, "Invalid fence action kind")
        # An ill-formed inner operation is the outer 400 (P 2.2), so it is read before any guard.
        is_creation = kind == "promise.create"
        checked = read_creation(inner, self.profile) if is_creation else read_settlement(inner)
        if checked.id == task_id:
            refuse(400, "Action ID must not equal the task ID")
        self._held(task_id, version, now, "Version mismatch")
        status, answer = self._fenced(checked, now)
        head = {"corrId": self.corr_id, "status": status, "version": "2026-04-01"}
        return 200, {"action": {"kind": kind, "head": head, "data": answer}, "preload": []}

    def _fenced(self, operation: Creation | Settlement, now: int) -> Answer:
        try:
            if isinstance(operation, Settlement):
                return self._settle_if_pending(operation, now)
        except Refused as missing:  # an inner 404 stays inside an outer 200 (P 2.2)
            return missing.status, missing.message
        promise = self.promises.get(operation.id) or self._insert(operation, now, now)
        return 200, {"promise": promise_record(promise, now)}

    def _task_heartbeat(self, fields: Fields, now: int) -> Answer:
        pid = fields.id("pid")
        named = [(f.string("id"), f.integer("version")) for f in map(Fields, fields.items("tasks"))]
        for task in self.tasks.values():
            # An empty list means every lease of that process (P 0.2); C7: none of a dead promise.
            listed = not named or (task.id, task.version) in named
            if listed and self._state(task, now) == "acquired" and task.pid == pid:
                task.lease = now + (task.ttl or 0)
        return 200, {}

    def _task_halt(self, fields: Fields, now: int) -> Answer:
        task_id, version = fields.id("id"), fields.optional_integer("version")
        task = self._task(task_id)
        if self._state(task, now) == "fulfilled":
            refuse(409, "Task is fulfilled")
        if version not in (None, task.version):  # P 8: checked only if sent
            refuse(409, "Version mismatch")
        self._leave("halted", task)  # resumes and callbacks stay; again is a no-op
        return 200, {}

    def _task_continue(self, fields: Fields, now: int) -> Answer:
        task_id, version = fields.id("id"), fields.optional_integer("version")
        task = self._task(task_id)
        if self._state(task, now) != "halted":
            refuse(409, "Task is not halted")
        if version not in (None, task.version):
            refuse(409, "Version mismatch")
        self._make_pending(task, now)
        return 200, {}

    def _task_search(self, fields: Fields, now: int) -> Answer:
        state, tags = fields.choice("state", TASK_STATES), fields.strings("tags")
        target = fields.optional_string("target")
        also = {} if target is None else {TARGET: target}  # each filter must hold by itself
        found = [
            self._task_record(t, now)
            for t in self.tasks.values()
            if has_tags(self.promises[t.id].tags, tags)
            and has_tags(self.promises[t.id].tags, also)
            and state in (None, self._state(t, now))
        ]
        return 200, page("tasks", found, fields, default_limit=100)

    # --- schedule.* (P 2.3, 5) ---

    def _schedule_get(self, fields: Fields, _now: int) -> Answer:
        return 200, {"schedule": schedule_record(self._schedule(fields))}

    def _schedule_create(self, fields: Fields, now: int) -> Answer:
        schedule = read_schedule(fields, now, self.profile)
        schedule = self.schedules.setdefault(schedule.id, schedule)
        return 200, {"schedule": schedule_record(schedule)}

    def _schedule_delete(self, fields: Fields, _now: int) -> Answer:
        del self.schedules[self._schedule(fields).id]  # its promises stay
        return 200, {}

    def _schedule_search(self, fields: Fields, _now: int) -> Answer:
        tags = fields.strings("tags")
        schedules = self.schedules.values()
        found = [schedule_record(s) for s in schedules if has_tags(s.promise_tags, tags)]
        return 200, page("schedules", found, fields, default_limit=10)

    def _schedule(self, fields: Fields) -> Schedule:
        schedule = self.schedules.get(fields.id("id"))
        if schedule is None:
            refuse(404, "Schedule not found")
        return schedule

    # --- debug.* (P 2.4, 3.6) ---

    def _debug_reset(self, _fields: Fields, _now: int) -> Answer:
        self._forget()
        return 200, {}

    def _debug_tick(self, fields: Fields, _now: int) -> Answer:
        time = fields.integer("time", at_least=-INT64)
        self._expire_promises(time)  # P 3.6 gives this order
        self._retry_tasks(time)
        self._expire_leases(time)
        for schedule in by_id(self.schedules):
            while schedule.next_run_at <= time:  # every missed occurrence (P 5)
                self._fire(schedule, time)
        return 200, []

    def _debug_snap(self, _fields: Fields, now: int) -> Answer:
        promises, tasks = by_id(self.promises), by_id(self.tasks)
        armed = [p for p in promises if p.state == "pending" and self._is_enforced(p)]  # C1
        executes = [message for _, message in sorted(self.executes.items())]
        unblocks = [message for _, message in sorted(self.unblocks.items())]
        return 200, {
            "promises": [promise_record(p, now) for p in promises],
            "promiseTimeouts": [{"id": p.id, "timeout": p.timeout_at} for p in armed],
            "callbacks": [
                {"awaiter": a, "awaited": p.id} for p in promises for a in sorted(p.callbacks)
            ],
            "listeners": [
                {"id": p.id, "address": a} for p in promises for a in sorted(p.listeners)
            ],
            "tasks": [self._task_record(t, now) for t in tasks],
            "taskTimeouts": [t for task in tasks for t in timeout_records(task)],
            "messages": executes + unblocks,
        }

    # --- the sweep (P 3.6) ---

    def _expire_promises(self, time: int) -> None:
        passed = [p for p in by_id(self.promises) if p.state == "pending" and p.timeout_at <= time]
        due = [p for p in passed if self._is_enforced(p)]
        for promise in due:  # all are settled before any awaiter is resumed (P 3.4)
            self._close(promise, expired_state(promise.tags), {}, promise.timeout_at)
        for promise in due:
            self._announce(promise, time)

    def _retry_tasks(self, time: int) -> None:
        for task in self.tasks.values():
            if task.state == "pending" and task.retry is not None and task.retry <= time:
                self._make_pending(task, time)  # the execute again, or a delayed one at last

    def _expire_leases(self, time: int) -> None:
        for task in self.tasks.values():
            if task.state == "acquired" and task.lease is not None and task.lease <= time:
                self._make_pending(task, time)

    def _fire(self, schedule: Schedule, now: int) -> None:
        at = schedule.next_run_at
        promise_id = schedule.promise_id.replace("{{.id}}", schedule.id)
        promise_id = promise_id.replace("{{.timestamp}}", str(at))
        own = {f"resonate:{tag}": promise_id for tag in ("origin", "branch", "parent", "prefix")}
        tags = schedule.promise_tags | own | {"resonate:schedule": schedule.id}
        timeout_at = at + schedule.promise_timeout
        if promise_id not in self.promises:  # else nothing is created, yet the schedule advances
            self._insert(Creation(promise_id, timeout_at, schedule.promise_param, tags), at, now)
        schedule.last_run_at = at
        schedule.next_run_at = next_run(schedule.cron, at) or at + 60_000

    # --- moves of promises (P 3.2, 3.4, 3.5) ---

    def _insert(self, new: Creation, created_at: int, now: int) -> Promise:
        """Create an absent promise, already settled if its deadline has passed."""
        promise = Promise(new.id, new.param, new.tags, new.timeout_at, created_at)
        self.promises[new.id] = promise
        if now >= new.timeout_at:
            promise.state = expired_state(new.tags)
            # createdAt = settledAt = timeoutAt (P 3.2); a scheduled one keeps its instant (P 5).
            promise.created_at = min(created_at, new.timeout_at)
            promise.settled_at = new.timeout_at
        if TARGET in new.tags:
            self._insert_task(promise, now)
        return promise

    def _insert_task(self, promise: Promise, now: int) -> None:
        born = "pending" if promise.state == "pending" else "fulfilled"
        task = self.tasks[promise.id] = Task(promise.id, born)
        delay = parse_delay(promise.tags.get(DELAY))
        if born == "fulfilled":
            return
        if delay is not None and now < delay:
            task.retry = delay  # nothing is sent before the delay's instant (P 3.5)
        else:
            self._make_pending(task, now)

    def _settle(self, promise: Promise, settlement: Settlement, now: int) -> None:
        self._close(promise, settlement.state, settlement.value, now)
        self._announce(promise, now)

    def _close(self, promise: Promise, state: str, value: Json, at: int) -> None:
        """Steps 1 and 2 of P 3.4."""
        promise.state, promise.value, promise.settled_at = state, value, at
        if promise.id in self.tasks:
            task = self.tasks[promise.id]
            self._leave("fulfilled", task)
            task.resumes = set()
            for other in self.promises.values():
                other.callbacks.discard(task.id)

    def _announce(self, promise: Promise, now: int) -> None:
        """Steps 3 and 4 of P 3.4."""
        for awaiter in sorted(promise.callbacks):
            if is_pending(self.promises[awaiter], now):  # C6
                self._resume(self.tasks[awaiter], promise.id, now)
        for address in promise.listeners:
            data = {"promise": promise_record(promise, now)}
            message = {"kind": "unblock", "head": {}, "data": data}
            self.unblocks[promise.id, address] = {"address": address, "message": message}
        promise.callbacks, promise.listeners = set(), set()

    # --- moves of tasks (P 3.3) ---

    def _resume(self, task: Task, awaited: str, now: int) -> None:
        task.resumes.add(awaited)
        if task.state == "suspended":
            self._make_pending(task, now)

    def _make_pending(self, task: Task, now: int) -> None:
        """Offer the task to workers, keeping its version and resumes."""
        self._leave("pending", task)
        task.retry = now + self.retry_ms
        message = {
            "kind": "execute",
            "head": {},
            "data": {"task": {"id": task.id, "version": task.version}},
        }
        address = self.promises[task.id].tags[TARGET]
        self.executes[task.id] = {"address": address, "message": message}

    def _acquire(self, task: Task, pid: str, ttl: int, now: int) -> None:
        self._leave("acquired", task)
        task.version += 1
        task.pid, task.ttl, task.lease = pid, ttl, now + ttl
        task.resumes = set()

    def _leave(self, state: str, task: Task) -> None:
        """Enter a state with nothing left of the last one: deadlines, claim or message."""
        task.state = state
        task.pid = task.ttl = task.lease = task.retry = None
        self.executes.pop(task.id, None)  # a stale execute is withdrawn (P 3.4)

    # --- views of tasks ---

    def _task(self, task_id: str) -> Task:
        if task_id not in self.tasks:
            refuse(404, "Task not found")
        return self.tasks[task_id]

    def _held(self, task_id: str, version: int, now: int, conflict: str) -> Task:
        """Return the acquired task that the presented version still owns."""
        task = self._task(task_id)
        if self._state(task, now) != "acquired" or task.version != version:
            refuse(409, conflict)
        return task

    def _state(self, task: Task, now: int) -> str:
        """The task's state as projected: fulfilled once its promise is past its deadline."""
        return task.state if is_pending(self.promises[task.id], now) else "fulfilled"

    def _task_record(self, task: Task, now: int) -> Json:
        state = self._state(task, now)
        resumes = 0 if state == "fulfilled" else len(task.resumes)
        record: Json = {"id": task.id, "state": state, "version": task.version, "resumes": resumes}
        if state == "acquired":
            record |= {"ttl": task.ttl, "pid": task.pid}
        return record

    def _claim(self, task: Task, now: int, preload: list[Json]) -> Json:
        promise = promise_record(self.promises[task.id], now)
        return {"task": self._task_record(task, now), "promise": promise, "preload": preload}

    def _preload(self, task: Task, now: int) -> list[Json]:
        branch = self.promises[task.id].tags.get(BRANCH)
        others = [p for p in by_id(self.promises) if p.id != task.id]
        return [
            promise_record(p, now)
            for p in others
            if branch is not None and p.tags.get(BRANCH) == branch
        ]


# --- records (P 2.0), always projected (P 3.1, C8) ---


def is_pending(promise: Promise, now: int) -> bool:
    """Whether the promise is pending at `now`, its deadline considered (P 3.1)."""
    return promise.state == "pending" and now < promise.timeout_at


def expired_state(tags: dict[str, str]) -> str:
    """The state a deadline gives (P 3.1)."""
    return "resolved" if tags.get(TIMER) == "true" else "rejected_timedout"


def promise_record(stored: Promise, now: int) -> Json:
    promise = stored
    if stored.state == "pending" and not is_pending(stored, now):
        expired = expired_state(stored.tags)
        promise = replace(stored, state=expired, settled_at=stored.timeout_at)
    record: Json = {
        "id": promise.id,
        "state": promise.state,
        "param": promise.param,
        "value": promise.value,
        "tags": promise.tags,
        "timeoutAt": promise.timeout_at,
        "createdAt": promise.created_at,
    }
    return record if promise.settled_at is None else record | {"settledAt": promise.settled_at}


def schedule_record(schedule: Schedule) -> Json:
    record: Json = {
        "id": schedule.id,
        "cron": schedule.cron,
        "promiseId": schedule.promise_id,
        "promiseTimeout": schedule.promise_timeout,
        "promiseParam": schedule.promise_param,
        "promiseTags": schedule.promise_tags,
        "createdAt": schedule.created_at,
        "nextRunAt": schedule.next_run_at,
    }
    ran = schedule.last_run_at
    return record if ran is None else record | {"lastRunAt": ran}


def timeout_records(task: Task) -> list[Json]:
    """Give the task's rows in a snapshot's taskTimeouts: 0 is retry, 1 is lease (P 2.4)."""
    deadlines = enumerate((task.retry, task.lease))
    return [{"id": task.id, "type": n, "timeout": d} for n, d in deadlines if d is not None]


# --- searches (P 2.1) ---


def has_tags(tags: dict[str, str], wanted: dict[str, str]) -> bool:
    """Whether every wanted pair matches exactly."""
    return wanted.items() <= tags.items()


def by_id(rows: dict[str, Row]) -> list[Row]:
    """All rows in ascending order of id; code points order as UTF-8 bytes do."""
    return [row for _, row in sorted(rows.items())]


def page(name: str, found: Iterable[Json], fields: Fields, default_limit: int) -> Json:
    """One page after the cursor, with a cursor of its own only if more rows exist."""
    limit, cursor = fields.optional_integer("limit"), fields.optional_string("cursor")
    limit = default_limit if limit is None else limit
    if not 1 <= limit <= 1000:
        refuse(400, "limit must be between 1 and 1000")
    ids = {str(record["id"]): record for record in found}
    rest = [record for record in by_id(ids) if cursor is None or str(record["id"]) > cursor]
    answer: Json = {name: rest[:limit]}
    return answer | {"cursor": rest[limit - 1]["id"]} if len(rest) > limit else answer
