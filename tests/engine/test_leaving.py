"""Whoever leaves a store that others share does not wait for it if it does not answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from layby.clock import SystemClock
from layby.core.settings import Settings
from layby.engine import engine as engine_module
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.store.memory import MemoryStore

PATIENCE_S = 60


class SlowlyClosed(MemoryStore):
    """Until it may close."""

    def __init__(self) -> None:
        super().__init__(Settings(), next_after)
        self.may_close = threading.Event()
        self.closes = threading.Event()

    def close(self) -> None:
        self.closes.set()
        assert self.may_close.wait(PATIENCE_S)
        super().close()


@contextmanager
def started(store: MemoryStore) -> Iterator[Engine]:
    engine = Engine(store, SystemClock())
    engine.start()
    yield engine
    assert engine.stop(PATIENCE_S)


@pytest.mark.timeout(30)
def test_a_shared_store_that_does_not_answer_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_module, "LEAVE_S", 0.01)
    monkeypatch.setattr(Engine, "is_shared", True)
    store = SlowlyClosed()
    with started(store) as engine:
        engine.leave()
        assert "the store has not been closed within 0.01 s" in caplog.text
        store.may_close.set()


@pytest.mark.timeout(30)
def test_a_file_is_closed_before_its_owner_goes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_module, "LEAVE_S", 0.0)
    store = SlowlyClosed()
    with started(store) as engine:
        leaving = threading.Thread(target=engine.leave)
        leaving.start()
        assert store.closes.wait(PATIENCE_S)
        assert leaving.is_alive()
        store.may_close.set()
        leaving.join(PATIENCE_S)
    assert caplog.text == ""
