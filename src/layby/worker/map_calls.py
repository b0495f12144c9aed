"""Calls of `map`: items become tasks below the caller, in portions, and a join waits for them.

The join has the caller's id and the key of the call, so a later run of the body finds it: what is
there already is not made again, and what has ended is not run again. Where the join of a try after
a failure, or of a later life is, and what it takes over, says `earlier_joins`.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TypedDict, cast

from msgspec import Struct

from layby.core import values
from layby.core.commands import AddItems, Value
from layby.core.joins import ITEM_FAILED, MAX_ITEM_BYTES, MAX_ITEMS, mapped_by
from layby.core.maps import MAX_PORTION, most_items
from layby.core.model import Promise
from layby.core.queries import ReadItems
from layby.core.replies import JoinData, PromisePage
from layby.core.waits import WaitingOn
from layby.errors import ContextError, ItemFailed, UsageError, error_for
from layby.program import Mapped, may_be_one_function
from layby.wire import json_values
from layby.wire.durations import whole_number
from layby.worker.attempt import Attempt
from layby.worker.begun_waits import settled_promise
from layby.worker.earlier_joins import JoinPlace, JoinSearch
from layby.worker.promise_watches import PromiseWatch
from layby.worker.rejections import value_of
from layby.worker.replay import Record, check_key, digest_of

OnError = Literal["raise", "collect"]
ON_ERROR: Final = ("raise", "collect")
MAX_PORTION_CHARS: Final = 2**18
"""A portion ends with the item that reaches this."""
ITEMS_PER_PORTION: Final = min(500, MAX_PORTION)
PAGE: Final = 1_000
WATCHED: Final = 10_000
"""Items whose ends `map_unordered` waits for at a time: those with the lowest numbers."""
MAX_KEY_BYTES: Final = 100
_TWICE: Final = (
    "{}: map was called twice with key='{}', and with different items: a key names one call, so "
    "give each a key= of its own"
)


class MapOptions(TypedDict, total=False):
    """What `map` takes by name."""

    limit: int | None
    on_error: OnError
    key: str | None


class ItemPortion(Struct, frozen=True):
    """Some items, encoded: those that come after `first` others."""

    first: int
    items: tuple[Value, ...]
    is_last: bool

    def parts(self, most: int) -> "Iterator[ItemPortion]":
        """The same in portions of at most so many items."""
        for at in range(0, max(1, len(self.items)), most):
            items, end = self.items[at : at + most], at + most
            yield ItemPortion(self.first + at, items, self.is_last and end >= len(self.items))


class Join(Struct, frozen=True):
    """A call of `map` whose items are all there, or that has ended."""

    promise: Promise
    items: int | None
    earlier: tuple[str, ...] = ()
    """Joins where those of its items are that succeeded before, the latest first."""
    is_given_up: bool = False
    """An earlier run of the body has given it up: this one waits until it does so, too."""

    @property
    def id(self) -> str:
        return self.promise.id


class GivenItems:
    """The items that one call of map was given, and a fingerprint of them."""

    def __init__(self, items: object) -> None:
        self._portions = item_portions(items)
        self._hash = hashlib.sha256()
        self.are_added: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def portions(self) -> Iterator[ItemPortion]:
        """Those that were not read yet."""
        for portion in self._portions:
            for item in portion.items:
                self._hash.update((item.data or "").encode())
                self._hash.update(b"\n")
            yield portion

    def digest(self) -> bytes:
        """Of all; what was not needed so far is read now."""
        for _ in self.portions():
            pass
        return self._hash.digest()


class MapCall:
    """One call: what is mapped, and how failures of items are told."""

    def __init__(self, attempt: Attempt, task: object, on_error: str, limit: object) -> None:
        if on_error not in ON_ERROR:
            raise UsageError(f'map: on_error is "raise" or "collect", not {on_error!r}')
        self._limit = None if limit is None else whole_number(limit, "map: limit", 1)
        self._attempt = attempt
        self._collects = on_error == "collect"
        self._mapped: Mapped = attempt.loaded.mapped(task)

    def waiting_for(self, join: Join) -> WaitingOn:
        sentence = f"waiting for the items of {self._mapped.task_id}"
        return WaitingOn("map", sentence, awaited=join.promise.id)

    # --- making it -----------------------------------------------------------------------

    async def begin(self, key: str, items: object) -> Join:
        """Make the join and its items, as far as an earlier run of the body has not."""
        given = GivenItems(items)
        if not key.startswith("key."):
            return await self._begin(key, given)  # it has a number of its own
        before = self._attempt.map_items = self._attempt.map_items or {}
        while (first := before.setdefault(key, given)) is not given:
            await first.are_added
            if before.get(key) is first:
                self._check_same_items(key, first, given)
                return await self._begin(key, given, is_there=True)
        try:
            return await self._begin(key, given)
        except BaseException:
            del before[key]
            raise
        finally:
            given.are_added.set_result(None)

    def _check_same_items(self, key: str, first: "GivenItems", given: "GivenItems") -> None:
        if first.digest() != given.digest():
            raise UsageError(_TWICE.format(self._attempt.id, key.removeprefix("key.")))

    async def _begin(self, key: str, given: "GivenItems", *, is_there: bool = False) -> Join:
        place = await self._find(key, is_there=is_there)
        if place.is_there:
            with self.withdrawing(place):
                join = await self._add(place, ItemPortion(0, (), is_last=False))
            if not join.promise.is_pending or join.items is not None:
                is_given_up = not is_there and join.promise.value == values.given_up()
                return Join(join.promise, join.items, place.earlier, is_given_up)
        else:
            self._attempt.check_fits(self._mapped)
        found = await self._add_all(place, given)
        return Join(found.promise, found.items, place.earlier)

    async def _add_all(self, place: JoinPlace, given: "GivenItems") -> JoinData:
        found = None
        most = most_items(len({*place.earlier, *place.keeps}))
        with self.withdrawing(place):
            try:
                for portion in (part for each in given.portions() for part in each.parts(most)):
                    found = await self._add(place, portion)
                    if not found.promise.is_pending or found.items is not None:
                        break
            except Exception:
                if found is not None:
                    self.withdraw(place.id)
                raise
        assert found is not None  # there is always a last portion
        return found

    async def _find(self, key: str, *, is_there: bool) -> JoinPlace:
        search = JoinSearch(self._attempt, key, self._mapped)
        with self.withdrawing(search):
            return await search.find(may_be_there=is_there or self._attempt.try_number > 1)

    def _check_same(self, join: Promise) -> None:
        name = mapped_by(join)
        if may_be_one_function(name, self._mapped.name):
            return
        found, now = (Record("map", digest_of(each)) for each in (name, self._mapped.name))
        is_earlier = self._attempt.try_number > 1
        self._attempt.replay.check(join.id, found, now, is_earlier=is_earlier)

    async def _add(self, place: JoinPlace, portion: ItemPortion) -> JoinData:
        command = AddItems(
            id=self._attempt.id,
            version=self._attempt.version,
            join_id=place.id,
            task=self._mapped.name,
            items=portion.items,
            first=portion.first,
            is_last=portion.is_last,
            param=self._mapped.param if portion.first == 0 else Value(),
            collects=self._collects,
            group=self._mapped.group,
            limits=self._mapped.limits,
            limit=self._limit,
            priority=self._mapped.priority,
            slots=self._mapped.slots,
            earlier=place.earlier,
            keeps=place.keeps,
        )
        added = await self._attempt.add_items(command)
        self._check_same(added.promise)
        return added

    @contextmanager
    def withdrawing(self, place: JoinPlace | JoinSearch | Join) -> Generator[None]:
        """Whoever gives up inside gives the map up, even if nobody knows yet whether it is there:
        what has been asked for is done before what is asked for now.
        """
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.withdraw(place.id)
            raise

    def withdraw(self, join_id: str) -> None:
        """The body has given it up. Not when the body is ended: a later run goes on with it."""
        if not self._attempt.is_ending:
            self._attempt.annotations.withdraw_now(join_id)

    def end_of(self, join: Join) -> "asyncio.Future[Any]":
        if join.is_given_up:
            return asyncio.get_running_loop().create_future()
        return self._attempt.watch(join.promise.id)

    # --- its results ---------------------------------------------------------------------

    async def results(self, join: Join, ended: Promise) -> list[Any]:
        """In the order of the items; raises what ended the join, unless failures are collected."""
        if ended.state != "resolved":
            raise await self._failure(ended)
        found = [self.result_of(number, each) async for number, each in self.items(join)]
        told: Any = value_of(ended)
        if len(found) != told["items"]:
            missing = f"{len(found):,} of {told['items']:,} items are there"
            raise UsageError(f"{ended.id}: {missing}; was the run pruned?")
        return found

    async def items(self, join: Join) -> AsyncIterator[tuple[int, Promise]]:
        """Every item as it stands, with its number."""
        first: int | None = 0
        while first is not None:
            query = ReadItems(id=join.promise.id, first=first, count=PAGE, earlier=join.earlier)
            reply = await self._attempt.send(query)
            if not isinstance(page := reply.data, PromisePage):
                raise error_for(reply.status, f"the items of {query.id}: {reply.data}")
            for number, promise in enumerate(page.promises, first):
                if number == join.items:
                    return  # there were more in a try that has failed
                yield number, promise
            first = None if page.cursor is None else int(page.cursor)

    def result_of(self, number: int, item: Promise) -> Any:
        if item.state == "resolved":
            return value_of(item)
        if self._collects:
            return failure_of(number, item)
        raise failure_of(number, item)

    async def _failure(self, ended: Promise) -> Exception:
        """The failure of the item that ended the join, if one did."""
        told = json_values.read_error(ended.value)
        item_id = str(told.details.get("item") or "")
        item = await self._attempt.read(item_id) if told.name == ITEM_FAILED and item_id else None
        if item is not None and not item.is_pending:
            return failure_of(int(item_id.rpartition(":")[2]), item)
        try:
            value_of(ended)
        except Exception as error:  # noqa: BLE001 - what waiting for the join would raise
            return error
        raise AssertionError  # it was not resolved

    # --- its items as they end -----------------------------------------------------------

    def items_as_they_end(self, join: Join) -> "EndedItems":
        return EndedItems(self._attempt, join)


class EndedItems:
    """Items of a join as they end, and futures that say when there are more.

    Those that were cancelled with the join come last, whenever that was; or never, if an earlier
    run of the body has given the join up: it did not hear of them either.
    """

    def __init__(self, attempt: Attempt, join: Join) -> None:
        self._attempt = attempt
        self._with_join = values.map_has_ended(join.promise.id)
        self._is_given_up = join.is_given_up
        self._cut: list[tuple[int, Promise]] = []
        """Those that were cancelled with the join."""
        self._ended: list[tuple[int, Promise]] = []
        self._unwatched: deque[tuple[int, str]] = deque()
        self._watches: dict[int, PromiseWatch] = {}
        self._more: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        """Why no more ends will be heard of."""

    async def read(self, items: AsyncIterator[tuple[int, Promise]]) -> None:
        async for number, item in items:
            if item.is_pending:
                self._unwatched.append((number, item.id))
            else:
                self._note(number, item)

    def _note(self, number: int, item: Promise) -> None:
        is_cut = item.value == self._with_join
        (self._cut if is_cut else self._ended).append((number, item))

    def take(self) -> list[tuple[int, Promise]]:
        """Those that have ended since the last call, in the order in which they did."""
        self._watch_more()
        if self._has_only_cut and not self._is_given_up:
            self._ended, self._cut = self._cut, []
        ended = sorted(self._ended, key=lambda each: (each[1].settled_at or 0, each[0]))
        self._ended = []
        return ended

    @property
    def is_empty(self) -> bool:
        return not (self._ended or self._watches or self._unwatched or self._cut)

    @property
    def _has_only_cut(self) -> bool:
        return bool(self._cut) and not (self._ended or self._watches or self._unwatched)

    def more(self) -> "asyncio.Future[None]":
        """Done when `take` gives something."""
        self._more = asyncio.get_running_loop().create_future()
        self._tell()
        return self._more

    def close(self) -> None:
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()

    def _watch_more(self) -> None:
        while self._unwatched and len(self._watches) < WATCHED:
            number, item_id = self._unwatched.popleft()
            watch = self._watches[number] = self._attempt.watch(item_id)
            watch.add_done_callback(lambda _, number=number: self._heard(number))

    def _heard(self, number: int) -> None:
        watch = self._watches.pop(number, None)
        if watch is None or watch.cancelled():
            return
        self._error = watch.exception() or self._error
        if watch.exception() is None:
            self._note(number, settled_promise(watch.result(), watch.promise_id))
        self._tell()

    def _tell(self) -> None:
        """Whoever waits for more, if anybody does."""
        if self._more is None or self._more.done():
            return
        if self._ended or (self._has_only_cut and not self._is_given_up):
            self._more.set_result(None)
        elif self._error is not None:
            self._more.set_exception(self._error)


def checked_key(key: str | None) -> str | None:
    return None if key is None else check_key(key, "key of map", MAX_KEY_BYTES)


def item_portions(items: object) -> Iterator[ItemPortion]:
    """All items, encoded, in portions of bounded size; the last one may be empty."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        what = "map: items must be a list or another iterable, got"
        read = "; read it first: [each async for each in …]"
        raise UsageError(f"{what} {items!r:.60}{read if isinstance(items, AsyncIterable) else ''}")
    first, portion, size = 0, list[Value](), 0
    for index, item in enumerate(cast("Iterable[object]", items)):
        if index == MAX_ITEMS:
            raise UsageError(f"map: there are more than {MAX_ITEMS:,} items: map some at a time")
        if portion and (len(portion) == ITEMS_PER_PORTION or size >= MAX_PORTION_CHARS):
            yield ItemPortion(first, tuple(portion), is_last=False)
            first, portion, size = index, [], 0
        value = _encoded(index, item)
        portion.append(value)
        size += len(value.data or "")
    yield ItemPortion(first, tuple(portion), is_last=True)


def _encoded(index: int, item: object) -> Value:
    try:
        encoded = json_values.encode_bounded(item, f"item {index}", MAX_ITEM_BYTES)
    except ContextError as error:
        raise ContextError(f"map: {error}") from None
    return json_values.wrap(encoded)


def failure_of(number: int, item: Promise) -> ItemFailed:
    if item.state == "rejected_timedout":
        return ItemFailed(number, item.id, "TaskTimeout", "the run's deadline has passed")
    told = json_values.read_error(item.value)
    return ItemFailed(number, item.id, told.name, told.message, told.stack)
