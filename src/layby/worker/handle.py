"""The handle a task body waits with: every wait releases the slot and reclaims it afterwards.

The sequence is the same for all waits: `Deferred` is handed to the writer, the slot is released,
the body waits on a bare future, the slot is reclaimed (in line, by priority and age), `Active` is
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
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from msgspec.structs import replace

from layby.core.commands import CreatePromise, FenceTask
from layby.core.model import NEVER, Promise
from layby.core.questions import ASKER
from layby.core.waits import WaitingOn
from layby.errors import ConditionError, ContextError, DeferTimeout, UsageError
from layby.program import Served
from layby.triggers import Trigger
from layby.wire.durations import limit_of
from layby.wire.trigger_events import payload_of
from layby.worker import wait_terms
from layby.worker.annotations import ShownWait
from layby.worker.approval_requests import (
    Approval,
    ApprovalAnswer,
    ApprovalTerm,
    begin_approval,
    new_approval,
)
from layby.worker.attempt import Attempt
from layby.worker.begun_waits import (
    DEFER_UNTIL,
    BegunWait,
    begin_call,
    begin_promise,
    condition_sentence,
    durable_timer,
    ended_by_hand,
    settled_promise,
    wait_call,
    watch_condition,
)
from layby.worker.child_run import ChildRun, ChildSpec, NamedFlow
from layby.worker.condition_poll import name_of
from layby.worker.deferring import event_or_defer, new_deferral
from layby.worker.map_calls import Join, MapCall, MapOptions, OnError, checked_key
from layby.worker.outgoing_call import DEFAULT_TARGET, CallOptions
from layby.worker.outgoing_link import make_link
from layby.worker.promise_watches import PromiseWatch, TimedPromiseWatch
from layby.worker.rejections import value_of
from layby.worker.replay import (
    MAX_KEY_BYTES,
    Record,
    check_key,
    checkpointed,
    digest_of,
    record_of,
)
from layby.worker.shared_slot import SharedSlot, Slot
from layby.worker.tell import TO_LET_OTHERS_GO
from layby.worker.wait_bundles import First, begin_bundle
from layby.worker.wait_terms import (
    BundleTerm,
    Condition,
    PromiseTerm,
    Seconds,
    Waitable,
    sleep_sentence,
)
from layby.worker.wheel import Poll, Wake, Wheel

MAX_PROMISE_NAME_BYTES = MAX_KEY_BYTES - len("promise.-123456")
"""Each wait for it has a key made of the name and a number."""

P = ParamSpec("P")
T = TypeVar("T")

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
    def failures(self) -> int:
        """How many tries of this task have failed: what a retry is, and a resumed try is not."""
        return 0 if self._attempt is None else self._attempt.failures

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
        term = wait_terms.defer_until(
            condition,
            poll_interval,
            poll_interval_ms=poll_interval_ms,
            timeout=timeout,
            backoff=backoff,
            max_interval=max_interval,
            jitter=jitter,
            max_errors=max_errors,
            wake=wake,
        )
        with self._call("defer_until", _checked(key)) as record_id:
            if await self._has_ended_before(record_id, DEFER_UNTIL):
                return
            poll, deadline = await watch_condition(
                self._get_wheel(), self._attempt, record_id, term
            )
            if poll is None:
                await self._shared.ensure_held()
                self._record_condition_met(record_id)
                return
            waiting = WaitingOn(
                "condition",
                condition_sentence(name_of(condition)),
                deadline=deadline,
                record_id=record_id,
            )
            del term  # thousands may be parked here, and the poll has it all
            try:
                await self._parked(poll.future, waiting, record_id, DEFER_UNTIL, poll)
            except asyncio.CancelledError:
                self._end_wait(record_id)
                raise

    async def sleep(self, seconds: Seconds, *, key: str | None = None) -> None:
        """Wait, without a slot; after a crash it ends when it would have ended anyway."""
        length = wait_terms.sleep(seconds).length
        with self._call("sleep", _checked(key)) as record_id:
            waiting = WaitingOn("sleep", sleep_sentence(length))
            if self._attempt is None or record_id is None:
                await self._parked(_sleeping(length), waiting)
                return
            timer = await durable_timer(self._attempt, record_id, length)
            if timer.is_pending:
                deadline = timer.timeout_at if timer.timeout_at < NEVER else None
                waiting = replace(waiting, deadline=deadline, record_id=record_id)
                watched = await self._parked(self._attempt.watch(timer.id), waiting)
                timer = settled_promise(watched, timer.id)
            else:
                await self._shared.ensure_held()
            value_of(timer)  # raises if somebody has rejected it

    async def wait_for(
        self,
        promise_id: str,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wait's own clock, by design
        *,
        key: str | None = None,
    ) -> Any:
        """Wait, without a slot, until that promise settles anywhere; a rejection raises."""
        within = wait_terms.wait_for(promise_id, timeout).within
        with self._call("wait_for", _checked(key)) as record_id:
            found = await self._prepare_wait(promise_id, within, record_id)
            if isinstance(found, Promise):
                return value_of(found)
            parking = self._parked(*found)
            del record_id, found  # thousands may be parked here, so each string counts
            return value_of(settled_promise(await parking, promise_id))

    async def settled(
        self,
        promise_id: str,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wait's own clock, by design
        *,
        key: str | None = None,
        is_open: bool = False,
    ) -> Promise:
        """Wait, without a slot, for a promise that exists; returns the settled promise.

        `is_open`: it was pending a moment ago, and is kept for this task.
        """
        within = limit_of(timeout, "timeout")
        key = self.numbered(f"settled.{promise_id}") if key is None else key
        with self._call("wait_for", key) as record_id:
            found = await self._prepare_wait(promise_id, within, record_id, is_open=is_open)
            if isinstance(found, Promise):
                return found
            return settled_promise(await self._parked(*found), promise_id)

    async def promise(self, name: str) -> "Token":
        """A promise of this task that others settle; the same one in every try."""
        attempt = self._attempt_with_store()
        self._shared.register()
        key = f"promise.{check_key(name, 'name of a promise', MAX_PROMISE_NAME_BYTES)}"
        promise_id = attempt.replay.record_id(key, lasting=True)
        # External lets others wait for it on strict servers too.
        tags = {"resonate:external": "true", ASKER: attempt.id}
        create = CreatePromise(id=promise_id, timeout_at=NEVER, tags=tags)
        await attempt.fenced(FenceTask(id=attempt.id, version=attempt.version, inner=create))
        return Token(self, promise_id, key)

    def approval(
        self,
        prompt: str,
        schema: type[Any] | Mapping[str, Any] | None = None,
        timeout: Seconds | None = None,
        *,
        key: str | None = None,
    ) -> Approval:
        """A question to a person; `await` it for the answer. The same one in every try.

        A yes has a value if there is a `schema`: a class, or a JSON Schema. After `timeout`
        nobody can answer any more, and waiting for it raises `DeferTimeout`.
        """
        return new_approval(self, self._attempt_with_store(), prompt, schema, timeout, key)

    async def open_approval(self, term: ApprovalTerm) -> str:
        self._shared.register()
        return (await term.open(self._attempt_with_store())).id

    async def wait_for_approval(self, term: ApprovalTerm, key: str) -> ApprovalAnswer:
        with self._call("approval", self.numbered(key)) as record_id:
            assert record_id is not None
            attempt = self._attempt_with_store()
            return await self._ended(await begin_approval(attempt, record_id, term))

    async def link(self, promise_id: str, expires: Seconds | None) -> str:
        """A URL with which somebody can settle this promise of the task; see `Approval.url`."""
        self._shared.register()
        return await make_link(self._attempt_with_store(), promise_id, expires)

    async def withdraw_approval(self, term: ApprovalTerm) -> None:
        self._shared.register()
        attempt = self._attempt_with_store()
        await term.open(attempt)
        attempt.annotations.withdraw(term.promise_id)
        await attempt.annotations.write()

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
        term = wait_terms.rpc(
            func, *args, returns=returns, target=target, timeout=timeout, version=version
        )
        attempt = self._attempt_with_store()
        self._shared.register()
        with attempt.replay.keyed("rpc", _checked(key)) as record_key:
            return await self._ended(await begin_call(attempt, record_key, record_key, term))

    # --- child runs ----------------------------------------------------------------------

    async def start(
        self,
        workflow: NamedFlow | str,
        context: Any = None,
        *,
        run_id: str | None = None,
        deadline: Seconds | None = None,
        priority: int | None = None,
        detach: bool = False,
        key: str | None = None,
    ) -> ChildRun:
        """Start a run below this one and return at once; the same one in every try.

        It ends with this run: when that is cancelled or its deadline passes, and when this task is
        cancelled; not with `detach`. Without `run_id` its id is made from those of this run, this
        task and the key of the call. It has the priority of this run, unless it is given another.
        """
        attempt = self._attempt_with_store()
        self._shared.register()
        with attempt.replay.keyed("start", _checked(key)) as record_key:
            asked = ChildSpec(workflow, context, run_id, deadline, detach, record_key, priority)
            started = await attempt.starter.start_child(attempt, self, asked)
            await self._shared.ensure_held()
            return ChildRun(self, started)

    # --- several waits at once -----------------------------------------------------------

    async def all_of(
        self,
        *waits: Waitable,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wait's own clock, by design
        key: str | None = None,
    ) -> list[Any]:
        """Wait, as one wait without a slot, for all of these (`layby.waits`): results in order.

        The first to fail ends it; whatever still waits then is withdrawn.
        """
        return await self._bundle(wait_terms.all_of(*waits, timeout=timeout), key)

    async def first_of(
        self,
        *waits: Waitable,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wait's own clock, by design
        key: str | None = None,
    ) -> First:
        """Wait for the first of these to end, well or not; the others are withdrawn."""
        return await self._bundle(wait_terms.first_of(*waits, timeout=timeout), key)

    async def any_of(
        self,
        *waits: Waitable,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the wait's own clock, by design
        key: str | None = None,
    ) -> First:
        """Wait for the first of these to succeed; `NoneSucceeded` when all have failed."""
        return await self._bundle(wait_terms.any_of(*waits, timeout=timeout), key)

    async def _bundle(self, term: BundleTerm, key: str | None) -> Any:
        attempt = self._attempt_with_store()
        self._shared.register()
        with attempt.replay.keyed(term.kind, _checked(key)) as bundle_key:
            return await self._ended(
                await begin_bundle(attempt, self._get_wheel(), bundle_key, term)
            )

    async def _ended(self, wait: BegunWait) -> Any:
        """The result of a wait that has begun, with the slot held."""
        if wait.end is None:
            assert wait.future is not None
            await self._parked(wait.future, wait.waiting)
            wait.look()
        else:
            await self._shared.ensure_held()
        return wait.value()

    # --- a task for each item ------------------------------------------------------------

    @overload
    async def map(
        self, task: Served[Awaitable[T]], items: Iterable[Any], **options: Unpack[MapOptions]
    ) -> list[T]: ...
    @overload
    async def map(
        self, task: Served[T], items: Iterable[Any], **options: Unpack[MapOptions]
    ) -> list[T]: ...
    async def map(
        self,
        task: Served[Any],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        on_error: OnError = "raise",
        key: str | None = None,
    ) -> list[Any]:
        """Run the task for each item, as a task of the run; wait for all of them without a slot.

        The function gets the item by name, beside a copy of the context; what it returns is the
        item's result. Results come in the order of the items. The first failure ends it, and
        cancels what is left (`ItemFailed`); with `on_error="collect"` failures are among the
        results. `limit` is how many items may be open at once, on all machines together.
        """
        call = MapCall(self._attempt_with_store(), task, on_error, limit)
        join = await self._begin_map(call, items, key)
        ended = join.promise
        if ended.is_pending or join.is_given_up:
            with call.withdrawing(join):
                settled = await self._parked(call.end_of(join), call.waiting_for(join))
            ended = settled_promise(settled, ended.id)
        await self._shared.ensure_held()
        return await call.results(join, ended)

    async def map_unordered(
        self,
        task: Served[Any],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        on_error: OnError = "raise",
        key: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        """As `map`, but each result comes when its item has ended."""
        call = MapCall(self._attempt_with_store(), task, on_error, limit)
        join = await self._begin_map(call, items, key)
        with call.withdrawing(join), closing(call.items_as_they_end(join)) as ended:
            await ended.read(call.items(join))
            while not ended.is_empty:
                for number, item in ended.take():
                    await self._shared.ensure_held()
                    yield call.result_of(number, item)
                if not ended.is_empty:
                    await self._parked(ended.more(), call.waiting_for(join))

    async def _begin_map(self, call: MapCall, items: Iterable[Any], key: str | None) -> Join:
        self._shared.register()
        replay = self._attempt_with_store().replay
        with replay.keyed("map", checked_key(key)) as name:
            return await call.begin(name, items)

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
            kept = record_of(await attempt.annotations.record(record_id, stored))
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
            self._attempt.annotations.progress(fraction, text)

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
            by_hand = await self._end_recorded(wait, record_id, call and call.raising(error))
            if by_hand is None:
                raise
            by_hand.raise_again()
            return None
        except BaseException:
            await self._shared.end_wait(wait)
            raise
        if poll is None:
            await self._shared.end_wait(wait)
        elif (by_hand := await self._end_recorded(wait, record_id, call)) is not None:
            by_hand.raise_again()
        return result

    async def _end_recorded(
        self, wait: ShownWait, record_id: str | None, record: Record | None
    ) -> Record | None:
        """How a person has ended the wait, if that was stored first."""
        stored = await self._shared.end_wait(wait, record_id, record)
        return None if self._attempt is None else ended_by_hand(self._attempt, stored)

    def _check_may_park(self) -> None:
        if self._attempt is not None:
            self._attempt.check_may_park()

    # --- promises ------------------------------------------------------------------------

    async def _prepare_wait(
        self,
        promise_id: str,
        within: float | None,
        record_id: str | None,
        *,
        is_open: bool = False,
    ) -> Promise | tuple[PromiseWatch, WaitingOn, str | None, Record | None]:
        """The promise, if it is settled; else what is needed to wait for it."""
        attempt = self._attempt_with_store()
        assert record_id is not None
        begun = await begin_promise(attempt, record_id, promise_id, within, is_open=is_open)
        if isinstance(begun, PromiseWatch):
            if not isinstance(begun, TimedPromiseWatch):
                waiting = WaitingOn("promise", "", attempt.now(), awaited=promise_id)
                return begun, waiting, None, None
            waiting = WaitingOn(
                "promise", "", deadline=begun.deadline, awaited=promise_id, record_id=record_id
            )
            return begun, waiting, record_id, wait_call(promise_id)
        await self._shared.ensure_held()
        if isinstance(begun, Promise):
            attempt.annotations.end_wait(record_id)
            return begun
        if not begun.is_recorded:
            self._record(record_id, wait_call(promise_id).raising(begun.error))
        raise begun.error

    def _end_wait(self, record_id: str | None) -> None:
        """A wait that is cancelled from inside the body is over as well."""
        if self._attempt is not None and record_id is not None:
            self._attempt.annotations.end_wait(record_id)

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
            self._record(record_id, DEFER_UNTIL)

    def _record(self, record_id: str, record: Record) -> None:
        """Record the end of a call that does not wait."""
        if self._attempt is not None:
            self._attempt.annotations.carry(record_id, record)
            self._attempt.annotations.show(self._shared.shown)

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

    @property
    def term(self) -> PromiseTerm:
        """As a wait of a bundle."""
        return PromiseTerm(self.id)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.wait().__await__()

    async def url(self, expires: Seconds | None = None) -> str:
        """A link to settle it with, once, the same each time; good for `expires` (30 days)."""
        return await self._handle.link(self.id, expires)

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


def maybe_handle() -> TaskHandle | None:
    return _current.get()


def enter_handle(handle: Any) -> None:
    """Make it the current handle of this context: a `TaskHandle`, or a blocking one in a thread."""
    _current.set(handle)


def _sleeping(length: float) -> "asyncio.Future[Any]":
    if length == math.inf:
        return asyncio.get_running_loop().create_future()
    return asyncio.ensure_future(asyncio.sleep(length))
