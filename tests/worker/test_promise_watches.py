"""Waits for promises as bare futures: answers, refusals, outages, timeouts."""

import asyncio
from itertools import islice
from typing import Any, cast

import pytest

from layby.client.interface import PromiseListener, WatchingClient
from layby.client.patience import PAUSES
from layby.core.model import Promise
from layby.core.replies import PromiseData, Reply, ok, refuse
from layby.errors import DeferTimeout, EngineStopped, StoreUnavailable
from layby.testing import current_clock, virtual_test
from layby.worker.promise_watches import PromiseWatches, TimedPromiseWatch
from layby.worker.wait_deadlines import WaitDeadlines


class Store:
    """Answers when told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, PromiseListener]] = []
        self.cancelled = 0
        self.found: Reply | Exception = ok(PromiseData(promise(None)))

    async def send(self, request: Any) -> Reply:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def watch(self, promise_id: str, listener: PromiseListener) -> "Store":
        self.asked.append((promise_id, listener))
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    async def close(self) -> None: ...

    def tell(self, answer: Reply | BaseException) -> None:
        asked, self.asked = self.asked, []
        for _, listener in asked:
            listener.heard(answer)


def promise(settled_at: int | None) -> Promise:
    state = "pending" if settled_at is None else "resolved"
    return Promise("p", "p", "{}", "{}", 9, 0, state=state, settled_at=settled_at)


def settled(at: int) -> Reply:
    return ok(PromiseData(promise(at)))


def watching(store: Store) -> PromiseWatches:
    client = cast("WatchingClient", store)
    return PromiseWatches(client, lambda: current_clock().now(), asyncio.ensure_future)


def until(watches: PromiseWatches, seconds: float) -> TimedPromiseWatch:
    book = WaitDeadlines({}, lambda: None)
    at = current_clock().now() + round(seconds * 1000)
    return watches.watch_until("p", book.begin("r", at, book.end), lambda: "too late")


@virtual_test
async def test_an_answer_is_the_result_and_a_refusal_too():
    store = Store()
    watches = watching(store)
    for answer in (settled(1), refuse(403, "Forbidden")):
        watch = watches.watch("p")
        store.tell(answer)
        assert await watch is answer


@virtual_test
async def test_what_an_outage_has_lost_is_asked_again_in_one_go():
    """Ever less often; then everybody hears."""
    store = Store()
    watches = watching(store)
    waits = [watches.watch("p") for _ in range(100)]
    waits[0].cancel()
    for pause in islice(PAUSES, 3):
        store.tell(StoreUnavailable("out"))
        await asyncio.sleep(pause - 0.01)
        assert store.asked == []
        await asyncio.sleep(0.02)
        assert len(store.asked) == 99
    store.tell(refuse(401, "who are you?"))  # a token that is not known for the moment
    await asyncio.sleep(PAUSES.longest)
    store.tell(settled(1))
    assert len(await asyncio.gather(*waits[1:])) == 99
    with pytest.raises(asyncio.CancelledError):
        await waits[0]


@virtual_test
async def test_a_stopped_engine_is_told_to_the_body():
    store = Store()
    watches = watching(store)
    waits = [watches.watch("p"), until(watches, 9)]
    store.tell(EngineStopped("closed"))
    for watch in waits:
        with pytest.raises(EngineStopped):
            await watch
    assert watches._timed == {}


@virtual_test
async def test_cancelling_ends_the_watch():
    store = Store()
    watches = watching(store)
    for begin in (lambda: watches.watch("p"), lambda: until(watches, 9)):
        watch = begin()
        watch.cancel()
        store.tell(settled(1))
        assert watch.cancelled()
    assert store.cancelled == 2
    assert watches._timed == {}


@virtual_test
async def test_many_that_ended_long_before_their_deadline_leave_nothing_behind():
    store = Store()
    watches = watching(store)
    for _ in range(1_000):
        until(watches, 1_000_000)
        store.tell(settled(1))
    assert len(watches._deadlines) <= 65


@pytest.mark.parametrize(
    ("found", "is_late"),
    [
        (settled(5_000), False),
        (settled(5_001), True),
        (ok(PromiseData(promise(None))), True),
    ],
    ids=["in time", "late", "pending"],
)
@virtual_test
async def test_who_is_out_of_time_asks_once_more(found, is_late):
    """The news may be under way."""
    clock, store = current_clock(), Store()
    clock.start = 0
    watches = watching(store)
    watch = until(watches, 5)
    store.found = found
    if is_late:
        with pytest.raises(DeferTimeout, match="too late"):
            await watch
    else:
        assert await watch is found
    assert clock.elapsed == 5
    assert store.cancelled == 1


@pytest.mark.parametrize("answer", [StoreUnavailable("out"), refuse(401, "who are you?")])
@virtual_test
async def test_whether_it_was_settled_in_time_is_asked_until_the_store_answers(answer):
    """guarantees.md: "A promise that was settled after it counts as a timeout": no other does."""
    clock, store = current_clock(), Store()
    clock.start = 0
    watch = until(watching(store), 5)
    store.found = answer
    await asyncio.sleep(60)
    assert not watch.done()
    store.found = settled(4_999)
    assert await watch is store.found
    assert store.cancelled == 1


@virtual_test
async def test_an_answer_that_was_settled_too_late_is_a_timeout():
    store = Store()
    current_clock().start = 0
    watch = until(watching(store), 5)
    store.tell(settled(5_001))
    with pytest.raises(DeferTimeout):
        await watch


@virtual_test
async def test_the_store_may_say_another_deadline():
    clock, store = current_clock(), Store()
    watches = watching(store)
    watch = until(watches, 5)
    watches.move(watch, clock.now() + 7_000)
    with pytest.raises(DeferTimeout):
        await watch
    assert clock.elapsed == 7


@virtual_test
async def test_a_person_may_move_a_deadline():
    clock, store = current_clock(), Store()
    watches = watching(store)
    watch = until(watches, 60)
    watches.move_by_hand("r", clock.now() + 3_000)
    await asyncio.sleep(3.1)
    store.tell(ok(PromiseData(promise(None))))
    with pytest.raises(DeferTimeout):
        await watch
    assert clock.elapsed < 60
