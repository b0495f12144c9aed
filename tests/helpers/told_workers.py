"""Workers that move a task only when they are told of it, so that a lost word stops it for ever.

Roots are created by some, worked on by others; each is listened for. Whoever has claimed a task
fulfils it, gives it back, lets its lease run out, or suspends it on a promise that somebody else
settles, or on a task that somebody else works on. Halfway they may be halted, their streams cut
off, and the server killed: in the end everybody who listens must have heard.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event

from tests.helpers.recording import Data, Ear, Meeting
from tests.helpers.server_process import ServerProcess
from tests.model.scripts import (
    acquire,
    create,
    fence,
    fulfill,
    held,
    listener,
    settle,
    suspend,
    task_create,
)

GROUP, OWN = "work", "own"
FAR = 4_102_444_800_000
ENOUGH = 6
"""At this version a task is fulfilled, whatever chance says."""


def born(task_id: str) -> Data:
    """Every second root is for workers of our own kind, and so are its children."""
    number = int(task_id[1:].partition(".")[0])
    tags = {"layby:name": "work"} if number % 2 else {}
    data = create(task_id, FAR, target=f"poll://any@{f'layby.{OWN}' if tags else GROUP}")
    return data | {"tags": data["tags"] | tags}


class Site(Meeting):
    """Where they all meet, and what they share."""

    def __init__(self, servers: Sequence[ServerProcess], seed: int, roots: int) -> None:
        super().__init__(*servers)
        self.seed = seed
        self.roots = [f"r{n}" for n in range(roots)]
        self.to_settle: SimpleQueue[str | None] = SimpleQueue()
        self.is_done = Event()

    def random(self, *of: object) -> random.Random:
        """Chance that is the same for the same seed and purpose."""
        return random.Random(f"{self.seed}/{of}")


class Hand:
    """Does something with a claimed task."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.caller = site.caller(name)

    def work(self, task_id: str, version: int) -> None:
        luck = self.site.random(task_id, version)
        ways: Sequence[Callable[[str, int], None]] = (
            *(self._fulfill,) * 3,
            *(self._suspend,) * 4,
            *(self._call,) * (1 if "." not in task_id else 0),
            *(self._release, self._vanish, self._linger),
        )
        way = self._fulfill if version >= ENOUGH else luck.choice(ways)
        way(task_id, version)

    def _fulfill(self, task_id: str, version: int) -> None:
        self.caller.ask("task.fulfill", fulfill(task_id, version, text=self.caller.name))

    def _release(self, task_id: str, version: int) -> None:
        self.caller.ask("task.release", held(task_id, version))

    def _vanish(self, task_id: str, version: int) -> None:
        """Its lease will run out."""

    def _linger(self, task_id: str, version: int) -> None:
        beat = {"pid": self.caller.name, "tasks": [held(task_id, version)]}
        self.caller.ask("task.heartbeat", beat)
        self._fulfill(task_id, version)

    def _suspend(self, task_id: str, version: int) -> None:
        """On a promise that somebody settles, perhaps before we wait for it."""
        child = f"{task_id}.p{version}"
        if self._create(task_id, version, create(child, FAR)):
            self.site.to_settle.put(child)
            self._wait(task_id, version, child)

    def _call(self, task_id: str, version: int) -> None:
        """On a task that somebody works on."""
        child = f"{task_id}.c{version}"
        if self._create(task_id, version, born(child)):
            self._wait(task_id, version, child)

    def _create(self, task_id: str, version: int, data: Data) -> bool:
        answer = self.caller.ask("task.fence", fence(task_id, version, "promise.create", data))
        return answer is not None and answer.status == 200

    def _wait(self, task_id: str, version: int, child: str) -> None:
        answer = self.caller.ask("task.suspend", suspend(task_id, version, child))
        if answer is not None and answer.status == 300:
            self._release(task_id, version)


class Worker(Hand):
    """Hears of tasks as an SDK does, and claims the version it heard of."""

    def __init__(self, site: Site, name: str) -> None:
        super().__init__(site, name)
        self._executes: SimpleQueue[Data | None] = SimpleQueue()
        self._is_stuck = Event()
        self.ear = site.ear(GROUP, name, self._executes.put)

    def run(self) -> None:
        while (message := self._executes.get()) is not None:
            if not self._is_stuck.is_set():
                self._claim(**message["data"]["task"])

    def _claim(self, id: str, version: int) -> None:  # noqa: A002 - the wire's word
        ttl = 100 * (version + 1)  # a slow machine gets there in the end
        claim = acquire(id, version, self.caller.name, ttl)
        answer = self.caller.insist("task.acquire", claim)
        if answer.status == 200:
            self.work(id, version + 1)

    def get_stuck(self) -> None:
        """From now on it hears of tasks and does nothing."""
        self._is_stuck.set()

    def die(self) -> None:
        self.ear.stop(politely=False)

    def stop(self) -> None:
        self._executes.put(None)


class Taker(Hand):
    """A worker of our own kind: takes what is ready, under one lease for all."""

    def __init__(self, site: Site, name: str) -> None:
        super().__init__(site, name)
        self._incarnations = map(str, itertools.count())
        self._incarnation = next(self._incarnations)

    def run(self) -> None:
        while not self.site.is_done.is_set():
            hang_ups = self.caller.hang_ups
            answer = self.caller.ask("layby.worker.take", self._take() | {"waitMs": 100})
            is_alive = answer is not None and answer.status == 200
            if answer is not None and is_alive:
                self._work_on(answer.data["claims"])
            if not is_alive or self.caller.hang_ups > hang_ups:
                self._vanish("", 0)  # it cannot know any more what it holds

    def _take(self) -> Data:
        who = {"pid": self.caller.name, "incarnation": self._incarnation, "ttl": 500}
        return who | {"group": OWN, "names": ["work"], "free": 2}

    def _work_on(self, claims: list[Data]) -> None:
        for claim in claims:
            task_id, version = claim["task"]["id"], claim["task"]["version"]
            incarnation = self._incarnation
            self.work(task_id, version)
            if self._incarnation == incarnation:
                self._say_that_it_is_over(task_id, version)

    def _say_that_it_is_over(self, task_id: str, version: int) -> None:
        """It may have been halted, and continued: it is handed out again when this is known."""
        who = {"pid": self.caller.name, "incarnation": self._incarnation}
        over = {"tasks": [{"id": task_id, "version": version}]}
        self.caller.ask("layby.worker.release", who | over)

    def _fulfill(self, task_id: str, version: int) -> None:
        finish = held(task_id, version) | {"value": {"data": self.caller.name}}
        answer = self.caller.ask("layby.task.finish", finish | {"take": self._take()})
        if answer is not None and answer.status == 200:
            self._work_on(answer.data["claims"])

    def _vanish(self, task_id: str, version: int) -> None:
        """This process is gone with all it holds, and another one in its place."""
        self._incarnation = next(self._incarnations)


class Starter:
    """Creates roots and has listeners told of their end."""

    def __init__(self, site: Site, name: str, roots: Sequence[str], ears: Sequence[Ear]) -> None:
        self._site = site
        self._caller = site.caller(name)
        self._roots = roots
        self._ears = ears

    def run(self) -> None:
        for root in self._roots:
            luck = self._site.random(root)
            if luck.random() < 0.3 and GROUP in born(root)["tags"]["resonate:target"]:
                self._caller.ask("task.create", task_create(born(root), self._caller.name, 50))
            self._caller.insist("promise.create", born(root))
            for ear in self._ears:
                self._caller.insist("promise.register_listener", listener(root, ear.address))


class Settler:
    """Settles what tasks wait for."""

    def __init__(self, site: Site, name: str) -> None:
        self._site = site
        self._caller = site.caller(name)

    def run(self) -> None:
        while (promise_id := self._site.to_settle.get()) is not None:
            self._caller.insist("promise.settle", settle(promise_id, "resolved", "go on"))

    def stop(self) -> None:
        self._site.to_settle.put(None)


class Meddler:
    """Halts some tasks, and lets them go on: that would help one that got lost, so not all."""

    def __init__(self, site: Site, name: str) -> None:
        self._site = site
        self._caller = site.caller(name)

    def run(self) -> None:
        luck = self._site.random("meddler")
        for root in luck.choices(self._site.roots[::3], k=len(self._site.roots)):
            task = {"id": root}
            self._caller.ask("task.halt", task)
            self._caller.ask("task.get", task)
            self._caller.insist("task.continue", task)
