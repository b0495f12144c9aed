"""The process that is killed: many clients at once, and a line for everything acknowledged.

A line is written after the answer has come, in one write, so the parent reads whole lines of
things that were promised to be on disk. Run as `python kill_child.py FILE SEED`.
"""

import asyncio
import json
import os
import sys
from random import Random

from layby.clock import SystemClock
from layby.core.commands import (
    CreatePromise,
    FinishTask,
    RegisterCallback,
    SettlePromise,
    SuspendAction,
    SuspendTask,
    Take,
    Value,
)
from layby.core.model import NEVER
from layby.core.replies import FinishData, Reply, TakeData
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.local import LocalClient
from layby.store.sqlite import SqliteStore

CLIENTS = 16
OURS = {"resonate:target": "poll://any@layby.g", "layby:name": "n"}
HOLDERS = {"embedded": True, "remote": False}
"""Two holders share the work; only the embedded one dies with this process."""


def value_of(promise_id: str) -> Value:
    """The value that is written for an id, whoever looks at it."""
    return Value(headers={}, data=promise_id * (len(promise_id) % 40 + 1))


class Person:
    """One client: does one random thing after the other, and says what was acknowledged."""

    def __init__(self, client: LocalClient, number: int, seed: int) -> None:
        self._client = client
        self._random = Random(f"{seed}-{number}")
        self._name = f"c{number}"
        self._made = 0
        self._open: list[str] = []
        self._held: list[tuple[str, int]] = []

    async def live(self) -> None:
        while True:
            await self._random.choice(
                [self.create, self.create_task, self.settle, self.take, self.finish, self.suspend]
            )()

    async def create(self) -> None:
        promise_id = await self._create({})
        self._open.append(promise_id)

    async def create_task(self) -> None:
        await self._create(OURS)

    async def settle(self) -> None:
        if not self._open:
            return
        promise_id = self._open.pop(self._random.randrange(len(self._open)))
        state = self._random.choice(["resolved", "rejected", "rejected_canceled"])
        await self._send(SettlePromise(id=promise_id, state=state, value=value_of(promise_id)))
        said("settle", promise_id, state=state)

    async def take(self) -> None:
        reply = await self._send(self._wish())
        assert isinstance(reply.data, TakeData)
        self._took(reply.data)

    async def finish(self) -> None:
        if not self._held:
            return
        task_id, version = self._held.pop()
        wish = self._wish() if self._random.random() < 0.5 else None
        value = value_of(task_id)
        reply = await self._send(FinishTask(id=task_id, version=version, value=value, take=wish))
        assert isinstance(reply.data, FinishData)
        said("settle", task_id, state="resolved")
        self._took(reply.data.taken)

    async def suspend(self) -> None:
        if not self._held or not self._open:
            return
        task_id, version = self._held.pop()
        awaited = self._random.choice(self._open)
        wait = RegisterCallback(awaited=awaited, awaiter=task_id)
        action = SuspendAction(kind=wait.kind, head={}, data=wait)
        reply = await self._send(SuspendTask(id=task_id, version=version, actions=[action]))
        if reply.status == 200:
            said("suspend", task_id, version=version, awaited=awaited)
        else:
            self._held.append((task_id, version))

    async def _create(self, tags: dict[str, str]) -> str:
        self._made += 1
        promise_id = f"{self._name}-{self._made}"
        param = value_of(promise_id)
        await self._send(CreatePromise(id=promise_id, timeout_at=NEVER, param=param, tags=tags))
        said("create", promise_id, task=bool(tags))
        return promise_id

    def _wish(self) -> Take:
        pid = self._random.choice(list(HOLDERS))
        return Take(
            pid=pid,
            incarnation=f"{pid}-1",
            group="g",
            names=("n",),
            free=self._random.randint(1, 3),
            embedded=HOLDERS[pid],
            ttl=3_600_000,
        )

    def _took(self, taken: TakeData) -> None:
        for claim in taken.claims:
            task = claim.task
            said("take", task.id, version=task.version, pid=task.pid)
            self._held.append((task.id, task.version))

    async def _send(self, command) -> Reply:
        reply = await self._client.send(command)
        assert reply.status < 400, (command, reply)
        return reply


def said(what: str, promise_id: str, **more) -> None:
    os.write(1, json.dumps({"what": what, "id": promise_id, **more}).encode() + b"\n")


async def main(file: str, seed: int) -> None:
    engine = Engine(SqliteStore(file, Settings(), next_after), SystemClock())
    engine.start()
    said("open", "")
    client = LocalClient(engine)
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(Person(client, number, seed).live())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
