"""The whole state in the form debug.snap shows it."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from layby.core.model import Message, Millis, Promise, Task
from layby.core.state import State


def at(state: State, now: Millis) -> State:
    """Stored rows, but internal promises as they read now: no tick will ever settle them."""
    internal = {p.id: p.at(now) for p in state.promises.values() if p.internal}
    return replace(state, promises=state.promises | internal) if internal else state


def promise_timeouts(state: State) -> list[dict[str, Any]]:
    armed = (p for p in _sorted(state.promises) if p.is_armed)
    return [{"id": p.id, "timeout": p.timeout_at} for p in armed]


def callbacks(state: State) -> list[dict[str, str]]:
    ordered = sorted(key for key, wait in state.waits.items() if not wait.is_note)
    return [{"awaiter": awaiter, "awaited": awaited} for awaited, awaiter in ordered]


def listeners(state: State) -> list[dict[str, str]]:
    ordered = sorted((each.awaited, each.address) for each in state.listeners)
    return [{"id": awaited, "address": address} for awaited, address in ordered]


def task_timeouts(state: State) -> list[dict[str, Any]]:
    return [timeout for task in _sorted(state.tasks) for timeout in _timeout(state, task)]


def messages(state: State) -> Iterator[Message]:
    """Executes by task, then unblocks by promise and address; layby's own notices are not shown."""
    ordered = sorted(state.messages.values(), key=lambda each: (each.kind, each.id, each.address))
    return (message for message in ordered if message.kind != "lost")


def promises(state: State) -> list[Promise]:
    return _sorted(state.promises)


def tasks(state: State) -> list[Task]:
    return _sorted(state.tasks)


def _timeout(state: State, task: Task) -> Iterator[dict[str, Any]]:
    if task.state == "pending":
        yield {"id": task.id, "type": 0, "timeout": task.wake_at}
    elif task.state == "acquired":
        yield {"id": task.id, "type": 1, "timeout": state.lease_of(task)}


def _sorted(rows: dict[str, Any]) -> list[Any]:
    return [row for _, row in sorted(rows.items())]
