"""What one transaction has to write: the drafts of a batch, added up."""

from layby.core.draft import Draft
from layby.core.model import (
    FAR,
    HeldKey,
    Holder,
    Listener,
    Message,
    MessageKey,
    Millis,
    Promise,
    Schedule,
    Task,
    Wait,
)


class Changes:
    """Later writes of the same row replace earlier ones; only the last state reaches the store."""

    __slots__ = (
        "adopted",
        "born",
        "dropped_listeners",
        "dropped_waits",
        "earliest",
        "forgotten",
        "held",
        "holders",
        "listeners",
        "messages",
        "promises",
        "readied",
        "schedules",
        "settled",
        "silenced",
        "tasks",
        "waits",
    )

    def __init__(self) -> None:
        self.born: set[str] = set()
        self.adopted: set[str] = set()
        self.promises: dict[str, Promise] = {}
        self.tasks: dict[str, Task] = {}
        self.waits: dict[tuple[str, str], Wait] = {}
        self.dropped_waits: list[tuple[str, str]] = []
        self.forgotten: list[str] = []
        self.listeners: list[Listener] = []
        self.dropped_listeners: list[str] = []
        self.messages: dict[MessageKey, Message | None] = {}
        self.schedules: dict[str, Schedule | None] = {}
        self.silenced: list[str] = []
        """Addresses whose listeners and messages are deleted."""
        self.holders: dict[HeldKey, Holder] = {}
        self.held: dict[HeldKey, int] = {}
        self.settled: list[str] = []
        self.readied: list[str] = []
        self.earliest: Millis = FAR

    def add(self, draft: Draft) -> None:
        if draft.promises:
            self._add_promises(draft)
        if draft.tasks:
            self._add_tasks(draft)
        if draft.waits or draft.dropped_waits or draft.forgotten:
            self.waits.update(draft.waits)
            self.dropped_waits += draft.dropped_waits
            self.forgotten += draft.forgotten
        if draft.listeners or draft.dropped_listeners:
            self.listeners += draft.listeners
            self.dropped_listeners += draft.dropped_listeners
        if draft.messages:
            self.messages.update(draft.messages)
        if draft.schedules:
            self._add_schedules(draft)
        if draft.holders:
            self._add_holders(draft)
        if draft.silenced:
            self._silence(draft.silenced)

    def _silence(self, addresses: list[str]) -> None:
        """Deleted before anything is written: what this batch wrote to them goes here."""
        self.silenced += addresses
        self.listeners = [each for each in self.listeners if each.address not in addresses]
        self.messages = {
            key: each
            for key, each in self.messages.items()
            if each is None or each.address not in addresses
        }

    def _add_promises(self, draft: Draft) -> None:
        self.born |= draft.born
        self.adopted |= draft.adopted - self.born
        self.promises.update(draft.promises)
        self.settled += draft.settled
        for promise in draft.promises.values():
            if promise.is_armed:
                self._wake_by(promise.timeout_at)
            elif promise.tail_at is not None:
                self._wake_by(promise.tail_at)

    def _add_tasks(self, draft: Draft) -> None:
        self.tasks.update(draft.tasks)
        self.readied += draft.readied
        for key, by in draft.held.items():
            self.held[key] = self.held.get(key, 0) + by
        for task in draft.tasks.values():
            if task.wake_at is not None:
                self._wake_by(task.wake_at)

    def _add_schedules(self, draft: Draft) -> None:
        self.schedules.update(draft.schedules)
        for schedule in draft.schedules.values():
            if schedule is not None:
                self._wake_by(schedule.next_run_at)

    def _add_holders(self, draft: Draft) -> None:
        self.holders.update(draft.holders)
        for holder in draft.holders.values():
            self._wake_by(holder.expires_at if holder.is_alive else draft.now)

    def _wake_by(self, at: Millis) -> None:
        """The soonest instant at which any row written here has to be looked at again."""
        self.earliest = min(self.earliest, at)

    @property
    def is_empty(self) -> bool:
        return not (
            self.promises
            or self.tasks
            or self.waits
            or self.dropped_waits
            or self.listeners
            or self.messages
            or self.schedules
            or self.holders
        )
