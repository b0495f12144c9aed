"""Checkpoints beside the writer: the log begins anew, nobody takes them for a stranger's writes."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from layby.core.commands import CreatePromise
from layby.core.model import NEVER
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.errors import StoreGone
from layby.store import wal_breaks
from layby.store.checkpoints import Checkpoints
from layby.store.own_file import log_of
from layby.store.sqlite import SqliteStore
from tests.helpers.clocks import ManualClock

PATIENCE_S = 30
FRAMES = 40


@pytest.fixture(autouse=True)
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_breaks, "CHECKPOINT_FRAMES", FRAMES)
    monkeypatch.setattr(wal_breaks, "WAL_BYTES", 10 * FRAMES * 4096)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "a.db", Settings(), next_after, "normal")) as opened:
        yield opened


def engine_of(store: SqliteStore) -> Engine:
    engine = Engine(store, ManualClock())
    engine.start_inline()
    return engine


def create(engine: Engine, name: str) -> int:
    return engine.call(CreatePromise(id=name, timeout_at=NEVER)).status


def log_length(store: SqliteStore) -> int:
    return store._own_file._index.read().length


def test_the_log_begins_anew_under_commits_and_nothing_is_lost(store: SqliteStore) -> None:
    """Each commit looks at the file, whatever the other thread is doing to it."""
    engine, number, times = engine_of(store), 0, 0
    while times < 10:
        before = log_length(store)
        assert create(engine, f"p{number}") == 200
        number += 1
        times += log_length(store) < before
        assert log_length(store) < 20 * FRAMES
    assert any(each.name == "layby-checkpoint" for each in threading.enumerate())
    store.close()
    assert not log_of(store.path).exists()
    with closing(sqlite3.connect(store.path)) as connection:
        count = connection.execute("SELECT count(*) FROM promises WHERE id LIKE 'p%'").fetchone()
        assert count == (number,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_writer_makes_it_when_the_log_is_too_long(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._checkpoints, "ask", lambda: None)
    monkeypatch.setattr(wal_breaks, "WAL_BYTES", 3 * FRAMES * 4096)
    engine, longest = engine_of(store), 0
    for number in range(200):
        assert create(engine, f"p{number}") == 200
        longest = max(longest, log_length(store))
    assert 3 * FRAMES <= longest < 5 * FRAMES


def test_a_stranger_is_noticed_after_a_checkpoint(store: SqliteStore) -> None:
    engine = engine_of(store)
    for number in range(100):
        assert create(engine, f"p{number}") == 200
    store._checkpoints.close()
    with store.transaction():
        store.store_time()  # has looked at what the last one wrote
    with store.path.open("r+b") as file:
        file.write(b"x" * 4096)
    touch(store.path)
    with pytest.raises(StoreGone):
        create(engine, "late")


def touch(path: Path, seconds: int = 1) -> None:
    """The clock of a file system may stand still for some milliseconds."""
    at = path.stat().st_mtime_ns + seconds * 10**9
    os.utime(path, ns=(at, at))


def test_closing_waits_for_what_is_under_way() -> None:
    begun, may_end, noted = threading.Event(), threading.Event(), list[str]()

    class Connection:
        def execute(self, _: str) -> "Connection":
            begun.set()
            assert may_end.wait(PATIENCE_S)
            return self

        def fetchall(self) -> None:
            noted.append("copied")

        def close(self) -> None:
            noted.append("closed")

    checkpoints = Checkpoints(
        cast("Any", Connection),
        lambda: "copied" in noted,
    )
    checkpoints.ask()
    assert begun.wait(PATIENCE_S)
    closing_ = threading.Thread(target=checkpoints.close)
    closing_.start()
    may_end.set()
    closing_.join(PATIENCE_S)
    assert noted == ["copied", "closed"]


def test_one_that_fails_is_tried_again_when_it_is_asked_for(tmp_path: Path) -> None:
    tries, is_done = list[int](), threading.Event()

    def connect() -> sqlite3.Connection:
        tries.append(1)
        if len(tries) == 1:
            checkpoints.ask()
            raise sqlite3.OperationalError("disk I/O error")
        return sqlite3.connect(tmp_path / "b.db", check_same_thread=False)

    def copied() -> bool:
        is_done.set()
        return True

    checkpoints = Checkpoints(connect, copied)
    checkpoints.ask()
    assert is_done.wait(PATIENCE_S)
    checkpoints.close()
    assert len(tries) == 2


def test_a_close_beside_a_beginning_checkpoint_is_heard() -> None:
    """It comes after the thread has woken, and before it forgets that it was asked."""

    class ClosedMeanwhile(threading.Event):
        def clear(self) -> None:
            checkpoints._is_closing = True  # what `close` does, up to its wait for the thread
            self.set()
            super().clear()

    checkpoints = Checkpoints(lambda: sqlite3.connect(":memory:"), lambda: True)
    checkpoints._asked = ClosedMeanwhile()
    checkpoints.ask()
    assert checkpoints._thread is not None
    checkpoints._thread.join(PATIENCE_S)
    assert not checkpoints._thread.is_alive(), "close() would wait for ever"
