"""The writes and messages of one step, before commit; reads show the deadline-aware view."""

from collections.abc import Iterable

from msgspec import field

from layby.core import permits
from layby.core.changes import Changes
from layby.core.limit import Limit, rule_for
from layby.core.model import (
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
from layby.core.rows import Rows
from layby.core.schedule_row import Schedule, is_run_of
from layby.core.settings import Settings


class Draft(Changes, kw_only=True):
    """The changes of one step. Reads fall through to the batch's rows; writes stay here until the
    step has succeeded.
    """

    rows: Rows
    now: Millis
    regained: list[str] = field(default_factory=list)
    """Promises of parked bodies that have their permits again, or need none any more."""
    patterns: dict[str, Limit] = field(default_factory=dict)
    """Of the limits here, those for all names that begin alike. There may be very many others."""

    @property
    def settings(self) -> Settings:
        return self.rows.settings

    # --- reads ---------------------------------------------------------------------------

    def promise(self, promise_id: str) -> Promise | None:
        row = self.promises.get(promise_id) or self.rows.promise(promise_id)
        return None if row is None else row.at(self.now)

    def task(self, task_id: str) -> Task | None:
        """The task; fulfilled as soon as its promise is past its deadline."""
        row = self.tasks.get(task_id) or self.rows.task(task_id)
        if row is None or row.state == "fulfilled":
            return row
        promise = self.promise(task_id)
        return row if promise is None or promise.is_pending else row.fulfilled()

    def schedule(self, schedule_id: str) -> Schedule | None:
        if schedule_id in self.schedules:
            return self.schedules[schedule_id]
        return self.rows.schedules[schedule_id]

    def maybe_runs_of(self, schedule_id: str) -> list[Promise]:
        """The newest open runs of a schedule, and what has an id like theirs."""
        own = {each for each in self.promises if is_run_of(schedule_id, each)}
        found = map(self.promise, sorted(self.rows.open_runs[schedule_id] | own))
        return [each for each in found if each is not None]

    def holder(self, pid: str, incarnation: str) -> Holder | None:
        drafted = self.holders.get((pid, incarnation))
        return drafted or self.rows.holders[pid].get(incarnation)

    def holders_of(self, pid: str) -> list[Holder]:
        return [self.holders.get((pid, key), row) for key, row in self.rows.holders[pid].items()]

    def branch(self, branch: str | None, but: str) -> list[Promise]:
        """The loaded promises of a branch in id order, except one of them."""
        if branch is None:
            return []
        ids = self.rows.branches.get(branch, ())
        found = [self.promise(key) for key in ids if key != but]
        return [promise for promise in found if promise is not None]

    def limit(self, name: str) -> Limit:
        """What of it is in use."""
        found = self.limits[name] if name in self.limits else self.rows.limit(name)
        return Limit(name) if found is None else found

    def has_limit(self, name: str) -> bool:
        return (self.limits[name] if name in self.limits else self.rows.limit(name)) is not None

    def rule(self, name: str) -> Limit | None:
        """Whose numbers count for it; None if nobody has defined it."""
        patterns = self.rows.patterns
        patterns = {**patterns, **self.patterns} if self.patterns else patterns
        return rule_for(name, self.limit(name), patterns.values())

    # --- writes --------------------------------------------------------------------------

    def insert(self, promise: Promise, task: Task | None) -> None:
        """A new promise; a placeholder of the same id is replaced, its waits stay."""
        stored = self.rows.promises.get(promise.id)
        (self.born if stored is None else self.adopted).add(promise.id)
        self.promises[promise.id] = promise
        if task is not None:
            self.put_task(task)

    def put(self, promise: Promise) -> None:
        self.promises[promise.id] = promise

    def move(self, promise: Promise, timeout_at: Millis) -> None:
        """Another deadline for a movable promise."""
        self.put(promise.moved(timeout_at))
        self.moved.add(promise.id)

    def put_task(self, task: Task) -> None:
        before = self.tasks.get(task.id) or self.rows.tasks.get(task.id)
        if task.limits is not None:
            task = permits.placed(self, task)
        self._count_held(before, -1)
        self._count_held(task, +1)
        self.tasks[task.id] = task.dated(before, self.now)
        if task.is_ours and task.is_ready:
            self.readied.append(task.id)
        if task.limits is not None:
            permits.moved(self, before, task)

    def put_polled(self, task: Task) -> None:
        """It waits for the same as before: only its polls are other ones."""
        if task.waiting_since is None:
            self.put_task(task)
        else:
            self.tasks[task.id] = task

    def silence(self, address: str) -> None:
        """Nobody will ever listen at this address again."""
        self.silenced.append(address)

    def put_holder(self, holder: Holder) -> None:
        self.holders[holder.pid, holder.incarnation] = holder

    def put_flow(self, flow: PublishedFlow) -> None:
        self.flows[flow.group, flow.name] = flow

    def put_schedule(self, schedule: Schedule) -> None:
        self.schedules[schedule.id] = schedule

    def delete(self, promise: Promise) -> None:
        """Its row and its task's; the caller knows that nobody waits for it."""
        self.deleted[promise.id] = promise

    def expire(self, promise: Promise, left: Promise) -> None:
        """Only `left` stays of it, in its place."""
        self.delete(promise)
        self.adopted.add(left.id)
        self.promises[left.id] = left

    def delete_holder(self, holder: Holder) -> None:
        self.deleted_holders.add((holder.pid, holder.incarnation))

    def put_pruning(self, pruning: Pruning) -> None:
        self.pruning[pruning.id] = pruning

    def drop_pruning(self, pruning_id: str) -> None:
        self.pruning[pruning_id] = None

    def put_limit(self, limit: Limit) -> None:
        self.limits[limit.name] = limit
        if limit.pattern:
            self.patterns[limit.name] = limit

    def drop_limit(self, name: str) -> None:
        self.limits[name] = None
        self.patterns.pop(name, None)

    def delete_schedule(self, schedule_id: str) -> None:
        self.schedules[schedule_id] = None

    def wait(self, wait: Wait) -> None:
        self.waits[wait.awaited, wait.awaiter] = wait

    def drop_waits(self, waits: Iterable[Wait]) -> None:
        self.dropped_waits.extend((wait.awaited, wait.awaiter) for wait in waits)

    def forget_waits_of(self, awaiter: str) -> None:
        self.forgotten.append(awaiter)

    def listen(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def drop_listeners(self, listeners: Iterable[Listener]) -> None:
        self.dropped_listeners.extend(listeners)

    def send(self, message: Message) -> None:
        self.messages[message.key] = message

    def unsend(self, key: MessageKey) -> None:
        self.messages[key] = None

    def _count_held(self, task: Task | None, by: int) -> None:
        if task is None or task.holder is None or task.pid is None:
            return
        key = (task.pid, task.holder)
        self.held[key] = self.held.get(key, 0) + by
