"""Reads beside the writer: they hold up no write and no quick read, and see what came before."""

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from layby.core import queries
from layby.core.kinds import Query, Sender
from layby.core.queries import (
    ExplainPromise,
    ListRuns,
    ListWaiting,
    Reader,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
    SnapDebug,
)
from layby.core.replies import OK, Reply
from layby.core.stats import GetStats
from layby.engine import reads
from layby.engine.items import NOT_BEGUN, Answer, Item
from layby.engine.read_turns import THREADS
from layby.errors import EngineStopped, StoreUnavailable
from layby.store.api import StoreReader
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, World, Wrapped, resolve

PATIENCE_S = 5.0


class HeldRead(Query, frozen=True):
    """A read that takes until it is let go."""

    kind = "test.held"
    sender = Sender.INTERNAL
    begun: threading.Event
    let_go: threading.Event

    def read(self, reader: Reader, _: int, /) -> Reply:
        before = reader.dump()
        self.begun.set()
        assert self.let_go.wait(PATIENCE_S)
        return OK if reader.dump() == before else Reply(500, "it saw a later write")


def held() -> HeldRead:
    return HeldRead(begun=threading.Event(), let_go=threading.Event())


def ask(world: World, query: Query, caller: Hashable = None) -> "Future[Any]":
    future: Future[Any] = Future()
    world.engine.submit([Item(query, resolve, future, 0, caller)])
    return future


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_read_that_lasts_holds_up_no_write(backend) -> None:
    """A write commits while the read goes on, and the read goes on with what it saw first."""
    with World(backend, threaded=True) as world:
        world.ok(r.promise("before"))
        read = held()
        reading = ask(world, read)
        try:
            assert read.begun.wait(PATIENCE_S)
            (written,) = world.submit([(r.promise("after"), 0)])
            assert written.result(PATIENCE_S).status == 200
            assert not reading.done()
        finally:
            read.let_go.set()
        assert reading.result(PATIENCE_S) == OK
        assert set(world.dump().promises) == {"before", "after"}


@pytest.mark.parametrize(
    "query",
    [
        SearchPromises(),
        SearchTasks(),
        SearchSchedules(),
        ListRuns(),
        ListWaiting(),
        ExplainPromise(id="x"),
        GetStats(),
        SnapDebug(),
    ],
    ids=lambda query: query.kind,
)
def test_whatever_reads_many_rows_is_read_beside_the_writer(query: Query) -> None:
    """Searches, lists, `why`, counts and snapshots are answered by the thread of a reader."""
    answered: Future[tuple[str, Answer]] = Future()

    def sink(answers: Sequence[tuple[Item, Answer]]) -> None:
        answered.set_result((threading.current_thread().name, answers[0][1]))

    with World("sqlite", threaded=True) as world:
        world.ok(r.promise("x"))
        world.engine.submit([Item(query, sink, None, 0)])
        name, reply = answered.result(PATIENCE_S)
    assert isinstance(reply, Reply)
    assert reply.status == 200
    assert name.startswith("layby-reader")


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_read_sees_what_was_sent_before_it(backend, threaded: bool) -> None:
    """Though that was not answered yet; and it does not cut the batch in two."""
    with World(backend, threaded=threaded) as world:
        commits = world.engine.commits
        requests = [r.promise("a"), SearchPromises(), r.promise("b"), SearchPromises()]
        replies = world.batch([(each, 0) for each in requests])
        assert "a" in [each.id for each in replies[1].data.promises]
        assert [each.id for each in replies[3].data.promises] == ["a", "b"]
        assert world.engine.commits == commits + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_reads_leave_room_for_quick_ones(backend) -> None:
    """As many as there are threads, from as many callers: a read by id is answered meanwhile."""
    with World(backend, threaded=True) as world:
        world.ok(r.promise("x"))
        long = [held() for _ in range(THREADS)]
        futures = [ask(world, each, caller) for caller, each in enumerate(long)]
        try:
            assert all(each.begun.wait(PATIENCE_S) for each in long[: THREADS - 1])
            found = ask(world, ExplainPromise(id="x"), "another").result(PATIENCE_S)
            assert found.data.promise.id == "x"
            assert not long[-1].begun.is_set()
        finally:
            for each in long:
                each.let_go.set()
        assert [each.result(PATIENCE_S) for each in futures] == [OK] * THREADS


def test_one_caller_does_not_hold_up_another() -> None:
    """It has one long read at a time, whatever it asks for; the next caller's begins beside it."""
    with World("sqlite", threaded=True) as world:
        greedy = [held(), held(), held()]
        futures = [ask(world, each, "greedy") for each in greedy]
        try:
            assert greedy[0].begun.wait(PATIENCE_S)
            assert ask(world, SearchPromises(), "modest").result(PATIENCE_S).is_ok
            assert not greedy[1].begun.is_set()
        finally:
            for each in greedy:
                each.let_go.set()
        assert [each.result(PATIENCE_S) for each in futures] == [OK] * 3


def test_a_snapshot_does_not_last_forever(monkeypatch) -> None:
    """It would keep the write-ahead log from shrinking; the caller is told to ask for less."""
    with World("sqlite") as world:
        with monkeypatch.context() as patched:
            patched.setattr(reads, "READ_S", 0.0)
            reply = world.send(SearchPromises())
            assert (reply.status, reply.data) == (413, "It took longer than 0 s: ask for less")
        assert world.send(SearchPromises()).is_ok


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_snapshot_of_everything_is_bounded(backend, monkeypatch) -> None:
    """It has no pages, so a large store is refused before it is read."""
    with World(backend) as world:
        for number in range(20):
            world.ok(r.promise(f"p{number}"))
        monkeypatch.setattr(queries, "SNAPSHOT_BYTES", 500)
        reply = world.send(SnapDebug())
        assert (reply.status, reply.data) == (413, "It holds more than 0 MB: read it page by page")


def test_what_nobody_waits_for_is_not_read() -> None:
    """Its caller has disconnected while it waited for its turn."""
    with World("sqlite", threaded=True) as world:
        first, second = held(), held()
        reading = ask(world, first, "a")
        try:
            assert first.begun.wait(PATIENCE_S)
            future: Future[Any] = Future()
            item = Item(second, resolve, future, 0, "a")
            world.engine.submit([item])
            item.cancel()
        finally:
            first.let_go.set()
        assert reading.result(PATIENCE_S) == OK
        assert future.result(PATIENCE_S) is NOT_BEGUN
        assert not second.begun.is_set()


def test_stopping_answers_every_read() -> None:
    """What has begun is read to its end, what has not is refused."""
    world = World("sqlite", threaded=True)
    first, second = held(), held()
    reading, waiting = ask(world, first, "a"), ask(world, second, "a")
    assert first.begun.wait(PATIENCE_S)
    stopper = threading.Thread(target=world.engine.stop)
    stopper.start()
    with pytest.raises(EngineStopped):
        waiting.result(PATIENCE_S)
    first.let_go.set()
    stopper.join(PATIENCE_S)
    assert reading.result(PATIENCE_S) == OK


class Unopenable(Wrapped):
    """Its first reader cannot be opened, and its second is broken."""

    opened = 0

    def open_reader(self, give_way: Callable[[], None]) -> StoreReader:
        self.opened += 1
        if self.opened == 1:
            raise StoreUnavailable("the file cannot be opened")
        reader = self.inner.open_reader(give_way)
        if self.opened == 2:
            reader.close()
        return reader


@pytest.mark.parametrize("threaded", [False, True])
def test_after_a_failure_another_connection_is_opened(threaded: bool) -> None:
    """The caller hears of the failure; the next read is served."""
    store: list[Unopenable] = []

    def wrap(inner: Any) -> Any:
        store.append(Unopenable(inner))
        return store[0]

    with World("sqlite", threaded=threaded, wrap=wrap) as world:
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            world.send(SearchPromises())
        assert world.send(SearchPromises()).status == 500
        assert world.send(SearchPromises()).is_ok
        assert world.send(SearchPromises()).is_ok
        assert store[0].opened == 3


def test_a_read_gives_way_after_each_statement() -> None:
    """Before it goes on in Python, so that the writer has the interpreter first."""
    gave_way: list[str] = []
    with World("sqlite") as world:
        for number in range(5):
            world.ok(r.promise(f"p{number}"))
        reader = world.store.open_reader(lambda: gave_way.append("once"))
        with reader.snapshot(PATIENCE_S) as seen:
            begun = len(gave_way)
            assert len(seen.search_promises(SearchPromises(), 0).promises) == 5
        reader.close()
    assert len(gave_way) - begun >= 2


def test_a_read_waits_while_the_writer_is_at_work(monkeypatch) -> None:
    """And goes on when that has finished its batch."""
    monkeypatch.setattr(reads, "GIVE_WAY_S", PATIENCE_S)
    with World("sqlite") as world:
        beside = world.engine._reads
        thread = threading.Thread(target=beside._give_way)
        with beside.giving_way():
            thread.start()
            assert thread.is_alive()
        thread.join(PATIENCE_S / 2)
        assert not thread.is_alive()
