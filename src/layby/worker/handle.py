"""What a task body is given to wait with: every wait frees the slot and takes it again after.

The sequence is the same for all waits: `Deferred` is handed to the writer, the slot is released,
the body waits on a bare future, the slot is reclaimed (first come, first served), `Active` is
handed to the writer, the body goes on with its locals intact. A handle made of a slot token
alone does all of this without a store; its waits are then not durable.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from layby.core.commands import CreatePromise, EnsurePromise, FenceTask, GetPromise, WatchPromise
from layby.core.model import NEVER, Promise
from layby.core.replies import FenceData, PromiseData, Reply
from layby.errors import DeferTimeout, UsageError
from layby.executors import SlotToken
from layby.worker.attempt import Attempt
from layby.worker.rejections import value_of
from layby.worker.replay import Record, Replay, digest_of, encoded
from layby.worker.tell import Waiting
from layby.worker.wheel import Poll, Wake, Wheel

Seconds = float | int | timedelta
Condition = Callable[[], Any]

_current: ContextVar["TaskHandle | None"] = ContextVar("layby_handle", default=None)


class TaskHandle:
    """Belongs to one try of one task; after the body has ended every call raises."""

    __slots__ = ("_attempt", "_slot", "_waits", "_wheel")

    def __init__(
        self, slot: SlotToken, attempt: Attempt | None = None, wheel: Wheel | None = None
    ) -> None:
        self._slot = slot
        self._attempt = attempt
        self._wheel = Wheel() if wheel is None else wheel  # an empty wheel is falsy
        self._waits = 0

    # --- what it is ----------------------------------------------------------------------

    @property
    def task_execution_id(self) -> str | None:
        return None if self._attempt is None else self._attempt.id

    @property
    def try_number(self) -> int:
        return 1 if self._attempt is None else self._attempt.version

    @property
    def is_cancelled(self) -> bool:
        return self._attempt is not None and self._attempt.is_ending

    def is_slot_held(self) -> bool:
        return self._slot.is_held()

    # --- waits ---------------------------------------------------------------------------

    async def defer_until(
        self,
        condition: Condition,
        poll_interval: Seconds | None = None,
        *,
        poll_interval_ms: float | None = None,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wait's own clock, by design
        backoff: float = 1.0,
        max_interval: Seconds | None = None,
        jitter: float = 0.0,
        max_errors: int = 10,
        wake: Wake | None = None,
        key: str | None = None,
    ) -> None:
        """Wait, without a slot, until `condition()` is true; first ask it once with the slot."""
        interval = _interval(poll_interval, poll_interval_ms)
        with self._call("defer_until", key) as record_id:
            if self._found(record_id, "defer_until") or await _holds(condition):
                return
            poll = self._wheel.watch(
                condition,
                interval,
                timeout=_seconds(timeout),
                backoff=backoff,
                max_interval=_seconds(max_interval),
                jitter=jitter,
                max_errors=max_errors,
                wake=wake,
            )
            await self._parked(poll.future, _on_condition(condition, timeout), record_id, poll)

    async def sleep(self, seconds: Seconds, *, key: str | None = None) -> None:
        """Wait, without a slot; after a crash it ends when it would have ended."""
        length = _seconds(seconds)
        if length is None or length < 0:
            raise ValueError(f"sleep takes seconds ≥ 0, got {seconds!r}")
        with self._call("sleep", key) as record_id:
            if self._attempt is None:
                await self._parked(asyncio.ensure_future(asyncio.sleep(length)), Waiting("sleep"))
                return
            timer = await self._timer(record_id, length)
            if timer.is_pending:
                waiting = Waiting("sleep", f"sleeping {length:g} s", deadline=timer.timeout_at)
                await self._parked(self._watched(timer.id), waiting)

    async def wait_for(
        self,
        promise_id: str,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wait's own clock, by design
        *,
        key: str | None = None,
    ) -> Any:
        """Wait, without a slot, until that promise settles anywhere; a rejection raises."""
        with self._call("wait_for", key):
            promise = _promise(await self._store().send(EnsurePromise(id=promise_id)), promise_id)
            if promise.is_pending:
                promise = await self._settled(promise_id, _seconds(timeout))
            return value_of(promise)

    async def settled(self, promise_id: str, timeout: Seconds | None = None) -> Promise:  # noqa: ASYNC109
        """Wait, without a slot, for a promise that exists; the settled promise itself."""
        with self._call("wait_for", f"settled.{promise_id}"):
            promise = _promise(await self._store().send(GetPromise(id=promise_id)), promise_id)
            if promise.is_pending:
                promise = await self._settled(promise_id, _seconds(timeout))
            return promise

    async def promise(self, name: str) -> "Token":
        """A promise of this task's own that others settle; the same one in every try."""
        attempt = self._store()
        promise_id = attempt.replay.record_id(f"promise.{name}", lasting=True)
        create = CreatePromise(id=promise_id, timeout_at=NEVER)
        await attempt.fenced(FenceTask(id=attempt.id, version=attempt.version, inner=create))
        return Token(self, promise_id)

    # --- other control -------------------------------------------------------------------

    async def checkpoint(self, key: str, fn: Callable[..., Any], *args: Any) -> Any:
        """Run `fn` once per task and key; afterwards its stored result is read instead."""
        found = self.recalled(key, args)
        if found is not None:
            return found.value
        result = fn(*args)
        if inspect.isawaitable(result):
            result = await result
        return await self.keep(key, args, result)

    def recalled(self, key: str, args: tuple[Any, ...]) -> Record | None:
        """What an earlier life of this task stored under this key, for these arguments."""
        replay = self._store().replay
        return replay.found(_checkpoint_id(replay, key), "checkpoint", digest_of(*args))

    async def keep(self, key: str, args: tuple[Any, ...], result: Any) -> Any:
        attempt = self._store()
        record = Record("checkpoint", digest_of(*args), result)
        await attempt.record(_checkpoint_id(attempt.replay, key), _storable(record, key))
        return result

    async def yield_slot(self) -> None:
        """Let whoever waits for a slot go first, then go on."""
        self._check_open()
        if self._slot.release():
            await asyncio.sleep(0)
            await self._slot.reclaim()

    def progress(self, fraction: float | None = None, text: str = "") -> None:
        """Say how far the task is; shown in the run's status."""
        self._check_open()
        if self._attempt is not None:
            self._attempt.progress(fraction, text)

    # --- the sequence every wait shares --------------------------------------------------

    async def _parked(
        self,
        future: "asyncio.Future[Any]",
        waiting: Waiting,
        record_id: str | None = None,
        poll: Poll | None = None,
    ) -> Any:
        """Wait for `future` without the slot. Errors are raised with the slot held again."""
        self._leave(waiting, poll)
        try:
            result = await future
        except asyncio.CancelledError:
            future.cancel()
            await self._leave_wait(cancelled=True)
            raise
        except BaseException:
            await self._leave_wait()
            raise
        await self._leave_wait(record_id)
        return result

    def _leave(self, waiting: Waiting, poll: Poll | None) -> None:
        self._waits += 1
        if self._waits > 1:
            return
        if self._attempt is None or self._attempt.park(waiting, poll):
            self._slot.release()

    async def _leave_wait(self, record_id: str | None = None, *, cancelled: bool = False) -> None:
        """The last of overlapping waits takes the slot back; a cancelled task does not."""
        self._waits -= 1
        if self._waits > 0 or (cancelled and self.is_cancelled):
            return
        if self._attempt is not None and not self._slot.is_held():
            self._attempt.waits_for_slot()
        await self._slot.reclaim()
        if self._attempt is not None:
            self._attempt.resume(record_id)

    async def _settled(self, promise_id: str, within: float | None) -> Promise:
        waiting = Waiting("promise", f"waiting for promise {promise_id}", timeout=within)
        watched = self._watched(promise_id)
        limited = watched if within is None else asyncio.ensure_future(_limited(watched, within))
        try:
            reply: Reply = await self._parked(limited, waiting)
        except TimeoutError:
            raise DeferTimeout(
                f"{self.task_execution_id}: promise {promise_id} was not settled in {within:g} s"
            ) from None
        return _promise(reply, promise_id)

    def _watched(self, promise_id: str) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self._store().send(WatchPromise(id=promise_id)))

    async def _timer(self, record_id: str, length: float) -> Promise:
        """The durable timer of a sleep: found as an earlier life left it, or new."""
        attempt = self._store()
        digest = digest_of(length)
        if attempt.replay.found(record_id, "sleep", digest) is not None:
            found = attempt.replay.promise(record_id)
            assert found is not None
            return found.at(attempt.now())
        create = CreatePromise(
            id=record_id,
            timeout_at=attempt.now() + round(length * 1000),
            param=encoded(Record("sleep", digest)),
            tags={"resonate:timer": "true"},
        )
        fence = FenceTask(id=attempt.id, version=attempt.version, inner=create)
        data = (await attempt.fenced(fence)).data
        assert isinstance(data, FenceData)
        return _promise(data.reply, record_id)

    # --- small checks --------------------------------------------------------------------

    def _call(self, kind: str, key: str | None) -> Any:
        self._check_open()
        return _Keyless() if self._attempt is None else self._attempt.replay.call(kind, key)

    def _found(self, record_id: str | None, kind: str) -> bool:
        if self._attempt is None or record_id is None:
            return False
        return self._attempt.replay.found(record_id, kind, "") is not None

    def _store(self) -> Attempt:
        self._check_open()
        if self._attempt is None:
            raise UsageError("this handle has no store: use it inside a task of a Runner")
        return self._attempt

    def _check_open(self) -> None:
        if self._attempt is not None:
            self._attempt.check_open()


class Token:
    """A promise others settle: give them its id, then `await` it."""

    __slots__ = ("_handle", "id")

    def __init__(self, handle: TaskHandle, promise_id: str) -> None:
        self._handle = handle
        self.id = promise_id

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.wait().__await__()

    async def wait(self, timeout: Seconds | None = None) -> Any:  # noqa: ASYNC109 - as wait_for
        return await self._handle.wait_for(self.id, timeout, key=self.id)


class _Keyless:
    """Stands in for a replay key where there is no store to replay from."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def current_handle() -> TaskHandle:
    """The handle of the task this code runs in, for helper functions."""
    handle = _current.get()
    if handle is None:
        raise UsageError("there is no current task: call this from code that a Runner runs")
    return handle


def maybe_handle() -> TaskHandle | None:
    return _current.get()


def enter_handle(handle: TaskHandle) -> None:
    _current.set(handle)


async def _holds(condition: Condition) -> bool:
    if not callable(condition):
        raise TypeError(f"condition must be callable, got {condition!r}: pass a function or lambda")
    try:
        found = condition()
        return bool(await found if inspect.isawaitable(found) else found)
    except Exception:  # noqa: BLE001 - asked again by the wheel, which counts and reports errors
        return False


async def _limited(awaitable: Awaitable[Any], seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        return await awaitable


def _interval(seconds: Seconds | None, milliseconds: float | None) -> float:
    if seconds is not None and milliseconds is not None:
        raise ValueError("give poll_interval (seconds) or poll_interval_ms, not both")
    interval = _seconds(seconds) if milliseconds is None else milliseconds / 1000
    if interval is None:
        return 1.0
    if interval <= 0:
        raise ValueError(f"the poll interval must be positive, got {interval:g} s")
    return interval


def _seconds(value: Seconds | None) -> float | None:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _on_condition(condition: Condition, timeout: Seconds | None) -> Waiting:
    name = getattr(condition, "__qualname__", repr(condition))
    return Waiting("condition", f"waiting until {name} is true", timeout=_seconds(timeout))


def _promise(reply: Reply, promise_id: str) -> Promise:
    if isinstance(reply.data, PromiseData):
        return reply.data.promise
    raise UsageError(f"promise {promise_id}: {reply.data}")


def _checkpoint_id(replay: Replay, key: str) -> str:
    return replay.record_id(f"checkpoint.{key}", lasting=True)


def _storable(record: Record, key: str) -> Any:
    try:
        return encoded(record)
    except (TypeError, ValueError) as error:
        raise UsageError(f"checkpoint '{key}': its result has no JSON form ({error})") from error
