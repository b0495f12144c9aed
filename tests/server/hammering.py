"""Clients that all want the same few promises and tasks, and ask for anything at any time."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.model.scripts import (
    acquire,
    callback,
    create,
    fence,
    fulfill,
    held,
    listener,
    settle,
    suspend,
    task_create,
)
from tests.server.recording import Call, Caller, Data, Ear, wall_ms

GROUP = "hammer"
TARGET = f"poll://any@{GROUP}"
KINDS = (
    *("promise.create",) * 4,
    *("promise.settle",) * 5,
    *("promise.register_callback",) * 2,
    *("promise.register_listener",) * 2,
    *("promise.get", "task.get") * 2,
    *("task.create",) * 4,
    *("task.acquire",) * 6,
    *("task.suspend",) * 6,
    *("task.fence",) * 3,
    *("task.release",) * 3,
    *("task.heartbeat",) * 6,
    *("task.fulfill", "task.halt"),
    *("task.continue",) * 3,
)


class Hammer:
    """One client. Its choices follow from its seed and from what it was answered."""

    def __init__(
        self, caller: Caller, seed: str, ears: Sequence[Ear], versions: dict[str, int]
    ) -> None:
        """`versions`: the newest of each task that any client has seen."""
        self._caller = caller
        self._random = random.Random(seed)
        self._ears = ears
        self._versions = versions

    def strike_all(self, families: int, times: int) -> None:
        for family in range(families):
            self.strike(f"f{family}", times)

    def strike(self, family: str, times: int) -> None:
        """A family's ids are never named together with those of another."""
        self._family = family
        self._tasks = _tasks(family)
        self._claim = held(self._tasks[0], 1)
        for turn in range(times):
            self._all_plain = _plain(family, turn)
            self._plain = self._all_plain[-3:]
            kind = self._pick(KINDS)
            build: Callable[[], Data] = getattr(self, "_" + kind.replace(".", "_"))
            answer = self._caller.ask(kind, build())
            if answer is not None and answer.status == 200 and "task" in answer.data:
                self._see(answer.data["task"], is_ours=kind in ("task.create", "task.acquire"))

    def _see(self, task: Data, *, is_ours: bool) -> None:
        self._versions[task["id"]] = max(task["version"], self._version(task["id"]))
        if is_ours:
            self._claim = held(task["id"], task["version"])

    # --- choices ---

    def _pick(self, options: Sequence[Any]) -> Any:
        return self._random.choice(options)

    def _task(self) -> str:
        return self._pick(self._tasks)

    def _any(self) -> str:
        return self._pick((*self._tasks, *self._plain, *self._plain))

    def _other(self, task_id: str) -> str:
        return self._pick([*self._plain, *self._plain, *(t for t in self._tasks if t != task_id)])

    def _version(self, task_id: str) -> int:
        return self._versions.get(task_id, 0)

    def _held(self) -> Data:
        """What we have claimed, or what somebody else may have."""
        if self._random.random() < 0.3:
            return self._claim
        task_id = self._task()
        is_old = self._random.random() < 0.2
        return held(task_id, max(0, self._version(task_id) - is_old))

    def _pid(self) -> str:
        """Of its family: a heartbeat without names must not reach another."""
        return f"{self._family}-{self._pick('pq')}"

    def _ttl(self) -> int:
        return self._pick((20, 40, 60, 60, 60_000))

    def _create_data(self, promise_id: str) -> Data:
        now = wall_ms(time.monotonic_ns())
        tags = {"branch": self._family} | self._pick(({}, {"timer": "true"}))
        if promise_id in self._tasks:
            tags |= {"target": TARGET}
        is_short = self._random.random() < (0.03 if promise_id in self._tasks else 0.4)
        lifetime = self._pick((100, 20, 0)) if is_short else 3_600_000
        return create(promise_id, now + lifetime, **tags)

    def _settle_data(self, promise_id: str) -> Data:
        state = self._pick(("resolved", "rejected", "rejected_canceled"))
        return settle(promise_id, state, f"{self._caller.name} {self._random.random()}")

    # --- one builder for each kind ---

    def _promise_get(self) -> Data:
        return {"id": self._any()}

    def _promise_create(self) -> Data:
        return self._create_data(self._any())

    def _promise_settle(self) -> Data:
        """Older ones too, since somebody may wait for them, and the newest in its time."""
        is_task = self._random.random() < 0.01
        return self._settle_data(self._pick(self._tasks if is_task else self._all_plain[:-1]))

    def _promise_register_callback(self) -> Data:
        task_id = self._task()
        return callback(self._other(task_id), task_id)

    def _promise_register_listener(self) -> Data:
        return listener(self._any(), self._pick(self._ears).address)

    def _task_get(self) -> Data:
        return {"id": self._task()}

    def _task_create(self) -> Data:
        return task_create(self._create_data(self._task()), self._pid(), self._ttl())

    def _task_acquire(self) -> Data:
        task_id = self._task()
        return acquire(task_id, self._version(task_id), self._pid(), self._ttl())

    def _task_release(self) -> Data:
        return self._held()

    def _task_fulfill(self) -> Data:
        """Seldom right: it would be the end of the task."""
        data = self._held()
        is_right = self._random.random() < 0.2
        version = data["version"] if is_right else max(0, data["version"] - 1)
        return fulfill(data["id"], version, "resolved", self._caller.name)

    def _task_suspend(self) -> Data:
        data = self._held()
        newest, other = self._plain[-1], self._other(data["id"])
        awaited = self._pick(([newest], [newest], [newest, other], [other]))
        return suspend(data["id"], data["version"], *awaited)

    def _task_fence(self) -> Data:
        data = self._held()
        inner = self._pick(self._plain)
        if self._random.random() < 0.5:
            return fence(data["id"], data["version"], "promise.create", self._create_data(inner))
        return fence(data["id"], data["version"], "promise.settle", self._settle_data(inner))

    def _task_heartbeat(self) -> Data:
        return {"pid": self._pid(), "tasks": self._pick(([], [self._held()]))}

    def _task_halt(self) -> Data:
        return {"id": self._task()}

    def _task_continue(self) -> Data:
        return {"id": self._task()}


def settle_all(caller: Caller, families: int, times: int) -> None:
    for family in (f"f{n}" for n in range(families)):
        for each in (*_plain(family, times), *_tasks(family)):
            caller.insist("promise.settle", settle(each))


def _tasks(family: str) -> tuple[str, str]:
    return f"{family}.t", f"{family}.u"


def _plain(family: str, turn: int) -> list[str]:
    """They grow in number, so that some are always pending."""
    return [f"{family}.{n}" for n in range(turn // 10 + 3)]


def family_of(call: Call) -> str:
    """Which ids a call can touch."""
    data = call.data
    if call.kind == "task.heartbeat":
        return data["pid"].partition("-")[0]
    named = data["action"]["data"] if call.kind == "task.create" else data
    return (named.get("id") or named["awaited"]).partition(".")[0]
