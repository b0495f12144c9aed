"""Clients that all want the same few promises and tasks, and ask for anything at any time."""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.helpers.recording import Call, Caller, Data, Ear, wall_ms
from tests.helpers.server_process import Answer
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

GROUP = "hammer"
TARGET = f"poll://any@{GROUP}"
ANYTHING = (
    *("promise.create",) * 4,
    *("promise.settle",) * 4,
    *("promise.register_callback",) * 2,
    *("promise.register_listener",) * 3,
    *("promise.get", "task.get") * 2,
    *("task.create", "task.acquire", "task.suspend", "task.fence", "task.release") * 2,
    *("task.heartbeat", "task.fulfill", "task.halt", "task.continue"),
)
FITTING = {
    "pending": ("task.acquire", "task.acquire", "task.create"),
    "acquired": (
        *("task.suspend", "task.release", "task.fence", "task.heartbeat") * 2,
        *("task.acquire", "task.halt"),
    ),
    "suspended": ("promise.settle", "promise.settle", "promise.register_callback", "task.acquire"),
    "halted": ("task.continue", "task.continue", "task.acquire"),
    "fulfilled": ("task.get",),
}
LEADS_TO = {
    "task.release": "pending",
    "task.suspend": "suspended",
    "task.halt": "halted",
    "task.continue": "pending",
    "task.fulfill": "fulfilled",
}


class Seen:
    """What any client knows of the tasks: mostly right, for a moment."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._versions: dict[str, int] = {}

    def state(self, task_id: str) -> str:
        return self._states.get(task_id, "pending")

    def version(self, task_id: str) -> int:
        return self._versions.get(task_id, 0)

    def answered(self, kind: str, data: Data, answer: Answer) -> None:
        if answer.status == 200 and "task" in answer.data:
            task = answer.data["task"]
            self._states[task["id"]] = task["state"]
            self._versions[task["id"]] = max(task["version"], self.version(task["id"]))
        elif answer.status == 200 and kind in LEADS_TO:
            self._states[data["id"]] = LEADS_TO[kind]
        elif answer.status == 409 and self.state(data.get("id", "")) == "acquired":
            self._states[data["id"]] = "pending"  # its lease has run out, perhaps


class Hammer:
    """One client. Its choices follow from its seed and from what it was answered."""

    def __init__(self, caller: Caller, seed: str, ears: Sequence[Ear], seen: Seen) -> None:
        self._caller = caller
        self._random = random.Random(seed)
        self._ears = ears
        self._seen = seen

    def strike_all(self, families: Iterable[str], times: int) -> None:
        for family in families:
            self.strike(family, times)

    def strike(self, family: str, times: int) -> None:
        """A family's ids are never named together with those of another."""
        self._family = family
        for turn in range(times):
            self._all_plain = _plain(family, turn)
            self._plain = self._all_plain[-3:]
            self._task = self._pick(_tasks(family))
            self._strike(self._kind())

    def _strike(self, kind: str) -> None:
        build: Callable[[], Data] = getattr(self, "_" + kind.replace(".", "_"))
        data = build()
        answer = self._caller.ask(kind, data)
        if answer is not None:
            self._seen.answered(kind, data, answer)

    # --- choices ---

    def _pick(self, options: Sequence[Any]) -> Any:
        return self._random.choice(options)

    def _kind(self) -> str:
        """What may do something, or anything at all."""
        fitting = FITTING[self._seen.state(self._task)]
        return self._pick(fitting if self._random.random() < 0.6 else ANYTHING)

    def _any(self) -> str:
        return self._pick((self._task, *self._plain, *self._plain))

    def _other(self) -> str:
        others = [each for each in _tasks(self._family) if each != self._task]
        return self._pick([*self._plain, *self._plain, *others])

    def _held(self) -> Data:
        is_old = self._random.random() < 0.1
        return held(self._task, max(0, self._seen.version(self._task) - is_old))

    def _pid(self) -> str:
        """Of its family: a heartbeat without names must not reach another."""
        return f"{self._family}-{self._pick('pq')}"

    def _ttl(self) -> int:
        return self._pick((20, 40, 60, 60, 60_000))

    def _create_data(self, promise_id: str) -> Data:
        now = wall_ms(time.monotonic_ns())
        tags = {"branch": self._family} | self._pick(({}, {"timer": "true"}))
        is_task = promise_id == self._task
        if is_task:
            tags |= {"target": TARGET}
        is_short = self._random.random() < (0.02 if is_task else 0.4)
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
        return self._settle_data(self._task if is_task else self._pick(self._all_plain[:-1]))

    def _promise_register_callback(self) -> Data:
        return callback(self._other(), self._task)

    def _promise_register_listener(self) -> Data:
        return listener(self._any(), self._pick(self._ears).address)

    def _task_get(self) -> Data:
        return {"id": self._task}

    def _task_create(self) -> Data:
        return task_create(self._create_data(self._task), self._pid(), self._ttl())

    def _task_acquire(self) -> Data:
        return acquire(self._task, self._seen.version(self._task), self._pid(), self._ttl())

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
        newest, other = self._plain[-1], self._other()
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
        return {"id": self._task}

    def _task_continue(self) -> Data:
        return {"id": self._task}


def settle_all(caller: Caller, families: Iterable[str], times: int) -> None:
    for family in families:
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
