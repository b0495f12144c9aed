"""When the disk, the file or the code fails: one clear answer each, nothing half-written.

The same four things hold in every case: whoever asked is answered, nothing of a failed batch is
in the file, what can be served is served, and when the cause is gone everything goes on.
"""

import base64
import logging
import sqlite3
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

import pytest
from msgspec.structs import replace

from layby.clock import SystemClock
from layby.core.commands import (
    Command,
    CreatePromise,
    GetPromise,
    Prune,
    RegisterListener,
    SettlePromise,
    Take,
    Value,
    WatchPromise,
)
from layby.core.invariants import check
from layby.core.model import NEVER
from layby.core.queries import Query, SearchPromises
from layby.core.replies import PromiseData, PromisePage, PruneData, Reply
from layby.core.settings import Settings
from layby.core.ticks import ExpirePromises
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.items import Item
from layby.engine.outbox import Nobody
from layby.errors import EngineStopped, StoreError, StoreUnavailable, StoreUnreadable
from layby.store.memory import MemoryStore
from layby.store.sqlite import SqliteReader, SqliteStore
from tests.helpers.clocks import ManualClock
from tests.helpers.disks import SmallDisk, small_disk

OURS = {"resonate:target": "poll://any@layby.g", "layby:name": "n"}
PATIENCE = 90.0
Outcome = Reply | BaseException


def engine_on(file: Path, busy_ms: int = 5_000) -> Engine:
    store = SqliteStore(file, Settings(), next_after, busy_ms=busy_ms)
    engine = Engine(store, SystemClock())
    engine.start()
    return engine


@pytest.fixture
def engine(tmp_path):
    engine = engine_on(tmp_path / "a.db")
    yield engine
    assert engine.stop(timeout=PATIENCE)


@pytest.fixture
def heard():
    """What the engine logs, record by record, as it happens."""
    records: SimpleQueue[logging.LogRecord] = SimpleQueue()
    handler = QueueHandler(records)
    logger = logging.getLogger("layby.engine")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def connection_of(engine: Engine) -> sqlite3.Connection:
    store = engine._store
    assert isinstance(store, SqliteStore)
    return store._connection


def posted(engine: Engine, requests: Sequence[Command | Query]) -> list["Future[Reply]"]:
    """Send requests together, so that they meet in one batch."""
    futures: list[Future[Reply]] = [Future() for _ in requests]

    def receive(answers):
        for item, answer in answers:
            if isinstance(answer, BaseException):
                item.token.set_exception(answer)
            else:
                item.token.set_result(answer)

    items = [Item(request, receive, each) for request, each in zip(requests, futures, strict=True)]
    engine.submit(items)
    return futures


def outcome(future: "Future[Reply]") -> Outcome:
    return future.exception(PATIENCE) or future.result()


def ask(engine: Engine, *requests: Command | Query) -> list[Outcome]:
    return [outcome(future) for future in posted(engine, requests)]


def create(promise_id: str, size: int = 0) -> CreatePromise:
    param = Value(data="x" * size) if size else Value()
    return CreatePromise(id=promise_id, timeout_at=NEVER, param=param)


def statuses(outcomes: Sequence[Outcome]) -> list[object]:
    return [each.status if isinstance(each, Reply) else type(each).__name__ for each in outcomes]


def stored(file: Path) -> set[str]:
    reader = SqliteReader(file, Settings(), next_after)
    with reader.transaction():
        state = reader.dump()
    reader.close()
    assert check(state, SystemClock().now()) == []
    return set(state.promises)


# --- a full disk -------------------------------------------------------------------------


@pytest.fixture
def disk():
    with tempfile.TemporaryDirectory(prefix="layby-test-") as name, small_disk(Path(name)) as disk:
        yield disk


def test_a_full_disk_fails_writes_only_and_recovers_with_room(disk: SmallDisk):
    """Writes are refused with the remedy, reads are served, and freed space is enough."""
    file = disk.folder / "a.db"
    engine = engine_on(file)
    assert statuses(ask(engine, create("before"))) == [200]
    connection = connection_of(engine)
    disk.fill(connection)
    acknowledged = {"before"}
    for number in range(100):
        [answer] = ask(engine, create(f"big{number}", 100_000))
        if not isinstance(answer, Reply):
            break
        acknowledged.add(f"big{number}")
    assert isinstance(answer, StoreUnavailable)
    assert str(file) in str(answer)
    assert "full" in str(answer) or "space" in str(answer)
    read, refused, found = ask(
        engine, GetPromise(id="before"), create("more", 100_000), SearchPromises()
    )
    assert statuses([read, refused, found]) == [200, "StoreUnavailable", 200]
    assert stored(file) == acknowledged
    disk.free(connection)
    assert statuses(ask(engine, create("after", 100_000))) == [200]
    assert engine.stop(PATIENCE)
    assert stored(file) == acknowledged | {"after"}


def test_a_full_disk_does_not_stop_what_needs_no_more_of_it(disk: SmallDisk):
    """What was committed is copied into the database, and its log begins anew: so what is pruned
    makes room.
    """
    file = disk.folder / "a.db"
    engine = engine_on(file)
    connection = connection_of(engine)
    old = [f"old{number}" for number in range(8)]
    assert statuses(ask(engine, *(create(each, 50_000) for each in old))) == [200] * 8
    settled = ask(engine, *(SettlePromise(id=each, state="resolved") for each in old))
    assert statuses(settled) == [200] * 8
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for number in range(40):
        assert statuses(ask(engine, create(f"new{number}"))) == [200]
    disk.fill(connection)
    cursor: str | None = ""
    while cursor is not None:
        [batch] = ask(engine, Prune(completed=0, failed=0, foreign=True, cursor=cursor))
        assert isinstance(batch, Reply), batch
        assert isinstance(batch.data, PruneData)
        cursor = batch.data.cursor
    assert engine.stop(PATIENCE)
    assert stored(file) >= {f"new{number}" for number in range(40)}


# --- a bug -------------------------------------------------------------------------------


def test_a_request_that_cannot_even_be_checked_is_answered_with_its_batch(engine):
    """Whatever fails for one, nobody who came with it waits for ever."""
    spoiled = replace(create("x"), tags=5)
    answers = ask(engine, create("before"), spoiled, create("after"))
    assert statuses(answers) == [200, 500, 200]


# --- read-only, locked -------------------------------------------------------------------


def test_a_store_that_turns_read_only_refuses_and_recovers(engine, tmp_path):
    """Writes are refused with the remedy until the file may be written again."""
    ask(engine, create("before"))
    connection = connection_of(engine)
    connection.execute("PRAGMA query_only = ON")
    [refused] = ask(engine, create("more"))
    assert isinstance(refused, StoreUnavailable)
    assert "a.db: the file is read-only: give this process write access" in str(refused)
    connection.execute("PRAGMA query_only = OFF")
    assert statuses(ask(engine, create("after"))) == [200]
    assert stored(tmp_path / "a.db") == {"before", "after"}


def test_a_locked_file_is_waited_for_once_per_batch(tmp_path):
    """The whole batch is answered after one busy timeout, not after one for each command."""
    engine = engine_on(tmp_path / "a.db", busy_ms=200)
    ask(engine, create("before"))
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    started = engine.clock.now()
    answers = ask(engine, *(create(f"p{number}") for number in range(100)))
    took = engine.clock.now() - started
    assert set(statuses(answers)) <= {"StoreUnavailable", "StoreBusy"}
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert "another program holds a lock" in str(answers[0])
    assert took < 100 * 200 / 4
    other.execute("ROLLBACK")
    other.close()
    assert statuses(ask(engine, create("after"))) == [200]
    assert engine.stop(PATIENCE)
    assert stored(tmp_path / "a.db") == {"before", "after"}


def test_a_timer_due_while_the_file_is_locked_fires_afterwards(tmp_path, heard):
    """The tick fails and is logged, the writer does not spin, and the timer is made up for."""
    engine = engine_on(tmp_path / "a.db", busy_ms=20)
    ask(engine, create("p"))
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    due_at = engine.clock.now() + 300
    timer = CreatePromise(id="t", timeout_at=due_at, tags={"resonate:timer": "true"})
    [watch] = posted(engine, [timer, WatchPromise(id="t")])[1:]
    ask(engine, GetPromise(id="t"))
    other.execute("BEGIN EXCLUSIVE")
    told = heard.get(timeout=PATIENCE).getMessage()
    assert "another program holds a lock" in told
    assert "Traceback" not in told  # nobody needs one every second
    other.execute("ROLLBACK")
    other.close()
    settled = outcome(watch)
    assert isinstance(settled, Reply)
    assert isinstance(settled.data, PromiseData)
    assert settled.data.promise.state == "resolved"
    assert heard.qsize() <= 2
    assert engine.stop(PATIENCE)


def test_a_failure_that_lasts_is_told_once_and_not_every_second(caplog):
    """The log may be on the very disk that is full. What else goes wrong meanwhile is told."""
    tries = SimpleQueue[str]()

    class AwayStore(MemoryStore):
        why = "the disk is full"

        def due(self, now, limit, wall=None):
            tries.put(self.why)
            raise StoreUnavailable(self.why)

    clock = ManualClock(0)
    store = AwayStore(Settings(), next_after)
    engine = Engine(store, clock)
    engine.start()
    ask(engine, CreatePromise(id="t", timeout_at=10))
    for second in range(1, 6):
        clock.set(second * 1_000 + 20)
        ask(engine, GetPromise(id="t"))  # it looks at the clock
        assert tries.get(timeout=PATIENCE) == "the disk is full"
    store.why = "the file is gone"
    clock.set(7_000)
    ask(engine, GetPromise(id="t"))
    assert tries.get(timeout=PATIENCE) == "the file is gone"
    assert engine.stop(PATIENCE)
    told = [each.getMessage() for each in caplog.records if "continues" in each.getMessage()]
    about = "the writer continues after a failure"
    assert told == [f"{about}: the disk is full", f"{about}: the file is gone"]


# --- damage ------------------------------------------------------------------------------


def test_damage_in_the_middle_fails_those_it_hits_alone(tmp_path):
    """Rows on a broken page are refused with the remedy, rows elsewhere are served."""
    file = tmp_path / "a.db"
    engine = engine_on(file)
    ids = [f"p{number:03}" for number in range(200)]
    ask(engine, *(create(each, 3_000) for each in ids))
    engine.stop(PATIENCE)
    content = bytearray(file.read_bytes())
    page = content.find(b"x" * 2_000, len(content) // 2) // 4096
    content[page * 4096 : page * 4096 + 64] = b"\xaa" * 64
    file.write_bytes(content)
    engine = engine_on(file)
    answers = ask(engine, *(GetPromise(id=each) for each in ids))
    hit = [answer for answer in answers if not isinstance(answer, Reply)]
    assert 0 < len(hit) < 20
    for answer in hit:
        assert isinstance(answer, StoreUnreadable)
        assert str(file) in str(answer)
        assert "backup" in str(answer)
    assert engine.stop(PATIENCE)


def test_a_row_that_no_layby_writes_fails_whoever_asks_for_it_alone(engine, tmp_path):
    """Somebody edited the file by hand: the others in the batch do not pay for it."""
    ask(engine, create("good"), create("bad"))
    with sqlite3.connect(tmp_path / "a.db") as other:
        other.execute("UPDATE promises SET state = 'nonsense' WHERE id = 'bad'")
    other.close()
    good, bad, found, new = ask(
        engine, GetPromise(id="good"), GetPromise(id="bad"), SearchPromises(), create("new")
    )
    assert statuses([good, new]) == [200, 200]
    assert isinstance(bad, StoreError)
    assert isinstance(found, StoreError)
    with sqlite3.connect(tmp_path / "a.db") as other:
        other.execute("UPDATE promises SET state = 'pending' WHERE id = 'bad'")
    other.close()
    assert statuses(ask(engine, GetPromise(id="bad"), SearchPromises())) == [200, 200]


# --- strange and huge input --------------------------------------------------------------


def test_a_value_of_64_mb_is_kept_or_refused_but_never_fatal(engine):
    """Whatever the answer is, it is an answer, and a small command beside it succeeds."""
    huge = Value(data="x" * 64 * 1024 * 1024)
    small, big = ask(engine, create("small"), CreatePromise(id="b", timeout_at=NEVER, param=huge))
    assert statuses([small]) == [200]
    assert statuses([big])[0] in (200, 400, "StoreError")
    if isinstance(big, Reply) and big.is_ok:
        [read] = ask(engine, GetPromise(id="b"))
        assert isinstance(read, Reply)
        assert isinstance(read.data, PromiseData)
        assert len(read.data.promise.param) > 64 * 1024 * 1024


def test_a_value_above_the_limit_of_the_database_is_refused_alone(engine, tmp_path):
    """SQLite takes no string above its limit (1 GB; 1 MB here): the error says that."""
    connection_of(engine).setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)
    small, big = ask(engine, create("small"), create("big", 2_000_000))
    assert statuses([small, big]) == [200, "StoreError"]
    assert "too big" in str(big)
    assert stored(tmp_path / "a.db") == {"small"}


def test_rows_that_are_too_big_together_are_read_one_by_one(engine):
    """A batch whose rows exceed the limit together is served alone, one after the other."""
    connection_of(engine).setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)
    ids = [f"p{number}" for number in range(4)]
    for each in ids:
        assert statuses(ask(engine, create(each, 400_000))) == [200]
    assert statuses(ask(engine, *(GetPromise(id=each) for each in ids))) == [200] * 4


@pytest.mark.parametrize(
    ("promise_id", "why"),
    [
        ("", "is required"),
        ("a\0b", "must not contain NUL"),
        ("x" * 1025, "must not be longer than 1024 bytes"),
        ("x" * 1_000_000, "must not be longer than 1024 bytes"),
        ("\u00e4" * 513, "must not be longer than 1024 bytes"),
        ("\ud800", "must be valid Unicode"),
    ],
    ids=["empty", "nul", "long", "huge", "long in bytes", "half a character"],
)
def test_a_bad_id_is_refused_alone(engine, tmp_path, promise_id, why):
    """Status 400 with the reason; the rest of the batch is not touched by it."""
    good, bad, also = ask(engine, create("good"), create(promise_id), create("also"))
    assert statuses([good, bad, also]) == [200, 400, 200]
    assert isinstance(bad, Reply)
    assert why in str(bad.data)
    assert stored(tmp_path / "a.db") == {"good", "also"}


def test_the_longest_id_is_kept(engine, tmp_path):
    """1024 bytes are allowed, and every index takes them."""
    longest = "x" * 1024
    tags = {**OURS, "resonate:branch": longest, "any": longest}
    request = CreatePromise(id=longest, timeout_at=NEVER, tags=tags)
    assert statuses(ask(engine, request, GetPromise(id=longest))) == [200, 200]
    assert stored(tmp_path / "a.db") == {longest}


@pytest.mark.parametrize("text", ["a\0b", "\U0001f600", "\u2028", '"\\', "\x7f\x1b[31m"])
def test_strange_characters_in_values_come_back_as_they_were(engine, text):
    """Values and tags are opaque: NUL, quotes and control characters included."""
    value, tags = Value(data=text, headers={text: text}), {text: text}
    request = CreatePromise(id="p", timeout_at=NEVER, param=value, tags=tags)
    [created] = ask(engine, request)
    [read] = ask(engine, GetPromise(id="p"))
    assert created == read
    [found] = ask(engine, SearchPromises(tags=tags))
    assert isinstance(found, Reply)
    assert isinstance(found.data, PromisePage)
    assert [promise.id for promise in found.data.promises] == ["p"]


def test_half_a_character_in_a_value_is_refused_alone(engine, tmp_path):
    """It cannot be written as UTF-8: that one command fails, nobody waits for ever."""
    bad = CreatePromise(id="bad", timeout_at=NEVER, param=Value(data="\ud800"))
    good, refused = ask(engine, create("good"), bad)
    assert statuses([good]) == [200]
    assert not isinstance(refused, Reply) or refused.status >= 400
    assert stored(tmp_path / "a.db") == {"good"}


# --- bugs of our own ---------------------------------------------------------------------


def test_a_bug_in_a_step_is_answered_500_alone(engine, tmp_path, monkeypatch, caplog):
    """The others of the batch succeed, and nothing of the bad one is written."""

    def buggy(draft, command):
        draft.put(draft.promise(command.id).settled("resolved", "{}", draft.now))
        raise ZeroDivisionError("oops")

    ask(engine, create("p"))
    monkeypatch.setattr(SettlePromise, "handler", buggy)
    answers = ask(engine, create("a"), SettlePromise(id="p", state="resolved"), create("b"))
    assert statuses(answers) == [200, 500, 200]
    assert "ZeroDivisionError" in str(answers[1])
    assert "bug in promise.settle" in caplog.text
    assert stored(tmp_path / "a.db") == {"p", "a", "b"}


def test_a_bug_in_a_tick_neither_spins_nor_stops_the_writer(monkeypatch, caplog):
    """Commands are served as before, and the failing tick is tried again now and then only."""
    runs = []

    def buggy(draft, command):
        runs.append(command)
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(ExpirePromises, "handler", buggy)
    clock = ManualClock(0)
    engine = Engine(MemoryStore(Settings(), next_after), clock)
    engine.start()
    ask(engine, CreatePromise(id="t", timeout_at=10))
    clock.set(20)
    for number in range(50):
        assert statuses(ask(engine, create(f"p{number}"))) == [200]
    assert 1 <= len(runs) <= 5
    assert engine.stop(PATIENCE)


def test_one_bad_row_does_not_hold_up_the_other_timers(monkeypatch, caplog):
    """A tick that meets a bug is taken apart: the rest of its rows are worked off."""
    whole = ExpirePromises.handler

    def buggy(draft, command):
        if "bad" in command.ids:
            raise ZeroDivisionError("oops")
        return whole(draft, command)

    monkeypatch.setattr(ExpirePromises, "handler", buggy)
    clock = ManualClock(0)
    store = MemoryStore(Settings(), next_after)
    engine = Engine(store, clock)
    engine.start_inline()
    for promise_id in ("a", "bad", "c"):
        engine.call(CreatePromise(id=promise_id, timeout_at=10))
    clock.set(20)
    engine.pump()
    pending = {promise.id for promise in store.state.promises.values() if promise.is_pending}
    assert pending == {"bad"}
    engine.stop()


def test_a_receiver_that_raises_does_not_cost_others_their_answer(engine, caplog):
    """One broken sink is named in the log; every other answer of the batch arrives."""

    def broken(_):
        raise ZeroDivisionError("a broken receiver")

    engine.submit([Item(create("a"), broken)])
    served, found = posted(engine, [create("b"), GetPromise(id="a")])
    assert statuses([outcome(served), outcome(found)]) == [200, 200]
    together: Future[object] = Future()
    items = [Item(create("c"), broken), Item(create("d"), together.set_result)]
    engine.submit(items)
    assert together.result(PATIENCE) is not None
    assert statuses(ask(engine, GetPromise(id="c"))) == [200]
    assert "a broken receiver" in caplog.text


def test_a_delivery_that_raises_does_not_cost_anybody_an_answer(tmp_path, caplog):
    """Messages stay in the outbox; requests are answered."""

    class Broken(Nobody):
        def committed(self, outgoing, withdrawn):
            raise ZeroDivisionError("a broken delivery")

    engine = Engine(MemoryStore(Settings(), next_after), SystemClock(), Broken())
    engine.start()
    ask(engine, create("p"), RegisterListener(awaited="p", address="http://x/y"))
    answers = ask(engine, SettlePromise(id="p", state="resolved"), SearchPromises(), create("q"))
    assert statuses(answers) == [200, 200, 200]
    assert engine.stop(PATIENCE)
    assert "a broken delivery" in caplog.text


# --- stopping ----------------------------------------------------------------------------


class Gate:
    """A receiver that holds the writer until it is opened: what follows queues behind it."""

    def __init__(self, engine: Engine) -> None:
        self._reached, self._open = Event(), Event()
        engine.submit([Item(GetPromise(id="gate"), self._wait)])
        assert self._reached.wait(PATIENCE)

    def _wait(self, _):
        self._reached.set()
        assert self._open.wait(PATIENCE)

    def open(self) -> None:
        self._open.set()


def stopping(engine: Engine) -> "Future[bool]":
    """Stop from another thread; returns when the engine has been told."""
    done: Future[bool] = Future()
    Thread(target=lambda: done.set_result(engine.stop(PATIENCE))).start()
    assert engine._service is not None
    assert engine._service.stopping.wait(PATIENCE)
    return done


def test_stop_answers_what_was_submitted(tmp_path):
    """Requests that were queued when stop came are done, not dropped."""
    engine = engine_on(tmp_path / "a.db")
    gate = Gate(engine)
    answers = posted(engine, [create(f"p{number}") for number in range(50)])
    stopped = stopping(engine)
    gate.open()
    assert stopped.result(PATIENCE)
    assert statuses([outcome(each) for each in answers]) == [200] * 50
    assert len(stored(tmp_path / "a.db")) == 50


def test_stop_tells_those_who_wait(engine):
    """A waiting take and a watch hear EngineStopped instead of silence."""
    ask(engine, create("p"))
    take = Take(pid="w", incarnation="1", group="g", names=("n",), free=1, wait_ms=60_000)
    waiting = posted(engine, [take, WatchPromise(id="p")])
    ask(engine, GetPromise(id="p"))
    assert not any(each.done() for each in waiting)
    assert engine.stop(PATIENCE)
    assert statuses([outcome(each) for each in waiting]) == ["EngineStopped"] * 2


def test_stop_tells_a_take_that_the_last_commit_has_woken(engine):
    """It was about to be asked again; now it is told, and the task stays pending."""
    take = Take(pid="w", incarnation="1", group="g", names=("n",), free=1, wait_ms=60_000)
    [waiting] = posted(engine, [take])
    gate = Gate(engine)
    [created] = posted(engine, [CreatePromise(id="t", timeout_at=NEVER, tags=OURS)])
    stopped = stopping(engine)
    gate.open()
    assert stopped.result(PATIENCE)
    assert statuses([outcome(created)]) == [200]
    answer = outcome(waiting)
    assert isinstance(answer, EngineStopped) or statuses([answer]) == [200]


def test_submits_after_stop_are_refused(engine):
    """At once and for good: nothing was written for them."""
    assert engine.stop(PATIENCE)
    assert statuses(ask(engine, create("late"), SearchPromises())) == ["EngineStopped"] * 2


def test_a_submit_that_races_with_stop_is_answered(engine, monkeypatch):
    """It saw a running engine and queued its request when the writer had already gone."""

    class Late:
        """A queue whose `put` is slow enough for the engine to stop meanwhile."""

        def __init__(self, queue):
            self._queue = queue

        def put(self, items):
            if items:
                assert engine.stop(PATIENCE)
            self._queue.put(items)

        def __getattr__(self, name):
            return getattr(self._queue, name)

    monkeypatch.setattr(engine, "_queue", Late(engine._queue))
    assert statuses(ask(engine, create("late"))) == ["EngineStopped"]


def test_stop_twice_is_harmless(tmp_path):
    """Threaded and inline; the file is free after the first."""
    engine = engine_on(tmp_path / "a.db")
    assert engine.stop(PATIENCE)
    assert engine.stop(PATIENCE)
    inline = Engine(SqliteStore(tmp_path / "a.db", Settings(), next_after), SystemClock())
    inline.start_inline()
    assert inline.stop()
    engine_on(tmp_path / "a.db").stop(PATIENCE)
    assert inline.stop()


def test_stop_works_on_a_store_that_fails(tmp_path, monkeypatch):
    """What was queued is answered with the failure, the file is given back."""
    engine = engine_on(tmp_path / "a.db")
    gate = Gate(engine)
    answers = posted(engine, [create("p"), SearchPromises()])
    monkeypatch.setattr(engine._store, "load", None)
    stopped = stopping(engine)
    gate.open()
    assert stopped.result(PATIENCE)
    assert all(each.done() for each in answers)
    engine_on(tmp_path / "a.db").stop(PATIENCE)


def test_inline_and_threaded_engines_refuse_alike_after_stop():
    """An inline engine that was stopped answers, too."""
    engine = Engine(MemoryStore(Settings(), next_after), ManualClock(), Nobody())
    engine.start_inline()
    engine.stop()
    with pytest.raises(EngineStopped):
        engine.call(create("late"))


def test_values_are_what_sdks_write(engine):
    """A settled value is read back byte by byte."""
    data = base64.b64encode(b'{"a": 1}').decode()
    ask(engine, create("p"))
    value = Value(headers={}, data=data)
    ask(engine, SettlePromise(id="p", state="resolved", value=value))
    [read] = ask(engine, GetPromise(id="p"))
    assert isinstance(read, Reply)
    assert isinstance(read.data, PromiseData)
    assert data in read.data.promise.value
