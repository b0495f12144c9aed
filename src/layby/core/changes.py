"""What one step or one transaction writes: the bookkeeping is the same, and lives here."""

from msgspec import Struct

from layby.core.limit import Limit
from layby.core.model import (
    FAR,
    HeldKey,
    Holder,
    Listener,
    Message,
    MessageKey,
    Millis,
    Promise,
    Pruning,
    PublishedFlow,
    Task,
    Wait,
)
from layby.core.schedule_row import Schedule


class Changes(Struct, eq=False):
    """Later writes of the same row replace earlier ones; only the last state reaches the store."""

    promises: dict[str, Promise] = {}
    born: set[str] = set()
    adopted: set[str] = set()
    """Promises that take the place of a placeholder."""
    moved: set[str] = set()
    """Promises whose deadlines were moved."""
    settled: list[str] = []
    given_up: list[str] = []
    """Tasks that fail because their workers died: no worker is left to say so in its log."""
    tasks: dict[str, Task] = {}
    readied: list[str] = []
    held: dict[HeldKey, int] = {}
    """How many more (or fewer) tasks a holder has."""
    holders: dict[HeldKey, Holder] = {}
    waits: dict[tuple[str, str], Wait] = {}
    dropped_waits: list[tuple[str, str]] = []
    forgotten: list[str] = []
    """Tasks whose waits are all deleted."""
    listeners: list[Listener] = []
    dropped_listeners: list[Listener] = []
    silenced: list[str] = []
    """Addresses whose listeners and messages are deleted."""
    messages: dict[MessageKey, Message | None] = {}
    delivered: list[Message] = []
    """They leave the outbox, unless a newer version has replaced them."""
    schedules: dict[str, Schedule | None] = {}
    flows: dict[tuple[str, str], PublishedFlow] = {}
    """By group and name."""
    deleted: dict[str, Promise] = {}
    """Promises that are pruned, as they were; what stays of one is among the `promises`."""
    deleted_holders: set[HeldKey] = set()
    gives_room_back: bool = False
    """The store becomes smaller, by as much as takes a moment."""
    pruning: dict[str, Pruning | None] = {}
    limits: dict[str, Limit | None] = {}
    closed: list[str] = []
    """Names of tasks that need several slots and were let in under a limit that has no permit left:
    slots may be kept for them.
    """
    earliest: Millis = FAR
    """The earliest instant at which any row added here is due to be looked at again."""

    def add(self, later: "Changes", now: Millis) -> None:
        """Add what a step has written at `now`, on top of everything already here."""
        if later.deleted:
            self._delete(later.deleted)
        if later.promises:
            self._add_promises(later)
        if later.tasks:
            self._add_tasks(later)
        if later.waits or later.dropped_waits or later.forgotten:
            self._add_waits(later)
            self.forgotten += later.forgotten
        if later.listeners or later.dropped_listeners:
            self.listeners += later.listeners
            self.dropped_listeners += later.dropped_listeners
        if later.messages:
            self.messages.update(later.messages)
        if later.delivered:
            self.delivered += later.delivered
        if later.schedules:
            self._add_schedules(later)
        if later.flows:
            self.flows.update(later.flows)
        if later.holders:
            self._add_holders(later, now)
        if later.deleted_holders:
            self.deleted_holders |= later.deleted_holders
        if later.gives_room_back:
            self.gives_room_back = True
        if later.pruning:
            self._add_pruning(later)
        if later.limits:
            self._add_limits(later)
        if later.silenced:
            self._silence(later.silenced)

    def _delete(self, deleted: dict[str, Promise]) -> None:
        """Rows are deleted before others are written, so a promise may be born again after this."""
        for key, promise in deleted.items():
            self.deleted.setdefault(key, promise)
            self.promises.pop(key, None)
            self.tasks.pop(key, None)
            self.born.discard(key)
            self.adopted.discard(key)
            self.moved.discard(key)

    def _add_waits(self, later: "Changes") -> None:
        """They are dropped after others are written, so one that begins again is not among them."""
        if later.waits and self.dropped_waits:
            self.dropped_waits = [each for each in self.dropped_waits if each not in later.waits]
        self.waits.update(later.waits)
        self.dropped_waits += later.dropped_waits

    def _add_pruning(self, later: "Changes") -> None:
        self.pruning.update(later.pruning)
        for each in later.pruning.values():
            if each is not None:
                self._wake_by(each.due_at)

    def _add_limits(self, later: "Changes") -> None:
        self.limits.update(later.limits)
        self.closed += later.closed
        for each in later.limits.values():
            if each is not None and each.next_at is not None:
                self._wake_by(each.next_at)

    def _silence(self, addresses: list[str]) -> None:
        """Deleted before anything is written, so what this batch wrote to them is dropped here."""
        self.silenced += addresses
        self.listeners = [each for each in self.listeners if each.address not in addresses]
        self.messages = {
            key: each
            for key, each in self.messages.items()
            if each is None or each.address not in addresses
        }

    def _add_promises(self, later: "Changes") -> None:
        self.born |= later.born
        self.adopted |= later.adopted - self.born
        self.moved |= later.moved
        self.promises.update(later.promises)
        self.settled += later.settled
        self.given_up += later.given_up
        for promise in later.promises.values():
            if promise.is_armed:
                self._wake_by(promise.timeout_at)
            elif promise.tail_at is not None:
                self._wake_by(promise.tail_at)

    def _add_tasks(self, later: "Changes") -> None:
        self.tasks.update(later.tasks)
        self.readied += later.readied
        for key, by in later.held.items():
            self.held[key] = self.held.get(key, 0) + by
        for task in later.tasks.values():
            if task.wake_at is not None:
                self._wake_by(task.wake_at)

    def _add_schedules(self, later: "Changes") -> None:
        self.schedules.update(later.schedules)
        for schedule in later.schedules.values():
            if schedule is not None:
                self._wake_by(schedule.next_run_at)

    def _add_holders(self, later: "Changes", now: Millis) -> None:
        self.holders.update(later.holders)
        for holder in later.holders.values():
            self._wake_by(holder.expires_at if holder.is_alive else now)

    def _wake_by(self, at: Millis) -> None:
        self.earliest = min(self.earliest, at)

    @property
    def large_gone(self) -> list[Task]:
        """Tasks that need several slots and are no longer ready: slots may be kept for them."""
        return [task for task in self.tasks.values() if task.slots > 1 and not task.is_ready]

    @property
    def is_empty(self) -> bool:
        return not (
            self.promises
            or self.tasks
            or self.waits
            or self.dropped_waits
            or self.listeners
            or self.messages
            or self.delivered
            or self.schedules
            or self.holders
            or self.flows
            or self.deleted
            or self.deleted_holders
            or self.gives_room_back
            or self.pruning
            or self.limits
        )
