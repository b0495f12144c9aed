"""What the workers of the chaos of deferring run. Each effect is a line of JSON in EFFECTS.

A run waits for one firing of each kind of trigger, in an order of its own; each try says which
firing it was given. `Drawn` finds something else each time it runs: so two payloads of one wait
would be seen.
"""

import asyncio
import json
import os
import random
import uuid
from pathlib import Path
from typing import Any

from layby import Workflow, task, triggers

EFFECTS = os.open(os.environ.get("EFFECTS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
INCOMING = Path(os.environ.get("INCOMING", "."))
KINDS = ("event", "drawn", "file", "delay")
"""Settled by a client; run by a worker; polled by a manager; run by nobody."""


def kind_of(number: int, step: int) -> str:
    return KINDS[(number + step) % len(KINDS)]


def event_of(number: int, step: int) -> str:
    return f"event-{number}-{step}"


def file_of(number: int, step: int) -> Path:
    return INCOMING / f"{number}-{step}"


def write_file(number: int, step: int) -> None:
    """Whole or not at all, whoever looks or dies meanwhile; its size says whose it is."""
    whole = file_of(number, step)
    part = whole.with_name(f"{whole.name}.{os.getpid()}")
    part.write_bytes(b"x" * (1 + number))
    part.replace(whole)


@triggers.register
class Drawn(triggers.Trigger, frozen=True):
    number: int
    step: int

    async def run(self) -> Any:
        await asyncio.sleep(random.random() * 0.2)
        return {"number": self.number, "step": self.step, "drawn": uuid.uuid4().hex}


def trigger_of(number: int, step: int) -> Any:
    return {
        "event": triggers.Event(event_of(number, step)),
        "drawn": Drawn(number, step),
        "file": triggers.FileExists(str(file_of(number, step)), every=0.2),
        "delay": triggers.Delay(0.1),
    }[kind_of(number, step)]


def effect(context: Any, handle: Any, step: int, event: Any) -> None:
    line = {"number": context["number"], "step": step, "try": handle.try_number, "event": event}
    os.write(EFFECTS, f"{json.dumps(line)}\n".encode())


async def hop(context: Any, handle: Any, event: Any, step: int) -> None:
    """Consumes the firing of one step, and waits for the next."""
    effect(context, handle, step, event)
    await asyncio.sleep(random.random() * 0.02)
    context["got"] = [*context["got"], event]
    await go_on(context, handle, step + 1)


async def go_on(context: Any, handle: Any, step: int) -> None:
    if step < len(KINDS):
        trigger = trigger_of(context["number"], step)
        await handle.defer(trigger, resume=hop, kwargs={"step": step})


@task
async def hops(context: Any, handle: Any) -> None:
    context["got"] = []
    await go_on(context, handle, 0)


flow = Workflow("hopping", tasks=[hops])
