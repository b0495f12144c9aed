"""A whole store as one value: for snapshots, invariants and the memory store."""

from msgspec import Struct, field

from layby.core.limit import Limit
from layby.core.model import (
    HeldKey,
    Holder,
    Listener,
    Message,
    MessageKey,
    Promise,
    Pruning,
    PublishedFlow,
    Task,
    Wait,
)
from layby.core.schedule_row import Schedule


class State(Struct):
    promises: dict[str, Promise] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    waits: dict[tuple[str, str], Wait] = field(default_factory=dict)
    listeners: set[Listener] = field(default_factory=set)
    messages: dict[MessageKey, Message] = field(default_factory=dict)
    holders: dict[HeldKey, Holder] = field(default_factory=dict)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    flows: dict[tuple[str, str], PublishedFlow] = field(default_factory=dict)
    pruning: dict[str, Pruning] = field(default_factory=dict)
    limits: dict[str, Limit] = field(default_factory=dict)

    def lease_of(self, task: Task) -> int | None:
        """When the claim on an acquired task ends: its own lease, or its holder's."""
        if task.holder is None:
            return task.wake_at
        holder = self.holders.get((task.pid or "", task.holder))
        return None if holder is None else holder.expires_at
