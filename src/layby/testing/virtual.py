"""Turns virtual time on and off: for a block, a function, a test.

`idle.py` explains how it works. Everything is per loop; two context variables tell a Runner
opened here which clock to use.
"""

import asyncio
import random
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncContextDecorator, AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar, Token
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from layby.clock import SystemClock, virtual_clock
from layby.core.model import Millis
from layby.errors import UsageError
from layby.runner import Runner
from layby.runner.runner_options import RunnerOptions
from layby.testing.idle import IdleWatch
from layby.testing.virtual_clock import VirtualClock, VirtualEngineClock
from layby.worker.real_work import current_work

T = TypeVar("T")
P = ParamSpec("P")

YEAR = 366 * 86_400.0
NEW_YEAR: Millis = 1_767_225_600_000
"""2026-01-01 00:00 UTC, where deterministic runners begin."""


class VirtualTime(AsyncContextDecorator):
    """See `virtual_time()`."""

    def __init__(
        self, *, start: Millis | None, limit: float, patience: float, io_grace: float
    ) -> None:
        self._start = start
        self._limit = limit
        self._patience = patience
        self._io_grace = io_grace

    def _recreate_cm(self) -> Self:
        """As a decorator, each call gets its own."""
        return type(self)(
            start=self._start,
            limit=self._limit,
            patience=self._patience,
            io_grace=self._io_grace,
        )

    async def __aenter__(self) -> VirtualClock:
        loop = _checked_loop(asyncio.get_running_loop())
        start = SystemClock().now() if self._start is None else self._start
        self._clock = VirtualClock(loop, start)
        self._watch = IdleWatch(loop, self._clock, self._limit, self._patience, self._io_grace)
        self._watch.install()
        self._vars = _ContextVars()
        self._vars.set(virtual_clock, VirtualEngineClock(self._clock))
        self._vars.set(current_work, self._clock.work)
        return self._clock

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._vars.reset()
        self._watch.remove()
        deadlock = self._watch.take_deadlock()
        if deadlock is not None and isinstance(error, asyncio.CancelledError):
            raise deadlock from error


def virtual_time(
    *,
    start: Millis | None = None,
    limit: float = YEAR,
    patience: float = 10.0,
    io_grace: float = 0.02,
) -> VirtualTime:
    """`async with virtual_time() as clock:` an hour of sleeps takes milliseconds.

    Time jumps only when the loop is idle. `start` is what `clock.now()` begins at (milliseconds;
    the system's time if not given). Threads in flight hold time still, at most `patience` real
    seconds without a sign of life. While connections are open, each jump first waits for them
    for `io_grace` real seconds; a listening socket costs nothing. Past `limit` virtual seconds,
    or when nothing can happen any more, `VirtualDeadlock` says which task waits where.

    Also a decorator of coroutine functions. `time.time()` is not patched.
    """
    return VirtualTime(start=start, limit=limit, patience=patience, io_grace=io_grace)


def run_virtual(main: Awaitable[T], *, start: Millis | None = None, limit: float = YEAR) -> T:
    """`asyncio.run` in virtual time, on a new selector loop."""

    async def inside() -> T:
        async with virtual_time(start=start, limit=limit):
            return await main

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(inside())


def virtual_test(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Turn an async test into one that any test runner can call, in virtual time."""

    @wraps(test)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs))

    return call


def current_clock() -> VirtualClock:
    """Return the clock of the `virtual_time()` that this code runs under."""
    found = virtual_clock.get()
    if not isinstance(found, VirtualEngineClock):
        raise UsageError("no virtual time here: use `async with virtual_time()` or run_virtual()")
    return found.clock


class _ContextVars:
    """Context variables to be reset together."""

    def __init__(self) -> None:
        self._tokens: list[tuple[ContextVar[Any], Token[Any]]] = []

    def set(self, var: ContextVar[T], value: T) -> None:
        self._tokens.append((var, var.set(value)))

    def reset(self) -> None:
        for var, token in reversed(self._tokens):
            with suppress(ValueError):  # entered in a fixture whose context is gone
                var.reset(token)


def _checked_loop(loop: asyncio.AbstractEventLoop) -> BaseSelectorEventLoop:
    if not isinstance(loop, BaseSelectorEventLoop):
        kind = type(loop)
        raise UsageError(
            f"virtual time needs asyncio's own selector loop, and this one is "
            f"{kind.__module__}.{kind.__qualname__}: use layby.testing.run_virtual(main()), or "
            f"asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) for this test"
        )
    if isinstance(getattr(loop.time, "__self__", None), VirtualClock):
        raise UsageError(
            "virtual time is already on in this loop: take the clock of the outer "
            "`async with virtual_time() as clock:`, or current_clock()"
        )
    return loop


@asynccontextmanager
async def deterministic_runner(
    address: str = "memory:",
    *,
    seed: int = 0,
    start: Millis = NEW_YEAR,
    **options: Unpack[RunnerOptions],
) -> AsyncGenerator[Runner]:
    """`async with deterministic_runner(slots=4) as runner:`, options as for `Runner`.

    Turns virtual time on, unless it is on already, and seeds the `random` module meanwhile.
    Bodies in threads and processes run when they run; everything else is the same every time.
    """
    state = random.getstate()
    random.seed(seed)
    try:
        async with AsyncExitStack() as stack:
            if virtual_clock.get() is None:
                await stack.enter_async_context(virtual_time(start=start))
            yield await stack.enter_async_context(Runner(address, **options))
    finally:
        random.setstate(state)
