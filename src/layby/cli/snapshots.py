"""Turns what a server shows of its state into a state that invariants can be checked on."""

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from layby.core import invariants
from layby.core.invariants import INVARIANTS
from layby.core.model import Listener, Message, Promise, Task, Wait
from layby.core.replies import Explanation
from layby.core.state import State
from layby.wire.answers import HeldTask, promise
from layby.wire.encode import PromiseRecord

UNSEEN: Final = (
    invariants.count_equals_waits,
    invariants.ready_only_while_pending,
    invariants.tries_are_claims_that_began,
    invariants.waiting_since_while_waiting,
    invariants.one_living_holder_per_pid,
    invariants.held_count_is_true,
    invariants.schedule_runs_forward,
)
"""They need what a snapshot leaves out: holders, schedules and internal counts."""
SEEN: Final = tuple(each for each in INVARIANTS if each not in UNSEEN)


class Timeout(Struct, frozen=True):
    id: str
    timeout: int


class Callback(Struct, frozen=True):
    awaited: str
    awaiter: str


class Listening(Struct, frozen=True):
    id: str
    address: str


class Sent(Struct, frozen=True):
    address: str
    message: dict[str, Any]


class Snapshot(Struct, frozen=True, rename="camel"):
    """The answer to `debug.snap`."""

    promises: list[PromiseRecord] = field(default_factory=list[PromiseRecord])
    callbacks: list[Callback] = field(default_factory=list[Callback])
    listeners: list[Listening] = field(default_factory=list[Listening])
    tasks: list[HeldTask] = field(default_factory=list[HeldTask])
    task_timeouts: list[Timeout] = field(default_factory=list[Timeout])
    messages: list[Sent] = field(default_factory=list[Sent])


def state_of(snapshot: Snapshot) -> State:
    deadlines = {each.id: each.timeout for each in snapshot.task_timeouts}
    tasks = [replace(each.row(), wake_at=deadlines.get(each.id)) for each in snapshot.tasks]
    messages = [_message(each) for each in snapshot.messages]
    return State(
        promises={each.id: promise(each) for each in snapshot.promises},
        tasks={task.id: task for task in tasks},
        waits={(w.awaited, w.awaiter): Wait(w.awaited, w.awaiter) for w in snapshot.callbacks},
        listeners={Listener(each.id, each.address) for each in snapshot.listeners},
        messages={message.key: message for message in messages},
    )


def state_of_entries(entries: Iterable[Explanation]) -> State:
    """What waits, with what it waits for."""
    state = State()
    for entry in entries:
        _add(state, entry.promise, entry.task)
        for awaited, task in entry.awaited if _is_suspended(entry.task) else ():
            _add(state, awaited, task)
            state.waits[awaited.id, entry.promise.id] = Wait(awaited.id, entry.promise.id)
    return state


def _is_suspended(task: Task | None) -> bool:
    return task is not None and task.state == "suspended"


def _add(state: State, row: Promise, task: Task | None) -> None:
    state.promises[row.id] = row
    if task is not None:
        state.tasks[task.id] = task


def _message(sent: Sent) -> Message:
    data = sent.message["data"]
    if sent.message["kind"] == "unblock":
        return Message(data["promise"]["id"], "unblock", sent.address)
    return Message(data["task"]["id"], "execute", sent.address, data["task"]["version"])
