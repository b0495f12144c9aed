"""Engines to test against: any store, inline or threaded, with time that moves when told to."""

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Protocol, Self, cast

import msgspec

from layby.core import tag_names
from layby.core.commands import Command
from layby.core.invariants import check
from layby.core.model import Millis, Promise, Task
from layby.core.queries import Query, ResetDebug, SnapDebug, StartDebug, TickDebug
from layby.core.replies import Reply
from layby.core.settings import Settings
from layby.core.state import State
from layby.engine.calendar import next_after
from layby.engine.engine import Engine, EngineConfig
from layby.engine.items import Answer, Item
from layby.engine.outbox import Delivery
from layby.store.api import Store
from layby.store.memory import MemoryStore
from layby.store.sqlite import SqliteStore
from layby.wire.decode import VERSION, Batch, decode
from layby.wire.encode import encode
from tests.helpers.clocks import ManualClock
from tests.helpers.new_files import migrated
from tests.helpers.places import ALL_ON_POSTGRES
from tests.helpers.postgres_stores import postgres_store

Backend = Literal["memory", "sqlite", "postgres"]
BACKENDS: tuple[Backend, ...] = ("postgres",) if ALL_ON_POSTGRES else ("memory", "sqlite")
EVERY_BACKEND: tuple[Backend, ...] = ("memory", "sqlite", "postgres")
Timed = tuple[Command | Query, Millis]


def new_store(backend: Backend, settings: Settings | None = None) -> Store:
    """An empty store; that on SQLite is a file, since readers need connections of their own."""
    settings = settings or Settings()
    if backend == "memory":
        return MemoryStore(settings, next_after)
    if backend == "postgres":
        return postgres_store(settings)
    return ThrowAwayStore(settings)


class ThrowAwayStore(SqliteStore):
    """A file that is deleted with the store, and never flushed to disk."""

    def __init__(self, settings: Settings) -> None:
        self._folder = TemporaryDirectory(prefix="layby-test-", ignore_cleanup_errors=True)
        file = Path(self._folder.name, "a.db")
        file.write_bytes(migrated())
        super().__init__(file, settings, next_after)
        self._connection.execute("PRAGMA synchronous = OFF")

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


class Answered(Protocol):
    """A reply as tests read it: they know what its data is."""

    @property
    def status(self) -> int: ...
    @property
    def data(self) -> Any: ...
    @property
    def is_ok(self) -> bool: ...


class World:
    """One engine on one store. Paused by default: time does its work only in `tick`."""

    def __init__(
        self,
        backend: Backend = "memory",
        *,
        threaded: bool = False,
        paused: bool = True,
        now: Millis = 0,
        settings: Settings | None = None,
        chunk: int = 500,
        max_batch: int = 512,
        wrap: Callable[[Store], Store] = lambda store: store,
        delivery: Delivery | None = None,
    ) -> None:
        self.clock = ManualClock(now)
        self.store = wrap(new_store(backend, settings))
        config = EngineConfig(debug=True, chunk=chunk, max_batch=max_batch)
        self.engine = Engine(self.store, self.clock, delivery, config)
        self._paused = paused
        if threaded:
            self.engine.start()
        else:
            self.engine.start_inline()
        if paused:
            self.engine.call(StartDebug())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()

    @property
    def now(self) -> Millis:
        return self.clock.now()

    def send(self, request: Command | Query, now: Millis | None = None) -> Answered:
        """One request at the world's time, or at a given one."""
        return self.engine.call(request, self.now if now is None else now)

    def ok(self, request: Command | Query) -> Any:
        """The data of an answer that must not be a refusal."""
        reply = self.send(request)
        assert reply.is_ok, reply
        return reply.data

    def batch(self, timed: Sequence[Timed]) -> list[Answered]:
        """Several requests that reach the engine together."""
        futures = self.submit(timed)
        if self.engine.is_inline:
            self.engine.pump()
        return [future.result() for future in futures]

    def submit(self, timed: Iterable[Timed]) -> list["Future[Any]"]:
        futures: list[Future[Any]] = []
        items: list[Item] = []
        for request, now in timed:
            future: Future[Any] = Future()
            futures.append(future)
            items.append(Item(request, resolve, future, now))
        self.engine.submit(items)
        return futures

    def ask(self, kind: str, data: object, now: Millis, corr_id: str = "c") -> tuple[int, Any]:
        """The same over the form of the wire: status and data as a foreign client sees them."""
        head = {"corrId": corr_id, "version": VERSION}
        body = msgspec.json.encode({"kind": kind, "head": head, "data": data})
        request = decode(body).body
        assert not isinstance(request, Batch)  # those are the server's business
        reply = request if isinstance(request, Reply) else self.engine.call(request, now)
        answer = msgspec.json.decode(encode(kind, corr_id, reply))
        return answer["head"]["status"], answer["data"]

    def tick(self, by_ms: Millis = 0) -> None:
        """Let time pass, and do all it brings."""
        self.clock.advance(by_ms)
        self.engine.call(TickDebug(time=self.now))

    def dump(self) -> State:
        state = cast("State", self.engine.call(SnapDebug()).data)
        return frozen(state)

    def promise(self, promise_id: str) -> Promise:
        return self.dump().promises[promise_id]

    def task(self, task_id: str) -> Task:
        return self.dump().tasks[task_id]

    def check(self, now: Millis | None = None) -> None:
        assert check(self.dump(), self.now if now is None else now) == []

    def reset(self) -> None:
        self.engine.call(ResetDebug())


class History:
    """What may never happen between one state and the next (PROTOCOL 7, temporal)."""

    def __init__(self) -> None:
        self.forget()

    def observe(self, state: State, now: Millis) -> None:
        """A step has led here: all invariants hold, and nothing was undone."""
        assert check(state, now) == []
        for before in self._last.promises.values():
            _check_promise(before, state.promises.get(before.id))
        for after in state.tasks.values():
            _check_task(self._last.tasks.get(after.id), after)
        self._last = frozen(state)

    def pruned(self, ids: Iterable[str]) -> None:
        """Of these nothing is expected any more: neither that they exist, nor what they were."""
        for key in ids:
            self._last.promises.pop(key, None)
            self._last.tasks.pop(key, None)
            self._settled.pop(key, None)
            self._fulfilled.discard(key)

    def answered(self, shown: object) -> None:
        """A response has left: once reported settled or fulfilled, never otherwise again."""
        for record in _records(shown):
            self._never_regress(record)

    def forget(self) -> None:
        """The store is new, or was reset on purpose."""
        self._last = State()
        self._settled: dict[str, Any] = {}
        self._fulfilled: set[str] = set()

    def _never_regress(self, record: dict[str, Any]) -> None:
        key = record["id"]
        if "timeoutAt" in record and "settledAt" in record:
            told = _without_param(record) if _is_join(record) else record
            assert self._settled.setdefault(key, told) == told
        elif "timeoutAt" in record:
            assert key not in self._settled, f"{key} was settled and is pending again"
        elif record["state"] == "fulfilled":
            self._fulfilled.add(key)
        else:
            assert key not in self._fulfilled, f"{key} was fulfilled and is {record['state']}"


def _records(shown: object) -> Generator[dict[str, Any]]:
    """Every promise and task record in the data of a response."""
    if isinstance(shown, list):
        for each in shown:
            yield from _records(each)
    elif isinstance(shown, dict):
        record = cast("dict[str, Any]", shown)
        if "id" in record and "state" in record:
            yield record
        else:
            for each in record.values():
                yield from _records(each)


def _is_join(record: dict[str, Any]) -> bool:
    """Answers about a map leave out what all of its items share (`JoinData`)."""
    return record["tags"].get(tag_names.KIND) == "join"


def _without_param(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "param"}


def _check_promise(before: Promise, after: Promise | None) -> None:
    assert after is not None, f"promise {before.id} was removed"
    if before.placeholder and not after.placeholder:
        return
    for name in ("param", "tags", "told_timeout_at", "created_at"):
        assert getattr(before, name) == getattr(after, name), f"{name} of {before.id} changed"
    if not before.is_pending:
        assert before.with_tail(None) == after.with_tail(None), f"settled {before.id} changed"


def _check_task(before: Task | None, after: Task) -> None:
    if before is None:
        assert after.version in (0, 1), f"{after.id} was born at version {after.version}"
        return
    if before.state == "fulfilled":
        assert (after.lives or 1) >= (before.lives or 1), f"{before.id} lost a life"
        ended = (before.let_go(), before.never_begun().let_go()) if before.is_kept else ()
        ended = tuple(msgspec.structs.replace(each, permits=None) for each in ended)
        same = msgspec.structs.replace(after, lives=before.lives)
        assert same in (before, *ended), f"fulfilled task {before.id} changed"
    entered = after.version > before.version
    assert after.version == before.version + entered, f"{after.id} jumped over a version"
    if after.state == "acquired" and before.state != "acquired":
        assert entered, f"{after.id} became acquired without a version"
        assert after.resumes == (), f"{after.id} kept resumes when it was acquired"


def frozen(state: State) -> State:
    """A copy that later writes do not reach: rows are frozen, the dictionaries are not."""
    return State(*(copy(getattr(state, name)) for name in state.__struct_fields__))


def resolve(answers: Sequence[tuple[Item, Answer]]) -> None:
    """A sink for items whose token is a future."""
    for item, each in answers:
        future: Future[Reply] = item.token
        if isinstance(each, BaseException):
            future.set_exception(each)
        else:
            future.set_result(each)


class Wrapped:
    """A store that passes everything on; tests override what they want to disturb."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @contextmanager
    def transaction(self, *, lazily: bool = False) -> Generator[None]:
        with self.inner.transaction(lazily=lazily):
            yield
