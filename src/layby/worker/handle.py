"""The handle a task body waits with: every wait releases the slot and reclaims it afterwards.

The sequence is the same for all waits: `Deferred` is handed to the writer, the slot is released,
the body waits on a bare future, the slot is reclaimed (first come, first served), `Active` is
handed to the writer, the body goes on with its locals intact. A handle made from a slot token
alone does all of this without a store; its waits are not durable then.

Overlapping waits of one body share the slot, by the rules of `strands`: it is released when all
parts of the body wait, and whichever goes on does so with the slot. A body that is cancelled from
inside (`asyncio.timeout` around a wait) gets its slot back before it goes on; one that is ended
from outside does not stand in line for a slot first.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from msgspec.structs import replace

from layby.core.commands import CreatePromise, EnsurePromise, FenceTask
from layby.core.model import NEVER, Millis, Promise
from layby.core.replies import PromiseData, Reply
from layby.core.validate import MAX_ID_BYTES
from layby.core.waits import WaitingOn
from layby.errors import ConditionError, ContextError, DeferTimeout, UsageError, error_for
from layby.program import Served
from layby.triggers import Trigger
from layby.wire.durations import (
    is_never,
    limit_of,
    millis_of,
    seconds_of,
    seconds_of_millis,
)
from layby.wire.trigger_events import payload_of
from layby.worker.attempt import Attempt
from layby.worker.condition_poll import check_condition, check_pace, count_first, name_of
from layby.worker.deferring import event_or_defer, new_deferral
from layby.worker.outgoing_call import (
    DEFAULT_TARGET,
    CallOptions,
    answer_of_type,
    check_target,
    make_call,
    name_called,
    new_call,
    result_of,
)
from layby.worker.promise_watches import PromiseWatch, TimedPromiseWatch, is_late
from layby.worker.rejections import value_of
from layby.worker.replay import (
    MAX_KEY_BYTES,
    Record,
    check_key,
    checkpointed,
    digest_of,
    encoded,
    record_of,
)
from layby.worker.shared_slot import SharedSlot, Slot
from layby.worker.tell import TO_LET_OTHERS_GO
from layby.worker.wake_events import check_wake
from layby.worker.wheel import Poll, Wake, Wheel

MAX_PROMISE_NAME_BYTES = MAX_KEY_BYTES - len("promise.-123456")
"""Each wait for it has a key made of the name and a number."""
Seconds = float | int | timedelta
Condition = Callable[[], Any]

P = ParamSpec("P")
T = TypeVar("T")

POLL_INTERVAL_S = 1.0
_DEFER_UNTIL = Record("defer_until")

_current: ContextVar[Any] = ContextVar("layby_handle", default=None)


class TaskHandle:
    """Belongs to one try of one task; every call raises after the body has ended."""

    __slots__ = ("_attempt", "_shared", "_wheel")

    def __init__(
        self,
        slot: SharedSlot | Slot,
        attempt: Attempt | None = None,
        wheel: Wheel | None = None,
    ) -> None:
        is_shared = isinstance(slot, SharedSlot)
        self._shared = slot if is_shared else SharedSlot(slot, attempt, is_driven=False)
        self._attempt = attempt
        self._wheel = wheel

    # --- what it is ----------------------------------------------------------------------

    @property
    def task_execution_id(self) -> str | None:
        return None if self._attempt is None else self._attempt.id

    @property
    def try_number(self) -> int:
        return 1 if self._attempt is None else self._attempt.try_number

    @property
    def is_cancelled(self) -> bool:
        return self._attempt is not None and self._attempt.is_ending

    def thread_waits(self, by: int) -> None:
        """The thread of a plain `def` begins a wait (1), or ends it (-1)."""
        if self._attempt is not None:
            self._attempt.thread_waits += by

    def heeds_stop(self) -> bool:
        return self._attempt is not None and self._attempt.heeds_stop()

    @property
    def is_leased(self) -> bool:
        """Whether the task is certainly ours now. May be called from any thread."""
        return self._attempt is None or self._attempt.is_leased

    def is_slot_held(self) -> bool:
        return self._shared.slot.is_held()

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
        """Wait, without a slot, until `condition()` is true; it is first checked with the slot."""
        check_condition(condition)
        check_wake(wake)
        interval = _interval(poll_interval, poll_interval_ms)
        within, longest = limit_of(timeout, "timeout"), limit_of(max_interval, "max_interval")
        check_pace(interval, within, backoff, longest, jitter, max_errors)
        with self._call("defer_until", _checked(key)) as record_id:
            if await self._has_ended_before(record_id, _DEFER_UNTIL):
                return
            first = await self._get_wheel().first_check(condition, self.task_execution_id)
            if first.holds:
                await self._shared.ensure_held()
                self._record_condition_met(record_id)
                return
            deadline, left = self._condition_deadline(record_id, within)
            poll = self._get_wheel().watch(
                condition,
                interval,
                timeout=within,
                left=left,
                backoff=backoff,
                max_interval=longest,
                jitter=jitter,
                max_errors=max_errors,
                wake=wake,
                first=first,
            )
            count_first(poll, first.error)
            waiting = WaitingOn(
                "condition", _condition_sentence(name_of(condition)), deadline=deadline
            )
            try:
                await self._parked(poll.future, waiting, record_id, _DEFER_UNTIL, poll)
            except asyncio.CancelledError:
                self._end_wait(record_id)
                raise

    async def sleep(self, seconds: Seconds, *, key: str | None = None) -> None:
        """Wait, without a slot; after a crash it ends when it would have ended anyway."""
        length = seconds_of(seconds, "the length of a sleep")
        if is_never(length):
            length = math.inf
        with self._call("sleep", _checked(key)) as record_id:
            waiting = WaitingOn("sleep", _sleep_sentence(length))
            if self._attempt is None or record_id is None:
                await self._parked(_sleeping(length), waiting)
                return
            timer = await self._timer(self._attempt, record_id, length)
            if timer.is_pending:
                if timer.timeout_at < NEVER:
                    waiting = replace(waiting, deadline=timer.timeout_at)
                _promise(await self._parked(self._attempt.watch(timer.id), waiting), timer.id)
            else:
                await self._shared.ensure_held()

    async def wait_for(
        self,
        promise_id: str,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wait's own clock, by design
        *,
        key: str | None = None,
    ) -> Any:
        """Wait, without a slot, until that promise settles anywhere; a rejection raises."""
        check_key(promise_id, "promise id", MAX_ID_BYTES)
        within = limit_of(timeout, "timeout")
        with self._call("wait_for", _checked(key)) as record_id:
            found = await self._prepare_wait(promise_id, within, record_id)
            if isinstance(found, Promise):
                return value_of(found)
            del record_id  # thousands may be parked here, so each string counts
            reply = await self._parked(*found)
            return value_of(_promise(reply, promise_id))

    async def settled(self, promise_id: str, timeout: Seconds | None = None) -> Promise:  # noqa: ASYNC109
        """Wait, without a slot, for a promise that exists; returns the settled promise."""
        within = limit_of(timeout, "timeout")
        with self._call("wait_for", self.numbered(f"settled.{promise_id}")) as record_id:
            found = await self._prepare_wait(promise_id, within, record_id)
            if isinstance(found, Promise):
                return found
            return _promise(await self._parked(*found), promise_id)

    async def promise(self, name: str) -> "Token":
        """A promise of this task that others settle; the same one in every try."""
        attempt = self._attempt_with_store()
        self._shared.register()
        key = f"promise.{check_key(name, 'name of a promise', MAX_PROMISE_NAME_BYTES)}"
        promise_id = attempt.replay.record_id(key, lasting=True)
        tags = {"resonate:external": "true"}  # lets others wait for it on strict servers too
        create = CreatePromise(id=promise_id, timeout_at=NEVER, tags=tags)
        await attempt.fenced(FenceTask(id=attempt.id, version=attempt.version, inner=create))
        return Token(self, promise_id, key)

    @overload
    async def rpc(
        self, func: str, *args: Any, returns: type[T], **options: Unpack[CallOptions]
    ) -> T: ...
    @overload
    async def rpc(
        self,
        func: Served[None] | Served[Awaitable[None]] | str,
        *args: Any,
        **options: Unpack[CallOptions],
    ) -> Any: ...
    @overload
    async def rpc(
        self, func: Served[Awaitable[T]], *args: Any, **options: Unpack[CallOptions]
    ) -> T: ...
    @overload
    async def rpc(self, func: Served[T], *args: Any, **options: Unpack[CallOptions]) -> T: ...
    async def rpc(
        self,
        func: str | Served[Any],
        *args: Any,
        returns: type[Any] | None = None,
        target: str = DEFAULT_TARGET,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the call's own deadline
        version: int = 1,
        key: str | None = None,
    ) -> Any:
        """Call a function of a worker in any language; wait for its result without a slot.

        `func` is its name, or a task of this program that has one (`@task(rpc=...)`): then the
        result has the type which that returns. `returns` says what a function by name returns;
        an answer of another type raises `UsageError`.
        """
        name = name_called(func)
        call, place = new_call(name, args, version), check_target(target)
        within = limit_of(timeout, "timeout")
        attempt = self._attempt_with_store()
        self._shared.register()
        with attempt.replay.keyed("rpc", _checked(key)) as record_key:
            promise = await make_call(attempt, record_key, call, place, millis_of(within))
            if promise.is_pending:
                deadline = None if promise.timeout_at == NEVER else promise.timeout_at
                waiting = WaitingOn(
                    "rpc",
                    f"waiting for {name}() at {place}",
                    deadline=deadline,
                    awaited=promise.id,
                )
                watched = await self._parked(attempt.watch(promise.id), waiting)
                promise = _promise(watched, promise.id)
            else:
                await self._shared.ensure_held()
            what = f"{attempt.id}: {name}() at {place}"
            return answer_of_type(result_of(promise, what), returns, what)

    async def defer(
        self,
        trigger: Trigger,
        resume: Callable[..., Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wait's own clock, by design
        *,
        key: str | None = None,
    ) -> Any:
        """End this try, and go on in a new one when the trigger fires; nothing is held meanwhile.

        With `resume`, the new try begins at `resume(context, handle, event=payload, **kwargs)`,
        with the context as it was changed so far. Without it the task's function runs again, and
        this call returns the payload then; so whatever it did before must be in checkpoints.
        """
        asked = new_deferral(trigger, resume, kwargs, timeout)
        attempt = self._attempt_with_store()
        with self._call("defer", _checked(key)) as record_id:
            assert record_id is not None
            return await event_or_defer(attempt, asked, record_id)

    @property
    def event(self) -> Any:
        """What the trigger fired with that has resumed this try; None if it was not resumed."""
        resumed = None if self._attempt is None else self._attempt.resumed
        if resumed is None or resumed.event.state != "resolved":
            return None
        return payload_of(resumed.event, "")

    # --- other control -------------------------------------------------------------------

    @overload
    async def checkpoint(
        self, key: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def checkpoint(
        self, key: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    async def checkpoint(
        self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Run `fn` once per task and key; afterwards its stored result is read instead."""
        given = arguments_of(args, kwargs)
        found = self.recalled(key, given)
        if found is not None:
            return found.value
        await self.may_work()
        attempt = self._attempt_with_store()
        attempt.begin_checkpoint()
        try:
            result = fn(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            return await self.keep(key, given, result)
        finally:
            await attempt.end_checkpoint()

    async def may_work(self) -> None:
        """Before work with lasting effects: hold the slot, and make sure that the task is ours."""
        await self._shared.ensure_held()
        attempt = self._attempt_with_store()
        if not attempt.is_leased:
            await attempt.hold_lease()

    def recalled(self, key: str, args: tuple[Any, ...]) -> Record | None:
        """What was stored under this key before for these arguments."""
        record_id, call = self._checkpoint(key, args)
        return self._attempt_with_store().replay.found(record_id, call)

    async def keep(self, key: str, args: tuple[Any, ...], result: Any) -> Any:
        """Store the result, and return it as every later run will read it."""
        attempt = self._attempt_with_store()
        record_id, call = self._checkpoint(key, args)
        stored = checkpointed(Record(call.kind, call.digest, result), key)
        try:
            kept = record_of(await attempt.record(record_id, stored))
        except UsageError as error:  # too large, unless the task has ended meanwhile
            attempt.check_open()
            raise ContextError(f"checkpoint '{key}' cannot be stored: {error}") from None
        attempt.replay.check(record_id, kept, call, is_earlier=False)
        attempt.replay.remember(record_id, kept)
        return kept.value

    async def yield_slot(self) -> None:
        """Let others who wait for a slot go first, then go on."""
        self.check_open()
        wait = self._shared.begin_wait(TO_LET_OTHERS_GO, None)
        try:
            if self._attempt is not None and not self.is_slot_held():
                await self._attempt.let_others_in()
        finally:
            await self._shared.end_wait(wait, is_ending=self._shared.is_ending())

    def progress(self, fraction: float | None = None, text: str = "") -> None:
        """Say how far the task has got; shown in the run's status."""
        self.check_open()
        if fraction is not None and not 0 <= fraction <= 1:
            raise UsageError(f"progress takes a fraction between 0.0 and 1.0, got {fraction!r}")
        if self._attempt is not None:
            self._attempt.progress(fraction, text)

    def check_open(self) -> None:
        """Raise when the task has ended or is being ended."""
        if self._attempt is not None:
            self._attempt.check_open()

    def numbered(self, key: str) -> str:
        """A separate key for each of several calls that share a name."""
        return self._attempt_with_store().replay.numbered(key)

    # --- the sequence every wait shares --------------------------------------------------

    async def _parked(
        self,
        future: "asyncio.Future[Any]",
        waiting: WaitingOn,
        record_id: str | None = None,
        call: Record | None = None,
        poll: Poll | None = None,
    ) -> Any:
        """Wait for `future` without the slot. Errors are raised with the slot held again.

        The end of a condition is recorded. That of a promise is in the promise itself, so only a
        timeout has to be recorded.
        """
        try:
            self._check_may_park()
            wait = self._shared.begin_wait(waiting, poll)
        except asyncio.CancelledError:
            future.cancel()
            raise
        try:
            result = await future
        except asyncio.CancelledError:
            future.cancel()
            await self._shared.end_wait(wait, is_ending=self._shared.is_ending())
            raise
        except (DeferTimeout, ConditionError) as error:
            await self._shared.end_wait(wait, record_id, call and call.raising(error))
            raise
        except BaseException:
            await self._shared.end_wait(wait)
            raise
        if poll is None:
            await self._shared.end_wait(wait)
        else:
            await self._shared.end_wait(wait, record_id, call)
        return result

    def _check_may_park(self) -> None:
        if self._attempt is not None:
            self._attempt.check_may_park()

    # --- promises ------------------------------------------------------------------------

    async def _prepare_wait(
        self, promise_id: str, within: float | None, record_id: str | None
    ) -> Promise | tuple[PromiseWatch, WaitingOn, str | None, Record | None]:
        """The promise, if it is settled; else what is needed to wait for it."""
        call = Record("wait_for", digest_of(promise_id))
        attempt = self._attempt_with_store()
        assert record_id is not None
        attempt.begin_promise_wait(record_id, call)
        # A timeout is raised again; a value is in the promise.
        await self._has_ended_before(record_id, call)
        begun = None if within is None else attempt.fixed_deadline(record_id)
        ensure = EnsurePromise(id=promise_id, awaiter=attempt.id)
        promise = _promise(await attempt.send(ensure), promise_id)
        if is_late(promise, begun) or (promise.is_pending and (begun or NEVER) < attempt.now()):
            error = DeferTimeout(_timeout_message(attempt.id, promise.id, within))
            await self._shared.ensure_held()
            self._record(record_id, call.raising(error))
            raise error
        if not promise.is_pending:
            await self._shared.ensure_held()
            attempt.end_wait(record_id)
            return promise
        watch = self._watch(attempt, promise.id, within, record_id)
        deadline = watch.deadline if isinstance(watch, TimedPromiseWatch) else None
        waiting = WaitingOn("promise", "", deadline=deadline, awaited=promise_id)
        return (
            (watch, waiting, None, None) if deadline is None else (watch, waiting, record_id, call)
        )

    def _watch(
        self, attempt: Attempt, promise_id: str, within: float | None, record_id: str
    ) -> PromiseWatch:
        length = millis_of(within)
        if length == NEVER:
            return attempt.watch(promise_id)
        timeout = _timeout_message(attempt.id, promise_id, within)
        return attempt.watch_until(promise_id, attempt.begin_wait(record_id, length), timeout)

    async def _timer(self, attempt: Attempt, record_id: str, length: float) -> Promise:
        """The durable timer of a sleep, from an earlier run or new."""
        call = Record("sleep", digest_of(length))
        attempt.replay.found(record_id, call)
        timer = attempt.replay.timer(record_id)
        if timer is not None:
            return timer.at(attempt.now())
        tags = {"resonate:timer": "true"}
        created = await attempt.create(record_id, millis_of(length), encoded(call), tags)
        attempt.replay.check(record_id, record_of(created), call, is_earlier=False)
        return created

    def _condition_deadline(
        self, record_id: str | None, within: float | None
    ) -> tuple[Millis | None, float | None]:
        """The deadline of a wait for a condition; what is left if an earlier run began it."""
        length = millis_of(within)
        if self._attempt is None or record_id is None or length == NEVER:
            return None, None
        is_new = self._attempt.fixed_deadline(record_id) is None
        deadline = self._attempt.begin_wait(record_id, length).deadline
        left = None if is_new else max(0, deadline - self._attempt.now()) / 1000
        return deadline, left

    def _end_wait(self, record_id: str | None) -> None:
        """A wait that is cancelled from inside the body is over as well."""
        if self._attempt is not None and record_id is not None:
            self._attempt.end_wait(record_id)

    # --- small checks --------------------------------------------------------------------

    def _call(self, kind: str, key: str | None) -> AbstractContextManager[str | None]:
        """The caller is a strand from now on, even if the call returns at once."""
        self.check_open()
        self._shared.register()
        return nullcontext() if self._attempt is None else self._attempt.replay.call(kind, key)

    async def _has_ended_before(self, record_id: str | None, call: Record) -> bool:
        """Whether this call has ended in an earlier run; what it raised then, it raises again."""
        if self._attempt is None or record_id is None:
            return False
        found = self._attempt.replay.found(record_id, call)
        if found is None:
            return False
        await self._shared.ensure_held()
        found.raise_again()
        return True

    def _record_condition_met(self, record_id: str | None) -> None:
        """It held at once; recorded, so that no later run checks it again."""
        if record_id is not None:
            self._record(record_id, _DEFER_UNTIL)

    def _record(self, record_id: str, record: Record) -> None:
        """Record the end of a call that does not wait."""
        if self._attempt is not None:
            self._attempt.show(self._shared.shown, record_id, of=record)

    def _checkpoint(self, key: str, args: tuple[Any, ...]) -> tuple[str, Record]:
        replay = self._attempt_with_store().replay
        record_id = replay.record_id(f"checkpoint.{check_key(key)}", lasting=True)
        return record_id, Record("checkpoint", digest_of(*args))

    def _get_wheel(self) -> Wheel:
        if self._wheel is None:
            self._wheel = Wheel()
        return self._wheel

    def _attempt_with_store(self) -> Attempt:
        self.check_open()
        if self._attempt is None:
            raise UsageError("this handle has no store: use it inside a task of a Runner")
        return self._attempt


class Token:
    """A promise that others settle: give them its id, then `await` it."""

    __slots__ = ("_handle", "_key", "id")

    def __init__(self, handle: TaskHandle, promise_id: str, key: str) -> None:
        self._handle = handle
        self._key = key
        self.id = promise_id

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.wait().__await__()

    async def wait(self, timeout: Seconds | None = None) -> Any:  # noqa: ASYNC109 - as wait_for
        key = self._handle.numbered(self._key)
        return await self._handle.wait_for(self.id, timeout, key=key)


def current_handle() -> TaskHandle:
    """The handle of the task this code runs in, for helper functions."""
    handle = _current.get()
    if handle is None:
        raise UsageError("there is no current task: call this from code that a Runner runs")
    return handle


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a checkpoint as they are compared between runs of the body."""
    return (*args, dict(sorted(kwargs.items()))) if kwargs else args


def _checked(key: str | None) -> str | None:
    return None if key is None else check_key(key)


@lru_cache(maxsize=1024)
def _condition_sentence(condition: str) -> str:
    """One string for all who wait for the same condition."""
    return f"waiting until {condition} is true"


def maybe_handle() -> TaskHandle | None:
    return _current.get()


def enter_handle(handle: Any) -> None:
    """Make it the current handle of this context: a `TaskHandle`, or a blocking one in a thread."""
    _current.set(handle)


def _interval(seconds: Seconds | None, milliseconds: float | None) -> float:
    if seconds is not None and milliseconds is not None:
        raise UsageError("give poll_interval (seconds) or poll_interval_ms, not both")
    if milliseconds is not None:
        interval = seconds_of_millis(milliseconds, "poll_interval_ms")
    elif seconds is not None:
        interval = seconds_of(seconds, "poll_interval")
    else:
        return POLL_INTERVAL_S
    if interval <= 0 or is_never(interval):
        raise UsageError(f"the poll interval must be positive and finite, got {interval:g} s")
    return interval


def _sleep_sentence(length: float) -> str:
    return "sleeping without end" if length == math.inf else f"sleeping {length:g} s"


def _sleeping(length: float) -> "asyncio.Future[Any]":
    if length == math.inf:
        return asyncio.get_running_loop().create_future()
    return asyncio.ensure_future(asyncio.sleep(length))


def _timeout_message(task_id: str, promise_id: str, within: float | None) -> str:
    return f"{task_id}: promise {promise_id} was not settled in {within or 0:g} s"


def _promise(reply: Reply, promise_id: str) -> Promise:
    if isinstance(reply.data, PromiseData):
        return reply.data.promise
    raise error_for(reply.status, f"promise {promise_id}: {reply.data}")
