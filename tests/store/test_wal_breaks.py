"""Reads that overlap without end do not keep the write-ahead log from beginning anew."""

import threading
from concurrent.futures import Future
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import Any

from layby.core import commands as c
from layby.core.queries import SearchPromises
from layby.core.values import Value
from layby.engine.items import Item
from layby.store import wal_breaks
from layby.store.checkpoints import Checkpoints
from layby.store.sqlite import SqliteStore
from layby.store.wal_breaks import WAL_BYTES, WalBreaks
from tests.helpers.worlds import World, resolve

PATIENCE_S = 5.0


class Log:
    size = 0

    def __call__(self) -> int:
        return self.size


def test_snapshots_overlap_while_the_log_is_short() -> None:
    """Nobody waits for anybody."""
    breaks = WalBreaks(Log())
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(breaks.snapshot())


def test_a_long_log_waits_for_a_moment_without_snapshots() -> None:
    """The next snapshot begins when the others have ended and the log is short again."""
    log = Log()
    breaks = WalBreaks(log)
    asked, begun = threading.Event(), threading.Event()

    def read() -> None:
        asked.set()
        with breaks.snapshot():
            begun.set()

    thread = threading.Thread(target=read)
    with breaks.snapshot():
        log.size = WAL_BYTES + 1
        thread.start()
        assert asked.wait(PATIENCE_S)
        assert not begun.is_set()
    log.size = 10
    thread.join(PATIENCE_S)
    assert begun.is_set()


def test_without_writes_a_break_ends_by_itself(monkeypatch) -> None:
    """And there is no other one until the log has grown again."""
    monkeypatch.setattr(wal_breaks, "BREAK_S", 0.0)
    log = Log()
    breaks = WalBreaks(log)
    log.size = WAL_BYTES + 1
    with breaks.snapshot(), breaks.snapshot():
        log.size = 3 * WAL_BYTES
    with breaks.snapshot():
        log.size = 10
    with breaks.snapshot():
        assert breaks._bound == WAL_BYTES


def test_the_log_of_a_file_that_is_always_read_begins_anew(monkeypatch) -> None:
    """Two read in a loop while one writes: once the log is too long, it becomes short again."""
    monkeypatch.setattr(wal_breaks, "WAL_BYTES", 200_000)
    monkeypatch.setattr(wal_breaks, "KEPT_BYTES", 100_000)
    monkeypatch.setattr(wal_breaks, "BREAK_S", PATIENCE_S)
    is_over, sizes = threading.Event(), [0]
    with World("sqlite", threaded=True) as world:
        store = world.store
        assert isinstance(store, SqliteStore)
        store._connection.execute("PRAGMA wal_autocheckpoint = 10")

        def read(caller: int) -> None:
            while not is_over.is_set():
                future: Future[Any] = Future()
                query = SearchPromises(limit=50)
                world.engine.submit([Item(query, resolve, future, 0, caller)])
                assert future.result().is_ok

        threads = [threading.Thread(target=read, args=(each,)) for each in range(2)]
        for thread in threads:
            thread.start()
        try:
            for at in range(2_000):
                data = Value(data="x" * 10_000)
                world.ok(c.CreatePromise(id=f"p{at}", timeout_at=9**9, param=data, tags={}))
                sizes.append(store._breaks._size())
                if 200_000 < sizes[-2] > sizes[-1]:
                    break
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
    assert max(sizes) <= 200_000 or sizes[-1] < max(sizes)


def test_a_log_that_is_read_is_not_copied_at_every_commit(monkeypatch) -> None:
    """It cannot begin anew while it is read, so it stays long; each copy waits for the disk."""
    monkeypatch.setattr(wal_breaks, "CHECKPOINT_FRAMES", 50)
    asked: list[str] = []
    with World("sqlite") as world:
        store = world.store
        assert isinstance(store, SqliteStore)
        monkeypatch.setattr(store._checkpoints, "ask", lambda: asked.append("checkpoint"))
        reader = store.open_reader(lambda: None)
        with closing(reader), reader.snapshot(PATIENCE_S):
            frames = 0
            for at in range(60):
                world.ok(c.CreatePromise(id=f"p{at}", timeout_at=9**9))
                frames = store._own_file._index.read().length
        assert 2 <= len(asked) <= frames // 50 + 1
        assert frames > 200


def test_every_log_is_copied_when_it_is_long_enough(monkeypatch) -> None:
    """Also one that has just begun anew, whatever the length of the one before."""
    monkeypatch.setattr(wal_breaks, "CHECKPOINT_FRAMES", 50)
    monkeypatch.setattr(Checkpoints, "ask", Checkpoints.make)
    lengths: list[int] = []
    with World("sqlite") as world:
        store = world.store
        assert isinstance(store, SqliteStore)
        for at in range(100):
            world.ok(c.CreatePromise(id=f"p{at}", timeout_at=9**9))
            lengths.append(store._own_file._index.read().length)
    assert max(lengths) < 80
    assert sum(after < before for before, after in pairwise(lengths)) >= 5
