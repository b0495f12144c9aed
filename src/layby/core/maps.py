"""`layby.map.add`: the caller of `map` adds a portion of items to its join, which it makes first.

The same portion may come again, after a crash or a lost reply: what is there already stays. What
earlier joins of the call have left is taken over only by an item that is the same, with the same
number: its result, or else what it had recorded.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from layby.core import birth, joins, tag_names, validate
from layby.core.address import target_of
from layby.core.draft import Draft
from layby.core.fields import MAX_PRIORITY, NOTHING, Int64, Tags, Value
from layby.core.footprint import Footprint
from layby.core.ids import root_of
from layby.core.join_limits import own_limit
from layby.core.joins import MAX_EARLIER, MAX_ITEM_CHARS, MAX_ITEMS, item_id
from layby.core.kinds import Ids, Problems, Sender, declare
from layby.core.limit import MOST, Limit, limit_names
from layby.core.limits import define
from layby.core.model import EMPTY, Promise, Task, Wait
from layby.core.replies import JoinData, Reply, ok, refuse
from layby.core.runs import body_of, create_after
from layby.core.settlement import make_ready
from layby.core.tasks import FencedCommand, handles_claim

MAX_PORTION: Final = 1_000
"""Items that one command adds."""
MAX_LOOKED_AT: Final = 10_000
"""Items of earlier joins that one command looks at: all others wait for it meanwhile."""


@declare("layby.map.add", sender=Sender.CLIENT, answer=JoinData, unqueues=False)
class AddItems(FencedCommand, frozen=True):
    """Add items to a join of the task `id`; the first portion creates it with `param`.

    `first`: the index of the first of these items. `is_last`: none come after them. `earlier`:
    joins of the same call in tries that have failed, and in earlier lives: what succeeded there is
    not run again. `keeps`: those that left what else may be taken over: an item that runs goes on
    with what it had recorded there. Both have the latest first.
    `task` names what is mapped. `group`: of the workers that run the items, if not those of the
    caller. `limits`: those that each item runs under; `limit`: how many items of this join may be
    open at once, those that are parked included. `priority` and `slots`: of each item.
    """

    join_id: str
    task: str
    items: Annotated[tuple[Value, ...], Meta(max_length=MAX_PORTION)] = ()
    first: Int64 = 0
    is_last: bool = False
    param: Value = NOTHING
    collects: bool = False
    group: str | None = None
    limits: tuple[str, ...] = ()
    limit: Int64 | None = None
    priority: Int64 = 0
    slots: Int64 = 1
    earlier: Annotated[tuple[str, ...], Meta(max_length=MAX_EARLIER)] = ()
    keeps: Annotated[tuple[str, ...], Meta(max_length=MAX_EARLIER)] = ()

    def footprint(self, into: Footprint) -> None:
        if self._is_too_much:
            return  # it is refused, and should not cost what it would
        into.ids.update((self.id, self.join_id))
        into.pairs.add((self.id, self.join_id))
        into.limits.update(self.all_limits)
        into.defines = into.defines or self.limit is not None
        for index in self.indexes:
            into.maybe_new.add(item_id(self.join_id, index))
            into.pairs.add((item_id(self.join_id, index), self.join_id))
            into.valueless.update(item_id(each, index) for each in self._earlier_joins)
        if into.valueless:
            into.compared.update(map(birth.encoded, self.items))

    @property
    def _earlier_joins(self) -> frozenset[str]:
        """Each once."""
        return frozenset((*self.earlier, *self.keeps))

    @property
    def _is_too_much(self) -> bool:
        return len(self.items) > most_items(len(self._earlier_joins))

    @property
    def all_limits(self) -> tuple[str, ...]:
        own = () if self.limit is None else (own_limit(self.join_id),)
        return (*own, *self.limits)

    @property
    def indexes(self) -> range:
        return range(self.first, self.first + len(self.items))

    def named_ids(self) -> Ids:
        """Items have ids that begin with that of their join."""
        return (self.id, self.join_id, *self.earlier, *self.keeps)

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.count(len(self.items), MAX_PORTION, "items")
        for each in (self.earlier, self.keeps):
            yield from validate.count(len(each), MAX_EARLIER, "earlier joins")
        if self._is_too_much:
            earlier = len(self._earlier_joins)
            most = f"at most {most_items(earlier):,} at a time"
            yield f"{len(self.items):,} items with {earlier:,} earlier joins: send {most}"
        if not 0 <= self.first <= MAX_ITEMS - len(self.items):
            yield f"first must be between 0 and {MAX_ITEMS:,} less the number of items"
        for join_id in (self.join_id, *self.earlier, *self.keeps):
            yield from validate.identifier(item_id(join_id, MAX_ITEMS), "Join ID")
            if root_of(join_id) != root_of(self.id):
                yield f"Join ID '{join_id}' must be one of the run '{root_of(self.id)}'"
        if joins.caller_of(self.join_id) != self.id:
            yield f"Join ID must be '{self.id}:' and a name without ':'"
        yield from validate.identifier(self.task, "Name of the mapped task")
        yield from validate.size(self.param, "param")
        for index, item in zip(self.indexes, self.items, strict=True):
            yield from validate.size(item, f"item {index}", MAX_ITEM_CHARS)
        if self.group is not None:
            yield from validate.group(self.group)
        yield from limit_names(self.limits, "the mapped task") if self.limits else ()
        if abs(self.priority) > 2 * MAX_PRIORITY:
            yield f"priority must be between -{2 * MAX_PRIORITY} and {2 * MAX_PRIORITY}"
        yield from validate.slots(self.slots, "slots of items")
        if self.limit is not None and not 1 <= self.limit <= MOST:
            yield f"limit must be between 1 and {MOST:,}"


def most_items(earlier_joins: int) -> int:
    """That one command may add while it looks at so many earlier joins."""
    return max(1, min(MAX_PORTION, MAX_LOOKED_AT // max(1, earlier_joins)))


@handles_claim(AddItems)
def add(d: Draft, c: AddItems, caller: Task, promise: Promise) -> Reply:
    """To a join that has settled, or is complete, nothing is added."""
    if caller.group is None or caller.kind != "node" or caller.is_trigger:
        return refuse(422, f"'{c.id}' is not a task of a run: only those can map")
    if birth.is_absent(d.promise(c.join_id)):
        _create(d, c, caller, promise)
    join, call = d.task(c.join_id), d.promise(c.join_id)
    if join is None or call is None or not join.is_join:
        return refuse(409, f"Promise '{c.join_id}' exists, and is not a join")
    if caller.ahead:
        d.put_task(caller.begun())
    if call.is_pending and join.items is None:
        _add(d, c, join, call, target_of(c.group or caller.group), caller.name or "")
    join, call = d.tasks.get(c.join_id, join), d.promises.get(c.join_id, call)
    return ok(JoinData(replace(call, param=EMPTY), join.items))


def _create(d: Draft, c: AddItems, caller: Task, promise: Promise) -> None:
    """It has no name, so no take ever finds it."""
    assert caller.group is not None
    tags: Tags = {
        tag_names.TARGET: target_of(caller.group),
        tag_names.KIND: "join",
        tag_names.MAPS: c.task,
    }
    if c.collects:
        tags[tag_names.COLLECTS] = "true"
    if c.limit is not None:
        tags[tag_names.LIMITED] = str(c.limit)
    birth.create_join(d, c.join_id, promise.timeout_at, birth.encoded(c.param), tags)
    d.wait(Wait(c.id, c.join_id, "below"))
    if c.limit is not None:
        name = own_limit(c.join_id)
        define(d, Limit(name, defined=True, concurrency=c.limit, count_parked=True))


def _add(d: Draft, c: AddItems, join: Task, call: Promise, target: str, name: str) -> None:
    """They end when their caller would, at the latest."""
    tags: Tags = {tag_names.TARGET: target, tag_names.NAME: name, tag_names.KIND: "node"}
    if c.priority:
        tags[tag_names.PRIORITY] = str(c.priority)
    if c.slots != 1:
        tags[tag_names.SLOTS] = str(c.slots)
    if c.all_limits:
        tags[tag_names.LIMITS] = msgspec.json.encode(c.all_limits).decode()
    new = list(_missing(d, c))
    for index, item in new:
        key, source = item_id(join.id, index), _source(d, c, index, item)
        own = tags if source is None else tags | {tag_names.KEEPS: source.id}
        body = () if source is None else body_of(d, source)
        create_after(d, key, call.timeout_at, birth.encoded(item), own, d.now, body)
        d.wait(Wait(key, join.id, "all"))
    join = join.waiting_for(len(new))
    if c.is_last:
        join = join.complete(c.first + len(c.items))
    if join.state == "suspended" and joins.is_over(join):
        make_ready(d, join)
    else:
        d.put_task(join)


def _missing(d: Draft, c: AddItems) -> Iterator[tuple[int, Value]]:
    for index, item in zip(c.indexes, c.items, strict=True):
        key = item_id(c.join_id, index)
        if not _is_done(d, c, index, item) and birth.is_absent(d.promise(key)):
            yield index, item


def _is_done(d: Draft, c: AddItems, index: int, item: Value) -> bool:
    """Whether it has succeeded in an earlier join. Another item that had its number has not."""
    before = _had_number(d, c.earlier, index)
    done = next((each for each in before if each.state == "resolved"), None)
    return done is not None and done.param == birth.encoded(item)


def _source(d: Draft, c: AddItems, index: int, item: Value) -> Promise | None:
    """The same item in the latest join that had it, if it may have recorded something there."""
    before = _had_number(d, c.keeps, index)
    same = next((each for each in before if each.param == birth.encoded(item)), None)
    task = None if same is None else d.task(same.id)
    has_begun = task is not None and task.try_number > 0
    return same if same is not None and (has_begun or birth.keeps(same)) else None


def _had_number(d: Draft, join_ids: Iterable[str], index: int) -> Iterator[Promise]:
    """Items of these joins with this number."""
    found = (d.promise(item_id(each, index)) for each in join_ids)
    return (each for each in found if each is not None)
