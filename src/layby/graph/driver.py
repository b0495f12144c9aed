"""Owns the asyncio driver: the same epochs on an event loop, with `async def` components."""

import asyncio
from collections.abc import Generator
from contextlib import suppress
from typing import Any

from layby.graph.progress import MAX_EPOCHS, DriverProgress
from layby.graph.runtime import GraphRuntime


class AsyncGraphDriver:
    """Awaited, it runs until idle. Components run on the loop, one after the other."""

    def __init__(self, runtime: GraphRuntime) -> None:
        self.runtime = runtime

    def __await__(self) -> Generator[Any, None, int]:
        return self.run_until_idle().__await__()

    async def run_epoch(self) -> int:
        """Run one epoch; how many invocations it had."""
        runtime = self.runtime
        runtime.begin_epoch()
        count = 0
        try:
            for state in runtime.order:
                if not (state.fires or state.has_waiting()) or runtime.is_closed:
                    continue
                if state.is_async:
                    count += await runtime.visit_async(state)
                else:
                    count += runtime.visit(state)
        finally:
            runtime.end_epoch()
        return count

    async def run_until_idle(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - says what was not idle, and why
        max_epochs: int = MAX_EPOCHS,
    ) -> int:
        """Run epochs, waiting for work, until nothing is left; how many epochs.

        When time is over, an `async def` component that is awaited is cancelled.
        """
        self.runtime.check_open()
        progress = DriverProgress(self.runtime, timeout, max_epochs)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                await self._drive(progress)
        except TimeoutError as error:
            if limit.expired() and not hasattr(error, "__notes__"):  # a component's own has one
                raise progress.timed_out() from None
            raise
        return progress.epochs

    async def _drive(self, progress: DriverProgress) -> None:
        with self.runtime.driving():
            news = _News()
            while (pause := self.runtime.next_pause(progress, news.tell)) is not None:
                await self._go_on(pause, news)

    async def run_until_closed(self) -> int:
        """Run epochs whenever there is something to do, until the runtime is closed."""
        runtime = self.runtime
        progress = DriverProgress(runtime)
        with runtime.driving():
            news = _News()
            while True:
                pause = runtime.next_pause(progress, news.tell)
                if runtime.is_closed:  # looked at last: from here on it would wake us
                    return progress.epochs
                await self._go_on(pause, news)

    async def _go_on(self, pause: float | None, news: "_News") -> None:
        if pause == 0:
            await self.run_epoch()
            await asyncio.sleep(0)  # the loop has others to serve
        else:
            await news.wait(pause)


class _News:
    """Wakes the loop when a completion, a fire or a publication has come, on whatever thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def tell(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        self._event.clear()
