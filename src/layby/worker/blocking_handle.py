"""The handle for plain `def` bodies: the same calls, blocking the body's own thread."""

import asyncio
import inspect
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar, Unpack, cast, overload

from layby.errors import UsageError
from layby.program import Served
from layby.triggers import Trigger
from layby.worker.approval_requests import BlockingApproval
from layby.worker.child_run import BlockingChildRun, NamedFlow
from layby.worker.handle import TaskHandle, Token, arguments_of
from layby.worker.map_calls import MapOptions, OnError
from layby.worker.outgoing_call import DEFAULT_TARGET, CallOptions
from layby.worker.real_work import RealWork
from layby.worker.shared_slot import SharedSlot
from layby.worker.strands import MAIN, Strand
from layby.worker.thread_call import thread_call
from layby.worker.wait_bundles import First
from layby.worker.wait_terms import Condition, PromiseTerm, Seconds, Waitable
from layby.worker.wheel import Wake

P = ParamSpec("P")
T = TypeVar("T")

NO_MORE: Final = object()


class BlockingHandle:
    """Waits free the slot but keep the thread; prefer `async def` for long waits."""

    def __init__(
        self,
        handle: TaskHandle,
        shared: SharedSlot,
        loop: asyncio.AbstractEventLoop,
        work: RealWork,
    ) -> None:
        self._handle = handle
        self._shared = shared
        self._main: threading.Thread | None = None
        self._loop = loop
        self._work = work
        self._calls: set[asyncio.Task[Any]] = set()

    # --- waits ---------------------------------------------------------------------------

    def defer_until(
        self,
        condition: Condition,
        poll_interval: Seconds | None = None,
        *,
        poll_interval_ms: float | None = None,
        timeout: Seconds | None = None,
        backoff: float = 1.0,
        max_interval: Seconds | None = None,
        jitter: float = 0.0,
        max_errors: int = 10,
        wake: Wake | None = None,
        key: str | None = None,
    ) -> None:
        self.wait(
            self._handle.defer_until(
                condition,
                poll_interval,
                poll_interval_ms=poll_interval_ms,
                timeout=timeout,
                backoff=backoff,
                max_interval=max_interval,
                jitter=jitter,
                max_errors=max_errors,
                wake=wake,
                key=key,
            )
        )

    def sleep(self, seconds: Seconds, *, key: str | None = None) -> None:
        self.wait(self._handle.sleep(seconds, key=key))

    def wait_for(
        self, promise_id: str, timeout: Seconds | None = None, *, key: str | None = None
    ) -> Any:
        return self.wait(self._handle.wait_for(promise_id, timeout, key=key))

    @overload
    def rpc(self, func: str, *args: Any, returns: type[T], **options: Unpack[CallOptions]) -> T: ...
    @overload
    def rpc(
        self,
        func: Served[None] | Served[Awaitable[None]] | str,
        *args: Any,
        **options: Unpack[CallOptions],
    ) -> Any: ...
    @overload
    def rpc(self, func: Served[Awaitable[T]], *args: Any, **options: Unpack[CallOptions]) -> T: ...
    @overload
    def rpc(self, func: Served[T], *args: Any, **options: Unpack[CallOptions]) -> T: ...
    def rpc(
        self,
        func: str | Served[Any],
        *args: Any,
        returns: type[Any] | None = None,
        target: str = DEFAULT_TARGET,
        timeout: Seconds | None = None,
        version: int = 1,
        key: str | None = None,
    ) -> Any:
        call = cast("Callable[..., Coroutine[Any, Any, Any]]", self._handle.rpc)
        return self.wait(
            call(
                func,
                *args,
                returns=returns,
                target=target,
                timeout=timeout,
                version=version,
                key=key,
            )
        )

    def all_of(
        self, *waits: Waitable, timeout: Seconds | None = None, key: str | None = None
    ) -> list[Any]:
        return self.wait(self._handle.all_of(*waits, timeout=timeout, key=key))

    def first_of(
        self, *waits: Waitable, timeout: Seconds | None = None, key: str | None = None
    ) -> First:
        return self.wait(self._handle.first_of(*waits, timeout=timeout, key=key))

    def any_of(
        self, *waits: Waitable, timeout: Seconds | None = None, key: str | None = None
    ) -> First:
        return self.wait(self._handle.any_of(*waits, timeout=timeout, key=key))

    @overload
    def map(
        self, task: Served[Awaitable[T]], items: Iterable[Any], **options: Unpack[MapOptions]
    ) -> list[T]: ...
    @overload
    def map(
        self, task: Served[T], items: Iterable[Any], **options: Unpack[MapOptions]
    ) -> list[T]: ...
    def map(
        self,
        task: Served[Any],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        on_error: OnError = "raise",
        key: str | None = None,
    ) -> list[Any]:
        return self.wait(self._handle.map(task, items, limit=limit, on_error=on_error, key=key))

    def map_unordered(
        self,
        task: Served[Any],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        on_error: OnError = "raise",
        key: str | None = None,
    ) -> Iterator[Any]:
        """An iterator; close it, or read it to its end."""
        results = self._handle.map_unordered(task, items, limit=limit, on_error=on_error, key=key)
        try:
            while (found := self.wait(_next_of(results))) is not NO_MORE:
                yield found
        finally:
            with suppress(asyncio.CancelledError, UsageError):  # the body has ended before
                self.call(_closed(results))

    def promise(self, name: str) -> "BlockingToken":
        return BlockingToken(self, self.call(self._handle.promise(name)))

    def approval(
        self,
        prompt: str,
        schema: type[Any] | Mapping[str, Any] | None = None,
        timeout: Seconds | None = None,
        *,
        key: str | None = None,
    ) -> BlockingApproval:
        return BlockingApproval(self, self._handle.approval(prompt, schema, timeout, key=key))

    def defer(
        self,
        trigger: Trigger,
        resume: Callable[..., Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: Seconds | None = None,
        *,
        key: str | None = None,
    ) -> Any:
        return self.call(self._handle.defer(trigger, resume, kwargs, timeout, key=key))

    def start(
        self,
        workflow: NamedFlow | str,
        context: Any = None,
        *,
        run_id: str | None = None,
        deadline: Seconds | None = None,
        priority: int | None = None,
        detach: bool = False,
        key: str | None = None,
    ) -> BlockingChildRun:
        starting = self._handle.start(
            workflow,
            context,
            run_id=run_id,
            deadline=deadline,
            priority=priority,
            detach=detach,
            key=key,
        )
        return BlockingChildRun(self, self.call(starting))

    @property
    def event(self) -> Any:
        return self._handle.event

    # --- other control -------------------------------------------------------------------

    @overload
    def checkpoint(
        self, key: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    def checkpoint(
        self, key: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    def checkpoint(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A plain `fn` runs on this thread, an async one on the loop."""
        if inspect.iscoroutinefunction(fn):
            return self.call(self._handle.checkpoint(key, fn, *args, **kwargs))
        given = arguments_of(args, kwargs)
        found = self._handle.recalled(key, given)
        if found is not None:
            return found.value
        if not self._handle.is_leased or not self._handle.is_slot_held():
            self.call(self._handle.may_work())
        return self.call(self._handle.keep(key, given, fn(*args, **kwargs)))

    def yield_slot(self) -> None:
        self.call(self._handle.yield_slot())

    def progress(self, fraction: float | None = None, text: str = "") -> None:
        self.call(_called(self._handle.progress, fraction, text))

    def is_slot_held(self) -> bool:
        return self._handle.is_slot_held()

    @property
    def is_cancelled(self) -> bool:
        return self._handle.heeds_stop()

    @property
    def try_number(self) -> int:
        return self._handle.try_number

    @property
    def failures(self) -> int:
        """How many tries of this task have failed: what a retry is, and a resumed try is not."""
        return self._handle.failures

    @property
    def task_execution_id(self) -> str | None:
        return self._handle.task_execution_id

    # --- between thread and loop ---------------------------------------------------------

    def run(self, call: Callable[[], Any]) -> Any:
        """Called in the body's own thread, which is its main strand."""
        self._main = threading.current_thread()
        if not self._handle.is_leased:  # the process may have been paused meanwhile
            self.call(self._handle.may_work())
        return thread_call(call)

    def interrupt(self) -> bool:
        """Called on the loop: whatever the thread waits for now raises there. Whether it waits."""
        for answering in self._calls:
            answering.cancel()
        return bool(self._calls)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """A wait: here the body can be ended when the worker stops."""
        return self.call(coroutine, is_wait=True)

    def call(self, coroutine: Coroutine[Any, Any, T], *, is_wait: bool = False) -> T:
        """Run it on the loop and wait for it; meanwhile this thread does no real work."""
        try:
            self._handle.check_open()
        except BaseException:
            coroutine.close()
            raise
        answered = self._call_on_loop(coroutine, self._strand(), int(is_wait))
        asked = asyncio.run_coroutine_threadsafe(answered, self._loop)
        self._work.end()
        try:
            return asked.result()
        except CancelledError:
            self._handle.check_open()  # the body is being ended: raise why
            raise asyncio.CancelledError from None

    def _strand(self) -> Strand:
        thread = threading.current_thread()
        return MAIN if thread is self._main else thread

    async def _call_on_loop(
        self, coroutine: Coroutine[Any, Any, T], strand: Strand, waits: int
    ) -> T:
        answering = asyncio.current_task()
        assert answering is not None
        self._calls.add(answering)
        self._shared.begin_call(strand)
        self._handle.thread_waits(waits)
        try:
            return await coroutine
        finally:
            self._handle.thread_waits(-waits)
            self._shared.end_call()
            self._calls.discard(answering)
            self._work.begin()


class BlockingToken:
    """A promise that others settle: give them its id, then `wait()`."""

    def __init__(self, handle: BlockingHandle, token: Token) -> None:
        self._handle = handle
        self._token = token

    @property
    def id(self) -> str:
        return self._token.id

    @property
    def term(self) -> PromiseTerm:
        """As a wait of a bundle."""
        return self._token.term

    def url(self, expires: Seconds | None = None) -> str:
        return self._handle.call(self._token.url(expires))

    def wait(self, timeout: Seconds | None = None) -> Any:
        return self._handle.wait(self._token.wait(timeout))


async def _next_of(results: AsyncIterator[Any]) -> Any:
    return await anext(results, NO_MORE)


async def _closed(results: AsyncGenerator[Any, None]) -> None:
    await results.aclose()


async def _called(function: Any, *args: Any) -> None:
    function(*args)
