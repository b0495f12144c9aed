"""Queries beside the writer: a few threads, each with a connection of its own to the store.

The writer hands a query over when everything that was submitted before it has been committed, and
does not wait for it. So a query sees what its caller sent before it, whether or not that has been
answered yet; it may also see what came later.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Final

from msgspec.structs import replace

from layby.core.commands import GetPromise
from layby.core.kinds import Query
from layby.core.queries import read_promise
from layby.core.replies import ok, refuse
from layby.core.stats import StatsData
from layby.engine.items import NOT_BEGUN, Answer, Item, answer, answer_to_failure
from layby.engine.large_reads import LargeReads
from layby.engine.read_turns import THREADS, ReadTurns
from layby.engine.writer_time import WriterTime
from layby.errors import EngineStopped, ReadRefused
from layby.store.api import Store, StoreReader

GIVE_WAY_S: Final = 0.02
"""How long a read waits for the writer to finish a batch, before it goes on all the same."""
READ_S: Final = 10.0
"""How long a snapshot lasts at most: the log of the database grows until it ends."""


class Reads:
    """Reads at once, on the thread of its caller, until it is started."""

    def __init__(self, store: Store, time: WriterTime) -> None:
        self._writer_rests = threading.Event()
        self._writer_rests.set()
        self._new_desk = partial(_ReadDesk, self._open_reader, time)
        self._store = store
        self._turns = ReadTurns()
        self._large = LargeReads()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._is_started = False
        self._is_stopping = False
        self._own = self._new_desk()

    def start(self) -> None:
        """Threads are started as they are needed."""
        self._is_started = True

    @contextmanager
    def giving_way(self) -> Generator[None]:
        """While the writer is at work: whoever reads lets it have the interpreter."""
        self._writer_rests.clear()
        try:
            yield
        finally:
            self._writer_rests.set()

    def _open_reader(self) -> StoreReader:
        return self._store.open_reader(self._give_way)

    def _give_way(self) -> None:
        self._writer_rests.wait(GIVE_WAY_S)

    def put(self, item: Item, chars: int = 0) -> None:
        """`chars`: how much has to be loaded for it, if that is much."""
        if not self._is_started:
            answer([(item, self._own.answer_to(item))])
            return
        with self._changed:
            if chars:
                self._large.add(item, chars)
            else:
                self._turns.add(item)
            if not self._idle and len(self._threads) < THREADS:
                self._begin_thread()
            self._changed.notify()

    def stop(self) -> None:
        """Reads that have begun are answered, the others refused; connections are closed."""
        with self._changed:
            self._is_stopping = True
            left = [*self._turns.drain(), *self._large.drain()]
            self._changed.notify_all()
        answer([(item, EngineStopped("the engine has been stopped")) for item in left])
        for thread in self._threads:
            thread.join()
        self._own.close()

    def _begin_thread(self) -> None:
        name = f"layby-reader-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        desk = self._new_desk()
        try:
            while (item := self._next()) is not None:
                reply = desk.answer_to(item)
                self._end(item)
                answer([(item, reply)])
        finally:
            desk.close()

    def _next(self) -> Item | None:
        """Waits for the next turn; None when there will be no more."""
        with self._changed:
            while True:
                item = self._large.begin(monotonic()) or self._turns.begin()
                if item is not None or self._is_stopping:
                    self._leave_to_others()
                    return item
                self._idle += 1
                self._changed.wait(self._large.pause_s(monotonic()))
                self._idle -= 1

    def _leave_to_others(self) -> None:
        """This thread is busy now: somebody idle looks when the next large one may begin."""
        if self._large.pause_s(monotonic()) is not None:
            self._changed.notify()

    def _end(self, item: Item) -> None:
        """Wakes nobody: this thread begins its caller's next, or one that had no room."""
        with self._changed:
            self._turns.end(item)
            self._large.end(item)


class _ReadDesk:
    """One thread's connection: opened for the first read, and again after a failure."""

    def __init__(self, open_reader: Callable[[], StoreReader], time: WriterTime) -> None:
        self._open_reader = open_reader
        self._time = time
        self._reader: StoreReader | None = None

    def answer_to(self, item: Item) -> Answer:
        if item.is_abandoned or item.is_gone():
            return NOT_BEGUN
        try:
            if self._reader is None:
                self._reader = self._open_reader()
            return self._look_at(self._reader, item)
        except Exception as failure:  # noqa: BLE001 - whatever failed, the caller is answered
            self.close()
            return answer_to_failure(item.request, failure)

    def _look_at(self, reader: StoreReader, item: Item) -> Answer:
        """It is as late as what it sees, so nothing in it was written later."""
        request = item.request
        assert isinstance(request, Query | GetPromise)
        try:
            with reader.snapshot(READ_S) as seen:
                at = max(self._time.clock.now(), self._time.now) if item.now is None else item.now
                is_query = isinstance(request, Query)
                reply = request.read(seen, at) if is_query else read_promise(seen, request.id, at)
        except ReadRefused as refused:
            return refuse(413, str(refused))
        if isinstance(reply.data, StatsData):
            return ok(replace(reply.data, store_time_ahead=self._time.clock.ahead()))
        return reply

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
