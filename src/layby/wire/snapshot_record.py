"""The snapshot of `debug.snap`: every row as the protocol shows it, for both directions."""

from msgspec import Struct
from msgspec.structs import replace

from layby.core import snapshot
from layby.core.model import Listener, Message, Promise, Wait
from layby.core.state import State
from layby.errors import WireError
from layby.wire.records import (
    MessageRecord,
    PromiseRecord,
    TaskRecord,
    WireRecord,
    promises_of,
)


class Timeout(Struct, frozen=True):
    id: str
    timeout: int


class TaskTimeoutRecord(Struct, frozen=True):
    id: str
    type: int
    timeout: int | None


class Callback(Struct, frozen=True):
    awaiter: str
    awaited: str


class Listening(Struct, frozen=True):
    id: str
    address: str


class Sent(Struct, frozen=True):
    address: str
    message: MessageRecord

    def row(self) -> Message:
        data = self.message.data
        if data.promise is not None:
            return Message(data.promise.id, "unblock", self.address)
        if data.task is None:
            raise WireError(f"a message to {self.address} names neither a promise nor a task")
        return Message(data.task.id, "execute", self.address, data.task.version)


class SnapshotRecord(WireRecord, frozen=True):
    """Without holders and schedules; of the rest, what the protocol shows."""

    promises: list[PromiseRecord]
    promise_timeouts: list[Timeout]
    callbacks: list[Callback]
    listeners: list[Listening]
    tasks: list[TaskRecord]
    task_timeouts: list[TaskTimeoutRecord]
    messages: list[Sent]

    @classmethod
    def of(cls, row: State) -> "SnapshotRecord":
        return cls(
            promises=promises_of(snapshot.promises(row)),
            promise_timeouts=[Timeout(**each) for each in snapshot.promise_timeouts(row)],
            callbacks=[Callback(**each) for each in snapshot.callbacks(row)],
            listeners=[Listening(**each) for each in snapshot.listeners(row)],
            tasks=[TaskRecord.of(each) for each in snapshot.tasks(row)],
            task_timeouts=[TaskTimeoutRecord(**each) for each in snapshot.task_timeouts(row)],
            messages=[
                Sent(each.address, MessageRecord.of(each, _about(row, each)))
                for each in snapshot.messages(row)
            ],
        )

    def row(self) -> State:
        deadlines = {each.id: each.timeout for each in self.task_timeouts}
        tasks = [replace(each.row(), wake_at=deadlines.get(each.id)) for each in self.tasks]
        messages = [each.row() for each in self.messages]
        return State(
            promises={each.id: each.row() for each in self.promises},
            tasks={task.id: task for task in tasks},
            waits={(w.awaited, w.awaiter): Wait(w.awaited, w.awaiter) for w in self.callbacks},
            listeners={Listener(each.id, each.address) for each in self.listeners},
            messages={message.key: message for message in messages},
        )


def _about(state: State, row: Message) -> Promise | None:
    return state.promises[row.id] if row.kind == "unblock" else None
