"""Callers as the SDKs are, by the bare protocol, and other receivers of a group."""

from typing import Any

from layby import Runner
from layby.core.commands import CreatePromise, GetPromise, GetTask, WatchPromise
from layby.core.model import NEVER, Promise, Task
from layby.delivery.routing import Router
from layby.wire.call_format import Call
from layby.worker.rejections import value_of


async def call(
    runner: Runner,
    promise_id: str,
    func: str,
    *args: Any,
    group: str = "default",
    timeout_at: int = NEVER,
) -> None:
    """As an SDK begins a call from outside."""
    tags = {
        "resonate:origin": promise_id,
        "resonate:branch": promise_id,
        "resonate:parent": promise_id,
        "resonate:scope": "global",
        "resonate:target": f"poll://any@{group}",
    }
    param = Call(func, args).to_value()
    create = CreatePromise(id=promise_id, timeout_at=timeout_at, param=param, tags=tags)
    reply = await runner.client.send(create)
    assert reply.status == 200, reply


async def answer_to(runner: Runner, promise_id: str) -> Any:
    """Wait for it; an error is raised."""
    reply: Any = await runner.client.send(WatchPromise(id=promise_id))
    return value_of(reply.data.promise)


async def promise_of(runner: Runner, promise_id: str) -> Promise:
    reply: Any = await runner.client.send(GetPromise(id=promise_id))
    return reply.data.promise


async def task_of(runner: Runner, promise_id: str) -> Task:
    reply: Any = await runner.client.send(GetTask(id=promise_id))
    return reply.data.task


class Stranger:
    """A worker of another language in the same group: it only listens."""

    has_room = True

    def __init__(self, runner: Runner, name: str = "stranger", group: str = "default") -> None:
        self.group = group
        self.id = name
        self.heard: list[tuple[str, int]] = []
        link: Any = runner._link
        self._router: Router = link.router
        self._router.connect(self)

    def receive(self, outgoing) -> None:
        self.heard.append((outgoing.message.id, outgoing.message.version))
        self._router.arrived([outgoing])

    def decline(self, task_id: str, version: int) -> None:
        self._router.decline(task_id, version, f"poll://any@{self.group}", self.id)

    def leave(self) -> None:
        self._router.disconnect(self)
