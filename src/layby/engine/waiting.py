"""Requests that wait inside the engine: takes for something ready, watches for a settlement.

Owned by the writer alone, so nothing can happen between "not yet" and "wait for it".
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import nsmallest
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from layby.core.changes import Changes
from layby.core.commands import Command, HeartbeatTasks, RenewLeases, Take, WatchPromise
from layby.core.model import FAR, Millis, Promise, Task
from layby.core.queries import Query
from layby.core.queue import Offer, TaskPlace, is_early, is_for, place_of
from layby.core.replies import PromiseData, RenewedInPart, Reply, RunWatchData, TakeData, ok
from layby.engine.items import Item
from layby.store.announcement import Announcement

SWEPT_AFTER: Final = 1_000
"""When so many have come, those that have hung up are dropped."""


class Sweeps:
    """When to drop those that have hung up: once as many have come as were left the last time.

    So they take no more room than those that wait, and each that comes pays for two looks at most.
    """

    def __init__(self) -> None:
        self._came = self._left = 0

    def is_due(self) -> bool:
        """Asked for each that comes."""
        self._came += 1
        return self._came > max(self._left, SWEPT_AFTER)

    def done(self, left: int) -> None:
        self._came, self._left = 0, left


class WakeUpCall(Struct, eq=False):
    """A ready task for which takes are woken, one after the other, until it is taken."""

    task: Task
    woken: list[Item] = field(default_factory=list)
    """Each of them once. The last one is about to look."""


WakeUpCalls = dict[str, WakeUpCall]
"""By the ids of the tasks, in the order of turns."""


class WaitingTakes:
    """Oldest first. A commit that makes a task ready wakes one take that has room for it.

    Until that one looks, time has passed, and there may be another commit: it may find something
    else, or keep its slots for that. Then the call is passed on to the next one with room.

    If none has a free slot, it wakes one that may be handed something ahead; failing that, all
    takes with somebody in line hear of it. When a task that needs several slots is no longer ready,
    all takes look again for which it was in front of others.
    """

    def __init__(self) -> None:
        self._until: dict[Item, Millis] = {}
        self._look_at: dict[Item, Millis] = {}
        """Those that want to look again at a time, whatever is committed until then."""
        self._in_front: dict[Item, TaskPlace] = {}
        """What they have left because it needs more slots than they offer: nobody passes it."""
        self._calls: WakeUpCalls = {}
        """Of those that were woken and have not looked yet."""
        self._sweeps = Sweeps()

    def __len__(self) -> int:
        return len(self._until)

    def add(
        self,
        item: Item,
        now: Millis,
        look_at: Millis | None = None,
        in_front: TaskPlace | None = None,
    ) -> list[Item]:
        """Let it wait, and return an older take of the same holder, which it replaces.

        A take that is retried keeps the end of its wait that was set first.
        """
        if self._sweeps.is_due():
            self.drop_abandoned()
        if look_at is not None:
            self._look_at[item] = look_at
        if in_front is not None:
            self._in_front[item] = in_front
        older = [each for each in self._until if _holder(each) == _holder(item)]
        if item.until is None:
            item.until = now + _take(item).wait_ms
            item.request = replace(_take(item), renews=False)
        self._until[item] = item.until
        return self._remove(older)

    @property
    def earliest(self) -> Millis:
        until = min(self._until.values(), default=FAR)
        return min(until, *self._look_at.values()) if self._look_at else until

    @property
    def offers(self) -> list[Offer]:
        """What they have room for: none of it is handed out ahead of a slot.

        What is kept for the oldest task is room for nothing else.
        """
        items = (each for each in self._until if each not in self._in_front or not _oldest(each))
        takes = map(_take, items)
        return [(take.holder, take.key, take.free) for take in takes if take.free > 0]

    @property
    def free(self) -> int:
        """Also read by other threads, so it sums a copy."""
        return sum(_take(item).free for item in list(self._until))

    def expired(self, now: Millis) -> list[Item]:
        return self._remove([item for item, until in self._until.items() if until <= now])

    def looking(self, now: Millis) -> list[Item]:
        """Those that want to look again by now."""
        return self._remove([item for item, at in self._look_at.items() if at <= now])

    def drop_abandoned(self) -> None:
        self._remove([item for item in self._until if item.is_abandoned])
        self._sweeps.done(len(self))

    def all(self) -> list[Item]:
        self._calls.clear()
        return self._remove(list(self._until))

    def woken_by(self, changes: Changes, looked: Sequence[Item] = ()) -> list[Item]:
        """`looked`: the requests of this commit; what those among them have left that were woken
        for it, others are woken for.
        """
        gone = {pid for (pid, _), holder in changes.holders.items() if not holder.is_alive}
        woken = dict.fromkeys(item for item in self._until if _take(item).pid in gone)
        passed_on = self._passed_on(changes, looked) if self._calls else []
        if not self._until or not (changes.tasks or changes.closed or passed_on):
            return self._remove(list(woken))
        woken |= dict.fromkeys(self._kept_for(changes.large_gone))
        woken |= dict.fromkeys(self._kept_for_names(changes.closed))
        woken |= dict.fromkeys(self._called(_in_order(changes, passed_on)))
        return self._remove(list(woken))

    def _passed_on(self, changes: Changes, looked: Sequence[Item]) -> list[WakeUpCall]:
        for task_id in self._calls.keys() & changes.tasks.keys():
            del self._calls[task_id]
        items = set(looked)
        passed_on = [call for call in self._calls.values() if call.woken[-1] in items]
        for call in passed_on:
            del self._calls[call.task.id]
        return passed_on

    def _called(self, calls: WakeUpCalls) -> Iterator[Item]:
        """Those that are to look, because of tasks that are ready."""
        for item in self._until if calls else ():
            take, in_front = _take(item), self._in_front.get(item)
            served = _served(take, take.free, _new(item, calls), in_front)
            yield from self._call(item, calls, served)
        for item in self._until if calls else ():
            served = _served(_take(item), _ahead(_take(item)), _new(item, calls))
            yield from self._call(item, calls, served)
        for item in self._until if calls else ():
            take = _take(item)
            if take.in_line and any(is_for(take.key, call.task) for call in calls.values()):
                yield item

    def _call(self, item: Item, calls: WakeUpCalls, served: Iterable[Task]) -> Iterator[Item]:
        for task in list(served):
            call = self._calls[task.id] = calls.pop(task.id)
            call.woken.append(item)
            yield item

    def _kept_for(self, gone: Sequence[Task]) -> Iterator[Item]:
        """Takes that may have kept free slots for one of these."""
        for item in self._until if gone else ():
            take = _take(item)
            if _may_keep(take) and any(is_for(take.key, task) for task in gone):
                yield item

    def _kept_for_names(self, names: Collection[str]) -> Iterator[Item]:
        """Takes that may have kept free slots for tasks of these names."""
        for item in self._until if names else ():
            take = _take(item)
            if _may_keep(take) and not set(names).isdisjoint(take.names):
                yield item

    def concerned_by(self, announcement: Announcement) -> list[Item]:
        """Those that may find something, or are gone, after a commit elsewhere."""
        if announcement.everything:
            return self.all()
        groups, pids = announcement.groups, announcement.pids
        concerned = dict.fromkeys(self._kept_for_names(announcement.closed))
        concerned |= dict.fromkeys(
            item for item in self._until if _take(item).group in groups or _take(item).pid in pids
        )
        return self._remove(list(concerned))

    def _remove(self, items: list[Item]) -> list[Item]:
        for item in items:
            del self._until[item]
            self._look_at.pop(item, None)
            self._in_front.pop(item, None)
        return items


class Watches:
    """Which requests wait for which promise."""

    def __init__(self) -> None:
        self._by_id: dict[str, Item | list[Item]] = {}
        """Usually only one waits for a promise, which is not worth a list of its own."""
        self._sweeps = Sweeps()

    def __len__(self) -> int:
        return sum(len(_items(each)) for each in self._by_id.values())

    def __contains__(self, promise_id: object) -> bool:
        return promise_id in self._by_id

    def add(self, item: Item) -> None:
        request = item.request
        assert isinstance(request, WatchPromise)
        if self._sweeps.is_due():
            self.drop_abandoned()
        there = self._by_id.get(request.id)
        if there is None:
            self._by_id[request.id] = item
        elif isinstance(there, list):
            there.append(item)
        else:
            self._by_id[request.id] = [there, item]

    def settled_by(self, changes: Changes) -> Iterator[tuple[Item, Reply]]:
        if not self._by_id:
            return
        yield from self.settled(changes.promises[each] for each in changes.settled)

    def settled(self, promises: Iterable[Promise]) -> Iterator[tuple[Item, Reply]]:
        for promise in promises:
            for item in _items(self._by_id.pop(promise.id, [])):
                yield item, ok(item.request.answer(promise))

    def watched(self, ids: Iterable[str]) -> list[str]:
        """Which of these somebody watches."""
        return [each for each in ids if each in self._by_id]

    def next_watched(self, after: str, limit: int) -> list[str]:
        """Some of all that are watched: those after an id, in order."""
        return nsmallest(limit, (each for each in self._by_id if each > after))

    def drop_abandoned(self) -> None:
        kept = {
            key: [item for item in _items(there) if not item.is_abandoned]
            for key, there in self._by_id.items()
        }
        self._by_id = {
            key: items[0] if len(items) == 1 else items for key, items in kept.items() if items
        }
        self._sweeps.done(len(self))

    def all(self) -> list[Item]:
        items = [item for there in self._by_id.values() for item in _items(there)]
        self._by_id.clear()
        return items


def should_wait(take: Take, reply: Reply) -> bool:
    """It got nothing; but a worker with somebody in line wants to hear of what is left."""
    if not isinstance(reply.data, TakeData) or reply.data.claims:
        return False
    has_news = take.has_news(reply.data.next_place, reply.data.oldest_place)
    return reply.data.again or (take.wait_ms > 0 and not has_news)


def in_front(take: Take, data: TakeData) -> TaskPlace | None:
    """What it has left although it offers slots."""
    if take.free == 0:
        return None
    return data.oldest_place if take.oldest else data.next_place


def rest_of(request: Command | Query, reply: Reply) -> Command | None:
    """What is left to do before it is answered."""
    if isinstance(request, HeartbeatTasks | RenewLeases) and isinstance(reply.data, RenewedInPart):
        return RenewLeases(pid=request.pid, after=reply.data.until)
    return None


def should_hold(request: WatchPromise, reply: Reply) -> bool:
    data = reply.data
    is_told = isinstance(data, PromiseData | RunWatchData) and data.promise.is_pending
    return is_told and request.waits


def _items(there: Item | list[Item]) -> list[Item]:
    return there if isinstance(there, list) else [there]


def _take(item: Item) -> Take:
    request = item.request
    assert isinstance(request, Take)
    return request


def _holder(item: Item) -> tuple[str, str]:
    return _take(item).holder


def _may_keep(take: Take) -> bool:
    """Whether free slots may be kept for a task in the store: what it offers, or what somebody in
    line would have.
    """
    return take.free > 0 or take.left is not None


def _oldest(item: Item) -> bool:
    return _take(item).oldest


def _ahead(take: Take) -> int:
    return take.ahead if take.before is None else 0


def _in_order(changes: Changes, passed_on: Sequence[WakeUpCall]) -> WakeUpCalls:
    """With what has become ready, by turns: takes are handed it in that order."""
    tasks = (changes.tasks[key] for key in changes.readied)
    calls = [*passed_on, *(WakeUpCall(task) for task in tasks if task.is_ready)]
    calls.sort(key=lambda call: place_of(call.task).turn)
    return {call.task.id: call for call in calls}


def _new(item: Item, calls: WakeUpCalls) -> Iterator[Task]:
    """What it has not been woken for yet."""
    return (call.task for call in calls.values() if item not in call.woken)


def _served(
    take: Take, room: int, ready: Iterable[Task], in_front: TaskPlace | None = None
) -> Iterator[Task]:
    """What this take would get of the ready tasks; roots need no room. It leaves a task that needs
    more than it has room for, and whatever comes after that.
    """
    for task in _by_age(ready) if take.oldest else ready:
        if not is_for(take.key, task):
            continue
        if task.is_root:
            yield task
        elif room > 0 and _suits(take, task, in_front):
            slots = take.slots_for(task)
            if slots <= room:
                yield task
            room = 0 if take.oldest or slots > room else room - slots


def _by_age(tasks: Iterable[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: task.ready_at or 0)


def _suits(take: Take, task: Task, in_front: TaskPlace | None) -> bool:
    place = place_of(task)
    if take.oldest:
        bounds = (take.before, None if in_front is None else in_front.ready_at)
        return all(bound is None or place.ready_at < bound for bound in bounds)
    is_first = in_front is None or place.turn < in_front.turn
    return is_first and is_early(place.turn, take.first_not)
