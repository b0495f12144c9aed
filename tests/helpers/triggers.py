"""Trigger managers on an engine of their own, and the rows that a defer would make for them."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from layby import Runner
from layby.core.commands import CancelPromise, CreatePromise, GetPromise
from layby.core.model import NEVER, Promise
from layby.core.replies import PromiseData
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.trigger_manager.trigger_manager import TriggerConfig, TriggerManager
from layby.triggers.base_trigger import Trigger
from layby.triggers.built_in import BUILT_IN
from layby.triggers.registry import TriggerRegistry
from layby.wire import json_values

TARGET = "poll://any@layby.triggers"


class BornTrigger(CreatePromise, frozen=True):
    """A trigger with the tags that a defer gives it, which no request may name."""

    def problems(self) -> Iterable[str]:
        return ()


class TriggerWorld:
    """An engine without a worker; managers are opened beside it."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    async def put(
        self,
        trigger_id: str,
        trigger: Trigger | tuple[str, Any],
        timeout_at: int = NEVER,
        principal: str = "",
    ) -> None:
        """What core makes when a task is deferred for it; a tuple is of a class nobody has."""
        kind, args = (
            trigger if isinstance(trigger, tuple) else (trigger.kind(), trigger.arguments())
        )
        tags = {"resonate:target": TARGET, "layby:name": kind, "layby:trigger": "run/r:t"}
        if isinstance(trigger, Trigger) and trigger.on_cancels():
            tags["layby:on-cancel"] = "true"
        if principal:
            tags["layby:principal"] = principal
        param = json_values.to_value(args)
        reply = await self.runner.client.send(
            BornTrigger(id=trigger_id, timeout_at=timeout_at, param=param, tags=tags)
        )
        assert reply.is_ok, reply

    async def put_bare(self, task_id: str, trigger: Trigger) -> None:
        """A task in the group of triggers, as any client may create it: nobody has deferred."""
        tags = {"resonate:target": TARGET, "layby:name": trigger.kind()}
        param = json_values.to_value(trigger.arguments())
        reply = await self.runner.client.send(
            CreatePromise(id=task_id, timeout_at=NEVER, param=param, tags=tags)
        )
        assert reply.is_ok, reply

    async def cancel(self, trigger_id: str) -> None:
        assert (await self.runner.client.send(CancelPromise(id=trigger_id))).is_ok

    async def look(self, trigger_id: str) -> Promise:
        while True:
            reply = await self.runner.client.send(GetPromise(id=trigger_id))
            if isinstance(reply.data, PromiseData):
                return reply.data.promise
            await asyncio.sleep(0.01)  # it will be born

    async def outcome(self, trigger_id: str) -> tuple[str, Any]:
        """Its state, and its payload or the message of its error, once it has one."""
        while (promise := await self.look(trigger_id)).is_pending:  # noqa: ASYNC110 - a row
            await asyncio.sleep(0.01)
        told = json_values.from_text(promise.value)
        return promise.state, told["message"] if promise.state == "rejected" else told

    @asynccontextmanager
    async def manager(
        self,
        classes: Iterable[type[Trigger]] = (),
        access: TriggerAccess | None = None,
        *,
        capacity: int = 100,
        random: Callable[[], float] = lambda: 0.5,
    ) -> AsyncGenerator[TriggerManager]:
        link = self.runner._link
        config = TriggerConfig(
            pid=f"m-{uuid.uuid4().hex[:8]}", incarnation=uuid.uuid4().hex, capacity=capacity
        )
        manager = TriggerManager(
            link.client,
            config,
            link.now,
            link.elapsed,
            registry=TriggerRegistry([*BUILT_IN, *classes]),
            access=access,
            random=random,
        )
        await link.join(manager.worker)
        manager.start()
        try:
            yield manager
        finally:
            await manager.stop()


@asynccontextmanager
async def trigger_world() -> AsyncGenerator[TriggerWorld]:
    async with Runner("memory:", slots=0) as runner:
        yield TriggerWorld(runner)
